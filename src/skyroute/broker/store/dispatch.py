"""Builds consume queues and key index from the log: RocketMQ's dispatch.

A record that was appended is pending first. Before a read, pending records become visible: their units join the queues
in memory. From time to time, or when many records wait, units and keys are written to files together. If the process
dies before that, recovery finds the records in the log; if the disk refuses, the next write tries again.
"""

from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Final, NamedTuple

from skyroute.broker.store.commit_log import CommitLog
from skyroute.broker.store.files.checkpoint import Checkpoint, OnDisk
from skyroute.broker.store.files.segment import Segment
from skyroute.broker.store.flush import Flush
from skyroute.broker.store.index.index_writer import IndexWriter
from skyroute.broker.store.index.keys import Key, collect_keys, find_value
from skyroute.broker.store.queues.queue_ledger import QueueLedger
from skyroute.broker.store.queues.topic_queue import TopicQueue
from skyroute.broker.store.settings import StoreSettings
from skyroute.files.errors import StorageError
from skyroute.message.flags import INNER_BATCH, TransactionState
from skyroute.message.properties import find_property
from skyroute.message.property_names import DELAY_LEVEL, TAGS
from skyroute.message.reserved_topics import SCHEDULE_TOPIC
from skyroute.message.tags import tag_code

TAGS_START: Final = f"{TAGS}\x01".encode()
NOT_IN_QUEUE: Final = int(TransactionState.PREPARED & TransactionState.ROLLED_BACK)
"""The flag bit of half messages and rolled-back messages, which get no unit in their queue."""
_BATCH_ENTRY: Final = int(TransactionState.ROLLED_BACK)
"""The flag of a pending record that stands for a batch: it has no unit and no keys of its own."""

BACKLOG_MAX: Final = 256
"""Maximum number of records whose units and keys are not in files."""


LONG_PROPERTIES_BYTES: Final = 256
"""Properties that count towards `PENDING_BYTES_MAX`."""
PENDING_BYTES_MAX: Final = 32 * 1024
"""Bytes of batches and long properties after which units and keys are written: every two bytes may be a key."""
KEYS_A_STEP: Final = 4_000
"""Keys of long batches added to the index in one step. A batch may have as many keys as fit its body."""

PendingRecord = tuple[TopicQueue, int, int, int, bytes, int, int]
"""A record's queue, queue offset, log position, size, properties, flag and store time."""


class PlacedBatch(NamedTuple):
    """A batch in the log, with the units and keys of its records."""

    queue: TopicQueue
    queue_offset: int
    positions: list[int]
    units: bytearray
    """Complete except for the positions."""
    log_end: int
    stored_at_ms: int
    keys: Sequence[Key] = ()
    """With positions relative to the start of the batch, if it is a long one."""
    properties: Sequence[bytes] = ()
    """Properties of the messages, if the keys are not collected yet."""
    may_have_keys: bool = False
    """Whether these properties may have keys."""


def due_ms(raw_properties: bytes, stored_at_ms: int, delays_ms: tuple[int, ...]) -> int | None:
    """Return the due time of a message of the schedule topic, which replaces its tag code; None without a level."""
    try:
        level = min(int(find_property(raw_properties, DELAY_LEVEL) or 0), len(delays_ms))
    except ValueError:
        return None
    return stored_at_ms + delays_ms[level - 1] if level > 0 else None


def unit_code(topic: str, raw_properties: bytes, stored_at_ms: int, delays_ms: tuple[int, ...]) -> int:
    """Return the code in a record's unit: the hash of its tag or, in the schedule topic, its due time."""
    code = 0
    if topic == SCHEDULE_TOPIC:
        code = due_ms(raw_properties, stored_at_ms, delays_ms) or 0
    return code or tag_code_in(raw_properties)


class Dispatcher:
    """Writes the units and keys of records. The only writer of queues and index; it notes their ends in the ledger."""

    def __init__(
        self,
        settings: StoreSettings,
        log: CommitLog,
        index_writer: IndexWriter,
        checkpoint: Checkpoint,
        ledger: QueueLedger,
    ) -> None:
        self._settings = settings
        self._log = log
        self._index_writer = index_writer
        self._checkpoint = checkpoint
        self._ledger = ledger
        self.pending: list[PendingRecord] = []
        """Records that readers do not see yet. The store adds appended records."""
        self._batches: dict[int, PlacedBatch] = {}
        """Batches among them, each pending as its last record, whose position is the key."""
        self._pending_bytes = 0
        """Bytes of pending batches and of long properties of other pending records."""
        self._keys_to_wait = 0
        """Number of keys, those of long batches, that may wait for later steps."""
        self._unwritten = 0
        """Number of visible records whose units and keys are not in files."""
        self._unwritten_queues: dict[TopicQueue, None] = {}
        self._newest: tuple[int, int, int] | None = None
        """Position, size and time of the newest unwritten record."""
        self._unflushed: dict[Segment, None] = {}
        """Queue segments with writes that may not be on disk."""
        self.confirmed: int | None = None
        """Readers see no records that end behind this position, because some replicas lack them; None: no limit."""
        self.has_gaps = False
        """Recovery has skipped units, so the checkpoint must not advance."""
        self.written_ms = 0
        """Store time of the newest record whose unit and keys are in files."""
        self.failure: StorageError | None = None
        """The error of the last write; None if it succeeded."""

    def __len__(self) -> int:
        """Return the number of records whose units and keys are not in files."""
        return len(self.pending) + self._unwritten

    # ------------------------------------------------------------------------------------------------------ new records

    def count_bytes(self, size: int) -> bool:
        """Count the bytes of an added batch or of long properties; return whether units and keys must be written."""
        self._pending_bytes += size
        return self._pending_bytes > PENDING_BYTES_MAX

    def add_batch(self, batch: PlacedBatch) -> None:
        """Add the records of a batch as one entry."""
        queue, offset, position = batch.queue, batch.queue_offset, batch.positions[-1]
        self._batches[position] = batch
        size = batch.log_end - position
        self.pending.append((queue, offset, position, size, b"", _BATCH_ENTRY, batch.stored_at_ms))

    def is_pending(self, position: int) -> bool:
        """Return whether a record that was appended alone starts here and is not visible yet."""
        at = bisect_left(self.pending, position, key=itemgetter(2))
        return at < len(self.pending) and self.pending[at][2] == position

    def make_visible(self) -> None:
        """Show pending records to readers: with `sync_flush`, those that are on disk, and none behind `confirmed`."""
        self._make_visible(self._visible_end)
        if len(self) > BACKLOG_MAX:
            self.try_write()

    @property
    def _visible_end(self) -> int | None:
        if self.confirmed is None:
            return self._log.flushed if self._settings.sync_flush else None
        return min(self.confirmed, self._log.flushed) if self._settings.sync_flush else self.confirmed

    def _make_visible(self, up_to: int | None) -> None:
        ready, self.pending = self.pending, []
        self._pending_bytes = 0
        if up_to is not None and ready and ready[-1][2] + ready[-1][3] > up_to:
            if ready[0][2] + ready[0][3] > up_to:  # usual while slaves lag: as many may wait as senders send meanwhile
                self.pending = ready
                return
            self.pending = [record for record in ready if record[2] + record[3] > up_to]
            del ready[len(ready) - len(self.pending) :]
        if not ready:
            return
        queues, keys, delays_ms = self._unwritten_queues, self._index_writer.collected, self._settings.delays_ms
        for queue, queue_offset, position, size, raw_properties, sys_flag, stored_at_ms in ready:
            topic = queue.topic
            if not sys_flag & NOT_IN_QUEUE:
                code = 0  # as `unit_code`, without a call: every message passes here
                if topic == SCHEDULE_TOPIC:
                    code = due_ms(raw_properties, stored_at_ms, delays_ms) or 0
                if not code and (tag := find_value(raw_properties, TAGS_START)):
                    code = _hash_of(tag)
                messages = queue.messages_in(raw_properties) if sys_flag & INNER_BATCH else 1
                queue.add(queue_offset, position, size, code, stored_at_ms, messages)
                queues[queue] = None
            elif position in self._batches:
                self._make_batch_visible(self._batches.pop(position), keys)
            if keys is not None:
                collect_keys(keys, topic, raw_properties, sys_flag, position, stored_at_ms)
        self._unwritten += len(ready)
        *_, (_, _, position, size, _, _, stored_at_ms) = ready
        self._newest = position, size, stored_at_ms

    def _make_batch_visible(self, batch: PlacedBatch, keys: list[Key] | None) -> None:
        batch.queue.add_all(batch.queue_offset, batch.positions, batch.units, batch.stored_at_ms)
        self._unwritten_queues[batch.queue] = None
        self._unwritten += len(batch.properties)
        if keys is not None:
            start, at_ms = batch.positions[0], batch.stored_at_ms
            if batch.may_have_keys:
                for position, raw_properties in zip(batch.positions, batch.properties, strict=True):
                    collect_keys(keys, batch.queue.topic, raw_properties, 0, position, at_ms)
            keys += [(hash_, start + position, at_ms) for hash_, position, _ in batch.keys]
            self._keys_to_wait += len(batch.keys)

    # --------------------------------------------------------------------------------------------------------- to files

    def write(self) -> None:
        """Make pending records visible, and write their units and keys to files: of long batches, some keys only.

        Raises:
            FileWriteError: some are left for the next call; `failure` has the error.
        """
        self._index_writer.count_backlogs(0)
        try:
            self.write_up_to(self._visible_end, in_steps=True)
        except StorageError as error:
            self.failure = error
            raise
        self.failure = None

    def try_write(self) -> None:
        """As `write`, without raising; `failure` has the error."""
        try:
            self.write()
        except StorageError as error:
            self.failure = error

    def write_all(self) -> None:
        """As `write`, with all keys."""
        self.write()
        while self._index_writer.has_keys:
            self.write()

    def write_step(self) -> bool:
        """As `try_write`; return whether keys are left for the next step."""
        self.try_write()
        return self._index_writer.has_keys and self.failure is None

    def write_backlog(self) -> None:
        """As `try_write`; after enough backlogs with keys, an index process takes over the keys."""
        backlogs = self._index_writer.backlogs
        self.try_write()
        backlogs += self._index_writer.wrote_keys
        if self._index_writer.count_backlogs(backlogs) and self.failure is None and self._newest is None:
            self._index_writer.start_process(self._checkpoint.last_dispatched)

    def write_up_to(self, position: int | None, *, in_steps: bool = False) -> None:
        """Write the units and keys of records before a position of the log; of all records if None.

        With `in_steps`, the keys of long batches are added to the index by this and the next calls.

        Raises:
            FileWriteError: some are left for the next call.
        """
        self._make_visible(position)
        for queue in list(self._unwritten_queues):
            self._unflushed.update(dict.fromkeys(queue.write()))
            self._ledger.note(queue)
            del self._unwritten_queues[queue]
        if self._newest is not None:
            at, size, stored_at_ms = self._newest
            self._unwritten = 0
            self._keys_to_wait = max(self._keys_to_wait - KEYS_A_STEP, 0) if in_steps else 0
            at, size = self._index_writer.write(at, size, self._keys_to_wait)
            if self._index_writer.has_keys:
                return
            self.written_ms = stored_at_ms
            self._newest = None
            if not self.has_gaps:
                self._checkpoint.note_dispatched(at, size)

    def add_unflushed_to(self, flush: Flush) -> None:
        """Add the files of queues, ledger and index that may not be on disk, and how far they have come."""
        index_files = self._index_writer.unflushed_files()
        for segment in self._unflushed:
            # A new file's own name, and those of the queue, the topic, and the folder of all queues.
            flush.add_path(segment.path, new_names=4 if segment.is_new else 0)
        for file in index_files:
            flush.add(file.descriptor, file.path)
            if file.is_new:
                flush.add_folder(file.path.parent)
        # From here on new writes are for the next flush.
        if (ledger := self._ledger.begin_flush()) is not None:
            flush.add(ledger, self._ledger.path)
            if self._ledger.is_new:
                flush.add_folder(self._ledger.folder)
                self._ledger.is_new = False
        for segment in self._unflushed:
            segment.note_flushed()
        self._unflushed = {}
        for file in index_files:
            file.note_flushed()
        on_disk, index_ms = self._index_writer.reached(self._checkpoint.last_dispatched)
        flush.set_reached(self.written_ms, index_ms, None if on_disk is None else OnDisk(*on_disk))

    # -------------------------------------------------------------------------------------------------------- key index

    def catch_index_up(self) -> None:
        """Wait until the index has the keys of all written records.

        Raises:
            FileWriteError: some keys are missing.
        """
        newest = self._index_writer.catch_up(None if self._newest is None else self._newest[0] + self._newest[1])
        if newest is not None:
            self._newest = newest

    def wait_for_index(self, may_wait: Callable[[], bool]) -> Generator[None, None, None]:
        """As `catch_index_up`, in steps; waits for the index process while `may_wait` is true.

        Raises:
            FileWriteError: some keys are missing.
        """
        writer, process = self._index_writer, self._index_writer.process
        end = 0 if process is None else process.requested
        while process is not None and process is writer.process and process.progress.end < end and may_wait():
            if not process.update():
                self.catch_index_up()
            yield
        writer.refresh()

    def end_index_process(self) -> None:
        """End the index process, once it has the keys of all written records.

        Raises:
            FileWriteError: some keys are missing.
        """
        self.catch_index_up()
        reached = self._index_writer.end_process()
        if reached is not None:
            self._checkpoint.note_dispatched(*reached)

    # ----------------------------------------------------------------------------------------------------- for recovery

    def add_unit(self, record: PendingRecord) -> None:
        """Add a record's unit to its queue, without its keys."""
        queue, offset, position, size, raw_properties, sys_flag, stored_at_ms = record
        code = unit_code(queue.topic, raw_properties, stored_at_ms, self._settings.delays_ms)
        messages = queue.messages_in(raw_properties) if sys_flag & INNER_BATCH else 1
        queue.add(offset, position, size, code, stored_at_ms, messages)
        self._unwritten_queues[queue] = None

    def add_keys(self, record: PendingRecord) -> None:
        """Add a record's keys behind those of all pending records, without its unit."""
        self._make_visible(None)
        queue, _, position, size, raw_properties, sys_flag, stored_at_ms = record
        keys = self._index_writer.collected
        if keys is not None:
            collect_keys(keys, queue.topic, raw_properties, sys_flag, position, stored_at_ms)
        self._newest = position, size, stored_at_ms

    def add_queue(self, queue: TopicQueue) -> None:
        """Include a queue in the next write."""
        self._unwritten_queues[queue] = None

    def note_gap(self) -> None:
        """Stop the checkpoint: a record's keys were added, and its unit waits for the next record of its queue."""
        self.has_gaps = True

    def end_recovery(self, log_end: int) -> None:
        """Let the checkpoint advance again: everything before a position is written."""
        self.has_gaps = False
        self._checkpoint.note_dispatched(log_end, 0)

    def note_unsynced(self, queues: Iterable[TopicQueue], position: int, index_file: int) -> None:
        """Include in the next flush the files that an earlier process may not have synced, and their names.

        These are the queue segments with records from a position of the log on, and the index files from this name on.
        """
        for queue in queues:
            for segment in queue.segments_behind(position):
                segment.is_new = True
                self._unflushed[segment] = None
        self._index_writer.note_unsynced(index_file)

    # ---------------------------------------------------------------------------------------------------------- removal

    def drop_all(self) -> None:
        """Drop everything that is not in files."""
        self.pending, self._batches, self._unwritten_queues, self._newest = [], {}, {}, None
        self._index_writer.drop_keys()

    def drop_queue(self, queue: TopicQueue) -> None:
        """Drop the unwritten units of a queue that is being removed."""
        self.pending = [record for record in self.pending if record[0] is not queue]
        self._batches = {at: batch for at, batch in self._batches.items() if batch.queue is not queue}
        self._unwritten_queues.pop(queue, None)
        for segment in queue.segments:
            self._unflushed.pop(segment, None)
        self._ledger.forget(queue)


def tag_code_in(raw_properties: bytes) -> int:
    """Return the tag code of a message by its properties; 0 without a tag."""
    tag = find_value(raw_properties, TAGS_START)
    return _hash_of(tag) if tag else 0


@lru_cache(maxsize=4096)
def _hash_of(tag: bytes) -> int:
    """Return the hash of a tag."""
    return tag_code(tag.decode("utf-8", "replace"))
