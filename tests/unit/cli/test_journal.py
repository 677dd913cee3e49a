"""`skyroute journal` with recorded journals."""

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from skyroute.cli.journal.commands import journal
from skyroute.nameserver.journal.lines import show_record
from skyroute.nameserver.journal.schema import Record
from skyroute.nameserver.journal.segments import closed_segments
from skyroute.nameserver.journal.times import parse_moment
from skyroute.nameserver.server_events import Change, KvChanged, ServerStarted
from skyroute.routing.events import BrokerJoined, BrokerLeft, Cause, TopicsChanged
from tests.support.clock import ManualClock
from tests.unit.nameserver.journal.changes import EVERY_KIND, FOUR, OLD, joined, open_journal, read, write

pytestmark = pytest.mark.usefixtures("in_utc")


@pytest.fixture
def in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(journal, [str(word) for word in arguments])


def lines(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_every_kind_of_record_is_printed_in_columns(tmp_path: Path) -> None:
    write(tmp_path, *EVERY_KIND[:-1])
    heading, *shown = lines(run("show", "--path", tmp_path))
    assert heading.split() == ["#TIME", "#SEQ", "#WHAT", "#BROKER", "#CAUSE", "#DETAILS"]
    assert len(shown) == len(EVERY_KIND)
    at = heading.index("#WHAT")
    assert [line[at:].split()[0] for line in shown] == [record.kind for record in read(tmp_path)]
    assert "added=1[T1] changed=1[T2] removed=1[T3]" in shown[3]
    assert "broker_id=1->0 ha_address=None->a:2 version=1->2" in shown[8]
    assert "enableTopicList=true->false peer=1.2.3.4:5" in shown[14]


def test_path_may_be_the_memory_folder_or_the_journal_folder(tmp_path: Path) -> None:
    write(tmp_path / "journal", joined())
    assert lines(run("show", "--path", tmp_path)) == lines(run("show", "--path", tmp_path / "journal"))


def test_the_journal_is_found_by_the_settings_file(tmp_path: Path) -> None:
    write(tmp_path / "memory" / "journal", joined())
    config = tmp_path / "namesrv.properties"
    config.write_text(f"memoryPath={tmp_path}/memory\n")
    assert len(lines(run("show", "-c", config))) == 3
    config.write_text("journalEnable=false\nwarmRestartEnable=false\n")
    assert "these settings have no journal" in run("show", "-c", config).output
    config.write_text(f"memoryPath={tmp_path}/nowhere\n")
    assert "no journal in" in run("verify", "-c", config).output


@pytest.mark.parametrize(("wanted", "count"), [(0, 0), (2, 2), (50, 5)])
def test_tail_prints_the_last_records(tmp_path: Path, wanted: int, count: int) -> None:
    write(tmp_path, *(joined(number) for number in range(4)))
    _, *shown = lines(run("tail", "-n", str(wanted), "--path", tmp_path))
    assert len(shown) == count
    if shown:
        assert "server_stopped" in shown[-1]


def test_json_prints_records_as_stored(tmp_path: Path) -> None:
    write(tmp_path, *EVERY_KIND[:-1])
    stored = b"".join(path.read_bytes() for path in closed_segments(tmp_path).values()).decode().splitlines()
    for command in (["show"], ["tail", "-n", "99"]):
        printed = lines(run(*command, "--json", "--path", tmp_path))
        assert [json.loads(line) for line in printed] == [json.loads(line) for line in stored]


def story(*names: str) -> list[Change]:
    """Two brokers join with their topics, and leave."""
    come = [
        change
        for name in names
        for change in (
            BrokerJoined("c", name, 0, f"{name}:1", None, OLD, 120.0, 7),
            TopicsChanged("c", name, Cause.REGISTERED, OLD, {f"T-{name}": FOUR}, {}, {}),
        )
    ]
    go = [BrokerLeft("c", name, 0, f"{name}:1", Cause.LEASE_EXPIRED, OLD, (7,)) for name in names]
    return [ServerStarted("", 0, 0), *come, *go]


def test_records_of_a_topic_include_its_brokers(tmp_path: Path) -> None:
    write(tmp_path, *story("a", "b"))
    _, *shown = lines(run("show", "--topic", "T-a", "--path", tmp_path))
    assert [line.split()[3] for line in shown] == ["server_started", "topics_changed", "broker_left", "server_stopped"]
    assert shown[2].split()[4] == "a[0]"


def test_records_of_a_broker(tmp_path: Path) -> None:
    write(tmp_path, *story("a", "b"))
    _, *shown = lines(run("show", "--broker", "b", "--path", tmp_path))
    assert [line.split()[3] for line in shown] == [
        "server_started", "broker_joined", "topics_changed", "broker_left", "server_stopped",
    ]  # fmt: skip


def test_records_between_two_times(tmp_path: Path) -> None:
    clock = ManualClock(wall=datetime(2026, 11, 15, 11, tzinfo=UTC).timestamp())
    for number in range(3):
        write(tmp_path, joined(number), clock=clock)
        clock.advance(60)
    arguments = ("--since", "2026-11-15T11:00:30Z", "--until", "2026-11-15T11:01:30Z")
    _, *shown = lines(run("show", *arguments, "--path", tmp_path))
    assert [line.split()[2] for line in shown] == ["3", "4"]


NOW = datetime(2026, 11, 15, 12, 0, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("text", "ago_s"),
    [
        ("90s", 90),
        ("10m", 600),
        ("1.5h", 5400),
        ("2d", 172_800),
        ("11:59", 60),
        ("2026-11-15T11:00", 3600),
        ("2026-11-15 10:00Z", 0),
        ("2026-11-14", 129_600),
        ("1794729600000", 7200),
    ],
)
def test_forms_of_times(text: str, ago_s: float) -> None:
    assert parse_moment(text, NOW) == round((NOW.timestamp() - ago_s) * 1000)


@pytest.mark.parametrize("text", ["yesterday", "", "25:00", "10 parsecs"])
def test_an_invalid_time_is_a_usage_error(tmp_path: Path, text: str) -> None:
    result = run("show", "--since", text, "--path", tmp_path)
    assert result.exit_code == 2
    assert "is not a time" in result.output


@pytest.mark.parametrize("command", ["tail", "show", "verify"])
def test_a_folder_without_a_journal_is_an_error(tmp_path: Path, command: str) -> None:
    (tmp_path / "notes.txt").write_text("nothing of ours")
    result = run(command, "--path", tmp_path)
    assert result.exit_code == 1
    assert (
        result.output == f"Error: no journal in {tmp_path}: give its folder with --path, or the settings file with -c\n"
    )


@pytest.mark.parametrize("command", ["tail", "show", "verify"])
def test_an_empty_journal_is_valid(tmp_path: Path, command: str) -> None:
    open_journal(tmp_path).close()
    assert run(command, "--path", tmp_path).exit_code == 0


def test_verify_finds_a_missing_segment(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path, joined(number))
    assert lines(run("verify", "--path", tmp_path))[-1] == "the journal has no damage"
    closed_segments(tmp_path)[3].unlink()
    result = run("verify", "--path", tmp_path)
    assert result.exit_code == 1
    assert "PROBLEM segment 00000000000000000003.jsonl is missing: sequence numbers 3 to 4" in result.output
    assert result.output.endswith("the journal is DAMAGED\n")
    found = json.loads(run("verify", "--json", "--path", tmp_path).output)
    assert (found["sound"], found["records"], len(found["problems"])) == (False, 4, 2)


def test_verify_names_a_torn_line_in_a_closed_segment(tmp_path: Path) -> None:
    write(tmp_path, joined())
    (path,) = closed_segments(tmp_path).values()
    path.write_bytes(path.read_bytes()[:-5])
    result = run("verify", "--path", tmp_path)
    assert result.exit_code == 1
    assert "the last line is torn" in result.output
    assert "Traceback" not in result.output


def test_damage_is_an_error_in_one_line(tmp_path: Path) -> None:
    write(tmp_path, joined())
    (path,) = closed_segments(tmp_path).values()
    path.write_bytes(b"nonsense\n")
    result = run("show", "--path", tmp_path)
    assert result.exit_code == 1
    assert "line 1" in result.output
    assert "run skyroute journal verify for details" in result.output


def test_terminal_escape_sequences_in_records_are_escaped(tmp_path: Path) -> None:
    write(tmp_path, KvChanged("n", "k", None, "\x1b[2Jgone\nforged line", "p"))
    shown = show_record(read(tmp_path)[0])
    assert shown.isprintable()
    assert "\\x1b[2Jgone\\nforged line" in shown


def test_a_record_of_an_unknown_kind_is_printed(tmp_path: Path) -> None:
    assert "moon_landed" in show_record(Record(1, 1, 1, 1, "s", "moon_landed"))
