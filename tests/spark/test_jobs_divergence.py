"""When name servers disagreed, held against the tables that they really had."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from pyspark.sql import SparkSession

from skyroute.pipeline.jobs.divergence import ABSENT, divergence
from skyroute.pipeline.journal.reading import read_journal
from tests.spark.lives import Life, live_many, steps
from tests.spark.truths import Moment, as_ms, moments
from tests.support.clock import ManualClock

APART_S = 1_000_000.0
"""Each case has the same two servers, at a time when no other has."""

cases = st.lists(st.tuples(st.sampled_from((0, 1, 2)), st.integers(0, 29)), min_size=15, max_size=30).flatmap(
    lambda order: st.tuples(st.just(order), steps)
)


def subjects(table: set[tuple[Any, ...]]) -> dict[tuple[str, str, str], tuple[Any, ...]]:
    """What a table says of what, as far as servers can disagree about it."""
    said: dict[tuple[str, str, str], tuple[Any, ...]] = {}
    for row in table:
        match row:
            case ("group", cluster, name, zone, acting):
                said["group", name, ""] = (cluster, zone, acting)
            case ("broker", _, name, broker_id, address, ha_address, _, _, _, filters):
                said["broker", name, address] = (broker_id, ha_address)
                if filters:
                    said["filter_servers", name, address] = filters
            case ("topic", _, name, topic, read, write, _, given, flags, forbidden, mapping):
                said["queues", name, topic] = (read, write, given, flags)
                if forbidden:
                    said["writes", name, topic] = ()
                if mapping:
                    said["mapping", name, topic] = mapping
    return said


def known_at(life: list[Moment], at_ms: int) -> dict[tuple[str, str, str], tuple[Any, ...]] | None:
    """None: the server does not run."""
    here = [moment for moment in life if moment.since_ms <= at_ms < moment.until_ms]
    assert len(here) <= 1
    return subjects(here[0].table) if here else None


def disagreements(lives: list[list[Moment]]) -> Iterator[tuple[tuple[str, str, str], int, int]]:
    """What, from when, until when."""
    times = sorted({ms for life in lives for moment in life for ms in (moment.since_ms, moment.until_ms)})
    names = {name for life in lives for moment in life for name in subjects(moment.table)}
    since: dict[tuple[str, str, str], int] = {}
    for at_ms, _ in pairwise(times):
        known = [table for life in lives if (table := known_at(life, at_ms)) is not None]
        for name in names:
            differ = len({table.get(name) for table in known}) > 1
            if differ:
                since.setdefault(name, at_ms)
            elif name in since:
                yield name, since.pop(name), at_ms
    for name, began_ms in since.items():
        yield name, began_ms, times[-1]


def test_disagreements_are_those_that_the_tables_show(spark: SparkSession, tmp_path: Path) -> None:
    expected: dict[Any, int] = {}

    def live(number: int, drawn: Any) -> None:
        order, acts = drawn
        clock = ManualClock(wall=1_758_275_140.0 + number * APART_S)
        pair = [Life(tmp_path / name, name, clock, prefix=f"{number}-") for name in ("left", "right")]
        for life in pair:
            life.start()
        for who, which in order:
            pause_s, act = acts[which % len(acts)]
            if act[0] == "set_clock_back":
                continue  # what is first and what is second is not certain then
            clock.advance(pause_s)
            for life in pair if who == 2 else [pair[who]]:
                life.step(0.0, act)
        clock.advance(5.0)
        for life in pair:
            life.stop()
        own = [list(moments(life, 0)) for life in pair]
        for name, since_ms, until_ms in disagreements(own):
            if until_ms - since_ms > 1000:
                expected[name, since_ms] = until_ms

    live_many(20, cases, live)
    events = read_journal(spark, [tmp_path / "left", tmp_path / "right"]).events.cache()
    rows = divergence(events).collect()
    found = {((row.what, row.broker, row.name), as_ms(row.since)): row for row in rows}
    assert len(rows) == len(found)
    assert len(expected) > 10, "too little happens in these lives"
    end_ms = max(expected.values())
    assert {key: as_ms(row.until) or end_ms for key, row in found.items()} == expected
    for row in rows:
        assert row.views.keys() == {"left", "right"}
        assert len(set(row.views.values())) == 2
        assert ABSENT in row.views.values() or row.what in {"group", "broker", "queues", "filter_servers", "mapping"}
