"""Which queues there are and where each ends, beside the queues themselves.

A removed queue folder, or a queue file that was cut or zeroed, looks like a queue that never had more. The ledger tells
them apart. It also knows which topics were deleted, so that records of theirs in the log do not bring them back.

Apache's broker does not read this file. After it has used the folder, the ledger is out of date and not used.
"""

import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Final
from zlib import crc32

from skyroute.broker.store.disk import Disk
from skyroute.broker.store.errors import StoreError
from skyroute.broker.store.topic_queue import TopicQueue

GROWTH_BYTES: Final = 1 << 14
"""By how much the file grows, at least."""

LEDGER_NAME: Final = "queues"

_MARK: Final = b"skyroute queues1"
_ENTRY: Final = Struct(">IBHi")
"""Sum of what follows up to the ends, kind, length of the topic, number of the queue. The topic comes next."""
_ENDS: Final = Struct(">qqqI")
"""The queue's end, its end at the last flush, its first offset, and their sum."""
_QUEUE, _BATCH_QUEUE, _DELETED_TOPIC = 1, 2, 3


@dataclass(frozen=True, slots=True)
class KnownQueue:
    """What a ledger says of a queue."""

    is_for_batches: bool
    end: int
    """The offset behind its newest message in files."""
    flushed_end: int
    """The same when the store was last flushed."""
    first: int
    """The offset of its oldest message in files."""


@dataclass(slots=True)
class KnownQueues:
    """What a ledger says."""

    queues: dict[tuple[str, int], KnownQueue] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)
    """For each deleted topic, the end of the log at that time: records before it are no longer in any queue."""


class QueueLedger:
    """Kept up to date while a store runs, in a mapped file: what is written survives the process."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._descriptor = -1
        self._map: mmap.mmap | None = None
        self._end = 0
        self._ends_at: dict[TopicQueue, int] = {}
        self._unflushed: dict[TopicQueue, None] = {}
        self._flushed: dict[TopicQueue, int] = {}
        self._deleted: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<QueueLedger {self._path} queues={len(self._ends_at)}>"

    def read(self) -> KnownQueues | None:
        """Return what the file says; None where there is none, or a bad spot in it."""
        try:
            content = self._path.read_bytes()
        except OSError:
            return None
        if not content.startswith(_MARK):
            return None
        known, at = KnownQueues(), len(_MARK)
        while at + _ENTRY.size <= len(content) and content[at : at + _ENTRY.size].strip(b"\0"):
            found = _read_entry(content, at)
            if found is None:
                return None
            kind, topic, queue_id, end, flushed_end, first, at = found
            if kind == _DELETED_TOPIC:
                known.deleted[topic] = end
                for key in [key for key in known.queues if key[0] == topic]:
                    del known.queues[key]
            else:
                known.queues[topic, queue_id] = KnownQueue(kind == _BATCH_QUEUE, end, flushed_end, first)
        return known

    def begin(self, queues: Iterable[TopicQueue], deleted: dict[str, int]) -> None:
        """Write the file anew, and keep it up to date from now on.

        Raises:
            StoreWriteError, StoreFullError: the file is as it was.
        """
        self._deleted = deleted
        entries = [_entry(_DELETED_TOPIC, topic, 0) + _ends(position) for topic, position in deleted.items()]
        entries_at = len(_MARK) + sum(map(len, entries))
        ends_at: dict[TopicQueue, int] = {}
        for queue in queues:
            entry = _entry(_kind(queue), queue.topic, queue.queue_id)
            ends_at[queue] = entries_at + len(entry)
            end = queue.written_end
            entries.append(entry + _ends(end, self._flushed.setdefault(queue, end), queue.first_kept))
            entries_at += len(entries[-1])
        content = _MARK + b"".join(entries)
        size = len(content) + max(GROWTH_BYTES, len(content) // 2)
        staged = self._path.with_name(f"{self._path.name}.tmp")
        self._disk.remove(staged)
        descriptor = self._disk.open(staged, 0)
        try:
            # Written whole, so that there is room on the disk for what goes through the mapping.
            self._disk.write(descriptor, content.ljust(size, b"\0"), 0)
            mapped = mmap.mmap(descriptor, size)
            self._disk.replace(staged, self._path)
        except BaseException:
            os.close(descriptor)
            raise
        self.close()
        self._descriptor, self._map, self._end, self._ends_at = descriptor, mapped, len(content), ends_at

    def note(self, queue: TopicQueue) -> None:
        """Say where a queue ends, all of which is in files."""
        mapped = self._map
        if mapped is None:
            return
        at = self._ends_at.get(queue)
        if at is None:
            at = self._add(_entry(_kind(queue), queue.topic, queue.queue_id))
            if at is None:
                return
            self._ends_at[queue] = at
            mapped = self._map or mapped
        self._unflushed[queue] = None
        raw = _ends(queue.written_end, self._flushed.get(queue, 0), queue.first_kept)
        mapped[at : at + len(raw)] = raw

    def note_deleted(self, topic: str, position: int) -> None:
        """Say that a topic's queues were deleted when the log ended at this position, on the disk.

        Raises:
            StoreWriteError: it may not be there.
        """
        self._deleted[topic] = position
        for queue in [queue for queue in self._ends_at if queue.topic == topic]:
            self.forget(queue)
        at = self._add(_entry(_DELETED_TOPIC, topic, 0))
        if at is not None and self._map is not None:
            raw = _ends(position)
            self._map[at : at + len(raw)] = raw
            self._disk.sync(self._descriptor)

    def forget(self, queue: TopicQueue) -> None:
        """Drop the entry of a deleted queue, so that the next start does not create it again."""
        at = self._ends_at.pop(queue, None)
        self._unflushed.pop(queue, None)
        self._flushed.pop(queue, None)
        if at is not None and self._map is not None:
            raw = _ends(0)
            self._map[at : at + len(raw)] = raw

    def begin_flush(self) -> int | None:
        """Say that all queues are put on the disk as far as they are noted; return the file to put there with them."""
        if self._map is None:
            return None
        for queue in self._unflushed:
            at = self._ends_at.get(queue)
            if at is not None:
                end = self._flushed[queue] = queue.written_end
                raw = _ends(end, end, queue.first_kept)
                self._map[at : at + len(raw)] = raw
        self._unflushed.clear()
        return self._descriptor

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None
            os.close(self._descriptor)

    def _add(self, entry: bytes) -> int | None:
        """Write the start of an entry; return where its ends go. None where the disk has no room for it."""
        mapped = self._map
        if mapped is None:
            return None
        size = len(entry) + _ENDS.size
        if self._end + size > len(mapped):
            try:
                self.begin(list(self._ends_at), self._deleted)
            except StoreError:
                # Without it the next start reads the log, which takes longer and finds the same.
                self.close()
                self._path.unlink(missing_ok=True)
                return None
            mapped = self._map or mapped
        at = self._end
        mapped[at : at + size] = entry + _ends(0)
        self._end += size
        return at + len(entry)


def encode_ledger(known: KnownQueues) -> bytes:
    """Return a ledger as its file holds it."""
    entries = [_entry(_DELETED_TOPIC, topic, 0) + _ends(position) for topic, position in known.deleted.items()]
    for (topic, queue_id), queue in known.queues.items():
        kind = _BATCH_QUEUE if queue.is_for_batches else _QUEUE
        entries.append(_entry(kind, topic, queue_id) + _ends(queue.end, queue.flushed_end, queue.first))
    return _MARK + b"".join(entries)


def _kind(queue: TopicQueue) -> int:
    return _BATCH_QUEUE if queue.is_for_batches else _QUEUE


def _entry(kind: int, topic: str, queue_id: int) -> bytes:
    raw_topic = topic.encode()
    rest = _ENTRY.pack(0, kind, len(raw_topic), queue_id)[4:] + raw_topic
    return crc32(rest).to_bytes(4, "big") + rest


def _ends(end: int, flushed_end: int = 0, first: int = 0) -> bytes:
    raw = _ENDS.pack(end, flushed_end, first, 0)[:-4]
    return raw + crc32(raw, 1).to_bytes(4, "big")


def _read_entry(content: bytes, at: int) -> tuple[int, str, int, int, int, int, int] | None:
    """Return kind, topic, queue, both ends and start of an entry, and where the next one starts; None at a bad spot."""
    entry_sum, kind, topic_bytes, queue_id = _ENTRY.unpack_from(content, at)
    topic_at = at + _ENTRY.size
    ends_at = topic_at + topic_bytes
    if ends_at + _ENDS.size > len(content) or crc32(content[at + 4 : ends_at]) != entry_sum:
        return None
    end, flushed_end, first, ends_sum = _ENDS.unpack_from(content, ends_at)
    if crc32(content[ends_at : ends_at + _ENDS.size - 4], 1) != ends_sum:
        return None
    topic = content[topic_at:ends_at].decode("utf-8", "replace")
    return kind, topic, queue_id, end, flushed_end, first, ends_at + _ENDS.size
