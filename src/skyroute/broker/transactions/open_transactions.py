"""The open half messages, derived from the half topic and the op topic.

Half messages are indexed when the queue is read, before each check: most have ended by then, and cost nothing. Many may
be open, so the queue is read in steps.
"""

import logging
from collections import deque
from collections.abc import Container
from typing import Final, NamedTuple

from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.transactions.drafts import HALF_QUEUE_ID, number_of, offsets_of
from skyroute.message import property_names as names
from skyroute.message.message import StoredMessage
from skyroute.message.properties import find_property
from skyroute.message.record import decode_run
from skyroute.message.reserved_topics import HALF_DONE_TOPIC, HALF_TOPIC

log = logging.getLogger(__name__)

OPEN_MAX: Final = 500_000
"""Open transactions; beyond it, a producer gets SYSTEM_BUSY."""
ENDED_UNREAD_MAX: Final = 20_000
"""Half messages that end before the queue is read up to them. Beyond it, each further end reads a step of the queue."""
INDEXED_A_STEP: Final = 200
"""Half messages that are read in one step, which takes about 2 ms."""
_READ_AT_ONCE: Final = 256
_READ_BYTES_AT_ONCE: Final = 1 << 20


class OpenHalf(NamedTuple):
    """A half message without commit or rollback."""

    position: int
    since_ms: int
    """Born time; store time if the producer's clock is ahead; 0 if it was checked before."""
    immune_ms: int | None
    """Time before the first check that the producer requests; None for the default."""


class OpenTransactions:
    """The half messages of one broker."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.halves: dict[int, OpenHalf] = {}
        """By offset, in ascending order."""
        self._read_to = 0
        self._unread = 0
        """Number of half messages that may follow."""
        self._ended: set[int] = set()
        """Offsets from `_read_to` on of half messages that have ended."""
        self._moved: dict[int, int] = {}
        """Offset of the copy of a half message; its producer may still use an earlier offset."""
        self._moved_from: dict[int, int] = {}
        self._op_messages: deque[tuple[int, int]] = deque()
        """Offsets of op messages, each with the largest half offset in it."""
        self._op_end = 0

    def __repr__(self) -> str:
        return f"<OpenTransactions open={len(self.halves)} read_to={self._read_to}>"

    # ---------------------------------------------------------------------------------------------------- at the start

    def load(self, half_floor: int | None, op_floor: int | None) -> None:
        """Read both topics from their floors, before which everything has ended."""
        half_low, half_end = self._bounds(HALF_TOPIC)
        op_low, op_end = self._bounds(HALF_DONE_TOPIC)
        if (half_floor or 0) > half_end or (op_floor or 0) > op_end:
            # The log has lost its end, perhaps with the copy of a half message: read the whole queue.
            log.warning("log is shorter than before, transactions read from the start half_offset=%s", half_floor)
            half_floor = op_floor = None
        low = max(half_floor or 0, half_low)
        ended = bytearray(half_end - low)
        at = max(op_floor or 0, op_low)
        while at < op_end:
            read = self._store.read_queue(HALF_DONE_TOPIC, HALF_QUEUE_ID, at, _READ_AT_ONCE, _READ_BYTES_AT_ONCE)
            for record in decode_run(b"".join(read.chunks)).messages:
                offsets = [offset for offset in offsets_of(record) if low <= offset < half_end]
                for offset in offsets:
                    ended[offset - low] = 1
                if offsets:
                    self._op_messages.append((record.queue_offset, max(offsets)))
            at = max(read.next_offset, at + 1)
        self._op_end = op_end
        self._read_to = low
        self._index_halves(half_end, _EndedOffsets(ended, low))

    def _bounds(self, topic: str) -> tuple[int, int]:
        return self._store.min_offset(topic, HALF_QUEUE_ID), self._store.max_offset(topic, HALF_QUEUE_ID)

    # -------------------------------------------------------------------------------------------------------- reading

    def read_on(self) -> bool:
        """Index some half messages that were stored since, and have not ended; return whether there are more."""
        low, end = self._bounds(HALF_TOPIC)
        self._read_to = max(self._read_to, low)
        stop = max(min(self._read_to + INDEXED_A_STEP, end), self._read_to)
        self._unread = max(self._unread - (stop - self._read_to), 0)
        self._index_halves(stop, self._ended)
        self._ended = {offset for offset in self._ended if offset >= stop}
        if stop < end:
            return True
        self._unread = len(self._ended)
        return False

    def _index_halves(self, end: int, ended: Container[int]) -> None:
        for offset in range(self._read_to, end):
            if offset in ended:
                continue
            half = self.half_at(offset)
            if half is None:
                continue
            origin = number_of(half, names.TRANSACTION_PREPARED_QUEUE_OFFSET)
            if origin is not None and offset not in self._moved_from:
                if origin in ended:
                    continue
                # An earlier process moved it. The producer and the op messages may have its first offset.
                while origin in self._moved:
                    origin = self._moved[origin]
                self.halves.pop(origin, None)
                self._link(origin, offset)
            self.halves[offset] = _open_half(half, was_moved=origin is not None)
        self._read_to = max(self._read_to, end)

    def half_at(self, offset: int) -> StoredMessage | None:
        """Return a half message by its offset; None if it is expired."""
        unit = self._store.unit(HALF_TOPIC, HALF_QUEUE_ID, offset)
        return None if unit is None else self.half_in_log(unit[0])

    def half_in_log(self, position: int) -> StoredMessage | None:
        """Return a half message by its log position; None if there is none."""
        found = self._store.message_at(position)
        return found if found is not None and found.topic == HALF_TOPIC else None

    # ------------------------------------------------------------------------------------------------------- changing

    @property
    def is_full(self) -> bool:
        return len(self.halves) + self._unread - len(self._ended) >= OPEN_MAX

    def expect_one(self) -> None:
        """Note that a half message is about to be stored."""
        self._unread += 1

    def find_open(self, offset: int) -> int | None:
        """Return the present offset of a half message that once had this offset; None if it has ended."""
        while offset in self._moved:
            offset = self._moved[offset]
        is_open = offset in self.halves or (offset >= self._read_to and offset not in self._ended)
        return offset if is_open else None

    def move(self, offset: int, to: int) -> None:
        """Note that a half message was copied. The copy is indexed like any other."""
        self._drop(offset)
        self._link(offset, to)

    def close(self, offset: int) -> list[int]:
        """Note that a half message has ended; return all offsets it had."""
        self._drop(offset)
        offsets = [offset]
        while (before := self._moved_from.pop(offsets[-1], None)) is not None:
            del self._moved[before]
            offsets.append(before)
        if len(self._ended) > ENDED_UNREAD_MAX:
            self.read_on()
        return offsets

    def _drop(self, offset: int) -> None:
        if offset >= self._read_to:
            self._ended.add(offset)
        else:
            self.halves.pop(offset, None)

    def _link(self, offset: int, to: int) -> None:
        self._moved[offset] = to
        self._moved_from[to] = offset

    def note_op_message(self, record_offset: int, largest: int) -> None:
        """Note an op message and the largest half offset in it."""
        self._op_messages.append((record_offset, largest))
        self._op_end = record_offset + 1

    # --------------------------------------------------------------------------------------------------------- floors

    def floors(self) -> tuple[int, int]:
        """Return the offsets of both topics from which a reader finds all open half messages."""
        half_floor = next(iter(self.halves), self._read_to)
        records = self._op_messages
        while records and records[0][1] < half_floor:
            records.popleft()
        return half_floor, records[0][0] if records else self._op_end

    @property
    def end(self) -> int:
        """Offset up to which half messages were indexed."""
        return self._read_to


class _EndedOffsets:
    """Set of ended half messages as one byte per offset."""

    def __init__(self, marks: bytearray, first: int) -> None:
        self._marks = marks
        self._first = first

    def __contains__(self, offset: object) -> bool:
        assert isinstance(offset, int)
        return 0 <= offset - self._first < len(self._marks) and self._marks[offset - self._first] == 1


def _open_half(half: StoredMessage, *, was_moved: bool) -> OpenHalf:
    since_ms = half.born_at_ms if was_moved else min(half.born_at_ms, half.stored_at_ms)
    if find_property(half.raw_properties, names.TRANSACTION_CHECK_TIMES) is not None:
        since_ms = 0
    immune_s = number_of(half, names.CHECK_IMMUNITY_SECONDS)
    return OpenHalf(half.log_position, since_ms, None if immune_s is None else immune_s * 1000)
