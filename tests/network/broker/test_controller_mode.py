"""Brokers in controller mode: roles from a controller, replication, fail-over; all over loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from skyroute.client.producing.producer import Producer
from skyroute.errors import SkyrouteError
from skyroute.message.message import Message
from skyroute.wire.auto_switch import SlaveHello, encode_slave_hello
from tests.support.connections import connection_to
from tests.support.cut_proxy import CutProxy
from tests.support.disks import bodies
from tests.support.replica_groups import ReplicaGroup, replica_group
from tests.support.signing import ROOT
from tests.support.waiting import eventually

TOPIC = "Orders"


@asynccontextmanager
async def producer(group: ReplicaGroup) -> AsyncIterator[Producer]:
    here = Producer("p", group.name_server.address)
    await here.start()
    try:
        yield here
    finally:
        await here.stop()


async def send_until_accepted(here: Producer, body: bytes) -> None:
    while True:
        try:
            await here.send(Message(TOPIC, body))
        except SkyrouteError:
            await asyncio.sleep(0.05)
        else:
            return


def stored(group: ReplicaGroup, number: int) -> set[bytes]:
    store = group.brokers[number].components.store
    return {body for queue_id in store.queue_ids(TOPIC) for body in bodies(store, TOPIC, queue_id)}


def failure(group: ReplicaGroup, number: int) -> str:
    follower = group.mode(number).follower
    return "" if follower is None else follower.failure


async def test_the_first_broker_becomes_master_and_the_others_follow(tmp_path: Path) -> None:
    async with replica_group(tmp_path, 3) as group, producer(group) as sender:
        assert group.master == 1
        assert (tmp_path / "store-2" / "brokerIdentity").read_text() == "DefaultCluster#broker-a#2"
        for number in range(200):
            await sender.send(Message(TOPIC, b"m%d" % number))
        await group.in_sync(1, 2, 3)
        assert group.log_bytes(1) == group.log_bytes(2) == group.log_bytes(3)
        assert (tmp_path / "store-1" / "epochFileCheckpoint").read_text().endswith("\n1-0\n")
        assert (tmp_path / "store-3" / "epochFileCheckpoint").read_text().endswith("\n1-0\n")


async def test_a_killed_master_is_replaced_and_returns_as_slave(tmp_path: Path) -> None:
    async with replica_group(tmp_path, 3) as group, producer(group) as sender:
        acknowledged: set[bytes] = set()
        for round_ in range(3):
            for number in range(50):
                body = b"r%d-%d" % (round_, number)
                await send_until_accepted(sender, body)
                acknowledged.add(body)
            old = group.master
            assert old is not None
            await group.kill(old)
            await eventually(lambda: group.master is not None, "a new master")
            new = group.master
            assert new is not None
            assert acknowledged <= stored(group, new)
            await send_until_accepted(sender, b"after %d" % round_)
            acknowledged.add(b"after %d" % round_)
            await group.start(old)
            assert not group.roles(old).is_master
            await group.in_sync(1, 2, 3)
            assert group.log_bytes(1) == group.log_bytes(2) == group.log_bytes(3)
            assert acknowledged <= stored(group, old)


async def test_what_a_dead_master_had_alone_is_cut_off(tmp_path: Path) -> None:
    async with replica_group(tmp_path, 2) as group, producer(group) as sender:
        await send_until_accepted(sender, b"both")
        await group.in_sync(1, 2)
        end = group.log_end(1)
        # Records that no slave gets: the master does not send them any more.
        group.mode(1).sender.wake = lambda: None  # type: ignore[method-assign]
        store = group.brokers[1].components.store
        sending = asyncio.create_task(sender.send(Message(TOPIC, b"alone")))
        await eventually(lambda: store.max_position > end)
        await group.kill(1)
        await eventually(lambda: group.master == 2, "broker 2 is master")
        await send_until_accepted(sender, b"new")
        await asyncio.gather(sending, return_exceptions=True)
        await group.start(1)
        await group.in_sync(1, 2)
        assert group.log_bytes(1) == group.log_bytes(2)
        assert b"new" in stored(group, 1)


async def test_a_slave_refuses_sends_and_pulls(tmp_path: Path) -> None:
    async with replica_group(tmp_path, 2) as group, connection_to(group.brokers[2].address) as line:
        assert (await line.call(10, {"producerGroup": "p", "topic": TOPIC, "queueId": "0"}, b"x")).code == 2
        assert (await line.call(11, {"consumerGroup": "g", "topic": TOPIC, "queueId": "0"})).code == 2


async def test_sends_are_refused_with_too_few_replicas(tmp_path: Path) -> None:
    async with replica_group(tmp_path, 1, min_in_sync_replicas=2) as group, producer(group) as sender:
        async with connection_to(group.brokers[1].address) as line:
            fields = {
                **{"producerGroup": "p", "topic": "TBW102", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4"},
                **{"queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": ""},
            }
            answer = await line.call(10, fields, b"x")
            assert answer.code == 1
            assert "in-sync replicas not enough" in (answer.remark or "")
        await group.start(2, min_in_sync_replicas=2)
        await group.in_sync(1, 2)
        await send_until_accepted(sender, b"enough")


async def test_epochs_and_the_replication_port_can_be_queried(tmp_path: Path) -> None:
    async with replica_group(tmp_path, 2) as group, connection_to(group.brokers[2].address) as line:
        answer = await line.call(1007)
        assert answer.value == {
            "brokerId": 2,
            "brokerName": "broker-a",
            "clusterName": "DefaultCluster",
            "epochList": [{"endOffset": 0, "epoch": 1, "startOffset": 0}],
            "maxOffset": 0,
        }
        fields = (await line.call(906)).fields
        assert fields["masterHaAddress"] == group.roles(2).log_address


async def test_the_replication_port_is_closed_to_addresses_that_are_not_listed(tmp_path: Path) -> None:
    guarded: dict[str, Any] = {
        "authentication_enabled": True,
        "init_user": ROOT.json,
        "own_credentials": ROOT.credentials_json,
    }
    async with replica_group(tmp_path, 1, **guarded) as group:
        sender = group.mode(1).sender
        reader, writer = await asyncio.open_connection("127.0.0.1", sender.port)
        writer.write(encode_slave_hello(SlaveHello(2)))
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        assert sender.slaves() == []


async def test_a_learner_follows_and_never_joins(tmp_path: Path) -> None:
    async with replica_group(tmp_path, 1) as group, producer(group) as sender:
        await group.start(2, is_learner=True)
        for number in range(20):
            await send_until_accepted(sender, b"m%d" % number)
        await eventually(lambda: group.log_end(2) == group.log_end(1) > 0)
        await asyncio.sleep(1.0)
        state = group.mode(1).state
        assert state is not None
        assert state.members == {1}


async def test_sends_do_not_wait_for_slaves_by_default(tmp_path: Path) -> None:
    async with replica_group(tmp_path, 1, all_ack_in_sync_set=False) as group, producer(group) as sender:
        await send_until_accepted(sender, b"first")
        assert (await sender.send(Message(TOPIC, b"second"))).status.name == "OK"


async def test_a_slave_that_lags_does_not_reset_consumers(tmp_path: Path) -> None:
    async with replica_group(tmp_path, 1) as group, producer(group) as sender:
        await send_until_accepted(sender, b"one")
        await group.start(2, slave_read_enabled=True)
        await group.in_sync(1, 2)
        await eventually(lambda: group.brokers[2].components.topics.get(TOPIC) is not None)
        pull = {
            **{"consumerGroup": "g", "topic": TOPIC, "queueId": "0", "maxMsgNums": "32", "sysFlag": "5"},
            **{"commitOffset": "7", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"},
            **{"queueOffset": "9", "expressionType": "TAG"},
        }
        async with connection_to(group.brokers[2].address) as line:
            answer = await line.call(11, pull)
            assert (answer.code, answer.fields["nextBeginOffset"]) == (20, "9"), "the master may have these messages"
        assert group.brokers[2].components.offsets.get("g", TOPIC, 0) is None, "offsets are the master's"


async def test_a_change_of_role_that_failed_is_tried_again(tmp_path: Path) -> None:
    async with replica_group(tmp_path, 2) as group:
        in_the_way = tmp_path / "store-2" / "config" / "delayOffset.json"
        in_the_way.unlink(missing_ok=True)
        in_the_way.mkdir(parents=True)
        await group.kill(1)
        await eventually(lambda: group.mode(2).master_epoch == 2)
        assert not group.roles(2).is_master
        in_the_way.rmdir()
        await eventually(lambda: group.roles(2).is_master, "broker 2 is master")


async def test_a_forged_notice_changes_no_role(tmp_path: Path) -> None:
    async with replica_group(tmp_path, 2) as group, connection_to(group.brokers[1].address) as line:
        forged = {"masterBrokerId": "2", "masterAddress": "10.0.0.9:10911", "masterEpoch": "99"}
        body = b'{"syncStateSet":[2],"syncStateSetEpoch":99}'
        assert (await line.call(1008, forged | {"syncStateSetEpoch": "99"}, body)).code == 0
        await group.in_sync(1, 2)
        assert (group.master, group.mode(1).master_epoch) == (1, 1)


async def test_a_notice_is_confirmed_by_the_controller_at_once(tmp_path: Path) -> None:
    async with replica_group(tmp_path, 2, role_check_interval_s=3600.0) as group:
        await group.kill(1)
        await eventually(lambda: group.master == 2, "broker 2 is master")


async def test_slaves_that_lose_their_master_ask_for_the_next_one_at_once(tmp_path: Path) -> None:
    async with replica_group(tmp_path, 3, notifies=False, role_check_interval_s=3600.0) as group:
        await group.kill(1)
        await eventually(lambda: group.master is not None, "a new master")
        await group.in_sync(2, 3)


async def fork_the_log_of_the_master(group: ReplicaGroup, sender: Producer, *lost_and_new: bytes) -> None:
    """Stop broker 1, the master, and start it with other records in the same epoch than broker 2 has."""
    folder = group.folder / "store-1"
    end = group.log_end(1)
    await send_until_accepted(sender, b"lost")
    await group.in_sync(1, 2)
    await group.stop(2)
    await group.in_sync(1)
    await group.controller.stop()  # it would begin another epoch
    await group.stop(1)
    (log,) = (folder / "commitlog").iterdir()
    content = log.read_bytes()
    log.write_bytes(content[:end] + bytes(len(content) - end))
    (folder / "abort").touch()
    await group.restart_controller()
    await group.start(1)
    assert group.mode(1).master_epoch == 1
    assert group.log_end(1) == end
    for body in lost_and_new:
        await send_until_accepted(sender, body)


async def test_a_slave_keeps_what_its_master_has_lost(tmp_path: Path) -> None:
    async with replica_group(tmp_path, 2) as group, producer(group) as sender:
        await send_until_accepted(sender, b"both")
        await fork_the_log_of_the_master(group, sender)
        await group.start(2)
        await eventually(lambda: "lost records" in failure(group, 2))
        assert {b"both", b"lost"} == stored(group, 2)


async def test_a_slave_does_not_follow_a_master_that_has_other_records_of_its_epoch(tmp_path: Path) -> None:
    async with replica_group(tmp_path, 2) as group, producer(group) as sender:
        await send_until_accepted(sender, b"both")
        await fork_the_log_of_the_master(group, sender, b"new 1", b"new 2")
        await group.start(2)
        await eventually(lambda: "another history" in failure(group, 2))
        assert {b"both", b"lost"} == stored(group, 2)


async def test_a_master_that_is_removed_from_its_group_steps_down_and_keeps_no_slave_out(tmp_path: Path) -> None:
    async with replica_group(tmp_path, 2) as group, connection_to(group.controller.address) as line:
        fields = {"brokerName": "broker-a", "brokerControllerIdsToClean": "1", "isCleanLivingBroker": "true"}
        assert (await line.call(1011, fields)).code == 0
        await eventually(lambda: group.roles(2).is_master and not group.roles(1).is_master, "broker 2 is master")
        await eventually(lambda: group.mode(1).is_connected, "broker 1 follows it")
        await group.start(3)
        await eventually(lambda: (state := group.mode(2).state) is not None and state.members == {2, 3})


async def test_a_master_that_is_cut_off_accepts_nothing_and_follows_later(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"min_in_sync_replicas": 2, "controller_lease_s": 2.0}
    async with replica_group(tmp_path) as group, producer(group) as sender:
        with CutProxy(group.controller.address) as to_controller:
            to_controller.stand_in()
            await group.start(1, controller_list=to_controller.address, **settings)
            for number in (2, 3):
                await group.start(number, **settings)
            await group.in_sync(1, 2, 3)
            await send_until_accepted(sender, b"before")
            to_controller.cut()
            await eventually(lambda: any(group.roles(number).is_master for number in (2, 3)), "a new master")
            async with connection_to(group.brokers[1].address) as line:
                fields = {
                    **{"producerGroup": "p", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4"},
                    **{"queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": ""},
                }
                assert (await line.call(10, fields, b"cut off")).code != 0
            to_controller.heal()
            await eventually(lambda: not group.roles(1).is_master, "the old master follows")
            await group.in_sync(1, 2, 3)
            await send_until_accepted(sender, b"after")
            await eventually(lambda: stored(group, 1) == {b"before", b"after"}, "what it stored alone is cut off")


async def test_a_master_that_is_replaced_answers_suspended_pulls(tmp_path: Path) -> None:
    """Consumers would wait there for messages that the next master gets."""
    async with replica_group(tmp_path, 2) as group, producer(group) as sender:
        await send_until_accepted(sender, b"one")
        await group.in_sync(1, 2)
        old = group.brokers[1].components
        pull = {
            **{"consumerGroup": "g", "topic": TOPIC, "maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0"},
            **{"suspendTimeoutMillis": "60000", "subscription": "*", "subVersion": "0", "expressionType": "TAG"},
        }
        offsets = {str(queue): str(old.store.max_offset(TOPIC, queue)) for queue in range(4)}
        async with connection_to(group.brokers[1].address) as line, connection_to(group.controller.address) as tool:
            for queue, offset in offsets.items():
                await line.send(11, pull | {"queueId": queue, "queueOffset": offset})
            await eventually(lambda: len(old.long_polling) == 4)
            fields = {"clusterName": "DefaultCluster", "brokerName": "broker-a", "brokerId": "2"}
            assert (await tool.call(1002, fields | {"designateElect": "true"})).code == 0
            await eventually(lambda: group.roles(2).is_master and len(old.long_polling) == 0, timeout_s=20.0)
