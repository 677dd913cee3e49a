"""Masters and slaves over loopback, in one process."""

import asyncio
import socket
from typing import Any

import pytest

from skyroute.broker.broker import Broker
from skyroute.broker.replication import slave as slave_module
from skyroute.broker.replication.slave_line import SlaveLine
from skyroute.broker.request_handlers import request_handlers
from skyroute.message.message import StoredMessage
from skyroute.wire.calls.replication import decode_replication_status
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.ha import TRANSFER_HEAD_BYTES, decode_transfer_head, encode_report
from tests.network.broker.calls import found_bodies, heartbeat, pull, send
from tests.network.broker.clusters import Cluster
from tests.network.broker.replicas import (
    FILE_BYTES,
    caught_up,
    checksum,
    connect_raw,
    fill,
    slave_of,
    start_master,
    start_slave,
    store_of,
)
from tests.support.raw import Request
from tests.support.signing import ROOT
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slaves connect again at once."""
    monkeypatch.setattr(slave_module, "RETRY_S", 0.05)


@pytest.fixture
async def master(empty_cluster: Cluster) -> Broker:
    broker = await start_master(empty_cluster)
    await empty_cluster.add_topic("T", 2)
    return broker


# ------------------------------------------------------------------------------------------------------------ following


@pytest.mark.parametrize("messages", [0, 10, 200])
async def test_an_empty_slave_begins_with_the_masters_last_file(
    empty_cluster: Cluster, master: Broker, messages: int
) -> None:
    line = await empty_cluster.line(address=master.address)
    await fill(line, messages)
    slave = await start_slave(empty_cluster)
    await fill(line, 5)
    await caught_up(master, slave)
    end = store_of(master).max_position
    assert store_of(slave).min_position in (end - end % FILE_BYTES, end - end % FILE_BYTES - FILE_BYTES)
    for queue_id in (0, 1):
        assert store_of(slave).max_offset("T", queue_id) == store_of(master).max_offset("T", queue_id)


async def test_a_slave_follows_over_new_files_and_restarts(empty_cluster: Cluster, master: Broker) -> None:
    line = await empty_cluster.line(address=master.address)
    slave = await start_slave(empty_cluster)
    await fill(line, 150)
    await empty_cluster.stop(slave)
    await fill(line, 150)
    slave = await start_slave(empty_cluster)
    await fill(line, 150)
    await caught_up(master, slave)
    await empty_cluster.kill(slave)
    await fill(line, 10)
    slave = await start_slave(empty_cluster)
    await caught_up(master, slave)
    assert store_of(slave).min_position == 0
    assert store_of(slave).max_position > 6 * FILE_BYTES


async def test_a_slave_follows_a_master_that_was_restarted(empty_cluster: Cluster, master: Broker) -> None:
    slave = await start_slave(empty_cluster)
    await fill(await empty_cluster.line(address=master.address), 20)
    await caught_up(master, slave)
    await empty_cluster.stop(master)
    master = await start_master(empty_cluster)
    await fill(await empty_cluster.line(address=master.address), 20)
    await caught_up(master, slave)


async def test_a_slave_that_loses_its_connection_connects_again_at_once(
    empty_cluster: Cluster, master: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = await empty_cluster.line(address=master.address)
    slave = await start_slave(empty_cluster)
    await fill(line, 3)
    await caught_up(master, slave)
    monkeypatch.setattr(slave_module, "RETRY_S", 3600.0)
    for each in list(master.components.ha_master._lines):
        each.close("this test cuts it off")
    await fill(line, 3)
    await caught_up(master, slave)


async def test_a_slave_of_two_keeps_up_with_the_other(empty_cluster: Cluster, master: Broker) -> None:
    slaves = [await start_slave(empty_cluster, number) for number in (1, 2)]
    await fill(await empty_cluster.line(address=master.address), 50)
    for slave in slaves:
        await caught_up(master, slave)
    assert master.components.ha_master.in_sync == 3


async def test_a_connection_that_is_accepted_while_the_master_stops_is_closed(master: Broker) -> None:
    ha_master = master.components.ha_master
    ha_master.stop()
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as theirs:
        ours, _ = listener.accept()
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: SlaveLine(ha_master, ha_master.clock.monotonic()), ours)
        async with asyncio.timeout(5):
            assert await loop.sock_recv(theirs, 1) == b""


async def test_a_slave_that_is_ahead_refuses_and_keeps_its_log(empty_cluster: Cluster, master: Broker) -> None:
    slave = await start_slave(empty_cluster)
    await fill(await empty_cluster.line(address=master.address), 30)
    await caught_up(master, slave)
    await empty_cluster.stop(master)
    end, before = store_of(slave).max_position, checksum(store_of(slave), 0, store_of(slave).max_position)
    master = await start_master(empty_cluster, store_path=str(empty_cluster.folder / "other"))
    await empty_cluster.add_topic("T", 2)
    await fill(await empty_cluster.line(address=master.address), 5)
    await eventually(lambda: "behind the master's" in (slave_of(slave).refusal or ""))
    await fill(await empty_cluster.line(address=master.address), 60)
    await eventually(lambda: "another history" in (slave_of(slave).refusal or ""))
    assert store_of(slave).max_position == end
    assert checksum(store_of(slave), 0, end) == before


async def test_a_slave_with_files_of_another_size_refuses(empty_cluster: Cluster, master: Broker) -> None:
    slave = await start_slave(empty_cluster, commit_log_file_bytes=2 * FILE_BYTES)
    await eventually(lambda: "set the same value" in (slave_of(slave).refusal or ""))
    assert store_of(slave).max_position == 0


# ------------------------------------------------------------------------------------------------------------- metadata


async def test_topics_groups_and_offsets_reach_the_slave(empty_cluster: Cluster, master: Broker) -> None:
    slave = await start_slave(empty_cluster)
    line = await empty_cluster.line(address=master.address)
    await line.call(send("Fresh", b"x"))  # creates the topic
    await line.call(heartbeat("g", "Fresh"))
    await line.call(pull("Fresh", flag=4))
    update = {"consumerGroup": "g", "topic": "Fresh", "queueId": "0", "commitOffset": "1"}
    assert (await line.call(Request(RequestCode.UPDATE_CONSUMER_OFFSET, update))).code == 0
    here = slave.components
    await eventually(lambda: here.topics.get("Fresh") == master.components.topics.get("Fresh"))
    await eventually(lambda: here.groups.get("g") is not None)
    await eventually(lambda: here.offsets.get("g", "Fresh", 0) == 1)
    assert here.topics.version == master.components.topics.version


# -------------------------------------------------------------------------------------------------------------- serving


async def test_a_slave_refuses_sends_and_pulls_unless_reads_are_enabled(empty_cluster: Cluster, master: Broker) -> None:
    slave = await start_slave(empty_cluster)
    line = await empty_cluster.line(address=slave.address)
    for request in (send(), pull(), Request(RequestCode.POP_MESSAGE, {}), Request(RequestCode.END_TRANSACTION, {})):
        assert (await line.call(request)).code == ResponseCode.SYSTEM_BUSY
    assert store_of(slave).max_position == 0


async def test_no_request_of_a_client_changes_the_log_of_a_slave(empty_cluster: Cluster, master: Broker) -> None:
    slave = await start_slave(empty_cluster, slave_read_enabled=True)
    await fill(await empty_cluster.line(address=master.address), 4)
    await caught_up(master, slave)
    await eventually(lambda: slave.components.topics.get("T") is not None)
    end = store_of(slave).max_position
    before = checksum(store_of(slave), 0, end)
    line = await empty_cluster.line(address=slave.address)
    groups = {"group": "g", "consumerGroup": "g", "producerGroup": "p", "groupName": "g", "originTopic": "T"}
    queue = {
        "topic": "T",
        "queueId": "0",
        "offset": "0",
        "extraInfo": "",
        "commitOffset": "1",
        "defaultTopic": "TBW102",
    }
    numbers = {"delayLevel": "1", "maxReconsumeTimes": "1", "commitOrRollback": "8", "tranStateTableOffset": "0"}
    times = {"bornTimestamp": "1", "sysFlag": "0", "flag": "0", "defaultTopicQueueNums": "1", "properties": ""}
    for code in sorted(request_handlers(slave.components)):
        fields = {**groups, **queue, **numbers, **times, "commitLogOffset": "0", "msgId": "0", "newTopic": "Fresh"}
        await line.send_oneway(code, fields, b"{}")  # a pull may wait for long
    await line.call(send("Fresh"))
    await line.call(heartbeat("fresh", "Fresh"))
    assert (store_of(slave).max_position, checksum(store_of(slave), 0, end)) == (end, before)
    assert slave_of(slave).is_connected


async def test_a_slave_with_reads_serves_messages_and_sends_consumers_back_to_the_master(
    empty_cluster: Cluster, master: Broker
) -> None:
    slave = await start_slave(empty_cluster, slave_read_enabled=True)
    await fill(await empty_cluster.line(address=master.address), 4)
    await caught_up(master, slave)
    await eventually(lambda: slave.components.topics.get("T") is not None)
    line = await empty_cluster.line(address=slave.address)
    answer = await line.call(pull("T", 0, flag=5, commit=1))
    assert len(found_bodies(answer)) == 2
    assert answer.fields["suggestWhichBrokerId"] == "0"
    assert slave.components.offsets.get("g", "T", 0) is None
    answer = await line.call(pull("T", 2, flag=6))
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "2")
    answer = await line.call(pull("T", 9_000, flag=6))
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "9000")
    await empty_cluster.stop(master)
    await eventually(lambda: not slave_of(slave).is_connected)
    answer = await line.call(pull("T", 2, flag=6, suspend_ms=10))
    assert answer.code == ResponseCode.PULL_NOT_FOUND


async def test_the_status_says_who_follows_and_how_far(empty_cluster: Cluster, master: Broker) -> None:
    slave = await start_slave(empty_cluster)
    await fill(await empty_cluster.line(address=master.address), 4)
    await caught_up(master, slave)
    await eventually(lambda: master.components.ha_master.reached(1) == store_of(master).max_position)
    query = Request(RequestCode.GET_BROKER_HA_STATUS, {})
    status = decode_replication_status((await (await empty_cluster.line(address=master.address)).call(query)).body)
    assert (status.master, status.in_sync_slaves, status.slaves[0].diff) == (True, 1, 0)
    status = decode_replication_status((await (await empty_cluster.line(address=slave.address)).call(query)).body)
    assert not status.master
    assert status.follower.activated
    assert status.follower.max_offset == store_of(slave).max_position


# ---------------------------------------------------------------------------------------------------------- SYNC_MASTER


async def test_a_synchronous_master_waits_for_its_slave(empty_cluster: Cluster) -> None:
    master = await start_master(empty_cluster, broker_role="SYNC_MASTER", in_sync_replicas=2, slave_timeout_s=0.2)
    await empty_cluster.add_topic("T", 2)
    line = await empty_cluster.line(address=master.address)
    answer = await line.call(send())
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert answer.fields["queueOffset"] == "0"
    assert (await line.call(send(properties="WAIT\x01false\x02"))).code == ResponseCode.SUCCESS
    slave = await start_slave(empty_cluster)
    await eventually(lambda: master.components.ha_master.reached(1) == store_of(master).max_position)
    for _ in range(20):
        assert (await line.call(send())).code == ResponseCode.SUCCESS
        assert store_of(slave).max_position == store_of(master).max_position
    await empty_cluster.kill(slave)
    assert (await line.call(send())).code == ResponseCode.FLUSH_SLAVE_TIMEOUT


async def test_sends_are_refused_while_too_few_are_in_sync(empty_cluster: Cluster) -> None:
    master = await start_master(empty_cluster, broker_role="SYNC_MASTER", in_sync_replicas=2, min_in_sync_replicas=2)
    await empty_cluster.add_topic("T", 2)
    line = await empty_cluster.line(address=master.address)
    answer = await line.call(send())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "in-sync replicas not enough" in str(answer.remark)
    assert store_of(master).max_position == 0
    await start_slave(empty_cluster)
    await eventually(lambda: master.components.ha_master.in_sync == 2)
    assert (await line.call(send())).code == ResponseCode.SUCCESS


async def test_fewer_replicas_are_enough_if_the_settings_say_so(empty_cluster: Cluster) -> None:
    master = await start_master(
        empty_cluster, broker_role="SYNC_MASTER", in_sync_replicas=3, auto_in_sync_replicas=True
    )
    await empty_cluster.add_topic("T", 2)
    line = await empty_cluster.line(address=master.address)
    assert (await line.call(send())).code == ResponseCode.SUCCESS
    slave = await start_slave(empty_cluster)
    await eventually(lambda: master.components.ha_master.in_sync == 2)
    assert (await line.call(send())).code == ResponseCode.SUCCESS
    assert store_of(slave).max_position == store_of(master).max_position


# ------------------------------------------------------------------------------------------------------------ transfers


async def test_transfers_stay_within_a_file_and_within_the_limit(empty_cluster: Cluster, master: Broker) -> None:
    master.config.ha_transfer_bytes = 10_000
    await fill(await empty_cluster.line(address=master.address), 120)
    end = store_of(master).max_position

    def follow() -> list[tuple[int, int]]:
        frames = []
        with connect_raw(master) as sock, sock.makefile("rb") as stream:
            sock.sendall(encode_report(1))
            at = 1
            while at < end:
                position, size = decode_transfer_head(stream.read(TRANSFER_HEAD_BYTES))
                assert position == at
                at += len(stream.read(size))
                frames.append((position, size))
        return frames

    for position, size in await asyncio.to_thread(follow):
        assert size <= 10_000
        assert position // FILE_BYTES == (position + size - 1) // FILE_BYTES


async def test_flow_control_limits_the_bytes_of_a_second(empty_cluster: Cluster, master: Broker) -> None:
    master.config.ha_flow_control, master.config.ha_bytes_per_s = True, 40_000
    await fill(await empty_cluster.line(address=master.address), 45)
    loop = asyncio.get_running_loop()
    started = loop.time()
    await caught_up(master, await start_slave(empty_cluster))
    assert loop.time() - started > 0.9


async def test_a_heartbeat_has_the_next_position(empty_cluster: Cluster) -> None:
    master = await start_master(empty_cluster, ha_heartbeat_s=0.2)

    def follow() -> tuple[int, int]:
        with connect_raw(master) as sock:
            sock.sendall(encode_report(0))
            return decode_transfer_head(sock.recv(100))

    assert await asyncio.to_thread(follow) == (0, 0)


# Access control

GUARDED: dict[str, Any] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_user": ROOT.json,
    "own_credentials": ROOT.credentials_json,
}


async def test_the_replication_port_is_closed_to_addresses_that_are_not_listed(empty_cluster: Cluster) -> None:
    master = await start_master(empty_cluster, **GUARDED)
    reader, writer = await asyncio.open_connection("127.0.0.1", master.components.ha_master.port)
    assert await reader.read() == b""
    writer.close()
    assert master.components.ha_master.slaves() == []
    assert master.enforcer is not None
    assert master.enforcer.counts["no_user"] == 1  # type: ignore[index]  # a Reason is a text


async def test_a_listed_slave_that_signs_copies_messages_and_tables(empty_cluster: Cluster) -> None:
    master = await start_master(empty_cluster, **GUARDED, broker_sources="127.0.0.1")
    await empty_cluster.add_topic("T", 2)
    line = await empty_cluster.line()
    for _ in range(5):
        assert (await line.call(ROOT.sign(send("T", b"hello")))).code == ResponseCode.SUCCESS
    slave = await start_slave(empty_cluster, **GUARDED)
    await caught_up(master, slave)
    await eventually(lambda: slave.components.topics.get("T") is not None)


# --------------------------------------------------------------------------------------------------- master is away


async def test_our_consumer_reads_from_the_slave_while_the_master_is_away(
    empty_cluster: Cluster, master: Broker
) -> None:
    slave = await start_slave(empty_cluster, slave_read_enabled=True)
    await fill(await empty_cluster.line(address=master.address), 20, size=80)
    await caught_up(master, slave)
    await eventually(lambda: slave.components.topics.get("T") is not None)
    await empty_cluster.stop(master)
    seen: list[tuple[int, int]] = []

    async def note(message: StoredMessage) -> None:
        seen.append((message.queue_id, message.queue_offset))

    consumer = empty_cluster.consumer()
    consumer.subscribe("T", handler=note)
    async with consumer:
        await eventually(lambda: len(set(seen)) == 20, "20 messages from the slave")
        master = await start_master(empty_cluster)
        await fill(await empty_cluster.line(address=master.address), 10, size=80)
        await eventually(lambda: len(set(seen)) == 30, "10 messages of the returned master")
    for queue_id in (0, 1):
        offsets = [offset for queue, offset in dict.fromkeys(seen) if queue == queue_id]
        assert offsets == list(range(15))
    assert {master.components.offsets.get("g", "T", queue_id) for queue_id in (0, 1)} == {15}
