"""Recovery after a crash, after removed files, and the sequence numbers afterwards."""

import logging
import shutil
from pathlib import Path

import pytest

from skyroute.nameserver.journal.index import INDEX_NAME, read_index
from skyroute.nameserver.journal.recorder import SKIPPED_AFTER_CRASH
from skyroute.nameserver.journal.recovery import ALIVE_NAME, read_alive
from skyroute.nameserver.journal.retention import AGED_AT_ONCE, outdated
from skyroute.nameserver.journal.schema import Kind
from skyroute.nameserver.journal.segments import Segment, closed_segments, open_segments
from skyroute.nameserver.journal.verify import verify
from tests.support.clock import ManualClock
from tests.support.waiting import wait_until
from tests.unit.nameserver.journal.changes import STOP, catch_up, joined, numbers, open_journal, read, write


def crash(folder: Path, into: Path, count: int = 5) -> Path:
    """Copy a journal while its server runs, as a crash would leave it; return its open segment."""
    journal = open_journal(folder)
    journal.append([joined(number) for number in range(count)])
    catch_up(journal)
    shutil.copytree(folder, into)
    journal.close()
    (unfinished,) = open_segments(into).values()
    return unfinished


def test_sequence_numbers_continue_above_those_of_a_crashed_server(tmp_path: Path) -> None:
    crash(tmp_path / "alive", tmp_path / "dead")
    write(tmp_path / "dead", joined(9))
    records = read(tmp_path / "dead")
    after = 5 + SKIPPED_AFTER_CRASH
    assert [record.seq for record in records] == [1, 2, 3, 4, 5, after, after + 1, after + 2]
    assert (records[5].kind, records[5].missing_from) == (Kind.GAP, 6)
    assert verify(tmp_path / "dead").problems == []


def test_the_gap_after_a_crash_says_when_the_server_last_ran(tmp_path: Path) -> None:
    clock = ManualClock()
    journal = open_journal(tmp_path, clock=clock)
    journal.append([joined(1)])
    catch_up(journal)
    clock.advance(6 * 86_400.0)  # without a change
    alive_ms = int(clock.wall() * 1000)
    wait_until(lambda: read_alive(tmp_path) == alive_ms)
    journal.close()  # without the record of a stop
    clock.advance(3_600.0)
    write(tmp_path, joined(2), clock=clock)
    (gap,) = [record for record in read(tmp_path) if record.kind == Kind.GAP]
    assert gap.alive_ms == alive_ms


def test_a_journal_without_a_sign_of_life_has_a_gap_without_one(tmp_path: Path) -> None:
    crash(tmp_path / "alive", tmp_path / "dead")
    (tmp_path / "dead" / ALIVE_NAME).write_bytes(b"\x00")
    write(tmp_path / "dead", joined(9))
    (gap,) = [record for record in read(tmp_path / "dead") if record.kind == Kind.GAP]
    assert gap.alive_ms is None


def test_complete_lines_before_a_torn_line_are_kept(tmp_path: Path) -> None:
    content = crash(tmp_path / "alive", tmp_path / "dead", count=2).read_bytes()
    first_line = content.index(b"\n") + 1
    for length in (*range(first_line - 3, first_line + 40), len(content) - 1, len(content)):
        folder = tmp_path / f"cut-{length}"
        folder.mkdir()
        (folder / "_00000000000000000001.jsonl.open").write_bytes(content[:length])
        journal = open_journal(folder)
        whole = content[:length].count(b"\n")
        assert journal.torn_bytes == length - len(b"".join(content[:length].splitlines(keepends=True)[:whole]))
        journal.append([STOP])
        journal.close()
        assert verify(folder).problems == [], length
        kept = [record for record in read(folder) if record.kind == Kind.BROKER_JOINED]
        assert len(kept) == whole


def test_a_crash_is_logged_once_with_the_torn_bytes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    unfinished = crash(tmp_path / "alive", tmp_path / "dead")
    with unfinished.open("ab") as file:
        file.write(b'{"v":1,"seq":6,"wall')
    write(tmp_path / "dead")
    assert caplog.text.count("journal segment closed after a crash") == 1
    assert "records=5 torn=20" in caplog.text


def test_a_damaged_line_stays_and_verify_reports_it(tmp_path: Path) -> None:
    unfinished = crash(tmp_path / "alive", tmp_path / "dead")
    lines = unfinished.read_bytes().splitlines(keepends=True)
    unfinished.write_bytes(b"".join([*lines[:2], b"\0\0\0\n", *lines[3:]]))
    write(tmp_path / "dead")
    (closed, *_) = closed_segments(tmp_path / "dead").values()
    assert closed.read_bytes().count(b"\n") == 5
    assert verify(tmp_path / "dead").problems == [
        "00000000000000000001.jsonl, line 3: not a record: JSON is malformed: invalid character (byte 0)",
        "00000000000000000001.jsonl, line 4: sequence numbers 3 to 3 are missing",
    ]


def test_a_removed_segment_is_reported_and_its_numbers_are_not_reused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        write(tmp_path, joined())
    assert list(closed_segments(tmp_path)) == [1, 3, 5]
    closed_segments(tmp_path)[3].unlink()
    assert verify(tmp_path).problems == [
        "00000000000000000005.jsonl, line 1: sequence numbers 3 to 4 are missing",
        "segment 00000000000000000003.jsonl is missing: sequence numbers 3 to 4",
    ]
    closed_segments(tmp_path)[5].unlink()
    write(tmp_path, joined())
    assert caplog.text.count("journal segment missing") == 2
    assert numbers(tmp_path)[:2] == [1, 2]
    assert min(numbers(tmp_path)[2:]) > 6


def test_a_missing_or_damaged_index_is_rebuilt(tmp_path: Path) -> None:
    for _ in range(3):
        write(tmp_path, joined())
    index = read_index(tmp_path)
    assert [(segment.first, segment.last, segment.records) for segment in index.values()] == [
        (1, 2, 2),
        (3, 4, 2),
        (5, 6, 2),
    ]
    for damage in (b"", b"{", b'{"v":1,"segments":[]}'):
        (tmp_path / INDEX_NAME).write_bytes(damage)
        open_journal(tmp_path).close()
        assert read_index(tmp_path) == index


def test_sequence_numbers_start_above_the_floor(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    write(tmp_path, joined(), floor=500)
    assert min(record.seq for record in read(tmp_path)) > 500
    assert verify(tmp_path).problems == []


def segment(first: int, *, size: int = 100, at_s: float = 0.0) -> Segment:
    return Segment(first, first, 1, int(at_s * 1000), int(at_s * 1000), size)


def test_old_segments_are_removed_from_the_oldest_on() -> None:
    segments = [segment(1, at_s=10), segment(2, at_s=20), segment(3, at_s=5), segment(4, at_s=100)]
    assert [s.first for s in outdated(segments, bytes_max=10_000, age_s_max=50, now_wall_s=65)] == [1]
    assert [s.first for s in outdated(segments, bytes_max=10_000, age_s_max=50, now_wall_s=75)] == [1, 2]
    assert [s.first for s in outdated(segments[2:], bytes_max=10_000, age_s_max=50, now_wall_s=75)] == [3]
    assert [s.first for s in outdated(segments, bytes_max=250, age_s_max=1e9, now_wall_s=75)] == [1, 2]
    assert outdated(segments, bytes_max=400, age_s_max=1e9, now_wall_s=75) == []


def test_a_clock_far_ahead_removes_only_a_few_segments(tmp_path: Path) -> None:
    clock = ManualClock()
    for number in range(10):
        write(tmp_path, joined(number), clock=clock)
    clock.set_back(-10 * 365 * 86_400.0)
    write(tmp_path, joined(), clock=clock)
    assert len(closed_segments(tmp_path)) == 11 - AGED_AT_ONCE
    assert verify(tmp_path).problems == []


def test_verify_finds_a_changed_byte(tmp_path: Path) -> None:
    write(tmp_path, joined(1), joined(2))
    (path,) = closed_segments(tmp_path).values()
    path.write_bytes(path.read_bytes().replace(b"broker-2", b"broker-3"))
    changed = "00000000000000000001.jsonl: the checksum is wrong"
    assert verify(tmp_path).problems == [changed]
    write(tmp_path, joined(4))
    assert verify(tmp_path).problems == [changed], "a restart does not hide it"


def test_cut_lines_are_reported_and_their_numbers_are_not_reused(tmp_path: Path) -> None:
    write(tmp_path, joined(1), joined(2))
    (path,) = closed_segments(tmp_path).values()
    first, *_ = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first)
    write(tmp_path, joined(4))
    assert numbers(tmp_path)[0] == 1
    assert min(numbers(tmp_path)[1:]) > 3
    problems = "\n".join(verify(tmp_path).problems)
    assert "(expected 3 in" in problems
    assert "numbers 2 to 3 are missing" in problems


def test_a_record_with_invalid_fields_is_reported(tmp_path: Path) -> None:
    write(tmp_path, joined())
    (path,) = closed_segments(tmp_path).values()
    path.write_bytes(path.read_bytes().replace(b'"broker_id":0', b'"broker_id":"0"', 1))
    (tmp_path / INDEX_NAME).unlink()
    (problem,) = verify(tmp_path).problems
    assert problem.startswith("00000000000000000001.jsonl, line 1: not a record: Expected `int | null`, got `str`")


def test_a_record_of_a_newer_version_is_reported(tmp_path: Path) -> None:
    write(tmp_path, joined())
    (path,) = closed_segments(tmp_path).values()
    path.write_bytes(path.read_bytes().replace(b'"v":1', b'"v":2').replace(b'"broker_id":0', b'"broker_id":"0"'))
    (tmp_path / INDEX_NAME).unlink()
    assert verify(tmp_path).problems == [
        f"00000000000000000001.jsonl, line {number}: written by a newer version (2)" for number in (1, 2)
    ]


def test_an_unreadable_segment_is_reported_and_the_others_are_read(tmp_path: Path) -> None:
    write(tmp_path, joined())
    (tmp_path / "00000000000000000077.jsonl").mkdir()
    report = verify(tmp_path)
    assert report.problems == ["00000000000000000077.jsonl cannot be read: Is a directory"]
    assert report.records == 2


def damage_first_line(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(b"?" + content[1:])


def test_a_segment_with_a_damaged_first_line_keeps_its_name_and_is_no_obstacle(tmp_path: Path) -> None:
    for _ in range(2):
        write(tmp_path, joined())
    first, second = closed_segments(tmp_path).values()
    damage_first_line(second)
    (tmp_path / INDEX_NAME).unlink()
    write(tmp_path, joined())
    assert sorted(closed_segments(tmp_path)) == [1, 3, 5]
    assert read_index(tmp_path)[3].last == 4
    assert [problem.partition(":")[0] for problem in verify(tmp_path).problems][:1] == [f"{second.name}, line 1"]
    assert first.exists()


def test_an_open_segment_with_a_damaged_first_line_is_closed_under_its_number(tmp_path: Path) -> None:
    damage_first_line(crash(tmp_path / "alive", tmp_path / "dead"))
    write(tmp_path / "dead", joined(9))
    assert min(closed_segments(tmp_path / "dead")) == 1
    assert read_index(tmp_path / "dead")[1].records == 4


@pytest.mark.parametrize("line", [b'{"x":' + b"[" * 5000, b'{"v":1,"seq":\xff}'])
def test_a_line_that_cannot_be_decoded_is_damage_and_does_not_stop_a_start(tmp_path: Path, line: bytes) -> None:
    write(tmp_path, joined())
    (path,) = closed_segments(tmp_path).values()
    path.write_bytes(line + b"\n" + path.read_bytes())
    (tmp_path / INDEX_NAME).write_bytes(line)
    assert "not a record" in verify(tmp_path).problems[0]
    write(tmp_path, joined())
    assert sorted(closed_segments(tmp_path)) == [1, 3]
