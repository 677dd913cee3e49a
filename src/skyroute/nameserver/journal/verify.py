"""Verifies a journal: every line is a record, every sequence number occurs once, and gap records cover missing ones."""

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
    """Result of a verification."""

    segments: int = 0
    unfinished: int = 0
    """Segments that are being written, or that the next start closes."""
    records: int = 0
    bytes: int = 0
    first: int | None = None
    last: int | None = None
    starts: int = 0
    stops: int = 0
    gaps: int = 0
    steps_back: int = 0
    """Number of records whose wall time is before that of the previous record."""
    problems: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.problems


def verify(folder: Path, report: Report | None = None) -> Report:
    """Read and check all segments. A given report is filled while they are read.

    Raises:
        OSError: the folder cannot be read.
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
            continue  # removed since the folder was listed
        report.segments += first in closed
        report.unfinished += first not in closed
        report.bytes += len(content)
        previous_ms = _verify_lines(report, path.name, content, previous_ms, may_be_torn=first not in closed)
        if first in closed and first in index:
            _verify_against_index(report, index[first], content)
    # Read again: a running server may have removed segments meanwhile.
    for segment in read_index(folder).values():
        if not (folder / segment.name).exists():
            report.problems.append(
                f"segment {segment.name} is missing: sequence numbers {segment.first} to {segment.last}"
            )
    return report


def _verify_against_index(report: Report, known: Segment, content: bytes) -> None:
    if known.size_bytes == len(content) and known.crc32 not in (None, zlib.crc32(content)):
        report.problems.append(f"{known.name}: the checksum is wrong")
    if known.size_bytes != len(content):
        found = summarize(content, known.first)
        report.problems.append(
            f"{known.name}: {0 if found is None else found.records} records in {len(content)} bytes"
            f" (expected {known.records} in {known.size_bytes} from the index)"
        )


def _verify_lines(report: Report, name: str, content: bytes, previous_ms: int, *, may_be_torn: bool) -> int:
    for number, line in _lines(report, name, content, may_be_torn=may_be_torn):
        mark, reason = _read(line)
        if mark is not None and mark.v > SCHEMA_VERSION:
            report.problems.append(f"{name}, line {number}: written by a newer version ({mark.v})")
        elif reason is not None:
            report.problems.append(f"{name}, line {number}: not a record: {reason}")
        if mark is None:
            continue
        begins = mark.seq if mark.missing_from is None else mark.missing_from
        expected = begins if report.last is None else report.last + 1
        if begins > expected:
            report.problems.append(f"{name}, line {number}: sequence numbers {expected} to {begins - 1} are missing")
        elif begins < expected:
            report.problems.append(f"{name}, line {number}: sequence number {begins} comes after {expected - 1}")
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
    """Return the record or mark of a line, and the error if it is not a valid record."""
    try:
        return record_decoder.decode(line), None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return read_mark(line), str(error)


def _lines(report: Report, name: str, content: bytes, *, may_be_torn: bool) -> Iterator[tuple[int, bytes]]:
    whole, _, torn = content.rpartition(b"\n")
    if torn and not may_be_torn:
        report.problems.append(f"{name}: the last line is torn ({len(torn)} bytes)")
    return enumerate(whole.splitlines(), 1)
