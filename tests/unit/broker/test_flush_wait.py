"""Flushing: shared flushes, timeouts, failures, and the stop."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skyroute.broker.delivery.flush_wait import Flushed, Flushing
from skyroute.broker.store.errors import StoreClosedError
from skyroute.broker.store.message_store import MessageStore
from skyroute.files.disk import Disk
from tests.support.disks import NOW_MS, BlockingDisk, FailingSyncDisk, draft, small_store
from tests.support.waiting import eventually


class CountingDisk(Disk):
    def __init__(self) -> None:
        self.syncs = 0

    def sync(self, descriptor: int) -> None:
        self.syncs += 1


class Room:
    """A store, its flushing, and the outcomes of waits."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self.timeout_s = 10.0
        self.flushes = 0
        self.outcomes_by_name: list[tuple[str, Flushed]] = []
        self.flushing = Flushing(store, interval_s=0.01, timeout_s=lambda: self.timeout_s, on_flushed=self._on_flushed)

    def _on_flushed(self) -> None:
        self.flushes += 1

    def append(self) -> int:
        return self.store.append(draft(), NOW_MS).log_end

    def wait(self, name: str) -> None:
        self.flushing.wait_for(self.append(), lambda outcome: self.outcomes_by_name.append((name, outcome)))

    def is_told(self, *names: str) -> bool:
        return [name for name, _ in self.outcomes_by_name] == list(names)

    @property
    def outcomes(self) -> list[Flushed]:
        return [outcome for _, outcome in self.outcomes_by_name]


Make = Callable[[Disk], Room]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    stores: list[MessageStore] = []

    def made(disk: Disk) -> Room:
        stores.append(small_store(tmp_path / str(len(stores)), disk, sync_flush=True))
        return Room(stores[-1])

    yield made
    for store in stores:
        store.kill()


async def test_appends_of_one_turn_share_a_flush(make: Make) -> None:
    disk = CountingDisk()
    room = make(disk)
    disk.syncs = 0
    for name in "abc":
        room.wait(name)
    assert room.outcomes_by_name == []
    await eventually(lambda: room.is_told("a", "b", "c"))
    assert disk.syncs == 1
    assert set(room.outcomes) == {Flushed.DONE}
    assert room.store.flushed_position == room.store.max_position
    await room.flushing.stop()


async def test_appends_during_a_flush_share_the_next_flush(make: Make) -> None:
    disk = BlockingDisk()
    room = make(disk)
    disk.block()
    room.wait("a")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    room.wait("b")
    room.wait("c")
    assert repr(room.flushing) == "<Flushing waiting=3 busy>"
    disk.unblock()
    await eventually(lambda: room.is_told("a", "b", "c"))
    assert room.flushes == 2
    await room.flushing.stop()


async def test_each_wait_ends_at_its_own_timeout_if_the_disk_hangs(make: Make) -> None:
    disk = BlockingDisk()
    room = make(disk)
    disk.block()
    room.timeout_s = 0.01
    room.wait("a")
    await eventually(lambda: room.is_told("a"))
    room.wait("b")
    await eventually(lambda: room.is_told("a", "b"))
    room.timeout_s = 60
    room.wait("c")
    disk.unblock()
    await eventually(lambda: room.is_told("a", "b", "c"))
    assert room.outcomes == [Flushed.LATE, Flushed.LATE, Flushed.DONE]
    await room.flushing.stop()


async def test_a_failed_flush_fails_all_waits_and_stops_the_store(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    disk = FailingSyncDisk()
    room = make(disk)
    disk.fails = True
    room.wait("a")
    room.wait("b")
    await eventually(lambda: room.is_told("a", "b"))
    assert set(room.outcomes) == {Flushed.FAILED}
    assert "flush failed reason=this sync fails" in caplog.text
    with pytest.raises(StoreClosedError, match="could not be flushed"):
        room.append()
    disk.fails = False
    room.flushing.flush_soon()
    async with asyncio.timeout(5):
        await room.flushing.run()  # it ends after a failure
    assert (room.flushes, room.store.flushed_position) == (1, 0)
    await room.flushing.stop()


async def test_flush_soon_flushes_without_a_wait(make: Make) -> None:
    room = make(CountingDisk())
    room.append()
    room.flushing.flush_soon()
    room.flushing.flush_soon()
    await eventually(lambda: room.flushes == 1)
    assert room.store.flushed_position == room.store.max_position
    await room.flushing.stop()
    assert room.flushes == 1


async def test_a_flush_requested_during_a_flush_follows_it(make: Make) -> None:
    disk = BlockingDisk()
    room = make(disk)
    disk.block()
    room.append()
    room.flushing.flush_soon()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    room.append()
    room.flushing.flush_soon()
    disk.unblock()
    await eventually(lambda: room.store.flushed_position == room.store.max_position)
    assert room.flushes == 2
    await room.flushing.stop()


async def test_the_background_task_flushes_the_log_and_the_queues(make: Make) -> None:
    room = make(CountingDisk())
    running = asyncio.ensure_future(room.flushing.run())
    room.append()
    await eventually(lambda: room.store.flushed_position == room.store.max_position)
    # Other processes may read the files of a running broker, so the unit of the queue is written, too.
    segment = room.store.folder / "consumequeue" / "T" / "0" / f"{0:020d}"
    await eventually(lambda: segment.exists() and any(segment.read_bytes()[:20]))
    running.cancel()
    await room.flushing.stop()
    assert room.flushes >= 1


async def test_drain_returns_after_all_present_waits(make: Make) -> None:
    disk = BlockingDisk()
    room = make(disk)
    await room.flushing.drain()
    disk.block()
    room.wait("a")
    drained = asyncio.ensure_future(room.flushing.drain())
    await asyncio.sleep(0)
    assert not drained.done()
    disk.unblock()
    await drained
    assert room.outcomes_by_name == [("a", Flushed.DONE)]
    await room.flushing.stop()


async def test_stop_waits_for_the_current_flush_and_fails_the_other_waits(make: Make) -> None:
    disk = BlockingDisk()
    room = make(disk)
    disk.block()
    room.wait("a")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    room.wait("b")
    stopping = asyncio.ensure_future(room.flushing.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    disk.unblock()
    await stopping
    assert room.outcomes_by_name == [("a", Flushed.DONE), ("b", Flushed.FAILED)]
    room.wait("c")
    room.flushing.flush_soon()
    assert room.outcomes_by_name[-1] == ("c", Flushed.FAILED)


async def test_stop_fails_a_wait_whose_flush_has_not_begun(make: Make) -> None:
    room = make(CountingDisk())
    room.wait("a")
    await room.flushing.stop()
    assert room.outcomes_by_name == [("a", Flushed.FAILED)]


async def test_a_flush_without_free_file_descriptors_opens_its_files_later(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = make(CountingDisk())

    def refuse(_descriptor: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("os.dup", refuse)
    room.wait("a")
    await eventually(lambda: room.is_told("a"))
    assert room.outcomes == [Flushed.DONE]
    await room.flushing.stop()


async def test_a_flush_that_cannot_begin_fails_the_waits(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    room = make(CountingDisk())

    def refuse(_descriptor: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.dup", refuse)
    room.wait("a")
    await eventually(lambda: room.is_told("a"))
    assert room.outcomes == [Flushed.FAILED]
    await room.flushing.stop()
