"""Three controllers on three members of etcd: leaders, members and all of them are killed; no epoch is given twice."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aetcd
import pytest

from skyroute.nameserver.journal.reader import read_records
from skyroute.nameserver.journal.schema import Kind
from tests.support.apache import PeerProcess, PeerUnavailableError, free_port, properties
from tests.support.connections import connection_to
from tests.support.epoch_history import Seen, violations
from tests.support.etcd import EtcdCluster, etcd_program
from tests.support.raw import ClosedError, split_address
from tests.support.simulated_replicas import SimulatedReplica
from tests.support.waiting import eventually

GROUPS = ("a", "b")
REPLICAS = 3
LISTEN_MS = 1000
DOWN_S = float(os.environ.get("SKYROUTE_ALL_DOWN_S", "2"))
"""How long all controllers and members are down; `make test-controllers` takes a minute."""
SOON_S = 30.0


@pytest.fixture(scope="module", autouse=True)
def program() -> None:
    try:
        etcd_program()
    except PeerUnavailableError as error:
        if os.environ.get("SKYROUTE_NO_SKIP") == "1":
            pytest.fail(f"these tests must run (SKYROUTE_NO_SKIP=1), but: {error}")
        pytest.skip(str(error))


class ControllerOnEtcd(PeerProcess):
    """One of several controllers."""

    def __init__(self, number: int, folder: Path, endpoints: str) -> None:
        super().__init__(f"n{number}", folder / f"n{number}")
        self.endpoints = endpoints
        self.peers: list[ControllerOnEtcd] = []

    def prepare(self) -> None:
        values = {
            "controllerDLegerPeers": ";".join(f"{each.name}-{each.address}" for each in self.peers),
            "controllerDLegerSelfId": self.name,
            "controllerStorePath": str(self.home),
            "bindAddress": "127.0.0.1",
            "etcdEndpoints": self.endpoints,
            "etcdLeaseSeconds": "2",
            "scanNotActiveBrokerInterval": "500",
            "scanInactiveMasterInterval": "500",
            "listenBeforeElectionMillis": str(LISTEN_MS),
        }
        (self.home / "controller.conf").write_text(properties(values))

    def command(self) -> list[str]:
        return [sys.executable, "-m", "skyroute", "controller", "-c", str(self.home / "controller.conf")]

    def elections(self) -> Iterator[Seen]:
        """Yield what its journal says about masters."""
        for record in read_records(self.home / "journal"):
            if record.kind in (Kind.MASTER_ELECTED, Kind.MASTER_LOST):
                master = record.broker_id if record.kind == Kind.MASTER_ELECTED else None
                yield Seen(self.name, record.broker or "", record.master_epoch or 0, master)


class World:
    """etcd, controllers and brokers."""

    def __init__(self, folder: Path) -> None:
        self.etcd = EtcdCluster(folder / "etcd")
        self.controllers: list[ControllerOnEtcd] = []
        self.replicas: list[SimulatedReplica] = []
        self.seen: list[Seen] = []
        self._folder = folder

    def start(self) -> None:
        self.etcd.start(self.etcd.members)
        self.controllers = [ControllerOnEtcd(number, self._folder, self.etcd.endpoints) for number in range(3)]
        for each in self.controllers:
            each.peers = self.controllers
        self.start_controllers(self.controllers)

    @staticmethod
    def start_controllers(controllers: list[ControllerOnEtcd]) -> None:
        for each in controllers:
            each.spawn()
        for each in controllers:
            each.until_ready()

    def kill(self) -> None:
        for process in (*self.controllers, *self.etcd.members):
            process.kill()

    def add_replicas(self) -> None:
        addresses = [each.address for each in self.controllers]
        for group in GROUPS:
            for _ in range(REPLICAS):
                self.replicas.append(SimulatedReplica(group, f"127.0.0.1:{free_port()}", addresses, self.seen))

    async def leader(self) -> ControllerOnEtcd:
        """Return the leading controller, once there is one."""
        found: list[ControllerOnEtcd] = []

        async def find() -> bool:
            for each in self.controllers:
                if each.is_running and await self._says_it_leads(each):
                    found.append(each)
                    return True
            return False

        await eventually(find, "a controller leads", timeout_s=SOON_S)
        return found[-1]

    @staticmethod
    async def _says_it_leads(controller: ControllerOnEtcd) -> bool:
        try:
            async with connection_to(controller.address) as line:
                return (await line.call(1005)).fields["isLeader"] == "true"
        except (OSError, ClosedError, TimeoutError):
            return False

    def of(self, group: str) -> list[SimulatedReplica]:
        return [each for each in self.replicas if each.group == group]

    async def until_in_sync(self) -> None:
        def is_in_sync() -> bool:
            return all(
                len({(each.master, each.epoch, each.sync_set) for each in self.of(group)}) == 1
                and len(self.of(group)[0].sync_set) == REPLICAS
                for group in GROUPS
            )

        await eventually(is_in_sync, "all replicas agree and are in sync", timeout_s=SOON_S)

    async def replace_masters(self) -> None:
        """Kill the master of each group, wait for a new one, and let the old one return."""
        for group in GROUPS:
            await self.until_in_sync()  # after a change of leader, each replica must have heard of it
            epoch = max(each.epoch for each in self.of(group))
            (master,) = (each for each in self.of(group) if each.id == each.master)
            await master.stop()
            others = [each for each in self.of(group) if each is not master]
            await eventually(
                lambda: all(each.epoch > epoch and each.master not in (None, master.id) for each in others),  # noqa: B023
                f"{group} has a new master",
                timeout_s=SOON_S,
            )
            master.start()
        await self.until_in_sync()

    async def stored(self) -> list[Seen]:
        """Return every version of every group that etcd has stored, in order."""
        host, port = split_address(self.etcd.leader().address)
        found: list[Seen] = []
        prefix = b"/skyroute/controller/skyroute-controller/groups/"
        async with aetcd.Client(host, port, timeout=5) as client:
            versions = {entry.key: entry.version for entry in await client.get_prefix(prefix)}
            watch = await client.watch_prefix(prefix, start_revision=1)
            async for event in watch:
                value: dict[str, Any] = json.loads(event.kv.value)["group"]
                found.append(Seen("etcd", value["broker_name"], value["master_epoch"], value["master"]))
                if len(found) == sum(versions.values()):
                    break
            await watch.cancel()
        return found

    async def check(self) -> None:
        for each in self.controllers:
            if each.is_running:
                each.stop()
        stored = await self.stored()
        elections = [seen for each in self.controllers for seen in each.elections()]
        assert violations(self.seen, stored=stored, elections=elections) == []
        for group in GROUPS:
            epochs = {each.epoch for each in stored if each.group == group and each.epoch}
            assert epochs == set(range(1, max(epochs) + 1))


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    here = World(folder)
    async with AsyncExitStack() as stack:
        stack.callback(here.kill)
        await asyncio.to_thread(here.start)
        here.add_replicas()
        for each in here.replicas:
            each.start()
            stack.push_async_callback(each.stop)
        await here.until_in_sync()
        yield here


@pytest.mark.long
async def test_leaders_and_members_are_killed_and_no_epoch_is_given_twice(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        # The leading controller: brokers keep their roles, and masters are replaced under the next leader.
        first = await here.leader()
        masters = {each.group: (each.master, each.epoch) for each in here.replicas}
        first.kill()
        second = await here.leader()
        assert second is not first
        await here.until_in_sync()
        assert {each.group: (each.master, each.epoch) for each in here.replicas} == masters
        await here.replace_masters()
        first.start()

        # A stopped process wakes up after its lease: it does not lead any more.
        paused = await here.leader()
        os.kill(paused.pid, 19)  # SIGSTOP
        await eventually(lambda: _another_leads(here, paused), "another controller leads", timeout_s=SOON_S)
        os.kill(paused.pid, 18)  # SIGCONT
        await here.replace_masters()

        # The leader of etcd, then a minority that is down while masters are replaced.
        etcd_leader = here.etcd.leader()
        etcd_leader.kill()
        await here.leader()
        await here.replace_masters()
        etcd_leader.start()

        # All of them: brokers keep their roles, and go on when they are back.
        await here.until_in_sync()
        masters = {each.group: (each.master, each.epoch) for each in here.replicas}
        here.kill()
        await asyncio.sleep(DOWN_S)
        await asyncio.to_thread(here.etcd.start, here.etcd.members)
        await asyncio.to_thread(here.start_controllers, here.controllers)
        await here.leader()
        await here.until_in_sync()
        assert {each.group: (each.master, each.epoch) for each in here.replicas} == masters
        await here.replace_masters()
        for each in here.replicas:
            await each.stop()
        await here.check()


async def _another_leads(here: World, paused: ControllerOnEtcd) -> bool:
    for each in here.controllers:
        if each is not paused and await here._says_it_leads(each):
            return True
    return False
