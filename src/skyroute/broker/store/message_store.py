"""The store as the broker sees it: append, read, search, flush, expire.

One writer, one thread, no clock. Only `Flush.run` may run elsewhere, because a disk can take its time.
"""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import count, repeat
from operator import sub
from pathlib import Path
from typing import Final, Self

import msgspec

from skyroute.broker.store.commit_log import CommitLog
from skyroute.broker.store.derive import BACKLOG_MAX, WITHOUT_PLACE, Derived
from skyroute.broker.store.draft import Appended, AppendedBatch, Draft, appended_at
from skyroute.broker.store.errors import StoreClosedError
from skyroute.broker.store.files.checkpoint import Checkpoint, OnDisk
from skyroute.broker.store.files.folder_lock import lock_folder
from skyroute.broker.store.files.segment import OpenSegments, Segment
from skyroute.broker.store.flush import Flush
from skyroute.broker.store.index.index_process import processors
from skyroute.broker.store.index.key_index import KeyIndex, KeyMatches
from skyroute.broker.store.queues.batch_queue import BATCH_MESSAGES_MAX, BatchQueue
from skyroute.broker.store.queues.consume_queue import ConsumeQueue
from skyroute.broker.store.queues.queue_ledger import LEDGER_NAME, QueueLedger
from skyroute.broker.store.queues.queue_read import QueueRead, ReadStatus, collect, collect_all
from skyroute.broker.store.queues.topic_queue import TopicQueue, Unit
from skyroute.broker.store.recovery.damage import DamageFile, DamageReport
from skyroute.broker.store.recovery.queue_check import QueueState
from skyroute.broker.store.recovery.recover import LeftBehind, Recovered, recover
from skyroute.broker.store.retention import Expired, remove_expired
from skyroute.broker.store.settings import StoreSettings
from skyroute.files.disk import Disk
from skyroute.files.errors import DiskFullError, StorageError
from skyroute.message.batch import RawItem
from skyroute.message.errors import InvalidNameError, RecordError
from skyroute.message.flags import INNER_BATCH, WRAPPED_BATCH
from skyroute.message.names import check_file_name
from skyroute.message.property_names import INNER_BASE, INNER_COUNT

SCANNED_UNITS_MIN: Final = 800
"""So many messages are looked at for those a reader wants, before an empty answer says how far the search came."""


QUEUES_A_STEP: Final = 10_000
"""Queues scanned in one step for those of a topic that is removed."""


class MessageStore:
    """All messages of one broker, in one folder. Made by `open`."""

    def __init__(
        self, folder: Path, settings: StoreSettings, disk: Disk, keeps_batches: Callable[[str], bool] | None
    ) -> None:
        self.folder = folder
        self.settings = settings
        self._disk = disk
        self._opened = OpenSegments(settings.open_segments_max)
        self._log = CommitLog(folder / "commitlog", settings.log_segment_bytes, disk, self._opened)
        self._queues: dict[tuple[str, int], TopicQueue] = {}
        self._keeps_batches = keeps_batches
        self._last_stored_ms = 0
        self._refusal: StorageError | None = None
        self._disk_is_full = False
        self._closing = ExitStack()
        with ExitStack() as opened:
            opened.callback(os.close, lock_folder(folder, disk))
            self._checkpoint = Checkpoint(folder / "checkpoint", disk)
            opened.callback(self._checkpoint.close)
            self._closing = opened.pop_all()
        self._index: KeyIndex | None = None
        if settings.index_enabled:
            self._index = KeyIndex(folder / "index", settings.index_slots, settings.index_entries, disk)
            self._closing.callback(self._index.close)
        self._closing.callback(self._close_segments)
        ledger = QueueLedger(folder / LEDGER_NAME, disk)
        self._closing.callback(ledger.close)
        self._derived = Derived(folder, settings, self._log, self._index, self._checkpoint, ledger)
        self._damage_file = DamageFile(folder, disk)
        self._may_have_process = settings.index_process and settings.index_enabled and processors() > 1
        self._backlogs = 0
        """How many there were since somebody last had them written, without waiting for one."""
        self._synced_segment: Segment | None = None
        self.recovered: Recovered | None = None
        self.damage = DamageReport()
        """Known damage of the log."""

    def __repr__(self) -> str:
        return f"<MessageStore {self.folder} {self._log.start}..{self._log.end} queues={len(self._queues)}>"

    # ---------------------------------------------------------------------------------------------- opening, closing

    @classmethod
    def open(
        cls,
        folder: Path,
        settings: StoreSettings | None = None,
        *,
        now_ms: int,
        disk: Disk | None = None,
        keeps_batches: Callable[[str], bool] | None = None,
    ) -> Self:
        """Open a folder, create what is missing, and mend what a crash has left.

        `keeps_batches` says of a topic that has no queue yet whether its queues shall keep batches whole.

        Raises:
            StoreLockedError: somebody else has it open.
            StoreDamagedError: its files are of other sizes than the settings say.
            FileWriteError: the disk refuses.
        """
        store = cls(folder, settings or StoreSettings(), disk or Disk(), keeps_batches)
        try:
            store._recover(now_ms)
        except BaseException:
            store._closing.close()
            raise
        return store

    def _recover(self, now_ms: int) -> None:
        boot_id = self._disk.boot_id()
        left_behind = self._read_abort()
        self._log.load()
        self._load_queues()
        left = _what_was_left(left_behind, boot_id)
        on_disk = self._checkpoint.on_disk if left is LeftBehind.MACHINE_STOPPED else None
        if self._index is not None:
            self._index.load(on_disk.index_file or None if on_disk is not None else None)
        is_ours = left in (LeftBehind.PROCESS_DIED, LeftBehind.MACHINE_STOPPED) or (
            left is LeftBehind.CLOSED and self._checkpoint.closed_end is not None
        )
        state = QueueState(
            self._queues.values(),
            self._derived.ledger.read() if is_ours else None,
            is_exact=left in (LeftBehind.CLOSED, LeftBehind.PROCESS_DIED),
            keep_kind=self._make_batch_folder,
        )
        known_damage = self._damage_file.load()
        self.recovered = recover(
            *(self._log, state, self._find_or_create, self._index, self._derived, self._checkpoint, self._disk),
            left=left,
            now_ms=now_ms,
            begin_rebuild=lambda position: self._begin_rebuild(position, boot_id),
        )
        span = range(self._log.start, self._log.end)
        self._know_damage(known_damage.merge(self.recovered.damaged, self.recovered.cuts, span))
        if self.damage != known_damage:
            self._damage_file.save(self.damage)
        # A deletion behind the end is of another log: a ledger of another folder, or a log restored from a backup.
        deleted = {topic: at for topic, at in state.deleted.items() if self._log.start < at <= self._log.end}
        try:
            self._derived.ledger.begin([queue for queue in self._queues.values() if queue.written_end], deleted)
        except DiskFullError:
            self._derived.ledger.give_up()
        self._last_stored_ms = max(self._derived.written_ms, self._checkpoint.log_ms)
        if left_behind is not None:
            self.flush()
        self._write_abort(boot_id)
        self._checkpoint.forget_closed()

    def _know_damage(self, report: DamageReport) -> None:
        self.damage = report
        self._log.damaged.show((each.position, each.end) for each in report.ranges)

    def _begin_rebuild(self, position: int, boot_id: str) -> None:
        """Mark the rebuild as begun, so that the next start continues it if this one dies."""
        self._checkpoint.note_rebuild(position)
        self._write_abort(boot_id)

    def _write_abort(self, boot_id: str) -> None:
        # Java writes the process id only and reads nothing; the second line is for our own recovery.
        abort = self._disk.open(self.folder / "abort", 0)
        try:
            self._disk.cut(abort, 0, 0)
            self._disk.write(abort, f"{os.getpid()}\n{boot_id or '-'}".encode(), 0)
        finally:
            os.close(abort)

    def _read_abort(self) -> list[str] | None:
        try:
            return (self.folder / "abort").read_text("ascii", "replace").split()
        except FileNotFoundError:
            return None

    def _load_queues(self) -> None:
        for root in (self._batch_root, self._queue_root):
            for topic in sorted(root.iterdir()) if root.is_dir() else ():
                for queue in sorted(topic.iterdir()) if topic.is_dir() else ():
                    if queue.name.isdecimal():
                        self._find_or_create(topic.name, int(queue.name)).load()

    @property
    def _queue_root(self) -> Path:
        return self.folder / "consumequeue"

    @property
    def _batch_root(self) -> Path:
        return self.folder / "batchconsumequeue"

    def _find_or_create(self, topic: str, queue_id: int) -> TopicQueue:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            if queue_id < 0:
                raise InvalidNameError(f"no queue has a negative number: {topic[:80]!r} {queue_id}")
            if self._is_for_batches(topic):
                # Recovery has to know, even if the process dies before there is a file.
                self._make_batch_folder(topic)
                queue = self._create(BatchQueue, self._batch_root, topic, queue_id, self.settings.batch_segment_units)
            else:
                queue = self._create(ConsumeQueue, self._queue_root, topic, queue_id, self.settings.queue_segment_units)
            self._queues[topic, queue_id] = queue
        return queue

    def _make_batch_folder(self, topic: str) -> None:
        self._disk.make_folder(_topic_folder(self._batch_root, topic))

    def _begin_queue(self, topic: str, queue_id: int) -> TopicQueue:
        """Return a new queue with its first file, which can take a millisecond: a backlog may have 256 new queues."""
        queue = self._find_or_create(topic, queue_id)
        queue.begin()
        return queue

    def _create(self, kind: type[TopicQueue], root: Path, topic: str, queue_id: int, units: int) -> TopicQueue:
        return kind(_topic_folder(root, topic) / str(queue_id), topic, queue_id, units, self._disk, self._opened)

    def _is_for_batches(self, topic: str) -> bool:
        # Nobody, nor Apache's broker, opens a folder where a topic has queues of both kinds: the first one decides.
        if _topic_folder(self._batch_root, topic).exists():
            return True
        if _topic_folder(self._queue_root, topic).exists():
            return False
        return self._keeps_batches is not None and self._keeps_batches(topic)

    def close(self) -> None:
        """Put everything on the disk and close all files.

        Raises:
            FileWriteError: all is closed, but the next opening will have to look what is there.
        """
        try:
            if not isinstance(self._refusal, StoreClosedError):
                self.flush(thorough=False)
                self.derive()
                self._derived.end_index_process()
                self.flush()
                self._checkpoint.note_closed(self._log.end)
                self._checkpoint.save()
                self._disk.remove(self.folder / "abort")
        finally:
            self._refusal = StoreClosedError(f"{self.folder} is closed")
            self._closing.close()

    def kill(self) -> None:
        """Let go of all files as a process does that dies: nothing more is written. To try what happens then."""
        self._refusal = StoreClosedError(f"{self.folder} is closed")
        self._closing.close()

    def _close_segments(self) -> None:
        self._log.close()
        for queue in self._queues.values():
            queue.close()

    # ------------------------------------------------------------------------------------------------------ appending

    def append(self, draft: Draft, now_ms: int) -> Appended:
        """Store one message.

        Raises:
            DiskFullError, FileWriteError: the disk refuses; nothing is stored.
            StoreClosedError: the store was closed, or a flush failed before.
            RecordTooLargeError: no segment is so large.
            RecordError: something does not fit a record.
        """
        if self._refusal is not None or self._disk_is_full:
            self._refuse()
        queue = self._queues.get((draft.topic, draft.queue_id)) or self._begin_queue(draft.topic, draft.queue_id)
        body, raw_properties = draft.body, draft.raw_properties
        if raw_properties[-1:] == b"\0":
            raw_properties += b"\x02"  # a last record that ends with zero would be taken for a torn one
        log = self._log
        position = log.end
        has_offset = not draft.sys_flag & WITHOUT_PLACE
        offset = queue.next_offset if has_offset else 0
        record = queue.encode(draft, body, raw_properties, draft.flag, offset, position, now_ms)
        size = len(record)
        if position + size > log.limit:
            position = log.place(size)
            record = queue.encode(draft, body, raw_properties, draft.flag, offset, position, now_ms)
        log.append(position, record)
        if has_offset:
            queue.next_offset = offset + (queue.messages_in(raw_properties) if draft.sys_flag & INNER_BATCH else 1)
        self._last_stored_ms = now_ms
        noted = self._derived.noted
        noted.append((queue, offset, position, size, raw_properties, draft.sys_flag, now_ms))
        if len(noted) > BACKLOG_MAX:
            self._derive_backlog()
        return appended_at(position, offset, size, now_ms)

    def append_inner_batch(self, draft: Draft, messages: int, now_ms: int) -> Appended:
        """Store a batch as one record, whose body is the draft's. Its messages have consecutive offsets.

        Raises:
            As `append`; also RecordError: the topic does not keep batches whole, or it has too many messages.
        """
        if self._refusal is not None or self._disk_is_full:
            self._refuse()
        queue = self._queues.get((draft.topic, draft.queue_id)) or self._begin_queue(draft.topic, draft.queue_id)
        if not isinstance(queue, BatchQueue):
            raise RecordError(f"{draft.topic} does not keep batches whole")
        if not 1 <= messages <= BATCH_MESSAGES_MAX:
            raise RecordError(f"{messages} messages do not fit a batch")
        raw_properties = draft.raw_properties
        if raw_properties and not raw_properties.endswith(b"\x02"):
            raw_properties += b"\x02"
        raw_properties += f"{INNER_COUNT}\x01{messages}\x02{INNER_BASE}\x01{queue.next_offset}\x02".encode()
        wrapped = msgspec.structs.replace(draft, raw_properties=raw_properties, sys_flag=draft.sys_flag | WRAPPED_BATCH)
        return self.append(wrapped, now_ms)

    def append_batch(self, draft: Draft, items: Sequence[RawItem], now_ms: int) -> AppendedBatch:
        """Store messages that stay together, in one file and with consecutive offsets; all else is the draft's.

        Raises:
            As `append`; also RecordError: they are parts of a transaction, which takes messages one by one.
        """
        if self._refusal is not None or self._disk_is_full:
            self._refuse()
        if draft.sys_flag & WITHOUT_PLACE:
            raise RecordError("no batch takes part in a transaction")
        queue = self._queues.get((draft.topic, draft.queue_id)) or self._begin_queue(draft.topic, draft.queue_id)
        properties = [item[1] for item in items]
        if b"\0" in b"".join(properties) and any(raw.endswith(b"\0") for raw in properties):  # see `append`
            properties = [raw + b"\x02" for raw in properties]
            items = [(body, raw, flag) for (body, _, flag), raw in zip(items, properties, strict=True)]
        log, offset = self._log, queue.next_offset
        pieces, positions = queue.encode_all(draft, items, offset, log.end, now_ms)
        records = b"".join(pieces)
        if log.end + len(records) > log.limit:
            pieces, positions = queue.encode_all(draft, items, offset, log.place(len(records)), now_ms)
            records = b"".join(pieces)
        log.append(positions[0], records)
        queue.next_offset = offset + len(items)
        self._last_stored_ms = now_ms
        sizes = map(sub, [*positions[1:], log.end], positions)
        same = repeat(queue), repeat(draft.sys_flag), repeat(now_ms)
        self._derived.noted += zip(same[0], count(offset), positions, sizes, properties, *same[1:], strict=False)
        if len(self._derived) > BACKLOG_MAX:
            self._derive_backlog()
        return AppendedBatch(positions, offset, log.end)

    def _refuse(self) -> None:
        """Raise why nothing can be stored, unless that has passed."""
        if isinstance(self._refusal, StoreClosedError):
            raise self._refusal
        if self._disk_is_full:
            raise DiskFullError(f"the disk of {self.folder} is full; make room, or let messages expire earlier")
        # What follows from earlier records could not be written. Until it can, there shall be no more of them.
        self.derive()

    def derive(self) -> None:
        """Write what follows from records to files. Nobody has to ask for it: a flush does it, and a long backlog.

        Raises:
            FileWriteError: it waits; nothing is stored until it could be written.
        """
        self._backlogs = 0
        try:
            self._derived.write(self._visible_end)
        except StorageError as error:
            if self._refusal is None:
                self._refusal = error
            raise
        if not isinstance(self._refusal, StoreClosedError):
            self._refusal = None

    def _derive_backlog(self) -> None:
        backlogs = self._backlogs + 1
        self._derive_quietly()
        self._backlogs = backlogs
        if backlogs >= self.settings.index_process_after and self._may_have_process and self._refusal is None:
            self._may_have_process = False
            process = self._derived.begin_index_process()
            if process is not None:
                self._closing.callback(process.kill)

    def _derive_quietly(self) -> None:
        # What could not be written is kept in mind, and the next one who wants to store something is told.
        with suppress(StorageError):
            self.derive()

    def _settle(self) -> None:
        self._derived.settle(self._visible_end)
        if len(self._derived) > BACKLOG_MAX:
            self._derive_quietly()

    @property
    def _visible_end(self) -> int | None:
        return self._log.flushed if self.settings.sync_flush else None

    @property
    def index_pid(self) -> int | None:
        """The number of the process that writes the key index; None where we do it ourselves."""
        process = self._derived.index_process
        return None if process is None else process.pid

    # ------------------------------------------------------------------------------------------------------- flushing

    @property
    def flushed_position(self) -> int:
        """Every record that ends at or before this position of the log is on the disk."""
        return self._log.flushed

    def flush(self, *, thorough: bool = True) -> None:
        """Put everything that was appended so far on the disk; with `thorough` also what follows from it.

        Raises:
            FileWriteError: nobody knows what is there. The store takes no more messages until it is
                opened again, since a disk that forgets once says nothing the next time.
            StoreClosedError: that has happened before, or the store was closed.
        """
        if isinstance(self._refusal, StoreClosedError):
            raise self._refusal
        flush = self.begin_flush(thorough=thorough)
        try:
            flush.run()
            self.end_flush(flush)
        except StorageError as error:
            self.fail_flush(error)
            raise

    def begin_flush(self, *, thorough: bool = True) -> Flush:
        """Return what has to be done for it; whoever runs it then calls `end_flush`, or `fail_flush`.

        Meanwhile messages may be appended, but no second flush begun.
        """
        if thorough:
            self._derive_quietly()
        flush = Flush(self._disk, self._log.end, self._last_stored_ms)
        try:
            self._collect_unflushed(flush, thorough=thorough)
        except BaseException:
            flush.cancel()
            raise
        return flush

    def _collect_unflushed(self, flush: Flush, *, thorough: bool) -> None:
        unflushed = self._log.unflushed()
        for segment in unflushed[:-1]:
            flush.add_path(segment.path)
        for newest in unflushed[-1:]:
            flush.add(newest.descriptor)
            if newest is not self._synced_segment:
                self._synced_segment = newest
                flush.add_folder(self.folder / "commitlog")
        if thorough:
            self._collect_derived(flush)

    def _collect_derived(self, flush: Flush) -> None:
        process = self._derived.index_process
        if process is not None:
            process.hurry()
        self._derived.look_at_index()
        files = [] if self._index is None else [file for file in self._index.files if file.is_dirty]
        for segment in self._derived.dirty:
            flush.add_path(segment.path)
            if segment.is_new:
                for folder in list(segment.path.parents)[:4]:  # the queue, the topic, all queues, the store
                    flush.add_folder(folder)
        for file in files:
            flush.add(file.descriptor)
            if file.is_new:
                flush.add_folder(file.path.parent)
        # From here on nothing can fail, and what is written from now on is for the next flush.
        if (ledger := self._derived.ledger.begin_flush()) is not None:
            flush.add(ledger)
        for segment in self._derived.dirty:
            segment.is_new = False
        self._derived.dirty = {}
        for file in files:
            file.is_dirty = file.is_new = False
        flush.derived_ms = self._derived.written_ms
        if process is not None:
            *on_disk, flush.index_ms = process.progress
            flush.on_disk = OnDisk(*on_disk)
        elif self._checkpoint.last_derived is not None:
            flush.index_ms = 0 if self._index is None else self._index.end_ms
            flush.on_disk = OnDisk(
                *self._checkpoint.last_derived, *((0, 0) if self._index is None else self._index.extent)
            )

    def end_flush(self, flush: Flush) -> None:
        """Take note that a flush is done."""
        self._log.flushed = max(self._log.flushed, flush.log_end)
        if flush.derived_ms is not None:
            self._checkpoint.log_ms = flush.log_end_ms
            self._checkpoint.queues_ms = flush.derived_ms or self._checkpoint.queues_ms
            self._checkpoint.index_ms = flush.index_ms or self._checkpoint.index_ms
            if flush.on_disk is not None:
                self._checkpoint.note_on_disk(flush.on_disk)
            self._checkpoint.save()

    def fail_flush(self, cause: StorageError) -> None:
        """Take note that a flush failed: nothing more is stored, since nobody knows what is on the disk."""
        self._refusal = StoreClosedError(f"{self.folder} could not be flushed ({cause}); restart the broker")

    # -------------------------------------------------------------------------------------------------------- reading

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
        """Return records from an offset on: at most so many messages, and so many bytes, but one record at least.

        Of a batch that was stored as one record, the whole record is returned, whichever of its messages is asked for.

        `accept` is asked by the code of a tag, then `accept_record` by the record itself, as long as `may_go_on`.
        """
        if self._derived.noted:
            self._settle()
        queue = self._queues.get((topic, queue_id))
        if queue is None or queue.end == 0:
            return QueueRead(ReadStatus.QUEUE_EMPTY, 0, 0, 0)
        low, high = queue.min_offset(self._log.start), queue.end
        if offset < low:
            return QueueRead(ReadStatus.TOO_SMALL, low, low, high)
        if offset >= high:
            status = ReadStatus.AT_END if offset == high else ReadStatus.BEYOND_END
            return QueueRead(status, high, low, high)
        # With nothing to choose, no more than what is wanted is looked at.
        chooses = accept is not None or accept_record is not None
        takes_all = not chooses and not self._log.damaged
        if takes_all and isinstance(queue, ConsumeQueue) and (raw_units := queue.units(offset, max(count_max, 1))):
            everything = collect_all(self._log, offset, raw_units, low, high, bytes_max)
            if everything is not None:
                return everything
        found = queue.read(offset, max(count_max, SCANNED_UNITS_MIN if chooses else 1))
        if found is None:
            return QueueRead(ReadStatus.SEGMENT_MISSING, queue.next_segment(offset), low, high)
        first, units, stops = found
        return collect(
            *(self._log, first, units, stops, low, high, count_max, bytes_max, accept, accept_record, may_go_on)
        )

    def record_at(self, position: int) -> bytes | None:
        """Return the record that starts at this position of the log, or None where none does."""
        return self._log.record_at(position)

    @property
    def min_position(self) -> int:
        """The position of the oldest byte of the log."""
        return self._log.start

    @property
    def max_position(self) -> int:
        """The position behind the newest record of the log."""
        return self._log.end

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest record of the log was stored; None where there is none."""
        return self._log.stored_at_ms(self._log.start)

    def topics(self) -> set[str]:
        """Return the topics that have, or had, messages here, known to the broker or not."""
        return {topic for (topic, _), queue in self._queues.items() if queue.next_offset}

    def queue_ids(self, topic: str) -> list[int]:
        """Return the queues of a topic that have, or had, messages here."""
        return sorted(queue.queue_id for queue in self._queues.values() if queue.topic == topic and queue.next_offset)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the oldest message of a queue that is still there."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.min_offset(self._log.start)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset that the next message of a queue that readers are shown will have."""
        if self._derived.noted:
            self._settle()
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.end

    def unit(self, topic: str, queue_id: int, offset: int) -> Unit | None:
        """Return position, size and tag code of the record of a message of a queue; None where there is none."""
        if not self.min_offset(topic, queue_id) <= offset < self.max_offset(topic, queue_id):
            return None
        return self._queues[topic, queue_id].unit(offset)

    def stored_at_ms(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return when a message of a queue was stored; None where it is not there."""
        unit = self.unit(topic, queue_id, offset)
        return None if unit is None else self._log.stored_at_ms(unit[0])

    def earliest_ms(self, topic: str, queue_id: int) -> int | None:
        """Return when the oldest message of a queue was stored; None where there is none."""
        return self.stored_at_ms(topic, queue_id, self.min_offset(topic, queue_id))

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """Return the first offset stored at this time or later, or with `upper` the last stored at it or earlier.

        Where there is none, it is the queue's end, or its start.
        """
        high = self.max_offset(topic, queue_id)
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return 0
        low = queue.min_offset(self._log.start)

        def stored_ms(offset: int) -> int:
            return self._log.stored_at_ms(queue.unit(offset)[0]) or 0

        if upper:
            return max(bisect_right(range(high), timestamp_ms, lo=low, hi=high, key=stored_ms) - 1, low)
        return bisect_left(range(high), timestamp_ms, lo=low, hi=high, key=stored_ms)

    def find_by_key(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> KeyMatches:
        """Return where messages lie that may have this key and were stored in this time, oldest first.

        The index knows hashes only; whoever asked compares keys. Times in it are whole seconds.
        """
        self._derive_quietly()
        if self._index is None:
            return KeyMatches([], 0, 0)
        with suppress(StorageError):  # as above: it is kept in mind
            self._derived.catch_index_up()
        return self._still_there(self._index.find(topic, key, count_max, begin_ms, end_ms))

    def search_by_key(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int, may_wait: Callable[[], bool]
    ) -> Generator[None, None, KeyMatches]:
        """As `find_by_key`, in steps. Waits for the index process while `may_wait` is true."""
        self._derive_quietly()
        if self._index is None:
            return KeyMatches([], 0, 0)
        with suppress(StorageError):  # as above
            yield from self._derived.wait_for_index(may_wait)
        return self._still_there((yield from self._index.search(topic, key, count_max, begin_ms, end_ms)))

    def _still_there(self, found: KeyMatches) -> KeyMatches:
        return found._replace(positions=[at for at in found.positions if self._log.start <= at < self._log.end])

    # ------------------------------------------------------------------------------------------------------- expiring

    def disk_used(self) -> float:
        """Return how full the disk is, from 0 to 1."""
        return self._disk.used_ratio(self.folder)

    def delete_expired(self, now_ms: int, *, is_due: bool, disk_used: float) -> Expired:
        """Remove what is too old or has no room, and decide whether there is room to store more.

        `is_due` says that the hour of the day has come.

        Raises:
            FileWriteError: the disk refuses.
        """
        self._disk_is_full = disk_used > self.settings.disk_used_refuse
        self._derive_quietly()
        self._derived.look_at_index()
        expired = remove_expired(
            *(self._log, self._queues.values(), self._index, self.settings),
            now_ms=now_ms,
            is_due=is_due,
            disk_used=disk_used,
        )
        if expired.queue_segments:
            for queue in self._queues.values():
                self._derived.ledger.note(queue)
        return expired

    def delete_topic(self, topic: str) -> None:
        """Remove the queues of a topic. Its records stay in the log until they expire, but in no queue.

        Raises:
            InvalidNameError: no topic has this name; nothing is touched.
            FileWriteError: the disk refuses; some queues may be gone.
        """
        for _ in self.remove_topic(topic):
            pass

    def remove_topic(self, topic: str) -> Iterator[None]:
        """As `delete_topic`, in steps: messages of other topics may be stored and read in between.

        Raises:
            InvalidNameError: no topic has this name; nothing is touched.
            FileWriteError: the disk refuses; some queues may be gone.
        """
        folders = [_topic_folder(root, topic) for root in (self._queue_root, self._batch_root)]
        self._derive_quietly()
        self._derived.ledger.note_deleted(topic, self._log.end)
        keys = list(self._queues)
        for start in range(0, len(keys), QUEUES_A_STEP):
            for key in [key for key in keys[start : start + QUEUES_A_STEP] if key[0] == topic]:
                queue = self._queues.get(key)
                if queue is None:
                    continue  # removed by another request in an earlier step
                self._derived.forget(queue)
                queue.remove()
                self._derived.ledger.forget(queue)
                del self._queues[key]
                with suppress(OSError):
                    queue.folder.rmdir()
                yield  # removing a file can take milliseconds
            yield
        for folder in folders:
            with suppress(OSError):
                folder.rmdir()


def _what_was_left(abort: list[str] | None, boot_id: str) -> LeftBehind:
    if abort is None:
        return LeftBehind.CLOSED
    match abort[1:]:
        case [boot] if boot_id and boot == boot_id:
            return LeftBehind.PROCESS_DIED
        case [_]:
            return LeftBehind.MACHINE_STOPPED
    return LeftBehind.UNKNOWN


def _topic_folder(root: Path, topic: str) -> Path:
    """Return the folder of a topic's queues. Every path with a topic's name in it is made here.

    Raises:
        InvalidNameError: the name cannot be a folder's.
    """
    check_file_name(topic)
    return root / topic
