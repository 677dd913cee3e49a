"""The ordinary kind of queue: the n-th unit is the n-th message."""

from collections.abc import Iterable
from itertools import count

from skyroute.broker.store.queues.topic_queue import GAP_MAX, NO_MESSAGE_BYTES, UNIT, TopicQueue, Unit
from skyroute.message.layout import RECORD_BYTES_MIN


class ConsumeQueue(TopicQueue):
    """The n-th unit is the n-th message of the queue, whether or not the log still has it."""

    __slots__ = ()
    unit_bytes = UNIT.size
    is_batch_queue = False

    def messages_in(self, raw_properties: bytes) -> int:
        return 1

    def add(self, offset: int, position: int, size: int, code: int, stored_at_ms: int, messages: int) -> None:
        if offset != self._count:
            self._fill_up_to(offset, position)
        self._tail += UNIT.pack(position, size, code)
        self.end = self._count = offset + 1

    def _fill_up_to(self, offset: int, position: int) -> None:
        # In between, positions have to rise, since they are searched.
        if not self._log.segments and not self._tail:
            # As Apache does it: the head of the first segment is filled, and all before it is not there.
            position = 0
            self._min_known = (-1, 0)
            self._count = self._written = offset - offset % (self._log.segment_bytes // UNIT.size)
        self._tail += UNIT.pack(position, NO_MESSAGE_BYTES, 0) * (offset - self._count)

    def fill_up(self, offset: int, position: int) -> None:
        if offset > self._count:
            self._fill_up_to(offset - 1, position)
            self._tail += UNIT.pack(position, NO_MESSAGE_BYTES, 0)
            self.end = self.next_offset = self._count = offset

    def make_place(self, offset: int, position: int) -> bool:
        is_empty = self.end == self.first_kept
        if offset == 0:
            self.remove()  # the topic was deleted and made again: the later messages are the ones that count
        elif offset < self.next_offset and self.first_kept <= offset and self._is_filler(offset):
            self._truncate(offset)
        elif is_empty:
            # Of a queue whose beginning has expired, the log before it would not have held more.
            return 0 < offset <= max(position // RECORD_BYTES_MIN, GAP_MAX)
        else:
            return 0 < offset - self.next_offset <= GAP_MAX
        return True

    def _is_filler(self, offset: int) -> bool:
        """Return whether a unit only stands for a message that is missing."""
        return self._unit_at(offset)[1] == NO_MESSAGE_BYTES

    def units(self, offset: int, count_max: int) -> bytes:
        """Return units as files hold them, as many as lie side by side; nothing where their segment is missing."""
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
