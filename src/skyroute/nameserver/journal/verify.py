"""Whether a journal is whole: every line a record, every number there once, and what is missing accounted for."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from skyroute.nameserver.journal.index import read_index
from skyroute.nameserver.journal.schema import SCHEMA_VERSION, Kind, Mark, Record, record_decoder
from skyroute.nameserver.journal.segments import (
    Segment,
    closed_segments,
    open_segments,
    read_content,
    read_mark,
    summarize,
)


@dataclass(slots=True)
class Report:
    """What was found."""

    segments: int = 0
    unfinished: int = 0
    """Segments that are being written, or that the next start will close."""
    records: int = 0
    bytes: int = 0
    first: int | None = None
    last: int | None = None
    starts: int = 0
    stops: int = 0
    gaps: int = 0
    steps_back: int = 0
    """How often the wall clock was behind the record before."""
    problems: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.problems


def verify(folder: Path, report: Report | None = None) -> Report:
    """Read everything and compare; a report that is passed is filled while we read.

    Raises:
        OSError: The folder cannot be read.
    """
    report = report or Report()
    index = read_index(folder)
    unfinished = open_segments(folder)
    closed = closed_segments(folder)
    previous_ms = 0
    for first in sorted({*closed, *unfinished}):
        path = closed.get(first) or unfinished[first]
        try:
            content = read_content(path)
        except OSError as error:
            report.problems.append(f"{path.name} cannot be read: {error.strerror}")
            continue
        if content is None:
            continue  # let go since the folder was listed
        report.segments += first in closed
        report.unfinished += first not in closed
        report.bytes += len(content)
        previous_ms = _verify_lines(report, path.name, content, previous_ms, may_be_torn=first not in closed)
        if first in closed and first in index:
            _verify_against_index(report, index[first], content)
    # Asked again, as a server may have let some go meanwhile.
    for segment in read_index(folder).values():
        if not (folder / segment.name).exists():
            report.problems.append(f"segment {segment.name} is missing: numbers {segment.first} to {segment.last}")
    return report


def _verify_against_index(report: Report, known: Segment, content: bytes) -> None:
    if known.size_bytes == len(content) and known.crc32 not in (None, zlib.crc32(content)):
        report.problems.append(f"{known.name}: its bytes are not those that were written")
    if known.size_bytes != len(content):
        found = summarize(content)
        report.problems.append(
            f"{known.name}: the index knows {known.records} records in {known.size_bytes} bytes,"
            f" found {0 if found is None else found.records} in {len(content)}"
        )


def _verify_lines(report: Report, name: str, content: bytes, previous_ms: int, *, may_be_torn: bool) -> int:
    for number, line in _lines(report, name, content, may_be_torn=may_be_torn):
        mark, reason = _read(line)
        if mark is not None and mark.v > SCHEMA_VERSION:
            report.problems.append(f"{name}, line {number}: written by a newer version ({mark.v})")
        elif reason is not None:
            report.problems.append(f"{name}, line {number}: no record: {reason}")
        if mark is None:
            continue
        begins = mark.seq if mark.missing_from is None else mark.missing_from
        expected = begins if report.last is None else report.last + 1
        if begins > expected:
            report.problems.append(f"{name}, line {number}: numbers {expected} to {begins - 1} are missing")
        elif begins < expected:
            report.problems.append(f"{name}, line {number}: number {begins} comes after {expected - 1}")
        if report.first is None:
            report.first = begins
        report.last = max(mark.seq, report.last or 0)
        report.records += 1
        report.starts += mark.kind == Kind.SERVER_STARTED
        report.stops += mark.kind == Kind.SERVER_STOPPED
        report.gaps += mark.kind == Kind.GAP
        report.steps_back += mark.wall_ms < previous_ms
        previous_ms = mark.wall_ms
    return previous_ms


def _read(line: bytes) -> tuple[Record | Mark | None, str | None]:
    """A line's place in the journal, as far as it has one, and why it is no record that we can read."""
    try:
        return record_decoder.decode(line), None
    except (msgspec.MsgspecError, ValueError) as error:
        return read_mark(line), str(error)


def _lines(report: Report, name: str, content: bytes, *, may_be_torn: bool) -> Iterator[tuple[int, bytes]]:
    whole, _, torn = content.rpartition(b"\n")
    if torn and not may_be_torn:
        report.problems.append(f"{name}: the last line is torn ({len(torn)} bytes)")
    return enumerate(whole.splitlines(), 1)
