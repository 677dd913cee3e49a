"""Requests that brokers send to a pull consumer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from skyroute import Admin, Message, Producer, PullConsumer, StartPosition
from skyroute.testing import cluster as own_cluster
from skyroute.wire.calls.consumers import decode_running_consumer
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.support.connections import WAIT_S
from tests.support.fake_broker import FakeCluster, Reply, fake_cluster

pytestmark = pytest.mark.usefixtures("nothing_lost")


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(topics={"T": 2}) as cluster:
        for number in range(3):
            cluster.put(cluster.queue("T"), b"%d" % number, tag="A")
        yield cluster


@pytest.fixture
async def consumer(cluster: FakeCluster) -> AsyncIterator[PullConsumer]:
    consumer = PullConsumer("g", cluster.address, start=StartPosition.FIRST)
    consumer.subscribe("T", "A || B")
    async with consumer:
        yield consumer


async def read(consumer: PullConsumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found += [message.body for message in await consumer.poll()]
    return found


async def reset(cluster: FakeCluster, consumer: PullConsumer, offset: int, group: str = "g") -> None:
    key = json.dumps({"brokerName": "broker-a", "queueId": 0, "topic": "T"})
    body = f'{{"offsetTable":{{{key}:{offset}}}}}'.encode()
    fields = {"topic": "T", "group": group, "timestamp": "0", "isForce": "true"}
    await cluster.ask_client(consumer.session.client_id, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body)


async def test_a_broker_can_reset_offsets(cluster: FakeCluster, consumer: PullConsumer) -> None:
    assert await read(consumer, 3) == [b"0", b"1", b"2"]
    await reset(cluster, consumer, 1)
    assert await read(consumer, 2) == [b"1", b"2"]
    await consumer.poll(timeout_s=0)  # what was handed out counts as processed
    await consumer.stop()
    assert cluster.offsets["g", cluster.queue("T")] == 3


async def test_messages_returned_before_a_reset_do_not_undo_it(cluster: FakeCluster, consumer: PullConsumer) -> None:
    assert await read(consumer, 3) == [b"0", b"1", b"2"]
    consumer.pause()
    await reset(cluster, consumer, 1)
    await consumer.poll(timeout_s=0)
    await consumer.stop()
    assert cluster.offsets["g", cluster.queue("T")] == 1


async def test_the_status_request_returns_offsets(cluster: FakeCluster, consumer: PullConsumer) -> None:
    await read(consumer, 3)
    answer = await cluster.ask_client(
        consumer.session.client_id, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": "T", "group": "g"}
    )
    assert answer.code == ResponseCode.SUCCESS
    assert b'"queueId":0' in answer.body
    assert b":0" in answer.body  # they do not count as processed yet
    await consumer.poll(timeout_s=0)
    answer = await cluster.ask_client(
        consumer.session.client_id, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": "T", "group": "g"}
    )
    assert b"}:3" in answer.body


async def test_the_running_info_describes_the_consumer(cluster: FakeCluster, consumer: PullConsumer) -> None:
    await read(consumer, 3)
    consumer.pause()
    await consumer.poll(timeout_s=0)
    fields = {"consumerGroup": "g", "clientId": consumer.session.client_id, "jstackEnable": "true"}
    answer = await cluster.ask_client(consumer.session.client_id, RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
    assert answer.code == ResponseCode.SUCCESS
    running = decode_running_consumer(answer.body)
    for name in ("NAMESERVER_ADDR", "CLIENT_VERSION", "CONSUMER_START_TIMESTAMP", "CONSUMEORDERLY"):
        assert running.properties[f"PROP_{name}"]
    assert running.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
    assert [(each.topic, each.expression) for each in running.subscriptions] == [("T", "A || B")]
    assert set(running.queues) == {cluster.queue("T", 0), cluster.queue("T", 1)}
    assert running.queues[cluster.queue("T")].commit_offset == 3
    assert "MainThread" in (running.stacks or "")


async def test_requests_about_other_groups_are_refused(cluster: FakeCluster, consumer: PullConsumer) -> None:
    client_id = consumer.session.client_id
    for code, fields in (
        (307, {"consumerGroup": "other", "clientId": client_id}),
        (221, {"topic": "T", "group": "other"}),
        (220, {"topic": "T", "group": "other", "timestamp": "0"}),
    ):
        assert (await cluster.ask_client(client_id, code, fields)).code == ResponseCode.SYSTEM_ERROR


async def test_requests_after_stop_are_refused(cluster: FakeCluster) -> None:
    other = PullConsumer("other", cluster.address)
    async with other:
        consumer = PullConsumer("g", session=other.session)
        other.subscribe("T")
        async with consumer:
            await cluster.until_seen(RequestCode.HEART_BEAT)
        fields = {"consumerGroup": "g", "clientId": other.session.client_id}
        assert (
            await cluster.ask_client(other.session.client_id, RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
        ).code == ResponseCode.SYSTEM_ERROR


async def test_our_broker_asks_and_the_admin_sees() -> None:
    async with (
        own_cluster() as real,
        Producer("p", real.name_server_address) as producer,
        Admin(real.name_server_address) as admin,
    ):
        sent = [await producer.send(Message("T", b"%d" % number, sharding_key="one")) for number in range(3)]
        queue = sent[0].queue
        consumer = PullConsumer("g", real.name_server_address, start=StartPosition.FIRST)
        consumer.subscribe("T")
        async with consumer:
            assert await read(consumer, 3) == [b"0", b"1", b"2"]
            await consumer.commit()
            members = await admin.consumers("g", broker=real.broker_addresses[0])
            assert [each.client_id for each in members.connections] == [consumer.session.client_id]
            await admin.create_topic("%RETRY%g", broker=real.broker_addresses[0])
            running = await admin.running_consumer("g", consumer.session.client_id)
            assert queue in running.queues
            assert (await admin.reset_to_time("g", "T", 0))[queue] == 0
            assert await read(consumer, 3) == [b"0", b"1", b"2"]


@pytest.mark.parametrize(
    "code", [ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.SUCCESS]
)
async def test_a_broker_that_does_not_hold_long_polls_causes_no_busy_loop(code: ResponseCode) -> None:
    places = {"suggestWhichBrokerId": "0", "nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}
    async with fake_cluster(topics={"T": 1}) as cluster:
        cluster.on(RequestCode.LITE_PULL_MESSAGE, lambda *_: Reply(code, places))
        async with PullConsumer("g", cluster.address, start=StartPosition.FIRST) as consumer:
            consumer.subscribe("T")
            started = asyncio.get_running_loop().time()
            await cluster.until_seen(RequestCode.LITE_PULL_MESSAGE, 11)
            assert asyncio.get_running_loop().time() - started > 0.08
