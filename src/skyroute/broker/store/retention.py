"""What goes, when: the oldest segments of the log, by age or because the disk fills up, and what follows from them."""

from collections.abc import Iterable
from dataclasses import dataclass

from skyroute.broker.store.commit_log import CommitLog
from skyroute.broker.store.index.key_index import KeyIndex
from skyroute.broker.store.queues.topic_queue import TopicQueue
from skyroute.broker.store.settings import StoreSettings


@dataclass(frozen=True, slots=True)
class Expired:
    """What was removed."""

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
    """Remove old segments: those that are too old at the hour that is due or on a fuller disk, any on a full one.

    The last segment of everything stays.

    Raises:
        FileWriteError: the disk refuses; what was removed before is gone.
    """
    removed = 0
    if is_due or disk_used > settings.disk_used_max:
        while removed < settings.expired_segments_max and _may_go(log, settings, now_ms, disk_used):
            log.remove_first()
            removed += 1
    queue_segments = sum([queue.remove_expired(log.start) for queue in queues])
    index_files = 0 if index is None else index.remove_expired(log.start)
    return Expired(removed, queue_segments, index_files)


def _may_go(log: CommitLog, settings: StoreSettings, now_ms: int, disk_used: float) -> bool:
    if len(log.segments) < 2:
        return False
    if disk_used > settings.disk_used_urgent:
        return True
    # The last message of a segment was stored just before the first of the next, or of a later one if that is damaged.
    for segment in log.segments[1:]:
        first = log.record_at(segment.start)
        if first is not None:
            # No checksum covers a time: the next record has to be old as well, if there is one.
            second = segment.start + len(first)
            positions = (segment.start, second) if log.record_at(second) is not None else (segment.start,)
            return max(log.stored_at_ms(position) or now_ms for position in positions) + settings.reserved_ms <= now_ms
    return False
