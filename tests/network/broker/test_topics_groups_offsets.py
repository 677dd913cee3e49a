"""Topics, groups and offsets of running brokers, through our admin client."""

import pytest

from skyroute.broker.cluster.topic_propagation import TopicPropagation
from skyroute.client.admin import Admin
from skyroute.client.admin.groups import END
from skyroute.client.errors import BrokerRefusedError, InvalidParameterError, TopicNotFoundError
from skyroute.client.producing.producer import Producer
from skyroute.message.message import Message
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import DEFAULT_TOPIC
from skyroute.routing.registration import Registration, TopicTable
from skyroute.routing.topology import QueueSettings
from skyroute.wire.calls.groups import GroupConfig
from skyroute.wire.calls.offsets import decode_offset, encode_offset_query, encode_offset_update
from skyroute.wire.calls.registration import encode_registration
from skyroute.wire.calls.topics import TopicConfig
from tests.network.broker.clusters import Cluster
from tests.support.waiting import eventually

QUEUE = QueueRef("Orders", "broker-a", 0)


@pytest.fixture
async def cluster(empty_cluster: Cluster) -> Cluster:
    return empty_cluster


@pytest.fixture
async def admin(cluster: Cluster) -> Admin:
    return await cluster.admin()


# ------------------------------------------------------------------------------------------------------------- topics


async def test_a_created_topic_has_a_route_and_survives_a_crash(cluster: Cluster, admin: Admin) -> None:
    broker = await cluster.start()
    await admin.create_topic("Orders", broker=broker.address, read_queues=2, write_queues=3)
    assert cluster.has_route("Orders")
    await cluster.kill(broker)
    again = await cluster.start()
    assert await admin.topic_config("Orders", again.address) == TopicConfig("Orders", 2, 3)


async def test_a_deleted_topic_loses_its_messages(cluster: Cluster, admin: Admin) -> None:
    broker = await cluster.start()
    await admin.create_topic("Orders", broker=broker.address)
    async with Producer("p", cluster.name_server.address) as producer:
        await producer.send(Message("Orders", b"1"))
    await admin.delete_topic("Orders", "DefaultCluster")
    with pytest.raises(TopicNotFoundError):
        await admin.topic_config("Orders", broker.address)
    assert "Orders" not in broker.components.store.topics()
    assert not cluster.has_route("Orders")


async def test_a_refusal_of_the_broker_is_a_typed_error(cluster: Cluster, admin: Admin) -> None:
    broker = await cluster.start()
    with pytest.raises(InvalidParameterError, match="conflict with system topic"):
        await admin.create_topic("broker-a", broker=broker.address)
    with pytest.raises(BrokerRefusedError, match="unsupported key: colour"):
        await admin.create_topic("Orders", broker=broker.address, attributes={"colour": "red"})


async def test_topic_status_and_groups_of_a_topic_are_returned(cluster: Cluster, admin: Admin) -> None:
    broker = await cluster.start()
    await admin.create_topic("Orders", broker=broker.address, read_queues=1, write_queues=1)
    async with Producer("p", cluster.name_server.address) as producer:
        for body in (b"1", b"2"):
            await producer.send(Message("Orders", body))
    await admin.create_group(GroupConfig("g"), broker=broker.address)
    await admin.session.ask(broker.address, encode_offset_update("g", QUEUE, 1))
    status = await admin.topic_status("Orders")
    assert (status.queues[QUEUE].min_offset, status.queues[QUEUE].max_offset) == (0, 2)
    assert await admin.readers("Orders") == ["g"]
    assert {"Orders", DEFAULT_TOPIC} <= (await admin.topic_configs(broker.address)).keys()


async def test_an_auto_created_topic_is_created_on_the_other_brokers(cluster: Cluster) -> None:
    first, second = await cluster.start("broker-a"), await cluster.start("broker-b")
    made = first.components.topics.create_for_send("Orders", DEFAULT_TOPIC, 4)
    assert made is not None
    propagation = TopicPropagation(["127.0.0.1:1", cluster.name_server.address], first.components.identity)
    await propagation.propagate(made, DEFAULT_TOPIC)
    assert second.components.topics.get("Orders") == made
    second.components.topics.put(TopicConfig("Orders", 8, 8))
    await propagation.propagate(made, DEFAULT_TOPIC)
    assert second.components.topics.get("Orders") == TopicConfig("Orders", 8, 8)


async def test_a_broker_that_does_not_respond_blocks_no_topic_creation(cluster: Cluster, admin: Admin) -> None:
    table = TopicTable(topics={topic: QueueSettings(8, 8, 7) for topic in (DEFAULT_TOPIC, "DefaultCluster")})
    absent = Registration("DefaultCluster", "broker-0", 0, "127.0.0.1:1", table=table)
    await admin.session.ask_name_server(encode_registration(absent))
    first, second = await cluster.start("broker-a"), await cluster.start("broker-b")
    propagation = TopicPropagation([cluster.name_server.address], first.components.identity)
    propagation.begin(TopicConfig("Orders", 4, 4), DEFAULT_TOPIC)
    await eventually(lambda: second.components.topics.get("Orders") is not None)
    assert second.components.topics.get("Orders") == TopicConfig("Orders", 4, 4)
    await propagation.stop()


# --------------------------------------------------------------------------------------------------- groups and offsets


async def test_groups_are_created_changed_and_deleted(cluster: Cluster, admin: Admin) -> None:
    broker = await cluster.start()
    await admin.create_group(GroupConfig("g", retry_times_max=3), broker=broker.address)
    assert (await admin.group_config("g", broker.address)).retry_times_max == 3
    assert "g" in await admin.group_configs(broker.address)
    await admin.delete_group("g", broker=broker.address, with_offsets=True)
    assert "g" not in await admin.group_configs(broker.address)


async def test_reset_offsets_survive_a_crash(cluster: Cluster, admin: Admin) -> None:
    broker = await cluster.start()
    ask = admin.session.ask
    await admin.create_topic("Orders", broker=broker.address, read_queues=1, write_queues=1)
    await admin.create_group(GroupConfig("g"), broker=broker.address)
    async with Producer("p", cluster.name_server.address) as producer:
        for number in range(5):
            await producer.send(Message("Orders", b"%d" % number))
    await ask(broker.address, encode_offset_update("g", QUEUE, 2))
    assert await admin.reset_to_time("g", "Orders", END) == {QUEUE: 5}
    await ask(broker.address, encode_offset_update("g", QUEUE, 1))
    assert decode_offset(await ask(broker.address, encode_offset_query("g", QUEUE))) == 5
    await cluster.kill(broker)
    again = await cluster.start()
    assert decode_offset(await ask(again.address, encode_offset_query("g", QUEUE))) == 5
    progress = await admin.progress("g", "Orders")
    assert (progress.queues[QUEUE].broker_offset, progress.queues[QUEUE].lag) == (5, 0)
