"""Reading journals: within bounds, and with a mark where the result may be incomplete."""

from pathlib import Path

import pytest

from skyroute.console.cluster_data import journals as reading
from skyroute.console.cluster_data.journals import Journals, Point
from skyroute.console.errors import ConsoleError
from skyroute.nameserver.journal.reader import Damage
from skyroute.nameserver.journal.segments import closed_segments
from skyroute.nameserver.journal.selection import Selection
from skyroute.nameserver.server_events import ServerStarted
from skyroute.routing.events import BrokerLeft, Cause, TopicsChanged
from tests.support.clock import ManualClock
from tests.unit.nameserver.journal.changes import FOUR, OLD, catch_up, joined, open_journal, write

START = ServerStarted("127.0.0.1:9876", 0, 0)
TOPIC = TopicsChanged("c", "broker-0", Cause.REGISTERED, OLD, {"T": FOUR}, {}, {})
LEFT = BrokerLeft("c", "broker-0", 0, "10.0.0.0:10911", Cause.LEASE_EXPIRED, OLD, (7,))


async def numbers(journals: Journals, **wanted: object) -> list[int | None]:
    timeline = await journals.timeline(journals.names, lambda: Selection(**wanted))  # type: ignore[arg-type]  # by name
    return [None if isinstance(entry.what, Damage) else entry.what.seq for entry in timeline.entries]


async def test_records_are_listed_newest_first(tmp_path: Path) -> None:
    write(tmp_path, START, joined(), TOPIC, joined(1), LEFT)
    journals = Journals({"ns": tmp_path})
    assert await numbers(journals) == [6, 5, 4, 3, 2, 1]
    assert await numbers(journals, topic="T") == [6, 5, 3, 1]
    assert await numbers(journals, broker="broker-1", kind="broker_joined") == [4]


async def test_journals_are_merged_by_time(tmp_path: Path) -> None:
    clock = ManualClock()
    for name in ("a", "b", "a", "b"):
        (tmp_path / name).mkdir(exist_ok=True)
        write(tmp_path / name, joined(), clock=clock)
        clock.advance(10.0)
    journals = Journals({"a": tmp_path / "a", "b": tmp_path / "b", "c": tmp_path / "c"})
    timeline = await journals.timeline(journals.names, Selection)
    assert [entry.journal for entry in timeline.entries] == ["b", "b", "a", "a", "b", "b", "a", "a"]
    assert "there is no journal in" in timeline.unread["c"]


async def test_only_the_end_of_a_long_journal_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        write(tmp_path, joined(number))
    size = closed_segments(tmp_path)[1].stat().st_size
    monkeypatch.setattr(reading, "TIMELINE_BYTES_MAX", 2 * size + size // 2)
    journals = Journals({"ns": tmp_path})
    timeline = await journals.timeline(["ns"], Selection)
    assert timeline.cut == {"ns"}
    assert await numbers(journals) == [8, 7, 6, 5]


async def test_a_damaged_line_keeps_its_place(tmp_path: Path) -> None:
    write(tmp_path, START, joined(), TOPIC)
    (path,) = closed_segments(tmp_path).values()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"{torn\n", *lines[2:]]))
    assert await numbers(Journals({"ns": tmp_path})) == [4, 3, None, 2, 1]
    (before,) = await Journals({"ns": tmp_path}).routes("ns", Point(seq=2))
    (after,) = await Journals({"ns": tmp_path}).routes("ns", Point(seq=3))
    assert (before.is_certain, before.damages) == (True, 0)
    assert (after.is_certain, after.damages) == (False, 1)


async def test_routes_are_those_of_the_run_and_the_time_asked_for(tmp_path: Path) -> None:
    clock = ManualClock()
    write(tmp_path, START, joined(), TOPIC, clock=clock)
    first_ms = int(clock.wall() * 1000)
    clock.advance(60.0)
    write(tmp_path, START, joined(1), clock=clock)
    journals = Journals({"ns": tmp_path})
    early, late = await journals.routes("ns", Point(time_ms=first_ms), Point(time_ms=first_ms + 60_000))
    assert list(early.table.groups) == ["broker-0"]
    assert early.table.groups["broker-0"].settings("T") == FOUR
    assert list(late.table.groups) == ["broker-1"]
    assert early.is_certain
    assert late.is_certain
    (by_number,) = await journals.routes("ns", Point(seq=2))
    assert by_number.table.groups["broker-0"].queues == {}
    with pytest.raises(ConsoleError, match="the journal begins later"):
        await journals.routes("ns", Point(time_ms=first_ms - 1))
    with pytest.raises(ConsoleError, match="unknown journal 'other'"):
        await journals.routes("other", Point(seq=1))


async def test_routes_are_uncertain_without_a_segment_or_the_beginning(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, segment_bytes=1)
    for change in (START, joined(), joined(1), joined(2)):
        journal.append([change])
        catch_up(journal)
    journal.close()
    paths = closed_segments(tmp_path)
    journals = Journals({"ns": tmp_path})
    paths[2].unlink()
    (routes,) = await journals.routes("ns", Point(seq=4))
    assert (routes.has_start, routes.gaps, routes.is_certain) == (True, 1, False)
    paths[1].unlink()
    (routes,) = await journals.routes("ns", Point(seq=4))
    assert (routes.has_start, routes.is_certain) == (False, False)


async def test_a_run_that_is_too_long_is_for_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = open_journal(tmp_path)
    journal.append([START, joined()])
    journal.close()
    journal = open_journal(tmp_path)
    journal.append([joined(1)])
    journal.close()
    monkeypatch.setattr(reading, "REPLAY_BYTES_MAX", 10)
    with pytest.raises(ConsoleError, match=f"skyroute pipeline routes --journal {tmp_path} --at"):
        await Journals({"ns": tmp_path}).routes("ns", Point(seq=1 << 40))
