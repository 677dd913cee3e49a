"""Recovery at the start of a store: finds the end of the log, and makes queues and index agree with it.

The log is the source of truth: recovery removes only a torn tail from it. Queues and index are built from it, and
rebuilt where they are missing or damaged.

1. Find the newest record up to which queues and index are known to be written. It depends on the last shutdown:

   - After a clean shutdown, everything is written. If Apache's broker closed the store, the newest unit of all queues
     has the end of the log.
   - If the process died, everything it wrote can be read back. The checkpoint has the newest dispatched record.
   - If the machine stopped, the checkpoint has the record up to which everything is on disk. It also counts if the
     process died after a failed flush; the log behind it is then written again.
   - Apache's broker notes only a time: everything stored before it is on disk. Recovery starts with the segment of
     that time. It does the same if a note is missing or invalid.

2. `queue_check` and `index_check` find what is missing before that record.
3. `replay` reads the log from the first record whose unit or keys are missing, and writes them. It skips damaged
   records and ends behind the last intact one; before a batch that a process was writing when it died.
4. Bytes behind it that a crash can have torn are copied to `commitlog.cut`, and cut off the log.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from skyroute.broker.store.commit_log import CommitLog
from skyroute.broker.store.dispatch import Dispatcher
from skyroute.broker.store.files.abort_file import Shutdown
from skyroute.broker.store.files.checkpoint import Checkpoint
from skyroute.broker.store.files.sparse import last_data
from skyroute.broker.store.index.key_index import KeyIndex
from skyroute.broker.store.queues.topic_queue import TopicQueue
from skyroute.broker.store.queues.unit_rows import NO_MESSAGE_BYTES
from skyroute.broker.store.recovery.cut_tails import save_tail
from skyroute.broker.store.recovery.damage import CutTail, DamagedRange
from skyroute.broker.store.recovery.index_check import find_gap
from skyroute.broker.store.recovery.log_scan import read_record
from skyroute.broker.store.recovery.queue_check import QueueState, has_record
from skyroute.broker.store.recovery.replay import Replay
from skyroute.files.disk import Disk

logger = logging.getLogger(__name__)

LINES_MAX: Final = 100
"""Number of damaged ranges that are logged one by one."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """Result of a recovery."""

    was_clean: bool
    start: int
    """Position from which the log was replayed for all queues."""
    records: int
    """Number of records behind `start`, whose units and keys were written."""
    damaged: tuple[DamagedRange, ...] = ()
    """Damaged ranges that were skipped."""
    cuts: tuple[CutTail, ...] = ()
    """Torn tails that were cut off the log."""
    rebuilt_queues: int = 0
    """Number of queues rebuilt, in whole or in part, from the log."""
    rebuilt_index: bool = False
    """Whether a part of the key index was rebuilt from the log."""

    @property
    def bytes_cut(self) -> int:
        return sum(cut.size for cut in self.cuts)


def recover(
    log: CommitLog,
    state: QueueState,
    find_queue: Callable[[str, int], TopicQueue],
    index: KeyIndex | None,
    dispatcher: Dispatcher,
    checkpoint: Checkpoint,
    disk: Disk,
    *,
    shutdown: Shutdown,
    now_ms: int,
    begin_rebuild: Callable[[int], None],
    partial_record: int | None = None,
) -> Recovered:
    """Make log, queues and index agree.

    `partial_record` is the position of the partial record at the end of a closed slave's log, which waits for its rest.

    `begin_rebuild` is called with the position from which queues or index lack records until the rebuild ends.

    Raises:
        FileWriteError: a file cannot be written.
    """
    start = _find_trusted_end(log, state.queues, checkpoint, shutdown)
    is_torn = shutdown is Shutdown.MACHINE_STOPPED or start is None
    if start is None:
        start = _find_start(log, checkpoint.trusted_ms)
    if not log.segments:
        log.start_at(start)
    if shutdown is Shutdown.PROCESS_DIED and checkpoint.has_failed_flush:
        log.rewrite_from(start)
    if not is_torn:
        state.check_newest(log, start)
    for queue in state.queues:
        if is_torn:
            queue.truncate_torn(start, log.start, partial(_may_have, log, queue))
        elif shutdown is Shutdown.PROCESS_DIED and queue.bad_row is None:
            queue.truncate_to(start)
    rebuilt = state.find_rebuilt(log, start, find_queue)
    index_start = (
        start
        if index is None
        else _truncate_index(log, index, checkpoint, shutdown, start, slots_are_sound=not is_torn)
    )
    replay_start = min([start, index_start, *rebuilt.values()])
    if replay_start < start:
        logger.warning(
            "rebuilding from the log queues=%d index=%s from=%d", len(rebuilt), index_start < start, replay_start
        )
        begin_rebuild(replay_start)
    state.drop_bad_rows()
    replay = Replay(log, find_queue, dispatcher, index, state.deleted, start, rebuilt, index_start)
    batch = checkpoint.unfinished_batch
    replay.run(replay_start, shutdown, partial_record if batch is None or batch < start else batch)
    end = max(replay.end, start)
    if shutdown is Shutdown.CLEAN:
        end = _find_last_data(log, end)
    state.fill_to(end, rebuilt, replay.restarted, dispatcher)
    dispatcher.write_up_to(None)
    if index is not None and not index.files:
        index.begin_file(now_ms)  # otherwise the next start takes the index for missing
    cuts = save_tail(log, end, now_ms, disk)
    log.finish_at(end, is_flushed=shutdown is Shutdown.CLEAN)
    dispatcher.end_recovery(log.end)
    damaged = [each.cut_at(end) for each in replay.damaged if each.position < end]
    _log_damage(damaged, cuts)
    return Recovered(
        *(shutdown is Shutdown.CLEAN, start, replay.records, tuple(damaged), tuple(cuts)),
        rebuilt_queues=len(rebuilt),
        rebuilt_index=index_start < start,
    )


def _find_trusted_end(
    log: CommitLog, queues: list[TopicQueue], checkpoint: Checkpoint, shutdown: Shutdown
) -> int | None:
    """Return the position up to which queues and index are known to be written; None if unknown."""
    if shutdown is Shutdown.CLEAN:
        closed_end = checkpoint.closed_end
        return max(_find_known_end(log, queues) if closed_end is None else closed_end, log.start)
    noted: tuple[int, int] | None = None
    if shutdown is Shutdown.PROCESS_DIED and not checkpoint.has_failed_flush:
        noted = checkpoint.last_dispatched
    elif shutdown in (Shutdown.PROCESS_DIED, Shutdown.MACHINE_STOPPED) and checkpoint.on_disk is not None:
        noted = checkpoint.on_disk[:2]
    if noted is None:
        return None
    end = sum(noted)
    # The last file may be missing, or all.
    return end if log.start <= end <= log.stop + log.segment_bytes or not log.segments else None


def _may_have(log: CommitLog, queue: TopicQueue, position: int, size: int, first: int, stop: int) -> bool:
    """Return whether the log has a record, or misses the file of its position."""
    return log.find(position) is None or has_record(log, queue, position, size, first, stop)


def _find_known_end(log: CommitLog, queues: list[TopicQueue]) -> int:
    """Return the end of the newest record that a queue has, whether or not the log still has it."""
    units = [unit for queue in queues if (unit := queue.newest_unit()) is not None]
    ends = [position + (0 if size == NO_MESSAGE_BYTES else size) for position, size, *_ in units]
    # The last file may be missing, or all; a damaged unit may hold any position.
    limit = log.stop + log.segment_bytes
    return max((end for end in ends if end <= limit or not log.segments), default=0)


def _find_last_data(log: CommitLog, position: int) -> int:
    """Return the position behind the last nonzero byte of the log; at least `position`."""
    for segment in reversed(log.segments):
        at = max(position - segment.start, 0)
        end = last_data(segment, at)
        if end > at:
            return segment.start + end
    return position


def _find_start(log: CommitLog, trusted_ms: int) -> int:
    """Return where to start without a note: the last segment whose first record is older than the checkpoint's time."""
    for segment in reversed(log.segments):
        first = read_record(segment, segment.start)
        if first is not None and 0 < first.stored_at_ms <= trusted_ms:
            return segment.start
    return log.start


def _truncate_index(
    log: CommitLog,
    index: KeyIndex,
    checkpoint: Checkpoint,
    shutdown: Shutdown,
    start: int,
    *,
    slots_are_sound: bool,
) -> int:
    """Drop the keys of records from `start` on; return the position from which the index lacks keys."""
    on_disk = checkpoint.on_disk if shutdown is Shutdown.MACHINE_STOPPED else None
    if on_disk is not None and index.files and start == on_disk.end and index.extent[0] == on_disk.index_file:
        index.truncate_torn(on_disk.index_count, start)
    else:
        index.truncate_to(start, slots_are_sound=slots_are_sound)
    gap = find_gap(log, index, start)
    if gap < start:
        index.truncate_to(gap, slots_are_sound=slots_are_sound)
    return gap


def _log_damage(damaged: list[DamagedRange], cuts: list[CutTail]) -> None:
    for each in damaged[:LINES_MAX]:
        lost = ""
        if each.lost is not None:
            lost = f" topic={each.lost.topic[:255]!r} queue={each.lost.queue_id} offset={each.lost.queue_offset}"
        logger.warning(
            "damaged range of the log skipped file=%s offset=%d bytes=%d reason=%r%s",
            *(each.file, each.file_offset, each.size, each.reason, lost),
        )
    if len(damaged) > LINES_MAX:
        logger.warning("more damaged ranges of the log skipped count=%d", len(damaged) - LINES_MAX)
    for cut in cuts:
        logger.warning(
            "torn tail of the log cut off file=%s offset=%d bytes=%d kept_in=%s",
            *(cut.file, cut.position - int(cut.file.name), cut.size, cut.kept_in),
        )
