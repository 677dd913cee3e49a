"""Consume queues: unit n points to message n of the queue."""

from collections.abc import Iterable
from itertools import count

from skyroute.broker.store.queues.topic_queue import GAP_MAX, TopicQueue
from skyroute.broker.store.queues.unit_rows import NO_MESSAGE_BYTES, POSITION, UNIT, Unit
from skyroute.message.columns import put_column
from skyroute.message.layout import RECORD_BYTES_MIN


class ConsumeQueue(TopicQueue):
    """Unit n points to message n of the queue, whether or not the log still has that message."""

    __slots__ = ()
    unit_bytes = UNIT.size
    is_batch_queue = False

    def messages_in(self, raw_properties: bytes) -> int:
        return 1

    def add(self, offset: int, position: int, size: int, code: int, stored_at_ms: int, messages: int) -> None:
        if offset != self._count:
            self._fill(offset, position)
        self._tail += UNIT.pack(position, size, code)
        self.end = self._count = offset + 1

    def add_all(self, offset: int, positions: list[int], units: bytearray, stored_at_ms: int) -> None:
        if offset != self._count:
            self._fill(offset, positions[0])
        put_column(units, UNIT.size, POSITION, positions)
        self._tail += units
        self.end = self._count = offset + len(positions)

    def _fill(self, offset: int, position: int) -> None:
        # Positions must rise: they are searched by bisection.
        if not self._log.segments and not self._tail:
            # As Apache's broker does: fill the start of the first segment; segments before it do not exist.
            position = 0
            self._min_known = (-1, 0)
            self._count = self._written = offset - offset % (self._log.segment_bytes // UNIT.size)
        self._tail += UNIT.pack(position, NO_MESSAGE_BYTES, 0) * (offset - self._count)

    def fill_to(self, offset: int, position: int) -> None:
        if offset > self._count:
            self._fill(offset - 1, position)
            self._tail += UNIT.pack(position, NO_MESSAGE_BYTES, 0)
            self.end = self.next_offset = self._count = offset

    def accept_gap(self, offset: int, position: int) -> bool:
        is_empty = self.end == self.first_kept
        if offset == 0:
            self.remove()  # the topic was deleted and created again: the new messages count
        elif offset < self.next_offset and self.first_kept <= offset and self._is_filler(offset):
            self._truncate(offset)
        elif is_empty:
            # The start of the queue has expired: the log before it had space for at most this many messages.
            return 0 < offset <= max(position // RECORD_BYTES_MIN, GAP_MAX)
        else:
            return 0 < offset - self.next_offset <= GAP_MAX
        return True

    def _is_filler(self, offset: int) -> bool:
        """Return whether a unit has no message."""
        return self._unit_at(offset)[1] == NO_MESSAGE_BYTES

    def units(self, offset: int, count_max: int) -> bytes:
        """Return the bytes of consecutive units of one segment; nothing if the segment is missing."""
        return self._units(offset, count_max)

    def read(self, offset: int, units_max: int) -> tuple[int, Iterable[Unit], Iterable[int]] | None:
        units = self._units(offset, units_max)
        return (offset, UNIT.iter_unpack(units), count(offset + 1)) if units else None

    def next_segment(self, offset: int) -> int:
        units = self._log.segment_bytes // UNIT.size
        return offset + units - offset % units

    def _row_of(self, offset: int) -> int:
        return offset

    def _offset_of(self, row: int) -> int:
        return row

    def _stop_of(self, row: int) -> int:
        return row + 1
