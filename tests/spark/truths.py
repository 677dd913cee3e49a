"""What a slow and obvious reading of records and tables says, to hold jobs against."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

from skyroute.nameserver.journal.schema import Kind, Record
from tests.spark.lives import Life

Thing = tuple[str, str | None, str | None]
"""What it is, the group's name, the address or topic."""


class Moment(NamedTuple):
    """What a server knew from one time to the next."""

    seq: int
    since_ms: int
    until_ms: int
    table: set[tuple[Any, ...]]
    records: list[Record]
    """Since the moment before."""


class Outage(NamedTuple):
    since_ms: int
    until_ms: int | None
    cause: str


def things(table: set[tuple[Any, ...]]) -> set[Thing]:
    found: set[Thing] = set()
    for row in table:
        match row:
            case ("group", _, name, *_):
                found.add(("group", name, None))
            case ("broker", _, name, _, address, *_):
                found.add(("broker", name, address))
            case ("topic", _, _, topic, *_):
                found.add(("topic", None, topic))
    return found


def moments(life: Life, last_ms: int) -> Iterator[Moment]:
    """A server's life, step by step; if it goes on, up to the last record of all servers."""
    records = life.records
    starts = [at for at, record in enumerate(records) if record.kind == Kind.SERVER_STARTED]
    for begin, end in pairwise([*starts, len(records)]):
        # A gap is the word of the next start, about a crash.
        epoch = [record for record in records[begin:end] if record.kind != Kind.GAP]
        is_over = end < len(records) or epoch[-1].kind == Kind.SERVER_STOPPED
        clock_ms, passed = 0, list[Record]()
        ends_ms = max(record.wall_ms for record in epoch) if is_over else last_ms
        for at, record in enumerate(epoch):
            clock_ms = max(clock_ms, record.wall_ms)
            passed.append(record)
            if record.seq in life.tables:
                later = epoch[at + 1 :]
                until_ms = max(clock_ms, later[0].wall_ms) if later else ends_ms
                yield Moment(record.seq, clock_ms, until_ms, life.tables[record.seq], passed)
                passed = []
        assert not passed


def cause_of(gone: Thing, records: list[Record]) -> str:
    """Why something is not there any more, of all that happened at once."""
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


def last_of(lives: list[Life]) -> int:
    return max(record.wall_ms for life in lives for record in life.records)


def spans_of(life: Life, last_ms: int) -> dict[Thing, list[tuple[int, int, str | None, int]]]:
    """From when to when; why it was not there, or None; and since when that is so."""
    found: dict[Thing, list[tuple[int, int, str | None, int]]] = defaultdict(list)
    known: set[Thing] = set()
    causes: dict[Thing, tuple[str, int]] = {}
    for moment in moments(life, last_ms):
        there = things(moment.table)
        known |= there
        for thing in known:
            if thing in there:
                causes.pop(thing, None)
                found[thing].append((moment.since_ms, moment.until_ms, None, 0))
            else:
                if thing not in causes:
                    causes[thing] = (cause_of(thing, moment.records), moment.since_ms)
                found[thing].append((moment.since_ms, moment.until_ms, *causes[thing]))
    return found


def outages_of(spans: list[tuple[int, int, str | None, int]]) -> list[Outage]:
    found: list[Outage] = []
    down: tuple[int, str] | None = None
    for since_ms, _, cause, began_ms in spans:
        if cause is None and down is not None:
            found.append(Outage(down[0], since_ms, down[1]))
            down = None
        elif cause is not None and down is None:
            down = (began_ms, cause)
    if down is not None:
        found.append(Outage(down[0], None, down[1]))
    return [outage for outage in found if outage.until_ms is None or outage.until_ms > outage.since_ms]


def as_ms(moment: datetime | None) -> int | None:
    """A moment as Spark gives it, in this machine's time."""
    return None if moment is None else round(moment.timestamp() * 1000)


def pieces(since_ms: int, until_ms: int, window_ms: int) -> Iterator[tuple[int, int]]:
    """The windows that a span touches, and how long it lies in each."""
    window = since_ms // window_ms * window_ms
    yield window, min(until_ms, window + window_ms) - since_ms
    while until_ms > (window := window + window_ms):
        yield window, min(until_ms, window + window_ms) - window
