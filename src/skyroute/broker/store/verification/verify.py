"""Checks every file of a store, and changes none.

The log is the source of truth: its records have their own positions and checksums of their bodies. Queues and index are
compared with it. Tables are parsed as the broker parses them.

Nothing covers times, addresses, flags, and properties other than tag and keys: damage there is not found.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from skyroute.broker.store.commit_log import ScannedTuple, scan_segment
from skyroute.broker.store.dispatch import NOT_IN_QUEUE
from skyroute.broker.store.errors import StoreLockedError
from skyroute.broker.store.files.checkpoint import CheckpointPage, parse_checkpoint
from skyroute.broker.store.files.folder_lock import is_locked
from skyroute.broker.store.files.read_only import ReadOnlyDisk, segments_in
from skyroute.broker.store.files.segment import OpenSegments, Segment, open_segments_allowed
from skyroute.broker.store.files.sparse import data_chunks
from skyroute.broker.store.queues.queue_ledger import LEDGER_NAME, KnownQueues, QueueLedger, is_of_other_store
from skyroute.broker.store.recovery.damage import CUT_FOLDER, RANGES_MAX, DamagedRange
from skyroute.broker.store.recovery.log_scan import TORN, scan_log
from skyroute.broker.store.settings import StoreSettings
from skyroute.broker.store.verification.filler import is_filler, lost_bytes_of
from skyroute.broker.store.verification.findings import Report
from skyroute.broker.store.verification.verify_index import IndexCheck
from skyroute.broker.store.verification.verify_queues import KnownLog, QueueCheck
from skyroute.broker.store.verification.verify_tables import TABLES_FOLDER, ReadTable, TableCheck
from skyroute.files.errors import FileReadError, StorageError
from skyroute.message.property_names import RECORD_CRC
from skyroute.message.record import seal_holds

CHECKPOINT_BYTES: Final = 4096
_RECORD_CRC: Final = RECORD_CRC.encode()
_RECORD_CRC_WITHIN: Final = 32

_LOG_COST: Final = "the messages in these bytes are lost; readers skip them"
_LOG_ADVICE: Final = (
    "restore the file from a copy, if you have one; else nothing: skyroute store repair makes a copy without the damage"
)
_TAIL_COST: Final = "the message that was being written when the broker or the machine stopped"
_TAIL_ADVICE: Final = "nothing: the next start copies these bytes to commitlog.cut and cuts them off"


@dataclass(slots=True)
class _Log:
    """The segments of the log, and their known damage."""

    segments: list[Segment]
    start: int = 0
    end: int = 0
    ranges: list[DamagedRange] = field(default_factory=list)

    def find(self, position: int) -> Segment | None:
        number = bisect_right(self.segments, position, key=lambda segment: segment.start) - 1
        return self.segments[number] if number >= 0 and position < self.segments[number].stop else None

    def has_record(self, position: int, size: int, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether an intact record with these fields is there, and belongs to a queue."""
        segment = self.find(position)
        found = None if segment is None else next(scan_segment(segment, position, {}), None)
        if found is None or found[5] & NOT_IN_QUEUE:
            return False
        return found[:5] == (position, size, topic, queue_id, offset)

    def is_damaged(self, position: int) -> bool:
        """Return whether a position is in a damaged range."""
        number = bisect_right(self.ranges, position, key=lambda damaged: damaged.position) - 1
        return number >= 0 and position < self.ranges[number].end


class StoreCheck:
    """One check of one folder. `progress` may be called from another thread while `run` runs."""

    def __init__(
        self,
        folder: Path,
        tables: Mapping[str, ReadTable],
        check_timer_page: Callable[[bytes], str],
        settings: StoreSettings | None = None,
    ) -> None:
        """Prepare a check.

        Args:
            folder: The folder of the store: `storePathRootDir`.
            tables: The tables that the broker parses, by their names in `config`; others must only be JSON.
            check_timer_page: Returns what is wrong with the content of `timercheck`.
            settings: The sizes that the files were written with; None to detect them.
        """
        self.folder = folder
        self.report = Report()
        self._settings = settings
        self.without_unit: list[tuple[int, int]] = []
        """Position and size of intact records that no queue has, once the check has run."""
        self._opened = OpenSegments(open_segments_allowed())
        self._table_check = TableCheck(folder, self._opened, self.report, tables, check_timer_page)
        self._log_bytes = 0
        """Disk space of the log."""
        self._log = _Log([])

    def progress(self) -> str:
        """Return a progress message for the operator."""
        share = min(self.report.checked["bytes"] / max(self._log_bytes, 1), 1.0)
        return f" {share:.0%} of the log, {self.report.count} findings"

    def run(self) -> Report:
        """Check everything.

        Raises:
            StoreLockedError: a broker has the store open.
            StorageError: the folder is no store, or its files cannot be read.
        """
        if not self.folder.exists():
            raise StorageError(f"{self.folder} does not exist; expected a broker's storePathRootDir")
        parts = ("commitlog", TABLES_FOLDER, "checkpoint")
        if not any((self.folder / name).exists() for name in parts):
            raise StorageError(f"{self.folder} is not a store: it has none of {', '.join(parts)}")
        if is_locked(self.folder):
            raise StoreLockedError(f"a broker has {self.folder} open; stop it first, or check a copy of the folder")
        try:
            topics = self._table_check.check_tables()
            self._check_log_queues_index(topics)
        except OSError as error:
            raise FileReadError(f"cannot read {error.filename or self.folder}: {error.strerror}") from error
        finally:
            self._opened.close()
        return self.report

    # -------------------------------------------------------------------------------------------------------------- log

    def _check_log_queues_index(self, topics: frozenset[str] | None) -> None:
        report = self.report
        log = self._log = _Log(segments_in(self.folder / "commitlog", self._opened))
        blocks = sum(segment.path.stat().st_blocks for segment in log.segments)
        self._log_bytes = min(blocks * 512, sum(segment.size for segment in log.segments))
        self._check_log_files()
        self._drop_unreadable()
        log.start = log.end = log.segments[0].start if log.segments else 0
        was_closed = not (self.folder / "abort").exists()
        if (self.folder / CUT_FOLDER).is_dir():
            report.notes.append(f"{CUT_FOLDER} has torn tails of the log, which starts after a crash have cut off")
        if not was_closed:
            report.notes.append("the broker did not stop cleanly: the next start recovers the store")
        checkpoint = self._read_checkpoint()
        if not was_closed and checkpoint is not None and checkpoint.unfinished_batch is not None:
            position = checkpoint.unfinished_batch
            report.notes.append(f"a batch at {position} of the log was not written whole: the next start drops it")
        derived = None if checkpoint is None else checkpoint.last_dispatched
        derived_end = None if was_closed else log.start if derived is None else sum(derived)
        known = KnownLog(log.start, derived_end, self._read_ledger(checkpoint))
        queues = QueueCheck(self.folder, self._opened, report, known, topics)
        index = IndexCheck(self.folder, self._opened, report, known, self._index_settings())
        newest_ms = self._scan(queues, index, was_closed=was_closed)
        self.without_unit = [(position, size) for _, position, size in queues.without_unit]
        queues.finish(log.end, log.has_record, log.is_damaged)
        index.finish(log.is_damaged)
        self._check_checkpoint(checkpoint, newest_ms)
        self._table_check.check_timer_files(log.end, was_closed=was_closed)

    def _scan(self, queues: QueueCheck, index: IndexCheck, *, was_closed: bool) -> int:
        """Scan the log; return the store time of its newest record."""
        log, report = self._log, self.report
        newest_ms = fillers = filler_bytes = 0
        damaged: list[DamagedRange] = []
        """Ranges behind the last intact record so far."""
        for found in scan_log(log, log.start) if log.segments else ():
            if isinstance(found, DamagedRange):
                damaged.append(found)
                continue
            for each in damaged:
                self._note_damage(each, may_be_torn=False)
            damaged.clear()
            log.end = found[0] + found[1]
            report.checked["records"] += 1
            report.checked["bytes"] += found[1]
            newest_ms = max(newest_ms, found[6])
            self._check_record_crc(found)
            if is_filler(found):
                fillers += 1
                filler_bytes += lost_bytes_of(found)
                continue
            queues.check(found, log.has_record)
            index.check(found, log.is_damaged)
        for each in damaged:
            self._note_damage(each, may_be_torn=not was_closed)
        if fillers:
            report.notes.append(f"{filler_bytes} bytes in {fillers} places were lost before an earlier repair")
        return newest_ms

    def _check_record_crc(self, record: ScannedTuple) -> None:
        """Check the checksum of a whole record, which Apache's broker adds with `enabledAppendPropCRC`."""
        position, size, topic, queue_id, offset, _, _, raw = record
        segment = self._log.find(position)
        if _RECORD_CRC not in raw[-_RECORD_CRC_WITHIN:] or segment is None:
            return
        if seal_holds(segment.read(position - segment.start, size)) is False:
            what = f"the checksum of the whole record is wrong (topic {topic!r}, queue {queue_id}, offset {offset})"
            cost = "its header, topic or properties are damaged; the body is intact"
            self.report.add("log", self._name(segment.path), position - segment.start, what, cost, _LOG_ADVICE)

    def _note_damage(self, damaged: DamagedRange, *, may_be_torn: bool) -> None:
        log = self._log
        if len(log.ranges) < RANGES_MAX:
            log.ranges.append(damaged)
        what = f"{damaged.size} bytes: {damaged.reason}"
        if damaged.lost is not None:
            lost = damaged.lost
            what += f" (topic {lost.topic[:80]!r}, queue {lost.queue_id}, offset {lost.queue_offset})"
        is_tail = may_be_torn and (damaged.lost is None or damaged.reason == TORN)
        cost, advice = (_TAIL_COST, _TAIL_ADVICE) if is_tail else (_LOG_COST, _LOG_ADVICE)
        log.end = max(log.end, damaged.end)
        self.report.add("log", self._name(damaged.file), damaged.file_offset, what, cost, advice)

    def _check_log_files(self) -> None:
        segments = self._log.segments
        sizes = Counter(segment.size for segment in segments)
        usual = sizes.most_common(1)[0][0] if segments else 0
        if self._settings is not None:
            usual = self._settings.log_segment_bytes
        for segment in segments:
            if segment.size != usual or segment.start % usual:
                what = f"the file has {segment.size} bytes and starts at {segment.start} (expected {usual} bytes)"
                self.report.add("log", self._name(segment.path), None, what, _LOG_COST, _LOG_ADVICE)

    def _drop_unreadable(self) -> None:
        """Drop segments that cannot be read: a bad sector under a memory mapping would kill the process."""
        readable = []
        for segment in self._log.segments:
            try:
                for _ in data_chunks(segment, 0):
                    pass
                readable.append(segment)
            except FileReadError as error:
                self.report.add("log", self._name(segment.path), None, str(error), _LOG_COST, _LOG_ADVICE)
        self._log.segments = readable

    def _index_settings(self) -> StoreSettings:
        if self._settings is not None:
            return self._settings
        default = StoreSettings()
        whole = 40 + 4 * default.index_slots + 20 * default.index_entries
        found = [segment.size for segment in segments_in(self.folder / "index", self._opened)]
        if found and max(found) != whole:
            raise StorageError(
                f"files of {self.folder / 'index'} have {max(found)} bytes (expected {whole} by default): give the "
                "settings of the broker with -c, or maxHashSlotNum and maxIndexNum with -D"
            )
        return default

    # ------------------------------------------------------------------------------------------------------- checkpoint

    def _read_checkpoint(self) -> CheckpointPage | None:
        try:
            page = (self.folder / "checkpoint").read_bytes()
        except FileNotFoundError:
            if self._log.segments:
                self._add_checkpoint(None, "the file is missing")
            return None
        if len(page) != CHECKPOINT_BYTES:
            self._add_checkpoint(None, f"the file has {len(page)} bytes, not {CHECKPOINT_BYTES}")
        return parse_checkpoint(page)

    def _read_ledger(self, checkpoint: CheckpointPage | None) -> KnownQueues | None:
        """Return the queues in the ledger; None if it is missing, damaged, or out of date."""
        path = self.folder / LEDGER_NAME
        ledger = QueueLedger(path, ReadOnlyDisk())
        known = ledger.read()
        if known is None and (path.exists() or (checkpoint is not None and checkpoint.closed_end is not None)):
            cost = "none: the next start reads the log to find missing queues"
            what = "the queue ledger is damaged" if path.exists() else "the queue ledger is missing"
            self.report.add("queue", LEDGER_NAME, None, what, cost, "nothing: the next start writes it again")
        return known if is_ledger_current(self.folder, checkpoint, ledger.store_id) else None

    def _add_checkpoint(self, offset: int | None, what: str) -> None:
        cost = "none after a clean stop; after a crash, the next start reads more of the log, or misses damage"
        advice = "start the broker and stop it: it writes the file again"
        self.report.add("checkpoint", "checkpoint", offset, what, cost, advice)

    def _check_checkpoint(self, checkpoint: CheckpointPage | None, newest_ms: int) -> None:
        if checkpoint is None:
            return
        if checkpoint.closed_end is not None and checkpoint.closed_end > self._log.end:
            what = f"the log ended at {checkpoint.closed_end} when the broker stopped, it ends at {self._log.end} now"
            self.report.add("log", "commitlog", None, what, _LOG_COST, _LOG_ADVICE)
        for at in checkpoint.damaged:
            self._add_checkpoint(at, "the checksum of a Skyroute note is wrong")
        for number, (name, time_ms) in enumerate(zip(("log", "queues", "index"), checkpoint.times, strict=True)):
            if not 0 <= time_ms <= newest_ms:
                what = f"the time of the {name} is {time_ms}, the newest record's is {newest_ms}"
                self._add_checkpoint(number * 8, what)
        if newest_ms and not any(checkpoint.times[:2]):
            self._add_checkpoint(0, "the times of log and queues are zero")

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.folder))


def is_ledger_current(folder: Path, checkpoint: CheckpointPage | None, ledger_id: int) -> bool:
    """Return whether a ledger is of this folder, and up to date: our broker was the last to use the folder."""
    if checkpoint is not None and is_of_other_store(ledger_id, checkpoint.store_id):
        return False
    try:
        return len((folder / "abort").read_bytes().split()) > 1
    except OSError:
        return checkpoint is not None and checkpoint.closed_end is not None
