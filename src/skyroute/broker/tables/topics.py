"""The topics of a broker: their file, and how new topics are created."""

from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from skyroute.broker.config import BrokerConfig
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.tables.attributes import BATCH_QUEUE, QUEUE_TYPE
from skyroute.broker.tables.config_table import ConfigTable, StoredConfigs, read_configs
from skyroute.broker.tables.table_format import Pieces
from skyroute.message.reserved_topics import (
    BENCHMARK_TOPIC,
    DEFAULT_TOPIC,
    HALF_DONE_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPICS,
    TIMER_TOPIC,
    is_retry_topic,
    is_system_topic,
    reply_topic,
)
from skyroute.remoting.errors import RefusedError
from skyroute.routing.topology import Permission
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import ResponseCode

TOPICS_MAX: Final = 100_000
"""Topics of one broker; a producer can create one by sending to it."""

_SCHEDULE_QUEUES: Final = 18
_REVIVE_QUEUES: Final = 8
_BENCHMARK_QUEUES: Final = 1024
_OPEN: Final = Permission.READ | Permission.WRITE
_TABLE: Final = "topicConfigTable"

Announce = Callable[[Collection[TopicConfig]], Awaitable[None]]
"""Registers topics with all reachable name servers, and returns when they have them."""


def read_topics(raw: object) -> StoredConfigs[TopicConfig]:
    """Parse the file of topics.

    Raises:
        StoreDamagedError: it is not a table of topics.
    """
    return read_configs(raw, TopicConfig, what="topics", table=_TABLE, name="topicName")


class Topics(ConfigTable[TopicConfig]):
    """The topics by name. A caller that changes one saves `table_file` and announces it to the name servers."""

    def __init__(self, file: JsonFile, config: BrokerConfig, now_ms: Callable[[], int]) -> None:
        initial = {topic.name: topic for topic in _boot_topics(config)}
        super().__init__(file, initial, now_ms, what="topics", entries_max=TOPICS_MAX)
        self._config = config
        self._own = frozenset(initial)
        self._deleting: dict[str, int] = {}
        """Topics whose queues are being removed, with the number of removals under way."""
        self._file = file
        self.may_lack_topics = False
        """The file was missing or damaged when it was read: topics of this broker may be unknown."""

    def load(self) -> None:
        """Read the file. It takes precedence over the settings for topics that every broker has.

        Raises:
            StoreDamagedError: neither the file nor its backup can be used.
        """
        stored = self.table_file.load(read_topics)
        self.may_lack_topics = stored is None or self._file.used_backup
        if stored is not None:
            self._restore(stored)
        if not self._config.auto_create_topics:
            # While it has a route, producers use it for any topic without one.
            self._table.pop(DEFAULT_TOPIC, None)

    def is_system(self, topic: str) -> bool:
        """Return whether a topic is a system topic, or has the name of this broker or its cluster."""
        return topic in self._own or is_system_topic(topic)

    def is_batch_topic(self, topic: str) -> bool:
        """Return whether the queues of a topic keep each batch as one record."""
        found = self._table.get(topic)
        return found is not None and found.attributes.get(QUEUE_TYPE) == BATCH_QUEUE

    def system_topics(self) -> list[str]:
        """Return the names of the system topics, sorted."""
        return sorted(SYSTEM_TOPICS | self._own)

    def create_for_send(self, topic: str, default_topic: str, queues: int, *, sys_flag: int = 0) -> TopicConfig | None:
        """Return the topic of a send, created after `default_topic` if needed; None if it may not be created.

        Raises:
            RefusedError: the table is full.
        """
        if found := self._table.get(topic):
            return found
        model = self._table.get(default_topic)
        if model is not None and self._may_be_model(model):
            # Java creates a topic without queues if asked to; no message could be sent to it.
            queues = max(min(queues, model.write_queues), 1)
            permission = int(model.permission) & ~int(Permission.INHERIT)
            return self.create(TopicConfig(topic, queues, queues, permission, model.filter_type, sys_flag))
        if is_retry_topic(topic):
            return self.create(TopicConfig(topic, 1, 1, _OPEN, sys_flag=sys_flag))
        return None

    def _may_be_model(self, model: TopicConfig) -> bool:
        if model.name == DEFAULT_TOPIC and not self._config.auto_create_topics:
            return False
        return bool(model.permission & Permission.INHERIT)

    def create(self, config: TopicConfig) -> TopicConfig:
        """Return a topic, created with this configuration if it does not exist.

        Raises:
            RefusedError: the table is full, or the topic is being deleted.
        """
        if found := self._table.get(config.name):
            return found
        self.put(config)
        return config

    def put(self, config: TopicConfig) -> bool:
        """Create or replace a topic; False if nothing changed.

        Raises:
            RefusedError: the table is full, or the topic is being deleted.
        """
        if self._table.get(config.name) == config:
            return False
        if config.name in self._deleting:
            raise RefusedError(ResponseCode.SYSTEM_BUSY, f"topic {config.name} is being deleted: try again")
        self._put(config.name, config)
        return True

    @contextmanager
    def deleting(self, topic: str) -> Iterator[None]:
        """Refuse to create a topic while its queues are being removed."""
        self._deleting[topic] = self._deleting.get(topic, 0) + 1
        try:
            yield
        finally:
            self._deleting[topic] -= 1
            if not self._deleting[topic]:
                del self._deleting[topic]

    def mark_ordered(self, names: Collection[str]) -> list[TopicConfig]:
        """Mark topics as ordered, which name servers report; return those that were not before."""
        changed = [
            msgspec.structs.replace(topic, ordered=True)
            for topic in map(self._table.get, names)
            if topic is not None and not topic.ordered
        ]
        for topic in changed:
            self._table[topic.name] = topic
        if changed:
            self._changed()
        return changed

    def delete(self, topic: str) -> bool:
        """Remove a topic; False if it does not exist."""
        if self._table.pop(topic, None) is None:
            return False
        self._unknown.pop(topic, None)
        self._changed()
        return True

    def renew(self) -> None:
        """Give the table a new data version, because the permission of the broker has changed."""
        self._changed()

    def begin_epoch(self, epoch: int) -> None:
        """Give the table the data version of a new master: name servers prefer it to that of an older one."""
        self.version = self.version._replace(state_version=epoch)
        self._changed()

    def pieces(self) -> Pieces:
        return self._object_pieces(_TABLE)


def _boot_topics(config: BrokerConfig) -> Iterator[TopicConfig]:
    """Give the topics that every broker has."""
    inheritable = _OPEN | Permission.INHERIT
    for name in (SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC, HALF_TOPIC, HALF_DONE_TOPIC):
        yield TopicConfig(name, 1, 1)
    if config.auto_create_topics:
        queues = config.default_topic_queues
        yield TopicConfig(DEFAULT_TOPIC, queues, queues, inheritable)
    yield TopicConfig(BENCHMARK_TOPIC, _BENCHMARK_QUEUES, _BENCHMARK_QUEUES)
    cluster, broker = config.cluster_name, config.broker_name
    yield TopicConfig(cluster, permission=inheritable if config.cluster_topic_enabled else Permission.INHERIT)
    yield TopicConfig(broker, 1, 1, inheritable if config.broker_topic_enabled else Permission.INHERIT)
    yield TopicConfig(SCHEDULE_TOPIC, _SCHEDULE_QUEUES, _SCHEDULE_QUEUES)
    if config.trace_topic_enabled:
        yield TopicConfig(config.trace_topic, 1, 1)
    yield TopicConfig(reply_topic(cluster), 1, 1)
    yield TopicConfig(f"rmq_sys_REVIVE_LOG_{cluster}", _REVIVE_QUEUES, _REVIVE_QUEUES)
    yield TopicConfig(f"rmq_sys_SYNC_BROKER_MEMBER_{broker}", 1, 1, Permission.INHERIT)
    if config.timers_enabled:
        yield TopicConfig(TIMER_TOPIC, 1, 1)
