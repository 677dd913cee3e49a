"""The files of a journal: one open segment, whose name readers skip, and closed segments.

A closed segment is named by its first sequence number and never changes.
"""

import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from skyroute.files.disk import Disk
from skyroute.files.errors import FileWriteError
from skyroute.nameserver.journal.schema import Mark, mark_decoder

_CLOSED: Final = re.compile(r"(\d{20})\.jsonl")
_OPEN: Final = re.compile(r"_(\d{20})\.jsonl\.open")


class Segment(msgspec.Struct, frozen=True):
    """The summary of a closed segment."""

    first: int
    last: int
    """First and last sequence number, including gaps."""
    records: int
    min_ms: int
    max_ms: int
    """Smallest and largest wall time: the clock may step back."""
    size_bytes: int
    crc32: int | None = None
    """Checksum of all bytes; None in an index of a version without checksums."""

    @property
    def name(self) -> str:
        return f"{self.first:020}.jsonl"


def closed_segments(folder: Path) -> dict[int, Path]:
    """Return closed segments by their first sequence number, in order."""
    return _matching(folder, _CLOSED)


def open_segments(folder: Path) -> dict[int, Path]:
    """Return segments that are being written, or that a crash left open."""
    return _matching(folder, _OPEN)


def _matching(folder: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    found = ((pattern.fullmatch(path.name), path) for path in folder.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def read_content(path: Path, offset: int = 0) -> bytes | None:
    """Return the content of a segment from an offset on, also if it was closed meanwhile; None if it was removed."""
    for each in (path, path.with_name(path.name.removeprefix("_").removesuffix(".open"))):
        try:
            with each.open("rb") as file:
                file.seek(offset)
                return file.read()
        except FileNotFoundError:
            continue
    return None


def whole_lines(content: bytes) -> bytes:
    """Return the complete lines of a file's content, without a torn last line."""
    return content[: content.rfind(b"\n") + 1]


def read_mark(line: bytes) -> Mark | None:
    """Decode the `Mark` of a line; None if the line is damaged."""
    try:
        return mark_decoder.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def summarize(content: bytes, first: int) -> Segment | None:
    """Return the summary of a segment's content; None if it has no record. Damaged lines are skipped.

    `first` is the number in the name of the file: the first line may be damaged.
    """
    marks = [mark for line in content.splitlines() if (mark := read_mark(line)) is not None]
    if not marks:
        return None
    times = [mark.wall_ms for mark in marks]
    return Segment(
        first=first,
        last=max(first, *(mark.seq for mark in marks)),
        records=len(marks),
        min_ms=min(times),
        max_ms=max(times),
        size_bytes=len(content),
        crc32=zlib.crc32(content),
    )


@dataclass(slots=True)
class OpenSegment:
    """The segment that is being written. A call that raises leaves it as it was."""

    folder: Path
    disk: Disk
    first: int
    opened_at: float
    """Monotonic seconds."""
    _descriptor: int = -1
    _last: int = 0
    _records: int = 0
    _min_ms: int = 0
    _max_ms: int = 0
    _crc32: int = 0
    size_bytes: int = 0

    @property
    def path(self) -> Path:
        return self.folder / f"_{self.first:020}.jsonl.open"

    def open(self) -> None:
        """Create the file.

        Raises:
            FileWriteError: it cannot be created.
        """
        self._descriptor = self.disk.create(self.path)

    def write(self, data: bytes, *, last: int, records: int, times: tuple[int, int]) -> None:
        """Append whole lines. `last` is the last sequence number in them, `times` the smallest and the largest time.

        Raises:
            FileWriteError: nothing was appended.
            TornSegmentError: a part was appended and could not be cut off; use another segment.
        """
        try:
            self.disk.write(self._descriptor, data, self.size_bytes)
        except FileWriteError as error:
            try:
                self.disk.cut(self._descriptor, self.size_bytes, self.size_bytes)
            except FileWriteError:
                os.close(self._descriptor)
                raise TornSegmentError(str(error)) from error
            raise
        self._min_ms = min(self._min_ms, times[0]) if self._records else times[0]
        self._max_ms = max(self._max_ms, times[1]) if self._records else times[1]
        self._last = last
        self._records += records
        self._crc32 = zlib.crc32(data, self._crc32)
        self.size_bytes += len(data)

    def sync(self) -> None:
        """Wait until everything is on disk.

        Raises:
            FileWriteError: some of it may not be on disk.
        """
        self.disk.sync(self._descriptor)

    def finish(self) -> Segment:
        """Close the file and rename it to the name of a closed segment.

        Raises:
            FileWriteError: it still has the name of an open segment; `close_torn` can close it later.
        """
        try:
            self.disk.sync(self._descriptor)
        finally:
            os.close(self._descriptor)
        done = Segment(self.first, self._last, self._records, self._min_ms, self._max_ms, self.size_bytes, self._crc32)
        self.disk.replace(self.path, self.folder / done.name)
        self.disk.sync_folder(self.folder)
        return done


class TornSegmentError(FileWriteError):
    """A segment may end within a line and takes no more lines."""


@dataclass(frozen=True, slots=True)
class ClosedTorn:
    """The result of `close_torn`."""

    segment: Segment | None
    """None if the file had no complete line and was removed."""
    torn_bytes: int
    """Bytes of the incomplete last line that were cut off."""


def close_torn(path: Path, disk: Disk) -> ClosedTorn:
    """Close an open segment that a crash or an error left behind; cut off an incomplete last line.

    Raises:
        FileWriteError: the segment is still open; at most the incomplete line is gone.
        OSError: the file cannot be read.
    """
    content = path.read_bytes()
    whole = whole_lines(content)
    first = int(path.name.removeprefix("_").removesuffix(".jsonl.open"))
    segment, torn_bytes = summarize(whole, first), len(content) - len(whole)
    if segment is None:
        disk.remove(path)
        return ClosedTorn(None, torn_bytes)
    if torn_bytes:
        descriptor = disk.open(path, 0)
        try:
            disk.cut(descriptor, len(whole), len(whole))
            disk.sync(descriptor)
        finally:
            os.close(descriptor)
    target = path.with_name(segment.name)
    if target.exists():
        raise FileWriteError(f"cannot rename {path} to {target.name}: that file exists; remove one of them")
    disk.replace(path, target)
    disk.sync_folder(path.parent)
    return ClosedTorn(segment, torn_bytes)
