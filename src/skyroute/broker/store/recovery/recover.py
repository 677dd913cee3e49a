"""Opening a folder: how far the log goes, and whether what follows from it is all there.

The log is the truth; recovery removes nothing from it but what a crash has torn. Queues and index follow from it, and
are written again from it where they are missing or damaged.

1. Up to some record, queues and index are known to be written. Which one depends on what was shutdown behind:

   - A store that was closed has everything.
   - A process that died leaves what it had written, in the system's memory if not on the disk. It had taken note of
     the newest record that queues and index knew of.
   - A machine that stopped leaves what was on its disk, and a note up to which record that was everything.
   - Apache's broker, when it dies, leaves no note but a time: what was stored before it was on the disk. The walk
     begins with the segment of that time. So it does whenever a note makes no sense.

2. What is missing before that record is found by `queue_check` and by the index itself.
3. One walk over the log, from the first record of which something is missing, writes both. It passes over damaged
   records, and ends behind the last sound one.
4. What lies behind is torn if a crash can have torn it. It is copied to a file of its own, and then cut off.
"""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from skyroute.broker.store.commit_log import CommitLog, ScannedTuple
from skyroute.broker.store.dispatch import NOT_IN_QUEUE, Dispatcher, PendingRecord
from skyroute.broker.store.files.abort_file import Shutdown
from skyroute.broker.store.files.checkpoint import Checkpoint
from skyroute.broker.store.files.sparse import data_chunks, last_data
from skyroute.broker.store.index.key_index import KeyIndex
from skyroute.broker.store.index.keys import Key, collect_keys
from skyroute.broker.store.queues.topic_queue import TopicQueue
from skyroute.broker.store.recovery.damage import CUT_FOLDER, CutTail, DamagedRange
from skyroute.broker.store.recovery.index_check import find_gap
from skyroute.broker.store.recovery.log_scan import TORN, read_record, scan_log
from skyroute.broker.store.recovery.queue_check import QueueState, has_record
from skyroute.files.disk import Disk
from skyroute.message.errors import InvalidNameError
from skyroute.message.flags import INNER_BATCH

logger = logging.getLogger(__name__)

WRITTEN_AT_ONCE: Final = 4096
"""Records after which their units and keys are written."""

LINES_MAX: Final = 100
"""Number of damaged ranges that are logged one by one."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What opening a folder found and did."""

    was_clean: bool
    start: int
    """From here on the log was walked for all queues."""
    records: int
    """Number of records found there, whose units and keys were written again."""
    damaged: tuple[DamagedRange, ...] = ()
    """Damaged ranges that the walk skipped."""
    cuts: tuple[CutTail, ...] = ()
    """What was dropped behind the end of the log."""
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
) -> Recovered:
    """Make log, queues and index agree.

    `begin_rebuild` is called with the position from which queues or index lack records until the rebuild ends.

    Raises:
        FileWriteError: the disk refuses to have it written.
    """
    start = _find_trusted_end(log, state.queues, checkpoint, shutdown)
    is_apaches = shutdown is Shutdown.CLEAN and checkpoint.closed_end is None
    floor = _find_known_end(log, state.queues) if is_apaches else 0
    is_torn = shutdown in (Shutdown.MACHINE_STOPPED, Shutdown.UNKNOWN) or start is None
    if start is None:
        start = _find_start(log, checkpoint.trusted_ms)
    if not log.segments:
        log.start_at(start)
    if not is_torn:
        state.check_newest(log, max(start, floor))
    for queue in state.queues:
        if is_torn:
            queue.truncate_torn(start, log.start, partial(has_record, log, queue))
        elif queue.bad_row is None:
            queue.truncate_to(start)
    rebuilt = state.find_rebuilt(log, start, find_queue)
    index_start = (
        start if index is None else _mend_index(log, index, checkpoint, shutdown, start, slots_are_sound=not is_torn)
    )
    walk_start = min([start, index_start, *rebuilt.values()])
    if walk_start < start:
        logger.warning(
            "rebuilding from the log queues=%d index=%s from=%d", len(rebuilt), index_start < start, walk_start
        )
        begin_rebuild(walk_start)
    state.drop_bad_rows()
    walk = _Walk(log, find_queue, dispatcher, index, state.deleted, start, rebuilt, index_start)
    walk.run(walk_start, shutdown)
    end = max(walk.end, start, floor)
    if shutdown is Shutdown.CLEAN:
        end = _find_last_data(log, end)
    state.fill_up(end, rebuilt, walk.restarted, dispatcher)
    dispatcher.write_up_to(None)
    if index is not None and not index.files:
        index.begin_file(now_ms)  # so that it is not taken for missing the next time
    cuts = _set_aside(log, end, now_ms, disk)
    log.finish_at(end, is_flushed=shutdown is Shutdown.CLEAN)
    if walk_start < start or dispatcher.has_gaps:
        dispatcher.end_recovery(log.end)
    damaged = [each.cut_at(end) for each in walk.damaged if each.position < end]
    _tell(damaged, cuts)
    return Recovered(
        *(shutdown is Shutdown.CLEAN, start, walk.records, tuple(damaged), tuple(cuts)),
        rebuilt_queues=len(rebuilt),
        rebuilt_index=index_start < start,
    )


def _find_trusted_end(
    log: CommitLog, queues: list[TopicQueue], checkpoint: Checkpoint, shutdown: Shutdown
) -> int | None:
    """Return the position up to which queues and index are known to be written; None where it is not known."""
    if shutdown is Shutdown.CLEAN:
        closed_end = checkpoint.closed_end
        return _find_newest(log, queues) if closed_end is None else max(closed_end, log.start)
    noted: tuple[int, int] | None = None
    if shutdown is Shutdown.PROCESS_DIED:
        noted = checkpoint.last_dispatched
    elif shutdown is Shutdown.MACHINE_STOPPED and checkpoint.on_disk is not None:
        noted = checkpoint.on_disk[:2]
    if noted is None:
        return None
    end = sum(noted)
    return end if log.start <= end <= log.stop + log.segment_bytes else None  # the last file may be gone


def _find_newest(log: CommitLog, queues: list[TopicQueue]) -> int:
    """Return where the newest record ends that a queue knows of and the log has."""
    units = [(unit, queue) for queue in queues if (unit := queue.newest_unit()) is not None]
    for (position, size, first, stop), queue in sorted(units, key=lambda each: each[0][0], reverse=True):
        if position < log.start:
            break
        if has_record(log, queue, position, size, first, stop):
            return position + size
    return log.start


def _find_known_end(log: CommitLog, queues: list[TopicQueue]) -> int:
    """Return where the newest record ends that a queue knows of, whether or not the log still has it."""
    ends = [
        unit[0] + unit[1]
        for queue in queues
        if (unit := queue.newest_unit()) is not None and log.start <= unit[0] and 0 < unit[1] <= log.segment_bytes
    ]
    # The last file may be missing; a damaged unit may hold any position.
    return max((end for end in ends if end <= log.stop + log.segment_bytes), default=0)


def _find_last_data(log: CommitLog, position: int) -> int:
    """Return the position behind the last byte of the log that is not zero, or this one if that is greater."""
    for segment in reversed(log.segments):
        if segment.stop <= position:
            break
        at = max(position - segment.start, 0)
        end = last_data(segment, at)
        if end > at:
            return segment.start + end
    return position


def _find_start(log: CommitLog, trusted_ms: int) -> int:
    """Return where to start without notes: the last segment whose first record is older than the checkpoint's time."""
    for segment in reversed(log.segments):
        first = read_record(segment, segment.start)
        if first is not None and 0 < first.stored_at_ms <= trusted_ms:
            return segment.start
    return log.start


def _mend_index(
    log: CommitLog,
    index: KeyIndex,
    checkpoint: Checkpoint,
    shutdown: Shutdown,
    start: int,
    *,
    slots_are_sound: bool,
) -> int:
    """Drop keys of records behind a position; return from where on the index lacks keys of earlier records."""
    on_disk = checkpoint.on_disk if shutdown is Shutdown.MACHINE_STOPPED else None
    if on_disk is not None and index.files and start == on_disk.end and index.extent[0] == on_disk.index_file:
        index.truncate_torn(on_disk.index_count, start)
    else:
        index.truncate_to(start, slots_are_sound=slots_are_sound)
    gap = find_gap(log, index, start)
    if gap < start:
        index.truncate_to(gap, slots_are_sound=slots_are_sound)
    return gap


class _Walk:
    """Walks over the log and writes the units and keys of its records."""

    def __init__(
        self,
        log: CommitLog,
        find_queue: Callable[[str, int], TopicQueue],
        dispatcher: Dispatcher,
        index: KeyIndex | None,
        deleted: dict[str, int],
        start: int,
        rebuilt: dict[TopicQueue, int],
        index_start: int,
    ) -> None:
        self._log = log
        self._find_queue = find_queue
        self._dispatcher = dispatcher
        self._index = index
        self._deleted = deleted
        self._start = start
        self._rebuilt = {(queue.topic, queue.queue_id): (queue, first) for queue, first in rebuilt.items()}
        self._index_start = index_start
        self._keys: list[Key] = []
        self._held: dict[TopicQueue, PendingRecord] = {}
        """Records with an unexpected offset. The next record of the queue decides whether it is right."""
        self._restored = 0
        self.end = self._log.start
        """Behind the last record."""
        self.records = 0
        self.damaged: list[DamagedRange] = []
        self.restarted: set[TopicQueue] = set()
        """Queues whose offsets restart at 0 in the log, because their topic was deleted."""

    def run(self, position: int, shutdown: Shutdown) -> None:  # noqa: PLR0912 - every record passes here
        """Walk from a position to the last record."""
        start, dispatcher, held, deleted = self._start, self._dispatcher, self._held, self._deleted
        bad_bodies: list[DamagedRange] = []
        """Records with an intact header behind the last intact record."""
        for found in scan_log(self._log, position):
            if isinstance(found, DamagedRange):
                self.damaged.append(found)
                if found.lost is not None:
                    bad_bodies.append(found)
                continue
            for damaged in bad_bodies:
                self._take_slowly(damaged.lost)
            bad_bodies.clear()
            position, size, topic, queue_id, offset, sys_flag, stored_at_ms, raw = found
            if position < start or held or deleted:
                self._take_slowly(found)
                continue
            self.end = position + size
            self.records += 1
            try:
                queue = self._find_queue(topic, queue_id)
            except InvalidNameError:
                continue  # a damaged topic: the record stays in the log, in no queue
            if not sys_flag & NOT_IN_QUEUE:
                if offset != queue.next_offset:
                    self._give(queue, found)
                    continue
                queue.advance(offset + (queue.messages_in(raw) if sys_flag & INNER_BATCH else 1))
            if dispatcher.add(queue, offset, position, size, raw, sys_flag, stored_at_ms) >= WRITTEN_AT_ONCE:
                dispatcher.write_up_to(None)
        for damaged in bad_bodies:
            # A process crash tears a record at its end, a power failure anywhere.
            is_whole = shutdown is Shutdown.CLEAN or (shutdown is Shutdown.PROCESS_DIED and damaged.reason != TORN)
            if is_whole or damaged.end <= start:
                self._take_slowly(damaged.lost)
        for waiting in held.values():
            if waiting[1] > waiting[0].next_offset:
                self._restore_behind_gap(waiting)
        dispatcher.write_up_to(None)
        self._write_keys()

    def _take_slowly(self, found: ScannedTuple | None) -> None:
        """Write a record's unit and keys where they are missing."""
        if found is None:
            return
        position, size, topic, queue_id, _, sys_flag, stored_at_ms, raw = found
        self.end = position + size
        if position >= self._start:
            self._write_keys()
            self.records += 1
            if position >= self._deleted.get(topic, 0):
                with suppress(InvalidNameError):
                    self._give(self._find_queue(topic, queue_id), found)
            return
        if position >= self._index_start and self._index is not None:
            collect_keys(self._keys, topic, raw, sys_flag, position, stored_at_ms)
            if len(self._keys) >= WRITTEN_AT_ONCE:
                self._write_keys()
        queue, first = self._rebuilt.get((topic, queue_id), (None, 0))
        if queue is not None and position >= max(first, self._deleted.get(topic, 0)):
            self._give(queue, found)

    def _write_keys(self) -> None:
        if self._keys and self._index is not None:
            self._index.add(self._keys)

    def _give(self, queue: TopicQueue, found: ScannedTuple) -> None:
        """Add a record to its queue once its offset is confirmed: no checksum covers it."""
        position, size, _, _, offset, sys_flag, stored_at_ms, raw = found
        record = queue, offset, position, size, raw, sys_flag, stored_at_ms
        if sys_flag & NOT_IN_QUEUE:
            if position >= self._start:
                self._dispatcher.add_keys(record)
            return
        waiting = self._held.pop(queue, None)
        if waiting is not None:
            behind = waiting[1] + _messages_in(waiting)
            # After a gap offsets rise. They restart only if the topic was deleted and created again.
            if offset >= behind if waiting[1] > queue.next_offset else not waiting[1] and offset == behind:
                self._restore_behind_gap(waiting)
        if position >= self._start:
            self._dispatcher.add_keys(record)
        if offset == queue.next_offset:
            self._restore(record)
        else:
            self._held[queue] = record
            self._dispatcher.note_gap()

    def _restore_behind_gap(self, record: PendingRecord) -> None:
        queue, offset, position, *_ = record
        self._dispatcher.write_up_to(None)
        if not offset:
            self.restarted.add(queue)
        if queue.make_place(offset, position):
            self._restore(record)

    def _restore(self, record: PendingRecord) -> None:
        queue, offset, *_ = record
        queue.advance(offset + _messages_in(record))
        self._dispatcher.add_unit(record)
        self._restored += 1
        if self._restored % WRITTEN_AT_ONCE == 0:
            self._dispatcher.write_up_to(None)


def _messages_in(record: PendingRecord) -> int:
    queue, _, _, _, raw_properties, sys_flag, _ = record
    return queue.messages_in(raw_properties) if sys_flag & INNER_BATCH else 1


def _set_aside(log: CommitLog, end: int, now_ms: int, disk: Disk) -> list[CutTail]:
    """Copy the bytes behind the end of the log to separate files; return what was copied.

    Raises:
        FileWriteError: some of it is not copied.
    """
    cuts: list[CutTail] = []
    for segment in log.segments:
        at = max(end - segment.start, 0)
        if at >= segment.size or not (stop := last_data(segment, at)) > at:
            continue
        folder = segment.path.parent.with_name(CUT_FOLDER)
        disk.make_folder(folder)
        path = folder / f"{segment.path.name}.cut-{now_ms}"
        copy = disk.open(path, stop - at)
        try:
            for low, high in data_chunks(segment, at):
                disk.write(copy, segment.read(low, min(high, stop) - low), low - at)
            disk.sync(copy)
        finally:
            os.close(copy)
        disk.sync_folder(folder)
        cuts.append(CutTail(segment.start + at, stop - at, segment.path, path))
    return cuts


def _tell(damaged: list[DamagedRange], cuts: list[CutTail]) -> None:
    for each in damaged[:LINES_MAX]:
        lost = ""
        if each.lost is not None:
            lost = f" topic={each.lost.topic[:255]!r} queue={each.lost.queue_id} offset={each.lost.queue_offset}"
        logger.warning(
            "damaged range of the log skipped file=%s offset=%d bytes=%d reason=%r%s",
            *(each.file, each.file_offset, each.size, each.reason, lost),
        )
    if len(damaged) > LINES_MAX:
        logger.warning("further damaged ranges of the log skipped count=%d", len(damaged) - LINES_MAX)
    for cut in cuts:
        logger.warning(
            "torn end of the log cut file=%s offset=%d bytes=%d kept_in=%s",
            *(cut.file, cut.position - int(cut.file.name), cut.size, cut.kept_in),
        )
