"""Requests that brokers send to a push consumer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from skyroute.client.consuming.consumer import Consumer
from skyroute.client.consuming.push.handlers import ConsumeResult, RetryLater
from skyroute.message.message import StoredMessage
from skyroute.wire.calls.consumers import decode_running_consumer
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.network.client.consumers import Inbox, consumer_of
from tests.support.fake_broker import FakeCluster, fake_cluster


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(topics={"T": 2}) as cluster:
        yield cluster


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
async def consumer(cluster: FakeCluster, inbox: Inbox) -> AsyncIterator[Consumer]:
    consumer = consumer_of(cluster)
    consumer.subscribe("T", "A || B", inbox)
    async with consumer:
        yield consumer


def queue_key(queue_id: int, topic: str = "T") -> str:
    return json.dumps({"brokerName": "broker-a", "queueId": queue_id, "topic": topic})


async def test_a_change_of_members_causes_a_rebalance(cluster: FakeCluster, consumer: Consumer) -> None:
    asked = len(cluster.seen(RequestCode.GET_CONSUMER_LIST_BY_GROUP))
    await cluster.tell_client(
        consumer.session.client_id, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"}
    )
    await cluster.until_seen(RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked + 1)


async def test_a_broker_can_reset_offsets(cluster: FakeCluster, consumer: Consumer, inbox: Inbox) -> None:
    for number in range(3):
        cluster.put(cluster.queue("T"), b"%d" % number, tag="A")
    await inbox.until(3)
    body = f'{{"offsetTable":{{{queue_key(0)}:1}}}}'.encode()
    fields = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}
    await cluster.tell_client(consumer.session.client_id, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body)
    assert (await inbox.until(5))[3:] == [b"1", b"2"]


async def test_the_status_request_returns_offsets(cluster: FakeCluster, consumer: Consumer, inbox: Inbox) -> None:
    cluster.put(cluster.queue("T", 1), b"one", tag="A")
    await inbox.until(1)
    answer = await cluster.ask_client(
        consumer.session.client_id, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": "T", "group": "g"}
    )
    assert answer.code == ResponseCode.SUCCESS
    assert answer.body.decode().count(":1") >= 1
    assert b"broker-a" in answer.body


async def test_the_running_info_describes_the_consumer(cluster: FakeCluster, consumer: Consumer, inbox: Inbox) -> None:
    cluster.put(cluster.queue("T", 1), b"one", tag="B")
    await inbox.until(1)
    fields = {"consumerGroup": "g", "clientId": consumer.session.client_id, "jstackEnable": "true"}
    answer = await cluster.ask_client(consumer.session.client_id, RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
    assert answer.code == ResponseCode.SUCCESS
    running = decode_running_consumer(answer.body)
    for name in ("NAMESERVER_ADDR", "CONSUME_TYPE", "CLIENT_VERSION", "CONSUMER_START_TIMESTAMP", "CONSUMEORDERLY"):
        assert running.properties[f"PROP_{name}"]
    assert running.properties["PROP_THREADPOOL_CORE_SIZE"] == "20"
    assert {subscription.topic for subscription in running.subscriptions} == {"T", "%RETRY%g"}
    assert {queue.topic for queue in running.queues} == {"T", "%RETRY%g"}
    held = running.queues[cluster.queue("T", 1)]
    assert (held.commit_offset, held.cached_count) == (1, 0)
    assert held.last_pull_ms > 0
    assert running.paces["T"].consumed_a_second > 0
    assert "MainThread" in (running.stacks or "")


async def test_requests_about_other_groups_are_refused(cluster: FakeCluster, consumer: Consumer) -> None:
    client_id = consumer.session.client_id
    fields = {"consumerGroup": "other", "clientId": client_id}
    for code, asked in (
        (307, fields),
        (309, fields),
        (221, {"topic": "T", "group": "other"}),
        (220, {"topic": "T", "group": "other", "timestamp": "0"}),
    ):
        assert (await cluster.ask_client(client_id, code, asked)).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    ("says", "result"),
    [
        (None, "CR_SUCCESS"),
        (ConsumeResult.RETRY, "CR_LATER"),
        (RetryLater(), "CR_LATER"),
        (ValueError("no"), "CR_THROW_EXCEPTION"),
        (asyncio.CancelledError(), "CR_THROW_EXCEPTION"),
    ],
)
async def test_a_message_can_be_consumed_directly(cluster: FakeCluster, says: object, result: str) -> None:
    cluster.topics["U"] = 1
    cluster.put(cluster.queue("U"), b"body", tag="A")
    (record,) = cluster.stored(cluster.queue("U"))
    seen: list[tuple[str, bytes, str]] = []
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=Inbox())

    async def handle(message: StoredMessage) -> ConsumeResult | None:
        seen.append((message.topic, message.body, message.broker_name))
        if isinstance(says, BaseException):
            raise says
        return says  # type: ignore[return-value]  # one of what a handler may return

    async with consumer:
        consumer.subscribe("U", "never", handle)
        fields = {"consumerGroup": "g", "clientId": consumer.session.client_id, "brokerName": "broker-a"}
        answer = await cluster.ask_client(
            consumer.session.client_id, RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, record.data
        )
    assert seen == [("U", b"body", "broker-a")]
    assert answer.value["consumeResult"] == result
    assert (answer.value["order"], answer.value["autoCommit"]) == (False, True)
    assert cluster.seen(RequestCode.CONSUMER_SEND_MSG_BACK) == []


async def test_a_dead_letter_goes_to_the_handler_of_its_original_topic(cluster: FakeCluster) -> None:
    cluster.topics |= {"U": 1, "%DLQ%g": 1}
    dead = cluster.queue("%DLQ%g")
    cluster.put(dead, b"body", properties={"RETRY_TOPIC": "U"})
    (record,) = cluster.stored(dead)
    inbox = Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("U", handler=inbox)
    async with consumer:
        fields = {"consumerGroup": "g", "clientId": consumer.session.client_id}
        answer = await cluster.ask_client(
            consumer.session.client_id, RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, record.data
        )
    assert answer.value["consumeResult"] == "CR_SUCCESS"
    assert [(message.topic, message.body) for message in inbox.messages] == [("U", b"body")]


async def test_a_message_without_a_handler_cannot_be_consumed_directly(
    cluster: FakeCluster, consumer: Consumer
) -> None:
    cluster.topics["U"] = 1
    cluster.put(cluster.queue("U"), b"body")
    (record,) = cluster.stored(cluster.queue("U"))
    fields = {"consumerGroup": "g", "clientId": consumer.session.client_id, "brokerName": "broker-a"}
    answer = await cluster.ask_client(
        consumer.session.client_id, RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, record.data
    )
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "no handler of topic U in this consumer" in (answer.remark or "")


async def test_damaged_requests_are_refused(cluster: FakeCluster, consumer: Consumer) -> None:
    client_id = consumer.session.client_id
    for code, fields, body in (
        (40, {}, b""),
        (220, {"topic": "T", "group": "g", "timestamp": "0"}, b"{nonsense"),
        (307, {}, b""),
        (309, {"consumerGroup": "g", "clientId": client_id}, b"no record"),
    ):
        assert (await cluster.ask_client(client_id, code, fields, body)).code == ResponseCode.SYSTEM_ERROR
