"""What consume queues and batch queues share: encoding of records, and rows of units in files.

A unit has the log position, size and tag code of a record. Rows count units, offsets count messages.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from struct import Struct
from struct import error as StructError  # noqa: N812 - the module's own name for it is too plain to use bare
from typing import ClassVar, Final

from skyroute.broker.store.draft import Draft
from skyroute.broker.store.files.segment import OpenSegments, Segment
from skyroute.broker.store.files.segmented_log import SegmentedLog
from skyroute.broker.store.files.sparse import last_data
from skyroute.files.disk import Disk
from skyroute.message.batch import RawItem
from skyroute.message.crc import crc32
from skyroute.message.errors import RecordError
from skyroute.message.flags import HOSTS_IPV6
from skyroute.message.host import IPV4_HOST_BYTES
from skyroute.message.layout import HEADS, MAGIC_V1, MAGIC_V2, V1_TOPIC_BYTES_MAX
from skyroute.message.properties import PROPERTIES_BYTES_MAX

UNIT: Final = Struct(">qiq")
"""The start of every unit: position of the record, its size, and its tag code."""

NO_MESSAGE_BYTES: Final = 0x7FFFFFFF
"""The size in a unit without a message, as before the start of a queue that starts inside a segment."""

GAP_MAX: Final = 100_000
"""Maximum number of missing messages between two messages; above it, the offset of the later one is damaged."""

Unit = tuple[int, int, int]
"""Position, size and tag code of a record."""

_HEAD_START: Final = Struct(">iIiiiqq")
_BATCH_HEADS: Final = tuple(Struct(f">iIiiiqq{head.size - _HEAD_START.size - 4}si") for head in HEADS)
"""A record's header as batches write it: the bytes before the body length are the same in all records."""


class TopicQueue(ABC):
    """One queue of a topic. The subclasses map offsets to rows."""

    __slots__ = (
        "_count",
        "_log",
        "_min_known",
        "_tail",
        "_written",
        "bad_row",
        "end",
        "magic",
        "next_offset",
        "queue_id",
        "topic",
        "topic_field",
    )
    unit_bytes: ClassVar[int]
    is_batch_queue: ClassVar[bool]

    def __init__(
        self, folder: Path, topic: str, queue_id: int, segment_units: int, disk: Disk, opened: OpenSegments
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.next_offset = 0
        """The offset of the next message."""
        self.end = 0
        """The offset behind the newest message with a unit, which readers see."""
        self._count = 0
        """Number of units, including removed ones."""
        self._written = 0
        """Number of units that are in files, or were; the rest is in `_tail`."""
        self._tail = bytearray()
        raw_topic = topic.encode()
        version_1 = len(raw_topic) <= V1_TOPIC_BYTES_MAX
        self.magic = MAGIC_V1 if version_1 else MAGIC_V2
        self.topic_field = len(raw_topic).to_bytes(1 if version_1 else 2, "big") + raw_topic
        """The topic field of its records: length and name."""
        self._log = SegmentedLog(folder, segment_units * self.unit_bytes, disk, opened)
        self._min_known = (0, 0)
        self.bad_row: int | None = None
        """The first row that loading found missing or invalid; recovery rebuilds it from the log."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic} {self.queue_id} ..{self.end}>"

    # ---------------------------------------------------------------------------------------------------------- records

    def encode(
        self,
        draft: Draft,
        body: bytes,
        raw_properties: bytes,
        flag: int,
        queue_offset: int,
        position: int,
        stored_at_ms: int,
    ) -> bytes:
        """Return the record of a message of this queue: as `message.record.encode`, but faster.

        Raises:
            RecordError: a value does not fit its field.
        """
        born_host, store_host = draft.raw_born_host, draft.raw_store_host
        body_bytes, properties_bytes = len(body), len(raw_properties)
        topic_field = self.topic_field
        families = (len(born_host) != IPV4_HOST_BYTES) | (len(store_host) != IPV4_HOST_BYTES) << 1
        head = HEADS[families]
        if properties_bytes > PROPERTIES_BYTES_MAX:
            raise RecordError(
                f"properties of {properties_bytes} bytes are too long (expected at most {PROPERTIES_BYTES_MAX})"
            )
        try:
            start = head.pack(
                head.size + body_bytes + len(topic_field) + 2 + properties_bytes,
                self.magic,
                crc32(body) & 0x7FFFFFFF,
                self.queue_id,
                flag,
                queue_offset,
                position,
                draft.sys_flag & ~HOSTS_IPV6 | families << 4,
                draft.born_at_ms,
                born_host,
                stored_at_ms,
                store_host,
                draft.reconsume_times,
                draft.prepared_position,
                body_bytes,
            )
        except StructError as error:
            raise RecordError(f"a number does not fit its field in a record: {error}") from error
        return b"".join((start, body, topic_field, properties_bytes.to_bytes(2, "big"), raw_properties))

    def encode_all(
        self, draft: Draft, items: Sequence[RawItem], queue_offset: int, position: int, stored_at_ms: int
    ) -> tuple[list[bytes], list[int]]:
        """Return adjacent records of several messages, in pieces, and their positions.

        The fields of the draft are the same in all of them and are encoded once.

        Raises:
            RecordError: a value does not fit its field.
        """
        empty = self.encode(draft, b"", b"", 0, queue_offset, position, stored_at_ms)
        empty_bytes, head_bytes = len(empty), len(empty) - len(self.topic_field) - 2
        same = empty[_HEAD_START.size : head_bytes - 4]
        head = next(head.pack for head in _BATCH_HEADS if head.size == head_bytes)
        magic, queue_id = self.magic, self.queue_id
        between_bytes, between = 0, self.topic_field + bytes(2)
        pieces: list[bytes] = []
        positions: list[int] = []
        for body, raw_properties, flag in items:
            body_bytes, properties_bytes = len(body), len(raw_properties)
            if properties_bytes > PROPERTIES_BYTES_MAX:
                raise RecordError(
                    f"properties of {properties_bytes} bytes are too long (expected at most {PROPERTIES_BYTES_MAX})"
                )
            if properties_bytes != between_bytes:
                between_bytes, between = properties_bytes, self.topic_field + properties_bytes.to_bytes(2, "big")
            size = empty_bytes + body_bytes + properties_bytes
            crc = crc32(body) & 0x7FFFFFFF
            pieces.append(head(size, magic, crc, queue_id, flag, queue_offset, position, same, body_bytes))
            pieces.append(body)
            pieces.append(between)
            pieces.append(raw_properties)
            positions.append(position)
            position += size
            queue_offset += 1
        return pieces, positions

    @abstractmethod
    def messages_in(self, raw_properties: bytes) -> int:
        """Return the number of messages in a record that has the flag of a batch."""

    # ----------------------------------------------------------------------------------------------- messages by offset

    def advance(self, offset: int) -> None:
        """Set the offset of the next message."""
        self.next_offset = offset

    @abstractmethod
    def add(self, offset: int, position: int, size: int, code: int, stored_at_ms: int, messages: int) -> None:
        """Add the unit of a record. It stays in memory until `write`."""

    def add_all(self, offset: int, positions: list[int], units: bytearray, stored_at_ms: int) -> None:
        """Add the units of records of one message each, with consecutive offsets, at other positions than they say."""
        for number, (position, (_, size, code)) in enumerate(zip(positions, UNIT.iter_unpack(units), strict=True)):
            self.add(offset + number, position, size, code, stored_at_ms, 1)

    @abstractmethod
    def accept_gap(self, offset: int, position: int) -> bool:
        """Prepare the queue for a record whose offset is not the next one; False if the offset must be damaged.

        No checksum covers the offset in a record: a damaged one must not destroy the queue. All units are written.
        """

    @abstractmethod
    def fill_to(self, offset: int, position: int) -> None:
        """Extend the queue to an offset with units without a message, in place of records that the log has lost."""

    @abstractmethod
    def read(self, offset: int, units_max: int) -> tuple[int, Iterable[Unit], Iterable[int]] | None:
        """Return the first offset, the units from the one of this message on, and the end offset of each unit.

        The units are of one segment; None if it is missing.
        """

    @abstractmethod
    def next_segment(self, offset: int) -> int:
        """Return the first offset behind the missing segment of this offset."""

    @abstractmethod
    def _row_of(self, offset: int) -> int:
        """Return the row of the unit of a message."""

    @abstractmethod
    def _stop_of(self, row: int) -> int:
        """Return the end offset of a unit."""

    @abstractmethod
    def _offset_of(self, row: int) -> int:
        """Return the first offset of a unit; for the row behind the last one, the end of the queue."""

    @property
    def first_kept(self) -> int:
        """The offset of the oldest message with a unit; the log may no longer have the message."""
        return self._offset_of(self._first_row)

    def unit(self, offset: int) -> Unit:
        """Return position, size and tag code of the record of a message that has a unit."""
        return self._unit_at(self._row_of(offset))

    def min_offset(self, log_start: int) -> int:
        """Return the first offset whose message is in a log with this start."""
        known_start, known = self._min_known
        if known_start != log_start or not self.first_kept <= known <= self.end:
            known = self._offset_of(self._find_row(log_start))
            self._min_known = (log_start, known)
        return known

    # ----------------------------------------------------------------------------------------------------- units by row

    @property
    def folder(self) -> Path:
        return self._log.folder

    @property
    def segments(self) -> list[Segment]:
        return self._log.segments

    @property
    def _first_row(self) -> int:
        return self._log.segments[0].start // self.unit_bytes if self._log.segments else self._written

    @property
    def written_end(self) -> int:
        """The offset behind the newest message with a unit in a file."""
        return self._offset_of(self._written) if self._written > self._first_row else 0

    def load(self) -> None:
        """Find the segments, the number of units, and the first missing unit."""
        self._log.load()
        if self._log.segments:
            last = self._log.segments[-1]
            first = last.start // self.unit_bytes
            # Units are written in order; the bytes behind them are zero.
            rows = range(first, first + last.size // self.unit_bytes)
            empty = first + bisect_left(
                rows, 1, key=lambda row: self._is_empty(last.read(row * self.unit_bytes - last.start, self.unit_bytes))
            )
            # Units behind a damaged one count too.
            data_end = last_data(last, empty * self.unit_bytes - last.start)
            self._count = first + -(-data_end // self.unit_bytes)
            self._written = self._count
            bad_rows = [self._find_bad_row(), None if self._count == empty else empty]
            self.bad_row = min((row for row in bad_rows if row is not None), default=None)
        self.end = self.next_offset = self._offset_of(self._count)

    def mark_bad(self, row: int | None) -> None:
        """Set the first row to rebuild; None if all rows are intact."""
        self.bad_row = row

    def _find_bad_row(self) -> int | None:
        """Return the first row whose unit is missing, by the first and last units of each file."""
        segments, before = self._log.segments, -1
        for number, segment in enumerate(segments):
            first, stop = segment.start // self.unit_bytes, min(segment.stop // self.unit_bytes, self._count)
            if number and segment.start != segments[number - 1].stop:
                return segments[number - 1].stop // self.unit_bytes
            if first >= stop:
                return first if number else None
            if number < len(segments) - 1 and segment.start in self._log.short:
                return first + self._log.short[segment.start] // self.unit_bytes
            edges = self._units(first, 1), self._units(stop - 1, 1)
            if any(map(self._is_empty, edges)):
                return first
            (start, size, _), (end, end_size, _) = UNIT.unpack_from(edges[0]), UNIT.unpack_from(edges[1])
            if NO_MESSAGE_BYTES in (size, end_size):
                before = max(before, start, end)
                continue
            if start > end or start <= before:
                return max(first - 1, self._first_row) if start <= before else first
            before = end
        return None

    def _is_empty(self, unit: bytes) -> bool:
        position, size, _ = UNIT.unpack_from(unit)
        return bool(position < 0 or size <= 0)

    def _units(self, row: int, count_max: int) -> bytes:
        """Return consecutive units of one segment; nothing if the segment is missing."""
        size = self.unit_bytes
        if row >= self._written:
            at = (row - self._written) * size
            return bytes(self._tail[at : at + count_max * size])
        at = row * size
        segment = self._log.find(at)
        if segment is None:
            return b""
        stop = min(at + count_max * size, self._written * size, segment.stop)
        return segment.read(at - segment.start, stop - at)

    def _unit_at(self, row: int) -> Unit:
        units = self._units(row, 1)
        return UNIT.unpack_from(units) if units else (0, NO_MESSAGE_BYTES, 0)

    def create_file(self) -> None:
        """Create the first segment, if it is missing.

        Raises:
            FileWriteError: it cannot be created.
        """
        if not self._log.segments and not self._count:
            self._log.add(0)

    def write(self) -> list[Segment]:
        """Write added units to files; return their segments.

        Raises:
            FileWriteError: the units stay in memory, visible to readers.
        """
        written: list[Segment] = []
        at, units = self._written * self.unit_bytes, bytes(self._tail)
        while units:
            segment = self._log.find(at) or self._log.add(at)
            room = segment.stop - at
            segment.write(at - segment.start, units[:room])
            written.append(segment)
            at, units = at + room, units[room:]
        self._tail.clear()
        self._written = self._count
        return written

    def truncate_to(self, position: int) -> None:
        """Drop the units of records at or behind this position of the log. All units are written."""
        if self._count > self._first_row and self._unit_at(self._count - 1)[0] >= position:
            self._truncate(self._find_row(position))

    def truncate_torn(self, position: int, log_start: int, log_has: Callable[[int, int, int, int], bool]) -> None:
        """As `truncate_to`, after a crash of the machine: any part of any of these units may be on disk, or missing.

        The queue then ends with the last unit whose record is in the log; `log_has` gets a tuple of `units_before`.
        """
        row = self._first_row
        for segment in reversed(self.segments):
            row = segment.start // self.unit_bytes
            units = self._units(row, max(self._count - row, 0))
            for at in range(len(units) - self.unit_bytes, -1, -self.unit_bytes):
                found, size, _ = UNIT.unpack_from(units, at)
                number = row + at // self.unit_bytes
                if not log_start <= found < position or size <= 0:
                    continue
                if log_has(found, size, self._offset_of(number), self._stop_of(number)):
                    self._truncate(number + 1)
                    return
        # No record is in the log: only units of expired records remain.
        while row < self._count and not log_start <= self._unit_at(row)[0] and not self._is_empty(self._units(row, 1)):
            row += 1
        self._truncate(row)

    def drop_from(self, row: int) -> None:
        """Drop the units from this row on."""
        self._truncate(row)

    def _truncate(self, row: int) -> None:
        self._log.truncate(row * self.unit_bytes)
        self._count = self._written = max(row, self._first_row)
        self.end = self.next_offset = self._offset_of(self._count)
        if self.bad_row is not None and self.bad_row >= self._count:
            self.bad_row = None

    def _find_row(self, position: int) -> int:
        """Return the first row whose record is at or behind a position of the log."""
        low, high = self._first_row, self._count
        while True:
            row = bisect_left(range(high), 1, lo=low, hi=high, key=lambda row: self._is_behind(row, position))
            # If the bisection met a damaged unit, it ends at that unit, and the neighbours disagree with it.
            if row + 1 < high and not self._is_behind(row + 1, position):
                low = row + 1
            elif row - 2 >= low and self._is_behind(row - 2, position):
                high = row - 2
            else:
                return row

    def _is_behind(self, row: int, position: int) -> bool:
        found, size, _ = self._unit_at(row)
        return (found >= position and not (size == NO_MESSAGE_BYTES and found == 0)) or size <= 0

    @property
    def count(self) -> int:
        """Number of units, including removed ones."""
        return self._count

    def newest_unit(self) -> tuple[int, int, int, int] | None:
        """Return the last unit as `units_before` yields it; None if the queue is empty."""
        return next(self.units_before(self._count, 1), None)

    def units_before(self, row: int, count_max: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield position, size, first offset and end offset of the units before a row, nearest first."""
        for before in range(row - 1, max(row - 1 - count_max, self._first_row - 1), -1):
            position, size, _ = self._unit_at(before)
            yield position, size, self._offset_of(before), self._stop_of(before)

    def remove_expired(self, log_start: int) -> int:
        """Remove segments whose records are no longer in the log, except the last; return their number."""
        removed = 0
        while len(self._log.segments) > 1:
            last = self._log.segments[0].stop // self.unit_bytes - 1
            # Check two units: one may be damaged.
            if any(size <= 0 or at >= log_start for at, size, _ in map(self._unit_at, (last - 1, last))):
                break
            self._log.remove_first()
            removed += 1
        return removed

    def remove(self) -> None:
        """Remove all files."""
        self._log.remove_all()
        self._tail.clear()
        self.end = self._count = self._written = self.next_offset = 0

    def close(self) -> None:
        self._log.close()
