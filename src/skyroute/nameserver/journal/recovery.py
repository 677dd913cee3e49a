"""Recovery of a journal at start: closes open segments, and finds the last sequence number."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skyroute.files.disk import Disk
from skyroute.files.errors import FileWriteError
from skyroute.files.replace import replace_file
from skyroute.nameserver.journal.index import Index, load_index
from skyroute.nameserver.journal.schema import Kind
from skyroute.nameserver.journal.segments import close_torn, open_segments, read_mark

log = logging.getLogger(__name__)

ALIVE_NAME: Final = "_alive"
"""File with the time at which the name server was last known to run, in milliseconds since 1970."""

_TAIL_BYTES: Final = 4096
"""Bytes read at the end of a segment: enough for the record of a stop."""


@dataclass(frozen=True, slots=True)
class RecoveredJournal:
    """Result of a recovery."""

    index: Index
    last: int
    """Sequence numbers up to this one must not be used again."""
    torn_bytes: int
    ended_in_order: bool
    """Whether the last record is that of a stop, or there is no record."""
    alive_ms: int | None = None
    """Wall time of the last sign of life; None if the journal is of a version without such a file."""


def recover(folder: Path, disk: Disk, floor: int = 0) -> RecoveredJournal:
    """Close the segments that a crash left open, and find the last sequence number.

    Raises:
        OSError, FileWriteError: the folder cannot be read or written.
    """
    torn_bytes = 0
    for path in open_segments(folder).values():
        closed = close_torn(path, disk)
        torn_bytes += closed.torn_bytes
        records = closed.segment.records if closed.segment else 0
        log.warning("journal segment closed after a crash file=%s records=%d torn=%d", path, records, closed.torn_bytes)
    index, removed = load_index(folder)
    for segment in removed:
        log.warning("journal segment missing file=%s first=%d last=%d", segment.name, segment.first, segment.last)
    index.write(disk)
    last = max(floor, index.last, *(segment.last for segment in removed), 0)
    ended_in_order = last == 0 or _ends_with_stop(index, last)
    return RecoveredJournal(index, last, torn_bytes, ended_in_order, read_alive(folder))


def write_alive(folder: Path, disk: Disk, wall_ms: int) -> None:
    """Replace the file with the time of the last sign of life. An error is only logged: the next one follows soon."""
    try:
        replace_file(folder / ALIVE_NAME, b"%d\n" % wall_ms, keep_backup=False, disk=disk)
    except FileWriteError as error:
        log.debug("sign of life not written reason=%s", error)


def read_alive(folder: Path) -> int | None:
    """Return the wall time of the last sign of life; None if there is none, or the file is damaged."""
    try:
        return int((folder / ALIVE_NAME).read_bytes())
    except (OSError, ValueError):
        return None


def _ends_with_stop(index: Index, last: int) -> bool:
    if index.last != last:
        return False
    newest = max(index.segments.values(), key=lambda segment: segment.last)
    with (index.folder / newest.name).open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
        lines = file.read().splitlines()
    mark = read_mark(lines[-1]) if lines else None
    return mark is not None and mark.kind == Kind.SERVER_STOPPED
