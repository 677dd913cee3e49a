"""The queue ledger: a file with the name and end of every queue.

Without it, a removed queue folder, or a truncated or zeroed queue file, looks like a shorter queue. It also lists
deleted topics, so that recovery does not restore them from their records in the log.

Apache's broker does not read this file. Once it has used the folder, the ledger is out of date and ignored. So is a
ledger of another folder: ledger and checkpoint have the same store id.
"""

import logging
import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Final
from zlib import crc32

from skyroute.broker.store.queues.topic_queue import TopicQueue
from skyroute.files.disk import Disk
from skyroute.files.errors import DiskFullError, FileWriteError, StorageError

log = logging.getLogger(__name__)

GROWTH_BYTES: Final = 1 << 14
"""Minimum growth of the file."""

LEDGER_NAME: Final = "queues"

_MARK: Final = b"skyroute queues2"
_MARK_WITHOUT_ID: Final = b"skyroute queues1"
_STORE_ID: Final = Struct(">q")
_HEAD_BYTES: Final = len(_MARK) + _STORE_ID.size
_ENTRY: Final = Struct(">IBHi")
"""Checksum of the rest and the topic, kind, length of the topic, queue id. The topic follows."""
_ENDS: Final = Struct(">qqqI")
"""The queue's end, its end at the last flush, its first offset, and their checksum."""
_QUEUE, _BATCH_QUEUE, _DELETED_TOPIC = 1, 2, 3


@dataclass(frozen=True, slots=True)
class KnownQueue:
    """The ledger's entry of a queue."""

    is_batch_queue: bool
    end: int
    """The offset behind its newest message in files."""
    flushed_end: int
    """That offset at the last flush."""
    first: int
    """The offset of its oldest message in files."""


@dataclass(slots=True)
class KnownQueues:
    """The content of a ledger."""

    queues: dict[tuple[str, int], KnownQueue] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)
    """For each deleted topic, the end of the log at that time: records before it are no longer in any queue."""


class QueueLedger:
    """The ledger of a running store, in a memory-mapped file, which survives a crash of the process."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._descriptor = -1
        self._map: mmap.mmap | None = None
        self._end = 0
        self.is_new = False
        """Its name may not be on disk."""
        self.store_id = 0
        """Id of the store, as read or for the next `begin`; 0 if unknown."""
        self._ends_at: dict[TopicQueue, int] = {}
        self._unflushed: dict[TopicQueue, None] = {}
        self._flushed: dict[TopicQueue, int] = {}
        self._deleted: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<QueueLedger {self.path} queues={len(self._ends_at)}>"

    @property
    def folder(self) -> Path:
        return self.path.parent

    def read(self) -> KnownQueues | None:
        """Parse the file; None if it is missing or damaged."""
        try:
            content = self.path.read_bytes()
        except OSError:
            return None
        known, at = KnownQueues(), len(_MARK_WITHOUT_ID)
        if content.startswith(_MARK) and len(content) >= _HEAD_BYTES:
            (self.store_id,) = _STORE_ID.unpack_from(content, at)
            at = _HEAD_BYTES
        elif not content.startswith(_MARK_WITHOUT_ID):
            return None
        while at + _ENTRY.size <= len(content) and content[at : at + _ENTRY.size].strip(b"\0"):
            found = _read_entry(content, at)
            if found is None:
                return None
            kind, topic, queue_id, end, flushed_end, first, at = found
            if kind == _DELETED_TOPIC:
                known.deleted[topic] = end
                for key in [key for key in known.queues if key[0] == topic]:
                    del known.queues[key]
            elif end > 0:  # not forgotten
                known.queues[topic, queue_id] = KnownQueue(kind == _BATCH_QUEUE, end, flushed_end, first)
        return known

    def read_of(self, store_id: int) -> KnownQueues | None:
        """As `read`; also None if the file is of a store with another id."""
        known = self.read()
        if known is not None and is_of_other_store(self.store_id, store_id):
            log.warning("queue ledger of another store ignored file=%s", self.path)
            return None
        return known

    def begin(self, queues: Iterable[TopicQueue], deleted: dict[str, int]) -> None:
        """Rewrite the file, and keep it up to date from now on; on a full disk, run without it.

        Raises:
            FileWriteError: it cannot be written for another reason, and is as it was.
        """
        try:
            self._rewrite(queues, deleted)
        except DiskFullError:
            self.give_up()

    def _rewrite(self, queues: Iterable[TopicQueue], deleted: dict[str, int]) -> None:
        self._deleted = deleted
        entries = [_entry(_DELETED_TOPIC, topic, 0) + _ends(position) for topic, position in deleted.items()]
        entries_at = _HEAD_BYTES + sum(map(len, entries))
        ends_at: dict[TopicQueue, int] = {}
        for queue in queues:
            entry = _entry(_kind(queue), queue.topic, queue.queue_id)
            ends_at[queue] = entries_at + len(entry)
            end = queue.written_end
            entries.append(entry + _ends(end, self._flushed.setdefault(queue, end), queue.first_kept))
            entries_at += len(entries[-1])
        content = _MARK + _STORE_ID.pack(self.store_id) + b"".join(entries)
        size = len(content) + max(GROWTH_BYTES, len(content) // 2)
        self._disk.remove(self._staged)
        descriptor = self._disk.open(self._staged, 0)
        try:
            # Writing it whole allocates disk space for the writes through the mapping.
            self._disk.write(descriptor, content.ljust(size, b"\0"), 0)
            mapped = mmap.mmap(descriptor, size)
            self._disk.replace(self._staged, self.path)
        except BaseException:
            os.close(descriptor)
            raise
        self.close()
        self._descriptor, self._map, self._end, self._ends_at = descriptor, mapped, len(content), ends_at
        self.is_new = True

    def note(self, queue: TopicQueue) -> None:
        """Write the end of a queue whose units are all in files."""
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
        """Write, to disk, that a topic was deleted when the log ended at this position.

        Raises:
            FileWriteError: the entry may not be on disk.
        """
        self._deleted[topic] = position
        for queue in [queue for queue in self._ends_at if queue.topic == topic]:
            self.forget(queue)
        at = self._add(_entry(_DELETED_TOPIC, topic, 0))
        if at is not None and self._map is not None:
            raw = _ends(position)
            self._map[at : at + len(raw)] = raw
            self._disk.sync(self._descriptor)
            self._disk.sync_folder(self.folder)

    def forget(self, queue: TopicQueue) -> None:
        """Drop the entry of a deleted queue, so that the next start does not create it again."""
        at = self._ends_at.pop(queue, None)
        self._unflushed.pop(queue, None)
        self._flushed.pop(queue, None)
        if at is not None and self._map is not None:
            raw = _ends(0)
            self._map[at : at + len(raw)] = raw

    def begin_flush(self) -> int | None:
        """Write the noted ends as flushed; return the descriptor to sync together with the queues."""
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

    def resume(self, queues: Iterable[TopicQueue], log_end: int) -> None:
        """Write the file again, after `give_up` and a truncation of log and queues; on a full disk, run without it.

        Raises:
            FileWriteError: it cannot be written for another reason; the next start reads the log instead.
        """
        self._flushed = {queue: min(end, queue.written_end) for queue, end in self._flushed.items()}
        self.begin(queues, {topic: min(position, log_end) for topic, position in self._deleted.items()})

    def give_up(self) -> None:
        """Run without a ledger, on a full disk or before a truncation: the next start reads the log."""
        self.close()
        for path in (self.path, self._staged):
            with suppress(FileWriteError):
                self._disk.remove(path)

    @property
    def _staged(self) -> Path:
        return self.path.with_name(f"{self.path.name}.tmp")

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None
            os.close(self._descriptor)

    def _add(self, entry: bytes) -> int | None:
        """Write the start of an entry; return the offset of its ends. None if the disk is full."""
        mapped = self._map
        if mapped is None:
            return None
        size = len(entry) + _ENDS.size
        if self._end + size > len(mapped):
            try:
                self._rewrite(list(self._ends_at), self._deleted)
            except StorageError:
                self.give_up()
                return None
            mapped = self._map or mapped
        at = self._end
        mapped[at : at + size] = entry + _ends(0)
        self._end += size
        return at + len(entry)


def is_of_other_store(ledger_id: int, checkpoint_id: int) -> bool:
    """Return whether a ledger is not of the store of a checkpoint, by the store ids; 0 is unknown."""
    return bool(ledger_id and checkpoint_id) and ledger_id != checkpoint_id


def encode_ledger(known: KnownQueues) -> bytes:
    """Return a ledger as its file holds it, for any store."""
    entries = [_entry(_DELETED_TOPIC, topic, 0) + _ends(position) for topic, position in known.deleted.items()]
    for (topic, queue_id), queue in known.queues.items():
        kind = _BATCH_QUEUE if queue.is_batch_queue else _QUEUE
        entries.append(_entry(kind, topic, queue_id) + _ends(queue.end, queue.flushed_end, queue.first))
    return _MARK + _STORE_ID.pack(0) + b"".join(entries)


def _kind(queue: TopicQueue) -> int:
    return _BATCH_QUEUE if queue.is_batch_queue else _QUEUE


def _entry(kind: int, topic: str, queue_id: int) -> bytes:
    raw_topic = topic.encode()
    rest = _ENTRY.pack(0, kind, len(raw_topic), queue_id)[4:] + raw_topic
    return crc32(rest).to_bytes(4, "big") + rest


def _ends(end: int, flushed_end: int = 0, first: int = 0) -> bytes:
    raw = _ENDS.pack(end, flushed_end, first, 0)[:-4]
    return raw + crc32(raw, 1).to_bytes(4, "big")


def _read_entry(content: bytes, at: int) -> tuple[int, str, int, int, int, int, int] | None:
    """Return kind, topic, queue id, both ends, first offset, and start of the next entry; None if damaged."""
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
