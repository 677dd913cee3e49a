"""Reading a journal, while it is written or long after. Readers take no lock and change nothing."""

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
    """A line that is no record."""

    path: Path
    number: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.number}: {self.reason}"


def find_journal(path: Path) -> Path | None:
    """The folder of a journal that is there or was, given it or `memoryPath`: it has an index, or a segment.

    Raises:
        OSError: The folder cannot be read.
    """
    folder = path / JOURNAL_NAME if (path / JOURNAL_NAME).is_dir() else path
    if not folder.is_dir():
        return None
    is_one = (folder / INDEX_NAME).exists() or bool(closed_segments(folder) or open_segments(folder))
    return folder if is_one else None


def read_records(folder: Path, *, after: int = 0, since_ms: int | None = None) -> Iterator[Record]:
    """Records with larger numbers than `after`, in order, those that are still being written included.

    Segments that end before `since_ms` are passed over if the index knows so; their neighbours may hold older records.

    Raises:
        DamagedJournalError: A line is no record.
        OSError: The folder cannot be read.
    """
    index = read_index(folder)
    # Those that are open come first into the list: one that is closed meanwhile is then found under its new name.
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
    """As many of the last records, in order, those that are still being written included.

    Raises:
        DamagedJournalError: A line is no record.
        OSError: The folder cannot be read.
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
    """Reads on, whenever it is asked, where it ended the last time."""

    folder: Path
    after: int = 0
    """The last number that was read."""
    _first: int | None = None
    _offset: int = 0

    def read_new(self) -> Iterator[Record]:
        """Records that were added since.

        Raises:
            DamagedJournalError: A line is no record.
            OSError: The folder cannot be read.
        """
        while True:
            # Listed before it is read, so that nothing can be added to a segment that has a successor.
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
    """Records of one segment; a torn last line of one that is not closed is passed over.

    Raises:
        DamagedJournalError: A line is no record.
    """
    return _decode(whole_lines(read_content(path) or b""), path)


def decode_lines(content: bytes, path: Path) -> Iterator[Record | Damage]:
    """Every line of a segment's content, also those that are no records."""
    for number, line in enumerate(content.splitlines(), 1):
        try:
            yield record_decoder.decode(line)
        except (msgspec.MsgspecError, ValueError) as error:
            yield Damage(path, number, f"{error}: {line[:80]!r}")


def _decode(content: bytes, path: Path) -> Iterator[Record]:
    for found in decode_lines(content, path):
        if isinstance(found, Damage):
            raise DamagedJournalError(str(found))
        yield found
