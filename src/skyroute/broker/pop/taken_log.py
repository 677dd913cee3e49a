"""Messages that a crash of the broker must not deliver again: acknowledged ones, and those with a check point.

`consumerOffset.json` is written every 5 s, and an offset cannot skip a message in the middle of a queue. This log has
what was taken since the last write: one JSON line for each acknowledgement or check point, in a file that the next
write replaces. It is not flushed to the disk: a killed process loses nothing of it. After a restart of the machine it
is not used, because the commit log may have lost records too.
"""

import logging
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from operator import le
from pathlib import Path
from typing import Any, Final

import msgspec

from skyroute.files.disk import Disk
from skyroute.files.errors import FileWriteError

log = logging.getLogger(__name__)

LOG_BYTES_MAX: Final = 64 << 20
"""Size of the file; what does not fit may come again after a crash."""

STALE_S: Final = 60.0
"""A log that is this much older than the file of offsets is not used: another broker had the folder meanwhile."""

QueueKey = tuple[str, str, int]
"""Group, topic and queue."""

_FORMAT: Final = "skyroute-pop-taken-1"


class OffsetRanges:
    """A set of offsets, as ascending ranges that do not touch."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, offsets: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in sorted(offsets):
            if self._lasts and first <= self._lasts[-1] + 1:
                self._lasts[-1] = max(last, self._lasts[-1])
            else:
                self._firsts.append(first)
                self._lasts.append(last)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def gap(self, offset: int) -> tuple[int, int | None]:
        """Return the first offset from `offset` on that is not in the set, and the next one that is."""
        at = bisect_right(self._firsts, offset)
        if at and offset <= self._lasts[at - 1]:
            offset = self._lasts[at - 1] + 1
        return offset, self._firsts[at] if at < len(self._firsts) else None


def ranges_of(offsets: tuple[int, ...]) -> list[int]:
    """Return ascending offsets as ranges: first, last, first, last."""
    if offsets[-1] - offsets[0] == len(offsets) - 1:  # the usual case: no gaps
        return [offsets[0], offsets[-1]]
    ranges: list[int] = []
    for offset in offsets:
        if ranges and offset == ranges[-1] + 1:
            ranges[-1] = offset
        else:
            ranges += (offset, offset)
    return ranges


class TakenLog:
    """Appends what was taken to one of two files. Both are read at the start."""

    def __init__(self, folder: Path, disk: Disk, *, bytes_max: int = LOG_BYTES_MAX) -> None:
        self._paths = (folder / "popTaken.0", folder / "popTaken.1")
        self._disk = disk
        self._bytes_max = bytes_max
        self._sequence = 0
        """Number of the current file; its name has the last bit."""
        self._descriptor = -1
        self._size = 0
        self.has_entries = False
        """The current file has more than its first line."""
        self.lost = 0
        """Lines that were not written."""

    def __repr__(self) -> str:
        return f"<TakenLog {self._path} bytes={self._size}>"

    @property
    def _path(self) -> Path:
        return self._paths[self._sequence & 1]

    def load(self, offsets_file: Path) -> dict[QueueKey, OffsetRanges]:
        """Return what was taken since the file of offsets was written, by queue."""
        files: list[tuple[int, list[bytes]]] = []
        for path in self._paths:
            try:
                first, *lines = path.read_bytes().split(b"\n")
                is_stale = offsets_file.exists() and offsets_file.stat().st_mtime - path.stat().st_mtime > STALE_S
            except OSError:
                continue
            head = _decode(first)
            if head is None or head[:2] != [_FORMAT, self._disk.boot_id()] or not head[1] or is_stale:
                log.info("taken messages of an earlier run ignored file=%s", path)
            else:
                files.append((int(head[2]), lines[:-1]))  # the last line has no end
        ranges: dict[QueueKey, list[tuple[int, int]]] = {}
        for sequence, lines in sorted(files):
            self._sequence = sequence
            for line in lines:
                entry = _decode(line)
                if entry is None:
                    log.warning("taken messages skipped, a line is damaged file=%s line=%r", self._path, line[:200])
                    continue
                group, topic, queue_id, *offsets = entry
                if offsets:
                    pairs = zip(offsets[::2], offsets[1::2], strict=True)
                    ranges.setdefault((group, topic, queue_id), []).extend(pairs)
                else:
                    ranges.pop((group, topic, queue_id), None)
        return {key: OffsetRanges(found) for key, found in ranges.items()}

    def begin(self) -> None:
        """Start the other file. The previous one stays until `drop_previous`.

        Raises:
            FileWriteError: nothing is logged until the next call.
        """
        self._close()
        self._sequence += 1
        self._disk.remove(self._path)
        self._size = 0
        self._descriptor = self._disk.open(self._path, 0)
        self._append([_FORMAT, self._disk.boot_id(), self._sequence])
        self.has_entries = False

    def drop_previous(self) -> None:
        """Remove the previous file: the offsets were written after the current one was started.

        Raises:
            FileWriteError: it cannot be removed.
        """
        self._disk.remove(self._paths[(self._sequence - 1) & 1])

    def note_taken(self, key: QueueKey, offsets: tuple[int, ...]) -> None:
        """Note that messages must not be popped again. `offsets` are ascending."""
        self._append([*key, *ranges_of(offsets)])

    def note_ranges(self, key: QueueKey, ranges: Iterable[tuple[int, int]]) -> None:
        """As `note_taken`, for ranges."""
        flat = [offset for pair in ranges for offset in pair]
        if flat:
            self._append([*key, *flat])

    def note_reset(self, group: str, topic: str, queue_id: int) -> None:
        """Note that all messages of a queue may be popped again: its offset was reset."""
        self._append([group, topic, queue_id])

    def _append(self, entry: list[Any]) -> None:
        if self._descriptor < 0 or self._size > self._bytes_max:
            self.lost += 1
            return
        line = msgspec.json.encode(entry) + b"\n"
        try:
            self._disk.write(self._descriptor, line, self._size)
        except FileWriteError as error:
            log.warning("taken messages not logged, they may come again after a crash reason=%s", error)
            self.lost += 1
            self._close()
        else:
            self._size += len(line)
            self.has_entries = True

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def close(self, *, remove: bool) -> None:
        """Close the file; with `remove`, remove both: all offsets are on the disk.

        Raises:
            FileWriteError: a file cannot be removed.
        """
        self._close()
        for path in self._paths if remove else ():
            self._disk.remove(path)


def _decode(line: bytes) -> list[Any] | None:
    """Return the members of a line; None if it is damaged."""
    try:
        entry: list[Any] = msgspec.json.decode(line, type=list[str | int])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    kinds = [type(member) for member in entry]
    is_whole = len(entry) % 2 == 1 and kinds == [str, str, *[int] * (len(entry) - 2)]
    return entry if is_whole and all(map(le, entry[3::2], entry[4::2])) else None
