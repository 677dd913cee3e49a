"""Opening a folder: how far the log goes, and whether what follows from it is all there.

What queues and index know is trusted up to some record. They are cut back to it, the log is walked from there to its
end, and all that follows from it is written again. Which record that is depends on what was left behind:

- A store that was closed has everything.
- A process that died leaves what it had written, in the system's memory if not on the disk. It had taken note of the
  newest record that queues and index knew of.
- A machine that stopped leaves what was on its disk, and a note up to which record that was everything.
- Apache's broker, when it dies, leaves no note but a time: what was stored before it was on the disk. The walk begins
  with the segment of that time. So it does whenever a note makes no sense.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Final

from skyroute.broker.store.checkpoint import Checkpoint
from skyroute.broker.store.commit_log import CommitLog
from skyroute.broker.store.damage import DamagedRange
from skyroute.broker.store.derive import WITHOUT_PLACE, Derived
from skyroute.broker.store.key_index import KeyIndex
from skyroute.broker.store.log_scan import scan_log
from skyroute.broker.store.topic_queue import TopicQueue
from skyroute.message.errors import InvalidNameError
from skyroute.message.flags import INNER_BATCH

WRITTEN_AT_ONCE: Final = 4096
"""After so many records, what follows from them is written."""


class LeftBehind(Enum):
    """How the last one who had the folder open let go of it."""

    CLOSED = auto()
    PROCESS_DIED = auto()
    MACHINE_STOPPED = auto()
    UNKNOWN = auto()
    """It was not us."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What opening a folder found and did."""

    was_clean: bool
    start: int
    """From here on the log was walked."""
    records: int
    """So many were found there, and their units and keys written again."""
    bytes_cut: int
    """So many bytes of segments were dropped, because no good record started there."""


def recover(
    log: CommitLog,
    queues: Iterable[TopicQueue],
    find_queue: Callable[[str, int], TopicQueue],
    index: KeyIndex | None,
    derived: Derived,
    checkpoint: Checkpoint,
    *,
    left: LeftBehind,
    now_ms: int,
) -> Recovered:
    """Make log, queues and index agree.

    Raises:
        StoreWriteError, StoreFullError: the disk refuses to have it written.
    """
    queues = list(queues)
    was_closed = left is LeftBehind.CLOSED
    if not log.segments:
        for queue in queues:
            queue.remove()
        if index is not None:
            index.remove()
        return Recovered(was_closed, 0, 0, 0)
    start = _find_trusted_end(log, queues, index, checkpoint, left)
    torn = start is None or left is LeftBehind.MACHINE_STOPPED
    trusted_ms = -1 if start is not None else checkpoint.trusted_ms
    if start is None:
        start = _find_start(log, index, trusted_ms)
    if not any(queue.segments for queue in queues) or (index is not None and not index.files):
        start = log.start  # somebody took them away
    for queue in queues:
        if torn:
            queue.truncate_torn(start, log.start, partial(_has_record, log, queue))
        else:
            queue.truncate_to(start)
    if index is not None:
        on_disk = checkpoint.on_disk if left is LeftBehind.MACHINE_STOPPED else None
        if on_disk is not None and start == on_disk.end:
            index.truncate_torn(on_disk.index_count, start)
        else:
            index.truncate_to(start, slots_are_sound=not torn)
    records = _derive_from(log, start, find_queue, derived)
    if index is not None and not index.files:
        index.begin_file(now_ms)  # so that it is not taken for missing the next time
    bytes_cut = sum(segment.size for segment in log.segments if segment.start > log.end)
    log.truncate(log.end)
    log.flushed = log.end if was_closed else log.start
    return Recovered(was_closed, start, records, bytes_cut)


def _derive_from(log: CommitLog, start: int, find_queue: Callable[[str, int], TopicQueue], derived: Derived) -> int:
    """Walk the log from here to its end and write what follows from it; return how many records there were."""
    records = 0
    log.end = start
    for found in scan_log(log, start):
        if isinstance(found, DamagedRange):
            continue
        position, size, topic, queue_id, offset, sys_flag, stored_at_ms, raw = found
        log.end = position + size
        records += 1
        try:
            queue = find_queue(topic, queue_id)
        except InvalidNameError:
            continue  # a bad spot in the topic: the log keeps the record, no queue can
        if not sys_flag & WITHOUT_PLACE:
            if offset != queue.next_offset:
                derived.write()
                if not queue.make_place(offset, position):
                    continue
            queue.next_offset = offset + (queue.messages_in(raw) if sys_flag & INNER_BATCH else 1)
        derived.noted.append((queue, offset, position, size, raw, sys_flag, stored_at_ms))
        if len(derived.noted) >= WRITTEN_AT_ONCE:
            derived.write()
    derived.write()
    return records


def _has_record(log: CommitLog, queue: TopicQueue, position: int, size: int, offset: int) -> bool:
    """Return whether the log has a record that a unit of a queue can mean."""
    found = log.find_sound_record(position)
    return found is not None and (found.size, found.topic, found.queue_id, found.queue_offset) == (
        *(size, queue.topic),
        *(queue.queue_id, offset),
    )


def _find_trusted_end(
    log: CommitLog, queues: list[TopicQueue], index: KeyIndex | None, checkpoint: Checkpoint, left: LeftBehind
) -> int | None:
    """Return the position up to which queues and index are known to be written; None where it is not known."""
    noted = None
    if left is LeftBehind.CLOSED:
        newest = max(queues, key=TopicQueue.log_end, default=None)
        if newest is None or newest.log_end() < 0:
            return log.start
        noted = newest.newest_unit()[:2]
        if noted[0] < log.start:
            return log.start
    elif left is LeftBehind.PROCESS_DIED:
        noted = checkpoint.last_derived
    elif left is LeftBehind.MACHINE_STOPPED:
        on_disk = checkpoint.on_disk
        if on_disk is not None and (index is None or index.extent[0] == on_disk.index_file):
            noted = on_disk[:2]
    if noted is None:
        return None
    position, size = noted
    record = log.find_sound_record(position)
    return position + size if record is not None and record.size == size else None


def _find_start(log: CommitLog, index: KeyIndex | None, trusted_ms: int) -> int:
    """Return where to begin when little is known: with what was stored after a time, or is not in the index."""
    start = log.start
    for segment in reversed(log.segments):
        first = log.find_sound_record(segment.start)
        if first is not None and 0 < first.stored_at_ms <= trusted_ms:
            start = segment.start
            break
    if index is not None and index.end < start:
        start = index.end if log.find_sound_record(index.end) is not None else log.start
    return start
