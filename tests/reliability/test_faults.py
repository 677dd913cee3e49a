"""Real processes with faults: no acknowledged message is lost, order is kept, and the cluster works again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from tests.reliability.fault_proxy import FAULTS, NO_FAULT, fault_proxy
from tests.reliability.faults import (
    Cluster,
    SteppedClock,
    break_every_link,
    cluster,
    small_disk,
    suspended,
    without_descriptors,
)
from tests.reliability.workload import Workload
from tests.support.waiting import eventually

RATE_PER_S = 50
FAULT_S = 1.0


async def loaded(here: Cluster) -> Workload:
    workload = Workload(here.address, rate_per_s=RATE_PER_S)
    await workload.create_topics()
    return workload


async def until_acknowledged(workload: Workload, more: int = 20) -> None:
    """Wait until sends are acknowledged again."""
    wanted = workload.acknowledged + more
    await eventually(lambda: workload.acknowledged >= wanted, "sends are acknowledged", timeout_s=60.0)


async def test_every_fault_between_every_pair_loses_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as here:
        workload = await loaded(here)
        async with workload.running():
            await until_acknowledged(workload)
            await break_every_link(here.proxies, FAULT_S)
            await until_acknowledged(workload)
    assert workload.violations() == {}


async def test_a_suspended_process_loses_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as here:
        workload = await loaded(here)
        async with workload.running():
            for process in (here.broker, here.name_server):
                await until_acknowledged(workload)
                with suspended(process.pid):
                    await asyncio.sleep(4.0)  # longer than the timeout of a send
            await until_acknowledged(workload)
    assert workload.violations() == {}


async def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    try:
        with small_disk(tmp_path / "disk", 48) as disk:
            sizes = {"mappedFileSizeCommitLog": str(1 << 20), "maxHashSlotNum": "1000", "maxIndexNum": "4000"}
            async with cluster(tmp_path, store=disk / "store", settings=sizes) as here:
                workload = await loaded(here)
                async with workload.running():
                    await until_acknowledged(workload)
                    filler = disk / "filler"
                    with suppress(OSError), filler.open("wb", buffering=0) as file:  # until the disk is full
                        while file.write(bytes(1 << 16)):
                            pass
                    before = len(workload.failed)
                    await eventually(lambda: len(workload.failed) > before, "sends fail", timeout_s=60.0)
                    filler.unlink()
                    await until_acknowledged(workload)
                assert here.broker.is_running
    except PermissionError as error:
        pytest.skip(str(error))
    assert workload.violations() == {}


async def test_a_process_without_file_descriptors_loses_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as here:
        workload = await loaded(here)
        async with workload.running():
            for process in (here.broker, here.name_server):
                await until_acknowledged(workload)
                with without_descriptors(process.pid):
                    for proxy in here.proxies.values():
                        proxy.reset()
                    await asyncio.sleep(2.0)
            await until_acknowledged(workload)
        assert here.broker.is_running
        assert here.name_server.is_running
    assert workload.violations() == {}


@pytest.mark.parametrize("step_s", [3_600.0, -3_600.0])
async def test_a_step_of_the_clock_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    clock = SteppedClock(tmp_path / "clock")
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)
    async with cluster(tmp_path) as here:
        workload = await loaded(here)
        async with workload.running():
            await until_acknowledged(workload)
            clock.step(step_s)
            await until_acknowledged(workload)
            clock.step(0.0)
            await until_acknowledged(workload)
    assert workload.violations() == {}
    assert workload.failed == []


# The proxy itself


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(data)
    writer.close()


async def test_the_proxy_forwards_delays_slices_loses_and_resets() -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    async with server, fault_proxy(f"{host}:{port}") as proxy:
        here = proxy.address.rpartition(":")[2]
        reader, writer = await asyncio.open_connection("127.0.0.1", int(here))
        for name in ("latency", "slicer", "bandwidth"):
            proxy.fault = FAULTS[name]
            writer.write(b"0123456789")
            assert await asyncio.wait_for(reader.readexactly(10), 10.0) == b"0123456789"
        proxy.fault = FAULTS["black hole"]
        writer.write(b"lost")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.2)
        proxy.fault = NO_FAULT
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(1), 10.0)
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(here))
        writer.write(b"a")
        assert await asyncio.wait_for(reader.readexactly(1), 10.0) == b"a"
        proxy.fault = FAULTS["half close"]
        assert await asyncio.wait_for(reader.read(), 10.0) == b""
        writer.close()
