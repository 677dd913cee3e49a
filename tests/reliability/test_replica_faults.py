"""Faults between masters, slaves and controllers, and processes that are suspended for longer than their lease.

Part of `make test-reliability`: they take minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.reliability.fault_proxy import FAULTS, NO_FAULT, FaultProxy, fault_proxy
from tests.reliability.faults import INNER, SteppedClock, break_every_link, suspended, without_descriptors
from tests.reliability.workload import Workload
from tests.support.apache import ApacheBroker, SkyrouteNameServer
from tests.support.connections import connection_to
from tests.support.controlled_brokers import JOIN_S, SkyrouteController, broker
from tests.support.our_broker import SkyrouteBroker
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

CLUSTERS = 106
LEASE_S = 3.0
FAULT_S = 1.5
PACE = 20
"""Acknowledged sends that show that a cluster works again."""
SHORT_LEASE = {"enableSlaveActingMaster": "true", "brokerNotActiveTimeoutMillis": str(int(LEASE_S * 1000))}


@dataclass(frozen=True, slots=True)
class Group:
    """A broker group of two, and the proxies at their links."""

    name_server: SkyrouteNameServer
    brokers: list[ApacheBroker]
    links: dict[str, FaultProxy]
    controller: SkyrouteController | None = None

    async def state(self) -> tuple[int | None, int, list[int]]:
        """Master, epoch and brokers in sync. In a thread: the request passes through a proxy of this event loop."""
        assert self.controller is not None
        return await asyncio.to_thread(self.controller.group)

    async def are_in_sync(self) -> bool:
        return len((await self.state())[2]) == len(self.brokers)

    async def has_epoch_after(self, epoch: int) -> bool:
        return (await self.state())[1] > epoch

    async def lists(self, address: str) -> bool:
        """Whether the name server lists an address."""
        async with connection_to(self.name_server.address) as line:
            return address in (await line.call(CLUSTERS)).text

    async def until_logs_agree(self) -> None:
        """Wait until both have the same bytes."""
        await eventually(
            lambda: len({written(each) for each in self.brokers}) == 1, "both logs are the same", timeout_s=JOIN_S
        )


class _InnerController(SkyrouteController):
    """A controller behind a proxy. It names its own address to brokers, so that must be the address of the proxy."""

    def prepare(self) -> None:
        super().prepare()
        file = self.home / "controller.conf"
        file.write_text(file.read_text().replace("bindAddress=127.0.0.1", f"bindAddress={INNER}"))


def written(member: ApacheBroker) -> bytes:
    """The log of a broker up to the last record, which ends with a property."""
    folder = member.home / "store" / "commitlog"
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir())).rstrip(b"\0")


async def until_acknowledged(workload: Workload) -> None:
    wanted = workload.acknowledged + PACE
    await eventually(lambda: workload.acknowledged >= wanted, "sends are acknowledged", timeout_s=90.0)


async def started(stack: AsyncExitStack, member: ApacheBroker, links: dict[str, FaultProxy], name: str) -> ApacheBroker:
    """Start a broker behind proxies for its clients and its slaves."""
    member.configure(bindAddress=INNER)
    for what, port in (("client", member.port), ("slave", member.port + 1)):
        proxy = await stack.enter_async_context(fault_proxy(f"{INNER}:{port}", port))
        links[f"{what} to {name}"] = proxy
    await asyncio.to_thread(member.start)
    stack.callback(member.kill)
    return member


@asynccontextmanager
async def pair(folder: Path, settings: Mapping[str, str] | None = None) -> AsyncIterator[Group]:
    """A master that waits for its slave, and the slave."""
    async with AsyncExitStack() as stack:
        name_server = SkyrouteNameServer("nameserver", folder / "ns", config={"scanNotActiveBrokerInterval": "1000"})
        await asyncio.to_thread(name_server.start)
        stack.callback(name_server.kill)
        links: dict[str, FaultProxy] = {}
        servers, config = [name_server.address], {"flushDiskType": "SYNC_FLUSH", **(settings or {})}
        master = SkyrouteBroker("pair", folder / "master", servers, config={"brokerRole": "SYNC_MASTER", **config})
        slave = SkyrouteBroker("pair", folder / "slave", servers, broker_id=1, config=config)
        for member, name in ((master, "master"), (slave, "slave")):
            await started(stack, member, links, name)
        yield Group(name_server, [master, slave], links)


@asynccontextmanager
async def controlled(folder: Path) -> AsyncIterator[Group]:
    """Two brokers whose master a controller elects; the master waits for all brokers in sync."""
    async with AsyncExitStack() as stack:
        name_server = SkyrouteNameServer("nameserver", folder / "ns")
        controller = _InnerController("controller", folder / "controller")
        to_controller = await stack.enter_async_context(fault_proxy(f"{INNER}:{controller.port}", controller.port))
        links = {"brokers to controller": to_controller}
        for process in (name_server, controller):
            await asyncio.to_thread(process.start)
            stack.callback(process.kill)
        brokers: list[ApacheBroker] = []
        group = Group(name_server, brokers, links, controller)
        for number in (1, 2):
            member = broker(folder / f"broker-{number}", name_server.address, controller.address, kind=SkyrouteBroker)
            member.configure(controllerHeartBeatTimeoutMills=str(int(LEASE_S * 1000)))
            brokers.append(await started(stack, member, links, f"broker {number}"))
            await eventually(group.are_in_sync, f"{number} is in sync", timeout_s=JOIN_S)
        yield group


async def loaded(group: Group) -> Workload:
    workload = Workload(group.name_server.address, rate_per_s=40)
    await workload.create_topics()
    return workload


async def test_faults_between_master_and_slave_lose_nothing(tmp_path: Path) -> None:
    async with pair(tmp_path) as group:
        workload = await loaded(group)
        async with workload.running():
            await until_acknowledged(workload)
            await break_every_link({"": group.links["slave to master"]}, FAULT_S)
            await until_acknowledged(workload)
        assert workload.violations() == {}
        await group.until_logs_agree()


async def test_faults_between_brokers_and_their_controller_lose_nothing(tmp_path: Path) -> None:
    async with controlled(tmp_path) as group:
        workload = await loaded(group)
        async with workload.running():
            await until_acknowledged(workload)
            links = {name: link for name, link in group.links.items() if not name.startswith("client")}
            await break_every_link(links, FAULT_S)
            await until_acknowledged(workload)
            cut = group.links["brokers to controller"]
            cut.fault = FAULTS["black hole"]
            await asyncio.sleep(2 * LEASE_S)
            cut.fault = NO_FAULT
            await eventually(group.are_in_sync, "both are in sync", timeout_s=JOIN_S)
            await until_acknowledged(workload)
            assert cut.forwarded > 0
        assert workload.violations() == {}
        await group.until_logs_agree()


async def test_a_broker_that_is_suspended_for_longer_than_its_lease_returns(tmp_path: Path) -> None:
    async with pair(tmp_path, SHORT_LEASE) as group:
        master = group.brokers[0]
        workload = await loaded(group)
        async with workload.running():
            await until_acknowledged(workload)
            with suspended(master.pid):
                await eventually(lambda: _is_gone(group, master.address), "the lease ends", timeout_s=30.0)
                await asyncio.sleep(LEASE_S)
            await eventually(lambda: group.lists(master.address), "the broker is back", timeout_s=30.0)
            await until_acknowledged(workload)
        assert workload.violations() == {}
        await group.until_logs_agree()


async def test_a_suspended_name_server_evicts_no_broker_that_it_could_not_hear(tmp_path: Path) -> None:
    async with pair(tmp_path, SHORT_LEASE) as group:
        workload = await loaded(group)
        async with workload.running():
            await until_acknowledged(workload)
            with suspended(group.name_server.pid):
                await asyncio.sleep(3 * LEASE_S)
            for _ in range(20):
                assert await group.lists(group.brokers[0].address)
                assert await group.lists(group.brokers[1].address)
                await asyncio.sleep(0.1)
            await until_acknowledged(workload)
        assert workload.violations() == {}


async def test_a_suspended_master_is_replaced_and_follows_later(tmp_path: Path) -> None:
    async with controlled(tmp_path) as group:
        workload = await loaded(group)
        async with workload.running():
            await until_acknowledged(workload)
            master, epoch, _ = await group.state()
            assert master is not None
            with suspended(group.brokers[master - 1].pid):
                await eventually(lambda: group.has_epoch_after(epoch), "a new master", timeout_s=JOIN_S)
                await until_acknowledged(workload)
            await eventually(group.are_in_sync, "the old master follows", timeout_s=JOIN_S)
            await until_acknowledged(workload)
        assert workload.violations() == {}
        await group.until_logs_agree()


async def test_a_slave_without_file_descriptors_catches_up(tmp_path: Path) -> None:
    async with pair(tmp_path) as group:
        workload = await loaded(group)
        async with workload.running():
            for member in group.brokers:
                await until_acknowledged(workload)
                with without_descriptors(member.pid):
                    for link in group.links.values():
                        link.reset()
                    await asyncio.sleep(2.0)
            await until_acknowledged(workload)
        assert workload.violations() == {}
        await group.until_logs_agree()


async def test_a_step_of_the_clock_ends_no_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SteppedClock(tmp_path / "clock")
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)
    async with controlled(tmp_path) as group:
        workload = await loaded(group)
        async with workload.running():
            await until_acknowledged(workload)
            before = await group.state()
            for step_s in (3_600.0, -3_600.0, 0.0):
                clock.step(step_s)
                await asyncio.sleep(2 * LEASE_S)
                await until_acknowledged(workload)
            assert await group.state() == before
        assert workload.violations() == {}
        assert workload.failed == []
        await group.until_logs_agree()


async def _is_gone(group: Group, address: str) -> bool:
    return not await group.lists(address)
