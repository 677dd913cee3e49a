"""Consumer offsets: committed by groups, and reset by operators."""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sized
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

import msgspec

from skyroute.broker.store.errors import StoreDamagedError
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.tables.table_file import TableFile
from skyroute.broker.tables.table_format import (
    claim_version,
    next_version,
    object_pieces,
    read_as,
    read_member,
    read_version,
    unknown_members,
)
from skyroute.remoting.errors import RefusedError
from skyroute.routing.registration import DataVersion
from skyroute.wire.codes import ResponseCode
from skyroute.wire.data_version import version_members

OFFSETS_MAX: Final = 1_000_000
"""Offsets of one broker: one for each group, topic and queue."""

COMMITS_PER_VERSION: Final = 500
"""Commits after which the table gets a new data version."""

OFFSETS_A_STEP: Final = 5_000
"""Offsets written or deleted in one step, which takes about a millisecond."""

_TABLE_MEMBERS: Final = frozenset({"offsetTable", "groupTopicMap", "dataVersion"})
_Table = dict[tuple[str, str], dict[int, int]]


class StoredOffsets(NamedTuple):
    """The content of the file."""

    offsets: _Table
    unknown: dict[str, Any]
    """JSON members that this broker does not know."""
    version: DataVersion | None


def read_offsets(raw: object) -> StoredOffsets:
    """Parse the file of offsets.

    Raises:
        StoreDamagedError: it is not a table of offsets.
    """
    stored = read_as(raw, dict[str, Any], "the table of offsets")
    offsets: _Table = {}
    for key, by_queue in read_member(stored, "offsetTable", dict[str, dict[int, int]]).items():
        topic, at, group = key.rpartition("@")
        if at:
            offsets[group, topic] = by_queue
    return StoredOffsets(offsets, unknown_members(stored, _TABLE_MEMBERS), read_version(stored))


class ConsumerOffsets:
    """Offsets by group, topic and queue. Each is the offset of the next message to consume."""

    def __init__(self, file: JsonFile, now_ms: Callable[[], int], *, offsets_max: int = OFFSETS_MAX) -> None:
        self._now_ms = now_ms
        self._offsets_max = offsets_max
        self._table: _Table = {}
        self._count = 0
        self._resets: _Table = {}
        """Reset offsets that no pull has received yet. The file has the offset, and not that it was reset."""
        self._pulled: _Table = {}
        self._pulled_count = 0
        self._topics: dict[str, dict[str, None]] = {}
        """Topics by group, over all three tables."""
        self._groups: dict[str, dict[str, None]] = {}
        """Groups by topic, over all three tables."""
        self._commits = 0
        self._claims = False
        self._unknown: dict[str, Any] = {}
        self.version = DataVersion(timestamp_ms=now_ms())
        self.on_reset: Callable[[str, str, int], None] = lambda _group, _topic, _queue_id: None
        """Called with group, topic and queue of each reset offset."""
        self.table_file = TableFile(file, self.pieces)

    def __repr__(self) -> str:
        return f"<ConsumerOffsets {self._count} resets={sum(map(len, self._resets.values()))}>"

    def load(self) -> None:
        """Read the file.

        Raises:
            StoreDamagedError: neither the file nor its backup can be used.
        """
        stored = self.table_file.load(read_offsets)
        if stored is None:
            return
        self._table = stored.offsets
        self._count = sum(map(len, self._table.values()))
        if self._count > self._offsets_max:
            raise StoreDamagedError(f"the table of offsets has more than {self._offsets_max}")
        for group, topic in self._table:
            self._note_pair(group, topic)
        self._unknown = stored.unknown
        self.version = stored.version or self.version

    def claim(self) -> None:
        """Let the next commit make this table newer than any that the missing master has saved."""
        self._claims = True

    def merge(self, stored: StoredOffsets, *, larger_only: bool = False) -> Generator[None, None, None]:
        """Take over the offsets of another member of the group, in steps; offsets that it does not have stay.

        With `larger_only`, larger offsets stay too: those of an acting master may be older than a returning master's.

        Raises:
            RefusedError: the table is full.
        """
        merged = 0
        for (group, topic), offsets in stored.offsets.items():
            for queue_id, offset in offsets.items():
                if not larger_only or offset > self._table.get((group, topic), {}).get(queue_id, -1):
                    self._set(group, topic, queue_id, offset)
            merged += len(offsets)
            if merged >= OFFSETS_A_STEP:
                merged = 0
                yield
        if stored.version is not None and not (larger_only and stored.version.counter < self.version.counter):
            self.version = stored.version

    # ------------------------------------------------------------------------------------------------------ one queue

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset of a group in a queue. A reset that no pull has received yet takes precedence."""
        if self._resets and (reset := self._resets.get((group, topic))) and queue_id in reset:
            return reset[queue_id]
        known = self._table.get((group, topic))
        return None if known is None else known.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Commit an offset, which may be lower than the last one.

        False, and nothing is committed, while a reset of the queue waits for the next pull.

        Raises:
            RefusedError: the table is full.
        """
        if self._resets and queue_id in self._resets.get((group, topic), ()):
            return False
        self._set(group, topic, queue_id, offset)
        self._commits += 1
        if self._commits % COMMITS_PER_VERSION == 0 or self._claims:
            self.version = (claim_version if self._claims else next_version)(self.version, self._now_ms())
            self._claims = False
        return True

    def _set(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        known = self._table.get((group, topic))
        if known is None or queue_id not in known:
            self.check_room(1)
            if known is None:
                known = self._table[group, topic] = {}
                self._note_pair(group, topic)
            self._count += 1
        known[queue_id] = offset
        self.table_file.touch()

    def _note_pair(self, group: str, topic: str) -> None:
        self._topics.setdefault(group, {})[topic] = None
        self._groups.setdefault(topic, {})[group] = None

    def check_room(self, more: int) -> None:
        """Check that the table has room for `more` offsets.

        Raises:
            RefusedError: the table is full.
        """
        if self._count + more > self._offsets_max:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR, f"this broker has {self._count} consumer offsets, and takes no more"
            )

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an offset that the next pull from the queue receives.

        Raises:
            RefusedError: the table is full.
        """
        self._set(group, topic, queue_id, offset)
        self._resets.setdefault((group, topic), {})[queue_id] = offset
        # What was pulled before the reset is no longer in flight.
        if self._pulled.get((group, topic), {}).pop(queue_id, None) is not None:
            self._pulled_count -= 1
        self.on_reset(group, topic, queue_id)

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the reset offset of a queue, once; None if it was not reset."""
        if not self._resets or (reset := self._resets.get((group, topic))) is None:
            return None
        offset = reset.pop(queue_id, None)
        if not reset:
            del self._resets[group, topic]
        return offset

    def note_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note the end of the messages that a group has pulled. It is shown to operators, and kept in memory only."""
        pulled = self._pulled.get((group, topic))
        if pulled is None or queue_id not in pulled:
            if self._pulled_count >= self._offsets_max:
                return
            if pulled is None:
                pulled = self._pulled[group, topic] = {}
                self._note_pair(group, topic)
            self._pulled_count += 1
        pulled[queue_id] = offset

    def pulled(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the end of the messages that a group has pulled; if unknown, its offset."""
        pulled = self._pulled.get((group, topic), {}).get(queue_id)
        return self.get(group, topic, queue_id) if pulled is None else pulled

    # ------------------------------------------------------------------------------------------------------ all queues

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have an offset in a topic."""
        return [group for group in self._groups.get(topic, ()) if (group, topic) in self._table]

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which a group has an offset."""
        return [topic for topic in self._topics.get(group, ()) if (group, topic) in self._table]

    def pairs(self) -> list[tuple[str, str]]:
        """Return every pair of group and topic with an offset."""
        return list(self._table)

    def of(self, group: str, topic: str) -> Mapping[int, int]:
        """Return the committed offsets of a group by queue of a topic."""
        return dict(self._table.get((group, topic), {}))

    def queues_of(self, group: str, topic: str) -> AbstractSet[int]:
        """Return the queues of a topic that a group has committed or pulled."""
        pair = group, topic
        return self._table.get(pair, {}).keys() | self._pulled.get(pair, {}).keys()

    def clone(self, source: str, destination: str, topic: str) -> bool:
        """Copy the offsets of a topic from one group to another; False if the source has none.

        Raises:
            RefusedError: the table is full.
        """
        offsets = self._table.get((source, topic))
        if not offsets:
            return False
        more = len(offsets) - len(self._table.get((destination, topic), ()))
        self.check_room(more)
        self._table[destination, topic] = dict(offsets)
        self._note_pair(destination, topic)
        self._count += more
        self.table_file.touch()
        return True

    def delete_group(self, group: str) -> Generator[None, None, None]:
        """Delete the offsets of a group, in steps."""
        return self._forget([(group, topic) for topic in self._topics.get(group, ())])

    def delete_topic(self, topic: str) -> Generator[None, None, None]:
        """Delete the offsets of a topic, in steps."""
        return self._forget([(group, topic) for group in self._groups.get(topic, ())])

    def _forget(self, pairs: Collection[tuple[str, str]]) -> Generator[None, None, None]:
        for done, (group, topic) in enumerate(pairs, 1):
            self._count -= len(self._table.pop((group, topic), ()))
            self._pulled_count -= len(self._pulled.pop((group, topic), ()))
            self._resets.pop((group, topic), None)
            _discard(self._topics, group, topic)
            _discard(self._groups, topic, group)
            self.table_file.touch()
            if not done % OFFSETS_A_STEP:
                yield

    def pieces(self) -> Iterator[bytes]:
        """Return the table as its file has it, in pieces. Each offset is as of the time its piece is written."""
        return object_pieces(
            {**self._unknown, "dataVersion": version_members(self.version)},
            {"groupTopicMap": self._topic_pieces(), "offsetTable": self._offset_pieces()},
        )

    def _topic_pieces(self) -> Iterator[bytes]:
        groups = list(self._topics)
        return _table_pieces((group, topics) for group in groups if (topics := self.topics_of(group)))

    def _offset_pieces(self) -> Iterator[bytes]:
        # Queue ids are quoted keys: Apache's brokers read them too, and unquoted ones are slow to parse.
        pairs = list(self._table)
        return _table_pieces((f"{pair[1]}@{pair[0]}", self._table.get(pair, {})) for pair in pairs)


def _table_pieces(entries: Iterable[tuple[str, Sized]]) -> Iterator[bytes]:
    """Write table entries as JSON, about `OFFSETS_A_STEP` members per piece."""
    part: dict[str, Sized] = {}
    separator, written = b"", 0
    for name, members in entries:
        part[name] = members
        written += 1 + len(members)
        if written >= OFFSETS_A_STEP:
            yield separator + msgspec.json.encode(part)[1:-1]
            separator, part, written = b",", {}, 0
    if part:
        yield separator + msgspec.json.encode(part)[1:-1]


def _discard(index: dict[str, dict[str, None]], key: str, member: str) -> None:
    members = index.get(key)
    if members is not None:
        members.pop(member, None)
        if not members:
            del index[key]
