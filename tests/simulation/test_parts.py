"""The simulated loop, threads, network and disk behave as the real ones may."""

from __future__ import annotations

import asyncio
import os
import random
import select
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from skyroute.files.errors import DiskFullError, FileWriteError
from skyroute.files.replace import replace_file
from tests.simulation.cluster import Machine, World
from tests.simulation.disk import SECTOR, SimDisk
from tests.simulation.loop import SimulationError
from tests.simulation.network import RETRANSMIT_S, WINDOW_BYTES, SimTransport

T = TypeVar("T")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(1, tmp_path)
    yield made
    made.threads.end()
    made.loop.close()


def play(world: World, main: Callable[[], Awaitable[T]]) -> T:
    async def run() -> T:
        return await main()

    return world.loop.run_until_complete(run())


# ---------------------------------------------------------------------------------------------------------------- loop


def test_an_hour_passes_at_once(world: World) -> None:
    began = time.perf_counter()
    play(world, lambda: asyncio.sleep(3600.0))
    assert world.now == pytest.approx(3600.0)
    assert time.perf_counter() - began < 10.0


def test_a_wait_for_nothing_is_an_error_and_not_a_hang(world: World) -> None:
    with pytest.raises(SimulationError, match="nothing is left to do"):
        play(world, lambda: asyncio.Event().wait())


def test_a_loop_in_which_no_time_passes_is_an_error(world: World) -> None:
    async def poll() -> None:
        while world.now < 1:  # noqa: ASYNC110 - this is the mistake
            await asyncio.sleep(0)

    with pytest.raises(SimulationError, match="no time passes"):
        play(world, poll)


def test_jobs_of_one_thread_run_one_after_the_other_in_virtual_time(world: World) -> None:
    ran: list[tuple[str, float]] = []

    def job(name: str) -> str:
        ran.append((name, world.now))
        world.threads.sleep(2.0)
        return name

    async def main() -> list[str]:
        thread, loop = ThreadPoolExecutor(1), asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(thread, job, name) for name in ("one", "two")))

    assert play(world, main) == ["one", "two"]
    assert ran[1][1] - ran[0][1] >= 2.0
    assert world.now >= 4.0


def test_a_thread_waits_in_virtual_time_and_ends_with_its_machine(world: World) -> None:
    woken: list[float] = []
    event = world.threads.Event()

    def work() -> None:
        while True:
            event.wait(10.0)
            woken.append(round(world.now, 3))
            event.clear()

    async def main() -> None:
        world.threads.Thread(target=work).start()
        await asyncio.sleep(5.0)
        event.set()
        await asyncio.sleep(11.0)
        world.threads.kill("")
        await asyncio.sleep(100.0)

    play(world, main)
    assert woken == [5.0, 15.0]


# ------------------------------------------------------------------------------------------------------------- network


class Recorder(asyncio.Protocol):
    """Notes what a connection tells its protocol."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.transport: SimTransport | None = None
        self.received = b""
        self.events: list[str] = []
        self.ended_at: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def eof_received(self) -> bool:
        self.events.append("end")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append(type(exc).__name__)
        self.ended_at = self._world.now


async def connected(world: World) -> tuple[Recorder, Recorder]:
    """Return the protocols of a client and of the server it is connected to."""
    server, client = Machine(world, "10.0.0.1"), Machine(world, "10.0.0.2")
    accepted: list[Recorder] = []

    def accept() -> Recorder:
        accepted.append(Recorder(world))
        return accepted[-1]

    await server.spawn(world.loop.create_server(accept, "10.0.0.1", 9876))
    _, ours = await client.spawn(world.loop.create_connection(lambda: Recorder(world), "10.0.0.1", 9876))
    return ours, accepted[0]


def test_bytes_arrive_in_order_and_later(world: World) -> None:
    async def main() -> None:
        ours, theirs = await connected(world)
        assert ours.transport is not None
        for number in range(100):
            ours.transport.write(b"%d," % number)
        assert theirs.received == b""
        await asyncio.sleep(10.0)
        assert theirs.received == b"".join(b"%d," % number for number in range(100))
        ours.transport.close()
        await asyncio.sleep(10.0)
        assert theirs.events == ["end", "NoneType"]
        assert ours.events == ["NoneType"]

    play(world, main)


def test_a_peer_that_does_not_read_pauses_the_writer(world: World) -> None:
    async def main() -> None:
        ours, theirs = await connected(world)
        assert ours.transport is not None
        world.network.stop_reading("10.0.0.1")
        ours.transport.write(bytes(WINDOW_BYTES + 200_000))
        await asyncio.sleep(60.0)
        assert ours.events == ["pause"]
        assert ours.transport.get_write_buffer_size() == 200_000
        assert theirs.received == b""
        world.network.read_again("10.0.0.1")
        await asyncio.sleep(60.0)
        assert ours.events == ["pause", "resume"]
        assert len(theirs.received) == WINDOW_BYTES + 200_000

    play(world, main)


def test_bytes_sent_in_a_partition_arrive_when_it_heals(world: World) -> None:
    async def main() -> None:
        ours, theirs = await connected(world)
        assert ours.transport is not None
        world.network.partition(["10.0.0.1"], ["10.0.0.2"])
        ours.transport.write(b"late")
        await asyncio.sleep(60.0)
        assert theirs.received == b""
        world.network.heal()
        await asyncio.sleep(RETRANSMIT_S[1] + 1)
        assert theirs.received == b"late"

    play(world, main)


def test_a_machine_that_is_switched_off_leaves_its_peers_half_open(world: World) -> None:
    async def main() -> None:
        ours, theirs = await connected(world)
        assert ours.transport is not None
        world.network.switch_off("10.0.0.1")
        ours.transport.write(b"into the void")
        await asyncio.sleep(300.0)
        assert theirs.events == ["ConnectionResetError"]
        assert ours.events == []
        world.network.switch_on("10.0.0.1")
        await asyncio.sleep(RETRANSMIT_S[1] + 1)
        assert ours.events == ["ConnectionResetError"], "the restarted machine does not know the connection"

    play(world, main)


def test_a_killed_process_resets_its_connections(world: World) -> None:
    async def main() -> None:
        ours, _ = await connected(world)
        world.network.kill_process("10.0.0.1")
        await asyncio.sleep(10.0)
        assert ours.events == ["ConnectionResetError"]
        with pytest.raises(ConnectionRefusedError):
            await world.loop.create_connection(lambda: Recorder(world), "10.0.0.1", 9876)

    play(world, main)


def test_a_hang_up_is_seen_by_poll(world: World) -> None:
    async def main() -> None:
        ours, theirs = await connected(world)
        assert ours.transport is not None
        assert theirs.transport is not None
        theirs.transport.pause_reading()
        poll = select.poll()
        poll.register(theirs.transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        assert not poll.poll(0)
        ours.transport.close()
        await asyncio.sleep(10.0)
        assert poll.poll(0)
        theirs.transport.abort()
        await asyncio.sleep(1.0)

    play(world, main)


# ---------------------------------------------------------------------------------------------------------------- disk


@pytest.fixture
def disk(tmp_path: Path) -> SimDisk:
    return SimDisk(tmp_path, random.Random(1), lambda _: None)


def test_a_power_failure_keeps_what_was_synced_and_may_lose_the_rest(disk: SimDisk, tmp_path: Path) -> None:
    path = tmp_path / "commitlog" / "0"
    lost = 0
    for _ in range(20):
        descriptor = disk.open(path, 64 * SECTOR)
        for folder in (path.parent, tmp_path):
            disk.sync_folder(folder)
        disk.write(descriptor, b"s" * SECTOR * 8, 0)
        disk.sync(descriptor)
        disk.write(descriptor, b"u" * SECTOR * 8, SECTOR * 8)
        os.close(descriptor)
        disk.crash()
        content = path.read_bytes()
        assert content[: SECTOR * 8] == b"s" * SECTOR * 8
        sectors = [content[at : at + SECTOR] for at in range(SECTOR * 8, SECTOR * 16, SECTOR)]
        assert {*sectors} <= {b"u" * SECTOR, bytes(SECTOR)}
        lost += sectors.count(bytes(SECTOR))
        path.unlink()
    assert 0 < lost < 20 * 8


def test_a_killed_process_loses_nothing_that_it_has_written(disk: SimDisk, tmp_path: Path) -> None:
    path = tmp_path / "commitlog" / "0"
    descriptor = disk.open(path, SECTOR)
    disk.write(descriptor, b"written", 0)
    disk.die()
    with pytest.raises(FileWriteError):
        disk.write(descriptor, b"after its death", 100)
    os.close(descriptor)
    assert path.read_bytes().rstrip(b"\0") == b"written"


def test_a_replaced_file_is_whole_after_a_power_failure(disk: SimDisk, tmp_path: Path) -> None:
    path = tmp_path / "config" / "topics.json"
    replace_file(path, b"one" * 1000, disk=disk)
    replace_file(path, b"two" * 1000, disk=disk)
    disk.crash()
    assert path.read_bytes() == b"two" * 1000
    assert (tmp_path / "config" / "topics.json.bak").read_bytes() == b"one" * 1000


def test_a_full_disk_refuses_writes(disk: SimDisk, tmp_path: Path) -> None:
    descriptor = disk.open(tmp_path / "commitlog" / "0", SECTOR)
    disk.faults.is_full = True
    with pytest.raises(DiskFullError):
        disk.write(descriptor, b"x", 0)
    disk.faults.is_full = False
    disk.write(descriptor, b"x", 0)
    assert os.pread(descriptor, 1, 0) == b"x"
    os.close(descriptor)


@pytest.mark.parametrize("writes_again", [False, True])
def test_later_syncs_do_not_write_what_a_failed_one_has_dropped(
    disk: SimDisk, tmp_path: Path, *, writes_again: bool
) -> None:
    found: set[bytes] = set()
    for number in range(20):
        path = tmp_path / "commitlog" / str(number)
        descriptor = disk.open(path, SECTOR)
        disk.write(descriptor, b"x", 0)
        disk.faults.fails_next_sync = True
        with pytest.raises(FileWriteError):
            disk.sync(descriptor)
        if writes_again:
            disk.write(descriptor, b"x", 0)
        disk.sync(descriptor)
        for folder in (path.parent, tmp_path):
            disk.sync_folder(folder)
        os.close(descriptor)
        disk.crash()
        found.add(path.read_bytes()[:1])
    assert found == ({b"x"} if writes_again else {b"x", b"\0"})


def test_a_power_failure_may_lose_a_folder_that_was_not_synced(disk: SimDisk, tmp_path: Path) -> None:
    found = set()
    for number in range(20):
        path = tmp_path / str(number) / "file"
        descriptor = disk.open(path, SECTOR)
        disk.sync(descriptor)
        disk.sync_folder(path.parent)
        os.close(descriptor)
        disk.crash()
        found.add(path.exists())
    assert found == {False, True}


def test_a_power_failure_may_undo_names_that_were_not_synced(disk: SimDisk, tmp_path: Path) -> None:
    folder = tmp_path / "config"
    found: Counter[tuple[str, ...]] = Counter()
    for _ in range(60):
        shutil.rmtree(folder, ignore_errors=True)
        replace_file(folder / "a", b"one", disk=disk)  # syncs the folder
        os.close(disk.create(folder / "b"))
        disk.remove(folder / "a")
        disk.crash()
        found[tuple(sorted(path.name for path in folder.iterdir()))] += 1
    assert found.keys() == {("a",), ("a", "b"), ("b",)}, "a removal must not overtake an older creation"


def test_a_flipped_bit_changes_one_bit(disk: SimDisk, tmp_path: Path) -> None:
    path = tmp_path / "index"
    path.write_bytes(bytes(range(1, 100)))
    assert disk.flip_bit("*") == path
    changed = [one ^ other for one, other in zip(bytes(range(1, 100)), path.read_bytes(), strict=True) if one != other]
    assert [value.bit_count() for value in changed] == [1]
