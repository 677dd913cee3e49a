"""How far the files can be trusted: Apache's five numbers, and two of our own where Apache does not look."""

import mmap
import os
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from skyroute.broker.store.disk import Disk

_BYTES: Final = 4096
_TIMES: Final = Struct(">qqq")
_DERIVED: Final = Struct(">8sqq")
_DERIVED_AT: Final = 2048
_ON_DISK: Final = Struct(">8sqqqq")
_ON_DISK_AT: Final = _DERIVED_AT + _DERIVED.size
_MARK: Final = b"skyroute"
_MARGIN_MS: Final = 3_000


class OnDisk(NamedTuple):
    """A record up to which all is on the disk, and how far the index had come with it."""

    position: int
    size: int
    index_file: int
    """Its name, which is a number; 0 where there is no index."""
    index_count: int

    @property
    def end(self) -> int:
        """The position behind that record."""
        return self.position + self.size


class Checkpoint:
    """Times of the newest messages that are on the disk, and the newest records that queues and index know of.

    The times are all that Apache has. Of the records, one is for what the death of a process leaves: queues and index
    are written up to it. The other is for what a machine's crash leaves: up to it, all is on the disk.
    """

    def __init__(self, path: Path, disk: Disk) -> None:
        self._disk = disk
        self._descriptor = disk.open(path, _BYTES)
        try:
            content = os.pread(self._descriptor, _BYTES, 0).ljust(_BYTES, b"\0")
            # Written whole once, so that there is room on the disk for what goes through the mapping.
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
        """A record stored before this, and all that is derived from it, was on the disk, whoever wrote it."""
        return min(self.log_ms, self.queues_ms) - _MARGIN_MS

    @property
    def last_derived(self) -> tuple[int, int] | None:
        """Position and size of the newest record that queues and index know of; None where nobody has said."""
        mark, position, size = _DERIVED.unpack_from(self._map, _DERIVED_AT)
        return (position, size) if mark == _MARK and size > 0 else None

    @property
    def on_disk(self) -> OnDisk | None:
        """What is known to be on the disk; None where nobody has said."""
        mark, *numbers = _ON_DISK.unpack_from(self._map, _ON_DISK_AT)
        found = OnDisk(*numbers)
        return found if mark == _MARK and found.size > 0 else None

    def note_derived(self, position: int, size: int) -> None:
        """Say that queues and index are written up to this record. Not for the disk: for the next process."""
        _DERIVED.pack_into(self._map, _DERIVED_AT, _MARK, position, size)

    def note_on_disk(self, found: OnDisk) -> None:
        """Say what is on the disk; so is the note itself, once it is saved."""
        _ON_DISK.pack_into(self._map, _ON_DISK_AT, _MARK, *found)

    def save(self) -> None:
        """Put the times on the disk.

        Raises:
            StoreWriteError: they may not be there.
        """
        _TIMES.pack_into(self._map, 0, self.log_ms, self.queues_ms, self.index_ms)
        self._disk.sync(self._descriptor)

    def close(self) -> None:
        self._map.close()
        os.close(self._descriptor)
