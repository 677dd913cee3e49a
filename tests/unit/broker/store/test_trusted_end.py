"""Up to where recovery trusts queues and index, and where the log goes on, whatever file is missing."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.queues.unit_rows import NO_MESSAGE_BYTES, UNIT
from skyroute.broker.store.recovery.log_scan import BAD_HEAD, ZEROS
from skyroute.broker.store.recovery.recover import Recovered
from skyroute.files.disk import Disk
from skyroute.files.errors import FileWriteError
from tests.support.disks import (
    NOW_MS,
    SMALL,
    FailingSyncDisk,
    NoSyncDisk,
    RestartedMachineDisk,
    bodies,
    draft,
    small_store,
)
from tests.support.single_damage import read_store

FILE_BYTES = 4096
SLOTS_AT = 40
"""Where the slots of an index file start."""
OUR_NOTES_AT = 2048
"""Where the notes of this broker start in the checkpoint."""
BOTH = 0, 1
"""The queues."""


def fill(folder: Path, count: int = 60) -> MessageStore:
    """Store messages with a key each, five seconds apart, in two queues; 60 are in three files of the log."""
    store = small_store(folder, NoSyncDisk())
    for number in range(count):
        store.append(draft("T", number % 2, b"x" * 100, {"KEYS": f"k{number}"}), NOW_MS + number * 5_000)
    return store


def close(store: MessageStore) -> None:
    store.close()


def close_as_apache(store: MessageStore) -> None:
    """Leave only what Apache's broker writes, too."""
    store.close()
    os.truncate(store.folder / "checkpoint", OUR_NOTES_AT)
    (store.folder / "queues").unlink()


def kill(store: MessageStore) -> None:
    store.dispatch()
    store.kill()


def kill_flushed(store: MessageStore) -> None:
    store.flush()
    store.kill()


def reopen(folder: Path, disk: Disk | None = None) -> tuple[MessageStore, Recovered]:
    store = small_store(folder, disk or NoSyncDisk(), now_ms=NOW_MS + 99)
    assert store.recovered is not None
    return store, store.recovered


def ends(store: MessageStore) -> list[int]:
    return [store.max_offset("T", queue_id) for queue_id in BOTH]


def change(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def log_file(folder: Path, number: int) -> Path:
    return folder / "commitlog" / f"{number * FILE_BYTES:020d}"


# -------------------------------------------------------------------------------------------- closed by Apache's broker


@pytest.mark.parametrize("has_file_ahead", [False, True])
def test_a_store_that_apaches_broker_closed_is_not_read(tmp_path: Path, has_file_ahead: bool) -> None:
    store = fill(tmp_path)
    end = store.max_position
    close_as_apache(store)
    if has_file_ahead:  # Apache's broker creates files before it needs them
        log_file(tmp_path, 3).write_bytes(bytes(FILE_BYTES))
    store, recovered = reopen(tmp_path)
    assert recovered == Recovered(True, end, 0)
    assert (store.max_position, ends(store), len(read_store(store))) == (end, [30, 30], 60)
    store.close()


def test_a_queue_of_a_store_that_apaches_broker_closed_is_rebuilt_if_its_newest_unit_is_damaged(tmp_path: Path) -> None:
    store = fill(tmp_path, 20)
    end, unit = store.max_position, store.unit("T", 1, 9)
    assert unit is not None
    close_as_apache(store)
    change(tmp_path / "consumequeue" / "T" / "1" / f"{0:020d}", 9 * UNIT.size, UNIT.pack(unit[0] + 1, unit[1], 0))
    store, recovered = reopen(tmp_path)
    assert (recovered.start, recovered.rebuilt_queues) == (end + 1, 1)
    assert (ends(store), store.unit("T", 1, 9), len(read_store(store))) == ([10, 10], unit, 20)
    store.close()


@pytest.mark.parametrize(("behind_limit", "is_believed"), [(0, True), (1, False)])
def test_the_newest_unit_counts_if_only_the_last_file_of_the_log_can_be_missing(
    tmp_path: Path, behind_limit: int, is_believed: bool
) -> None:
    store = fill(tmp_path, 22)
    end, limit, other = store.max_position, 3 * FILE_BYTES, store.unit("T", 0, 10)
    assert other is not None
    assert FILE_BYTES < end < 2 * FILE_BYTES
    close_as_apache(store)
    newest = UNIT.pack(limit + behind_limit - 100, 100, 0)
    change(tmp_path / "consumequeue" / "T" / "1" / f"{10 * UNIT.size:020d}", 0, newest)
    store, recovered = reopen(tmp_path)
    found = recovered.start, recovered.records, recovered.rebuilt_queues, store.max_position
    assert found == ((limit, 0, 0, limit) if is_believed else (other[0] + other[1], 1, 1, end))
    assert (ends(store), len(read_store(store))) == ([11, 11], 21 if is_believed else 22)
    store.close()


def test_a_unit_without_a_message_says_where_the_log_ended(tmp_path: Path) -> None:
    store = fill(tmp_path, 10)
    last, end = store.unit("T", 1, 4), store.max_position
    assert last is not None
    store.close()
    change(log_file(tmp_path, 0), last[0], bytes(end - last[0]))
    store, _ = reopen(tmp_path)
    assert store.unit("T", 1, 4) == (end, NO_MESSAGE_BYTES, 0)
    close_as_apache(store)
    store, recovered = reopen(tmp_path)
    assert recovered == Recovered(True, end, 0)
    assert (store.max_position, ends(store), len(read_store(store))) == (end, [5, 5], 9)
    store.close()


# --------------------------------------------------------------------------------------------------- the log is missing


ENDS = [(close, NoSyncDisk), (close_as_apache, NoSyncDisk), (kill, NoSyncDisk), (kill_flushed, RestartedMachineDisk)]


@pytest.mark.parametrize(("end_with", "disk"), ENDS)
def test_without_the_last_file_of_the_log_queues_stay_and_offsets_go_on(
    tmp_path: Path, end_with: Callable[[MessageStore], None], disk: type[Disk]
) -> None:
    store = fill(tmp_path)
    end = store.max_position
    end_with(store)
    missing = log_file(tmp_path, 2)
    missing.rename(tmp_path / "missing")
    store, recovered = reopen(tmp_path, disk())
    assert (recovered.start, recovered.rebuilt_queues, recovered.cuts) == (end, 0, ())
    assert (store.max_position, ends(store), len(read_store(store))) == (3 * FILE_BYTES, [30, 30], 40)
    store.close()
    (tmp_path / "missing").rename(missing)
    store, _ = reopen(tmp_path)
    assert (ends(store), len(read_store(store))) == ([30, 30], 60)
    store.close()


@pytest.mark.parametrize(("end_with", "disk"), ENDS)
def test_without_a_log_queues_stay_and_offsets_and_positions_go_on(
    tmp_path: Path, end_with: Callable[[MessageStore], None], disk: type[Disk]
) -> None:
    store = fill(tmp_path)
    end = store.max_position
    end_with(store)
    (tmp_path / "commitlog").rename(tmp_path / "missing")
    store, recovered = reopen(tmp_path, disk())
    assert (recovered.start, recovered.rebuilt_queues) == (end, 0)
    assert (store.max_position, ends(store), read_store(store)) == (end, [30, 30], [])
    store.close()
    (tmp_path / "missing").rename(tmp_path / "commitlog")
    store, _ = reopen(tmp_path)
    assert (ends(store), len(read_store(store))) == ([30, 30], 60)
    store.close()


def test_the_end_of_a_log_without_its_last_file_stays_behind_that_file(tmp_path: Path) -> None:
    store = fill(tmp_path, 30)
    store.close()
    log_file(tmp_path, 1).unlink()
    shutil.rmtree(tmp_path / "index")
    store, _ = reopen(tmp_path)
    store.kill()
    store, recovered = reopen(tmp_path)
    assert (recovered.start, store.max_position, ends(store)) == (2 * FILE_BYTES, 2 * FILE_BYTES, [15, 15])
    store.close()


# -------------------------------------------------------------------------------------------------------------- crashes


def test_a_store_that_died_empty_starts_at_0(tmp_path: Path) -> None:
    small_store(tmp_path, NoSyncDisk()).kill()
    store, recovered = reopen(tmp_path)
    assert (recovered, store.max_position) == (Recovered(False, 0, 0), 0)
    store.close()


def test_a_crash_of_another_broker_is_read_from_the_file_of_the_checkpoints_time_on(tmp_path: Path) -> None:
    close(fill(tmp_path))
    (tmp_path / "abort").write_text("4711")  # Apache's broker writes only its process id
    change(max((tmp_path / "index").iterdir()), SLOTS_AT, bytes(SMALL.index_slots * 4))  # they may not be on disk
    store, recovered = reopen(tmp_path)
    assert (recovered.start, recovered.records, recovered.cuts) == (2 * FILE_BYTES, 20, ())
    assert (ends(store), len(read_store(store))) == ([30, 30], 60)
    keys = [len(store.find_by_key("T", f"k{number}", 9, 0, NOW_MS * 2).positions) for number in range(60)]
    assert keys == [1] * 60
    store.close()


def test_units_of_records_that_a_machine_crash_lost_are_dropped(tmp_path: Path) -> None:
    store = fill(tmp_path, 10)
    store.flush()
    end = store.max_position
    for number in range(6):
        store.append(draft("T", number % 2, b"not flushed", {"KEYS": "late"}), NOW_MS + 50_000)
    kill(store)
    change(log_file(tmp_path, 0), end, bytes(FILE_BYTES - end))
    store, recovered = reopen(tmp_path, RestartedMachineDisk())
    assert recovered == Recovered(False, end, 0)
    assert (ends(store), store.max_position, len(read_store(store))) == ([5, 5], end, 10)
    assert store.find_by_key("T", "late", 9, 0, NOW_MS * 2).positions == []
    store.close()


def test_an_unfinished_rebuild_from_the_start_of_the_log_is_continued(tmp_path: Path) -> None:
    close(fill(tmp_path))
    store, _ = reopen(tmp_path)
    store._begin_rebuild(0)
    store.kill()
    for queue_id in BOTH:
        shutil.rmtree(tmp_path / "consumequeue" / "T" / str(queue_id))
    store, recovered = reopen(tmp_path)
    assert (recovered.start, recovered.records) == (0, 60)
    assert (ends(store), len(read_store(store))) == ([30, 30], 60)
    store.close()


def test_a_process_that_dies_after_a_rebuild_does_not_repeat_it(tmp_path: Path) -> None:
    store = fill(tmp_path)
    end = store.max_position
    store.close()
    shutil.rmtree(tmp_path / "consumequeue" / "T" / "1")
    store, recovered = reopen(tmp_path)
    assert recovered == Recovered(True, end, 0, rebuilt_queues=1)
    store.kill()
    store, recovered = reopen(tmp_path)
    assert recovered == Recovered(False, end, 0)
    store.close()


def test_a_note_far_behind_the_log_is_of_another_one(tmp_path: Path) -> None:
    kill(fill(tmp_path / "longer"))
    store = fill(tmp_path / "store", 10)
    store.dispatch()
    for queue_id in BOTH:
        store.append(draft("T", queue_id, b"not dispatched"), NOW_MS)
    end = store.max_position
    store.kill()
    shutil.copy(tmp_path / "longer" / "checkpoint", tmp_path / "store" / "checkpoint")
    store, recovered = reopen(tmp_path / "store")
    assert (recovered.start, recovered.records, store.max_position) == (0, 12, end)
    assert [bodies(store, "T", queue_id)[-1] for queue_id in BOTH] == [b"not dispatched"] * 2
    store.close()


class LogWrites(NoSyncDisk):
    """Counts writes to the log by their offset in a file."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self._log_files: set[int] = set()

    def open(self, path: Path, size: int) -> int:
        descriptor = super().open(path, size)
        (self._log_files.add if path.parent.name == "commitlog" else self._log_files.discard)(descriptor)
        return descriptor

    def write(self, descriptor: int, data: bytes | bytearray, at: int) -> None:
        if descriptor in self._log_files:
            self.written.append(at)
        super().write(descriptor, data, at)


@pytest.mark.parametrize("fails", [True, False])
def test_only_what_a_failed_flush_may_have_dropped_is_written_again(tmp_path: Path, fails: bool) -> None:
    disk = FailingSyncDisk()
    store = small_store(tmp_path, disk)
    store.append(draft(body=b"flushed"), NOW_MS)
    store.flush()
    start = store.max_position
    store.append(draft(body=b"not flushed"), NOW_MS)
    disk.fails = fails
    if fails:
        with pytest.raises(FileWriteError):
            store.flush()
        store.dispatch()
    store.kill()
    writes = LogWrites()
    store, recovered = reopen(tmp_path, writes)
    assert (recovered.start, recovered.records) == (start, 1)
    assert writes.written == ([start] if fails else [])
    assert bodies(store) == [b"flushed", b"not flushed"]
    store.close()


# ------------------------------------------------------------------------------------------------- bytes behind the end


@pytest.mark.parametrize(
    ("position", "data", "expected_damage"),
    [
        (2 * FILE_BYTES + 4090, b"\xff", [(0, 4091 - 4020, BAD_HEAD)]),
        (3 * FILE_BYTES, b"\xff", [(0, 76, ZEROS), (76, 1, BAD_HEAD)]),
        (3 * FILE_BYTES + 100, b"\xff\0\0\xff", [(0, 76, ZEROS), (76, 104, BAD_HEAD)]),
    ],
)
def test_nothing_is_cut_off_a_closed_store(
    tmp_path: Path, position: int, data: bytes, expected_damage: list[tuple[int, int, str]]
) -> None:
    store = fill(tmp_path)
    end = store.max_position
    assert end == 2 * FILE_BYTES + 4020
    store.close()
    path = log_file(tmp_path, position // FILE_BYTES)
    path.touch()
    os.truncate(path, FILE_BYTES)
    change(path, position % FILE_BYTES, data)
    before = path.read_bytes()
    store, recovered = reopen(tmp_path)
    assert (recovered.start, recovered.cuts, store.max_position) == (end, (), position + len(data))
    assert [(each.position - end, each.size, each.reason) for each in recovered.damaged] == expected_damage
    assert path.read_bytes() == before
    assert (ends(store), len(read_store(store))) == ([30, 30], 60)
    store.close()


@pytest.mark.parametrize("dies", [True, False])
def test_a_damaged_newest_unit_does_not_move_the_end_of_the_log(tmp_path: Path, dies: bool) -> None:
    store = fill(tmp_path, 20)
    end = store.max_position
    (kill if dies else close)(store)
    newest = UNIT.pack(end + 1000, 100, 0)
    change(tmp_path / "consumequeue" / "T" / "1" / f"{0:020d}", 9 * UNIT.size, newest)
    store, recovered = reopen(tmp_path)
    assert (recovered.start, recovered.rebuilt_queues, store.max_position) == (end, 1, end)
    assert (ends(store), len(read_store(store))) == ([10, 10], 20)
    store.close()
