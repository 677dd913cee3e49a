"""Dispatch: units and keys of new records."""

from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from skyroute.broker.store.index.keys import find_value
from skyroute.message.properties import find_property
from tests.support.disks import NOW_MS, FullDisk, draft, small_store

PIECES = st.lists(st.sampled_from(["TAGS", "XTAGS", "TAGSX", "\x01", "\x01", "\x02", "\x02", "a", "é"]), max_size=14)


@given(PIECES.map("".join))
@example("TAGS\x01a\x02TAGS\x01\x02")
@example("TAGS\x01a")
@example("TAGS\x01a\x02XTAGS\x01b\x02")
@example("b\x01c\x02TAGS\x01a\x01b\x02")
def test_find_value_agrees_with_find_property(text: str) -> None:
    found = find_value(text.encode(), b"TAGS\x01")
    assert (found.decode() if found else None) == find_property(text.encode(), "TAGS")


def test_keys_are_written_after_an_earlier_write_failed(tmp_path: Path) -> None:
    """Also the keys of messages that arrived while the write failed."""
    disk = FullDisk()
    store = small_store(tmp_path, disk, index_entries=8)
    positions = {}
    for number in range(40):
        disk.is_full = False
        if number % 3:
            positions[number] = store.append(draft(properties={"KEYS": f"key-{number}"}), NOW_MS).log_position
        disk.is_full = number % 4 != 0
        for wanted, position in positions.items():
            found = store.find_by_key("T", f"key-{wanted}", 9, 0, NOW_MS * 2).positions
            assert found == [position] or disk.is_full
    disk.is_full = False
    for wanted, position in positions.items():
        assert store.find_by_key("T", f"key-{wanted}", 9, 0, NOW_MS * 2).positions == [position]
