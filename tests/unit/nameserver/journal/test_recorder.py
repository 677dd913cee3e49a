"""Writing a journal: sequence numbers, segments, a full queue, and disk errors."""

import logging
import threading
from pathlib import Path

import pytest

from skyroute.files.disk import Disk
from skyroute.files.errors import DiskFullError, FileWriteError
from skyroute.nameserver.journal.reader import read_segment
from skyroute.nameserver.journal.recorder import SKIPPED_AFTER_CRASH
from skyroute.nameserver.journal.schema import Kind
from skyroute.nameserver.journal.segment_writer import SYNC_S
from skyroute.nameserver.journal.segments import closed_segments, open_segments
from skyroute.nameserver.journal.verify import verify
from skyroute.routing.events import Cause, TopicsChanged
from tests.support.clock import ManualClock
from tests.support.waiting import wait_until
from tests.unit.nameserver.journal.changes import (
    EVERY_KIND,
    FOUR,
    NEW,
    STOP,
    catch_up,
    joined,
    numbers,
    open_journal,
    read,
    write,
)


class GatedDisk(Disk):
    """Writes nothing while the gate is closed."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    def write(self, descriptor: int, data: bytes | bytearray, at: int) -> None:
        self.gate.wait(20)
        super().write(descriptor, data, at)


class RefusingDisk(Disk):
    """Refuses the calls in `refused`; a refused write writes half of its data."""

    def __init__(self, *refused: str) -> None:
        self.refused = set(refused)

    def _refuse(self, call: str) -> None:
        if call in self.refused:
            raise DiskFullError("no space left on device, in this test")

    def create(self, path: Path, *, like: Path | None = None) -> int:
        self._refuse("create")
        return super().create(path, like=like)

    def write(self, descriptor: int, data: bytes | bytearray, at: int) -> None:
        if "write" in self.refused:
            super().write(descriptor, data[: len(data) // 2], at)
        self._refuse("write")
        super().write(descriptor, data, at)

    def cut(self, descriptor: int, at: int, size: int) -> None:
        self._refuse("cut")
        super().cut(descriptor, at, size)

    def sync(self, descriptor: int) -> None:
        self._refuse("sync")

    def replace(self, source: Path, target: Path) -> None:
        self._refuse("replace")
        super().replace(source, target)


class FailsOnce(RefusingDisk):
    """Fails at the n-th call."""

    def __init__(self, fail_at: int) -> None:
        super().__init__()
        self.fail_at = fail_at
        self.calls = 0

    def _refuse(self, call: str) -> None:
        self.calls += 1
        if self.calls == self.fail_at:
            raise FileWriteError(f"this {call} fails, in this test")


class SyncedDisk(Disk):
    """Counts syncs."""

    syncs = 0

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        self.syncs += 1


def test_changes_are_written_in_order_with_rising_sequence_numbers(tmp_path: Path) -> None:
    write(tmp_path, *EVERY_KIND[:-1])
    records = read(tmp_path)
    assert [record.seq for record in records] == list(range(1, len(EVERY_KIND) + 1))
    assert records[-1].kind == Kind.SERVER_STOPPED
    assert verify(tmp_path).problems == []


def test_sequence_numbers_continue_after_a_stop(tmp_path: Path) -> None:
    write(tmp_path, joined())
    write(tmp_path, joined())
    assert numbers(tmp_path) == [1, 2, 3, 4]
    assert verify(tmp_path).gaps == 0


def test_readers_see_a_segment_only_once_it_is_closed(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append([joined()])
    catch_up(journal)
    assert list(closed_segments(tmp_path)) == []
    (unfinished,) = open_segments(tmp_path).values()
    assert unfinished.name.startswith("_")
    assert len(read(tmp_path)) == 1, "who follows the journal sees it at once"
    journal.append([STOP])
    journal.close()
    assert list(open_segments(tmp_path)) == []
    assert [path.name for path in closed_segments(tmp_path).values()] == ["00000000000000000001.jsonl"]


def test_a_segment_is_closed_at_its_maximum_size(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, segment_bytes=1000)
    for number in range(20):
        journal.append([joined(number)])
        catch_up(journal)
    journal.append([STOP])
    journal.close()
    sizes = [path.stat().st_size for path in closed_segments(tmp_path).values()]
    assert len(sizes) > 3
    assert max(sizes) <= 1000
    assert numbers(tmp_path) == list(range(1, 22))
    assert verify(tmp_path).problems == []


def test_a_segment_is_closed_at_its_maximum_age_without_new_changes(tmp_path: Path) -> None:
    clock = ManualClock()
    journal = open_journal(tmp_path, clock=clock, segment_s=60.0)
    journal.append([joined()])
    catch_up(journal)
    clock.advance(60.0)
    wait_until(lambda: closed_segments(tmp_path), "the segment is closed")
    assert [len(list(read_segment(path))) for path in closed_segments(tmp_path).values()] == [1]
    journal.close()


def test_an_open_segment_is_synced_within_a_second(tmp_path: Path) -> None:
    clock, disk = ManualClock(), SyncedDisk()
    journal = open_journal(tmp_path, clock=clock, disk=disk)
    disk.syncs = 0  # opening writes the index
    journal.append([joined()])
    catch_up(journal)
    assert disk.syncs == 0
    clock.advance(SYNC_S)
    wait_until(lambda: disk.syncs == 1, "the segment is synced")
    assert len(open_segments(tmp_path)) == 1
    journal.close()


def test_an_idle_journal_has_no_empty_segments(tmp_path: Path) -> None:
    open_journal(tmp_path).close()
    assert [path.name for path in tmp_path.iterdir()] == ["_alive", "_index.json"]


def test_the_oldest_segments_are_removed_above_the_total_size(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, segment_bytes=500, total_bytes=2000)
    for number in range(40):
        journal.append([joined(number)])
        catch_up(journal)
    journal.append([STOP])
    journal.close()
    assert sum(path.stat().st_size for path in closed_segments(tmp_path).values()) <= 2000
    report = verify(tmp_path)
    assert report.problems == []
    assert (report.first or 0) > 20
    assert report.last == 41


def test_changes_that_do_not_fit_the_queue_become_a_gap_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = GatedDisk()
    journal = open_journal(tmp_path, disk=disk, queue_weight=10)
    disk.gate.clear()
    for number in range(25):
        journal.append([joined(number)])
    assert journal.lost == 15
    disk.gate.set()
    wait_until(lambda: journal.written == 10, "there is room again")
    journal.append([joined(99)])
    journal.append([STOP])
    journal.close()
    records = read(tmp_path)
    assert [record.seq for record in records] == [*range(1, 11), 25, 26, 27]
    assert (records[10].kind, records[10].missing_from) == (Kind.GAP, 11)
    assert records[11].broker == "broker-99"
    report = verify(tmp_path)
    assert (report.problems, report.gaps) == ([], 1)
    assert caplog.text.count("journal queue full") == 1


def test_the_queue_is_bounded_in_bytes(tmp_path: Path) -> None:
    disk = GatedDisk()
    journal = open_journal(tmp_path, disk=disk, queue_bytes=100_000)
    disk.gate.clear()
    for number in range(10):
        topics = {f"{'x' * 200}{number}-{at}": FOUR for at in range(100)}
        journal.append([TopicsChanged("c", "b", Cause.REGISTERED, NEW, topics, {}, {})])
    assert (journal.sequence, journal.lost) == (10, 7)
    disk.gate.set()
    journal.close()
    assert [record.seq for record in read(tmp_path)] == [1, 2, 3, 10]


def test_a_large_table_is_written_in_bounded_lines_and_segments(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, segment_bytes=4 << 20, total_bytes=12 << 20)
    large = {f"{'x' * 100}{number:06}": FOUR for number in range(100_000)}
    journal.append([TopicsChanged("c", "b", Cause.REGISTERED, NEW, large, {}, {})])
    journal.append([TopicsChanged("c", "b", Cause.GROUP_GONE, None, {}, {}, large)])
    journal.close()
    sizes = [path.stat().st_size for path in closed_segments(tmp_path).values()]
    assert max(sizes) <= 4 << 20
    assert sum(sizes) <= (12 + 4) << 20
    assert verify(tmp_path).problems == []


def test_a_gap_at_the_end_is_recorded_on_close(tmp_path: Path) -> None:
    disk = GatedDisk()
    journal = open_journal(tmp_path, disk=disk, queue_weight=10)
    disk.gate.clear()
    for number in range(25):
        journal.append([joined(number)])
    closing = threading.Thread(target=journal.close)
    closing.start()
    assert journal._closing.wait(20)
    disk.gate.set()
    closing.join()
    assert read(tmp_path)[-1].missing_from == 11


def test_append_does_not_wait_for_a_blocked_disk(tmp_path: Path) -> None:
    disk = GatedDisk()
    journal = open_journal(tmp_path, disk=disk, queue_weight=100)
    disk.gate.clear()
    for number in range(1000):
        journal.append([joined(number)])  # this would hang
    assert (journal.sequence, journal.lost) == (1000, 900)
    disk.gate.set()
    journal.close()


@pytest.mark.parametrize("refused", ["create", "write", "replace", "sync"])
def test_writes_are_retried_after_a_temporary_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    monkeypatch.setattr("skyroute.nameserver.journal.recorder.RETRY_S", 0.01)
    caplog.set_level(logging.INFO)
    disk = RefusingDisk()
    journal = open_journal(tmp_path, disk=disk, segment_bytes=600)
    journal.append([joined(1)])
    catch_up(journal)
    disk.refused.add(refused)
    for number in range(2, 8):
        journal.append([joined(number)])
    wait_until(lambda: "journal write failed" in caplog.text, "the disk has refused")
    disk.refused.clear()
    catch_up(journal)
    journal.append([STOP])
    journal.close()
    assert numbers(tmp_path) == [*range(1, 9)]
    assert verify(tmp_path).problems == []
    assert caplog.text.count("journal write failed") == 1
    assert caplog.text.count("journal write succeeded again") == 1


def test_a_torn_segment_that_cannot_be_cut_is_closed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skyroute.nameserver.journal.recorder.RETRY_S", 0.01)
    disk = RefusingDisk()
    journal = open_journal(tmp_path, disk=disk)
    journal.append([joined(1)])
    catch_up(journal)
    disk.refused |= {"write", "cut"}
    journal.append([joined(2)])
    wait_until(lambda: journal.failing, "the disk has refused")
    disk.refused.clear()
    catch_up(journal)
    journal.append([STOP])
    journal.close()
    assert numbers(tmp_path) == [1, 2, 3]
    assert verify(tmp_path).problems == []


def test_no_written_record_is_lost_whichever_call_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skyroute.nameserver.journal.recorder.RETRY_S", 0.001)
    for fail_at in range(1, 15):
        folder = tmp_path / str(fail_at)
        disk = FailsOnce(fail_at)
        journal = open_journal(folder, disk=disk, segment_bytes=600)
        for number in range(8):
            journal.append([joined(number)])
            catch_up(journal)
        journal.append([STOP])
        catch_up(journal)
        journal.close()
        write(folder, joined(9))
        report = verify(folder)
        assert report.problems == [], fail_at
        kept = numbers(folder)
        assert kept[:9] == list(range(1, 10))
        assert kept[-2:] in ([10, 11], [SKIPPED_AFTER_CRASH + 10, SKIPPED_AFTER_CRASH + 11]), fail_at


def test_records_keep_their_order_if_the_clock_steps_back(tmp_path: Path) -> None:
    clock = ManualClock()
    journal = open_journal(tmp_path, clock=clock)
    journal.append([joined(1)])
    clock._wall -= 3600
    journal.append([joined(2), STOP])
    journal.close()
    first, second, _ = read(tmp_path)
    assert (first.seq, second.seq) == (1, 2)
    assert second.wall_ms < first.wall_ms
    report = verify(tmp_path)
    assert (report.problems, report.steps_back) == ([], 1)
    (path,) = closed_segments(tmp_path).values()
    assert [record.seq for record in read_segment(path)] == [1, 2, 3]
