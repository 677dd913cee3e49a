"""`skyroute pipeline` and its examples in docs/spark.md, over two journals and a real topic."""

from __future__ import annotations

import csv
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from skyroute.blocking import PullConsumer
from skyroute.cli.pipeline.commands import pipeline
from skyroute.pipeline.jobs.churn import permission_changes
from skyroute.pipeline.journal.reading import read_journal
from skyroute.testing import Cluster
from tests.spark.server_runs import BEGIN_S, ServerRun
from tests.support.clock import ManualClock
from tests.support.shown import NAME_SERVER, ROOT, code_spans, programs, table_below
from tests.unit.nameserver.journal.changes import EVERY_KIND

COMMANDS = re.findall(r"(?m)^skyroute pipeline (.*)$", (ROOT / "docs/spark.md").read_text(encoding="utf-8"))
COLUMNS = {
    tuple(code_spans(command)[0].split()): code_spans(columns)
    for command, columns in table_below("docs/spark.md", "### Columns of the results")
}
"""Documented columns by command and option."""
OTHERS = [
    "routes --journal ns-1/memory --since 1h",
    "availability --journal ns-1/memory",
    "availability --journal ns-1/memory --outages",
    "divergence --journal ns-1/memory --journal ns-2/memory --each",
    "churn --journal ns-1/memory --permissions",
    "traffic -n 127.0.0.1:9876 -t Orders",
    "audit -n 127.0.0.1:9876 -t Orders",
]
"""Commands whose columns are documented, without an example in the document."""
(PROGRAM,) = (program for program in programs("docs/spark.md") if "read_journal" in program)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of the examples."""
    here, clock = tmp_path_factory.mktemp("here"), ManualClock()
    for name in ("ns-1", "ns-2"):
        server = ServerRun(here / name / "memory", name, clock)
        server.start()
        server._record(*EVERY_KIND[1:6])
        clock.advance(60.0)
        server._record(EVERY_KIND[12])
        clock.advance(5.0)
        server._record(EVERY_KIND[2])
        server.stop()
    return here


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(pipeline, [str(each) for each in arguments])


def documented_as(command: str) -> tuple[str, ...]:
    """Return the longest entry of `COLUMNS` whose words are all in a command."""
    words = set(command.split())
    return max((entry for entry in COLUMNS if words.issuperset(entry)), key=len)


@pytest.mark.usefixtures("spark")
def test_every_command_in_the_documentation_runs(folder: Path, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {command.split()[0] for command in COMMANDS} == set(pipeline.commands)
    monkeypatch.chdir(folder)
    with PullConsumer("billing", orders) as consumer:  # whose lag is sampled
        consumer.assign(consumer.queues("Orders"))
        consumer.poll()
        consumer.commit()
    outputs = {}
    for command in [*COMMANDS, *OTHERS]:
        done = run(*shlex.split(command.replace(NAME_SERVER, orders)))
        assert done.exit_code == 0, (command, done.output, done.exception)
        outputs[command] = done.stdout
    assert all(outputs.values())
    by_start = {tuple(command.split()[:1]) + tuple(command.split()[-1:]): text for command, text in outputs.items()}
    seen = {documented_as(command): text for command, text in outputs.items() if text.startswith("#")}
    assert {as_: text.splitlines()[0].lower().replace("#", "").split() for as_, text in seen.items()} == COLUMNS
    assert "lease_expired" in by_start["availability", "broker"]
    assert re.search(r"Orders +cup-0 +4 ", by_start["traffic", "10"])
    assert "new journal lines" in by_start["archive", "journals.archive"]
    assert "10 new messages" in by_start["archive", "orders.archive"]
    with next((folder / "availability.csv").glob("*.csv")).open() as file:
        assert {row["what"] for row in csv.DictReader(file)} == {"broker", "group", "topic"}
    assert "<h2" in (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("spark")
def test_the_program_in_the_documentation_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    exec(PROGRAM, {})
    assert "0 invalid lines" in capsys.readouterr().out


def test_the_output_equals_the_result_of_the_function(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    memory = folder / "ns-1" / "memory"
    output = tmp_path / "out"
    for output_format in ("parquet", "json"):
        options = ("--output", output, "--format", output_format, "--overwrite")
        done = run("churn", "--permissions", "--journal", memory, *options)
        assert done.stdout == f"written to {output}\n"
        expected = permission_changes(read_journal(spark, [memory]).events).drop("at")
        written = spark.read.schema(expected.schema).format(output_format).load(str(output))
        assert sorted(map(str, written.collect())) == sorted(map(str, expected.collect()))
        assert written.count() > 1


def test_more_rows_than_the_limit_and_invalid_lines_are_reported(folder: Path, tmp_path: Path) -> None:
    """In a new process, where Spark starts slowly enough to show progress."""
    journal = tmp_path / "journal"
    journal.mkdir()
    content = b"".join(path.read_bytes() for path in sorted((folder / "ns-1/memory/journal").glob("*.jsonl")))
    (journal / f"{1:020}.jsonl").write_bytes(content + b'{"v":1,"seq":\n')
    arguments = ["pipeline", "capacity", "--journal", str(tmp_path), "--at", f"{BEGIN_S + 10:.0f}000", "--limit", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "skyroute", *arguments], capture_output=True, text=True, check=True, timeout=240
    )
    heading, first, last = done.stdout.splitlines()
    assert heading.split()[:3] == ["#SERVER", "#TOPIC", "#GROUPS"]
    assert first.split()[:3] == ["ns-1", "T1", "1"]
    assert last == "... more rows: raise --limit, or write all with --output"
    assert "starting Spark" in done.stderr
    assert done.stderr.splitlines()[-1] == "1 invalid journal lines were skipped: see skyroute pipeline rejects"


@pytest.mark.usefixtures("spark")
def test_an_error_of_the_source_is_one_line(cluster: Cluster) -> None:
    done = run("traffic", "-n", cluster.name_server_address, "-t", "NoSuchTopic")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1].startswith("Error: ")
    assert "NoSuchTopic" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("spark")
def test_groups_without_offsets_have_no_samples_and_the_error_says_so(cluster: Cluster, tmp_path: Path) -> None:
    sampling = ("-n", cluster.name_server_address, "--every", "1s", "--for", "1s", "--samples", tmp_path / "samples")
    done = run("lag", "-g", "nobody", *sampling)
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1] == "Error: no samples: no broker has offsets of nobody. Start a consumer first"


@pytest.mark.usefixtures("spark")
def test_an_error_of_spark_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "batch=1").write_text("not Parquet")
    done = run("forecast", "--samples", tmp_path / "samples", "--within", "1h")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1].endswith("(SKYROUTE_TRACEBACKS=1 shows more)")
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("spark")
def test_differences_of_routes_are_labelled(folder: Path) -> None:
    times = ("--since", f"{BEGIN_S + 10:.0f}000", "--at", f"{BEGIN_S + 62:.0f}000")
    done = run("routes", "--journal", folder / "ns-1" / "memory", "--part", "broker", *times)
    heading, row = done.stdout.splitlines()
    assert heading.split()[:4] == ["#SERVER", "#PART", "#BROKER", "#ADDRESS"]
    assert re.search(r" removed +cluster=c .*ha_address=a:2 .*broker_id=0", row)


@pytest.mark.usefixtures("spark")
def test_incidents_are_listed_in_one_row_each(folder: Path) -> None:
    done = run("availability", "--journal", folder / "ns-1" / "memory", "--incidents")
    heading, *rows = done.stdout.splitlines()
    assert heading.split()[:2] == ["#SINCE", "#UNTIL"]
    (row,) = (row for row in rows if "a:1 (b)" in row)
    assert "lease_expired" in row


def test_a_report_is_written_again_with_new_records_until_it_is_interrupted(tmp_path: Path) -> None:
    server, page = ServerRun(tmp_path / "memory", "ns", ManualClock()), tmp_path / "report.html"
    server.start()
    server.stop()

    arguments = ["pipeline", "report", "--journal", str(tmp_path / "memory"), "--to", str(page), "--every", "100ms"]
    with subprocess.Popen([sys.executable, "-m", "skyroute", *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"written to {page}\n"
            assert "<dd>0 brokers joined" in page.read_text()
            server.start()
            server._record(*EVERY_KIND[1:3])
            server.stop()
            for line in process.stdout:
                assert line == f"written to {page}\n"
                if "<dd>1 brokers joined" in page.read_text():
                    break
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 1
        finally:
            process.kill()
