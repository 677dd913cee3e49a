"""Replays the log into queues and index, from the first record whose unit or keys are missing."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import takewhile
from typing import Final

from skyroute.broker.store.commit_log import CommitLog, ScannedTuple
from skyroute.broker.store.dispatch import NOT_IN_QUEUE, Dispatcher, PendingRecord
from skyroute.broker.store.files.abort_file import Shutdown
from skyroute.broker.store.index.key_index import KeyIndex
from skyroute.broker.store.index.keys import Key, collect_keys
from skyroute.broker.store.queues.topic_queue import TopicQueue
from skyroute.broker.store.recovery.damage import DamagedRange
from skyroute.broker.store.recovery.log_scan import TORN, scan_log
from skyroute.message.errors import InvalidNameError
from skyroute.message.flags import INNER_BATCH

WRITTEN_AT_ONCE: Final = 4096
"""Number of records after which their units and keys are written."""


class Replay:
    """One replay of the log. Records before `start` are added only to rebuilt queues and to the index."""

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
        self._unconfirmed: dict[TopicQueue, PendingRecord] = {}
        """Records with an unexpected offset. The next record of the queue confirms or refutes it."""
        self._restored = 0
        self.end = self._log.start
        """The position behind the last record."""
        self.records = 0
        self.damaged: list[DamagedRange] = []
        self.restarted: set[TopicQueue] = set()
        """Queues whose offsets restart at 0 in the log, because their topic was deleted and created again."""

    def run(  # noqa: PLR0912 - every record passes here
        self, position: int, shutdown: Shutdown, stop: int | None = None
    ) -> None:
        """Replay from a position to the last record, or to `stop`.

        Raises:
            FileWriteError: a unit or key cannot be written.
        """
        start, dispatcher, unconfirmed, deleted = self._start, self._dispatcher, self._unconfirmed, self._deleted
        bad_bodies: list[DamagedRange] = []
        """Records with an intact header and a damaged body, behind the last intact record."""
        scanned: Iterable[ScannedTuple | DamagedRange] = scan_log(self._log, position)
        if stop is not None:
            scanned = takewhile(lambda found: _position_of(found) < stop, scanned)
        for found in scanned:
            if isinstance(found, DamagedRange):
                self.damaged.append(found)
                if found.lost is not None:
                    bad_bodies.append(found)
                continue
            for damaged in bad_bodies:
                self._replay_record(damaged.lost)
            bad_bodies.clear()
            position, size, topic, queue_id, offset, sys_flag, stored_at_ms, raw = found
            if position < start or unconfirmed or deleted:
                self._replay_record(found)
                continue
            self.end = position + size
            self.records += 1
            try:
                queue = self._find_queue(topic, queue_id)
            except InvalidNameError:
                continue  # the topic is damaged: the record stays in the log, in no queue
            if not sys_flag & NOT_IN_QUEUE:
                if offset != queue.next_offset:
                    self._add(queue, found)
                    continue
                queue.advance(offset + (queue.messages_in(raw) if sys_flag & INNER_BATCH else 1))
            dispatcher.pending.append((queue, offset, position, size, raw, sys_flag, stored_at_ms))
            if len(dispatcher.pending) >= WRITTEN_AT_ONCE:
                dispatcher.write_up_to(None)
        for damaged in bad_bodies:
            # A crash of the process tears the end of a record, a crash of the machine any part.
            is_whole = shutdown is Shutdown.CLEAN or (shutdown is Shutdown.PROCESS_DIED and damaged.reason != TORN)
            if is_whole or damaged.end <= start:
                self._replay_record(damaged.lost)
        for waiting in unconfirmed.values():
            if waiting[1] > waiting[0].next_offset:
                self._restore_behind_gap(waiting)
        dispatcher.write_up_to(None)
        self._write_keys()

    def _replay_record(self, found: ScannedTuple | None) -> None:
        """Write the unit and keys of a record, if they are missing."""
        if found is None:
            return
        position, size, topic, queue_id, _, sys_flag, stored_at_ms, raw = found
        self.end = position + size
        if position >= self._start:
            self._write_keys()
            self.records += 1
            if position >= self._deleted.get(topic, 0):
                with suppress(InvalidNameError):
                    self._add(self._find_queue(topic, queue_id), found)
            return
        if position >= self._index_start and self._index is not None:
            collect_keys(self._keys, topic, raw, sys_flag, position, stored_at_ms)
            if len(self._keys) >= WRITTEN_AT_ONCE:
                self._write_keys()
        queue, first = self._rebuilt.get((topic, queue_id), (None, 0))
        if queue is not None and position >= max(first, self._deleted.get(topic, 0)):
            self._add(queue, found)

    def _write_keys(self) -> None:
        if self._keys and self._index is not None:
            self._index.add(self._keys)

    def _add(self, queue: TopicQueue, found: ScannedTuple) -> None:
        """Add a record to its queue once its offset is confirmed: no checksum covers it."""
        position, size, _, _, offset, sys_flag, stored_at_ms, raw = found
        record = queue, offset, position, size, raw, sys_flag, stored_at_ms
        if sys_flag & NOT_IN_QUEUE:
            if position >= self._start:
                self._dispatcher.add_keys(record)
            return
        waiting = self._unconfirmed.get(queue)
        if waiting is not None and 0 < offset < queue.next_offset < waiting[1]:
            # After a gap offsets fall to 0 only: this one is damaged, and says nothing about the record that waits.
            if position >= self._start:
                self._dispatcher.add_keys(record)
            return
        if waiting is not None:
            del self._unconfirmed[queue]
            behind = waiting[1] + _messages_in(waiting)
            # After a gap offsets rise. They restart only if the topic was deleted and created again.
            if offset >= behind if waiting[1] > queue.next_offset else not waiting[1] and offset == behind:
                self._restore_behind_gap(waiting)
        if position >= self._start:
            self._dispatcher.add_keys(record)
        if offset == queue.next_offset:
            self._restore(record)
        else:
            self._unconfirmed[queue] = record
            self._dispatcher.note_gap()

    def _restore_behind_gap(self, record: PendingRecord) -> None:
        queue, offset, position, *_ = record
        self._dispatcher.write_up_to(None)
        if not offset:
            self.restarted.add(queue)
        if queue.accept_gap(offset, position):
            self._restore(record)

    def _restore(self, record: PendingRecord) -> None:
        queue, offset, *_ = record
        queue.advance(offset + _messages_in(record))
        self._dispatcher.add_unit(record)
        self._restored += 1
        if self._restored % WRITTEN_AT_ONCE == 0:
            self._dispatcher.write_up_to(None)


def _position_of(found: ScannedTuple | DamagedRange) -> int:
    return found.position if isinstance(found, DamagedRange) else found[0]


def _messages_in(record: PendingRecord) -> int:
    queue, _, _, _, raw_properties, sys_flag, _ = record
    return queue.messages_in(raw_properties) if sys_flag & INNER_BATCH else 1
