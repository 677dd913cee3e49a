"""Divergences of name servers match their route tables."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from pyspark.sql import SparkSession

from skyroute.pipeline.jobs.divergence import ABSENT, divergence
from skyroute.pipeline.journal.reading import read_journal
from tests.spark.expected import TableInterval, as_ms, table_intervals
from tests.spark.server_runs import ServerRun, simulate_many, steps
from tests.support.clock import ManualClock

APART_S = 1_000_000.0
"""Time between two cases, which use the same two servers."""

cases = st.lists(st.tuples(st.sampled_from((0, 1, 2)), st.integers(0, 29)), min_size=15, max_size=30).flatmap(
    lambda order: st.tuples(st.just(order), steps)
)


def subjects(table: set[tuple[Any, ...]]) -> dict[tuple[str, str, str], tuple[Any, ...]]:
    """Return the values of a table that the job compares, by subject."""
    values: dict[tuple[str, str, str], tuple[Any, ...]] = {}
    for row in table:
        match row:
            case ("group", cluster, name, zone, acting):
                values["group", name, ""] = (cluster, zone, acting)
            case ("broker", _, name, broker_id, address, ha_address, _, _, _, filters):
                values["broker", name, address] = (broker_id, ha_address)
                if filters:
                    values["filter_servers", name, address] = filters
            case ("topic", _, name, topic, read, write, _, given, flags, forbidden, mapping):
                values["queues", name, topic] = (read, write, given, flags)
                if forbidden:
                    values["writes", name, topic] = ()
                if mapping:
                    values["mapping", name, topic] = mapping
    return values


def known_at(run: list[TableInterval], at_ms: int) -> dict[tuple[str, str, str], tuple[Any, ...]] | None:
    """Return the values at a time; None: the server does not run."""
    here = [interval for interval in run if interval.since_ms <= at_ms < interval.until_ms]
    assert len(here) <= 1
    return subjects(here[0].table) if here else None


def divergences(runs: list[list[TableInterval]]) -> Iterator[tuple[tuple[str, str, str], int, int]]:
    """Yield subject, start and end."""
    times = sorted({ms for run in runs for interval in run for ms in (interval.since_ms, interval.until_ms)})
    names = {name for run in runs for interval in run for name in subjects(interval.table)}
    since: dict[tuple[str, str, str], int] = {}
    for at_ms, _ in pairwise(times):
        known = [table for run in runs if (table := known_at(run, at_ms)) is not None]
        for name in names:
            differ = len({table.get(name) for table in known}) > 1
            if differ:
                since.setdefault(name, at_ms)
            elif name in since:
                yield name, since.pop(name), at_ms
    for name, began_ms in since.items():
        yield name, began_ms, times[-1]


def test_divergences_match_the_tables(spark: SparkSession, tmp_path: Path) -> None:
    expected: dict[Any, int] = {}

    def simulate(number: int, drawn: Any) -> None:
        order, acts = drawn
        clock = ManualClock(wall=1_758_275_140.0 + number * APART_S)
        pair = [ServerRun(tmp_path / name, name, clock, prefix=f"{number}-") for name in ("left", "right")]
        for run in pair:
            run.start()
        for who, which in order:
            pause_s, act = acts[which % len(acts)]
            if act[0] == "set_clock_back":
                continue  # the order of records by time is not defined then
            clock.advance(pause_s)
            for run in pair if who == 2 else [pair[who]]:
                run.step(0.0, act)
        clock.advance(5.0)
        for run in pair:
            run.stop()
        own = [list(table_intervals(run, 0)) for run in pair]
        for name, since_ms, until_ms in divergences(own):
            if until_ms - since_ms > 1000:
                expected[name, since_ms] = until_ms

    simulate_many(20, cases, simulate)
    events = read_journal(spark, [tmp_path / "left", tmp_path / "right"]).events.cache()
    rows = divergence(events).collect()
    found = {((row.what, row.broker, row.name), as_ms(row.since)): row for row in rows}
    assert len(rows) == len(found)
    assert len(expected) > 10, "the runs have too few divergences"
    end_ms = max(expected.values())
    assert {key: as_ms(row.until) or end_ms for key, row in found.items()} == expected
    for row in rows:
        assert row.views.keys() == {"left", "right"}
        assert len(set(row.views.values())) == 2
        assert ABSENT in row.views.values() or row.what in {"group", "broker", "queues", "filter_servers", "mapping"}
