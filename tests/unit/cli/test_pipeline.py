"""`skyroute pipeline` without Spark: help and the error that says what to install."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from skyroute.cli.pipeline.commands import pipeline

JOBS = [
    *("archive", "audit", "availability", "capacity", "churn", "divergence", "forecast", "lag", "latency"),
    *("masters", "rejects", "report", "retention", "routes", "traffic"),
]


def python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)


def test_help_lists_every_job_and_shows_examples() -> None:
    shown = CliRunner().invoke(pipeline, ["-h"]).output
    assert all(f"\n  {job} " in shown for job in JOBS)
    assert "..." not in shown.partition("Commands:")[2], "no summary is cut off"
    assert "\n    skyroute pipeline availability --journal" in shown


@pytest.mark.parametrize("job", JOBS)
def test_help_of_each_job_needs_no_spark(job: str) -> None:
    program = """
import sys
sys.modules["pyspark"] = sys.modules["pyarrow"] = None
from skyroute.cli.main import main
main()
"""
    run = python(program, "pipeline", job, "--help")
    assert run.returncode == 0, run.stderr
    assert f"  Examples:\n    skyroute pipeline {job}" in run.stdout


@pytest.mark.parametrize(
    "arguments", [["rejects"], ["traffic", "-n", "127.0.0.1:1", "-t", "T"], ["archive", "--journal", "."]]
)
def test_without_spark_the_error_says_what_to_install(tmp_path: Path, arguments: list[str]) -> None:
    program = "import sys; sys.modules['pyspark'] = None; from skyroute.cli.main import main; main()"
    more = ["--to", str(tmp_path / "archive")] if arguments[0] == "archive" else []
    run = python(program, "pipeline", *arguments, *more)
    assert run.returncode == 1
    assert (
        run.stderr
        == "Error: Spark is not installed: pip install 'skyroute[spark]' (or 'skyroute[spark,jvm]' to include Java)\n"
    )
