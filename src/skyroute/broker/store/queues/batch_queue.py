"""Batch queues (RocketMQ: `BatchCQ`): a unit stands for one record with a batch of messages."""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import accumulate
from pathlib import Path
from struct import Struct
from typing import Final

from skyroute.broker.store.files.segment import OpenSegments
from skyroute.broker.store.queues.topic_queue import GAP_MAX, TopicQueue
from skyroute.broker.store.queues.unit_rows import NO_MESSAGE_BYTES, Unit
from skyroute.files.disk import Disk
from skyroute.message.batch import ITEM_BYTES_MIN
from skyroute.message.properties import find_property
from skyroute.message.property_names import INNER_COUNT

BATCH_MESSAGES_MAX: Final = 32767
"""Maximum number of messages in a batch: a unit has two signed bytes for it."""

NEAR: Final = 8
"""Units on each side of a row that are searched if damaged ones misled the bisection."""

_BATCH_UNIT: Final = Struct(">qiqqqhii")
"""As every unit; then store time, first offset, number of messages, and two fields for compacted topics."""
_OFFSETS: Final = Struct(">28xqh8x")
_UNIT_START: Final = Struct(">qiq26x")
_NOT_COMPACTED: Final = -1


class BatchQueue(TopicQueue):
    """Offsets count messages, rows count units: a message is found by bisection. A single message is a batch of one."""

    __slots__ = ("_added",)
    unit_bytes = _BATCH_UNIT.size
    is_batch_queue = True

    def __init__(
        self, folder: Path, topic: str, queue_id: int, segment_units: int, disk: Disk, opened: OpenSegments
    ) -> None:
        super().__init__(folder, topic, queue_id, segment_units, disk, opened)
        self._added = (0, 0)
        """Row and first offset of the units that this process has added: damaged older ones do not hide them."""

    def load(self) -> None:
        super().load()
        self._added = (self._count, self.end)

    def messages_in(self, raw_properties: bytes) -> int:
        return messages_in_batch(raw_properties)

    def add(self, offset: int, position: int, size: int, code: int, stored_at_ms: int, messages: int) -> None:
        self._tail += _BATCH_UNIT.pack(position, size, code, stored_at_ms, offset, messages, _NOT_COMPACTED, 0)
        if self._count <= self._added[0]:
            self._added = (self._count, offset)
        self._count += 1
        self.end = offset + messages

    def fill_to(self, offset: int, position: int) -> None:
        while self.end < offset:
            messages = min(offset - self.end, BATCH_MESSAGES_MAX)
            self.add(self.end, position, NO_MESSAGE_BYTES, 0, 0, messages)
        self.next_offset = self.end

    def accept_gap(self, offset: int, position: int) -> bool:
        if offset == 0:
            self.remove()  # the topic was deleted and created again: the new messages count
            return True
        if self._count == self._first_row:
            # The start of the queue has expired: the log before it had space for at most this many messages.
            return 0 < offset <= max(position // ITEM_BYTES_MIN, GAP_MAX)
        return 0 < offset - self.next_offset <= GAP_MAX

    def _is_empty(self, unit: bytes) -> bool:
        offset, messages = _OFFSETS.unpack(unit)
        return super()._is_empty(unit) or offset < 0 or messages <= 0

    def read(self, offset: int, units_max: int) -> tuple[int, Iterable[Unit], Iterable[int]] | None:
        row = self._row_of(offset)
        units = self._units(row, units_max)
        if not units:
            return None
        offsets: list[tuple[int, int]] = list(_OFFSETS.iter_unpack(units))
        count = len(offsets)
        for following in range(row + count, min(row + count + 2, self._count)):
            offsets += _OFFSETS.iter_unpack(self._units(following, 1))
        stops = [_stop_among(offsets, place, self.end) for place in range(count)]
        stops[0] = max(stops[0], offset + 1)
        if stops != sorted(stops):  # several damaged units: a reader must still get on
            stops = list(accumulate(stops, max))
        return min(offsets[0][0], stops[0] - 1), _UNIT_START.iter_unpack(units), stops

    def next_segment(self, offset: int) -> int:
        at = self._row_of(offset) * self.unit_bytes
        following = [segment.start // self.unit_bytes for segment in self.segments if segment.start > at]
        return self._offset_of(following[0] if following else self._written)

    def _row_of(self, offset: int) -> int:
        """Return the row of the unit of a message; of the next unit if that one is missing."""
        row, first = self._added
        low = max(row, self._first_row) if row < self._count and offset >= first else self._first_row
        row = self._find_row_by(self._offset_of, offset, low)
        if self._offset_of(row) <= offset < self._stop_of(row) and self._links(row) == 2:
            return row
        return self._row_near(self._find_row_by(self._median_offset, offset, low), offset)

    def _find_row_by(self, offset_of: Callable[[int], int], offset: int, low: int) -> int:
        """Return the last row from `low` on with at most this offset; `low` if there is no such row."""
        return max(bisect_right(range(self._count), offset, lo=low, key=offset_of) - 1, low)

    def _median_offset(self, row: int) -> int:
        """Return the median of the first offsets of five units around a row: two of them may be damaged."""
        low = max(min(row - 2, self._count - 5), self._first_row)
        offsets = sorted(map(self._offset_of, range(low, min(low + 5, self._count))))
        return offsets[len(offsets) // 2]

    def _row_near(self, row: int, offset: int) -> int:
        """Return the row of the unit of a message among those around a row.

        Several may claim the offset. The one that contradicts the fewest others has it.
        """
        rows = range(max(row - NEAR, self._first_row), min(row + NEAR, self._count))
        spans = {each: (self._offset_of(each), self._stop_of(each)) for each in rows}

        def rank(claimant: int) -> tuple[int, int, int]:
            start, stop = spans[claimant]
            contradicted = [
                each for each in rows if (spans[each][1] > start if each < claimant else spans[each][0] < stop)
            ]
            return len(contradicted), -self._links(claimant), -claimant

        claimants = [each for each in rows if spans[each][0] <= offset < spans[each][1]]
        if claimants:
            return min(claimants, key=rank)
        before = [each for each in rows if spans[each][1] <= offset and self._links(each)]
        return max(min(max(before, default=row - 1) + 1, self._count - 1), self._first_row)

    def _links(self, row: int) -> int:
        """Return how many neighbours of a unit agree with it about the offset between them."""
        continues = row == self._added[0] or self._stop_of(row - 1) == self._offset_of(row)
        return continues + (self._stop_of(row) == self._offset_of(row + 1))

    def _offset_of(self, row: int) -> int:
        if row >= self._count:
            return self._stop_of(row - 1) if row > self._first_row else 0
        units = self._units(row, 1)
        return int(_OFFSETS.unpack(units)[0]) if units else 0

    def _stop_of(self, row: int) -> int:
        units = self._units(row, 1)
        return sum(_OFFSETS.unpack(units)) if units else 0


def messages_in_batch(raw_properties: bytes) -> int:
    """Return the number of messages in a batch record."""
    text = find_property(raw_properties, INNER_COUNT) or ""
    messages = int(text) if text.isascii() and text.isdecimal() and len(text) <= 5 else 1
    return messages if 1 <= messages <= BATCH_MESSAGES_MAX else 1


def _stop_among(offsets: list[tuple[int, int]], place: int, end: int) -> int:
    """Return the end offset of a unit, given those of its neighbours, one of which may be damaged."""
    first, messages = offsets[place]
    stop = first + messages
    following = [each[0] for each in offsets[place + 1 : place + 3]]
    next_first = following[0] if following else end
    if stop <= next_first or (len(following) == 2 and next_first < first and stop <= following[1]):
        return stop
    return next_first
