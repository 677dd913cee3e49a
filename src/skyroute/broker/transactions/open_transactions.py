"""Which halves are open. The two topics are the truth; this is what they say, kept in mind.

A half is taken note of when the queue is read, which is now and then: most have ended by then, and cost nothing.
"""

import logging
from collections import deque
from collections.abc import Container
from typing import Final, NamedTuple

from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.transactions.drafts import HALF_QUEUE_ID, number_of, offsets_of
from skyroute.message import property_names as names
from skyroute.message.errors import RecordError
from skyroute.message.message import StoredMessage
from skyroute.message.properties import find_property
from skyroute.message.record import decode_record, decode_run
from skyroute.message.reserved_topics import HALF_DONE_TOPIC, HALF_TOPIC

log = logging.getLogger(__name__)

OPEN_MAX: Final = 500_000
"""How many transactions may be open; a producer that begins one more is told to come again."""
ENDED_UNREAD_MAX: Final = 20_000
"""So many halves may end before the queue is read up to them."""
_READ_AT_ONCE: Final = 256
_READ_BYTES_AT_ONCE: Final = 1 << 20


class OpenHalf(NamedTuple):
    """A half whose end is not known."""

    position: int
    since_ms: int
    """When it was born; when it was stored, if its producer's clock is ahead; 0 where that was asked before."""
    immune_ms: int | None
    """How long its producer wants not to be asked; None where it does not say."""


class OpenTransactions:
    """The halves of one broker."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.halves: dict[int, OpenHalf] = {}
        """By offset, the smallest first."""
        self._read_to = 0
        self._unread = 0
        """How many halves there may be from there on."""
        self._ended: set[int] = set()
        """Those that were read up to later, and had ended before."""
        self._moved: dict[int, int] = {}
        """Where a half was copied to; its producer may still speak of it by an earlier place."""
        self._moved_from: dict[int, int] = {}
        self._done_records: deque[tuple[int, int]] = deque()
        """Which records say that halves are done, by offset, and the largest offset of such a half."""
        self._done_end = 0

    def __repr__(self) -> str:
        return f"<OpenTransactions open={len(self.halves)} read_to={self._read_to}>"

    # ---------------------------------------------------------------------------------------------------- at the start

    def load(self, half_floor: int | None, done_floor: int | None) -> None:
        """Read both topics, from where everything before is done."""
        half_low, half_end = self._bounds(HALF_TOPIC)
        done_low, done_end = self._bounds(HALF_DONE_TOPIC)
        if (half_floor or 0) > half_end or (done_floor or 0) > done_end:
            # The log has lost its end, and perhaps a half's copy with it, so only the whole queue tells what is open.
            log.warning("transactions read from the start, the log is shorter than it was half_offset=%s", half_floor)
            half_floor = done_floor = None
        low = max(half_floor or 0, half_low)
        ended = bytearray(half_end - low)
        at = max(done_floor or 0, done_low)
        while at < done_end:
            read = self._store.read_queue(HALF_DONE_TOPIC, HALF_QUEUE_ID, at, _READ_AT_ONCE, _READ_BYTES_AT_ONCE)
            for record in decode_run(b"".join(read.chunks)).messages:
                offsets = [offset for offset in offsets_of(record) if low <= offset < half_end]
                for offset in offsets:
                    ended[offset - low] = 1
                if offsets:
                    self._done_records.append((record.queue_offset, max(offsets)))
            at = max(read.next_offset, at + 1)
        self._done_end = done_end
        self._read_to = low
        self._take_note(half_end, _Ended(ended, low))

    def _bounds(self, topic: str) -> tuple[int, int]:
        return self._store.min_offset(topic, HALF_QUEUE_ID), self._store.max_offset(topic, HALF_QUEUE_ID)

    # -------------------------------------------------------------------------------------------------------- reading

    def read_on(self) -> None:
        """Take note of the halves that came since, and have not ended."""
        end = self._store.max_offset(HALF_TOPIC, HALF_QUEUE_ID)
        self._read_to = max(self._read_to, self._store.min_offset(HALF_TOPIC, HALF_QUEUE_ID))
        self._take_note(end, self._ended)
        self._ended = {offset for offset in self._ended if offset >= end}
        self._unread = len(self._ended)

    def _take_note(self, end: int, ended: Container[int]) -> None:
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
                # It was carried on before our time. The producer knows it by where it was, and so does the queue.
                while origin in self._moved:
                    origin = self._moved[origin]
                self.halves.pop(origin, None)
                self._link(origin, offset)
            self.halves[offset] = _open_half(half, was_carried=origin is not None)
        self._read_to = max(self._read_to, end)

    def half_at(self, offset: int) -> StoredMessage | None:
        """Return a half by its offset; None where it is no longer there."""
        unit = self._store.unit(HALF_TOPIC, HALF_QUEUE_ID, offset)
        return None if unit is None else self.half_in_log(unit[0])

    def half_in_log(self, position: int) -> StoredMessage | None:
        """Return a half by its place in the log; None where none is there."""
        record = self._store.record_at(position)
        try:
            found = None if record is None else decode_record(record)
        except RecordError:
            return None
        return found if found is not None and found.topic == HALF_TOPIC else None

    # ------------------------------------------------------------------------------------------------------- changing

    @property
    def is_full(self) -> bool:
        return len(self.halves) + self._unread - len(self._ended) >= OPEN_MAX

    def expect_one(self) -> None:
        """Note that a half is about to be stored."""
        self._unread += 1

    def find_open(self, offset: int) -> int | None:
        """Return where a half is now that was at this offset once; None where it has ended."""
        while offset in self._moved:
            offset = self._moved[offset]
        is_open = offset in self.halves or (offset >= self._read_to and offset not in self._ended)
        return offset if is_open else None

    def move(self, offset: int, to: int) -> None:
        """Note that a half was copied. The copy is read like any other; the half itself is done."""
        self._drop(offset)
        self._link(offset, to)

    def close(self, offset: int) -> list[int]:
        """Note that a half has ended, and return all offsets it ever had."""
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

    def note_done_record(self, record_offset: int, largest: int) -> None:
        """Note a record that says halves are done."""
        self._done_records.append((record_offset, largest))
        self._done_end = record_offset + 1

    # --------------------------------------------------------------------------------------------------------- floors

    def floors(self) -> tuple[int, int]:
        """Return up to where both queues are done with: whoever reads them from there on sees all that is open."""
        half_floor = next(iter(self.halves), self._read_to)
        records = self._done_records
        while records and records[0][1] < half_floor:
            records.popleft()
        return half_floor, records[0][0] if records else self._done_end

    @property
    def end(self) -> int:
        """Up to where halves have been read."""
        return self._read_to


class _Ended:
    """ConsumerOffsets of halves that have ended, among very many."""

    def __init__(self, marks: bytearray, first: int) -> None:
        self._marks = marks
        self._first = first

    def __contains__(self, offset: object) -> bool:
        assert isinstance(offset, int)
        return 0 <= offset - self._first < len(self._marks) and self._marks[offset - self._first] == 1


def _open_half(half: StoredMessage, *, was_carried: bool) -> OpenHalf:
    since_ms = half.born_at_ms if was_carried else min(half.born_at_ms, half.stored_at_ms)
    if find_property(half.raw_properties, names.TRANSACTION_CHECK_TIMES) is not None:
        since_ms = 0
    immune_s = number_of(half, names.CHECK_IMMUNITY_SECONDS)
    return OpenHalf(half.log_position, since_ms, None if immune_s is None else immune_s * 1000)
