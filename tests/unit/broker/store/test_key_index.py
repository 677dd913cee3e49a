"""The key index: Java's hash, linked lists of entries, several files."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.broker.store.index.key_index import MATCHES_MAX, SLOT_ENTRIES_A_STEP, KeyIndex
from skyroute.broker.store.index.keys import key_hash
from skyroute.files.disk import Disk
from skyroute.message.tags import java_hash
from tests.support.disks import NOW_MS

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@pytest.fixture
def index(tmp_path: Path) -> KeyIndex:
    return KeyIndex(tmp_path / "index", 7, 20, Disk())


@given(TEXT, TEXT)
def test_a_key_has_javas_hash(topic: str, key: str) -> None:
    assert key_hash(topic, key.encode()) == min(abs(java_hash(f"{topic}#{key}")), 0x7FFFFFFF) % 0x80000000


@pytest.mark.parametrize("length", [7, 20])
def test_the_hash_of_javas_smallest_integer_is_zero(length: int) -> None:
    # Characters are digits of base 31, so that a text can be found for any hash.
    left = ((1 << 31) - java_hash("T#" + "A" * length)) & 0xFFFFFFFF
    digits = [left // 31**place % 31 for place in reversed(range(length))]
    key = "".join(chr(ord("A") + digit) for digit in digits)
    assert java_hash(f"T#{key}") == -(1 << 31)
    assert key_hash("T", key.encode()) == 0


def add(index: KeyIndex, *keys: tuple[str, int]) -> None:
    index.add([(key_hash("T", key.encode()), position, NOW_MS + position) for key, position in keys])


def find(index: KeyIndex, key: str, begin_ms: int = 0, end_ms: int = NOW_MS * 2) -> list[int]:
    return index.find("T", key, 64, begin_ms, end_ms).positions


def test_all_messages_of_a_key_are_found_oldest_first_over_all_files(index: KeyIndex) -> None:
    for position in range(0, 60_000, 1000):
        add(index, ("every", position), (f"k{position}", position))
    assert len(index.files) == 7
    assert find(index, "every") == list(range(0, 60_000, 1000))
    assert all(position in find(index, f"k{position}") for position in range(0, 60_000, 1000))
    assert find(index, "another") == []
    assert index.end == 59_000
    assert index.end_ms == NOW_MS + 59_000
    matches = index.find("T", "every", 5, 0, NOW_MS * 2)
    assert matches.positions == [55_000, 56_000, 57_000, 58_000, 59_000]
    assert index.find("U", "every", 5, 0, NOW_MS * 2).positions == []


def test_a_long_list_of_entries_is_searched_in_steps(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path / "index", 7, 20 * SLOT_ENTRIES_A_STEP, Disk())
    add(index, *(("every", position) for position in range(1000, 1000 + 10 * SLOT_ENTRIES_A_STEP)))
    # The oldest are wanted, and the newest come first.
    assert sum(1 for _ in index.search("T", "every", 3, 0, NOW_MS + 2000)) >= 8
    assert len(index.find("T", "every", 3, 0, NOW_MS + 2000).positions) == 3


def test_a_file_may_expire_while_a_newer_one_is_searched(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path / "index", 1, 2 * SLOT_ENTRIES_A_STEP, Disk())
    add(index, *(("every", position) for position in range(2 * SLOT_ENTRIES_A_STEP - 1)))
    begin = index.end + 1
    add(index, *(("other", position) for position in range(begin, begin + SLOT_ENTRIES_A_STEP + 1)))
    search = index.search("T", "every", 3, 0, NOW_MS * 2)
    next(search)
    assert index.remove_expired(begin) == 1
    with pytest.raises(StopIteration) as end:
        next(search)
    assert end.value.value.positions == []


def test_a_search_is_limited_to_a_time_range_in_seconds(index: KeyIndex) -> None:
    for position in range(0, 60_000, 1000):
        add(index, ("every", position))
    assert find(index, "every", NOW_MS + 30_000, NOW_MS + 33_500) == [30_000, 31_000, 32_000, 33_000]
    assert find(index, "every", NOW_MS + 70_000) == []
    assert find(index, "every", 0, NOW_MS - 1) == []


def test_the_number_of_matches_is_bounded(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path, 7, 1000, Disk())
    add(index, *(("every", position) for position in range(500)))
    assert index.find("T", "every", 1 << 30, 0, NOW_MS * 2).positions == list(range(500 - MATCHES_MAX, 500))


def test_an_index_file_has_apaches_layout(index: KeyIndex) -> None:
    index.add([(23, 500, NOW_MS), (30, 700, NOW_MS + 2_999), (3, 900, NOW_MS - 5_000)])
    (path,) = (file.path for file in index.files)
    content = path.read_bytes()
    assert len(content) == 40 + 7 * 4 + 20 * 20
    assert struct.unpack_from(">qqqqii", content) == (NOW_MS, NOW_MS - 5_000, 500, 900, 2, 4)
    assert struct.unpack_from(">7i", content, 40) == (0, 0, 2, 3, 0, 0, 0), "23 and 30 are both 2 modulo 7"
    entries = [struct.unpack_from(">iqii", content, 68 + number * 20) for number in range(4)]
    assert entries == [(0, 0, 0, 0), (23, 500, 0, 0), (30, 700, 2, 1), (3, 900, 0, 0)]
    assert len(path.name) == 17


def test_files_keep_their_order_when_the_clock_steps_back(index: KeyIndex) -> None:
    for step in range(4):
        index.begin_file(NOW_MS - step * 100_000)
    index.begin_file(1 << 60)
    names = [file.path.name for file in index.files]
    assert names == sorted(set(names))


@pytest.mark.parametrize("slots_are_sound", [True, False])
@pytest.mark.parametrize("cut", [0, 500, 18_000, 19_000, 30_500, 60_000])
def test_keys_behind_a_position_are_dropped(index: KeyIndex, cut: int, slots_are_sound: bool) -> None:
    for position in range(0, 60_000, 1000):
        add(index, ("every", position), (f"k{position}", position))
    index.truncate_to(cut, slots_are_sound=slots_are_sound)
    for file in index.files:
        content = file.path.read_bytes()
        used, slots = struct.unpack_from(">32xi", content)[0], struct.unpack_from(">7i", content, 40)
        assert used == len(slots) - slots.count(0)
    left = [position for position in range(0, 60_000, 1000) if position < cut]
    assert find(index, "every") == left
    for position in left:
        assert position in find(index, f"k{position}")
    add(index, *(("every", position) for position in range(cut, cut + 30)))
    whole = [*left, *range(cut, cut + 30)][-MATCHES_MAX:]
    assert find(index, "every") == whole
    index.close()
    index.load()
    assert find(index, "every") == whole


@pytest.mark.parametrize(("at", "value"), [(0, -1), (0, 1 << 62), (8, -1), (8, 1 << 62), (16, -1)])
def test_a_header_with_impossible_numbers_is_damaged(tmp_path: Path, index: KeyIndex, at: int, value: int) -> None:
    add(index, ("a", 100), ("b", 200))
    (path,) = [file.path for file in index.files]
    index.close()
    content = bytearray(path.read_bytes())
    struct.pack_into(">q", content, at, value)
    path.write_bytes(content)
    again = KeyIndex(tmp_path / "index", 7, 20, Disk())
    again.load()
    assert again.files == []
    assert not path.exists()


@pytest.mark.parametrize("used", [0x7FFFFFFF, -0x80000000])
def test_a_damaged_number_of_used_slots_does_not_matter(tmp_path: Path, index: KeyIndex, used: int) -> None:
    add(index, ("a", 100), ("b", 200))
    (path,) = [file.path for file in index.files]
    index.close()
    content = bytearray(path.read_bytes())
    struct.pack_into(">i", content, 32, used)
    path.write_bytes(content)
    again = KeyIndex(tmp_path / "index", 7, 20, Disk())
    again.load()
    again.truncate_to(150, slots_are_sound=True)
    add(again, ("c", 300))
    assert (find(again, "a"), find(again, "b"), find(again, "c")) == ([100], [], [300])
    again.close()


def test_keys_are_dropped_behind_a_file_that_a_killed_process_had_just_created(index: KeyIndex, tmp_path: Path) -> None:
    for position in range(0, 1000, 100):
        add(index, ("every", position))
    size = index.files[-1].path.stat().st_size
    with (tmp_path / "index" / "99999999999999999").open("wb") as file:
        file.truncate(size)
    index.reload()
    assert len(index.files) == 2
    index.truncate_to(700, slots_are_sound=True)
    add(index, ("every", 700))
    assert find(index, "every") == list(range(0, 800, 100))
