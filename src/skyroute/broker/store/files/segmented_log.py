"""Consecutive segments in one folder, each named by its start position."""

from pathlib import Path

from skyroute.broker.store.errors import StoreDamagedError
from skyroute.broker.store.files.segment import OpenSegments, Segment
from skyroute.files.disk import Disk


class SegmentedLog:
    """Finds, adds and removes segments."""

    def __init__(self, folder: Path, segment_bytes: int, disk: Disk, opened: OpenSegments) -> None:
        self.folder = folder
        self.segment_bytes = segment_bytes
        self._disk = disk
        self._opened = opened
        self.segments: list[Segment] = []
        """In order. A file in between may be missing."""
        self._by_number: dict[int, Segment] = {}
        self.short: dict[int, int] = {}
        """Sizes of files that were shorter than a segment, by start position. Opening extends them with zeros."""

    def load(self) -> None:
        """Find the segments of the folder.

        Raises:
            StoreDamagedError: their sizes differ from the settings.
        """
        if not self.folder.is_dir():
            return
        files = sorted(path for path in self.folder.iterdir() if path.name.isdecimal())
        while files and files[-1].stat().st_size == 0:
            self._disk.remove(files.pop())  # the machine stopped just after its creation
        sizes = [path.stat().st_size for path in files]
        whole = self.segment_bytes
        # A single file, or the last one, may be cut. Several files of one other size belong to other settings.
        are_others = len(files) > 1 and sizes[0] != whole and len(set(sizes)) == 1
        for path, size in zip(files, sizes, strict=True):
            start = int(path.name)
            if start % whole or size > whole or are_others:
                raise StoreDamagedError(
                    f"{path} has {size} bytes and starts at {start} (expected segments of {whole} bytes): "
                    "configure the size that the files were written with"
                )
            if size < whole:
                self.short[start] = size
            self._admit(start)

    def find(self, position: int) -> Segment | None:
        """Return the segment that holds this position, or None."""
        return self._by_number.get(position // self.segment_bytes)

    def add(self, position: int) -> Segment:
        """Create the segment that holds this position, behind all others.

        Raises:
            FileWriteError: it cannot be created.
        """
        segment = self._admit(position - position % self.segment_bytes)
        try:
            segment.descriptor  # noqa: B018 - opening creates the file, and raises if it cannot
        except BaseException:
            self._forget(segment)
            raise
        segment.is_new = True
        return segment

    def _admit(self, start: int) -> Segment:
        segment = Segment(self.folder / f"{start:020d}", start, self.segment_bytes, self._disk, self._opened)
        self.segments.append(segment)
        self._by_number[start // self.segment_bytes] = segment
        return segment

    def _forget(self, segment: Segment) -> None:
        self.segments.remove(segment)
        del self._by_number[segment.start // self.segment_bytes]

    def truncate(self, position: int) -> None:
        """Set everything from this position on to zero, or remove it. The first segment stays, for its position."""
        while len(self.segments) > 1 and self.segments[-1].start >= position:
            self.segments[-1].remove()
            self._forget(self.segments[-1])
        if self.segments and position < self.segments[-1].stop:
            self.segments[-1].cut(max(position - self.segments[-1].start, 0))

    def remove_first(self) -> Segment:
        """Remove the oldest segment and return it."""
        segment = self.segments[0]
        segment.remove()
        self._forget(segment)
        return segment

    def remove_all(self) -> None:
        while self.segments:
            self.remove_first()

    def close(self) -> None:
        for segment in self.segments:
            segment.close()
