"""`skyroute pipeline` and what docs/spark.md shows of it, over journals of two name servers and a real topic."""

from __future__ import annotations

import csv
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from skyroute.cli.pipeline.commands import pipeline
from skyroute.pipeline.jobs.churn import permission_changes
from skyroute.pipeline.journal.reading import read_journal
from skyroute.testing import Cluster
from tests.spark.lives import BEGIN_S, Life
from tests.support.clock import ManualClock
from tests.support.shown import NAME_SERVER, ROOT, programs
from tests.unit.nameserver.journal.changes import EVERY_KIND

COMMANDS = re.findall(r"(?m)^skyroute pipeline (.*)$", (ROOT / "docs/spark.md").read_text(encoding="utf-8"))
(PROGRAM,) = (program for program in programs("docs/spark.md") if "read_journal" in program)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the documents' relative paths begin."""
    here, clock = tmp_path_factory.mktemp("here"), ManualClock()
    for name in ("ns-1", "ns-2"):
        life = Life(here / name / "memory", name, clock)
        life.start()
        life._record(*EVERY_KIND[1:6])
        clock.advance(60.0)
        life._record(EVERY_KIND[12])
        clock.advance(5.0)
        life._record(EVERY_KIND[2])
        life.stop()
    return here


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(pipeline, [str(word) for word in words])


@pytest.mark.usefixtures("spark")
def test_every_command_of_the_document_runs(folder: Path, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {command.split()[0] for command in COMMANDS} == set(pipeline.commands)
    monkeypatch.chdir(folder)
    said = {}
    for command in COMMANDS:
        done = run(*shlex.split(command.replace(NAME_SERVER, orders)))
        assert done.exit_code == 0, (command, done.output, done.exception)
        said[command] = done.stdout
    assert all(said.values())
    by_start = {tuple(command.split()[:1]) + tuple(command.split()[-1:]): text for command, text in said.items()}
    assert "lease_expired" in by_start["availability", "broker"]
    assert re.search(r"Orders +cup-0 +4 ", by_start["traffic", "10"])
    assert "new lines of journals" in by_start["archive", "journals.archive"]
    assert "10 new messages" in by_start["archive", "orders.archive"]
    with next((folder / "availability.csv").glob("*.csv")).open() as file:
        assert {row["what"] for row in csv.DictReader(file)} == {"broker", "group", "topic"}
    assert "<h2" in (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("spark")
def test_the_program_of_the_document_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    exec(PROGRAM, {})
    assert "0 lines are no records" in capsys.readouterr().out


def test_what_is_written_is_what_the_function_gives(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    memory = folder / "ns-1" / "memory"
    output = tmp_path / "out"
    for output_format in ("parquet", "json"):
        how = ("--output", output, "--format", output_format, "--overwrite")
        done = run("churn", "--permissions", "--journal", memory, *how)
        assert done.stdout == f"written to {output}\n"
        expected = permission_changes(read_journal(spark, [memory]).events).drop("at")
        written = spark.read.schema(expected.schema).format(output_format).load(str(output))
        assert sorted(map(str, written.collect())) == sorted(map(str, expected.collect()))
        assert written.count() > 1


def test_rows_beyond_the_limit_and_lines_that_are_no_records_are_told(folder: Path, tmp_path: Path) -> None:
    """In a process of its own, as people start it; Spark takes long enough for a word of progress."""
    journal = tmp_path / "journal"
    journal.mkdir()
    content = b"".join(path.read_bytes() for path in sorted((folder / "ns-1/memory/journal").glob("*.jsonl")))
    (journal / f"{1:020}.jsonl").write_bytes(content + b'{"v":1,"seq":\n')
    words = ["pipeline", "capacity", "--journal", str(tmp_path), "--at", f"{BEGIN_S + 10:.0f}000", "--limit", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "skyroute", *words], capture_output=True, text=True, check=True, timeout=240
    )
    heading, first, last = done.stdout.splitlines()
    assert heading.split()[:3] == ["#SERVER", "#TOPIC", "#GROUPS"]
    assert first.split()[:3] == ["ns-1", "T1", "1"]
    assert last == "... and more: --limit shows them, --output writes them all"
    assert "starting Spark" in done.stderr
    assert done.stderr.splitlines()[-1] == "1 lines are no records: skyroute pipeline rejects shows them"


@pytest.mark.usefixtures("spark")
def test_what_our_source_refuses_is_said_in_a_line(cluster: Cluster) -> None:
    done = run("traffic", "-n", cluster.name_server_address, "-t", "NoSuchTopic")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1].startswith("Error: ")
    assert "NoSuchTopic" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
