"""A slave acts for its dead master: another broker gets what is due, once; the master takes back the progress."""

from typing import Any

import pytest

from skyroute.broker.acting.acting_master import ActingMaster
from skyroute.broker.broker import Broker
from skyroute.broker.replication import slave as slave_module
from skyroute.clock import SystemClock
from skyroute.message.reserved_topics import HALF_TOPIC
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.network.broker.calls import found_bodies, pull, send
from tests.network.broker.clusters import Cluster
from tests.support.connections import connection_to
from tests.support.disks import bodies
from tests.support.raw import Request
from tests.support.waiting import eventually

SETTINGS: dict[str, Any] = {"acting_master_enabled": True, "delay_level_list": "1s 2s"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slaves connect again at once."""
    monkeypatch.setattr(slave_module, "RETRY_S", 0.05)


async def start_other(cluster: Cluster) -> Broker:
    """Start the group that gets what the acting master must write."""
    other = await cluster.start_live(name="broker-b", **SETTINGS)
    await cluster.add_topic("T")
    return other


async def start_pair(cluster: Cluster, **of_slave: Any) -> tuple[Broker, Broker]:
    master = await cluster.start_live(**SETTINGS)
    await cluster.add_topic("T")
    folder = str(cluster.folder / "slave")
    values = {"broker_id": 1, "broker_role": "SLAVE", "store_path": folder}
    slave = await cluster.start(clock=SystemClock(), **(SETTINGS | values | of_slave))
    return master, slave


def acting_of(broker: Broker) -> ActingMaster:
    assert broker.components.acting is not None
    return broker.components.acting


async def is_followed(master: Broker, slave: Broker) -> None:
    theirs, ours = master.components.store, slave.components.store
    await eventually(lambda: ours.whole_end == theirs.max_position, "the slave has the log")
    await eventually(lambda: slave.components.topics.get("T") is not None, "the slave has the topics")


def keyed(body: bytes, **properties: str) -> Request:
    return send("T", body, properties={"UNIQ_KEY": body.decode().upper(), **properties})


async def test_due_messages_of_a_dead_master_are_delivered_once(empty_cluster: Cluster) -> None:
    cluster = empty_cluster
    other = await start_other(cluster)
    master, slave = await start_pair(cluster)
    line = await cluster.line(address=master.address)
    for request in (
        keyed(b"early", DELAY="1"),
        keyed(b"late", DELAY="2"),
        keyed(b"timed", TIMER_DELAY_SEC="2"),
        keyed(b"half", TRAN_MSG="true", PGROUP="p"),
    ):
        assert (await line.call(request)).code == ResponseCode.SUCCESS
    await eventually(lambda: bodies(master.components.store) == [b"early"], "the master delivers")
    await is_followed(master, slave)
    await cluster.kill(master)
    await eventually(lambda: acting_of(slave).is_acting, "the slave acts")

    elsewhere = other.components.store
    await eventually(lambda: sorted(bodies(elsewhere)) == [b"late", b"timed"], "another broker has them")
    await eventually(lambda: bodies(elsewhere, HALF_TOPIC) == [b"half"], "and the open transaction")
    assert slave.components.store.max_offset("T", 0) == 1, "a slave writes nothing itself"
    found = found_bodies(await (await cluster.line(address=slave.address)).call(pull("T")))
    assert found == [b"early"], "an acting master serves pulls, whatever slaveReadEnable"

    master = await cluster.start_live(**SETTINGS)
    assert not acting_of(slave).is_acting, "the slave has handed over before the master registers"
    line = await cluster.line(address=master.address)
    assert (await line.call(keyed(b"next", DELAY="1"))).code == ResponseCode.SUCCESS
    await eventually(lambda: bodies(master.components.store) == [b"early", b"next"], "the master delivers again")
    assert master.components.transactions.open_count == 0
    assert sorted(bodies(elsewhere)) == [b"late", b"timed"]
    await is_followed(master, slave)


async def test_a_returning_master_takes_over_offsets(empty_cluster: Cluster) -> None:
    cluster = empty_cluster
    master, slave = await start_pair(cluster)
    line = await cluster.line(address=master.address)
    for number in range(3):
        await line.call(keyed(b"%d" % number))
    await is_followed(master, slave)
    await cluster.kill(master)
    await eventually(lambda: acting_of(slave).is_acting, "the slave acts")
    line = await cluster.line(address=slave.address)
    assert found_bodies(await line.call(pull("T"))) == [b"0", b"1", b"2"]
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "2"}
    assert (await line.call(Request(RequestCode.UPDATE_CONSUMER_OFFSET, fields))).code == ResponseCode.SUCCESS
    assert (await line.call(keyed(b"refused"))).code == ResponseCode.SYSTEM_BUSY
    master = await cluster.start_live(**SETTINGS)
    assert master.components.offsets.get("g", "T", 0) == 2


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_what_the_dead_master_delivered_last_is_not_delivered_again(empty_cluster: Cluster, flush: str) -> None:
    cluster = empty_cluster
    other = await start_other(cluster)
    master, slave = await start_pair(cluster, flush_disk_type=flush, flush_interval_s=3600.0)
    await eventually(lambda: acting_of(slave).master_address is not None, "the slave knows its master")
    line = await cluster.line(address=master.address)
    await line.call(keyed(b"early", DELAY="1"))
    await eventually(lambda: bodies(master.components.store) == [b"early"], "the master delivers")
    await is_followed(master, slave)
    await cluster.kill(master)  # it has not saved that it delivered
    await eventually(lambda: acting_of(slave).is_acting, "the slave acts")
    await eventually(lambda: acting_of(slave).escape.delivered() == (1, 1), "the slave finds it due")
    assert bodies(other.components.store) == []


async def test_a_slave_does_not_act_while_its_master_sends_to_it(empty_cluster: Cluster) -> None:
    master, slave = await start_pair(empty_cluster)
    await is_followed(master, slave)
    await eventually(lambda: slave.components.ha_slave is not None and slave.components.ha_slave.is_connected)
    for channel in [server.channel for server in master.components.registrar._name_servers]:
        assert channel is not None
        channel.abort()  # the name server takes the master for dead
    await acting_of(slave).look()
    assert not acting_of(slave).is_acting


async def test_a_slave_does_not_act_while_its_master_responds(empty_cluster: Cluster) -> None:
    """Both would deliver what is due: connections may be reset while both are alive."""
    cluster = empty_cluster
    master, slave = await start_pair(cluster)
    await is_followed(master, slave)
    await eventually(lambda: acting_of(slave).master_address is not None, "the slave knows its master")
    follower = slave.components.ha_slave
    assert follower is not None
    follower.ha_address = "127.0.0.1:1"
    for each in master.components.ha_master._lines:
        each.close("this test cuts it off")
    await eventually(lambda: not follower.is_connected)
    own = {"clusterName": "DefaultCluster", "brokerName": "broker-a", "brokerId": "0", "brokerAddr": master.address}
    async with connection_to(cluster.name_server_address) as line:
        assert (await line.call(RequestCode.UNREGISTER_BROKER, own)).code == ResponseCode.SUCCESS
        await acting_of(slave).look()  # before the next heartbeat of the master
    assert acting_of(slave).master_address is None, "the name server has no master"
    assert not acting_of(slave).is_acting
    await cluster.kill(master)
    await eventually(lambda: acting_of(slave).is_acting, "the slave acts once its master is dead")


async def test_a_message_that_no_other_group_takes_holds_up_no_other_and_goes_to_the_master(
    empty_cluster: Cluster,
) -> None:
    cluster = empty_cluster
    other = await start_other(cluster)
    master, slave = await start_pair(cluster)
    master.components.topics.put(TopicConfig("Only", 1, 1))
    line = await cluster.line(address=master.address)
    request = send("Only", b"only", properties={"UNIQ_KEY": "ONLY", "DELAY": "2"})
    assert (await line.call(request)).code == ResponseCode.SUCCESS
    assert (await line.call(keyed(b"behind", DELAY="2"))).code == ResponseCode.SUCCESS
    await is_followed(master, slave)
    await cluster.kill(master)
    await eventually(lambda: bodies(other.components.store) == [b"behind"], "another broker has the second message")
    await eventually(lambda: acting_of(slave).escape.waiting_count == 1, "the first one waits")
    master = await cluster.start_live(**SETTINGS)
    assert bodies(master.components.store, "Only") == [b"only"]
    assert bodies(master.components.store, "T") == []
    assert {first for first, end in master.components.delays.offsets().values() if first != end} == set()


async def test_a_message_that_is_on_its_way_when_the_master_returns_is_not_given_back(empty_cluster: Cluster) -> None:
    cluster = empty_cluster
    other = await cluster.start_live(
        name="broker-b", **SETTINGS, broker_role="SYNC_MASTER", in_sync_replicas=2, slave_timeout_s=2.5
    )
    await cluster.add_topic("T")
    master, slave = await start_pair(cluster)
    line = await cluster.line(address=master.address)
    assert (await line.call(keyed(b"late", DELAY="2"))).code == ResponseCode.SUCCESS
    await is_followed(master, slave)
    await cluster.kill(master)
    # The other broker has stored it, and responds only after `slaveTimeout`.
    await eventually(lambda: bodies(other.components.store) == [b"late"])
    master = await cluster.start_live(**SETTINGS)
    assert bodies(master.components.store) == []
    assert bodies(other.components.store) == [b"late"]
    assert {first for first, end in master.components.delays.offsets().values() if first != end} == set()


async def test_a_half_message_that_is_on_its_way_when_the_master_returns_is_not_handed_over_twice(
    empty_cluster: Cluster,
) -> None:
    cluster = empty_cluster
    other = await cluster.start_live(
        name="broker-b", **SETTINGS, broker_role="SYNC_MASTER", in_sync_replicas=2, slave_timeout_s=0.4
    )
    await cluster.add_topic("T")
    master, slave = await start_pair(cluster)
    line = await cluster.line(address=master.address)
    assert (await line.call(keyed(b"half", TRAN_MSG="true", PGROUP="p"))).code == ResponseCode.SUCCESS
    await is_followed(master, slave)
    await cluster.kill(master)
    # The other broker has stored it, and responds only after `slaveTimeout`.
    await eventually(lambda: bodies(other.components.store, HALF_TOPIC) == [b"half"])
    await acting_of(slave).stand_down()
    master = await cluster.start_live(**SETTINGS)
    assert master.components.transactions.open_count == 0
