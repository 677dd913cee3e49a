"""The units of a queue by row: most in files, the newest in memory."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import ClassVar, Final

from skyroute.broker.store.files.segment import OpenSegments, Segment
from skyroute.broker.store.files.segmented_log import SegmentedLog
from skyroute.broker.store.files.sparse import last_data
from skyroute.files.disk import Disk

UNIT: Final = Struct(">qiq")
"""The start of every unit: position of the record, its size, and its tag code."""

NO_MESSAGE_BYTES: Final = 0x7FFFFFFF
"""The size in a unit without a message, as before the start of a queue that starts inside a segment."""

Unit = tuple[int, int, int]
"""Position, size and tag code of a record."""

POSITION, SIZE, TAG_CODE = ("q", 0), ("i", 8), ("q", 12)
"""Type and place of each field of a unit, for `put_column`."""


class UnitRows(ABC):
    """The units of one queue by row. `TopicQueue` adds messages and offsets."""

    __slots__ = ("_count", "_log", "_tail", "_written", "bad_row", "end", "next_offset")
    unit_bytes: ClassVar[int]

    def __init__(self, folder: Path, segment_units: int, disk: Disk, opened: OpenSegments) -> None:
        self.next_offset = 0
        """The offset of the next message."""
        self.end = 0
        """The offset behind the newest message with a unit, which readers see."""
        self._count = 0
        """Number of units, including removed ones."""
        self._written = 0
        """Number of units that are in files, or were; the rest is in `_tail`."""
        self._tail = bytearray()
        self._log = SegmentedLog(folder, segment_units * self.unit_bytes, disk, opened)
        self.bad_row: int | None = None
        """The first row that loading found missing or invalid; recovery rebuilds it from the log."""

    @abstractmethod
    def _stop_of(self, row: int) -> int:
        """Return the end offset of a unit."""

    @abstractmethod
    def _offset_of(self, row: int) -> int:
        """Return the first offset of a unit; for the row behind the last one, the end of the queue."""

    @property
    def folder(self) -> Path:
        return self._log.folder

    @property
    def segments(self) -> list[Segment]:
        return self._log.segments

    @property
    def _first_row(self) -> int:
        return self._log.segments[0].start // self.unit_bytes if self._log.segments else self._written

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
        """Return consecutive units of one segment and of the memory behind it; nothing if the segment is missing."""
        size = self.unit_bytes
        if row >= self._written:
            at = (row - self._written) * size
            return bytes(self._tail[at : at + count_max * size])
        at = row * size
        segment = self._log.find(at)
        if segment is None:
            return b""
        wanted, written = count_max * size, self._written * size - at
        units = segment.read(at - segment.start, min(wanted, written, segment.stop - at))
        return units + self._tail[: wanted - written] if len(units) == written < wanted else units

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

        The queue then ends with the last unit whose record `log_has`, which gets a tuple of `units_before`.
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

    def last_before(self, position: int) -> Unit | None:
        """Return the last unit whose record starts before a position of the log; None if there is none."""
        row = self._find_row(position)
        return self._unit_at(row - 1) if row > self._first_row else None

    def segments_behind(self, position: int) -> Iterator[Segment]:
        """Yield the segments with units of records at or behind a position of the log. All units are written."""
        for segment in reversed(self.segments):
            first, stop = segment.start // self.unit_bytes, min(segment.stop // self.unit_bytes, self._written)
            if first < stop and not self._is_behind(stop - 1, position):
                return
            yield segment

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
