"""`skyroute pipeline` reports wrong arguments before it starts Spark."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from skyroute.cli.pipeline.commands import pipeline
from tests.unit.nameserver.journal.changes import joined, write


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["routes", "--at", "yesterday"], "'yesterday' is not a time (expected 2026-11-15T11:00"),
        (["availability", "--window", "soon"], "'soon' is not a duration (expected 90s, 10m, 1h or 1d)"),
        (["availability", "--window", "0s"], "'0s' is not a duration"),
        (["availability", "--what", "planet"], "'planet' is not one of 'broker', 'group', 'topic'"),
        (["churn", "--format", "xml"], "'xml' is not one of 'parquet', 'csv', 'json'"),
        (["churn", "--output", "{here}"], "{here} already exists: add --overwrite, or choose another path"),
        (["churn", "--journal", "{here}/nowhere"], "does not exist"),
        (["churn", "--journal", "{here}/empty"], "no journal in {here}/empty: give the memory folder"),
        (["churn", "-c", "{here}/none.properties"], "none.properties"),
        (["traffic", "-n", "127.0.0.1:1"], "Missing option '-t' / '--topic'"),
        (["traffic", "-t", "Orders"], "Missing option '-n' / '--nameserver'"),
        (["archive", "--to", "{here}/a"], "nothing to archive: add --journal, or -t with -n"),
        (
            ["archive", "-t", "Orders", "--to", "{here}/a"],
            "-t needs a name server: add -n HOST:PORT, or set NAMESRV_ADDR",
        ),
        (["report", "--to", "{here}/nowhere/report.html"], "no such folder: {here}/nowhere"),
        (["report", "--to", "{here}/report.html"], "report.html already exists"),
    ],
)
def test_wrong_arguments_are_reported_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], error: str
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    # Without Java, Spark could not start.
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    write(tmp_path / "journal", joined())
    (tmp_path / "empty").mkdir()
    (tmp_path / "report.html").touch()
    given = [each.replace("{here}", str(tmp_path)) for each in arguments]
    if not {"--journal", "-c", "-n", "-t", "--to"} & set(given) or given[0] == "report":
        given += ["--journal", str(tmp_path)]
    run = CliRunner().invoke(pipeline, given)
    assert run.exit_code in (1, 2)
    assert error.replace("{here}", str(tmp_path)) in run.output.replace("\n", " ").replace("  ", " ")


def test_a_config_file_without_a_journal_is_reported(tmp_path: Path) -> None:
    config = tmp_path / "namesrv.properties"
    config.write_text("journalEnable=false\nwarmRestartEnable=false\n")
    run = CliRunner().invoke(pipeline, ["rejects", "-c", str(config)])
    assert "has no journal: set journalEnable=true" in run.output


@pytest.mark.parametrize(
    "arguments", [["traffic", "-t", "T"], ["audit", "-t", "T"], ["latency"], ["archive", "-t", "T", "--to", "archive"]]
)
def test_a_name_server_that_does_not_respond_is_reported_before_spark_starts(arguments: list[str]) -> None:
    result = CliRunner().invoke(pipeline, [*arguments, "-n", "127.0.0.1:1"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: no name server answers: '127.0.0.1:1' cannot be reached: ")
    assert "Spark" not in result.stderr
