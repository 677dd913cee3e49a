"""What `skyroute pipeline` says of wrong words, with Spark at hand and before it starts."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from skyroute.cli.pipeline.commands import pipeline
from tests.unit.nameserver.journal.changes import joined, write


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["routes", "--at", "yesterday"], "'yesterday' is no time: write 2026-11-15T11:00"),
        (["availability", "--window", "soon"], "'soon' is no length of time: write 90s, 10m, 1h or 1d"),
        (["availability", "--window", "0s"], "'0s' is no length of time"),
        (["availability", "--what", "planet"], "'planet' is not one of 'broker', 'group', 'topic'"),
        (["churn", "--format", "xml"], "'xml' is not one of 'parquet', 'csv', 'json'"),
        (["churn", "--output", "{here}"], "{here} is there already: add --overwrite, or choose another"),
        (["churn", "--journal", "{here}/nowhere"], "does not exist"),
        (["churn", "--journal", "{here}/empty"], "there is no journal in {here}/empty: name the memory folder"),
        (["churn", "-c", "{here}/none.properties"], "none.properties"),
        (["traffic", "-n", "127.0.0.1:1"], "Missing option '-t' / '--topic'"),
        (["traffic", "-t", "Orders"], "Missing option '-n' / '--nameserver'"),
        (["archive", "--to", "{here}/a"], "name what to archive: --journal, or -t with -n"),
        (
            ["archive", "-t", "Orders", "--to", "{here}/a"],
            "where are the topics? say -n HOST:PORT, or set NAMESRV_ADDR",
        ),
        (["report", "--to", "{here}/nowhere/report.html"], "there is no folder {here}/nowhere"),
        (["report", "--to", "{here}/report.html"], "report.html is there already"),
    ],
)
def test_wrong_words_are_named_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    # Should it start, it would find no Java.
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    write(tmp_path / "journal", joined())
    (tmp_path / "empty").mkdir()
    (tmp_path / "report.html").touch()
    given = [word.replace("{here}", str(tmp_path)) for word in words]
    if not {"--journal", "-c", "-n", "-t", "--to"} & set(given) or given[0] == "report":
        given += ["--journal", str(tmp_path)]
    run = CliRunner().invoke(pipeline, given)
    assert run.exit_code in (1, 2)
    assert said.replace("{here}", str(tmp_path)) in run.output.replace("\n", " ").replace("  ", " ")


def test_the_settings_of_a_server_find_its_journal(tmp_path: Path) -> None:
    config = tmp_path / "namesrv.properties"
    config.write_text("journalEnable=false\nwarmRestartEnable=false\n")
    run = CliRunner().invoke(pipeline, ["rejects", "-c", str(config)])
    assert "these settings keep no journal" in run.output
