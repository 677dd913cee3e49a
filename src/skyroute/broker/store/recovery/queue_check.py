"""Finds queues that lack units of records in the log, and the log position to rebuild them from.

The ledger says where each queue ends. If it is missing, or Apache's broker has used the folder since, recovery reads
the whole log instead, up to `SCANNED_BYTES_MAX`.
"""

import logging
from collections.abc import Callable, Container, Iterable
from typing import Final

from skyroute.broker.store.commit_log import CommitLog
from skyroute.broker.store.dispatch import NOT_IN_QUEUE, Dispatcher
from skyroute.broker.store.queues.batch_queue import messages_in_batch
from skyroute.broker.store.queues.queue_ledger import KnownQueue, KnownQueues
from skyroute.broker.store.queues.topic_queue import TopicQueue
from skyroute.broker.store.queues.unit_rows import NO_MESSAGE_BYTES
from skyroute.broker.store.recovery.damage import DamagedRange
from skyroute.broker.store.recovery.log_scan import is_cut, read_record, scan_log
from skyroute.message.errors import InvalidNameError
from skyroute.message.flags import INNER_BATCH

logger = logging.getLogger(__name__)

SCANNED_BYTES_MAX: Final = 1 << 30
"""Maximum size of a log that recovery reads to find its queues, if there is no ledger."""

ALL_ROWS: Final = -1
"""Value of `bad_row` for a queue whose oldest file is missing."""

UNITS_TRIED_MAX: Final = 64
"""Units tried, newest first, until the log has the record of one."""


class QueueState:
    """The queues in a folder, and their expected ends."""

    def __init__(
        self,
        queues: Iterable[TopicQueue],
        known: KnownQueues | None,
        *,
        is_exact: bool,
        make_batch_topic: Callable[[str], None],
    ) -> None:
        """`known` is None if there is no up-to-date ledger.

        `is_exact` says that the queues' ends are those of the ledger, and not only those of its last flush.
        `make_batch_topic` makes a topic without a folder a batch topic.
        """
        self.queues = list(queues)
        self.deleted = {} if known is None else known.deleted
        self._known = None if known is None else known.queues
        self._noted = {} if known is None else known.queues
        self._is_exact = is_exact
        self._make_batch_topic = make_batch_topic
        self._found_firsts = {queue: queue.first_kept for queue in self.queues}
        self._found_ends = {queue: queue.end for queue in self.queues}

    def check_newest(self, log: CommitLog, log_end: int) -> None:
        """Mark queues whose newest unit does not match its record in the log."""
        if log.segments:
            for queue in self.queues:
                if queue.bad_row is None and not _is_newest_sound(log, queue, log_end):
                    queue.mark_bad(queue.count - 1)

    def find_rebuilt(
        self, log: CommitLog, start: int, find_queue: Callable[[str, int], TopicQueue]
    ) -> dict[TopicQueue, int]:
        """Return the queues that lack units of records before a position, with the log positions to rebuild from."""
        if self._known is None:
            self._known = self._scan_queues(log, start)
        by_key = {(queue.topic, queue.queue_id): queue for queue in self.queues}
        rebuilt: dict[TopicQueue, int] = {}
        for key, known in self._known.items():
            queue = by_key.get(key)
            if queue is None and (queue := self._create(key, known, find_queue)) is not None:
                rebuilt[queue] = log.start
            elif queue is not None and known.first < self._found_firsts[queue]:
                queue.mark_bad(ALL_ROWS)
            elif queue is not None and self._found_end(queue) < self._known_end(known):
                queue.mark_bad(queue.count if queue.bad_row is None else min(queue.bad_row, queue.count))
        for queue in self.queues:
            if queue.bad_row is not None:
                rebuilt[queue] = _find_position(log, queue, queue.bad_row)
        return rebuilt

    def drop_bad_rows(self) -> None:
        """Drop the units that the rebuild writes again, and all behind them."""
        for queue in self.queues:
            if queue.bad_row == ALL_ROWS:
                queue.remove()
            elif queue.bad_row is not None:
                queue.drop_from(queue.bad_row)
            queue.mark_bad(None)

    def _create(
        self, key: tuple[str, int], known: KnownQueue, find_queue: Callable[[str, int], TopicQueue]
    ) -> TopicQueue | None:
        if known.is_batch_queue:
            self._make_batch_topic(key[0])
        try:
            queue = find_queue(*key)
        except InvalidNameError:
            return None
        self.queues.append(queue)
        self._found_ends[queue] = queue.end
        return queue

    def _found_end(self, queue: TopicQueue) -> int:
        # A power failure leaves units without records; recovery has dropped them.
        return self._found_ends[queue] if self._is_exact else queue.end

    def _known_end(self, known: KnownQueue) -> int:
        return known.end if self._is_exact else known.flushed_end

    def _scan_queues(self, log: CommitLog, start: int) -> dict[tuple[str, int], KnownQueue]:
        """Return the queues of all records before a position, with their ends."""
        if start - log.start > SCANNED_BYTES_MAX:
            logger.warning("search for missing queues skipped, log too long bytes=%d", start - log.start)
            return {}
        ends: dict[tuple[str, int], int] = {}
        newest_ends: dict[tuple[str, int], int] = {}
        firsts: dict[tuple[str, int], int] = {}
        for_batches: set[str] = set()
        for record in scan_log(log, log.start):
            if isinstance(record, DamagedRange):
                continue
            position, _, topic, queue_id, offset, sys_flag, _, raw = record
            if position >= start:
                break
            if sys_flag & NOT_IN_QUEUE:
                continue
            end, key = offset + 1, (topic, queue_id)
            if sys_flag & INNER_BATCH:
                end = offset + messages_in_batch(raw)
                for_batches.add(topic)
            # An unexpected offset may be damaged; it counts if the next record of the queue continues it.
            if offset in (ends.get(key, offset), newest_ends.get(key)):
                firsts.setdefault(key, offset)
                ends[key] = end
            newest_ends[key] = end
        return {key: KnownQueue(key[0] in for_batches, end, end, firsts[key]) for key, end in ends.items()}

    def fill_to(
        self, log_end: int, rebuilt: Container[TopicQueue], restarted: Container[TopicQueue], dispatcher: Dispatcher
    ) -> None:
        """Extend each queue to its expected end with units without a message, if the log has lost records."""
        for queue in self.queues:
            ends = [queue.next_offset]
            # Offsets in the log do not count: no checksum covers them. Units count only without the ledger: damage
            # behind them looks like more units, and those of a rebuilt batch queue may state any offset.
            if (known := self._noted.get((queue.topic, queue.queue_id))) is not None:
                ends.append(self._known_end(known))
            elif self._is_exact and not (queue.is_batch_queue and queue in rebuilt):
                ends.append(self._found_ends[queue])
            if max(ends) > queue.next_offset and queue not in restarted:
                logger.warning(
                    "messages lost topic=%s queue=%d offsets=%d..%d",
                    *(queue.topic, queue.queue_id, queue.next_offset, max(ends) - 1),
                )
                queue.fill_to(max(ends), log_end)
                dispatcher.add_queue(queue)


def has_record(log: CommitLog, queue: TopicQueue, position: int, size: int, first: int, stop: int) -> bool:
    """Return whether the log has a record of this queue with this size and these offsets."""
    segment = log.find(position)
    if segment is None or (found := read_record(segment, position)) is None or is_cut(segment, found):
        return False
    messages = queue.messages_in(found.raw_properties) if found.sys_flag & INNER_BATCH else 1
    wanted = size, queue.topic, queue.queue_id, first, stop
    return (found.size, found.topic, found.queue_id, found.queue_offset, found.queue_offset + messages) == wanted


def _is_newest_sound(log: CommitLog, queue: TopicQueue, log_end: int) -> bool:
    unit = queue.newest_unit()
    if unit is None:
        return True
    position, size, first, stop = unit
    if size == NO_MESSAGE_BYTES:
        return True
    if log.find(position) is None:
        return position + size <= log_end  # its file is missing, or has expired
    return has_record(log, queue, position, size, first, stop)


def _find_position(log: CommitLog, queue: TopicQueue, row: int) -> int:
    """Return the log position of the records of a queue's rows from `row` on."""
    for position, size, first, stop in queue.units_before(row, UNITS_TRIED_MAX):
        if position >= log.start and has_record(log, queue, position, size, first, stop):
            return position + size
    return log.start
