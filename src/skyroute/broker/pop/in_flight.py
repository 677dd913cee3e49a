"""Messages that were popped and are not acknowledged: a table in memory, without I/O and clock.

Messages that were popped together from one queue are a batch. A batch is only in memory at first; until its check point
is written, the committed offset of the queue stays at or below its start, so that a crash loses no message.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.pop_records import CheckPoint
from skyroute.wire.codes import ResponseCode

BATCHES_MAX: Final = 500_000
"""Batches in flight of all groups, each of up to 32 messages."""

GROUP_BATCHES_MAX: Final = 100_000
"""Batches in flight of one group: no group can take the room of all others."""

BUFFER_MS: Final = 3_000
"""Time after which the check point of a batch is written. A batch that is finished before writes nothing."""

WRITE_AHEAD_MS: Final = 2_000
"""A batch that becomes visible within this time stays in memory."""

_STALE_MIN: Final = 1_024


class BatchKey(NamedTuple):
    """Identifies a batch. All but the group is in each receipt."""

    group: str
    topic: str
    """The topic that has the messages: for retries the retry topic."""
    queue_id: int
    start_offset: int
    popped_at_ms: int


class Batch:
    """Messages of one queue that were popped together, and which of them are not acknowledged."""

    __slots__ = (
        "attempts", "due_ms", "held_since_ms", "invisible_ms", "is_done", "is_written", "key", "left", "offsets",
        "revive_queue_id", "suspended",
    )  # fmt: skip

    def __init__(
        self,
        key: BatchKey,
        offsets: tuple[int, ...],
        invisible_ms: int,
        revive_queue_id: int,
        *,
        is_written: bool = False,
        suspended: bool = False,
    ) -> None:
        self.key = key
        self.offsets = offsets
        self.invisible_ms = invisible_ms
        self.revive_queue_id = revive_queue_id
        self.left = (1 << len(offsets)) - 1
        """One bit for each message that is not acknowledged."""
        self.is_written = is_written
        """The check point is in the log."""
        self.suspended = suspended
        """The attempt does not count."""
        self.is_done = False
        self.attempts = 0
        """Failed attempts to redeliver."""
        self.due_ms = self.visible_at_ms
        self.held_since_ms = key.popped_at_ms
        """Since when messages are only in memory; longer than the batch exists if its messages were in another one."""

    def __repr__(self) -> str:
        return f"<Batch {self.key} left={self.left.bit_count()}/{len(self.offsets)}>"

    @property
    def visible_at_ms(self) -> int:
        return self.key.popped_at_ms + self.invisible_ms

    def offsets_left(self) -> tuple[int, ...]:
        """Return the offsets of the messages that are not acknowledged."""
        left = self.left
        return tuple(offset for at, offset in enumerate(self.offsets) if left >> at & 1)

    def bit_of(self, offset: int) -> int:
        """Return the bit of a message in `left`; 0 if it is not in the batch, or was acknowledged."""
        offsets = self.offsets
        at = offset - offsets[0]
        if not (0 <= at < len(offsets) and offsets[at] == offset):  # there are gaps
            if offset not in offsets:
                return 0
            at = offsets.index(offset)
        return self.left & 1 << at

    def left_of(self, offsets: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of the offsets that are in the batch and not acknowledged."""
        if offsets == self.offsets:
            return offsets if self.left.bit_count() == len(offsets) else self.offsets_left()
        return tuple(offset for offset in offsets if self.bit_of(offset))

    def check_point(self, broker_name: str) -> CheckPoint:
        """Return the check point of the messages that are not acknowledged."""
        key = self.key
        return CheckPoint(
            *(key.group, key.topic, key.queue_id, key.start_offset, key.popped_at_ms, self.invisible_ms),
            *(broker_name, self.offsets_left()),
            suspended=self.suspended,
        )


class HeldQueue:
    """A queue of a group with batches that are only in memory: they hold its committed offset."""

    __slots__ = ("committed", "held", "next_offset")

    def __init__(self, next_offset: int, committed: int) -> None:
        self.next_offset = next_offset
        """Offset of the next message to pop."""
        self.committed = committed
        """The offset that was committed last; another one in the table of offsets is a reset."""
        self.held: list[tuple[int, int, Batch]] = []
        """Heap of batches in memory by start offset."""


class InFlight:
    """All batches in flight."""

    def __init__(self, batches_max: int = BATCHES_MAX, group_batches_max: int = GROUP_BATCHES_MAX) -> None:
        self._batches_max = batches_max
        self._group_batches_max = group_batches_max
        self._table: dict[BatchKey, Batch] = {}
        self._due: list[tuple[int, int, Batch]] = []
        """Heap of batches by the time at which they are visible again; it also has finished ones."""
        self._to_write: dict[Batch, int] = {}
        """Batches only in memory, oldest first, and since when."""
        self._queues: dict[tuple[str, str, int], HeldQueue] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._group_batches: dict[str, int] = {}
        self._sequence = 0
        self.written = 0
        """Live batches whose check point is in the log."""

    def __repr__(self) -> str:
        return f"<InFlight batches={len(self._table)} messages={self.message_count}>"

    def __len__(self) -> int:
        return len(self._table)

    def clear(self) -> None:
        """Forget all batches."""
        for table in (self._table, self._due, self._to_write, self._queues, self._counts, self._group_batches):
            table.clear()
        self.written = 0

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._table.values())

    def check_room(self, group: str) -> None:
        """Check that one more batch of a group may be in flight.

        Raises:
            RefusedError: too many of the group, or of all groups, are in flight.
        """
        count, count_max, whose = self._group_batches.get(group, 0), self._group_batches_max, f"group {group}"
        if count < count_max:
            count, count_max, whose = len(self._table), self._batches_max, "all groups"
        if count >= count_max:
            raise RefusedError(
                ResponseCode.SYSTEM_BUSY,
                f"{count} batches of popped messages of {whose} are in flight (expected fewer than {count_max}): "
                "acknowledge some, then pop again",
            )

    @property
    def message_count(self) -> int:
        """Messages in flight of all groups."""
        return sum(self._counts.values())

    def counts(self) -> dict[tuple[str, str], int]:
        """Return the messages in flight by group and topic; those of retry topics are counted separately."""
        return dict(self._counts)

    def count(self, group: str, topic: str) -> int:
        """Return the messages of a topic in flight for a group."""
        return self._counts.get((group, topic), 0)

    def find(self, key: BatchKey) -> Batch | None:
        """Return a batch that is not finished."""
        return self._table.get(key)

    def add(self, batch: Batch, committed: int = 0) -> None:
        """Add a batch. One that is not written holds the committed offset of its queue: see `committable`."""
        key = batch.key
        self._table[key] = batch
        self._group_batches[key.group] = self._group_batches.get(key.group, 0) + 1
        self._count(batch, batch.left.bit_count())
        if batch.is_written:
            self.written += 1
        else:
            self._to_write[batch] = key.popped_at_ms
            queue = self._queues.get(key[:3])
            if queue is None:
                queue = self._queues[key[:3]] = HeldQueue(key.start_offset, committed)
            heappush(queue.held, (key.start_offset, self._next(), batch))
        self._schedule(batch)

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _schedule(self, batch: Batch) -> None:
        heappush(self._due, (batch.due_ms, self._next(), batch))
        if len(self._due) > 2 * len(self._table) + _STALE_MIN:
            self._due = [entry for entry in self._due if not entry[2].is_done and entry[0] == entry[2].due_ms]
            heapify(self._due)

    def _count(self, batch: Batch, more: int) -> None:
        pair = batch.key[:2]
        count = self._counts.get(pair, 0) + more
        if count:
            self._counts[pair] = count
        else:
            self._counts.pop(pair, None)

    def take(self, batch: Batch, offset: int) -> bool:
        """Take one message out of a batch; False if it is not in it, or was taken before."""
        bit = batch.bit_of(offset)
        if not bit:
            return False
        batch.left ^= bit
        self._count(batch, -1)
        if not batch.left:
            self._finish(batch)
        return True

    def take_many(self, batch: Batch, offsets: tuple[int, ...]) -> None:
        """Take messages that are left (`left_of`) out of a batch."""
        if len(offsets) == batch.left.bit_count():
            self.drop(batch)
            return
        for offset in offsets:
            self.take(batch, offset)

    def _finish(self, batch: Batch) -> None:
        batch.is_done = True
        group = batch.key.group
        if self._table.pop(batch.key, None) is not None:
            self._group_batches[group] -= 1
            if not self._group_batches[group]:
                del self._group_batches[group]
        if batch.is_written:
            self.written -= 1
        else:
            self._to_write.pop(batch, None)

    def drop(self, batch: Batch) -> None:
        """Finish a batch with all its messages."""
        self._count(batch, -batch.left.bit_count())
        batch.left = 0
        self._finish(batch)

    # --------------------------------------------------------------------------------------------------------- offsets

    def held_queue(self, group: str, topic: str, queue_id: int) -> HeldQueue | None:
        """Return a queue with batches that are only in memory; None: its next offset is the committed one."""
        return self._queues.get((group, topic, queue_id))

    def advance(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """Set the offset of the next message to pop, if a batch holds the committed offset."""
        queue = self._queues.get((group, topic, queue_id))
        if queue is not None:
            queue.next_offset = next_offset

    def committable(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset of a held queue up to which nothing would be lost in a crash."""
        queue = self._queues[group, topic, queue_id]
        held = queue.held
        while held and (held[0][2].is_done or held[0][2].is_written):
            heappop(held)
        if held:
            return min(held[0][0], queue.next_offset)
        del self._queues[group, topic, queue_id]
        return queue.next_offset

    def forget_queue(self, group: str, topic: str, queue_id: int) -> None:
        """Forget a queue whose offset was reset. Its batches must be written."""
        self._queues.pop((group, topic, queue_id), None)

    def held_batches(self, group: str, topic: str, queue_id: int) -> Iterator[Batch]:
        """Return the batches of a queue that are only in memory."""
        queue = self._queues.get((group, topic, queue_id))
        held = () if queue is None else queue.held
        return (batch for _, _, batch in held if not batch.is_done and not batch.is_written)

    def held_keys(self) -> list[tuple[str, str, int]]:
        """Return the queues with batches that are only in memory."""
        return list(self._queues)

    def taken(self, group: str, topic: str, queue_id: int) -> list[int]:
        """Return the messages of a held queue, from its committed offset on, that a crash must not deliver again.

        They are acknowledged, redelivered, or have a check point; the offsets are ascending.
        """
        queue = self._queues.get((group, topic, queue_id))
        taken: set[int] = set()
        lost: set[int] = set()
        for _, _, batch in queue.held if queue is not None else ():
            taken.update(batch.offsets)
            if not batch.is_written:
                lost.update(batch.offsets_left())
        return sorted(taken - lost)

    # ------------------------------------------------------------------------------------------------------------ time

    def to_write(self, now_ms: int) -> Batch | None:
        """Return a batch whose check point is to be written; None if there is none now."""
        while self._to_write:
            batch = next(iter(self._to_write))
            if 0 <= now_ms - self._to_write[batch] < BUFFER_MS:
                return None
            if batch.due_ms - now_ms > WRITE_AHEAD_MS:
                return batch
            del self._to_write[batch]
        return None

    def delay_write(self, batch: Batch, now_ms: int) -> None:
        """Write a check point later, because it failed."""
        self._to_write.pop(batch, None)
        self._to_write[batch] = now_ms

    def in_memory(self) -> list[Batch]:
        """Return the batches without a check point in the log."""
        return [batch for batch in self._table.values() if not batch.is_written]

    def note_written(self, batch: Batch) -> None:
        """Note that the check point of a batch is in the log."""
        batch.is_written = True
        self.written += 1
        self._to_write.pop(batch, None)

    def due(self, now_ms: int) -> Batch | None:
        """Return a batch whose messages are visible again; None if there is none."""
        while self._due:
            at_ms, _, batch = self._due[0]
            if batch.is_done or at_ms != batch.due_ms:
                heappop(self._due)
            else:
                return batch if at_ms <= now_ms else None
        return None

    def postpone(self, batch: Batch, due_ms: int) -> None:
        """Look at a batch again later."""
        batch.due_ms = due_ms
        self._schedule(batch)

    def next_due_ms(self) -> int | None:
        """Return when the next batch is visible again."""
        self.due(-1)  # drops finished ones
        return self._due[0][0] if self._due else None
