"""Reads of a store: messages of a queue, offsets and times, and messages by key."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from skyroute.broker.store.commit_log import CommitLog
from skyroute.broker.store.dispatch import Dispatcher
from skyroute.broker.store.index.index_writer import IndexWriter
from skyroute.broker.store.index.key_index import KeyIndex, KeyMatches
from skyroute.broker.store.queues.consume_queue import ConsumeQueue
from skyroute.broker.store.queues.queue_read import QueueRead, ReadStatus, collect, collect_all
from skyroute.broker.store.queues.queue_table import QueueTable
from skyroute.broker.store.queues.unit_rows import Unit
from skyroute.broker.store.settings import StoreSettings
from skyroute.files.errors import StorageError
from skyroute.message.errors import RecordError
from skyroute.message.message import StoredMessage
from skyroute.message.record import decode_record

SCANNED_UNITS_MIN: Final = 800
"""Units that a filtered read examines before it returns without a match."""


class StoreReader:
    """The part of a store that reads. `MessageStore` adds the rest."""

    def __init__(
        self,
        folder: Path,
        settings: StoreSettings,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex | None,
        index_writer: IndexWriter,
        dispatcher: Dispatcher,
    ) -> None:
        self.folder = folder
        self.settings = settings
        self._log = log
        self._queues = queues
        self._index = index
        self._index_writer = index_writer
        self._dispatcher = dispatcher

    def read_queue(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count_max: int,
        bytes_max: int,
        accept: Callable[[int], bool] | None = None,
        accept_record: Callable[[bytes], bool] | None = None,
        may_go_on: Callable[[], bool] | None = None,
    ) -> QueueRead:
        """Return records from an offset on, up to `count_max` messages and `bytes_max` bytes, but at least one record.

        A batch that was stored as one record is returned whole, even if the offset is inside it.

        `accept` filters by tag code, then `accept_record` by the record. The search ends when `may_go_on` is false.
        A batch has no tag of its own, its messages may have any: it passes `accept`, and the client compares tags.
        """
        if self._dispatcher.pending:
            self._dispatcher.make_visible()
        queue = self._queues.by_key.get((topic, queue_id))
        if queue is None or queue.end == 0:
            return QueueRead(ReadStatus.QUEUE_EMPTY, 0, 0, 0)
        low, high = queue.min_offset(self._log.start), queue.end
        if offset < low:
            return QueueRead(ReadStatus.TOO_SMALL, low, low, high)
        if offset >= high:
            status = ReadStatus.AT_END if offset == high else ReadStatus.BEYOND_END
            return QueueRead(status, high, low, high)
        has_filter = accept is not None or accept_record is not None
        takes_all = not has_filter and self._log.damaged.is_empty
        if takes_all and isinstance(queue, ConsumeQueue) and (raw_units := queue.units(offset, max(count_max, 1))):
            everything = collect_all(self._log, offset, raw_units, low, high, bytes_max)
            if everything is not None:
                return everything
        found = queue.read(offset, max(count_max, SCANNED_UNITS_MIN if has_filter else 1))
        if found is None:
            return QueueRead(ReadStatus.SEGMENT_MISSING, queue.next_segment(offset), low, high)
        first, units, stops = found
        if accept is not None and queue.is_batch_queue:
            accept = partial(_may_hold, accept)
        return collect(
            *(self._log, first, units, stops, low, high, count_max, bytes_max, accept, accept_record, may_go_on)
        )

    # -------------------------------------------------------------------------------------------------------------- log

    def record_at(self, position: int) -> bytes | None:
        """Return the record at this position of the log; None if no intact record starts there."""
        return self._log.record_at(position)

    def message_at(self, position: int) -> StoredMessage | None:
        """Return the message whose record starts at this position, which a peer may have chosen; None if there is none.

        A body may contain bytes like those of a record: only a record that its queue leads to is a message.
        """
        record = self.record_at(position)
        try:
            message = None if record is None else decode_record(record)
        except RecordError:
            return None
        if message is None:
            return None
        unit = self.unit(message.topic, message.queue_id, message.queue_offset)
        is_known = unit is not None and unit[:2] == (position, message.record_bytes)
        return message if is_known or self._dispatcher.is_pending(position) else None

    @property
    def min_position(self) -> int:
        """The position of the oldest byte of the log."""
        return self._log.start

    @property
    def max_position(self) -> int:
        """The position behind the newest record of the log."""
        return self._log.end

    @property
    def flushed_position(self) -> int:
        """Records that end at or before this position of the log are on disk."""
        return self._log.flushed

    @property
    def oldest_ms(self) -> int | None:
        """Store time of the oldest record of the log; None if the log is empty."""
        return self._log.stored_at_ms(self._log.start)

    def newest_record(self) -> tuple[int, bytes] | None:
        """Return position and content of the newest record that a queue has or will have; None if there is none."""
        units = [unit[0] for queue in self._queues.by_key.values() if (unit := queue.newest_unit()) is not None]
        units += [record[2] for record in self._dispatcher.pending[-1:]]
        for position in sorted(units, reverse=True)[:2]:
            if (record := self._log.record_at(position)) is not None:
                return position, record
        return None

    def log_range(self, position: int, bytes_max: int) -> tuple[int, int, int] | None:
        """Return descriptor, offset in the file and size of a range of the log, within one file; None if it has none.

        The descriptor is for immediate use: it may be closed when other files are opened.

        Raises:
            FileWriteError, FileReadError: the file cannot be opened.
        """
        segment = self._log.find(position) if position >= 0 else None
        if segment is None:
            return None
        size = min(bytes_max, segment.stop - position, self._log.end - position)
        return (segment.descriptor, position - segment.start, size) if size > 0 else None

    # ----------------------------------------------------------------------------------------------------------- queues

    def topics(self) -> set[str]:
        """Return the topics that have, or had, messages in this store."""
        return {topic for (topic, _), queue in self._queues.by_key.items() if queue.next_offset}

    def queues(self) -> list[tuple[str, int]]:
        """Return the topic and id of every queue."""
        return list(self._queues.by_key)

    def queue_ids(self, topic: str) -> list[int]:
        """Return the queues of a topic that have, or had, messages in this store."""
        queues = self._queues.by_key.values()
        return sorted(queue.queue_id for queue in queues if queue.topic == topic and queue.next_offset)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the oldest message of a queue that the log has."""
        queue = self._queues.by_key.get((topic, queue_id))
        return 0 if queue is None else queue.min_offset(self._log.start)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset behind the newest visible message of a queue."""
        if self._dispatcher.pending:
            self._dispatcher.make_visible()
        queue = self._queues.by_key.get((topic, queue_id))
        return 0 if queue is None else queue.end

    def unit(self, topic: str, queue_id: int, offset: int) -> Unit | None:
        """Return log position, size and tag code of a message; None if it is not in the queue."""
        if not self.min_offset(topic, queue_id) <= offset < self.max_offset(topic, queue_id):
            return None
        return self._queues.by_key[topic, queue_id].unit(offset)

    def stored_at_ms(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the store time of a message; None if it is not in the queue."""
        unit = self.unit(topic, queue_id, offset)
        return None if unit is None else self._log.stored_at_ms(unit[0])

    def earliest_ms(self, topic: str, queue_id: int) -> int | None:
        """Return the store time of the oldest message of a queue; None if the queue is empty."""
        return self.stored_at_ms(topic, queue_id, self.min_offset(topic, queue_id))

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """Return the first offset stored at or after a time; with `upper`, the last stored at or before it.

        If there is no such message, it is the end of the queue, or its start.
        """
        high = self.max_offset(topic, queue_id)
        queue = self._queues.by_key.get((topic, queue_id))
        if queue is None:
            return 0
        low = queue.min_offset(self._log.start)

        def stored_ms(offset: int) -> int:
            return self._log.stored_at_ms(queue.unit(offset)[0]) or 0

        if upper:
            return max(bisect_right(range(high), timestamp_ms, lo=low, hi=high, key=stored_ms) - 1, low)
        return bisect_left(range(high), timestamp_ms, lo=low, hi=high, key=stored_ms)

    # ------------------------------------------------------------------------------------------------------------- keys

    def find_by_key(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> KeyMatches:
        """Return the positions of messages that may have a key and were stored in a time range, oldest first.

        The index has hashes of keys, and times in whole seconds: the caller compares the keys of the messages.
        """
        with suppress(StorageError):  # the next write to the store raises it
            self._dispatcher.write_all()
        if self._index is None:
            return KeyMatches([], 0, 0)
        with suppress(StorageError):  # as above
            self._dispatcher.catch_index_up()
        return self._in_log(self._index.find(topic, key, count_max, begin_ms, end_ms))

    def search_by_key(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int, may_wait: Callable[[], bool]
    ) -> Generator[None, None, KeyMatches]:
        """As `find_by_key`, in steps. Waits for the index process while `may_wait` is true."""
        while self._dispatcher.write_step():
            yield
        if self._index is None:
            return KeyMatches([], 0, 0)
        with suppress(StorageError):  # as in `find_by_key`
            yield from self._dispatcher.wait_for_index(may_wait)
        return self._in_log((yield from self._index.search(topic, key, count_max, begin_ms, end_ms)))

    def _in_log(self, found: KeyMatches) -> KeyMatches:
        return found._replace(positions=[at for at in found.positions if self._log.start <= at < self._log.end])

    @property
    def index_pid(self) -> int | None:
        """The process id of the index process; None if there is none."""
        process = self._index_writer.process
        return None if process is None else process.pid


def _may_hold(accept: Callable[[int], bool], code: int) -> bool:
    return not code or accept(code)
