"""Names of topics and groups inside a namespace, and as brokers know them.

With `namespace="tenant"`, an application's `Orders` is `tenant%Orders` on brokers. Here the first is the short name,
the second the full name. Without a namespace they are the same.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from skyroute.message.message import StoredMessage
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import namespace_of, with_namespace, without_namespace
from skyroute.wire.calls.consumers import RunningConsumer
from skyroute.wire.calls.groups import ConsumerConnections, GroupConfig
from skyroute.wire.calls.topics import TopicConfig

READER_GROUP: Final = "TOOLS_CONSUMER"
"""Group under which tools read. Every broker has it and keeps no offsets for it; it belongs to no namespace."""

T = TypeVar("T")
Config = TypeVar("Config", TopicConfig, GroupConfig)


class Names:
    """Translates between the short and the full names of one namespace, or changes nothing for None."""

    def __init__(self, namespace: str | None) -> None:
        self._namespace = namespace

    def owns(self, full: str) -> bool:
        """Return whether a full name belongs to the namespace."""
        return self._namespace is None or namespace_of(full) == self._namespace

    def full(self, name: str) -> str:
        """Return the full name of a short one; a full one stays as it is."""
        return name if name == READER_GROUP else with_namespace(self._namespace, name)

    def full_queue(self, queue: QueueRef) -> QueueRef:
        return QueueRef(self.full(queue.topic), queue.broker_name, queue.queue_id)

    def short(self, name: str) -> str:
        """Return the short name of a full one; a name of another namespace stays as it is."""
        return without_namespace(self._namespace, name)

    def short_queue(self, queue: QueueRef) -> QueueRef:
        return QueueRef(self.short(queue.topic), queue.broker_name, queue.queue_id)

    def short_queues(self, by_queue: Mapping[QueueRef, T]) -> dict[QueueRef, T]:
        return {self.short_queue(queue): value for queue, value in by_queue.items()}

    def short_messages(self, messages: Iterable[StoredMessage]) -> list[StoredMessage]:
        if self._namespace is None:
            return list(messages)
        return [message.replace(topic=self.short(message.topic)) for message in messages]

    def short_config(self, config: Config) -> Config:
        return msgspec.structs.replace(config, name=self.short(config.name))

    def short_configs(self, by_name: Mapping[str, Config]) -> dict[str, Config]:
        """Return the entries that belong to the namespace, sorted by short name."""
        own = {self.short(name): self.short_config(config) for name, config in by_name.items() if self.owns(name)}
        return dict(sorted(own.items()))

    def short_connections(self, found: ConsumerConnections) -> ConsumerConnections:
        subscriptions = {
            self.short(topic): msgspec.structs.replace(subscription, topic=self.short(subscription.topic))
            for topic, subscription in found.subscriptions.items()
        }
        return msgspec.structs.replace(found, subscriptions=subscriptions)

    def short_consumer(self, found: RunningConsumer) -> RunningConsumer:
        return msgspec.structs.replace(
            found,
            subscriptions=tuple(
                msgspec.structs.replace(subscription, topic=self.short(subscription.topic))
                for subscription in found.subscriptions
            ),
            queues=self.short_queues(found.queues),
            paces={self.short(topic): pace for topic, pace in found.paces.items()},
        )
