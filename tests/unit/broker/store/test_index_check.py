"""From which record on the key index lacks keys of the log."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from skyroute.broker.store.commit_log import CommitLog
from skyroute.broker.store.files.segment import OpenSegments
from skyroute.broker.store.index.key_index import KeyIndex
from skyroute.broker.store.recovery import index_check
from skyroute.broker.store.recovery.index_check import find_gap
from tests.support.disks import NOW_MS, SMALL, NoSyncDisk, RestartedMachineDisk, draft, small_store

LOG = Path("commitlog") / f"{0:020d}"
KEYS_A_FILE = SMALL.index_entries - 1
SLOTS_AT = 40
ENTRIES_AT = SLOTS_AT + SMALL.index_slots * 4
ENTRY_BYTES = 20
COUNT_AT = 36


def fill(folder: Path, keys: Sequence[str]) -> list[int]:
    """Store a message for each key, without one if it is empty, and close the store.

    Returns the positions, and the end of the log.
    """
    store = small_store(folder, NoSyncDisk())
    named = [{"KEYS": each} if each else None for each in keys]
    positions = [store.append(draft(properties=each), NOW_MS).log_position for each in named]
    end = store.max_position
    store.close()
    return [*positions, end]


@contextmanager
def opened(folder: Path) -> Iterator[tuple[CommitLog, KeyIndex]]:
    log = CommitLog(folder / "commitlog", SMALL.log_segment_bytes, NoSyncDisk(), OpenSegments(10))
    index = KeyIndex(folder / "index", SMALL.index_slots, SMALL.index_entries, NoSyncDisk())
    log.load()
    index.load()
    yield log, index
    index.close()
    log.close()


def change(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.parametrize("count", [1, 2, KEYS_A_FILE, KEYS_A_FILE + 1, 3 * KEYS_A_FILE])
def test_an_index_with_all_keys_lacks_none(tmp_path: Path, count: int) -> None:
    *positions, end = fill(tmp_path, [f"k{number}" for number in range(count)])
    with opened(tmp_path) as (log, index):
        assert find_gap(log, index, end) == end
        index.truncate_to(positions[-1], slots_are_sound=True)
        assert find_gap(log, index, positions[-1]) == positions[-1], "the record at the stop is not missing"
        if count > 1:
            assert find_gap(log, index, end) == positions[-2]


def test_an_index_without_keys_lacks_those_of_the_first_record_too(tmp_path: Path) -> None:
    _, end = fill(tmp_path, ["k"])
    with opened(tmp_path) as (log, index):
        index.remove()
        assert find_gap(log, index, end) == 0
        index.begin_file(NOW_MS)
        assert find_gap(log, index, end) == 0


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_missing_file_is_a_gap_behind_the_last_key_before_it(tmp_path: Path, number: int) -> None:
    *positions, end = fill(tmp_path, [f"k{number}" for number in range(3 * KEYS_A_FILE)])
    sorted((tmp_path / "index").iterdir())[number].unlink()
    with opened(tmp_path) as (log, index):
        assert len(index.files) == 2
        assert find_gap(log, index, end) == ([0, *positions][number * KEYS_A_FILE])


def test_a_log_whose_first_file_has_expired_is_indexed_from_its_start(tmp_path: Path) -> None:
    *_, end = fill(tmp_path, [f"k{number}" for number in range(60)])
    (tmp_path / LOG).unlink()
    with opened(tmp_path) as (log, index):
        assert find_gap(log, index, end) == end
        index.remove()
        assert find_gap(log, index, end) == log.start == 4096


def test_a_damaged_record_does_not_hide_that_later_ones_lack_keys(tmp_path: Path) -> None:
    first, _, end = fill(tmp_path, ["k0", "k1"])
    change(tmp_path / LOG, first + 88, b"?")
    with opened(tmp_path) as (log, index):
        index.remove()
        assert find_gap(log, index, end) == 0


@pytest.mark.parametrize(("without", "is_found"), [(0, True), (2, True), (3, False)])
def test_only_some_records_are_searched_for_one_with_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: int, is_found: bool
) -> None:
    monkeypatch.setattr(index_check, "SCANNED_MAX", 3)
    *_, end = fill(tmp_path, [""] * without + ["k"])
    with opened(tmp_path) as (log, index):
        index.remove()
        assert find_gap(log, index, end) == (0 if is_found else end)


def test_torn_entries_behind_the_last_flush_are_dropped(tmp_path: Path) -> None:
    """Any part of what was not flushed may be missing: positions of entries are in order up to there only."""
    store = small_store(tmp_path, NoSyncDisk())
    for number in range(11):
        if number == 5:
            store.flush()
        store.append(draft(properties={"KEYS": f"k{number}"}), NOW_MS)
    store.dispatch()
    store.kill()
    (file,) = (tmp_path / "index").iterdir()
    whole = file.read_bytes()
    change(file, ENTRIES_AT + 6 * ENTRY_BYTES, bytes(6 * ENTRY_BYTES))
    change(file, SLOTS_AT, (11).to_bytes(4, "big") * SMALL.index_slots)
    store = small_store(tmp_path, RestartedMachineDisk())
    store.close()
    assert file.read_bytes()[COUNT_AT:] == whole[COUNT_AT:]
