"""Reading a journal: new records, last records, and while it is written."""

from pathlib import Path

import pytest

from skyroute.nameserver.errors import DamagedJournalError
from skyroute.nameserver.journal.lines import show_record
from skyroute.nameserver.journal.reader import Follower, decode_lines, last_records, read_records
from skyroute.nameserver.journal.schema import Record
from skyroute.nameserver.journal.segments import closed_segments
from tests.support.clock import ManualClock
from tests.unit.nameserver.journal.changes import STOP, catch_up, joined, open_journal, read, write


def test_a_follower_reads_every_record_once_across_segments(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, segment_bytes=700)
    follower, seen = Follower(tmp_path), list[int]()
    for number in range(12):
        journal.append([joined(number)])
        catch_up(journal)
        seen += [record.seq for record in follower.read_new()]
    journal.append([STOP])
    journal.close()
    seen += [record.seq for record in follower.read_new()]
    assert seen == list(range(1, 14))
    assert len(closed_segments(tmp_path)) > 3
    assert list(follower.read_new()) == []


def test_a_follower_starts_after_a_given_sequence_number(tmp_path: Path) -> None:
    for _ in range(3):
        write(tmp_path, joined())
    assert [record.seq for record in Follower(tmp_path, after=3).read_new()] == [4, 5, 6]


def test_a_follower_of_an_empty_journal_reads_its_first_record(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    assert list(follower.read_new()) == []
    write(tmp_path, joined())
    assert [record.seq for record in follower.read_new()] == [1, 2]


def test_the_last_records_are_read_from_the_end(tmp_path: Path) -> None:
    for _ in range(3):
        write(tmp_path, joined())
    assert [record.seq for record in last_records(tmp_path, 3)] == [4, 5, 6]
    assert [record.seq for record in last_records(tmp_path, 100)] == [1, 2, 3, 4, 5, 6]


def test_segments_before_the_start_time_are_not_read(tmp_path: Path) -> None:
    clock = ManualClock()
    for _ in range(3):
        write(tmp_path, joined(), clock=clock)
        clock.advance(1000.0)
    closed_segments(tmp_path)[1].write_bytes(b"unreadable\n")
    since_ms = int((clock.wall() - 2500.0) * 1000)
    assert [record.seq for record in read_records(tmp_path, since_ms=since_ms)] == [3, 4, 5, 6]
    assert [record.seq for record in read_records(tmp_path, after=4)] == [5, 6]


def test_the_error_of_a_damaged_line_has_its_number(tmp_path: Path) -> None:
    write(tmp_path, joined())
    (path,) = closed_segments(tmp_path).values()
    path.write_bytes(path.read_bytes() + b"{}\n")
    with pytest.raises(DamagedJournalError, match=r"00000000000000000001\.jsonl, line 3"):
        read(tmp_path)


@pytest.mark.parametrize("wall_ms", [10**16, -(10**16), 10**30])
def test_a_record_of_an_impossible_time_is_shown_with_the_number(wall_ms: int) -> None:
    line = b'{"v":1,"seq":1,"wall_ms":%d,"mono_ms":1,"server":"s","kind":"gap"}\n' % wall_ms
    (record,) = decode_lines(line, Path("segment"))
    assert isinstance(record, Record)
    assert show_record(record).startswith(f"{wall_ms} ms")
