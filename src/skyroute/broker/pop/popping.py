"""Pops messages: chooses queues, reads them, and puts what was popped in flight."""

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from skyroute.broker.config import BrokerConfig
from skyroute.broker.delivery.filters import Filter, group_filter
from skyroute.broker.identity import Identity
from skyroute.broker.pop.acknowledging import Acknowledgements
from skyroute.broker.pop.in_flight import BUFFER_MS, Batch, BatchKey, InFlight
from skyroute.broker.pop.ordered_queues import OrderedQueues
from skyroute.broker.pop.popped_messages import BODY_BYTES_MAX, Popped, offsets_in
from skyroute.broker.pop.revive_log import REVIVE_QUEUES, ReviveLog
from skyroute.broker.pop.taken_log import OffsetRanges
from skyroute.broker.pop.taken_messages import TakenMessages
from skyroute.broker.stats import Stats
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.queues.queue_read import QueueRead, ReadStatus
from skyroute.broker.tables.attributes import MESSAGE_TYPE, PRIORITY, PRIORITY_FACTOR, PRIORITY_FACTORS
from skyroute.broker.tables.consumer_groups import Groups
from skyroute.broker.tables.consumer_offsets import ConsumerOffsets
from skyroute.broker.tables.topics import Topics
from skyroute.files.errors import StorageError
from skyroute.message.reserved_topics import pop_retry_topic
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.pop import POP_COUNT_MAX, InitMode, PopQuestion
from skyroute.wire.calls.pop_receipts import ORDERED_REVIVE_QUEUE, retry_flag
from skyroute.wire.calls.topics import TopicConfig

log = logging.getLogger(__name__)

QUEUES_A_POP_MAX: Final = 512
"""Queues that one pop reads."""

QUEUES_SEEN_MAX: Final = 4_096
"""Queues in which one pop looks for a message; the next one starts at another queue."""

CHECK_POINTS_A_POP: Final = 100
"""Check points that one pop writes after an offset reset; until all are written, pops get no message of the queue."""

_NEVER_COMMITTED: Final = -1
_CORRECTED: Final = frozenset({ReadStatus.TOO_SMALL, ReadStatus.BEYOND_END, ReadStatus.SEGMENT_MISSING})


class Popping:
    """Pops messages."""

    def __init__(
        self,
        store: MessageStore,
        *,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        in_flight: InFlight,
        revive_log: ReviveLog,
        taken: TakenMessages,
        acknowledgements: Acknowledgements,
        ordered: OrderedQueues,
        stats: Stats,
        config: BrokerConfig,
        identity: Identity,
        now_ms: Callable[[], int],
        young_bytes: int,
        wake_revival: Callable[[int], None],
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._in_flight = in_flight
        self._revive_log = revive_log
        self._taken = taken
        self._acknowledgements = acknowledgements
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

    def pop(self, question: PopQuestion, topic: TopicConfig, accepted: Filter, may_go_on: Callable[[], bool]) -> Popped:
        """Pop messages that a filter accepts. With a filter, the search ends when `may_go_on` is false.

        Raises:
            RefusedError: too many messages are in flight.
        """
        self._pops += 1
        ordered = question.ordered
        revive_queue_id = ORDERED_REVIVE_QUEUE if ordered else self._pops % REVIVE_QUEUES
        popped = Popped(question, self._now_ms(), revive_queue_id, self._identity.name)
        if not ordered:
            self._in_flight.check_room(question.group)
        retries = () if ordered else self._retry_topics(question)
        by_priority = self._by_priority(question, topic)
        retry_first = bool(retries) and self._retry_first(by_priority=by_priority)
        # Group `a` with topic `b_c` has the retry topic of group `a_b` with topic `c`.
        is_shared = retries and "_" in question.group + question.topic
        of_group = group_filter(question.group) if is_shared else Filter()
        retry_queues = [(each, self._queue_ids(question.group, each, by_priority=by_priority)) for each in retries]
        for retry, queue_ids in retry_queues if retry_first else ():
            self._pop_topic(popped, retry, queue_ids, of_group, may_go_on)
        one = (question.queue_id,) if question.queue_id >= 0 else None
        own_queues = one or self._queue_ids(question.group, topic, by_priority=by_priority)
        self._pop_topic(popped, topic, own_queues, accepted, may_go_on)
        for retry, queue_ids in () if retry_first else retry_queues:
            self._pop_topic(popped, retry, queue_ids, of_group, may_go_on)
        self.popped += popped.count
        if popped.count:
            # Its check point is written before the messages are visible again.
            self._wake_revival(popped.popped_at_ms + min(question.invisible_ms, BUFFER_MS))
        else:
            self._stats.fetched(question.group, question.topic, 0, 0)
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

    def _retry_first(self, *, by_priority: bool) -> bool:
        """Return whether a pop reads the retry topic before the topic."""
        config = self._config
        percent = config.priority_retry_first_percent if by_priority else config.retry_first_percent
        return self._random.randrange(100) < percent

    def _queue_ids(self, group: str, topic: TopicConfig, *, by_priority: bool = False) -> Sequence[int]:
        """Return the queues to look at, in that order; of very many only those with messages."""
        queues = topic.read_queues
        if by_priority:
            by_number = range(queues)
            ids: Sequence[int] = (by_number[::-1] if self._config.highest_queue_first else by_number)[:QUEUES_SEEN_MAX]
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
        has_filter = accepted.accept_code is not None or accepted.accept_record is not None
        count, record_bytes = popped.count, popped.record_bytes
        left = iter(queue_ids)
        while popped.room > 0 and (queue_id := next(left, None)) is not None:
            try:
                pop_queue(popped, name, queue_id, accepted, may_go_on)
            except (RefusedError, StorageError) as error:
                if not popped.count:
                    raise
                # The messages of other queues are in flight, and must be delivered.
                log.warning("queue not popped group=%s topic=%s queue=%d reason=%s", group, name, queue_id, error)
            if has_filter and not may_go_on():
                popped.is_cut = True
                break
        if popped.count > count:  # Apache counts redelivered messages as those of the retry topic
            self._stats.fetched(group, name, popped.count - count, popped.record_bytes - record_bytes)
        for queue_id in left:
            rest = max_offset(name, queue_id) - (self._next_offset(group, name, queue_id) or 0)
            if rest > 0:
                popped.rest += rest

    def _next_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        held = self._in_flight.held_queue(group, topic, queue_id)
        return self._offsets.get(group, topic, queue_id) if held is None else held.next_offset

    def _start(self, question: PopQuestion, topic: str, queue_id: int) -> int | None:
        """Return the offset of the next message to pop, after an offset reset that one.

        None if more than `CHECK_POINTS_A_POP` check points are to be written before.
        """
        group = question.group
        reset = self._offsets.take_reset(group, topic, queue_id)
        held = self._in_flight.held_queue(group, topic, queue_id)
        committed = self._offsets.get(group, topic, queue_id)
        if reset is not None or (held is not None and committed != held.committed):
            # Popped messages stay in flight; without their check points they would hold the offset.
            batches = self._in_flight.held_batches(group, topic, queue_id)
            for batch in islice(batches, CHECK_POINTS_A_POP):
                self._revive_log.write_check_point(batch)
            if held is not None and next(batches, None) is not None:
                held.committed = _NEVER_COMMITTED  # so that the next pop goes on
                return None
            self._in_flight.forget_queue(group, topic, queue_id)
            self._taken.forget(group, topic, queue_id)
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
            found = offsets_in(read, start) if read.status is ReadStatus.FOUND else ()
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
        if start is None:
            popped.is_cut = True
            return
        taken = self._taken.find(group, topic, queue_id)
        if taken is None:
            start, read = self._read(popped, topic, queue_id, start, accepted, may_go_on)
        else:
            start, read = self._read_around(taken, popped, topic, queue_id, start, accepted, may_go_on)
        next_offset = read.next_offset if read.max_offset else 0
        if read.status is ReadStatus.FOUND:
            offsets = offsets_in(read, start)
            key = BatchKey(group, topic, queue_id, start, popped.popped_at_ms)
            if self._in_flight.find(key) is not None:  # popped, and reset, in the same millisecond
                popped.rest += read.max_offset - start
                return
            committed = self._offsets.get(group, topic, queue_id) or 0
            popped.add(topic, queue_id, start, offsets, read)
            self._in_flight.add(Batch(key, offsets, question.invisible_ms, popped.revive_queue_id), committed)
        self._in_flight.advance(group, topic, queue_id, next_offset)
        if self._in_flight.held_queue(group, topic, queue_id) is not None:
            self._acknowledgements.commit(group, topic, queue_id)
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
        if start is None:
            popped.is_cut = True
            return
        if self._ordered.is_blocked(topic, group, queue_id, attempt, popped.popped_at_ms):
            popped.rest += max(0, self._store.max_offset(topic, queue_id) - start)
            return
        start, read = self._read(popped, topic, queue_id, start, accepted, may_go_on)
        if read.status is ReadStatus.FOUND:
            offsets = offsets_in(read, start)
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
            popped.add(topic, queue_id, start, offsets, read)
        else:
            start = read.next_offset if read.max_offset else 0
        if self._offsets.get(group, topic, queue_id) != start:
            self._offsets.commit(group, topic, queue_id, start)
        popped.rest += max(0, read.max_offset - read.next_offset)

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
        popped = Popped(PopQuestion(group, topic.name, 0, count_max, queue_id), self._now_ms(), 0, self._identity.name)
        for at in (queue_id,) if queue_id >= 0 else self._queue_ids(group, topic):
            if popped.room <= 0:
                break
            start = self._next_offset(group, topic.name, at)
            if start is None:
                start = self._store.min_offset(topic.name, at)
            start, read = self._read(popped, topic.name, at, start, accepted, lambda: True)
            if read.status is ReadStatus.FOUND:
                popped.add(topic.name, at, start, offsets_in(read, start), read)
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
            self._acknowledgements.commit(*batch.key[:3])
        while self._revive_log.follow():
            pass
        self._revive_log.commit()


def _count_to(end: int | None, start: int) -> int:
    """Return the number of messages before `end` that a pop may take."""
    return POP_COUNT_MAX if end is None else max(1, min(POP_COUNT_MAX, end - start))
