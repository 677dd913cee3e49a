"""The checkpoint file: up to where log, queues and index are written, and on disk.

Apache's broker reads and writes three times and, in controller mode, the confirmed position. Seven notes of ours are
behind them, where Apache's broker does not look.
"""

import mmap
import os
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from skyroute.files.disk import Disk

_BYTES: Final = 4096
_TIMES: Final = Struct(">qqq")
_CONFIRMED: Final = Struct(">q")
_CONFIRMED_AT: Final = 32
_DERIVED: Final = Struct(">qq")
_DERIVED_AT: Final = 2048
_ON_DISK: Final = Struct(">qqqq")
_ON_DISK_AT: Final = 2304
_CLOSED: Final = Struct(">qqqq")
_CLOSED_AT: Final = 2560
_BATCH: Final = Struct(">q")
_BATCH_AT: Final = 2816
_NO_BATCH: Final = bytes(_BATCH.size)
_FAILED: Final = Struct(">q")
_FAILED_AT: Final = 3072
_PARTIAL: Final = Struct(">q")
_PARTIAL_AT: Final = 3328
_STORE_ID: Final = Struct(">q")
_STORE_ID_AT: Final = 3584
_CHECKSUM_START: Final = crc32(b"skyroute")
"""Initial value of the checksums of our notes, so that zeros are no valid note."""
_CHECKSUM: Final = Struct(">I")
_NO_PARTIAL_SIZE: Final = _PARTIAL.size + _CHECKSUM.size
_MARGIN_MS: Final = 3_000


class OnDisk(NamedTuple):
    """A record up to which log, queues and index are on disk, and the size of the index at that record."""

    position: int
    size: int
    index_file: int
    """The name of the newest index file, which is a number; 0 if there is no index."""
    index_count: int

    @property
    def end(self) -> int:
        """The position behind that record."""
        return self.position + self.size


class Checkpoint:
    """Times of the newest records that are on disk, and the newest records that queues and index have.

    Apache's broker has the times only. Two records are ours: after a crash of the process, queues and index are written
    up to `last_dispatched`; after a crash of the machine, everything up to `on_disk` is on disk.
    """

    def __init__(self, path: Path, disk: Disk) -> None:
        self._disk = disk
        self._descriptor = disk.open(path, _BYTES)
        try:
            content = os.pread(self._descriptor, _BYTES, 0).ljust(_BYTES, b"\0")
            # Writing it whole allocates disk space for the writes through the mapping.
            disk.write(self._descriptor, content, 0)
            self._map = mmap.mmap(self._descriptor, _BYTES)
        except BaseException:
            os.close(self._descriptor)
            raise
        self.log_ms: int
        self.queues_ms: int
        self.index_ms: int
        self.log_ms, self.queues_ms, self.index_ms = _TIMES.unpack_from(content, 0)

    @property
    def trusted_ms(self) -> int:
        """Records stored before this time, with their units and keys, are on disk, whichever broker wrote them."""
        return min(self.log_ms, self.queues_ms) - _MARGIN_MS

    @property
    def last_dispatched(self) -> tuple[int, int] | None:
        """Position and size of the newest record that queues and index have; None without a valid note."""
        numbers = self._read_note(_DERIVED, _DERIVED_AT)
        return None if numbers is None else (numbers[0], numbers[1])

    @property
    def on_disk(self) -> OnDisk | None:
        """Up to where everything is on disk; None without a valid note."""
        numbers = self._read_note(_ON_DISK, _ON_DISK_AT)
        return None if numbers is None else OnDisk(*numbers)

    def note_dispatched(self, position: int, size: int) -> None:
        """Note that queues and index are written up to this record. Survives the process, not the machine."""
        self._write_note(_DERIVED.pack(position, size), _DERIVED_AT)

    def note_on_disk(self, found: OnDisk) -> None:
        """Note what is on disk; `save` puts the note on disk."""
        self._write_note(_ON_DISK.pack(*found), _ON_DISK_AT)

    @property
    def closed_end(self) -> int | None:
        """The end of the log when this broker closed the store; None if Apache's did, or if the store is open."""
        numbers = self._read_note(_CLOSED, _CLOSED_AT)
        is_ours = numbers is not None and numbers[1:] == (self.log_ms, self.queues_ms, self.index_ms)
        return numbers[0] if numbers is not None and is_ours else None

    def note_closed(self, log_end: int) -> None:
        """Note, on disk, the end of the log of a closed store; void once Apache's broker changes the times."""
        self._write_note(_CLOSED.pack(log_end, self.log_ms, self.queues_ms, self.index_ms), _CLOSED_AT)
        self.save()

    @property
    def partial_record(self) -> int | None:
        """The position of the partial record at the end of a closed slave's log; None if its last record is whole."""
        numbers = self._read_note(_PARTIAL, _PARTIAL_AT)
        return None if numbers is None else numbers[0]

    def note_partial(self, position: int | None) -> None:
        """Note the partial record at the end of a log that is being closed; None if there is none."""
        if position is None:
            self._map[_PARTIAL_AT : _PARTIAL_AT + _PARTIAL.size + _CHECKSUM.size] = bytes(
                _PARTIAL.size + _CHECKSUM.size
            )
        else:
            self._write_note(_PARTIAL.pack(position), _PARTIAL_AT)

    def note_confirmed(self, position: int) -> None:
        """Note up to where all replicas in sync have the log; `save` puts the note on disk."""
        _CONFIRMED.pack_into(self._map, _CONFIRMED_AT, position)

    def clear_closed(self) -> None:
        """Note that the store is open."""
        self._map[_CLOSED_AT : _CLOSED_AT + _CLOSED.size] = bytes(_CLOSED.size)

    @property
    def unfinished_batch(self) -> int | None:
        """The position of a batch whose write to the log did not end before the process died; None if there is none."""
        numbers = self._read_note(_BATCH, _BATCH_AT)
        return None if numbers is None else numbers[0] - 1

    def begin_batch(self, position: int) -> None:
        """Note that a batch is being written to the log. Not for the disk: for the next process."""
        self._write_note(_BATCH.pack(position + 1), _BATCH_AT)  # never zero: `end_batch` must change it

    def end_batch(self) -> None:
        """Note that all of it is written, or nothing."""
        self._map[_BATCH_AT : _BATCH_AT + _BATCH.size] = _NO_BATCH

    @property
    def store_id(self) -> int:
        """Id of the store, which its queue ledger has as well; 0 if unknown."""
        numbers = self._read_note(_STORE_ID, _STORE_ID_AT)
        return 0 if numbers is None else numbers[0]

    def note_store_id(self, store_id: int) -> None:
        """Note the id of the store; `save` puts the note on disk."""
        self._write_note(_STORE_ID.pack(store_id), _STORE_ID_AT)

    @property
    def has_failed_flush(self) -> bool:
        """Whether a flush has failed since the store was opened: the system may have dropped writes it still shows."""
        return self._read_note(_FAILED, _FAILED_AT) is not None

    def note_failed_flush(self) -> None:
        """Note that a flush failed. Not for the disk: for the next process."""
        self._write_note(_FAILED.pack(1), _FAILED_AT)

    def clear_failed_flush(self) -> None:
        """Note that everything was written again."""
        self._map[_FAILED_AT : _FAILED_AT + _FAILED.size] = bytes(_FAILED.size)

    def note_rebuild(self, position: int) -> None:
        """Note, on disk, that queues and index lack records from this position on.

        Raises:
            FileWriteError: the note may not be on disk.
        """
        self.note_dispatched(position, 0)
        self.note_on_disk(OnDisk(position, 0, 0, 0))
        self.save()

    def note_flush(self, log_ms: int, queues_ms: int, index_ms: int, on_disk: OnDisk | None) -> None:
        """Note, on disk, the times of the newest records of log, queues and index that a flush has put on disk.

        Raises:
            FileWriteError: the note may not be on disk.
        """
        self.log_ms = log_ms
        self.queues_ms = queues_ms or self.queues_ms
        self.index_ms = index_ms or self.index_ms
        if on_disk is not None:
            self.note_on_disk(on_disk)
        self.save()

    def save(self) -> None:
        """Put times and notes on disk.

        Raises:
            FileWriteError: they may not be on disk.
        """
        _TIMES.pack_into(self._map, 0, self.log_ms, self.queues_ms, self.index_ms)
        self._disk.sync(self._descriptor)

    def _write_note(self, note: bytes, at: int) -> None:
        note_and_sum = note + _CHECKSUM.pack(crc32(note, _CHECKSUM_START))
        self._map[at : at + len(note_and_sum)] = note_and_sum

    def _read_note(self, layout: Struct, at: int) -> tuple[int, ...] | None:
        """Return the numbers of a note; None if it is missing or damaged."""
        note = self._map[at : at + layout.size]
        (checksum,) = _CHECKSUM.unpack_from(self._map, at + layout.size)
        return layout.unpack(note) if checksum == crc32(note, _CHECKSUM_START) else None

    def close(self) -> None:
        self._map.close()
        os.close(self._descriptor)


class CheckpointPage(NamedTuple):
    """The content of a checkpoint, read without opening the store."""

    times: tuple[int, int, int]
    last_dispatched: tuple[int, int] | None
    closed_end: int | None
    """As of `Checkpoint`."""
    unfinished_batch: int | None
    """As of `Checkpoint`."""
    store_id: int
    """As of `Checkpoint`."""
    damaged: list[int]
    """Offsets of notes with a wrong checksum."""


def parse_checkpoint(page: bytes) -> CheckpointPage:
    """Parse a page, whether or not its checksums are right."""
    page = page.ljust(_BYTES, b"\0")
    found: dict[int, tuple[int, ...]] = {}
    damaged = []
    notes = (_DERIVED, _DERIVED_AT), (_ON_DISK, _ON_DISK_AT), (_CLOSED, _CLOSED_AT), (_BATCH, _BATCH_AT)
    for layout, at in (*notes, (_FAILED, _FAILED_AT), (_PARTIAL, _PARTIAL_AT), (_STORE_ID, _STORE_ID_AT)):
        note = page[at : at + layout.size]
        (checksum,) = _CHECKSUM.unpack_from(page, at + layout.size)
        if any(note) and checksum != crc32(note, _CHECKSUM_START):
            damaged.append(at)
        elif any(note):
            found[at] = layout.unpack(note)
    log_ms, queues_ms, index_ms = times = _TIMES.unpack_from(page)
    derived, closed, batch = found.get(_DERIVED_AT), found.get(_CLOSED_AT), found.get(_BATCH_AT)
    return CheckpointPage(
        (log_ms, queues_ms, index_ms),
        None if derived is None else (derived[0], derived[1]),
        closed[0] if closed is not None and closed[1:] == times else None,
        None if batch is None else batch[0] - 1,
        found.get(_STORE_ID_AT, (0,))[0],
        damaged,
    )
