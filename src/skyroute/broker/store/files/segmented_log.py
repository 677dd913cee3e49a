"""A row of segments in one folder, each named by the position it starts at."""

from pathlib import Path

from skyroute.broker.store.errors import StoreDamagedError
from skyroute.broker.store.files.segment import OpenSegments, Segment
from skyroute.files.disk import Disk


class SegmentedLog:
    """Finds, adds and removes segments. What they hold is its owner's business."""

    def __init__(self, folder: Path, segment_bytes: int, disk: Disk, opened: OpenSegments) -> None:
        self.folder = folder
        self.segment_bytes = segment_bytes
        self._disk = disk
        self._opened = opened
        self.segments: list[Segment] = []
        """In order. One may be missing in between, if somebody has taken it away."""
        self._by_number: dict[int, Segment] = {}
        self.short: dict[int, int] = {}
        """Sizes of files that were found shorter than a segment, by where they start. Opening fills them with zeros."""

    def load(self) -> None:
        """Find the segments of the folder.

        Raises:
            StoreDamagedError: they are not of the size that the settings say.
        """
        if not self.folder.is_dir():
            return
        files = sorted(path for path in self.folder.iterdir() if path.name.isdecimal())
        while files and files[-1].stat().st_size == 0:
            self._disk.remove(files.pop())  # created, and then the machine stopped
        sizes = [path.stat().st_size for path in files]
        whole = self.segment_bytes
        # One file, or the last one, may have been cut; several of one other size were written with other settings.
        are_others = len(files) > 1 and sizes[0] != whole and len(set(sizes)) == 1
        for path, size in zip(files, sizes, strict=True):
            start = int(path.name)
            if start % whole or size > whole or are_others:
                raise StoreDamagedError(
                    f"{path} has {size} bytes and starts at {start}, but the settings say that segments have "
                    f"{whole}: set the size that the files were written with"
                )
            if size < whole:
                self.short[start] = size
            self._admit(start)

    def find(self, position: int) -> Segment | None:
        """Return the segment that holds this position, or None."""
        return self._by_number.get(position // self.segment_bytes)

    def add(self, position: int) -> Segment:
        """Create the segment that holds this position, behind all others."""
        segment = self._admit(position - position % self.segment_bytes)
        try:
            segment.descriptor  # noqa: B018 - opening creates it; a disk that refuses must say so now
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
        """Make zero, or remove, everything from this position on. The first segment stays, and says where to go on."""
        while len(self.segments) > 1 and self.segments[-1].start >= position:
            self.segments[-1].remove()
            self._forget(self.segments[-1])
        if self.segments and position < self.segments[-1].stop:
            self.segments[-1].cut(max(position - self.segments[-1].start, 0))

    def remove_first(self) -> Segment:
        """Remove the oldest segment, and return what it was."""
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
