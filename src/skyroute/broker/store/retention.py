"""Removes expired segments of the log, and the parts of queues and index that point to them."""

from collections.abc import Iterable
from dataclasses import dataclass

from skyroute.broker.store.commit_log import CommitLog
from skyroute.broker.store.index.key_index import KeyIndex
from skyroute.broker.store.queues.topic_queue import TopicQueue
from skyroute.broker.store.settings import StoreSettings


@dataclass(frozen=True, slots=True)
class Expired:
    """The number of files that were removed."""

    log_segments: int
    queue_segments: int
    index_files: int


def remove_expired(
    log: CommitLog,
    queues: Iterable[TopicQueue],
    index: KeyIndex | None,
    settings: StoreSettings,
    *,
    now_ms: int,
    is_due: bool,
    disk_used: float,
) -> Expired:
    """Remove old segments: expired ones if it is due or the disk is nearly full, any if the disk is full.

    The last segment of log, queues and index stays.

    Raises:
        FileWriteError: a file could not be removed; others are removed.
    """
    removed = 0
    if is_due or disk_used > settings.disk_used_max:
        while removed < settings.expired_segments_max and _is_expired(log, settings, now_ms, disk_used):
            log.remove_first()
            removed += 1
    queue_segments = sum([queue.remove_expired(log.start) for queue in queues])
    index_files = 0 if index is None else index.remove_expired(log.start)
    return Expired(removed, queue_segments, index_files)


def _is_expired(log: CommitLog, settings: StoreSettings, now_ms: int, disk_used: float) -> bool:
    if len(log.segments) < 2:
        return False
    if disk_used > settings.disk_used_urgent:
        return True
    # The last message of a segment is as old as the first of the next segment, or of a later one if that is damaged.
    for segment in log.segments[1:]:
        first = log.record_at(segment.start)
        if first is not None:
            # No checksum covers a time: the next record has to be old as well, if there is one.
            second = segment.start + len(first)
            positions = (segment.start, second) if log.record_at(second) is not None else (segment.start,)
            return max(log.stored_at_ms(position) or now_ms for position in positions) + settings.reserved_ms <= now_ms
    return False
