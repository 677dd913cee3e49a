"""Jobs over random runs of name servers give the results expected from their route tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from skyroute.nameserver.journal.recovery import ALIVE_NAME, read_alive
from skyroute.nameserver.journal.schema import Kind
from skyroute.nameserver.server_events import ServerStarted
from skyroute.pipeline.jobs.availability import PLANNED_CAUSES, availability, outages
from skyroute.pipeline.jobs.churn import capacity, churn, permission_changes
from skyroute.pipeline.jobs.routes import route_history, routes_at, routes_between
from skyroute.pipeline.journal.reading import read_journal
from tests.spark.expected import Outage, Subject, as_ms, intervals_of, last_of, outages_of, split_by_window
from tests.spark.server_runs import BEGIN_S, ServerRun, simulate_many, steps
from tests.support.clock import ManualClock
from tests.support.waiting import wait_until
from tests.unit.nameserver.journal.changes import STOP, catch_up, joined, open_journal
from tests.unit.routing.brokers import READ_ONLY, registration

HOUR_MS = 3_600_000
FAR = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[ServerRun]:
    folder, found = tmp_path_factory.mktemp("runs"), list[ServerRun]()

    def simulate(number: int, drawn: Any) -> None:
        run = ServerRun(folder / f"{number}", f"ns-{number}", ManualClock())
        run.start()
        for step in drawn:
            run.step(*step)
        run.stop(cleanly=number % 2 == 0)
        found.append(run)

    simulate_many(80, steps, simulate)
    read_only = registration(topics={"T1": READ_ONLY}, version=2)
    simulate(len(found) + 1, [(1.0, ("register", registration(topics=["T1"]), 1)), (60.0, ("register", read_only, 1))])
    return found


@pytest.fixture(scope="module")
def events(spark: SparkSession, runs: list[ServerRun]) -> DataFrame:
    journal = read_journal(spark, [run.folder for run in runs])
    assert journal.rejects.count() == 0
    return journal.events.cache()


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(BEGIN_S + seconds, UTC)


def table_at(run: ServerRun, instant: datetime) -> set[tuple[Any, ...]]:
    """Return a server's route table after the last record with a wall clock up to then."""
    seen = [record.seq for record in run.records if record.wall_ms <= instant.timestamp() * 1000]
    return run.tables[max(seen)] if seen else set()


def as_tuple(row: Row) -> tuple[Any, ...]:
    match row.part:
        case "group":
            return ("group", row.cluster, row.broker, row.zone, row.acting_master)
        case "broker":
            about = (row.broker_id, row.address, row.ha_address, tuple(row.version), row.acts_as_master, row.confirmed)
            return ("broker", row.cluster, row.broker, *about, tuple(row.filter_servers))
        case _:
            mapping = None if row.mapping is None else (row.mapping.topic, row.mapping.broker_name, row.mapping.epoch)
            queues = (row.read_queues, row.write_queues, row.permission, row.given_permission, row.flags, row.forbidden)
            return ("topic", row.cluster, row.broker, row.topic, *queues, mapping)


@pytest.mark.parametrize("seconds", [8.0, 4_000.0])
def test_routes_at_returns_the_table_of_that_time(events: DataFrame, runs: list[ServerRun], seconds: float) -> None:
    found: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for row in routes_at(events, at(seconds)).collect():
        found[row.server].append(as_tuple(row))
        assert row.certain
    expected = {run.server: Counter(table_at(run, at(seconds))) for run in runs}
    assert {server: Counter(rows) for server, rows in found.items()} == {
        s: rows for s, rows in expected.items() if rows
    }


def test_route_history_has_the_table_of_every_time(events: DataFrame, runs: list[ServerRun]) -> None:
    history = route_history(events).select("server", "part", "broker", "name", "since", "until").collect()
    steady = [run for run in runs if is_steady(run)]
    assert len(steady) > 10
    for seconds in (0.5, 8.5, 100.25, 4_000.5):
        found = {run.server: set[Any]() for run in steady}
        for row in history:
            holds = row.since.timestamp() <= at(seconds).timestamp() < (row.until or FAR).timestamp()
            if holds and row.server in found:
                found[row.server].add((row.part, row.broker, row.name))
        for run in steady:
            if not runs_at(run, at(seconds)):
                continue
            expected = {
                ("topic", *row[2:4]) if row[0] == "topic" else (row[0], row[2], "" if row[0] == "group" else row[4])
                for row in table_at(run, at(seconds))
            }
            assert found[run.server] == expected, (run.server, seconds)


def test_route_history_reads_the_journal_twice(
    spark: SparkSession, runs: list[ServerRun], capsys: pytest.CaptureFixture[str]
) -> None:
    """Once for the epochs, once for the changes: parsing takes most of the time."""
    route_history(read_journal(spark, [runs[0].folder]).events).explain()
    assert capsys.readouterr().out.count("FileScan text") == 2


def is_steady(run: ServerRun) -> bool:
    """Whether the clock never stepped back."""
    times = [record.wall_ms for record in run.records]
    return times == sorted(times)


def runs_at(run: ServerRun, instant: datetime) -> bool:
    """Whether the server runs at that time."""
    last = max((r for r in run.records if r.wall_ms <= instant.timestamp() * 1000), key=lambda r: r.seq, default=None)
    following = next((r for r in run.records if last is not None and r.seq > last.seq), None)
    has_stopped = last is not None and last.kind == Kind.SERVER_STOPPED
    has_crashed = following is not None and following.kind == Kind.GAP
    return not (has_stopped or has_crashed)


def test_routes_between_returns_the_differences_of_two_tables(events: DataFrame, runs: list[ServerRun]) -> None:
    def subjects(table: set[tuple[Any, ...]]) -> dict[Any, Any]:
        """Return rows by subject, without the data version."""
        named: dict[Any, Any] = {}
        for row in table:
            match row:
                case ("broker", cluster, name, broker_id, address, ha_address, _, *rest):
                    named["broker", name, address, None] = (cluster, broker_id, ha_address, *rest)
                case ("group", cluster, name, *rest):
                    named["group", name, None, None] = (cluster, *rest)
                case ("topic", cluster, name, topic, *rest):
                    named["topic", name, None, topic] = (cluster, *rest)
        return named

    expected = {}
    for run in runs:
        before, after = subjects(table_at(run, at(8.0))), subjects(table_at(run, at(4_000.0)))
        for subject in before.keys() | after.keys():
            if before.get(subject) != after.get(subject):
                change = "added" if subject not in before else "removed" if subject not in after else "changed"
                expected[run.server, subject] = change
    rows = routes_between(events, at(8.0), at(4_000.0)).collect()
    found = {(row.server, (row.part, row.broker, row.address, row.topic)): row.change for row in rows}
    assert len(rows) == len(found)
    assert found == expected
    changed = [row for row in rows if row.change == "changed"]
    assert changed
    for row in changed:
        assert not row.before.items() & row.after.items()
        assert row.before or row.after


def subject_of(row: Any) -> tuple[str, Subject]:
    return row.server, (row.what, row.broker, row.name)


def test_outages_match_the_tables(events: DataFrame, runs: list[ServerRun]) -> None:
    found: dict[tuple[str, Subject], list[Outage]] = defaultdict(list)
    for row in outages(events).orderBy("since").collect():
        found[subject_of(row)].append(Outage(as_ms(row.since) or 0, as_ms(row.until), row.cause))
        assert row.planned == (row.cause in PLANNED_CAUSES)
    last_ms = last_of(runs)
    expected = {
        (run.server, subject): outages_of(intervals)
        for run in runs
        for subject, intervals in intervals_of(run, last_ms).items()
    }
    expected = {key: sorted(each) for key, each in expected.items() if each}
    assert sum(map(len, expected.values())) > 50, "the runs have too few outages"
    assert {key: sorted(each) for key, each in found.items()} == expected


def test_time_up_down_and_away_matches_the_tables(events: DataFrame, runs: list[ServerRun]) -> None:
    last_ms = last_of(runs)
    expected: dict[Any, list[float]] = defaultdict(lambda: [0, 0, 0, 0])
    for run in runs:
        for subject, intervals in intervals_of(run, last_ms).items():
            for since_ms, until_ms, cause, _ in intervals:
                which = 0 if cause is None else 2 if cause in PLANNED_CAUSES else 1
                for window, length_ms in split_by_window(since_ms, until_ms, HOUR_MS):
                    expected[run.server, subject, window][which] += length_ms / 1000
            for outage in outages_of(intervals):
                if outage.cause not in PLANNED_CAUSES:
                    window = outage.since_ms // HOUR_MS * HOUR_MS
                    expected[run.server, subject, window][3] += 1
    found = {}
    for row in availability(events, HOUR_MS / 1000).collect():
        found[*subject_of(row), as_ms(row.window)] = [row.up_s, row.down_s, row.away_s, row.outages]
        assert row.flapping == (row.outages >= 3)
    assert {key: pytest.approx(each) for key, each in expected.items()} == found


def test_churn_matches_records_and_tables(events: DataFrame, runs: list[ServerRun]) -> None:
    expected: dict[Any, Counter[str]] = defaultdict(Counter)
    levels = {}
    relevant = {Kind.SERVER_STARTED, Kind.BROKER_JOINED, Kind.BROKER_LEFT, Kind.TOPICS_CHANGED}
    for run in runs:
        clock_ms = 0
        for record in run.records:
            clock_ms = record.wall_ms if record.kind == Kind.SERVER_STARTED else max(clock_ms, record.wall_ms)
            if record.kind not in relevant:
                continue
            window = (run.server, clock_ms // HOUR_MS * HOUR_MS)
            counts = expected[window]
            counts["joined"] += record.kind == Kind.BROKER_JOINED and record.cause != "restored"
            counts["left"] += record.kind == Kind.BROKER_LEFT
            for name in ("added", "changed", "removed"):
                counts[name] += 0 if record.cause == "restored" else len(getattr(record, name) or ())
            pairs = (record.changed or {}).values()
            counts["permissions"] += sum(before.permission != after.permission for before, after in pairs)
            after = min(seq for seq in run.tables if seq >= record.seq)
            levels[window] = run.tables[after]
    found = {}
    for row in churn(events, HOUR_MS / 1000).collect():
        window = (row.server, as_ms(row.window) or 0)
        table = levels[window]
        assert row.brokers == sum(each[0] == "broker" for each in table), window
        assert row.topics == sum(each[0] == "topic" for each in table), window
        assert row.queues == sum(each[5] for each in table if each[0] == "topic"), window
        found[window] = {
            **{"joined": row.brokers_joined, "left": row.brokers_left, "permissions": row.permission_changes},
            **{"added": row.topics_added, "changed": row.topics_changed, "removed": row.topics_removed},
        }
    assert found == {window: dict(counts) for window, counts in expected.items()}


def test_capacity_counts_the_queues_of_a_table(events: DataFrame, runs: list[ServerRun]) -> None:
    expected = {}
    for run in runs:
        topics: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for row in table_at(run, at(4_000.0)):
            if row[0] == "topic":
                topics[row[3]].append(row)
        for topic, rows in topics.items():
            writes = [row[5] for row in rows]
            skew = max(writes) * len(writes) / sum(writes)
            expected[run.server, topic] = (
                *(len(rows), sum(row[4] for row in rows), sum(writes), pytest.approx(skew), len(rows) == 1),
                *(not any(row[6] & 2 for row in rows), sorted(row[2] for row in rows)),
            )
    found = {(row.server, row.topic): tuple(row)[2:-1] for row in capacity(events, at(4_000.0)).collect()}
    assert found == expected


def test_all_permission_changes_are_listed(events: DataFrame, runs: list[ServerRun]) -> None:
    expected: Counter[Any] = Counter()
    for run in runs:
        for record in run.records:
            for topic, (before, after) in (record.changed or {}).items():
                if before.permission != after.permission:
                    expected[run.server, record.broker, topic, before.permission, after.permission, record.cause] += 1
            for topic in (*(record.forbidden or ()), *(record.restored or ())):
                expected[run.server, record.broker, topic, None, None, record.cause] += 1
    rows = permission_changes(events).drop("at").collect()
    assert Counter(map(tuple, rows)) == expected


@pytest.mark.parametrize("has_signs_of_life", [True, False])
def test_quiet_time_before_a_crash_counts_or_is_not_certain(
    spark: SparkSession, tmp_path: Path, *, has_signs_of_life: bool
) -> None:
    clock = ManualClock()
    quiet_s = 6 * 86_400.0
    for crashes in (True, False):
        journal = open_journal(tmp_path / "journal", clock=clock)
        journal.append([ServerStarted("127.0.0.1:9876", 0, 0), joined(1)])
        catch_up(journal)
        if crashes:
            clock.advance(quiet_s)
            wait_until(lambda: read_alive(tmp_path / "journal") == int(clock.wall() * 1000))
            if not has_signs_of_life:
                (tmp_path / "journal" / ALIVE_NAME).unlink()
        else:
            journal.append([STOP])
        journal.close()
    rows = availability(read_journal(spark, [tmp_path]).events).filter("what = 'broker'").collect()
    (row,) = rows
    assert row.window is None
    assert row.certain == has_signs_of_life
    assert row.up_s == (quiet_s if has_signs_of_life else 0.0)
