"""Makes an intact copy of a store. The original is not changed.

Every intact record keeps its position, so offsets and message ids stay valid. Fillers replace damaged bytes. Queues and
index are rebuilt from the records; units of expired records are kept, so that offsets continue. Tables are copied; the
backup replaces a damaged one.
"""

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from struct import Struct
from typing import Final

from skyroute.broker.store.errors import StoreDamagedError, StoreLockedError
from skyroute.broker.store.files.abort_file import AbortFile, Shutdown
from skyroute.broker.store.files.checkpoint import CheckpointPage, parse_checkpoint
from skyroute.broker.store.files.folder_lock import is_locked
from skyroute.broker.store.files.json_file import read_json
from skyroute.broker.store.files.read_only import ReadOnlyDisk, segments_in
from skyroute.broker.store.files.segment import OpenSegments, Segment, open_segments_allowed
from skyroute.broker.store.files.sparse import last_data
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.queues.batch_queue import BatchQueue
from skyroute.broker.store.queues.consume_queue import ConsumeQueue
from skyroute.broker.store.queues.queue_ledger import LEDGER_NAME, KnownQueue, KnownQueues, QueueLedger, encode_ledger
from skyroute.broker.store.queues.topic_queue import TopicQueue
from skyroute.broker.store.queues.unit_rows import UNIT
from skyroute.broker.store.recovery.damage import DamagedRange
from skyroute.broker.store.recovery.log_scan import scan_log
from skyroute.broker.store.settings import StoreSettings
from skyroute.broker.store.verification.filler import fill, fill_to_segment_end
from skyroute.broker.store.verification.findings import Report
from skyroute.broker.store.verification.verify import StoreCheck, is_ledger_current
from skyroute.broker.store.verification.verify_tables import TABLES_FOLDER, TOPICS_TABLE, ReadTable
from skyroute.files.disk import Disk
from skyroute.files.errors import StorageError

COPIED_BYTES: Final = 1 << 20
_BLOCK_BYTES: Final = 4096
"""Size of the block that is skipped if the disk cannot read it."""
_BATCH_OFFSETS: Final = Struct(">28xqh8x")
"""First offset and number of messages in a unit of a batch queue."""
_QUEUES: Final = ("consumequeue", "batchconsumequeue")
_COPIED_UNCHANGED: Final = ("consumequeue_ext", "timerlog", "timerwheel")


@dataclass(slots=True)
class Repaired:
    """Result of a repair."""

    lost_ranges: int = 0
    lost_bytes: int = 0
    """Bytes of the log that fillers replace, or that were cut off its end."""
    records: int = 0
    """Intact records in the copy."""
    losses: list[str] = field(default_factory=list)
    """What else could not be copied."""


@dataclass(slots=True)
class _Files:
    """The segments of a log to scan."""

    segments: list[Segment]


class Repair:
    """One repair. `progress` may be called from another thread while `run` runs."""

    def __init__(
        self,
        source: Path,
        target: Path,
        tables: Mapping[str, ReadTable],
        check_timer_page: Callable[[bytes], str],
        settings: StoreSettings | None = None,
        is_batch_topic: Callable[[str], bool] | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Prepare a repair.

        Args:
            source: The store's folder. It is only read.
            target: The folder of the copy, which must be empty or not exist.
            tables: The tables that the broker parses, by their names in `config`.
            check_timer_page: Returns what is wrong with the content of `timercheck`.
            settings: The sizes that the files were written with; None to detect them.
            is_batch_topic: Whether a topic without a folder gets batch queues.
            disk: The disk for the copy.
        """
        self.source = source
        self.target = target
        self.result = Repaired()
        self.report = Report()
        """Findings of the check of the copy."""
        self._tables = tables
        self._check_timer_page = check_timer_page
        self._settings = settings
        self._is_batch_topic = is_batch_topic
        self._disk = disk or Disk()
        self._opened = OpenSegments(open_segments_allowed())
        self._step = "starting"
        self._stored_at_ms = 0
        """Store time of the newest intact record."""
        self._log_end = 0
        self._log_topics: set[str] = set()

    def progress(self) -> str:
        """Return a progress message for the operator."""
        return f" {self._step}"

    def run(self, now_ms: int) -> Repaired:
        """Make the copy; it is on disk before this returns.

        Raises:
            StoreLockedError: a broker has the store open.
            StorageError: the folder is no store, the target is not empty, or a file cannot be read or written.
        """
        self._check_folders()
        try:
            settings = self._find_settings()
            self._copy_log(settings.log_segment_bytes)
            self._drop_unfinished_batch(settings.log_segment_bytes)
            self._fill_damage(settings.log_segment_bytes)
            for name in _QUEUES + _COPIED_UNCHANGED:
                self._copy_tree(self.source / name, self.target / name)
            topics = self._copy_tables()
            queues = encode_ledger(self._list_queues(topics))
            self._rebuild(settings, queues, now_ms)
            if self._fill_without_unit(settings, self._check_copy(settings)):
                self._rebuild(settings, queues, now_ms)
                self._check_copy(settings)
        except OSError as error:
            where = error.filename or self.source
            raise StorageError(
                f"cannot copy {where}: {error.strerror}; {self.target} is incomplete, remove it"
            ) from error
        finally:
            self._opened.close()
        return self.result

    def _check_folders(self) -> None:
        source, target = self.source.resolve(), self.target.resolve()
        if not (source / "commitlog").is_dir():
            raise StorageError(f"{self.source} is not a store: it has no folder commitlog")
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise StorageError(f"{self.target} is not empty; give a folder that does not exist")
        if target.is_relative_to(source) or source.is_relative_to(target):
            raise StorageError(f"{self.target} and {self.source} contain each other; give another folder")
        if is_locked(source):
            raise StoreLockedError(f"a broker has {self.source} open; stop it first")

    def _find_settings(self) -> StoreSettings:
        """Return the given settings, or the sizes that most files have."""
        settings = self._settings
        if settings is not None:
            return replace(settings, index_process=False)
        default = StoreSettings(index_process=False)
        log = Counter(segment.size for segment in segments_in(self.source / "commitlog", self._opened))
        queues = [_largest(self.source / name) for name in _QUEUES]
        return replace(
            default,
            log_segment_bytes=log.most_common(1)[0][0] if log else default.log_segment_bytes,
            queue_segment_units=queues[0] // ConsumeQueue.unit_bytes or default.queue_segment_units,
            batch_segment_units=queues[1] // BatchQueue.unit_bytes or default.batch_segment_units,
        )

    # -------------------------------------------------------------------------------------------------------------- log

    def _copy_log(self, segment_bytes: int) -> None:
        segments = segments_in(self.source / "commitlog", self._opened)
        self._disk.make_folder(self.target / "commitlog")
        starts = {segment.start: segment for segment in segments}
        for start in range(min(starts), max(starts) + 1, segment_bytes) if starts else ():
            segment = starts.pop(start, None)
            path = self.target / "commitlog" / f"{start:020d}"
            self._step = f"copying {path.name} of the log"
            os.close(self._disk.open(path, segment_bytes))
            if segment is not None:
                self._copy_file(segment.path, path, segment_bytes)
        for segment in starts.values():
            raise StorageError(
                f"{segment.path} starts at no multiple of {segment_bytes}: give the broker's settings with -c"
            )

    def _drop_unfinished_batch(self, segment_bytes: int) -> None:
        """Remove what a process that died had written of a batch, as the next start would."""
        checkpoint = self._read_checkpoint()
        batch = None if checkpoint is None else checkpoint.unfinished_batch
        # After a restart of the machine the note may be older than the log: the next start ignores it, too.
        has_died = AbortFile(self.source, self._disk).find_shutdown() is Shutdown.PROCESS_DIED
        if checkpoint is None or batch is None or not has_died or batch < sum(checkpoint.last_dispatched or (0, 0)):
            return
        for segment in self._segments(segment_bytes):
            if segment.stop > batch and last_data(segment, max(batch - segment.start, 0)) > max(
                batch - segment.start, 0
            ):
                segment.cut(max(batch - segment.start, 0))
                self.result.losses.append(
                    f"the records behind {batch} are of a batch that was not stored whole; its sender got no answer"
                )
        self._opened.close()

    def _fill_damage(self, segment_bytes: int) -> None:
        """Replace damaged bytes of the copy with fillers."""
        segments = self._segments(segment_bytes)
        was_closed = not (self.source / "abort").exists()
        waiting: list[DamagedRange] = []
        stored_at_ms = 0
        self._step = "searching the copy of the log for damage"
        for found in scan_log(_Files(segments), segments[0].start) if segments else ():
            if isinstance(found, DamagedRange):
                waiting.append(found)
                continue
            self.result.records += 1
            stored_at_ms = found[6]
            self._log_end = found[0] + found[1]
            self._log_topics.add(found[2])
            for damaged in waiting:
                self._fill(segments, damaged, stored_at_ms)
            waiting.clear()
        for damaged in waiting:
            if was_closed:
                self._fill(segments, damaged, stored_at_ms)
            else:
                # A torn tail: no record follows, and the next one goes here.
                self._note_loss(damaged)
                self._write(segments, damaged.position, bytes(damaged.size))
        self._stored_at_ms = stored_at_ms
        self._opened.close()

    def _segments(self, segment_bytes: int) -> list[Segment]:
        paths = sorted((self.target / "commitlog").iterdir())
        return [Segment(path, int(path.name), segment_bytes, self._disk, self._opened) for path in paths]

    def _fill(self, segments: list[Segment], damaged: DamagedRange, stored_at_ms: int) -> None:
        self._note_loss(damaged)
        position, size = damaged.position, damaged.size
        if damaged.end % segments[0].size == 0:
            self._write(segments, position, fill_to_segment_end(position, size, stored_at_ms))
            return
        for piece in fill(position, size, stored_at_ms):
            self._write(segments, position, piece)
            position += len(piece)

    def _note_loss(self, damaged: DamagedRange) -> None:
        self.result.lost_ranges += 1
        self.result.lost_bytes += damaged.size

    def _write(self, segments: list[Segment], position: int, data: bytes) -> None:
        segment = self._segment_at(segments, position)
        segment.write(position - segment.start, data)

    def _segment_at(self, segments: list[Segment], position: int) -> Segment:
        return segments[(position - segments[0].start) // segments[0].size]

    # ------------------------------------------------------------------------------------------------------ other files

    def _copy_tree(self, source: Path, target: Path) -> None:
        if source.is_file():
            self._copy_file(source, target, source.stat().st_size)
        for path in sorted(source.rglob("*")) if source.is_dir() else ():
            if path.is_file() and not path.is_symlink():
                self._step = f"copying {path.relative_to(self.source)}"
                self._copy_file(path, target / path.relative_to(source), path.stat().st_size)

    def _write_file(self, name: str, content: bytes) -> None:
        self._disk.remove(self.target / name)
        descriptor = self._disk.open(self.target / name, 0)
        try:
            self._disk.write(descriptor, content, 0)
        finally:
            os.close(descriptor)

    def _copy_file(self, source: Path, target: Path, size: int) -> None:
        """Copy the nonzero bytes; blocks that cannot be read stay zero."""
        reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        writer = -1
        try:
            writer = self._disk.open(target, size)
            lost = 0
            for at in range(0, size, COPIED_BYTES):
                piece, unread = _read(reader, at, min(COPIED_BYTES, size - at))
                lost += unread
                if piece.strip(b"\0"):
                    self._disk.write(writer, piece, at)
            if lost:
                self.result.losses.append(
                    f"{lost} bytes of {source.relative_to(self.source)} cannot be read from the disk"
                )
            self._disk.sync(writer)
        finally:
            os.close(reader)
            if writer >= 0:
                os.close(writer)

    def _copy_tables(self) -> frozenset[str] | None:
        """Copy the files of `config`; return the topics of the broker, None if their table is lost."""
        source, target = self.source / TABLES_FOLDER, self.target / TABLES_FOLDER
        topics = None
        for path in sorted(source.iterdir()) if source.is_dir() else ():
            if not path.is_file() or ".damaged-" in path.name or path.name.endswith(".json.bak"):
                continue
            if path.suffix != ".json":
                self._copy_file(path, target / path.name, path.stat().st_size)
        names = {path.name.removesuffix(".bak") for path in source.glob("*.json*")} if source.is_dir() else set()
        for name in sorted(name for name in names if name.endswith(".json")):
            found = self._copy_table(source / name, target / name)
            if name == TOPICS_TABLE and found is not None:
                topics = frozenset(found)
        return topics

    def _copy_table(self, path: Path, target: Path) -> Collection[str] | None:
        """Copy a table and its backup, each if intact; an intact backup replaces a damaged table."""
        read = self._tables.get(path.name, _any_names)
        intact: Collection[str] | None = None
        backup = path.with_name(f"{path.name}.bak")
        for each in (path, backup):
            try:
                found = read_json(each, read)
            except (FileNotFoundError, StoreDamagedError):
                continue
            replaces = intact is None and each == backup
            self._copy_file(each, target if replaces else target.with_name(each.name), each.stat().st_size)
            if replaces:
                self.result.losses.append(f"{TABLES_FOLDER}/{path.name} is damaged; the copy has its backup")
            intact = found if intact is None else intact
        if intact is None:
            self.result.losses.append(f"{TABLES_FOLDER}/{path.name} and its backup are damaged; the copy has neither")
        return intact

    # ---------------------------------------------------------------------------------------------------------- opening

    def _check_copy(self, settings: StoreSettings) -> list[tuple[int, int]]:
        """Check the copy; return position and size of intact records that no queue has."""
        self._step = "checking the copy"
        check = StoreCheck(self.target, self._tables, self._check_timer_page, settings)
        self.report = check.run()
        return check.without_unit

    def _fill_without_unit(self, settings: StoreSettings, without_unit: list[tuple[int, int]]) -> bool:
        """Replace records that no queue accepts with fillers: their offset or queue id is damaged."""
        segments = self._segments(settings.log_segment_bytes)
        for position, size in without_unit:
            path = self._segment_at(segments, position).path
            self.result.records -= 1
            self._fill(segments, DamagedRange(position, size, path, "no queue accepts the record"), self._stored_at_ms)
        self._opened.close()
        return bool(without_unit)

    def _rebuild(self, settings: StoreSettings, queues: bytes, now_ms: int) -> None:
        """Rebuild queues and index: open the copy as after a crash of the machine."""
        self._step = "rebuilding queues and index"
        for path in ("checkpoint", "damage.json"):
            self._disk.remove(self.target / path)
        self._write_file(LEDGER_NAME, queues)
        # No process id and no boot id of this machine: recovery then trusts only the log and the ledger.
        self._write_file("abort", b"0 -")
        store = MessageStore.open(
            self.target, settings, now_ms=now_ms, disk=self._disk, is_batch_topic=self._is_batch_topic
        )
        store.close()

    def _read_checkpoint(self) -> CheckpointPage | None:
        page = self.source / "checkpoint"
        return parse_checkpoint(page.read_bytes()) if page.exists() else None

    def _list_queues(self, topics: frozenset[str] | None) -> KnownQueues:
        """Return the ends of the queues of the original, and its deleted topics."""
        checkpoint = self._read_checkpoint()
        if checkpoint is not None and checkpoint.closed_end is not None and checkpoint.closed_end > self._log_end:
            self.result.losses.append(
                f"the log ended at {checkpoint.closed_end} when the broker stopped, and ends at {self._log_end} now"
            )
        ledger = QueueLedger(self.source / LEDGER_NAME, ReadOnlyDisk())
        listed = ledger.read()
        if listed is not None and is_ledger_current(self.source, checkpoint, ledger.store_id):
            return listed
        found = KnownQueues()
        for name in _QUEUES:
            for folder in sorted((self.source / name).glob("*/*")):
                if folder.name.isdecimal() and (known := self._queue_ends(folder, is_batch=name == _QUEUES[1])):
                    found.queues[folder.parent.name, int(folder.name)] = known
        if topics is not None:
            kept = topics | {topic for topic, _ in found.queues}
            found.deleted = dict.fromkeys(self._log_topics - kept, self._log_end)
        return found

    def _queue_ends(self, folder: Path, *, is_batch: bool) -> KnownQueue | None:
        """Return the ends of a queue by its files, up to the first unit that does not continue the one before."""
        segments = segments_in(folder, self._opened)
        kind: type[TopicQueue] = BatchQueue if is_batch else ConsumeQueue
        first = end = None
        before = -1
        for segment in segments:
            for at in range(0, segment.size - kind.unit_bytes + 1, kind.unit_bytes):
                unit = segment.read(at, kind.unit_bytes)
                position, size, _ = UNIT.unpack_from(unit)
                offset = (segment.start + at) // kind.unit_bytes
                stop = offset + 1
                if is_batch:
                    offset, messages = _BATCH_OFFSETS.unpack(unit)
                    stop = offset + messages
                if size <= 0 or position < before or stop <= offset or (end is not None and offset != end):
                    return None if first is None or end is None else KnownQueue(is_batch, end, end, first)
                first, end, before = offset if first is None else first, stop, position
        return None if first is None or end is None else KnownQueue(is_batch, end, end, first)


def _read(descriptor: int, at: int, size: int) -> tuple[bytes, int]:
    """Return bytes of a file, and the number of those that could not be read and are zero."""
    try:
        return os.pread(descriptor, size, at), 0
    except OSError:
        if size <= _BLOCK_BYTES:
            return bytes(size), size
    pieces = [
        _read(descriptor, block, min(_BLOCK_BYTES, at + size - block)) for block in range(at, at + size, _BLOCK_BYTES)
    ]
    return b"".join(piece for piece, _ in pieces), sum(lost for _, lost in pieces)


def _largest(folder: Path) -> int:
    sizes = (path.stat().st_size for path in folder.glob("*/*/*") if path.name.isdecimal())
    return max(sizes, default=0)


def _any_names(raw: object) -> Collection[str]:
    return raw if isinstance(raw, dict) else ()
