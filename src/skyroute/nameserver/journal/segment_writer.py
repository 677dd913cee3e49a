"""Writes records to the journal's segments: starts, syncs, finishes and removes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skyroute.clock import Clock
from skyroute.files.disk import Disk
from skyroute.nameserver.journal.index import Index
from skyroute.nameserver.journal.records import Numbered
from skyroute.nameserver.journal.retention import outdated
from skyroute.nameserver.journal.segments import OpenSegment, TornSegmentError, close_torn, open_segments
from skyroute.nameserver.server_events import Gap

SYNC_S: Final = 1.0
"""Maximum time between a write and its sync."""


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """Limits of sizes and ages."""

    segment_bytes: int = 16 * 1024 * 1024
    segment_s: float = 60.0
    total_bytes: int = 1024 * 1024 * 1024
    age_s: float = 7 * 86_400.0


class SegmentWriter:
    """The open segment and the index of the closed ones. For the writer thread."""

    def __init__(self, folder: Path, index: Index, limits: SegmentLimits, clock: Clock, disk: Disk) -> None:
        self._folder = folder
        self._index = index
        self._limits = limits
        self._clock = clock
        self._disk = disk
        self._closed_bytes = self._sum_of_closed()
        self._segment: OpenSegment | None = None
        self._unsynced_since: float | None = None
        """Time of the first write since the last sync; None if all is synced."""

    @property
    def is_open(self) -> bool:
        """Whether there is an open segment, which must be synced and finished in time."""
        return self._segment is not None

    @property
    def size_bytes(self) -> int:
        """Size of all segments."""
        segment = self._segment
        return self._closed_bytes + (0 if segment is None else segment.size_bytes)

    def write(self, data: bytes, batch: Sequence[Numbered]) -> None:
        """Append the encoded records of a batch.

        Raises:
            OSError, FileWriteError: nothing of the batch counts as written.
        """
        segment = self._segment
        if segment is not None and segment.size_bytes + len(data) > self._limits.segment_bytes:
            self._finish()
        segment = self._segment or self._open(batch[0])
        times = [numbered.wall_ms for numbered in batch]
        try:
            segment.write(data, last=batch[-1].seq, records=len(batch), times=(min(times), max(times)))
        except TornSegmentError:
            self._segment = None  # the next `_open` closes it
            raise
        if self._unsynced_since is None:
            self._unsynced_since = self._clock.monotonic()

    def finish_or_sync(self, *, closing: bool) -> None:
        """Finish the segment if it is old or the journal ends; sync it if the last sync is too long ago.

        Raises:
            OSError, FileWriteError: the disk refuses.
        """
        segment, now = self._segment, self._clock.monotonic()
        if segment is None:
            return
        if closing or now - segment.opened_at >= self._limits.segment_s:
            self._finish()
        elif self._unsynced_since is not None and now - self._unsynced_since >= SYNC_S:
            segment.sync()
            self._unsynced_since = None

    def _open(self, first: Numbered) -> OpenSegment:
        self._disk.make_folder(self._folder)  # it may have been removed
        for path in open_segments(self._folder).values():
            closed = close_torn(path, self._disk)
            if closed.segment is not None:
                self._index.add(closed.segment)
        number = first.change.missing_from if isinstance(first.change, Gap) else first.seq
        segment = OpenSegment(self._folder, self._disk, number, self._clock.monotonic())
        segment.open()
        self._segment = segment
        return segment

    def _finish(self) -> None:
        assert self._segment is not None
        segment, self._segment, self._unsynced_since = self._segment, None, None
        self._index.add(segment.finish())
        self._remove_old()
        self._closed_bytes = self._sum_of_closed()
        self._index.write(self._disk)

    def _remove_old(self) -> None:
        limits = self._limits
        for segment in outdated(
            self._index.segments.values(),
            bytes_max=limits.total_bytes,
            age_s_max=limits.age_s,
            now_wall_s=self._clock.wall(),
        ):
            self._disk.remove(self._folder / segment.name)
            del self._index.segments[segment.first]

    def _sum_of_closed(self) -> int:
        return sum(segment.size_bytes for segment in self._index.segments.values())
