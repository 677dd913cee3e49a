"""The log of messages that must not be popped again after a crash."""

import os
from pathlib import Path

import pytest

from skyroute.broker.pop.taken_log import STALE_S, OffsetRanges, TakenLog, ranges_of
from skyroute.files.disk import Disk
from skyroute.files.errors import DiskFullError

KEY = ("g", "T", 0)


class Booted(Disk):
    """A disk of a machine with a given boot id."""

    def __init__(self, boot: str) -> None:
        self._boot = boot

    def boot_id(self) -> str:
        return self._boot


def loaded(folder: Path, boot: str = "one") -> dict[tuple[str, str, int], list[tuple[int, int]]]:
    found = TakenLog(folder, Booted(boot)).load(folder / "consumerOffset.json")
    return {key: list(ranges) for key, ranges in found.items()}


def logged(folder: Path, **bounds: int) -> TakenLog:
    log = TakenLog(folder, Booted("one"), **bounds)
    log.load(folder / "consumerOffset.json")
    log.begin()
    return log


def test_ranges_skip_what_is_in_the_set() -> None:
    ranges = OffsetRanges([(8, 9), (2, 3), (4, 5), (8, 8)])
    assert list(ranges) == [(2, 5), (8, 9)]
    assert [ranges.gap(offset) for offset in (0, 2, 5, 6, 8, 10)] == [
        *((0, 2), (6, 8), (6, 8), (6, 8), (10, None), (10, None)),
    ]
    assert ranges_of((1, 2, 3)) == [1, 3]
    assert ranges_of((1, 3, 4, 9)) == [1, 1, 3, 4, 9, 9]


def test_both_files_are_read_in_order(tmp_path: Path) -> None:
    log = logged(tmp_path)
    log.note_taken(KEY, (1, 2))
    log.note_taken(("g", "U", 1), (7,))
    log.begin()
    log.note_reset(*KEY)
    log.note_taken(KEY, (5,))
    assert loaded(tmp_path) == {KEY: [(5, 5)], ("g", "U", 1): [(7, 7)]}
    log.drop_previous()
    assert loaded(tmp_path) == {KEY: [(5, 5)]}
    log.close(remove=False)
    log = logged(tmp_path)
    assert loaded(tmp_path) == {KEY: [(5, 5)]}
    log.close(remove=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("boot", ["two", ""])
def test_a_log_of_another_boot_is_not_used(tmp_path: Path, boot: str) -> None:
    logged(tmp_path).note_taken(KEY, (1,))
    assert loaded(tmp_path, boot) == {}


def test_a_log_older_than_the_offsets_is_not_used(tmp_path: Path) -> None:
    logged(tmp_path).note_taken(KEY, (1,))
    offsets = tmp_path / "consumerOffset.json"
    offsets.touch()
    at_s = (tmp_path / "popTaken.1").stat().st_mtime
    os.utime(offsets, (at_s, at_s + STALE_S / 2))
    assert loaded(tmp_path) == {KEY: [(1, 1)]}
    os.utime(offsets, (at_s, at_s + STALE_S * 2))
    assert loaded(tmp_path) == {}


@pytest.mark.parametrize("line", [b"[", b'["g","T",0,1]', b'["g","T","0",1,1]', b"[1,2,3]", b"{}", b"\xff", b"[]"])
def test_damaged_lines_are_skipped(tmp_path: Path, line: bytes) -> None:
    logged(tmp_path).note_taken(KEY, (1,))
    with (tmp_path / "popTaken.1").open("ab") as file:
        file.write(line + b'\n["g","T",0,3,4]\n["g","T",0,7')
    assert loaded(tmp_path) == {KEY: [(1, 1), (3, 4)]}


def test_the_file_has_a_bound(tmp_path: Path) -> None:
    log = logged(tmp_path, bytes_max=200)
    for at in range(0, 2_000, 2):
        log.note_taken(KEY, (at,))
    assert log.lost > 900
    assert (tmp_path / "popTaken.1").stat().st_size < 300
    log.begin()
    log.note_taken(KEY, (2_000,))
    assert loaded(tmp_path)[KEY][-1] == (2_000, 2_000)


def test_a_full_disk_is_survived(tmp_path: Path) -> None:
    class Full(Booted):
        is_full = False

        def write(self, descriptor: int, data: bytes | bytearray, at: int) -> None:
            if self.is_full:
                raise DiskFullError("cannot write popTaken.1: no space")
            super().write(descriptor, data, at)

    disk = Full("one")
    log = TakenLog(tmp_path, disk)
    log.begin()
    log.note_taken(KEY, (1,))
    disk.is_full = True
    log.note_taken(KEY, (3,))
    disk.is_full = False
    log.note_taken(KEY, (5,))
    assert log.lost == 2
    assert loaded(tmp_path) == {KEY: [(1, 1)]}
    log.begin()
    log.note_taken(KEY, (7,))
    assert loaded(tmp_path) == {KEY: [(1, 1), (7, 7)]}
