"""A slow and simple computation of the jobs' results from records and route tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

from skyroute.nameserver.journal.schema import Kind, Record
from tests.spark.server_runs import ServerRun

Subject = tuple[str, str | None, str | None]
"""Kind (group, broker or topic), group name, and address or topic."""


class TableInterval(NamedTuple):
    """A server's route table from one time to the next."""

    seq: int
    since_ms: int
    until_ms: int
    table: set[tuple[Any, ...]]
    records: list[Record]
    """Records since the previous interval."""


class Outage(NamedTuple):
    since_ms: int
    until_ms: int | None
    cause: str


def subjects_of(table: set[tuple[Any, ...]]) -> set[Subject]:
    found: set[Subject] = set()
    for row in table:
        match row:
            case ("group", _, name, *_):
                found.add(("group", name, None))
            case ("broker", _, name, _, address, *_):
                found.add(("broker", name, address))
            case ("topic", _, _, topic, *_):
                found.add(("topic", None, topic))
    return found


def table_intervals(run: ServerRun, last_ms: int) -> Iterator[TableInterval]:
    """Yield the intervals of a run. A server that still runs ends with the last record of all servers."""
    records = run.records
    starts = [at for at, record in enumerate(records) if record.kind == Kind.SERVER_STARTED]
    for begin, end in pairwise([*starts, len(records)]):
        # The next start writes the gap record about a crash.
        epoch = [record for record in records[begin:end] if record.kind != Kind.GAP]
        is_over = end < len(records) or epoch[-1].kind == Kind.SERVER_STOPPED
        clock_ms, passed = 0, list[Record]()
        alive_ms = [record.alive_ms for record in records[begin:end] if record.alive_ms is not None]
        ends_ms = max([*(record.wall_ms for record in epoch), *alive_ms]) if is_over else last_ms
        for at, record in enumerate(epoch):
            clock_ms = max(clock_ms, record.wall_ms)
            passed.append(record)
            if record.seq in run.tables:
                later = epoch[at + 1 :]
                until_ms = max(clock_ms, later[0].wall_ms) if later else ends_ms
                yield TableInterval(record.seq, clock_ms, until_ms, run.tables[record.seq], passed)
                passed = []
        assert not passed


def cause_of(gone: Subject, records: list[Record]) -> str:
    """Return why a subject went down, given the records of that interval."""
    if records[0].kind == Kind.SERVER_STARTED:
        return "server_started"
    what, broker, name = gone
    found = None
    left: dict[str | None, str | None] = {}
    for record in records:
        if record.kind == Kind.BROKER_LEFT:
            left[record.broker] = record.cause
            if (what == "broker" and (record.broker, record.address) == (broker, name)) or (
                what == "group" and record.broker == broker
            ):
                found = record.cause
        if what == "topic" and name in (record.removed or ()):
            found = left[record.broker] if record.cause == "group_gone" else record.cause
    assert found is not None, (gone, records)
    return found


def last_of(runs: list[ServerRun]) -> int:
    return max(record.wall_ms for run in runs for record in run.records)


def intervals_of(run: ServerRun, last_ms: int) -> dict[Subject, list[tuple[int, int, str | None, int]]]:
    """Return (since, until, cause or None if up, start of the outage) of each subject."""
    found: dict[Subject, list[tuple[int, int, str | None, int]]] = defaultdict(list)
    known: set[Subject] = set()
    causes: dict[Subject, tuple[str, int]] = {}
    for interval in table_intervals(run, last_ms):
        there = subjects_of(interval.table)
        known |= there
        for subject in known:
            if subject in there:
                causes.pop(subject, None)
                found[subject].append((interval.since_ms, interval.until_ms, None, 0))
            else:
                if subject not in causes:
                    causes[subject] = (cause_of(subject, interval.records), interval.since_ms)
                found[subject].append((interval.since_ms, interval.until_ms, *causes[subject]))
    return found


def outages_of(intervals: list[tuple[int, int, str | None, int]]) -> list[Outage]:
    found: list[Outage] = []
    down: tuple[int, str] | None = None
    for since_ms, _, cause, began_ms in intervals:
        if cause is None and down is not None:
            found.append(Outage(down[0], since_ms, down[1]))
            down = None
        elif cause is not None and down is None:
            down = (began_ms, cause)
    if down is not None:
        found.append(Outage(down[0], None, down[1]))
    return [outage for outage in found if outage.until_ms is None or outage.until_ms > outage.since_ms]


def as_ms(time: datetime | None) -> int | None:
    """Convert a Spark timestamp, in local time, to milliseconds."""
    return None if time is None else round(time.timestamp() * 1000)


def split_by_window(since_ms: int, until_ms: int, window_ms: int) -> Iterator[tuple[int, int]]:
    """Yield each window that overlaps an interval, with the length of the overlap."""
    window = since_ms // window_ms * window_ms
    yield window, min(until_ms, window + window_ms) - since_ms
    while until_ms > (window := window + window_ms):
        yield window, min(until_ms, window + window_ms) - window
