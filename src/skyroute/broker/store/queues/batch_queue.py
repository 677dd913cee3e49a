"""Batch queues (RocketMQ: `BatchCQ`): a unit stands for one record with a batch of messages."""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from struct import Struct
from typing import Final

from skyroute.broker.store.queues.topic_queue import GAP_MAX, TopicQueue
from skyroute.broker.store.queues.unit_rows import NO_MESSAGE_BYTES, Unit
from skyroute.message.batch import ITEM_BYTES_MIN
from skyroute.message.properties import find_property
from skyroute.message.property_names import INNER_COUNT

BATCH_MESSAGES_MAX: Final = 32767
"""Maximum number of messages in a batch: a unit has two signed bytes for it."""

_BATCH_UNIT: Final = Struct(">qiqqqhii")
"""As every unit; then store time, first offset, number of messages, and two fields for compacted topics."""
_OFFSETS: Final = Struct(">28xqh8x")
_UNIT_START: Final = Struct(">qiq26x")
_NOT_COMPACTED: Final = -1


class BatchQueue(TopicQueue):
    """Offsets count messages, rows count units: a message is found by bisection. A single message is a batch of one."""

    __slots__ = ()
    unit_bytes = _BATCH_UNIT.size
    is_batch_queue = True

    def messages_in(self, raw_properties: bytes) -> int:
        return messages_in_batch(raw_properties)

    def add(self, offset: int, position: int, size: int, code: int, stored_at_ms: int, messages: int) -> None:
        self._tail += _BATCH_UNIT.pack(position, size, code, stored_at_ms, offset, messages, _NOT_COMPACTED, 0)
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
        row = self._find_row_among(offset, self._first_row, self._count)
        return row if row + 1 == self._count or offset < self._stop_of(row) else row + 1

    def _find_row_among(self, offset: int, low: int, high: int) -> int:
        """Return the last row whose first offset is at most `offset`; the first row if there is no such row."""
        first = low
        while True:
            row = bisect_right(range(high), offset, lo=low, hi=high, key=self._likely_offset_of) - 1
            # If the bisection met a damaged unit, it ends at that unit, and the neighbours disagree with it.
            for near in (row, row - 1):
                if near >= first and self._likely_offset_of(near) <= offset < self._stop_of(near):
                    return near
            if row + 2 < high and self._offset_of(row + 2) <= offset:
                low = row + 2
            elif row - 1 >= low and self._offset_of(row - 1) > offset:
                high = row - 1
            else:
                return max(row, first)

    def _likely_offset_of(self, row: int) -> int:
        """As `_offset_of`, but a unit whose neighbours both state another offset is damaged, and has theirs."""
        first = self._offset_of(row)
        if self._first_row < row < self._count - 1 and (previous := self._stop_of(row - 1)) != first:
            following = self._offset_of(row + 1)
            if previous + self._stop_of(row) - first == following:
                return previous
        return first

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
