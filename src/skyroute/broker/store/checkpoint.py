"""How far the files can be trusted: Apache's five numbers, and two of our own where Apache does not look."""

import mmap
import os
from pathlib import Path
from struct import Struct
from typing import Final

from skyroute.broker.store.disk import Disk

_BYTES: Final = 4096
_TIMES: Final = Struct(">qqq")
_OURS: Final = Struct(">8sqq")
_OURS_AT: Final = 2048
_MARK: Final = b"skyroute"
_MARGIN_MS: Final = 3_000


class Checkpoint:
    """Times of the newest messages that are on the disk, and the newest record that queues and index know of.

    The times are for what a machine's crash leaves; the record is for what the death of a process leaves.
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
        """A record stored before this, and all that is derived from it, was on the disk."""
        return min(self.log_ms, self.queues_ms) - _MARGIN_MS

    @property
    def last_derived(self) -> tuple[int, int] | None:
        """Position and size of the newest record that queues and index know of; None where nobody has said."""
        mark, position, size = _OURS.unpack_from(self._map, _OURS_AT)
        return (position, size) if mark == _MARK and size > 0 else None

    def note_derived(self, position: int, size: int) -> None:
        """Say that queues and index are written up to this record. Not for the disk: for the next process."""
        _OURS.pack_into(self._map, _OURS_AT, _MARK, position, size)

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
