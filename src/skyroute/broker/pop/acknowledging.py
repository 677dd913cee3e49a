"""Acknowledges popped messages, and changes their invisible time."""

from collections.abc import Callable

from skyroute.broker.pop.in_flight import BUFFER_MS, Batch, BatchKey, InFlight
from skyroute.broker.pop.ordered_queues import OrderedQueues
from skyroute.broker.pop.revive_log import REVIVE_QUEUES, ReviveLog
from skyroute.broker.pop.taken_log import TakenLog
from skyroute.broker.tables.consumer_offsets import ConsumerOffsets
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.pop_acks import Ack, InvisibleTimeChange
from skyroute.wire.calls.pop_receipts import ORDERED_REVIVE_QUEUE
from skyroute.wire.codes import ResponseCode


class Acknowledgements:
    """Takes messages out of flight, and commits the offsets of their queues."""

    def __init__(
        self,
        *,
        offsets: ConsumerOffsets,
        in_flight: InFlight,
        revive_log: ReviveLog,
        taken_log: TakenLog,
        ordered: OrderedQueues,
        now_ms: Callable[[], int],
        wake_revival: Callable[[int], None],
    ) -> None:
        self._offsets = offsets
        self._in_flight = in_flight
        self._revive_log = revive_log
        self._taken_log = taken_log
        self._ordered = ordered
        self._now_ms = now_ms
        self._wake_revival = wake_revival
        self.acked = 0
        self.changed = 0
        self.late_acks = 0
        """Acknowledgements of messages that were acknowledged before, or are visible again."""
        self.ack_latency_ms = 0
        """Sum of the times from pop to acknowledgement."""

    def ack(self, ack: Ack) -> None:
        """Acknowledge one message. An acknowledgement that comes too late has no effect.

        Raises:
            RefusedError, StorageError: it cannot be written.
        """
        receipt = ack.receipt
        self.ack_many(
            *(ack.group, ack.topic, ack.queue_id, receipt.start_offset, receipt.popped_at_ms),
            *(receipt.invisible_ms, receipt.revive_queue_id, (ack.offset,)),
        )

    def ack_many(
        self,
        group: str,
        topic: str,
        queue_id: int,
        start: int,
        popped_at_ms: int,
        invisible_ms: int,
        revive_queue_id: int,
        offsets: tuple[int, ...],
    ) -> None:
        """Acknowledge messages of one batch.

        Raises:
            RefusedError, StorageError: it cannot be written.
        """
        now_ms = self._now_ms()
        if revive_queue_id == ORDERED_REVIVE_QUEUE:
            for offset in offsets:
                next_offset = self._ordered.acknowledge(topic, group, queue_id, offset, popped_at_ms)
                if next_offset is None:
                    self.late_acks += 1
                else:
                    self._note_acks(1, now_ms - popped_at_ms)
                    self._offsets.commit(group, topic, queue_id, next_offset)
            if until_ms := self._ordered.wake_if_free(topic, group, queue_id):
                self._wake_revival(until_ms)
            return
        key = BatchKey(group, topic, queue_id, start, popped_at_ms)
        batch = self._in_flight.find(key)
        if batch is None:
            self.late_acks += len(offsets)
            if popped_at_ms + invisible_ms > now_ms and (new := self._revive_log.claim(key, offsets)):
                self._revive_log.write_ack(key, new, revive_queue_id, popped_at_ms + invisible_ms)
            return
        taken = batch.left_of(offsets)
        self.late_acks += len(offsets) - len(taken)
        if not taken:
            return
        if batch.is_written:  # first: a failed write leaves the messages in flight
            self._revive_log.write_ack(key, taken, batch.revive_queue_id, batch.visible_at_ms)
        self._in_flight.take_many(batch, taken)
        self._taken_log.note_taken(key[:3], taken)
        self._note_acks(len(taken), now_ms - popped_at_ms)
        if batch.is_done and not batch.is_written:
            self.commit(group, topic, queue_id)

    def _note_acks(self, count: int, latency_ms: int) -> None:
        self.acked += count
        self.ack_latency_ms += count * max(0, latency_ms)

    def commit(self, group: str, topic: str, queue_id: int) -> None:
        """Commit the offset of a queue up to which nothing would be lost in a crash."""
        held = self._in_flight.held_queue(group, topic, queue_id)
        if held is None:
            return
        if self._offsets.get(group, topic, queue_id) != held.committed:
            return  # it was reset: the next pop sees it
        offset = self._in_flight.committable(group, topic, queue_id)
        if offset != held.committed and self._offsets.commit(group, topic, queue_id, offset):
            held.committed = offset

    def change(self, change: InvisibleTimeChange) -> tuple[int, int, int]:
        """Change the time at which a message is visible again; return pop time, invisible time and revive queue.

        Raises:
            RefusedError: the receipt is no longer valid, or the change cannot be written.
        """
        ack, receipt, now_ms = change.ack, change.ack.receipt, self._now_ms()
        group, topic, queue_id, offset = ack.group, ack.topic, ack.queue_id, ack.offset
        if receipt.is_ordered:
            visible_ms = now_ms + change.invisible_ms
            if not self._ordered.change(topic, group, queue_id, offset, receipt.popped_at_ms, visible_ms):
                raise _expired(ack)
            self.changed += 1
            self._wake_revival(visible_ms)
            return receipt.popped_at_ms, visible_ms - receipt.popped_at_ms, ORDERED_REVIVE_QUEUE
        old_key = BatchKey(group, topic, queue_id, receipt.start_offset, receipt.popped_at_ms)
        old = self._in_flight.find(old_key)
        if old is not None:
            if not old.bit_of(offset):
                raise _expired(ack)
            if old.left.bit_count() > 1:
                self._in_flight.check_room(group)
        elif receipt.visible_at_ms <= now_ms or not self._revive_log.claim(old_key, (offset,)):
            raise _expired(ack)
        key = BatchKey(group, topic, queue_id, offset, now_ms)
        while self._in_flight.find(key) is not None:
            key = key._replace(popped_at_ms=key.popped_at_ms + 1)
        revive_queue_id = receipt.revive_queue_id if receipt.revive_queue_id < REVIVE_QUEUES else 0
        new = Batch(key, (offset,), change.invisible_ms, revive_queue_id, suspended=change.suspend)
        is_held = old is not None and not old.is_written
        if old is not None and is_held:
            new.held_since_ms = old.held_since_ms
        # A message that is renewed again and again must not hold the committed offset for longer than others.
        if not is_held or not 0 <= now_ms - new.held_since_ms < BUFFER_MS:
            new.is_written = True
            self._revive_log.write_check_point(new)
        if not is_held:
            self._revive_log.write_ack(old_key, (offset,), revive_queue_id, receipt.visible_at_ms)
        self._in_flight.add(new, self._offsets.get(group, topic, queue_id) or 0)
        if old is not None:
            self._in_flight.take(old, offset)
            self.commit(group, topic, queue_id)
        self.changed += 1
        self._wake_revival(key.popped_at_ms + min(change.invisible_ms, BUFFER_MS))
        return key.popped_at_ms, change.invisible_ms, revive_queue_id


def _expired(ack: Ack) -> RefusedError:
    return RefusedError(
        ResponseCode.NO_MESSAGE,
        f"the receipt is no longer valid: topic={ack.topic} queue={ack.queue_id} offset={ack.offset} was acknowledged, "
        "or is visible again",
    )
