"""A controller over loopback, as brokers and tools see it; the frames are written by an independent codec."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skyroute.controller.events import Cause, MasterElected
from skyroute.controller.file_store import FileStore
from skyroute.controller.notify import Notifier
from skyroute.controller.state import GroupState, Replica
from tests.support.connections import connection_to, listening_broker
from tests.support.controllers import GROUP, FakeReplica, RunningController, is_alive, pair_in_sync, replica, running
from tests.support.disks import BlockingDisk
from tests.support.waiting import eventually


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[RunningController]:
    async with running(tmp_path) as here:
        yield here


async def test_the_first_broker_is_elected_before_its_first_heartbeat(controller: RunningController) -> None:
    async with replica(controller) as first:
        registered = await first.register()
        assert "masterBrokerId" not in registered.fields
        assert registered.value == {"syncStateSet": [], "syncStateSetEpoch": 0}
        elected = await first.elect()
        assert elected.code == 0
        assert elected.fields == {
            "masterBrokerId": "1",
            "masterAddress": first.listener.address,
            "masterEpoch": "1",
            "syncStateSetEpoch": "1",
        }
        members = {"brokerAddrs": {"1": first.listener.address}, "brokerName": "a", "cluster": "C"}
        assert elected.value == {"brokerMemberGroup": members, "syncStateSet": [1]}
        again = await first.elect()
        assert (again.code, again.fields["masterEpoch"], again.value) == (2011, "1", {"syncStateSet": [1]})
        async with replica(controller) as second:
            assert (await second.register()).fields["masterBrokerId"] == "1"
            info = await second.line.call(1004, {"brokerName": "a"})
            assert (info.code, info.fields["masterAddress"]) == (0, first.listener.address)


async def test_a_closed_connection_moves_the_master_at_once(controller: RunningController) -> None:
    async with pair_in_sync(controller) as (first, second):
        await first.line.close()
        notice = await second.listener.receive()
        assert (notice.code, notice.is_one_way) == (1008, True)
        assert notice.fields == {
            "masterBrokerId": "2",
            "masterAddress": second.listener.address,
            "masterEpoch": "2",
            "syncStateSetEpoch": "3",
        }
        assert notice.value == {"syncStateSet": [2], "syncStateSetEpoch": 3}
        async with connection_to(controller.address) as line:
            returned = FakeReplica(line, first.listener)
            returned.id = 1
            assert (await returned.register()).fields["masterBrokerId"] == "2"
            assert (await returned.change_set([1], 1, 2)).code == 2002


async def test_a_stranger_with_the_masters_id_neither_replaces_it_nor_keeps_it(controller: RunningController) -> None:
    async with pair_in_sync(controller) as (first, second):
        async with connection_to(controller.address) as line:
            stranger = FakeReplica(line, first.listener)
            stranger.id = 1
            for offset in (901, 902):
                await stranger.beat(epoch=9, offset=offset)
                assert (await line.call(1005)).code == 0  # the heartbeat was read
                await first.beat(offset=offset - 600)
                await eventually(lambda: controller.offset(1) == offset - 600)  # noqa: B023 - awaited in the loop
            await line.close()
            await eventually(lambda: controller.connections() == 2)
            assert controller.master() == 1
        async with connection_to(controller.address) as line:
            stranger = FakeReplica(line, first.listener)
            stranger.id = 1
            await stranger.beat(epoch=9)
            assert (await line.call(1005)).code == 0
            await first.line.close()
            assert (await second.listener.receive()).fields["masterBrokerId"] == "2"


async def test_the_connection_for_a_notice_opens_while_the_election_is_stored(tmp_path: Path) -> None:
    disk = BlockingDisk()
    store = FileStore(tmp_path / "state.json", disk)
    async with running(tmp_path, store=store) as here, pair_in_sync(here) as (first, second):
        disk.block()
        try:
            await first.line.close()
            await eventually(lambda: second.listener.connections == 1)
            assert (second.listener.is_drained, here.master()) == (True, 1)
        finally:
            disk.unblock()
        assert (await second.listener.receive()).fields["masterBrokerId"] == "2"


async def test_changes_are_stored_while_names_of_brokers_are_resolved(controller: RunningController) -> None:
    """Resolving blocks the threads of the loop, for a time that the owner of the name chooses."""
    free = threading.Event()
    blocked = [asyncio.create_task(asyncio.to_thread(free.wait)) for _ in range(64)]
    try:
        async with replica(controller) as first:
            assert (await first.elect()).code == 0
    finally:
        free.set()
        await asyncio.gather(*blocked)


async def test_a_silent_master_is_replaced_by_a_scan(controller: RunningController) -> None:
    async with pair_in_sync(controller) as (_, second):
        await eventually(lambda: controller.master() == 1)
        controller.failover.scan(controller.clock.advance(5.0))
        await second.beat(offset=201)
        await eventually(lambda: controller.offset(2) == 201)
        controller.failover.scan(controller.clock.advance(5.1))
        await eventually(lambda: controller.master() == 2)
        assert (await second.listener.receive()).fields["masterBrokerId"] == "2"


async def test_a_connection_lost_in_a_stall_moves_no_master(controller: RunningController) -> None:
    async with pair_in_sync(controller) as (first, second):
        controller.clock.advance(8.0)  # no scan, no tick: the process stood still
        await first.line.close()
        await eventually(lambda: controller.offset(1) is None)
        assert controller.master() == 1
        async with connection_to(controller.address) as line:
            returned = FakeReplica(line, first.listener)
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
        await eventually(lambda: is_alive(controller, 2))
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
    async with (
        running(tmp_path) as controller,
        connection_to(controller.address) as line,
        listening_broker() as listener,
    ):
        second = FakeReplica(line, listener)
        second.id = 2
        assert (await second.register()).fields["masterBrokerId"] == "1"
        await second.beat()
        assert (await second.elect()).code == 2011
        controller.failover.scan_masters()
        assert controller.master() == 1
        controller.settle()
        await second.beat()
        await eventually(lambda: is_alive(controller, 2))
        controller.failover.scan_masters()
        await eventually(lambda: controller.master() == 2)
        assert (await second.listener.receive()).fields["masterEpoch"] == "2"
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
    async with pair_in_sync(controller) as (first, second), connection_to(controller.address) as tool:
        fields = GROUP | {"brokerId": "2", "designateElect": "true", "invokeTime": "1"}
        assert (await tool.call(1002, fields)).fields["masterBrokerId"] == "2"
        for each in (first, second):
            assert (await each.listener.receive()).fields["masterEpoch"] == "2"
        assert (await tool.call(1002, fields | {"brokerId": "1"})).code == 2012  # it is not in the set any more


async def test_other_replicas_are_notified_after_the_masters(controller: RunningController) -> None:
    async with pair_in_sync(controller) as (first, second), replica(controller) as third:
        await third.beat(offset=50)
        await eventually(lambda: controller.offset(3) == 50)
        fields = GROUP | {"brokerId": "2", "designateElect": "true", "invokeTime": "1"}
        assert (await third.line.call(1002, fields)).code == 0
        for each in (second, first):
            assert (await each.listener.receive()).fields["masterBrokerId"] == "2"
        assert third.listener.is_drained
        assert (await third.listener.receive()).fields["masterBrokerId"] == "2"


async def test_tools_read_controllers_replicas_and_settings(controller: RunningController) -> None:
    async with pair_in_sync(controller) as (first, second), connection_to(controller.address) as tool:
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
            first.listener.address,
            second.listener.address,
        ]
        assert (states["a"]["masterBrokerId"], states["a"]["notInSyncReplicas"]) == (1, [])
        assert "enableElectUncleanMaster=false" in (await tool.call(1010)).text
        assert (await tool.call(1009, body=b"enableElectUncleanMaster=true")).code == 0
        assert "enableElectUncleanMaster=true" in (await tool.call(1010)).text
        assert (await tool.call(1009, body=b"controllerStorePath=/elsewhere")).code == 16


async def test_dead_replicas_are_removed_and_living_ones_are_not(controller: RunningController) -> None:
    async with pair_in_sync(controller) as (first, second), connection_to(controller.address) as tool:
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


async def test_only_registered_brokers_are_alive(tmp_path: Path) -> None:
    """Strangers could fill the table, and the heartbeats of a new broker would be ignored."""
    async with running(tmp_path) as here, replica(here) as known:
        beat = {**GROUP, "brokerAddr": "127.0.0.1:1", "epoch": "1", "maxOffset": "1"}
        for fields in ({"brokerId": "2"}, {"brokerId": "1", "brokerName": "b"}, {"brokerId": "1", "clusterName": "D"}):
            assert (await known.line.call(904, beat | fields)).code == 0
        assert len(here.server.heartbeats) == 0
        await known.beat()
        await eventually(lambda: len(here.server.heartbeats) == 1)


async def test_a_second_broker_cannot_have_the_id_of_a_living_one(tmp_path: Path) -> None:
    """Two brokers with copies of one store folder would both be master of one epoch."""
    async with running(tmp_path) as here, replica(here) as known, connection_to(here.address) as line:
        await known.beat()
        await eventually(lambda: is_alive(here, 1))
        registration = {**GROUP, "brokerId": "1", "brokerAddress": "10.0.0.9:10911"}
        refused = await line.call(1003, registration)
        assert (refused.code, "two brokers must not" in (refused.remark or "")) == (2014, True)
        assert (await known.register()).code == 0
        await known.line.close()
        await eventually(lambda: len(here.server.heartbeats) == 0)
        assert (await line.call(1003, registration)).code == 0
        group = here.server.groups.find("a")
        assert group is not None
        assert group.replicas[1].address == "10.0.0.9:10911"


async def test_a_newer_notice_does_not_wait_for_an_older_one() -> None:
    async with listening_broker() as listener:
        notifier = Notifier(connect_timeout_s=3.0, tls=None)
        replicas = {number: Replica(listener.address, "x") for number in (1, 3)}
        for master, epoch in ((1, 2), (3, 3)):  # the first notice to broker 3 is delayed: it is not the master
            group = GroupState("C", "a", 4, replicas, master, epoch, frozenset({master}), epoch, had_master=True)
            event = MasterElected(
                "C", "a", Cause.OPERATOR, master, listener.address, epoch, epoch, None, is_unclean=False
            )
            notifier.put([event], group, [3])
        assert (await listener.receive()).fields["masterEpoch"] == "3"
        await notifier.stop()
