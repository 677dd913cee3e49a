"""A segment: one file of fixed size. The number of open segments is bounded."""

import mmap
import os
from collections import deque
from pathlib import Path
from typing import Final

from skyroute.files.disk import Disk
from skyroute.files.errors import FileReadError
from skyroute.settings.open_files import open_files_shared

OPEN_MAX: Final = 400
"""Maximum number of open segments, if the limit of open files allows it."""

OPEN_MIN: Final = 4

DESCRIPTORS: Final = 2
"""File descriptors of a mapped segment."""


def open_segments_allowed() -> int:
    """Return the maximum number of open segments: half of the open files that `open_files_shared` leaves."""
    return max(OPEN_MIN, min(OPEN_MAX, open_files_shared() // 2 // DESCRIPTORS))


class OpenSegments:
    """Closes the segment that was opened first when too many are open. A closed segment reopens when it is used."""

    def __init__(self, open_max: int = OPEN_MAX) -> None:
        self._open_max = open_max
        self._opened: deque[Segment] = deque()

    def admit(self, segment: "Segment") -> None:
        self._opened.append(segment)
        if len(self._opened) > self._open_max:
            self._opened.popleft().close()

    def close(self) -> None:
        """Close all segments."""
        while self._opened:
            self._opened.popleft().close()


class Segment:
    """A file of fixed size, named by the position of its first byte. Opened at its first use."""

    __slots__ = ("_descriptor", "_map", "_opened", "_view", "disk", "is_new", "path", "size", "start", "stop")

    def __init__(self, path: Path, start: int, size: int, disk: Disk, opened: OpenSegments) -> None:
        self.path = path
        self.start = start
        self.stop = start + size
        self.size = size
        self.disk = disk
        self.is_new = False
        """Its name may not be on disk."""
        self._opened = opened
        self._descriptor = -1
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None

    def __repr__(self) -> str:
        return f"<Segment {self.path} {self.start}..{self.stop}>"

    @property
    def descriptor(self) -> int:
        if self._descriptor < 0:
            self._descriptor = self.disk.open(self.path, self.size)
            self._opened.admit(self)
        return self._descriptor

    @property
    def content(self) -> mmap.mmap:
        """The memory-mapped file, for reading; `write` changes it at once. A slice is a copy."""
        if self._map is None:
            descriptor = self.descriptor
            try:
                self._map = mmap.mmap(descriptor, self.size, prot=mmap.PROT_READ)
            except OSError as error:
                raise FileReadError(f"cannot map {self.path}: {error.strerror}") from error
        return self._map

    @property
    def view(self) -> memoryview:
        """As `content`, but a slice is no copy.

        A slice stays valid after the segment is closed or removed: the last reader ends the mapping.
        """
        if self._view is None:
            self._view = memoryview(self.content)
        return self._view

    def read(self, at: int, size: int) -> bytes:
        """Return bytes of the file, fewer at its end.

        Raises:
            FileReadError: the file cannot be read.
        """
        descriptor = self.descriptor
        try:
            return os.pread(descriptor, size, at)
        except OSError as error:
            raise FileReadError(f"cannot read {self.path}: {error.strerror}") from error

    def write(self, at: int, data: bytes) -> None:
        """Write at an offset from the start of the segment.

        Raises:
            FileWriteError: a part may be written.
        """
        self.disk.write(self.descriptor, data, at)

    def cut(self, at: int) -> None:
        """Set everything from this offset on to zero."""
        self.disk.cut(self.descriptor, at, self.size)

    def note_flushed(self) -> None:
        """Note that a flush includes its name."""
        self.is_new = False

    def release_memory(self) -> None:
        """Release the pages that were read; the system's cache keeps them."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        self._map = self._view = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def remove(self) -> None:
        self.close()
        self.disk.remove(self.path)
