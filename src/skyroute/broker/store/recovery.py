"""Opening a folder: how far the log goes, and whether what follows from it is all there.

Three ways, by what was left behind:

- A store that was closed has everything; its newest record is looked at, and that is all.
- A process that died leaves what it had written, in the system's memory if not on the disk. It had taken note of the
  newest record that queues and index knew of: they are cut back to it, and written again from there.
- A machine that stopped, or a process that took no notes, as Apache's: what was stored before the checkpoint's time was
  on the disk. The log is walked from the segment of that time, and all that follows from it is written again.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from skyroute.broker.store.checkpoint import Checkpoint
from skyroute.broker.store.commit_log import CommitLog, ScannedRecord
from skyroute.broker.store.consume_queue import ConsumeQueue
from skyroute.broker.store.derive import BACKLOG_MAX, WITH_QUEUE_OFFSET, Derived
from skyroute.broker.store.key_index import KeyIndex
from skyroute.message.errors import InvalidNameError
from skyroute.message.flags import TRANSACTION_MASK
from skyroute.message.layout import RECORD_BYTES_MIN

GAP_MAX: Final = 100_000
"""How many messages may be missing between two of a queue; more than that is a bad spot in the later one."""


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
    queues: Iterable[ConsumeQueue],
    find_queue: Callable[[str, int], ConsumeQueue],
    index: KeyIndex | None,
    derived: Derived,
    checkpoint: Checkpoint,
    *,
    was_closed: bool,
    same_boot: bool,
    now_ms: int,
) -> Recovered:
    """Make log, queues and index agree.

    Raises:
        StoreWriteError, StoreFullError: the disk refuses to have it written.
    """
    queues = list(queues)
    if not log.segments:
        for queue in queues:
            queue.remove()
        if index is not None:
            index.remove()
        return Recovered(was_closed, 0, 0, 0)
    start = _find_trusted_end(log, queues, checkpoint, was_closed=was_closed, same_boot=same_boot)
    slots_are_sound = start is not None
    trusted_ms = -1 if start is not None else checkpoint.trusted_ms
    if start is None:
        start = _find_start(log, index, trusted_ms)
    if not any(queue.segments for queue in queues) or (index is not None and not index.files):
        start = log.start  # somebody took them away
    for queue in queues:
        queue.truncate_to(start)
    if index is not None:
        index.truncate_to(start, slots_are_sound=slots_are_sound)
    records = _derive_from(log, start, find_queue, derived, trusted_ms)
    if index is not None and not index.files:
        index.begin_file(now_ms)  # so that it is not taken for missing the next time
    bytes_cut = sum(segment.size for segment in log.segments if segment.start > log.end)
    log.truncate(log.end)
    log.flushed = log.end if was_closed else log.start
    return Recovered(was_closed, start, records, bytes_cut)


def _derive_from(
    log: CommitLog, start: int, find_queue: Callable[[str, int], ConsumeQueue], derived: Derived, trusted_ms: int
) -> int:
    """Walk the log from here to its end and write what follows from it; return how many records there were."""
    records = 0
    for record in log.scan(start, trusted_ms=trusted_ms):
        records += 1
        with suppress(InvalidNameError):  # a bad spot in the topic: the log keeps the record, no queue can
            queue = find_queue(record.topic, record.queue_id)
            has_offset = record.sys_flag & TRANSACTION_MASK in WITH_QUEUE_OFFSET
            if not has_offset or _makes_place(queue, record, derived):
                noted = (queue, record.queue_offset, record.position, record.size)
                derived.noted.append((*noted, record.raw_properties, record.sys_flag, record.stored_at_ms))
        if len(derived.noted) > BACKLOG_MAX:
            derived.write()
    derived.write()
    return records


def _makes_place(queue: ConsumeQueue, record: ScannedRecord, derived: Derived) -> bool:
    """Return whether a record can have the place in its queue that it says it has, and make the place.

    It hardly ever is another than the next. No checksum covers it, so a bad spot must not cost the queue.
    """
    offset = record.queue_offset
    if offset != queue.next_offset:
        derived.write()
        is_empty = queue.end == queue.first_kept
        if offset == 0:
            queue.remove()  # the topic was deleted and made again: the later messages are the ones that count
        elif offset < queue.next_offset and queue.first_kept <= offset and queue.is_filler(offset):
            queue.truncate(offset)
        elif is_empty and not 0 < offset <= record.position // RECORD_BYTES_MIN:
            return False  # the log before it would not have held so many
        elif not is_empty and not 0 < offset - queue.next_offset <= GAP_MAX:
            return False
    queue.next_offset = offset + 1
    return True


def _find_trusted_end(
    log: CommitLog, queues: list[ConsumeQueue], checkpoint: Checkpoint, *, was_closed: bool, same_boot: bool
) -> int | None:
    """Return the position up to which queues and index are known to be written; None where it is not known."""
    if was_closed:
        newest = max(queues, key=ConsumeQueue.log_end, default=None)
        if newest is None or newest.log_end() < 0:
            return log.start
        position, size, _ = newest.unit(newest.end - 1)
        if position < log.start:
            return log.start
    elif same_boot and checkpoint.last_derived is not None:
        position, size = checkpoint.last_derived
    else:
        return None
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
