"""Messages that were taken before a crash of the broker: they are not popped again."""

import logging
from collections.abc import Iterator
from pathlib import Path

from skyroute.broker.pop.in_flight import InFlight
from skyroute.broker.pop.taken_log import OffsetRanges, QueueKey, TakenLog
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.tables.consumer_offsets import ConsumerOffsets
from skyroute.files.errors import FileWriteError

log = logging.getLogger(__name__)


class TakenMessages:
    """Knows what was taken before the last crash, and writes what is taken to the log, for the next one."""

    def __init__(self, taken_log: TakenLog, store: MessageStore, offsets: ConsumerOffsets, in_flight: InFlight) -> None:
        self._taken_log = taken_log
        self._store = store
        self._offsets = offsets
        self._in_flight = in_flight
        self._before: dict[QueueKey, OffsetRanges] = {}
        """Messages that were taken before the last crash, at or above the committed offset."""

    def find(self, group: str, topic: str, queue_id: int) -> OffsetRanges | None:
        """Return what was taken of a queue before the last crash."""
        return self._before.get((group, topic, queue_id)) if self._before else None

    def load(self, offsets_file: Path) -> None:
        """Read what was taken before a crash."""
        for key, ranges in self._taken_log.load(offsets_file).items():
            if max(last for _, last in ranges) < self._store.max_offset(*key[1:]):
                self._before[key] = ranges
        if self._before:
            log.info("messages taken before a crash are not popped again queues=%d", len(self._before))

    def log_all(self) -> Iterator[None]:
        """Start another file of the log of taken messages, in steps, before offsets are saved."""
        try:
            self._taken_log.begin()
        except FileWriteError as error:
            log.warning("taken messages not logged, they may come again after a crash reason=%s", error)
            return
        for key, ranges in list(self._before.items()):
            committed = self._offsets.get(*key)
            left = [pair for pair in ranges if committed is None or pair[1] >= committed]
            if left:
                self._taken_log.note_ranges(key, left)
            else:
                del self._before[key]
            yield
        for key in self._in_flight.held_keys():
            taken = self._in_flight.taken(*key)
            if taken:
                self._taken_log.note_taken(key, tuple(taken))
            yield

    def forget(self, group: str, topic: str, queue_id: int) -> None:
        """Let messages of a queue be popped again: its offset was reset."""
        self._before.pop((group, topic, queue_id), None)
        self._taken_log.note_reset(group, topic, queue_id)
