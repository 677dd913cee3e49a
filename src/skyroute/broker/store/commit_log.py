"""The commit log: the records of all messages of a broker, in order of arrival."""

import struct
from collections.abc import Generator
from contextlib import suppress
from mmap import mmap
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from skyroute.broker.store.damage_map import DamageMap
from skyroute.broker.store.errors import RecordTooLargeError
from skyroute.broker.store.files.segment import OpenSegments, Segment
from skyroute.broker.store.files.segmented_log import SegmentedLog
from skyroute.broker.store.files.sparse import data_chunks
from skyroute.broker.store.flush import Flush
from skyroute.files.disk import Disk
from skyroute.files.errors import StorageError
from skyroute.message.crc import crc32
from skyroute.message.flags import BORN_HOST_IPV6, HOSTS_IPV6
from skyroute.message.layout import (
    HEAD_BYTES,
    MAGIC_SEGMENT_END,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SEGMENT_END_BYTES,
    compile_heads,
)
from skyroute.message.record import segment_end

MAPPED_BYTES_MAX: Final = 64 << 20
"""Bytes mapped by reads after which the pages are released, so that they do not count as memory of the process."""

MAPPED_AROUND: Final = 1 << 16
"""Bytes that the system maps around a byte that is read, if they are in its cache."""

_SCANNED: Final = compile_heads(
    {"record_bytes", "magic", "body_crc", "queue_id", "queue_offset", "log_position", "sys_flag"}
    | {"stored_at_ms", "body_bytes"}
)
_WORDS: Final = Struct(">iI")
_INT: Final = Struct(">i")
_LONG: Final = Struct(">q")
_SYS_FLAG_AT: Final = 36
_STORED_AT: Final = 56
_IPV6_MORE: Final = 12


class ScannedRecord(NamedTuple):
    """The fields of a record that its unit and its index entries need."""

    position: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    stored_at_ms: int
    raw_properties: bytes


ScannedTuple = tuple[int, int, str, int, int, int, int, bytes]
"""A `ScannedRecord` as a plain tuple: a scan creates millions."""


class CommitLog:
    """Appends records and finds them by position. The caller has written the position into the record."""

    def __init__(self, folder: Path, segment_bytes: int, disk: Disk, opened: OpenSegments) -> None:
        self._log = SegmentedLog(folder, segment_bytes, disk, opened)
        self._disk = disk
        self._mapped_bytes = 0
        self._synced_segment: Segment | None = None
        """The newest segment whose name is on disk."""
        self.damaged = DamageMap()
        """Ranges known to hold no intact record."""
        self.end = 0
        """The position of the next record, unless the segment is too short for it."""
        self.flushed = 0
        """Everything before this position is on disk."""
        self.limit = 0
        """Maximum end of a record in the last segment; behind it is space for the end mark of the segment."""

    def __repr__(self) -> str:
        return f"<CommitLog {self._log.folder} {self.start}..{self.end} flushed={self.flushed}>"

    def load(self) -> None:
        """Find the segments. Recovery then sets the end.

        Raises:
            StoreDamagedError: their sizes differ from the settings.
        """
        self._log.load()

    @property
    def segments(self) -> list[Segment]:
        return self._log.segments

    @property
    def segment_bytes(self) -> int:
        return self._log.segment_bytes

    @property
    def start(self) -> int:
        """The position of the oldest byte."""
        return self._log.segments[0].start if self._log.segments else self.end

    @property
    def stop(self) -> int:
        """The position behind the last file."""
        return self._log.segments[-1].stop if self._log.segments else self.end

    # ---------------------------------------------------------------------------------------------------------- writing

    def place(self, size: int) -> int:
        """Return the position for the next record, or batch of records, of this size.

        Raises:
            RecordTooLargeError: it is larger than a segment.
            FileWriteError: a new segment cannot be created.
        """
        segments = self._log.segments
        if self.end + size <= self.limit:
            return self.end
        if size + SEGMENT_END_BYTES > self.segment_bytes:
            raise RecordTooLargeError(
                f"{size} bytes do not fit a segment (expected at most {self.segment_bytes - SEGMENT_END_BYTES})"
            )
        if segments:
            last = segments[-1]
            if self.end < last.stop:
                last.write(self.end - last.start, segment_end(last.stop - self.end))
            self.end = max(self.end, last.stop)
        self.limit = self._log.add(self.end).stop - SEGMENT_END_BYTES
        return self.end

    def append(self, position: int, records: bytes | bytearray) -> None:
        """Write records at the position that `place` returned.

        Raises:
            FileWriteError: nothing is appended.
        """
        segment = self._log.segments[-1]
        try:
            self._disk.write(segment.descriptor, records, position - segment.start)
        except Exception:
            # Remove the partial record: a shorter one may be written over it later.
            with suppress(StorageError):
                segment.cut(position - segment.start)
            raise
        self.end = position + len(records)

    def append_foreign(self, data: bytes) -> None:
        """Append bytes of another broker's log, cut anywhere; new segments begin where files of that log do.

        Raises:
            FileWriteError: a part may be appended; `end` says how much.
        """
        while data:
            segment = self._log.find(self.end)
            if segment is None:
                segment = self._log.add(self.end)
                self.limit = segment.stop - SEGMENT_END_BYTES
            part = data[: segment.stop - self.end]
            segment.write(self.end - segment.start, part)
            self.end += len(part)
            data = data[len(part) :]

    def begin_at(self, position: int) -> None:
        """Let a log without a byte begin at another position.

        Raises:
            FileWriteError: an empty file cannot be removed.
        """
        self._log.remove_all()
        self.end = self.flushed = position
        self.limit = 0

    def touch_ahead(self, distance: int, size: int) -> None:
        """Read bytes at a distance behind the end of the log, so that the system has found their pages before a write.

        The first write to a page that is not in memory may take seven times as long.
        """
        for last in self._log.segments[-1:]:
            at = self.end + distance - last.start
            last.read(at, max(min(size, last.size - at), 0))

    def rewrite_from(self, position: int) -> None:
        """Write everything from this position on again.

        After a failed sync, the system shows writes that it has dropped, and does not repeat them at the next sync.

        Raises:
            FileWriteError: a part may not be written again.
        """
        for segment in self._log.segments:
            for low, high in data_chunks(segment, max(position - segment.start, 0)):
                segment.write(low, segment.read(low, high - low))

    def truncate(self, position: int) -> None:
        """Drop everything from this position on."""
        self._log.truncate(position)
        self.end = position
        self.limit = self._log.segments[-1].stop - SEGMENT_END_BYTES if self._log.segments else 0
        self.flushed = min(self.flushed, position)

    def start_at(self, position: int) -> None:
        """Set the position of the first record of an empty log."""
        self.end = position

    def finish_at(self, position: int, *, is_flushed: bool) -> None:
        """End the log here after recovery. If the file of this position is missing, the log ends with that file."""
        if position < self.stop and self._log.find(position) is None:
            position = self.stop
        elif position > self.stop:
            position += -position % self.segment_bytes
        self.truncate(position)
        self.flushed = self.end if is_flushed else self.start

    def add_unflushed_to(self, flush: Flush) -> None:
        """Add the segments that may not be on disk."""
        unflushed = [each for each in self._log.segments if each.stop > self.flushed and each.start <= self.end]
        for segment in unflushed[:-1]:
            flush.add_path(segment.path)
        for newest in unflushed[-1:]:
            flush.add(newest.descriptor, newest.path)
            if newest is not self._synced_segment:
                self._synced_segment = newest
                flush.add_folder(self._log.folder)
                flush.add_folder(self._log.folder.parent)

    def note_flushed(self, position: int) -> None:
        """Note that everything before a position is on disk."""
        self.flushed = max(self.flushed, position)

    def remove_first(self) -> Segment:
        """Remove the oldest segment and return it."""
        return self._log.remove_first()

    def close(self) -> None:
        self._log.close()

    # ---------------------------------------------------------------------------------------------------------- reading

    def find(self, position: int) -> Segment | None:
        """Return the segment that holds this position, or None."""
        return self._log.find(position)

    def read(self, position: int, size: int) -> bytes | None:
        """Return bytes of the log; None if it does not have all of them."""
        segment = self._log.find(position)
        if segment is None or position + size > min(self.end, segment.stop) or size < 0:
            return None
        self.account_for(max(size, MAPPED_AROUND))
        return bytes(segment.view[position - segment.start : position - segment.start + size])

    def account_for(self, size: int) -> None:
        """Count bytes that a read may have mapped; release all pages when there are many."""
        self._mapped_bytes += size
        if self._mapped_bytes > MAPPED_BYTES_MAX:
            self._mapped_bytes = 0
            for segment in self._log.segments:
                segment.release_memory()

    def record_at(self, position: int) -> bytes | None:
        """Return the record that starts here; None if no record does, or it is damaged."""
        if not self.damaged.is_empty and position in self.damaged:
            return None
        words = self.read(position, _WORDS.size)
        if words is None:
            return None
        size, magic = _WORDS.unpack(words)
        if magic not in (MAGIC_V1, MAGIC_V2) or size < RECORD_BYTES_MIN:
            return None
        record = self.read(position, size)
        return record if record and _LONG.unpack_from(record, 28)[0] == position else None

    def stored_at_ms(self, position: int) -> int | None:
        """Return the store time of the record that starts here; None if it is not in the log."""
        head = self.read(position, _STORED_AT + _IPV6_MORE + 8)
        if head is None:
            return None
        born_ipv6 = _INT.unpack_from(head, _SYS_FLAG_AT)[0] & BORN_HOST_IPV6
        return int(_LONG.unpack_from(head, _STORED_AT + (_IPV6_MORE if born_ipv6 else 0))[0])


def scan_segment(
    segment: Segment, position: int, topics: dict[bytes, str], log_end: int | None = None
) -> Generator[ScannedTuple, None, tuple[int, bool]]:
    """Yield the intact records of a segment from a position on, as `ScannedRecord` tuples.

    With `log_end`, bytes are known to be complete up to there, and records end before it.
    Returns the position behind them, and whether that is the end of the segment; otherwise see `log_scan`.
    """
    view = segment.content
    at, end, start = position - segment.start, segment.size, segment.start
    limit = end if log_end is None else min(log_end - start, end)
    read_head = _SCANNED[0].unpack_from
    released_at = at
    size: int
    magic: int
    crc: int
    queue_id: int
    queue_offset: int
    own_position: int
    sys_flag: int
    stored_at: int
    body_bytes: int
    try:
        while True:
            (size, magic, crc, queue_id, queue_offset, own_position, sys_flag, stored_at, body_bytes) = read_head(
                view, at
            )
            body_at = at + HEAD_BYTES
            if sys_flag & HOSTS_IPV6:
                head = _SCANNED[sys_flag >> 4 & 3]
                body_at = at + head.size
                *_, stored_at, body_bytes = head.unpack_from(view, at)
            topic_at = body_at + body_bytes
            if magic == MAGIC_V1:
                topic_stop = topic_at + 1 + view[topic_at]
                topic_at += 1
            elif magic == MAGIC_V2:
                topic_stop = topic_at + 2 + (view[topic_at] << 8 | view[topic_at + 1])
                topic_at += 2
            else:
                break
            stop = at + size
            if (
                own_position != start + at
                or body_bytes < 0
                or stop > limit
                or topic_stop + 2 + (view[topic_stop] << 8 | view[topic_stop + 1]) != stop
                or (body_bytes and crc32(view[body_at : body_at + body_bytes]) & 0x7FFFFFFF != crc)
            ):
                break
            if (
                not view[stop - 1]
                and log_end is None
                and is_torn(view, stop - 1 if stop > topic_stop + 2 else topic_stop - 1, stop)
            ):
                break
            raw_topic = view[topic_at:topic_stop]
            topic = topics.get(raw_topic)
            if topic is None:
                topic = topics.setdefault(raw_topic, raw_topic.decode("utf-8", "replace"))
            yield start + at, size, topic, queue_id, queue_offset, sys_flag, stored_at, view[topic_stop + 2 : stop]
            at = stop
            if at - released_at > MAPPED_BYTES_MAX:
                released_at = at
                segment.release_memory()
    except (struct.error, IndexError):
        pass  # too close to the end of the segment for a header; the end mark may be here
    is_over = at == end or (
        end - at >= SEGMENT_END_BYTES and _WORDS.unpack_from(view, at) == (end - at, MAGIC_SEGMENT_END)
    )
    return start + at, is_over


def is_torn(view: mmap, last_at: int, stop: int) -> bool:
    """Return whether the end of a record is missing: its last byte is zero, and no record follows.

    No checksum covers topic and properties, so this is the only sign.
    """
    if view[last_at]:
        return False
    magic = _WORDS.unpack_from(view, stop)[1] if stop + _WORDS.size <= len(view) else 0
    return magic not in (MAGIC_V1, MAGIC_V2, MAGIC_SEGMENT_END)
