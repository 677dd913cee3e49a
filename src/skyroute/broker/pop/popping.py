"""Pops messages, acknowledges them, and changes their invisible time."""

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from skyroute.broker.config import BrokerConfig
from skyroute.broker.delivery.filters import Filter, group_filter
from skyroute.broker.identity import Identity
from skyroute.broker.pop.in_flight import BUFFER_MS, Batch, BatchKey, InFlight
from skyroute.broker.pop.ordered_queues import OrderedQueues
from skyroute.broker.pop.revive_log import REVIVE_QUEUES, ReviveLog
from skyroute.broker.pop.taken_log import OffsetRanges, QueueKey, TakenLog
from skyroute.broker.stats import Stats
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.queues.queue_read import QueueRead, ReadStatus
from skyroute.broker.tables.attributes import MESSAGE_TYPE, PRIORITY, PRIORITY_FACTOR, PRIORITY_FACTORS
from skyroute.broker.tables.consumer_groups import Groups
from skyroute.broker.tables.consumer_offsets import ConsumerOffsets
from skyroute.broker.tables.topics import Topics
from skyroute.files.errors import FileWriteError, StorageError
from skyroute.message.errors import PropertyError, RecordError
from skyroute.message.layout import HEAD_BYTES
from skyroute.message.message import StoredMessage
from skyroute.message.properties import add_properties
from skyroute.message.property_names import POP_RECEIPT
from skyroute.message.record import decode_run, encode_record
from skyroute.message.reserved_topics import pop_retry_topic
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.pop import POP_COUNT_MAX, InitMode, PopAnswer, PoppedBatch, PopQuestion, PopStatus
from skyroute.wire.calls.pop_acks import Ack, InvisibleTimeChange
from skyroute.wire.calls.pop_receipts import ORDERED_REVIVE_QUEUE, Receipt, RetryFlag, encode_receipt, retry_flag
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import ResponseCode

log = logging.getLogger(__name__)

RETRY_FIRST_SHARE: Final = 0.2
"""Share of the pops that read the retry topic first."""

QUEUES_A_POP_MAX: Final = 512
"""Queues that one pop reads."""

QUEUES_SEEN_MAX: Final = 4_096
"""Queues in which one pop looks for a message; the next one starts at another queue."""

BODY_BYTES_MAX: Final = 4 * 1024 * 1024

_OFFSET_AT: Final = 20
"""Position of the queue offset in a record."""
_CORRECTED: Final = frozenset({ReadStatus.TOO_SMALL, ReadStatus.BEYOND_END, ReadStatus.SEGMENT_MISSING})


class Popped:
    """The messages of one response."""

    def __init__(self, question: PopQuestion, popped_at_ms: int, revive_queue_id: int) -> None:
        self.question = question
        self.popped_at_ms = popped_at_ms
        self.revive_queue_id = revive_queue_id
        self.batches: list[PoppedBatch] = []
        self.records: list[memoryview] = []
        self.count = 0
        self.record_bytes = 0
        self.rest = 0
        self.order_counts: dict[tuple[RetryFlag, int, int | None], int] = {}

    @property
    def room(self) -> int:
        """Number of messages that the response still has room for."""
        return 0 if self.record_bytes >= BODY_BYTES_MAX else self.question.count_max - self.count

    def answer(self) -> PopAnswer:
        """Return the response without its records."""
        if not self.count:
            return PopAnswer(PopStatus.NOT_FOUND, rest_count=self.rest)
        return PopAnswer(
            PopStatus.FOUND,
            self.popped_at_ms,
            self.question.invisible_ms,
            self.revive_queue_id,
            self.rest,
            tuple(self.batches),
            self.order_counts,
        )


class Popping:
    """Pops and acknowledges messages."""

    def __init__(
        self,
        store: MessageStore,
        *,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        in_flight: InFlight,
        revive_log: ReviveLog,
        taken_log: TakenLog,
        ordered: OrderedQueues,
        stats: Stats,
        config: BrokerConfig,
        identity: Identity,
        now_ms: Callable[[], int],
        young_bytes: int = 0,
        wake_revival: Callable[[int], None] = lambda _due_ms: None,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._in_flight = in_flight
        self._revive_log = revive_log
        self._taken_log = taken_log
        self._taken: dict[QueueKey, OffsetRanges] = {}
        """Messages that were taken before the last crash, at or above the committed offset."""
        self._ordered = ordered
        self._stats = stats
        self._config = config
        self._identity = identity
        self._now_ms = now_ms
        self._young_bytes = young_bytes
        self._wake_revival = wake_revival
        self._random = random.Random()
        self._pops = 0
        self.popped = 0
        self.acked = 0
        self.changed = 0
        self.late_acks = 0
        """Acknowledgements of messages that were acknowledged before, or are visible again."""
        self.ack_latency_ms = 0
        """Sum of the times from pop to acknowledgement."""

    # ------------------------------------------------------------------------------------------------------------- pop

    def pop(self, question: PopQuestion, topic: TopicConfig, accepted: Filter, may_go_on: Callable[[], bool]) -> Popped:
        """Pop messages that a filter accepts. With a filter, the search ends when `may_go_on` is false.

        Raises:
            RefusedError: too many messages are in flight.
        """
        self._pops += 1
        ordered = question.ordered
        popped = Popped(question, self._now_ms(), ORDERED_REVIVE_QUEUE if ordered else self._pops % REVIVE_QUEUES)
        if not ordered:
            self._in_flight.check_room(question.group)
        retries = () if ordered else self._retry_topics(question)
        by_priority = self._by_priority(question, topic)
        retry_first = bool(retries) and not by_priority and self._random.random() < RETRY_FIRST_SHARE
        # Group `a` with topic `b_c` has the retry topic of group `a_b` with topic `c`.
        is_shared = retries and "_" in question.group + question.topic
        of_group = group_filter(question.group) if is_shared else Filter()
        for retry in retries if retry_first else ():
            self._pop_topic(popped, retry, self._queue_ids(question.group, retry), of_group, may_go_on)
        one = (question.queue_id,) if question.queue_id >= 0 else None
        queue_ids = one or self._queue_ids(question.group, topic, by_priority=by_priority)
        self._pop_topic(popped, topic, queue_ids, accepted, may_go_on)
        for retry in () if retry_first else retries:
            self._pop_topic(popped, retry, self._queue_ids(question.group, retry), of_group, may_go_on)
        self.popped += popped.count
        if popped.count:
            # Its check point is written before the messages are visible again.
            self._wake_revival(popped.popped_at_ms + min(question.invisible_ms, BUFFER_MS))
        self._stats.fetched(question.group, question.topic, popped.count, popped.record_bytes)
        return popped

    def _retry_topics(self, question: PopQuestion) -> list[TopicConfig]:
        names = (pop_retry_topic(question.group, question.topic, version=version) for version in (1, 2))
        return [topic for topic in map(self._topics.get, names) if topic is not None]

    def _by_priority(self, question: PopQuestion, topic: TopicConfig) -> bool:
        """Return whether a pop begins with the highest priority."""
        if question.ordered or topic.attributes.get(MESSAGE_TYPE) != PRIORITY:
            return False
        group = self._groups.get(question.group)
        factor = None if group is None else group.attributes.get(PRIORITY_FACTOR)
        return self._random.randrange(100) < (PRIORITY_FACTORS.default if factor is None else int(factor))

    def _queue_ids(self, group: str, topic: TopicConfig, *, by_priority: bool = False) -> Sequence[int]:
        """Return the queues to look at, in that order; of very many only those with messages."""
        queues = topic.read_queues
        if by_priority:
            ids: Sequence[int] = range(queues - 1, max(-1, queues - 1 - QUEUES_SEEN_MAX), -1)
        else:
            start = self._random.randrange(queues) if queues > 1 else 0
            ids = [(start + at) % queues for at in range(min(queues, QUEUES_SEEN_MAX))]
        if len(ids) <= QUEUES_A_POP_MAX:
            return ids
        return list(islice((at for at in ids if self._waiting(group, topic.name, at)), QUEUES_A_POP_MAX))

    def _pop_topic(
        self,
        popped: Popped,
        topic: TopicConfig,
        queue_ids: Iterable[int],
        accepted: Filter,
        may_go_on: Callable[[], bool],
    ) -> None:
        pop_queue = self._pop_ordered if popped.question.ordered else self._pop_queue
        group, name, max_offset = popped.question.group, topic.name, self._store.max_offset
        left = iter(queue_ids)
        while popped.room > 0 and (queue_id := next(left, None)) is not None:
            try:
                pop_queue(popped, name, queue_id, accepted, may_go_on)
            except (RefusedError, StorageError) as error:
                if not popped.count:
                    raise
                # The messages of other queues are in flight, and must be delivered.
                log.warning("queue not popped group=%s topic=%s queue=%d reason=%s", group, name, queue_id, error)
        for queue_id in left:
            rest = max_offset(name, queue_id) - (self._next_offset(group, name, queue_id) or 0)
            if rest > 0:
                popped.rest += rest

    def _next_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        held = self._in_flight.held_queue(group, topic, queue_id)
        return self._offsets.get(group, topic, queue_id) if held is None else held.next_offset

    def _start(self, question: PopQuestion, topic: str, queue_id: int) -> int:
        """Return the offset of the next message to pop, after an offset reset that one."""
        group = question.group
        reset = self._offsets.take_reset(group, topic, queue_id)
        held = self._in_flight.held_queue(group, topic, queue_id)
        committed = self._offsets.get(group, topic, queue_id)
        if reset is not None or (held is not None and committed != held.committed):
            # Popped messages stay in flight; without their check points they would hold the offset.
            for batch in self._in_flight.held_batches(group, topic, queue_id):
                self._revive_log.write_check_point(batch)
            self._in_flight.forget_queue(group, topic, queue_id)
            self.forget_taken(group, topic, queue_id)
            self._ordered.clear(topic, group, queue_id)
            held = None
        if held is not None:
            return held.next_offset
        if committed is None or committed < 0:
            committed = self._first_offset(question, topic, queue_id)
            self._offsets.commit(group, topic, queue_id, committed)
        return committed

    def _first_offset(self, question: PopQuestion, topic: str, queue_id: int) -> int:
        low = self._store.min_offset(topic, queue_id)
        if question.init_mode != InitMode.MAX or topic != question.topic:
            return low
        first = self._store.unit(topic, queue_id, 0) if low == 0 else None
        if first is not None and self._store.max_position - first[0] <= self._young_bytes:
            return 0
        return max(0, self._store.max_offset(topic, queue_id) - 1)

    def _read_around(
        self,
        taken: OffsetRanges,
        popped: Popped,
        topic: str,
        queue_id: int,
        start: int,
        accepted: Filter,
        may_go_on: Callable[[], bool],
    ) -> tuple[int, QueueRead]:
        """As `_read`, up to the next message that was taken before a crash."""
        while True:
            start, end = taken.gap(start)
            start, read = self._read(popped, topic, queue_id, start, accepted, may_go_on, _count_to(end, start))
            if end is None or read.next_offset <= end:
                return start, read
            if start >= end:  # corrected: the queue starts behind the gap
                continue
            found = _offsets_in(read, start) if read.status is ReadStatus.FOUND else ()
            count = sum(offset < end for offset in found)
            if count:
                return self._read(popped, topic, queue_id, start, accepted, may_go_on, count)
            start = end

    def _read(
        self,
        popped: Popped,
        topic: str,
        queue_id: int,
        start: int,
        accepted: Filter,
        may_go_on: Callable[[], bool],
        count_max: int = POP_COUNT_MAX,
    ) -> tuple[int, QueueRead]:
        """Return where the read started, and its result; a wrong offset is corrected."""
        has_filter = accepted.accept_code is not None or accepted.accept_record is not None
        while True:
            read = self._store.read_queue(
                topic,
                queue_id,
                start,
                min(popped.room, count_max),
                max(1, BODY_BYTES_MAX - popped.record_bytes),
                accepted.accept_code,
                accepted.accept_record,
                may_go_on if accepted.accept_record is not None else None,
            )
            is_corrected = read.status in _CORRECTED or (read.status is ReadStatus.QUEUE_EMPTY and start > 0)
            is_skipped = read.status in (ReadStatus.NO_MATCH, ReadStatus.REMOVED) and has_filter and may_go_on()
            if not (is_corrected or is_skipped) or read.next_offset == start:
                return start, read
            start = read.next_offset
            if is_skipped and start >= read.max_offset:
                return start, read

    def _pop_queue(
        self, popped: Popped, topic: str, queue_id: int, accepted: Filter, may_go_on: Callable[[], bool]
    ) -> None:
        question = popped.question
        group = question.group
        start = self._start(question, topic, queue_id)
        taken = self._taken.get((group, topic, queue_id)) if self._taken else None
        if taken is None:
            start, read = self._read(popped, topic, queue_id, start, accepted, may_go_on)
        else:
            start, read = self._read_around(taken, popped, topic, queue_id, start, accepted, may_go_on)
        next_offset = read.next_offset if read.max_offset else 0
        if read.status is ReadStatus.FOUND:
            offsets = _offsets_in(read, start)
            key = BatchKey(group, topic, queue_id, start, popped.popped_at_ms)
            if self._in_flight.find(key) is not None:  # popped, and reset, in the same millisecond
                popped.rest += read.max_offset - start
                return
            committed = self._offsets.get(group, topic, queue_id) or 0
            self._collect(popped, topic, queue_id, start, offsets, read)
            self._in_flight.add(Batch(key, offsets, question.invisible_ms, popped.revive_queue_id), committed)
        self._in_flight.advance(group, topic, queue_id, next_offset)
        if self._in_flight.held_queue(group, topic, queue_id) is not None:
            self.commit(group, topic, queue_id)
        elif self._offsets.get(group, topic, queue_id) != next_offset:
            self._offsets.commit(group, topic, queue_id, next_offset)
        self._offsets.note_pull(group, topic, queue_id, next_offset)
        popped.rest += max(0, read.max_offset - next_offset)

    def _pop_ordered(
        self, popped: Popped, topic: str, queue_id: int, accepted: Filter, may_go_on: Callable[[], bool]
    ) -> None:
        question = popped.question
        group, attempt = question.group, question.attempt_id
        start = self._start(question, topic, queue_id)
        if self._ordered.is_blocked(topic, group, queue_id, attempt, popped.popped_at_ms):
            popped.rest += max(0, self._store.max_offset(topic, queue_id) - start)
            return
        start, read = self._read(popped, topic, queue_id, start, accepted, may_go_on)
        if read.status is ReadStatus.FOUND:
            offsets = _offsets_in(read, start)
            counts = self._ordered.popped(
                *(topic, group, queue_id, offsets),
                popped_at_ms=popped.popped_at_ms,
                invisible_ms=question.invisible_ms,
                attempt_id=attempt,
            )
            flag = retry_flag(topic)
            popped.order_counts.update({(flag, queue_id, offset): count for offset, count in counts.items()})
            least = min(counts.values()) if len(counts) == len(offsets) else 0
            popped.order_counts[flag, queue_id, None] = least
            self._collect(popped, topic, queue_id, start, offsets, read)
        else:
            start = read.next_offset if read.max_offset else 0
        if self._offsets.get(group, topic, queue_id) != start:
            self._offsets.commit(group, topic, queue_id, start)
        popped.rest += max(0, read.max_offset - read.next_offset)

    def _collect(
        self, popped: Popped, topic: str, queue_id: int, start: int, offsets: tuple[int, ...], read: QueueRead
    ) -> None:
        flag = retry_flag(topic)
        popped.batches.append(PoppedBatch(flag, queue_id, start, offsets))
        popped.count += len(offsets)
        popped.record_bytes += read.record_bytes
        if flag is RetryFlag.NONE or topic == popped.question.topic:
            popped.records += read.chunks
            return
        for chunk in read.chunks:
            for message in decode_run(chunk).messages:
                receipt = Receipt(
                    *(start, popped.popped_at_ms, popped.question.invisible_ms, popped.revive_queue_id, flag),
                    *(self._identity.name, queue_id, message.queue_offset),
                )
                popped.records.append(memoryview(_as_retry(message, popped.question.topic, receipt)))

    # ------------------------------------------------------------------------------------------------------------- ack

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

    # ----------------------------------------------------------------------------------------------------------- crash

    def load_taken(self, offsets_file: Path) -> None:
        """Read what was taken before a crash."""
        for key, ranges in self._taken_log.load(offsets_file).items():
            if max(last for _, last in ranges) < self._store.max_offset(*key[1:]):
                self._taken[key] = ranges
        if self._taken:
            log.info("messages taken before a crash are not popped again queues=%d", len(self._taken))

    def log_taken(self) -> Iterator[None]:
        """Start another file of the log of taken messages, in steps, before offsets are saved."""
        try:
            self._taken_log.begin()
        except FileWriteError as error:
            log.warning("taken messages not logged, they may come again after a crash reason=%s", error)
            return
        for key, ranges in list(self._taken.items()):
            committed = self._offsets.get(*key)
            left = [pair for pair in ranges if committed is None or pair[1] >= committed]
            if left:
                self._taken_log.note_ranges(key, left)
            else:
                del self._taken[key]
            yield
        for key in self._in_flight.held_keys():
            taken = self._in_flight.taken(*key)
            if taken:
                self._taken_log.note_taken(key, tuple(taken))
            yield

    def forget_taken(self, group: str, topic: str, queue_id: int) -> None:
        """Let messages of a queue be popped again: its offset was reset."""
        self._taken.pop((group, topic, queue_id), None)
        self._taken_log.note_reset(group, topic, queue_id)

    # --------------------------------------------------------------------------------------------------------- changes

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

    def has_messages(self, question: PopQuestion, topic: TopicConfig) -> bool:
        """Return whether a pop may find messages; filters are not applied."""
        group, now_ms = question.group, self._now_ms()
        queue_ids = (question.queue_id,) if question.queue_id >= 0 else self._queue_ids(group, topic)
        for queue_id in queue_ids:
            if question.ordered and self._ordered.is_blocked(topic.name, group, queue_id, question.attempt_id, now_ms):
                continue
            if self._waiting(group, topic.name, queue_id):
                return True
        retries = () if question.ordered else self._retry_topics(question)
        return any(
            self._waiting(group, retry.name, queue_id)
            for retry in retries
            for queue_id in self._queue_ids(group, retry)
        )

    def _waiting(self, group: str, topic: str, queue_id: int) -> bool:
        start = self._next_offset(group, topic, queue_id)
        high = self._store.max_offset(topic, queue_id)
        return high > (self._store.min_offset(topic, queue_id) if start is None else start)

    def peek(self, group: str, topic: TopicConfig, queue_id: int, count_max: int, accepted: Filter) -> Popped:
        """Return the next messages of a group without popping them."""
        popped = Popped(PopQuestion(group, topic.name, 0, count_max, queue_id), self._now_ms(), 0)
        for at in (queue_id,) if queue_id >= 0 else self._queue_ids(group, topic):
            if popped.room <= 0:
                break
            start = self._next_offset(group, topic.name, at)
            if start is None:
                start = self._store.min_offset(topic.name, at)
            start, read = self._read(popped, topic.name, at, start, accepted, lambda: True)
            if read.status is ReadStatus.FOUND:
                self._collect(popped, topic.name, at, start, _offsets_in(read, start), read)
            popped.rest += max(0, read.max_offset - read.next_offset)
        return popped

    def close(self) -> None:
        """Write the check points of all messages in flight, at the end of a broker.

        Raises:
            StorageError: some could not be written; their messages are popped again after the next start.
        """
        for batch in self._in_flight.in_memory():
            try:
                self._revive_log.write_check_point(batch)
            except RefusedError as error:
                log.warning("check point not written batch=%r reason=%s", batch, error)
            self.commit(*batch.key[:3])
        while self._revive_log.follow():
            pass
        self._revive_log.commit()


def _expired(ack: Ack) -> RefusedError:
    return RefusedError(
        ResponseCode.NO_MESSAGE,
        f"the receipt is no longer valid: topic={ack.topic} queue={ack.queue_id} offset={ack.offset} was acknowledged, "
        "or is visible again",
    )


def _count_to(end: int | None, start: int) -> int:
    """Return the number of messages before `end` that a pop may take."""
    return POP_COUNT_MAX if end is None else max(1, min(POP_COUNT_MAX, end - start))


def _offsets_in(read: QueueRead, start: int) -> tuple[int, ...]:
    """Return the offsets of the messages of a read."""
    if read.message_count == read.next_offset - start:
        return tuple(range(start, read.next_offset))
    offsets = []
    for chunk in read.chunks:
        at = 0
        while at + HEAD_BYTES <= len(chunk):
            offsets.append(int.from_bytes(chunk[at + _OFFSET_AT : at + _OFFSET_AT + 8], "big"))
            at += int.from_bytes(chunk[at : at + 4], "big")
    return tuple(offsets)


def _as_retry(message: StoredMessage, topic: str, receipt: Receipt) -> bytes:
    """Return the record of a retried message as clients expect it: with its first topic, and its receipt.

    A message without room for the receipt keeps its retry topic: clients then find the receipt in the header.
    """
    try:
        raw_properties = add_properties(message.raw_properties, {POP_RECEIPT: encode_receipt(receipt)})
        return encode_record(msgspec.structs.replace(message, topic=topic, raw_properties=raw_properties))
    except (PropertyError, RecordError):
        return encode_record(message)
