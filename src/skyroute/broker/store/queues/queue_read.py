"""Collects the records that a read of a queue returns."""

from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from functools import lru_cache
from itertools import compress
from operator import add, ne
from struct import Struct
from typing import NamedTuple

from skyroute.broker.store.commit_log import MAPPED_AROUND, CommitLog
from skyroute.broker.store.queues.unit_rows import UNIT, Unit


class ReadStatus(Enum):
    """Result of a read."""

    FOUND = auto()
    NO_MATCH = auto()
    """No examined message matches the filter."""
    REMOVED = auto()
    """The messages are no longer in the log, or damaged."""
    QUEUE_EMPTY = auto()
    TOO_SMALL = auto()
    """The offset is before the oldest message."""
    AT_END = auto()
    """The offset is that of the next message to be stored."""
    BEYOND_END = auto()
    SEGMENT_MISSING = auto()
    """The segment of the queue is missing."""


class QueueRead(NamedTuple):
    """Records of one queue, and the offset of the next read."""

    status: ReadStatus
    next_offset: int
    min_offset: int
    max_offset: int
    chunks: Sequence[memoryview] = ()
    """The records, uncopied: views into the log, each of one or more whole records."""
    message_count: int = 0
    record_bytes: int = 0
    last_position: int = -1
    """Log position of the last message that was examined."""


@lru_cache(maxsize=64)
def _places_in(count: int) -> Struct:
    """Return the layout that reads positions and sizes of `count` units."""
    return Struct(">" + "qi8x" * count)


def collect_all(log: CommitLog, offset: int, raw_units: bytes, low: int, high: int, bytes_max: int) -> QueueRead | None:
    """Return all records of these units, each of one message; None if only `collect` can handle them.

    Records that are adjacent in the log, as those of a batch, are one chunk.
    """
    count = len(raw_units) // UNIT.size
    # One unpacking and calls of C functions: a loop over the units would take longer than all else in a pull.
    places: tuple[int, ...] = _places_in(count).unpack(raw_units)
    positions, sizes = places[::2], places[1::2]
    total = sum(sizes)
    if total > bytes_max:
        return None
    first, last = positions[0], positions[-1]
    if last + sizes[-1] - first == total:
        segment = log.find(first)
        if segment is None or not 0 < total <= min(segment.stop, log.end) - first:
            return None
        log.account_for(total + MAPPED_AROUND)
        chunk = segment.view[first - segment.start : first - segment.start + total]
        return QueueRead(ReadStatus.FOUND, offset + count, low, high, [chunk], count, total, last)
    stops = tuple(map(add, positions, sizes))
    ends = [*compress(range(count), map(ne, stops, positions[1:])), count - 1]
    chunks: list[memoryview] = []
    view = memoryview(b"")
    start = limit = begin = 0  # of the current segment and run
    for end in ends:
        at, stop = positions[begin], stops[end]
        begin = end + 1
        if not start <= at < limit:
            segment = log.find(at)
            if segment is None:
                return None
            start, limit, view = segment.start, min(segment.stop, log.end), segment.view
        if not at < stop <= limit:
            return None
        chunks.append(view[at - start : stop - start])
    log.account_for(min(max(last - first, total), total + len(chunks) * MAPPED_AROUND))
    return QueueRead(ReadStatus.FOUND, offset + count, low, high, chunks, count, total, last)


def collect(
    log: CommitLog,
    offset: int,
    units: Iterable[Unit],
    stops: Iterable[int],
    low: int,
    high: int,
    count_max: int,
    bytes_max: int,
    accept: Callable[[int], bool] | None,
    accept_record: Callable[[bytes], bool] | None,
    may_go_on: Callable[[], bool] | None = None,
) -> QueueRead:
    """Return the records of these units that pass the filters and are still in the log.

    `offset` is that of the first message, `stops` has the end offset of each unit, `low` and `high` are the bounds of
    the queue. After the first examined record, `may_go_on` is called before each unit.
    """
    log_end, damaged = log.end, None if log.damaged.is_empty else log.damaged
    chunks: list[memoryview] = []
    status = ReadStatus.NO_MATCH
    count = total = 0
    first_position = last_position = -1
    start = stop = 0  # of the current segment
    view: memoryview | None = None
    run_at = run_stop = -1  # of adjacent records, which become one chunk
    for (position, size, code), next_offset in zip(units, stops, strict=False):
        messages = next_offset - offset
        is_enough = count and (count + messages > count_max or total + size > bytes_max)
        if is_enough or (may_go_on is not None and first_position >= 0 and not may_go_on()):
            break
        last_position = position
        offset = next_offset
        if accept is not None and not accept(code):
            status = ReadStatus.NO_MATCH
            continue
        if not start <= position < stop:
            if run_at >= 0 and view is not None:
                chunks.append(view[run_at:run_stop])
                run_at = run_stop = -1
            first_position = first_position if first_position >= 0 else position
            segment = log.find(position)
            if segment is None:
                start = stop = 0
            else:
                start, stop, view = segment.start, min(segment.stop, log_end), segment.view
        if position + size > stop or size <= 0 or view is None or (damaged is not None and position in damaged):
            status = ReadStatus.REMOVED
            continue
        at = position - start
        if accept_record is not None and not accept_record(bytes(view[at : at + size])):
            status = ReadStatus.NO_MATCH
            continue
        if at != run_stop:
            if run_at >= 0:
                chunks.append(view[run_at:run_stop])
            run_at = at
        run_stop = at + size
        count += messages
        total += size
    if run_at >= 0 and view is not None:
        chunks.append(view[run_at:run_stop])
    log.account_for(min(max(last_position - first_position, total), total + len(chunks) * MAPPED_AROUND))
    return QueueRead(ReadStatus.FOUND if count else status, offset, low, high, chunks, count, total, last_position)
