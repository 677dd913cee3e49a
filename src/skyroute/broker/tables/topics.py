"""The topics of a broker: the file they are kept in, and how new ones come to be."""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from skyroute.broker.config import BrokerConfig
from skyroute.broker.store.errors import StoreDamagedError
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.tables.attributes import BATCH_QUEUE, QUEUE_TYPE
from skyroute.broker.tables.table_file import TableFile
from skyroute.broker.tables.table_format import (
    entry_pieces,
    next_version,
    object_pieces,
    read_as,
    read_entries,
    read_version,
    unknown_members,
)
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
from skyroute.routing.registration import DataVersion
from skyroute.routing.topology import Permission
from skyroute.wire.calls.topics import TopicConfig, version_members
from skyroute.wire.codes import ResponseCode

TOPICS_MAX: Final = 100_000
"""How many topics a broker keeps; every producer can make one by sending to it."""

_SCHEDULE_QUEUES: Final = 18
_REVIVE_QUEUES: Final = 8
_BENCHMARK_QUEUES: Final = 1024
_OPEN: Final = Permission.READ | Permission.WRITE
_TABLE_MEMBERS: Final = frozenset({"topicConfigTable", "dataVersion"})


Announce = Callable[[Collection[TopicConfig]], Awaitable[None]]
"""Makes topics known to all name servers that can be reached, and returns when they are."""


class StoredTopics(NamedTuple):
    """What the file of topics holds."""

    topics: dict[str, TopicConfig]
    unknown: dict[str, dict[str, Any]]
    """By topic, JSON members that this broker does not know."""
    unknown_rest: dict[str, Any]
    version: DataVersion | None


def read_topics(raw: object) -> StoredTopics:
    """Parse the file of topics.

    Raises:
        StoreDamagedError: it is not a table of topics.
    """
    stored = read_as(raw, dict[str, Any], "the table of topics")
    topics, unknown = read_entries(stored, "topicConfigTable", TopicConfig, "topicName")
    return StoredTopics(topics, unknown, unknown_members(stored, _TABLE_MEMBERS), read_version(stored))


class Topics:
    """The topics by name. Whoever changes one also makes it known: to the disk by `table_file`, and to name servers."""

    def __init__(self, file: JsonFile, config: BrokerConfig, now_ms: Callable[[], int]) -> None:
        self._config = config
        self._now_ms = now_ms
        self._table = {topic.name: topic for topic in _boot_topics(config)}
        self._own = frozenset(self._table)
        self._leaving: dict[str, int] = {}
        """Topics whose queues are being removed, with the number of removals under way."""
        self._unknown: dict[str, dict[str, Any]] = {}
        """Of some topics, members of the file that only others understand."""
        self._unknown_rest: dict[str, Any] = {}
        self.version = DataVersion(timestamp_ms=now_ms())
        self._file = file
        self.may_lack_topics = False
        """The file was missing or damaged when it was read: topics of this broker may be unknown."""
        self.table_file = TableFile(file, self.pieces)
        self.get: Callable[[str], TopicConfig | None] = self._table.get

    def __repr__(self) -> str:
        return f"<Topics {len(self._table)} version={self.version.counter}>"

    def load(self) -> None:
        """Read the file. It takes precedence over the settings for topics that every broker has.

        Raises:
            StoreDamagedError: neither the file nor its backup can be used.
        """
        stored = self.table_file.load(read_topics)
        self.may_lack_topics = stored is None or self._file.used_backup
        if stored is not None:
            self._table.update(stored.topics)
            if len(self._table) > TOPICS_MAX:
                raise StoreDamagedError(f"the table of topics has more than {TOPICS_MAX}")
            self._unknown = stored.unknown
            self._unknown_rest = stored.unknown_rest
            self.version = stored.version or self.version
        if not self._config.auto_create_topics:
            # As long as it has a route, producers believe that it may stand in for any other.
            self._table.pop(DEFAULT_TOPIC, None)

    def all(self) -> Mapping[str, TopicConfig]:
        """Return all topics, as they are at any time."""
        return MappingProxyType(self._table)

    def is_system(self, topic: str) -> bool:
        """Return whether a topic is the system's own, those with the names of this broker and its cluster included."""
        return topic in self._own or is_system_topic(topic)

    def is_batch_topic(self, topic: str) -> bool:
        """Return whether the queues of a topic keep each batch as one record."""
        found = self._table.get(topic)
        return found is not None and found.attributes.get(QUEUE_TYPE) == BATCH_QUEUE

    def system_topics(self) -> list[str]:
        """Return the names that are the system's own, sorted."""
        return sorted(SYSTEM_TOPICS | self._own)

    def create_for_send(self, topic: str, default_topic: str, queues: int, *, sys_flag: int = 0) -> TopicConfig | None:
        """Return a topic that somebody sends to, made after another one if it is not there; None if that may not be.

        Raises:
            RefusedError: there is no room for one more.
        """
        if found := self._table.get(topic):
            return found
        model = self._table.get(default_topic)
        if model is not None and self._may_be_model(model):
            # Java makes a topic without queues if it is told so; nobody could ever send to that.
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
        """Return a topic, made as told if it is not there.

        Raises:
            RefusedError: there is no room for one more.
        """
        if found := self._table.get(config.name):
            return found
        self.put(config)
        return config

    def put(self, config: TopicConfig) -> bool:
        """Create or replace a topic; False if it was the same before.

        Raises:
            RefusedError: there is no room for one more.
        """
        before = self._table.get(config.name)
        if before == config:
            return False
        if before is None:
            self.check_room(1)
        if config.name in self._leaving:
            raise RefusedError(ResponseCode.SYSTEM_BUSY, f"topic {config.name} is being deleted: try again")
        self._table[config.name] = config
        self._changed()
        return True

    def check_room(self, more: int) -> None:
        """Check that the table has room for `more` topics.

        Raises:
            RefusedError: the table is full.
        """
        if len(self._table) + more > TOPICS_MAX:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"this broker has {TOPICS_MAX} topics, and takes no more")

    @contextmanager
    def leaving(self, topic: str) -> Iterator[None]:
        """Refuse to create a topic while its queues are being removed."""
        self._leaving[topic] = self._leaving.get(topic, 0) + 1
        try:
            yield
        finally:
            self._leaving[topic] -= 1
            if not self._leaving[topic]:
                del self._leaving[topic]

    def mark_ordered(self, names: Collection[str]) -> list[TopicConfig]:
        """Note which topics name servers say are ordered; returns those of ours that were not before."""
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
        """Forget a topic; False if there was none."""
        if self._table.pop(topic, None) is None:
            return False
        self._unknown.pop(topic, None)
        self._changed()
        return True

    def renew(self) -> None:
        """Make the table a new edition, because what its topics allow has changed."""
        self._changed()

    def _changed(self) -> None:
        self.version = next_version(self.version, self._now_ms())
        self.table_file.touch()

    def pieces(self) -> Iterator[bytes]:
        """Return the table as its file holds it, in pieces, all of one data version."""
        members = {**self._unknown_rest, "dataVersion": version_members(self.version)}
        return object_pieces(members, {"topicConfigTable": entry_pieces(self._table, self._unknown)})


def _boot_topics(config: BrokerConfig) -> Iterator[TopicConfig]:
    """Give the topics that every broker has from its start."""
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
