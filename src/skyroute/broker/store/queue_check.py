"""Which queues lack units that the log has records for, and from which position of the log on.

The ledger says where each queue ends. Where it is missing, or Apache's broker has used the folder since, the log is
read for it once, if it is not too long.
"""

import logging
from collections.abc import Callable, Container, Iterable
from typing import Final

from skyroute.broker.store.batch_queue import messages_in_batch
from skyroute.broker.store.commit_log import CommitLog
from skyroute.broker.store.damage import DamagedRange
from skyroute.broker.store.derive import WITHOUT_PLACE, Derived
from skyroute.broker.store.log_scan import is_cut, read_record, scan_log
from skyroute.broker.store.queue_ledger import KnownQueue, KnownQueues
from skyroute.broker.store.topic_queue import NO_MESSAGE_BYTES, TopicQueue
from skyroute.message.errors import InvalidNameError
from skyroute.message.flags import INNER_BATCH

logger = logging.getLogger(__name__)

CENSUS_BYTES_MAX: Final = 1 << 30
"""Size of a log that is read for its queues at the start where no ledger tells them."""

ALL_ROWS: Final = -1
"""As the first bad row of a queue: its oldest file is missing."""

STEPS_BACK_MAX: Final = 64
"""Number of units that are tried, from the end, for one whose record the log has."""


class QueueState:
    """The queues of a folder as they were found, and what is known of their ends."""

    def __init__(
        self,
        queues: Iterable[TopicQueue],
        known: KnownQueues | None,
        *,
        is_exact: bool,
        keep_kind: Callable[[str], None],
    ) -> None:
        """`known` is None where no ledger is up to date.

        `is_exact` says that the queues' ends are those of the ledger, and not only those of its last flush.
        `keep_kind` has a topic that has no folder yet keep batches whole.
        """
        self.queues = list(queues)
        self.deleted = {} if known is None else known.deleted
        self._known = None if known is None else known.queues
        self._is_exact = is_exact
        self._keep_kind = keep_kind
        self._found_ends = {queue: queue.end for queue in self.queues}

    def check_newest(self, log: CommitLog, log_end: int) -> None:
        """Find queues whose newest unit does not mean the record that is there."""
        if log.segments:
            for queue in self.queues:
                if queue.bad_row is None and not _is_newest_sound(log, queue, log_end):
                    queue.bad_row = queue.count - 1

    def find_rebuilt(
        self, log: CommitLog, start: int, find_queue: Callable[[str, int], TopicQueue]
    ) -> dict[TopicQueue, int]:
        """Return the queues that lack units of records before a position, and from where on the log has those."""
        if self._known is None:
            self._known = self._take_census(log, start)
        by_key = {(queue.topic, queue.queue_id): queue for queue in self.queues}
        rebuilt: dict[TopicQueue, int] = {}
        for key, known in self._known.items():
            queue = by_key.get(key)
            if queue is None and (queue := self._create(key, known, find_queue)) is not None:
                rebuilt[queue] = log.start
            elif queue is not None and known.first < queue.first_kept and known.first < known.end:
                queue.bad_row = ALL_ROWS
            elif queue is not None and self._found_end(queue) < self._known_end(known):
                queue.bad_row = queue.count if queue.bad_row is None else min(queue.bad_row, queue.count)
        for queue in self.queues:
            if queue.bad_row is not None:
                rebuilt[queue] = _find_position(log, queue, queue.bad_row)
        return rebuilt

    def drop_bad_rows(self) -> None:
        """Forget the units that are to be written again, and those behind them."""
        for queue in self.queues:
            if queue.bad_row == ALL_ROWS:
                queue.remove()
            elif queue.bad_row is not None:
                queue.drop_from(queue.bad_row)
            queue.bad_row = None

    def _create(
        self, key: tuple[str, int], known: KnownQueue, find_queue: Callable[[str, int], TopicQueue]
    ) -> TopicQueue | None:
        if not known.end:
            return None
        if known.is_for_batches:
            self._keep_kind(key[0])
        try:
            queue = find_queue(*key)
        except InvalidNameError:
            return None
        self.queues.append(queue)
        return queue

    def _found_end(self, queue: TopicQueue) -> int:
        # A machine's stop leaves units that mean nothing, which were dropped since.
        return self._found_ends[queue] if self._is_exact else queue.end

    def _known_end(self, known: KnownQueue) -> int:
        return known.end if self._is_exact else known.flushed_end

    def _take_census(self, log: CommitLog, start: int) -> dict[tuple[str, int], KnownQueue]:
        """Return the queues that records before a position belong to, and where those end."""
        if start - log.start > CENSUS_BYTES_MAX:
            logger.warning("missing queue files are not looked for, the log is too long bytes=%d", start - log.start)
            return {}
        ends: dict[tuple[str, int], int] = {}
        held: dict[tuple[str, int], int] = {}
        firsts: dict[tuple[str, int], int] = {}
        for_batches: set[str] = set()
        for record in scan_log(log, log.start):
            if isinstance(record, DamagedRange):
                continue
            position, _, topic, queue_id, offset, sys_flag, _, raw = record
            if position >= start:
                break
            if sys_flag & WITHOUT_PLACE:
                continue
            end, key = offset + 1, (topic, queue_id)
            if sys_flag & INNER_BATCH:
                end = offset + messages_in_batch(raw)
                for_batches.add(topic)
            # An offset that is not the next one may be a bad spot; the record after it tells.
            if offset in (ends.get(key, offset), held.get(key)):
                firsts.setdefault(key, offset)
                ends[key] = end
                held.pop(key, None)
            else:
                held[key] = end
        return {key: KnownQueue(key[0] in for_batches, end, end, firsts[key]) for key, end in ends.items()}

    def fill_up(
        self, log_end: int, rebuilt: Container[TopicQueue], restarted: Container[TopicQueue], derived: Derived
    ) -> None:
        """Have no queue end before the offset where it ended, whatever the log has lost."""
        known = self._known or {}
        for queue in self.queues:
            ends = [queue.next_offset]
            if (said := known.get((queue.topic, queue.queue_id))) is not None:
                ends.append(self._known_end(said))
            if self._is_exact and queue in rebuilt and not queue.is_for_batches:
                ends.append(self._found_ends.get(queue, 0))
            if max(ends) > queue.next_offset and queue not in restarted:
                logger.warning(
                    "messages lost topic=%s queue=%d offsets=%d..%d",
                    *(queue.topic, queue.queue_id, queue.next_offset, max(ends) - 1),
                )
                queue.fill_up(max(ends), log_end)
                derived.write_queue(queue)


def has_record(log: CommitLog, queue: TopicQueue, position: int, size: int, first: int, stop: int) -> bool:
    """Return whether the log has a record that a unit of a queue can mean: of this size, with these offsets."""
    segment = log.find(position) if position >= 0 else None
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
    if size == NO_MESSAGE_BYTES or 0 <= position < log.start:
        return True
    if log.find(position) is None:
        return 0 <= position < position + size <= log_end  # its file is gone
    return has_record(log, queue, position, size, first, stop)


def _find_position(log: CommitLog, queue: TopicQueue, row: int) -> int:
    """Return where in the log the records start that rows of a queue, from one on, stand for."""
    for position, size, first, stop in queue.units_before(row, STEPS_BACK_MAX):
        if position >= log.start and has_record(log, queue, position, size, first, stop):
            return position + size
    return log.start
