"""The store as the broker sees it: opening and closing, bytes of another broker's log, flushes, expiry.

One writer, one thread, no clock. Only `Flush.run` may run in another thread, because a disk can be slow.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from skyroute.broker.store.commit_log import CommitLog
from skyroute.broker.store.dispatch import Dispatcher
from skyroute.broker.store.errors import ForeignLogError, StoreClosedError
from skyroute.broker.store.files.abort_file import AbortFile, Shutdown
from skyroute.broker.store.files.checkpoint import Checkpoint
from skyroute.broker.store.files.folder_lock import lock_folder
from skyroute.broker.store.files.segment import OpenSegments
from skyroute.broker.store.flush import Flush
from skyroute.broker.store.index.index_writer import IndexWriter
from skyroute.broker.store.index.key_index import KeyIndex
from skyroute.broker.store.queues.queue_ledger import LEDGER_NAME, QueueLedger
from skyroute.broker.store.queues.queue_table import QueueTable
from skyroute.broker.store.recovery.cut_tails import save_tail
from skyroute.broker.store.recovery.damage import CutTail, DamageFile, DamageReport
from skyroute.broker.store.recovery.queue_check import QueueState
from skyroute.broker.store.recovery.recover import Recovered, recover
from skyroute.broker.store.replicated_log import ReplicatedLog
from skyroute.broker.store.retention import Expired, remove_expired
from skyroute.broker.store.settings import StoreSettings
from skyroute.broker.store.writer import StoreWriter
from skyroute.files.disk import Disk
from skyroute.files.errors import DiskFullError, StorageError
from skyroute.message.names import check_file_name


class MessageStore(StoreWriter):
    """All messages of one broker, in one folder. Created by `open`; `StoreReader` reads, and `StoreWriter` appends."""

    def __init__(
        self, folder: Path, settings: StoreSettings, disk: Disk, is_batch_topic: Callable[[str], bool] | None
    ) -> None:
        self._disk = disk
        self._partial: int | None = None
        """Position of the partial record at the end of a slave's log, until its next bytes arrive."""
        self._replicated: ReplicatedLog | None = None
        """Set by the first bytes of another broker's log."""
        self._keeps_confirmed = False
        self._running_flush: Flush | None = None
        self.recovered: Recovered | None = None
        self.damage = DamageReport()
        """Known damage of the log."""
        with ExitStack() as opened:
            opened.callback(os.close, lock_folder(folder, disk))
            checkpoint = Checkpoint(folder / "checkpoint", disk)
            opened.callback(checkpoint.close)
            self._closing = opened.pop_all()
        segments = OpenSegments(settings.open_segments_max)
        log = CommitLog(folder / "commitlog", settings.log_segment_bytes, disk, segments)
        self._closing.callback(log.close)
        queues = QueueTable(folder, settings, disk, segments, is_batch_topic)
        self._closing.callback(queues.close)
        self._ledger = QueueLedger(folder / LEDGER_NAME, disk)
        self._closing.callback(self._ledger.close)
        index: KeyIndex | None = None
        if settings.index_enabled:
            index = KeyIndex(folder / "index", settings.index_slots, settings.index_entries, disk)
            self._closing.callback(index.close)
        index_writer = IndexWriter(folder, settings, log, index)
        self._closing.callback(index_writer.kill_process)
        dispatcher = Dispatcher(settings, log, index_writer, checkpoint, self._ledger)
        super().__init__(folder, settings, log, queues, index, index_writer, dispatcher, checkpoint)
        self._abort = AbortFile(folder, disk)

    def __repr__(self) -> str:
        return f"<MessageStore {self.folder} {self._log.start}..{self._log.end} queues={len(self._queues)}>"

    # ------------------------------------------------------------------------------------------------- opening, closing

    @classmethod
    def open(
        cls,
        folder: Path,
        settings: StoreSettings | None = None,
        *,
        now_ms: int,
        disk: Disk | None = None,
        is_batch_topic: Callable[[str], bool] | None = None,
        follows: bool = False,
    ) -> Self:
        """Open a folder, create missing files, and recover from a crash or damage.

        `is_batch_topic` decides whether the queues of a new topic are batch queues, which keep batches whole.
        `follows` keeps the partial record at the end of a slave's log, for `append_raw`; otherwise it is cut off.

        Raises:
            StoreLockedError: another broker has it open.
            StoreDamagedError: its files do not have the sizes in the settings.
            FileWriteError: a file cannot be written.
        """
        store = cls(folder, settings or StoreSettings(), disk or Disk(), is_batch_topic)
        try:
            store._recover(now_ms)
            if store.whole_end < store.max_position and not follows:
                store._begin_replicated()
                store.finish_raw(now_ms)
        except BaseException:
            store._closing.close()
            raise
        return store

    def _recover(self, now_ms: int) -> None:
        shutdown = self._abort.find_shutdown()
        if shutdown is not Shutdown.PROCESS_DIED:
            self._checkpoint.end_batch()  # a note of an earlier log: this recovery may die, and the next one trust it
        self._log.load()
        self._queues.load()
        on_disk = self._checkpoint.on_disk
        if self._index is not None:
            newest = on_disk.index_file if on_disk is not None and shutdown is Shutdown.MACHINE_STOPPED else 0
            self._index.load(newest or None)
        is_ours = shutdown in (Shutdown.PROCESS_DIED, Shutdown.MACHINE_STOPPED) or (
            shutdown is Shutdown.CLEAN and self._checkpoint.closed_end is not None
        )
        state = QueueState(
            self._queues.by_key.values(),
            self._ledger.read_of(self._checkpoint.store_id) if is_ours else None,
            is_exact=shutdown in (Shutdown.CLEAN, Shutdown.PROCESS_DIED),
            make_batch_topic=self._queues.make_batch_folder,
        )
        closed_end = self._checkpoint.closed_end if shutdown is Shutdown.CLEAN else None
        partial = self._checkpoint.partial_record
        if closed_end is not None and partial is not None and self._log.start <= partial < closed_end:
            self._partial = partial
        damage_file = DamageFile(self.folder, self._disk)
        known_damage = damage_file.load()
        self.recovered = recover(
            *(self._log, state, self._queues.find_or_create, self._index, self._dispatcher),
            *(self._checkpoint, self._disk),
            shutdown=shutdown,
            now_ms=now_ms,
            begin_rebuild=self._begin_rebuild,
            partial_record=self._partial,
        )
        if self._partial is not None:
            self._checkpoint.note_dispatched(self._partial, 0)
        self._checkpoint.end_batch()
        if shutdown is Shutdown.PROCESS_DIED:
            synced_end, index_file = (0, 0) if on_disk is None else (on_disk.end, on_disk.index_file)
            self._dispatcher.note_unsynced(self._queues.by_key.values(), synced_end, index_file)
        span = range(self._log.start, self._log.end)
        self.damage = known_damage.merge(self.recovered.damaged, self.recovered.cuts, span)
        self._log.damaged.set_ranges((each.position, each.end) for each in self.damage.ranges)
        if self.damage != known_damage:
            damage_file.save(self.damage)
        # A deletion behind the end is of another log: a ledger of another folder, or a log restored from a backup.
        deleted = {topic: at for topic, at in state.deleted.items() if self._log.start < at <= self._log.end}
        written = [queue for queue in self._queues.by_key.values() if queue.written_end]
        self._ledger.store_id = self._checkpoint.store_id or self._ledger.store_id or now_ms
        self._checkpoint.note_store_id(self._ledger.store_id)
        self._ledger.begin(written, deleted)
        self._last_stored_ms = max(self._dispatcher.written_ms, self._checkpoint.log_ms)
        if shutdown is not Shutdown.CLEAN:
            self.flush()
        self._checkpoint.clear_failed_flush()
        self._abort.write()
        self._checkpoint.clear_closed()

    def _begin_rebuild(self, position: int) -> None:
        """Note the start of a rebuild, so that the next start continues it if this one dies."""
        self._checkpoint.note_rebuild(position)
        self._abort.write()

    def close(self) -> None:
        """Flush everything and close all files.

        Raises:
            FileWriteError: all files are closed; the next start recovers the store.
        """
        try:
            if not isinstance(self._refusal, StoreClosedError):
                self.flush(thorough=False)
                self._note_confirmed()
                self._dispatcher.confirmed = None  # a clean start takes queues and index for complete
                self._dispatcher.write_all()
                self._dispatcher.end_index_process()
                self.flush()
                self._checkpoint.note_partial(self.whole_end if self.whole_end < self._log.end else None)
                self._checkpoint.note_closed(self._log.end)
                self._abort.remove()
        finally:
            self.kill()

    def kill(self) -> None:
        """Close all files without writing, as if the process had died. For tests, and for a broker that gives up."""
        self._refusal = StoreClosedError(f"{self.folder} is closed")
        self._dispatcher.drop_all()  # long work may go on for a moment, and the files be another broker's
        self._closing.close()

    # ------------------------------------------------------------------------------------------------------ replication

    @property
    def whole_end(self) -> int:
        """The position behind the last whole record of a log whose bytes come from another broker."""
        if self._replicated is not None:
            return self._replicated.position
        return self._log.end if self._partial is None else self._partial

    def append_raw(self, position: int, data: bytes) -> None:
        """Append bytes of another broker's log as they come; `dispatch_raw` then makes whole records visible.

        An empty log begins at `position`.

        Raises:
            ForeignLogError: the bytes do not continue this log; nothing is appended.
            FileWriteError: a part may be appended; `max_position` says how much.
            StoreClosedError: the store is closed, or a flush has failed.
        """
        if self._refusal is not None or self._dispatcher.failure is not None:
            self._refuse()
        log = self._log
        if position != log.end:
            if log.end != log.start:
                raise ForeignLogError(f"bytes at {position} do not continue a log that ends at {log.end}")
            if position < 0 or position % log.segment_bytes:
                raise ForeignLogError(
                    f"an empty log cannot begin at {position}, inside a file of {log.segment_bytes} bytes; "
                    "set mappedFileSizeCommitLog to the master's value"
                )
            log.begin_at(position)
            self._checkpoint.note_rebuild(position)
            self._replicated = None
        if self._replicated is None:
            self._begin_replicated()
        log.append_foreign(data)

    def _begin_replicated(self) -> None:
        self._replicated = ReplicatedLog(self._log, self._queues, self._dispatcher, self.whole_end)
        self._partial = None

    def dispatch_raw(self) -> tuple[dict[tuple[str, int], None], bool]:
        """Dispatch some appended records for a few milliseconds.

        Returns the topics and queues with new messages, and whether to call again.

        Raises:
            ForeignLogError: the other broker's log has files of another size.
            FileWriteError: units or keys cannot be written; a later call tries again.
        """
        if self._replicated is None:
            return {}, False
        found = self._replicated.step()
        self._last_stored_ms = max(self._last_stored_ms, self._replicated.stored_ms)
        return found

    def finish_raw(self, now_ms: int) -> None:
        """Dispatch all whole records, and cut a partial one off: from now on this broker appends.

        Whole records behind damage stay.

        Raises:
            ForeignLogError, FileWriteError: as `dispatch_raw` and `truncate_to`.
        """
        has_more = True
        while has_more:
            while self.dispatch_raw()[1]:
                pass
            has_more = self._replicated is not None and self._replicated.skip_to_next_record()
        self.truncate_to(self.whole_end, now_ms)
        self._replicated = self._partial = None

    def confirm(self, position: int | None) -> None:
        """Show readers only records that end at or before a position; None: all.

        Once called, the position is kept in the checkpoint, for Apache's broker.
        """
        self._dispatcher.confirmed = position
        self._keeps_confirmed = True

    def _note_confirmed(self) -> None:
        if self._keeps_confirmed:
            confirmed = self._dispatcher.confirmed
            self._checkpoint.note_confirmed(self._log.end if confirmed is None else min(confirmed, self._log.end))

    def truncate_to(self, position: int, now_ms: int) -> tuple[CutTail, ...]:
        """Drop everything from a position of the log on; return the files that keep what was cut off.

        A record around the position stays in part, and in no queue, until `append_raw` completes it.

        Raises:
            ForeignLogError: the log begins behind this position; nothing is dropped.
            FileWriteError: the store has to be opened again.
        """
        log, dispatcher = self._log, self._dispatcher
        if position >= log.end:
            return ()
        if position < log.start:
            raise ForeignLogError(f"the log cannot be cut at {position}: it begins at {log.start}")
        dispatcher.write_up_to(None)  # also records that readers may not see yet: none may be pending afterwards
        dispatcher.write_all()
        dispatcher.end_index_process()
        whole_end = self._find_whole_end(position)
        cuts = tuple(save_tail(log, position, now_ms, self._disk))
        self._ledger.give_up()  # a start after a crash reads the log instead
        self._checkpoint.note_rebuild(whole_end)  # a start after a crash continues from here
        for queue in self._queues.by_key.values():
            queue.truncate_to(whole_end)
        if self._index is not None:
            self._index.truncate_to(whole_end, slots_are_sound=True)
        # Last: after a crash, units of records that the log lost would keep their offsets from other records.
        log.truncate(position)
        self._ledger.resume([queue for queue in self._queues.by_key.values() if queue.written_end], log.end)
        if self._running_flush is not None:
            self._running_flush.forget_behind(position)
        self.damage = self.damage.merge((), cuts, range(log.start, log.end))
        log.damaged.set_ranges((each.position, each.end) for each in self.damage.ranges)
        DamageFile(self.folder, self._disk).save(self.damage)
        self._replicated, self._partial = None, whole_end if whole_end < position else None
        return cuts

    def _find_whole_end(self, position: int) -> int:
        """Return the end of the last record that ends at or before a position."""
        if position >= self.whole_end:
            return self.whole_end
        segment = self._log.find(position)
        if segment is None or position == segment.start:
            return position
        at = segment.start
        for queue in self._queues.by_key.values():
            unit = queue.last_before(position)
            if unit is not None and unit[0] >= at:
                at = unit[0]
        while (record := self._log.record_at(at)) is not None and at + len(record) <= position:
            at += len(record)
        return at if record is not None else position

    # --------------------------------------------------------------------------------------------------------- flushing

    def flush(self, *, thorough: bool = True) -> None:
        """Wait until all appended records are on disk; with `thorough`, queues and index as well.

        Raises:
            FileWriteError: any part may be missing on disk. Nothing can be appended until the store is opened again:
                after a failed flush, the operating system reports success for writes that it has dropped.
            StoreClosedError: a flush has failed before, or the store is closed.
        """
        if isinstance(self._refusal, StoreClosedError):
            raise self._refusal.with_traceback(None)
        flush = self.begin_flush(thorough=thorough)
        try:
            flush.run()
            self.end_flush(flush)
        except StorageError as error:
            self.fail_flush(error)
            raise

    def begin_flush(self, *, thorough: bool = True) -> Flush:
        """Return a flush to run. The caller then calls `end_flush` or `fail_flush`, and starts no other before.

        Messages may be appended in between.
        """
        if thorough:
            self._dispatcher.try_write()
        flush = self._running_flush = Flush(self._disk, self._log.end, self._last_stored_ms)
        try:
            self._log.add_unflushed_to(flush)
            if thorough:
                self._dispatcher.add_unflushed_to(flush)
        except BaseException:
            flush.cancel()
            raise
        return flush

    def end_flush(self, flush: Flush) -> None:
        """Note that a flush is done.

        Raises:
            FileWriteError: the checkpoint may not be on disk.
        """
        self._log.note_flushed(flush.log_end)
        if flush.queues_ms is not None:
            self._note_confirmed()
            self._checkpoint.note_flush(flush.log_end_ms, flush.queues_ms, flush.index_ms, flush.on_disk)

    def fail_flush(self, cause: StorageError) -> None:
        """Note that a flush failed: nothing can be appended until the store is opened again."""
        if not isinstance(self._refusal, StoreClosedError):
            self._checkpoint.note_failed_flush()
        self._refusal = StoreClosedError(f"{self.folder} could not be flushed ({cause}); restart the broker")

    # --------------------------------------------------------------------------------------------------------- expiring

    def disk_used(self) -> float:
        """Return the used part of the disk, from 0 to 1."""
        return self._disk.used_ratio(self.folder)

    def delete_expired(self, now_ms: int, *, is_due: bool, disk_used: float) -> Expired:
        """Remove expired segments, or the oldest ones of a full disk. Above a limit, appends are refused.

        `is_due` says that it is the hour of the day for deletion.

        Raises:
            FileWriteError: a file could not be removed.
        """
        if not isinstance(self._refusal, StoreClosedError):
            is_full = disk_used > self.settings.disk_used_refuse
            reason = f"the disk of {self.folder} is full; make room, or let messages expire earlier"
            self._refusal = DiskFullError(reason) if is_full else None
        self._dispatcher.try_write()
        self._index_writer.refresh()
        expired = remove_expired(
            *(self._log, self._queues.by_key.values(), self._index, self.settings),
            now_ms=now_ms,
            is_due=is_due,
            disk_used=disk_used,
        )
        if expired.queue_segments:
            for queue in self._queues.by_key.values():
                self._ledger.note(queue)
        return expired

    def delete_topic(self, topic: str) -> None:
        """Remove the queues of a topic. Its records stay in the log until they expire, but in no queue.

        Raises:
            InvalidNameError: the name is invalid; nothing is removed.
            FileWriteError: some queues may be removed.
        """
        for _ in self.remove_topic(topic):
            pass

    def remove_topic(self, topic: str) -> Iterator[None]:
        """As `delete_topic`, in steps: messages of other topics may be stored and read in between.

        Raises:
            InvalidNameError: the name is invalid; nothing is removed.
            FileWriteError: some queues may be removed.
        """
        check_file_name(topic)
        self._dispatcher.try_write()
        # Without queues nothing is deleted: an entry for each name that is asked for would fill the ledger.
        if any(key[0] == topic for key in self._queues.by_key):
            self._ledger.note_deleted(topic, self._log.end)
        yield from self._queues.remove_topic(topic, self._dispatcher.drop_queue)
