"""The log of changes beside the state file: damage, power failures, full disks."""

import asyncio
import random
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from skyroute.controller import change_log, file_store
from skyroute.controller.errors import DamagedStateError
from skyroute.controller.file_store import FileStore
from skyroute.controller.state import GroupState, Replica
from skyroute.files.disk import Disk
from skyroute.files.errors import FileWriteError
from skyroute.files.replace import backup_path
from tests.simulation.disk import SimDisk
from tests.support.disks import FailingDisk, NoSyncDisk

HALF = 1500
"""Small enough to cut the file at every length."""

NAMES = ("a", "b", "c")


@pytest.fixture(autouse=True)
def small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_log, "HALF_BYTES", HALF)
    monkeypatch.setattr(file_store, "CONTENT_BYTES_MAX", HALF - change_log._OVERHEAD)


def group(name: str, epoch: int) -> GroupState:
    return GroupState("C", name, 2, {1: Replica("h:1", "h:1;5")}, 1, epoch, frozenset({1}), epoch, True)


async def opened(folder: Path, disk: Disk | None = None) -> FileStore:
    store = FileStore(folder / "state.json", disk or NoSyncDisk())
    await store.open()
    return store


async def elect(store: FileStore, name: str = "a") -> None:
    """Give a group its next epoch."""
    stored = store.find(name)
    if stored is None:
        await store.replace(group(name, 1), 0)
    else:
        await store.replace(group(name, stored.state.master_epoch + 1), stored.revision)


async def reopened(store: FileStore) -> FileStore:
    await store.close()
    again = await opened(store._path.parent)
    await again.close()
    return again


def epochs(store: FileStore) -> dict[str, int]:
    return {name: stored.state.master_epoch for name, stored in store.groups().items()}


async def written(folder: Path, changes: int, disk: Disk | None = None) -> dict[str, int]:
    """Make changes in turns; return the epochs after them."""
    store = await opened(folder, disk)
    for number in range(changes):
        await elect(store, NAMES[number % len(NAMES)])
    after = epochs(store)
    await store.close()
    return after


def read(folder: Path) -> dict[str, int] | None:
    """Return the epochs that a start finds; None if it refuses."""
    store = FileStore(folder / "state.json", NoSyncDisk())
    try:
        store._read()
    except DamagedStateError:
        return None
    return epochs(store)


def test_a_cut_log_is_refused(tmp_path: Path) -> None:
    asyncio.run(written(tmp_path, 5))
    path = tmp_path / "state.json.log1"
    whole = path.read_bytes()
    assert len(whole) == 2 * HALF
    with path.open("r+b") as file:
        for length in reversed(range(len(whole))):
            file.truncate(length)
            assert read(tmp_path) is None, length
    path.write_bytes(whole + b"\0")
    assert read(tmp_path) is None
    path.unlink()
    assert read(tmp_path) is None


def test_any_flipped_bit_of_the_log_loses_nothing(tmp_path: Path) -> None:
    expected = asyncio.run(written(tmp_path, 5))
    path = tmp_path / "state.json.log1"
    whole = path.read_bytes()
    used = len(whole[:HALF].rstrip(b"\0"))
    for at in (*range(used + 4), *range(HALF, HALF + used + 4)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(damaged)
        assert read(tmp_path) == expected, at


def test_any_flipped_bit_of_the_file_is_refused_or_loses_nothing(tmp_path: Path) -> None:
    asyncio.run(written(tmp_path, 5))
    expected = asyncio.run(written(tmp_path, 2))
    path = tmp_path / "state.json"
    whole = path.read_bytes()
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(damaged)
        found = read(tmp_path)
        # A digit of an epoch, or a letter of a name, may become another one: JSON has no checksum.
        assert found is None or sum(found.get(name, 0) != epoch for name, epoch in expected.items()) <= 1, at
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert read(tmp_path) is None, length


def test_a_change_that_both_copies_lost_is_refused_unless_it_is_the_last(tmp_path: Path) -> None:
    expected = asyncio.run(written(tmp_path, 5))
    path = tmp_path / "state.json.log1"
    whole = path.read_bytes()
    starts = [at for at in range(HALF) if whole.startswith(b"SKGROUP1", at)]
    assert len(starts) == 5
    for number, start in enumerate(starts):
        damaged = bytearray(whole)
        for half in (0, HALF):
            damaged[half + start + 30] ^= 1
        path.write_bytes(damaged)
        found = read(tmp_path)
        if number < 4:
            assert found is None
        else:
            assert found == expected | {"b": 1}


def test_the_backup_with_both_logs_has_every_change(tmp_path: Path) -> None:
    for changes in range(1, 40):
        folder = tmp_path / str(changes)
        expected = asyncio.run(written(folder, changes))
        path = folder / "state.json"
        if not backup_path(path).exists():
            assert changes < 20
            continue
        backup_path(path).replace(path)
        assert read(folder) == expected
        before = expected["a"]
        assert asyncio.run(written(folder, 1)) == expected | {"a": before + 1}
        assert read(folder) == expected | {"a": before + 1}


def test_a_log_does_not_continue_another_file(tmp_path: Path) -> None:
    asyncio.run(written(tmp_path, 5))
    older = (tmp_path / "state.json").read_bytes()
    asyncio.run(written(tmp_path, 5))
    newer = msgspec.json.decode((tmp_path / "state.json").read_bytes())
    mixed = msgspec.json.decode(older) | {"generation": newer["generation"]}
    (tmp_path / "state.json").write_bytes(msgspec.json.encode(mixed))
    with pytest.raises(DamagedStateError, match="does not continue"):
        asyncio.run(opened(tmp_path))


def test_the_files_have_a_bounded_size_and_the_mode_of_the_first(tmp_path: Path) -> None:
    asyncio.run(written(tmp_path, 3))
    path = tmp_path / "state.json"
    path.chmod(0o640)
    asyncio.run(written(tmp_path, 1))
    size = path.stat().st_size
    asyncio.run(written(tmp_path, 100))
    assert path.stat().st_size < size + 20
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
    assert {modes["state.json"], modes["state.json.bak"], modes["state.json.log0"]} == {0o640}
    assert set(modes) == {f"state.json{each}" for each in ("", ".bak", ".lock", ".log0", ".log1")}
    assert {(tmp_path / f"state.json.log{number}").stat().st_size for number in (0, 1)} == {2 * HALF}


async def test_a_group_larger_than_the_log_is_stored(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await elect(store)
    large = replace(group("b", 1), replicas={1: Replica("h" * HALF, "h:1;5")})
    await store.replace(large, 0)
    await elect(store)
    await store.replace(replace(large, master_epoch=2), 1)
    await elect(store)
    await store.close()
    assert epochs(await reopened(store)) == {"a": 3, "b": 2}
    backup_path(tmp_path / "state.json").replace(tmp_path / "state.json")
    assert epochs(await reopened(store)) == {"a": 3, "b": 2}


def test_a_full_disk_does_not_stop_elections_until_the_log_is_full(tmp_path: Path) -> None:
    class Full(NoSyncDisk):
        is_full = False

        def create(self, path: Path, *, like: Path | None = None) -> int:
            if self.is_full:
                raise FileWriteError("no space left, in this test")
            return super().create(path, like=like)

    async def run() -> None:
        disk = Full()
        store = await opened(tmp_path, disk)
        await elect(store)
        disk.is_full = True
        await elect(store)
        with suppress(FileWriteError):
            while epochs(store)["a"] < 100:
                await elect(store)
        reached = epochs(store)["a"]
        assert 3 < reached < 100
        with pytest.raises(FileWriteError):
            await elect(store)
        disk.is_full = False
        await elect(store)
        assert epochs(await reopened(store)) == {"a": reached + 1}

    asyncio.run(run())


@pytest.mark.parametrize("half", [False, True])
def test_no_acknowledged_change_is_lost_by_a_call_that_fails(tmp_path: Path, *, half: bool) -> None:
    """Each call of the disk fails once."""

    async def has_failed(number: int) -> bool:
        home = tmp_path / str(number)
        disk = FailingDisk(number, half=half)
        store = await opened(home, disk)
        for change in range(24):
            with suppress(FileWriteError):
                await elect(store, NAMES[change % 3])
        acknowledged = epochs(store)
        found = epochs(await reopened(store))
        assert all(found.get(name, 0) >= epoch for name, epoch in acknowledged.items()), (number, disk.failed)
        assert sum(found.values()) - sum(acknowledged.values()) in (0, 1), (number, disk.failed)
        return bool(disk.failed)

    number = 1
    while asyncio.run(has_failed(number)):
        number += 1
    assert number > 60


@pytest.mark.parametrize("seed", range(60))
def test_no_acknowledged_change_is_lost_in_a_power_failure(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    disk = SimDisk(tmp_path, rng, lambda _: None)
    acknowledged: dict[str, int] = {}

    async def live(lives: int) -> None:
        nonlocal acknowledged
        store = await opened(tmp_path, disk)
        found = epochs(store)
        assert all(found.get(name, 0) >= epoch for name, epoch in acknowledged.items())
        assert sum(found.values()) - sum(acknowledged.values()) <= 3
        acknowledged = found
        for _ in range(lives):
            await elect(store, rng.choice(NAMES))
            acknowledged = epochs(store)
        changes = [asyncio.create_task(elect(store, name)) for name in NAMES]
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        disk.die()
        await asyncio.gather(*changes, return_exceptions=True)
        acknowledged = epochs(store)
        await store.close()

    for _ in range(6):
        asyncio.run(live(rng.randrange(8)))
        disk.revive()
        disk.crash()
    asyncio.run(live(0))
