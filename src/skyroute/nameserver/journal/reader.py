"""Reads a journal, also while it is being written. Readers take no lock and change nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from skyroute.nameserver.errors import DamagedJournalError
from skyroute.nameserver.journal.index import INDEX_NAME, read_index
from skyroute.nameserver.journal.schema import Record, record_decoder
from skyroute.nameserver.journal.segments import closed_segments, open_segments, read_content, whole_lines
from skyroute.nameserver.state_folder import JOURNAL_NAME


@dataclass(frozen=True, slots=True)
class Damage:
    """A line that cannot be decoded."""

    path: Path
    number: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.number}: {self.reason}"


def find_journal(path: Path) -> Path | None:
    """Return the folder of a journal, given that folder or `memoryPath`; None if it has neither index nor segment.

    Raises:
        OSError: the folder cannot be read.
    """
    folder = path / JOURNAL_NAME if (path / JOURNAL_NAME).is_dir() else path
    if not folder.is_dir():
        return None
    is_journal = (folder / INDEX_NAME).exists() or bool(closed_segments(folder) or open_segments(folder))
    return folder if is_journal else None


def read_records(folder: Path, *, after: int = 0, since_ms: int | None = None) -> Iterator[Record]:
    """Yield the records behind sequence number `after`, in order, including those of the open segment.

    Segments that end before `since_ms` by the index are skipped; others may have older records.

    Raises:
        DamagedJournalError: a line cannot be decoded.
        OSError: the folder cannot be read.
    """
    index = read_index(folder)
    # List open segments first: one that is closed meanwhile is then found under its new name.
    unfinished = open_segments(folder)
    closed = closed_segments(folder)
    starts = sorted({*closed, *unfinished})
    for at, first in enumerate(starts):
        known = index.get(first)
        ends_before = starts[at + 1] <= after + 1 if at + 1 < len(starts) else False
        if ends_before or (known is not None and since_ms is not None and known.max_ms < since_ms):
            continue
        for record in read_segment(closed.get(first) or unfinished[first]):
            if record.seq > after:
                after = record.seq
                yield record


def last_records(folder: Path, count: int) -> list[Record]:
    """Return the last records, in order, including those of the open segment.

    Raises:
        DamagedJournalError: a line cannot be decoded.
        OSError: the folder cannot be read.
    """
    paths = open_segments(folder) | closed_segments(folder)
    records: list[Record] = []
    for first in sorted(paths, reverse=True):
        records = [*read_segment(paths[first]), *records]
        if len(records) >= count:
            break
    return records[-count:]


@dataclass(slots=True)
class Follower:
    """Reads new records; each call continues where the last one ended."""

    folder: Path
    after: int = 0
    """The last sequence number that was read."""
    _first: int | None = None
    _offset: int = 0

    def read_new(self) -> Iterator[Record]:
        """Yield the records that were added since the last call.

        Raises:
            DamagedJournalError: a line cannot be decoded.
            OSError: the folder cannot be read.
        """
        while True:
            # List before reading: a segment that has a successor then gets no more records.
            paths = open_segments(self.folder) | closed_segments(self.folder)
            if self._first is None:
                self._first = max(
                    (first for first in paths if first <= self.after + 1), default=min(paths, default=None)
                )
            if self._first is None:
                return
            if self._first in paths:
                yield from self._read_on(paths[self._first])
            later = min((first for first in paths if first > self._first), default=None)
            if later is None:
                return
            self._first, self._offset = later, 0

    def _read_on(self, path: Path) -> Iterator[Record]:
        content = whole_lines(read_content(path, self._offset) or b"")
        self._offset += len(content)
        for record in _decode(content, path):
            if record.seq > self.after:
                self.after = record.seq
                yield record


def read_segment(path: Path) -> Iterator[Record]:
    """Yield the records of one segment; an incomplete last line of an open one is skipped.

    Raises:
        DamagedJournalError: a line cannot be decoded.
    """
    return _decode(whole_lines(read_content(path) or b""), path)


def decode_lines(content: bytes, path: Path) -> Iterator[Record | Damage]:
    """Yield the record of every line of a segment, and `Damage` for lines that cannot be decoded."""
    for number, line in enumerate(content.splitlines(), 1):
        try:
            yield record_decoder.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            yield Damage(path, number, f"{error}: {line[:80]!r}")


def _decode(content: bytes, path: Path) -> Iterator[Record]:
    for found in decode_lines(content, path):
        if isinstance(found, Damage):
            raise DamagedJournalError(str(found))
        yield found
