"""A controller over loopback, as brokers and tools see it; the frames are written by an independent codec."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from skyroute.controller.config import ControllerConfig
from skyroute.controller.failover import Failover
from skyroute.controller.server import ControllerServer
from tests.support.clock import ManualClock
from tests.support.lines import AsyncLine, Ear, ear, eventually, line_to, until
from tests.support.raw import Command

GROUP = {"clusterName": "C", "brokerName": "a"}


@dataclass
class RunningController:
    server: ControllerServer
    clock: ManualClock

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def failover(self) -> Failover:
        assert self.server.failover is not None
        return self.server.failover

    def settle(self) -> None:
        """Let the listening time pass, with no scan late."""
        for _ in range(2):
            self.failover.scan(self.clock.advance(5.0))

    def offset(self, broker_id: int) -> int | None:
        """The offset in the last heartbeat of a living replica."""
        found = self.server.heartbeats.live("C", "a", self.clock.monotonic()).progress.get(broker_id)
        return None if found is None else found.max_offset

    def master(self) -> int | None:
        group = self.server.groups.find("a")
        return None if group is None else group.master


@asynccontextmanager
async def running(folder: Path, **settings: Any) -> AsyncIterator[RunningController]:
    values: dict[str, Any] = {
        "listen_port": 0,
        "bind_address": "127.0.0.1",
        "settings_file": str(folder / "controller.properties"),
        "store_path": str(folder),
    }
    clock = ManualClock()
    server = ControllerServer(ControllerConfig(**(values | settings)), clock=clock)
    await server.start()
    try:
        yield RunningController(server, clock)
    finally:
        await server.stop()


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[RunningController]:
    async with running(tmp_path) as here:
        yield here


class FakeReplica:
    """A broker in controller mode: one line to the controller, and an address where it hears notices."""

    def __init__(self, line: AsyncLine, heard_at: Ear) -> None:
        self.line = line
        self.ear = heard_at
        self.id = 0

    async def apply(self) -> None:
        answer = await self.line.call(1012, GROUP)
        self.id = int(answer.fields["nextBrokerId"])
        fields = {"appliedBrokerId": str(self.id), "registerCheckCode": f"{self.ear.address};1758275140000"}
        assert (await self.line.call(1013, GROUP | fields)).code == 0

    async def register(self) -> Command:
        fields = {"brokerId": str(self.id), "brokerAddress": self.ear.address, "invokeTime": "1"}
        return await self.line.call(1003, GROUP | fields)

    async def beat(self, epoch: int = 1, offset: int = 100) -> None:
        fields = {
            "brokerId": str(self.id),
            "brokerAddr": self.ear.address,
            "epoch": str(epoch),
            "maxOffset": str(offset),
            "confirmOffset": "0",
            "heartbeatTimeoutMills": "10000",
            "electionPriority": "2147483647",
        }
        await self.line.tell(904, GROUP | fields)

    async def elect(self, **fields: str) -> Command:
        asked = {"brokerId": str(self.id), "designateElect": "false", "invokeTime": "1"}
        return await self.line.call(1002, GROUP | asked | fields)

    async def change_set(self, members: list[int], epoch: int, set_epoch: int) -> Command:
        fields = {"brokerName": "a", "masterBrokerId": str(self.id), "masterEpoch": str(epoch), "invokeTime": "1"}
        body = f'{{"syncStateSet":{members},"syncStateSetEpoch":{set_epoch}}}'.encode()
        return await self.line.call(1001, fields, body)


@asynccontextmanager
async def replica(controller: RunningController) -> AsyncIterator[FakeReplica]:
    async with line_to(controller.address) as line, ear() as heard_at:
        here = FakeReplica(line, heard_at)
        await here.apply()
        assert (await here.register()).code == 0
        yield here


@asynccontextmanager
async def pair_in_sync(controller: RunningController) -> AsyncIterator[tuple[FakeReplica, FakeReplica]]:
    """A master and a slave that are both in the sync state set."""
    async with replica(controller) as first, replica(controller) as second:
        assert (await first.elect()).code == 0
        for each in (first, second):
            await each.beat()
        await until(lambda: is_alive(controller, second.id))
        assert (await first.change_set([1, 2], 1, 1)).code == 0
        controller.settle()
        for each in (first, second):
            await each.beat(offset=200)
            await eventually(lambda: controller.offset(each.id) == 200)  # noqa: B023 - awaited in the loop
        yield first, second


async def is_alive(controller: RunningController, broker_id: int) -> bool:
    return broker_id in controller.server.heartbeats.live("C", "a", controller.clock.monotonic())


async def test_the_first_broker_is_elected_before_its_first_heartbeat(controller: RunningController) -> None:
    async with replica(controller) as first:
        registered = await first.register()
        assert "masterBrokerId" not in registered.fields
        assert registered.value == {"syncStateSet": [], "syncStateSetEpoch": 0}
        elected = await first.elect()
        assert elected.code == 0
        assert elected.fields == {
            "masterBrokerId": "1",
            "masterAddress": first.ear.address,
            "masterEpoch": "1",
            "syncStateSetEpoch": "1",
        }
        members = {"brokerAddrs": {"1": first.ear.address}, "brokerName": "a", "cluster": "C"}
        assert elected.value == {"brokerMemberGroup": members, "syncStateSet": [1]}
        again = await first.elect()
        assert (again.code, again.fields["masterEpoch"], again.value) == (2011, "1", {"syncStateSet": [1]})
        async with replica(controller) as second:
            assert (await second.register()).fields["masterBrokerId"] == "1"
            info = await second.line.call(1004, {"brokerName": "a"})
            assert (info.code, info.fields["masterAddress"]) == (0, first.ear.address)


async def test_a_closed_connection_moves_the_master_at_once(controller: RunningController) -> None:
    async with pair_in_sync(controller) as (first, second):
        await first.line.close()
        notice = await second.ear.hear()
        assert (notice.code, notice.is_one_way) == (1008, True)
        assert notice.fields == {
            "masterBrokerId": "2",
            "masterAddress": second.ear.address,
            "masterEpoch": "2",
            "syncStateSetEpoch": "3",
        }
        assert notice.value == {"syncStateSet": [2], "syncStateSetEpoch": 3}
        async with line_to(controller.address) as line:
            returned = FakeReplica(line, first.ear)
            returned.id = 1
            assert (await returned.register()).fields["masterBrokerId"] == "2"
            assert (await returned.change_set([1], 1, 2)).code == 2002


async def test_a_silent_master_is_replaced_by_a_scan(controller: RunningController) -> None:
    async with pair_in_sync(controller) as (_, second):
        await eventually(lambda: controller.master() == 1)
        controller.failover.scan(controller.clock.advance(5.0))
        await second.beat(offset=201)
        await eventually(lambda: controller.offset(2) == 201)
        controller.failover.scan(controller.clock.advance(5.1))
        await eventually(lambda: controller.master() == 2)
        assert (await second.ear.hear()).fields["masterBrokerId"] == "2"


async def test_a_connection_lost_in_a_stall_moves_no_master(controller: RunningController) -> None:
    async with pair_in_sync(controller) as (first, second):
        controller.clock.advance(8.0)  # no scan, no tick: the process stood still
        await first.line.close()
        await eventually(lambda: controller.offset(1) is None)
        assert controller.master() == 1
        async with line_to(controller.address) as line:
            returned = FakeReplica(line, first.ear)
            returned.id = 1
            await returned.beat(offset=300)
            await eventually(lambda: controller.offset(1) == 300)
            controller.settle()
            await returned.beat(offset=301)
            await eventually(lambda: controller.offset(1) == 301)
            controller.failover.scan_masters()
            assert (await second.line.call(1004, {"brokerName": "a"})).fields["masterEpoch"] == "1"


async def test_without_a_candidate_the_group_has_no_master(controller: RunningController) -> None:
    async with replica(controller) as first, replica(controller) as second:
        assert (await first.elect()).code == 0
        await second.beat()
        controller.settle()
        await second.beat()
        await until(lambda: is_alive(controller, 2))
        await first.line.close()
        await eventually(lambda: controller.master() is None)
        info = await second.line.call(1004, {"brokerName": "a"})
        assert info.fields == {"masterEpoch": "2"}
        assert (await second.elect()).code == 2012
        assert (await second.elect(brokerId="-1")).code == 2004
        await second.line.call(1009, body=b"enableElectUncleanMaster=true")
        assert (await second.elect()).fields["masterBrokerId"] == "2"


async def test_a_restarted_controller_listens_before_it_elects(tmp_path: Path) -> None:
    async with running(tmp_path) as controller, pair_in_sync(controller):
        await controller.server.stop()  # before its brokers
    async with running(tmp_path) as controller, line_to(controller.address) as line, ear() as heard_at:
        second = FakeReplica(line, heard_at)
        second.id = 2
        assert (await second.register()).fields["masterBrokerId"] == "1"
        await second.beat()
        assert (await second.elect()).code == 2011
        controller.failover.scan_masters()
        assert controller.master() == 1
        controller.settle()
        await second.beat()
        await until(lambda: is_alive(controller, 2))
        controller.failover.scan_masters()
        await eventually(lambda: controller.master() == 2)
        assert (await second.ear.hear()).fields["masterEpoch"] == "2"
        assert (await line.call(1012, GROUP)).fields["nextBrokerId"] == "3"


async def test_stale_and_foreign_requests_are_refused_with_their_codes(controller: RunningController) -> None:
    async with pair_in_sync(controller) as (first, second):
        assert (await first.change_set([1], 0, 2)).code == 2000
        assert (await first.change_set([1], 9, 2)).code == 2000
        assert (await first.change_set([1], 1, 1)).code == 2001
        assert (await second.change_set([2], 1, 2)).code == 2002
        assert (await first.change_set([1, 7], 1, 2)).code == 2003
        assert (await first.change_set([2], 1, 2)).code == 2013
        assert (await first.change_set([1, 2], 1, 2)).code == 2013
        async with replica(controller) as third:
            assert (await first.change_set([1, 3], 1, 2)).code == 2006
            third.id = 9
            assert (await third.register()).code == 2010
            assert (await third.elect()).code == 2010
        line = first.line
        stolen = GROUP | {"appliedBrokerId": "1", "registerCheckCode": "10.0.0.9:1;1"}
        assert (await line.call(1013, stolen)).code == 2014
        assert (await line.call(1013, GROUP | {"appliedBrokerId": "99", "registerCheckCode": "x;1"})).code == 2014
        assert (await line.call(1004, {"brokerName": "nobody"})).code == 2008
        assert (await line.call(1002, {"brokerName": "nobody", "brokerId": "1"})).code == 2010
        assert (await line.call(904, {"clusterName": "C", "brokerName": "a", "brokerAddr": "h:1"})).code == 2005
        assert (await line.call(1001, {"brokerName": "a"})).code == 1
        assert (await line.call(1013, GROUP)).code == 1
        assert controller.master() == 1


async def test_an_operator_designates_a_master(controller: RunningController) -> None:
    async with pair_in_sync(controller) as (first, second), line_to(controller.address) as tool:
        fields = GROUP | {"brokerId": "2", "designateElect": "true", "invokeTime": "1"}
        assert (await tool.call(1002, fields)).fields["masterBrokerId"] == "2"
        for each in (first, second):
            assert (await each.ear.hear()).fields["masterEpoch"] == "2"
        assert (await tool.call(1002, fields | {"brokerId": "1"})).code == 2012  # it is not in the set any more


async def test_other_replicas_are_notified_after_the_masters(controller: RunningController) -> None:
    async with pair_in_sync(controller) as (first, second), replica(controller) as third:
        await third.beat(offset=50)
        await eventually(lambda: controller.offset(3) == 50)
        fields = GROUP | {"brokerId": "2", "designateElect": "true", "invokeTime": "1"}
        assert (await third.line.call(1002, fields)).code == 0
        for each in (second, first):
            assert (await each.ear.hear()).fields["masterBrokerId"] == "2"
        assert third.ear.is_silent
        assert (await third.ear.hear()).fields["masterBrokerId"] == "2"


async def test_tools_read_controllers_replicas_and_settings(controller: RunningController) -> None:
    async with pair_in_sync(controller) as (first, second), line_to(controller.address) as tool:
        metadata = (await tool.call(1005)).fields
        assert metadata == {
            "group": "skyroute-controller",
            "controllerLeaderId": "n0",
            "controllerLeaderAddress": controller.address,
            "isLeader": "true",
            "peers": f"n0:{controller.address};",
        }
        states = (await tool.call(1006, body=b'["a","nobody"]')).value["replicasInfoTable"]
        assert [each["brokerAddress"] for each in states["a"]["inSyncReplicas"]] == [
            first.ear.address,
            second.ear.address,
        ]
        assert (states["a"]["masterBrokerId"], states["a"]["notInSyncReplicas"]) == (1, [])
        assert "enableElectUncleanMaster=false" in (await tool.call(1010)).text
        assert (await tool.call(1009, body=b"enableElectUncleanMaster=true")).code == 0
        assert "enableElectUncleanMaster=true" in (await tool.call(1010)).text
        assert (await tool.call(1009, body=b"controllerStorePath=/elsewhere")).code == 16


async def test_dead_replicas_are_removed_and_living_ones_are_not(controller: RunningController) -> None:
    async with pair_in_sync(controller) as (first, second), line_to(controller.address) as tool:
        fields = GROUP | {"isCleanLivingBroker": "false", "invokeTime": "1"}
        assert (await tool.call(1011, fields)).code == 2009
        assert (await tool.call(1011, fields | {"brokerControllerIdsToClean": "2"})).code == 2009
        await second.line.close()
        await eventually(lambda: len(controller.server.heartbeats) == 1)
        assert (await tool.call(1011, fields | {"brokerControllerIdsToClean": "2"})).code == 0
        assert (await first.line.call(1012, GROUP)).fields["nextBrokerId"] == "3"
        assert (await tool.call(1011, fields | {"isCleanLivingBroker": "true"})).code == 0
        assert (await tool.call(1004, {"brokerName": "a"})).code == 2008
        async with replica(controller) as newcomer:
            assert newcomer.id == 3
            assert (await newcomer.elect()).fields["masterEpoch"] == "3"
