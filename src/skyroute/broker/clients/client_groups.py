"""The members of a producer group or a consumer group."""

from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain, islice

import msgspec

from skyroute.message.tags import java_hash
from skyroute.remoting.dispatch import Peer
from skyroute.wire.calls.clients import ConsumerData, ConsumeType, MessageModel, StartFrom, Subscription


@dataclass(slots=True, eq=False)
class GroupMember:
    """A client in one group, through one connection."""

    peer: Peer
    client_id: str
    language: str
    version: int
    heard_at: float
    """Time of its last heartbeat for this group; monotonic seconds."""


class ClientGroup:
    """The members of one group: at most one per connection, and one per client id."""

    __slots__ = ("_by_client", "_by_connection", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._by_connection: dict[int, GroupMember] = {}
        self._by_client: dict[str, GroupMember] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} members={len(self._by_connection)}>"

    def __len__(self) -> int:
        return len(self._by_connection)

    @property
    def members(self) -> Collection[GroupMember]:
        return self._by_connection.values()

    def find(self, client_id: str) -> GroupMember | None:
        """Return the member with this client id."""
        return self._by_client.get(client_id)

    def on(self, connection: int) -> GroupMember | None:
        """Return the member on this connection."""
        return self._by_connection.get(connection)

    def add(self, member: GroupMember) -> list[GroupMember]:
        """Add a member; return the members it replaces, which had its connection or its client id."""
        same_connection = self._by_connection.get(member.peer.connection)
        same_id = self._by_client.get(member.client_id)
        replaced = [old for old in (same_connection, same_id) if old is not None]
        if same_connection is same_id:
            del replaced[1:]
        for old in replaced:
            self.remove(old)
        self._by_connection[member.peer.connection] = member
        self._by_client[member.client_id] = member
        return replaced

    def remove(self, member: GroupMember) -> None:
        """Remove a member."""
        del self._by_connection[member.peer.connection]
        del self._by_client[member.client_id]


class ProducerGroup(ClientGroup):
    """Producers of one group. Each can answer for the transactions of the others."""

    __slots__ = ("_turn",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._turn = 0

    def next_peer(self, is_allowed: Callable[[Peer], bool] | None = None) -> Peer | None:
        """Return the producers with an open connection in turn; None if there are none that are allowed."""
        members = self.members
        start = self._turn % max(len(members), 1)
        for turn, member in enumerate(chain(islice(members, start, None), islice(members, start)), start + 1):
            if not member.peer.gone and (is_allowed is None or is_allowed(member.peer)):
                self._turn = turn
                return member.peer
        return None


class ConsumerGroup(ClientGroup):
    """Consumers that share offsets and subscriptions. The last heartbeat decides."""

    __slots__ = ("fingerprint", "model", "start_from", "subscriptions", "type")

    def __init__(self, consumer: ConsumerData) -> None:
        super().__init__(consumer.group)
        self.subscriptions: dict[str, Subscription] = {}
        """By topic."""
        self.fingerprint: int | None = None
        """Fingerprint of the subscriptions in the last heartbeat; None before the first."""
        self.update(consumer)

    def update(self, consumer: ConsumerData) -> None:
        """Take the consume type, message model and start position of a heartbeat."""
        self.type: ConsumeType = consumer.consume_type
        self.model: MessageModel = consumer.model
        self.start_from: StartFrom = consumer.start_from

    @property
    def needs_notifications(self) -> bool:
        """Whether members rebalance when others join or leave. In broadcasting, each reads all queues."""
        return self.model is not MessageModel.BROADCASTING

    def newer(self, subscriptions: Iterable[Subscription]) -> list[Subscription]:
        """Return the subscriptions that are newer than those of the group."""
        known = self.subscriptions
        return [
            subscription
            for subscription in subscriptions
            if (old := known.get(subscription.topic)) is None or old.version < subscription.version
        ]

    def subscribe(self, newer: Iterable[Subscription], topics: AbstractSet[str]) -> bool:
        """Store newer subscriptions, drop those of other topics, and return whether the topics changed."""
        known = self.subscriptions
        changed = known.keys() != topics
        for subscription in newer:
            old = known.get(subscription.topic)
            # A heartbeat may have a topic twice.
            if old is None or old.version < subscription.version:
                known[subscription.topic] = _with_java_codes(subscription)
        for topic in known.keys() - topics:
            del known[topic]
        return changed


def _with_java_codes(subscription: Subscription) -> Subscription:
    """Return a subscription with the tag hashes of consume queues added.

    The Go client hashes UTF-8, consume queues have hashes of UTF-16. They differ beyond ASCII.
    """
    missing = [java_hash(tag) for tag in subscription.tags if not tag.isascii()]
    if not missing:
        return subscription
    return msgspec.structs.replace(subscription, codes=tuple({*subscription.codes, *missing}))
