"""Journals are read, streamed and archived; invalid lines are reported."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.query import StreamingQuery

from skyroute.nameserver.journal.reader import read_records
from skyroute.nameserver.journal.segments import closed_segments
from skyroute.pipeline.jobs.archive import NoArchiveError, archive_journal, compact, read_archive
from skyroute.pipeline.jobs.availability import availability
from skyroute.pipeline.jobs.churn import churn
from skyroute.pipeline.jobs.continuous import run_continuously
from skyroute.pipeline.jobs.divergence import divergence
from skyroute.pipeline.jobs.routes import routes_at
from skyroute.pipeline.journal.reading import NoJournalError, read_journal, stream_journal
from tests.spark.server_runs import BEGIN_S, ServerRun, simulate_many, steps
from tests.support.clock import ManualClock
from tests.unit.nameserver.journal.changes import EVERY_KIND, write

WAIT_S = 120


def wait(query: StreamingQuery) -> None:
    assert query.awaitTermination(WAIT_S)
    assert query.exception() is None


def rows(frame: DataFrame) -> Counter[str]:
    """Return rows as JSON texts."""
    return Counter(row.text for row in frame.select(fn.to_json(fn.struct("*")).alias("text")).collect())


def only_segment(folder: Path) -> Path:
    (segment,) = closed_segments(folder).values()
    return segment


def test_every_field_of_every_kind_is_read_as_written(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "journal", *EVERY_KIND[:-1])
    journal = read_journal(spark, [tmp_path])
    found = sorted((msgspec.json.decode(line) for line in rows(journal.events.drop("date"))), key=itemgetter("seq"))
    assert found == [msgspec.json.decode(msgspec.json.encode(record)) for record in read_records(tmp_path / "journal")]
    assert journal.rejects.count() == 0


def test_invalid_lines_are_rejected_with_the_problem(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, *EVERY_KIND[:-1])
    segment = only_segment(tmp_path)
    good = segment.read_bytes().splitlines()
    bad = {
        b"": "the line is empty",
        good[0][:-1]: "the line is incomplete",
        good[0][7:]: "the line is incomplete",
        good[0] + good[1]: "the line has more than one record",
        good[0].replace(b'"seq":1', b'"seq":"one"'): "the line is not JSON of a record",
        good[0].replace(b'"kind"', b'"\xff"'): "kind is missing",
        b"{}": "v is missing",
        good[0].replace(b'"v":1', b'"v":2'): "version 2 of the schema (this release reads 1)",
    }
    later = good[0].replace(b"server_started", b"comet_seen").replace(b'"seq":1', b'"seq":99,"tail":{"km":5}')
    # The last line has no line feed.
    segment.write_bytes(b"\n".join([*good, later, *bad]))
    journal = read_journal(spark, [tmp_path])
    assert Counter(row.problem for row in journal.rejects.collect()) == Counter(bad.values())
    assert {row.file for row in journal.rejects.collect()} == {segment.name}
    kinds = Counter(row.kind for row in journal.events.collect())
    assert kinds.total() == len(good) + 1
    assert kinds["comet_seen"] == 1, "unknown kinds are kept"


def test_a_missing_journal_or_archive_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NoJournalError, match=f"no journal in {tmp_path}: give the memory folder"):
        read_journal(spark, [tmp_path])
    with pytest.raises(NoArchiveError, match=f"no archived events in {tmp_path}"):
        read_archive(spark, tmp_path)


def test_rows_after_a_missing_record_are_not_certain_until_the_next_start(spark: SparkSession, tmp_path: Path) -> None:
    run = ServerRun(tmp_path, "ns-1", ManualClock())
    for _ in range(2):
        run.start()
        run._record(*EVERY_KIND[1:4])
        run.clock.advance(10.0)
        run._record(*EVERY_KIND[4:6])
        run.clock.advance(10.0)
        run.stop()
    first = next(iter(closed_segments(tmp_path / "journal").values()))
    lines = first.read_bytes().splitlines(keepends=True)
    first.write_bytes(b"".join([*lines[:4], b"not a record\n", *lines[5:]]))
    events = read_journal(spark, [tmp_path]).events.cache()
    found = {
        seconds: {row.certain for row in routes_at(events, datetime.fromtimestamp(BEGIN_S + seconds, UTC)).collect()}
        for seconds in (0, 10, 25)
    }
    assert found == {0: {True}, 10: {False}, 25: {True}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Journals of two servers, in many segments."""
    clock = ManualClock()
    runs = [ServerRun(tmp_path_factory.mktemp(name), name, clock) for name in ("left", "right")]
    for run in runs:
        run.start()
    # Start with routes that only one server has, whatever the random steps do later.
    runs[0]._record(*EVERY_KIND[1:6])
    clock.advance(1_800.0)

    def simulate(number: int, drawn: Any) -> None:
        for step in drawn:
            runs[number % 2].step(*step)
            clock.advance(1_800.0)

    simulate_many(8, steps, simulate)
    for run in runs:
        run.stop()
    return [run.folder for run in runs]


def test_a_stream_gives_the_same_result_as_a_batch(spark: SparkSession, folders: list[Path], tmp_path: Path) -> None:
    jobs: dict[str, Callable[[DataFrame], DataFrame]] = {
        "first routes": partial(routes_at, instant=datetime.fromtimestamp(BEGIN_S + 900, UTC)),
        "routes": partial(routes_at, instant=datetime.fromtimestamp(BEGIN_S + 400_000, UTC)),
        "availability": partial(availability, window_s=86_400.0),
        "divergence": divergence,
        "churn": churn,
    }
    results: dict[str, Counter[str]] = {}
    numbers: list[int] = []

    def keep_result(events: DataFrame, number: int) -> None:
        numbers.append(number)
        if not later:
            events.cache()
            results.update({name: rows(job(events)) for name, job in jobs.items()})

    # Every other segment arrives later, in reverse order.
    arriving = [tmp_path / folder.name for folder in folders]
    later: list[tuple[Path, Path]] = []
    for folder, target in zip(folders, arriving, strict=True):
        (target / "journal").mkdir(parents=True)
        for number, path in enumerate(closed_segments(folder / "journal").values()):
            later.append((path, target / "journal" / path.name))
            if number % 2:
                shutil.copy(*later.pop())
    assert len(later) > 3
    wait(
        run_continuously(
            stream_journal(spark, arriving, segments_per_batch=4),
            tmp_path / "archive",
            lambda events: events,
            keep_result,
        )
    )
    while later:
        shutil.copy(*later.pop())
    wait(run_continuously(stream_journal(spark, arriving), tmp_path / "archive", lambda events: events, keep_result))
    assert len(numbers) > 2
    events = read_journal(spark, folders).events.cache()
    for name, job in jobs.items():
        assert results[name] == rows(job(events)), name
    assert [name for name in jobs if not results[name] and name != "routes"] == []


def test_an_archive_has_each_record_once(spark: SparkSession, folders: list[Path], tmp_path: Path) -> None:
    root, journal = tmp_path / "archive", read_journal(spark, folders)
    expected = rows(journal.events)
    for _ in range(2):
        wait(archive_journal(stream_journal(spark, folders, segments_per_batch=3), root))
        assert rows(read_archive(spark, root)) == expected
    days = list((root / "events").glob("date=*"))
    assert len(days) > 2
    before = len(list(root.rglob("*.parquet")))
    assert compact(spark, root, folders_min=2) > 0
    after = len(list(root.rglob("*.parquet")))
    assert after < before
    assert rows(read_archive(spark, root)) == expected
    # Old folders left over from a crash during compaction are ignored, and removed by the next compaction.
    merged = next(path for path in (root / "events").rglob("batches=*") if re.search(r"=(\d+)-(?!\1$)", path.name))
    left_over = merged.with_name(re.sub(r"=(\d+)-.*", r"=\1-\1", merged.name))
    shutil.copytree(merged, left_over)
    assert rows(read_archive(spark, root)) == expected
    compact(spark, root)
    assert not left_over.exists()
    assert merged.exists()
