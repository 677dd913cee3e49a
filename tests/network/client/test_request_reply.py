"""Request-reply: the requester and the replier."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from skyroute.client.errors import ClientError, NotRunningError, RequestTimeoutError, ServerFailedError, SystemBusyError
from skyroute.client.producing import request_reply
from skyroute.client.producing.producer import Producer
from skyroute.message.errors import InvalidMessageError
from skyroute.message.flags import Compression
from skyroute.message.message import Message, StoredMessage
from skyroute.message.record import decode_record
from skyroute.remoting.errors import CallTimeoutError
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.support.connections import WAIT_S
from tests.support.fake_broker import CLUSTER, FakeCluster, Record, Reply, decode_properties, fake_cluster
from tests.support.raw import Command
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("nothing_lost")

SEND = RequestCode.SEND_MESSAGE_V2
SEND_REPLY = RequestCode.SEND_REPLY_MESSAGE_V2
PUSH_REPLY = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
REPLY_TOPIC = f"{CLUSTER}_REPLY_TOPIC"


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(topics={"T": 1, REPLY_TOPIC: 1}) as cluster:
        yield cluster


@pytest.fixture
async def producer(cluster: FakeCluster) -> AsyncIterator[Producer]:
    async with Producer("g", cluster.address) as producer:
        yield producer


def pushed(correlation_id: str, **changes: str) -> dict[str, str]:
    """What a broker says when it passes on a reply."""
    return {
        "producerGroup": "answering",
        "topic": REPLY_TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "7",
        "properties": f"CORRELATION_ID\x01{correlation_id}\x02MSG_TYPE\x01reply\x02p\x01v\x02",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "bornHost": "10.0.0.1:54321",
        "storeHost": "10.0.0.2:10911",
        "storeTimestamp": "1700000000123",
    } | changes


async def sent_request(cluster: FakeCluster) -> dict[str, str]:
    """Wait for a request to arrive, and return its properties."""
    sent = await cluster.until_seen(SEND)
    return decode_properties(sent[-1].fields["i"])


async def give_up_asking(cluster: FakeCluster, producer: Producer, number: int = 1) -> None:
    """Send a request, and wait for no reply."""
    asking = asyncio.create_task(producer.request(Message("T", b"question"), timeout_s=WAIT_S))
    await cluster.until(lambda: len(cluster.stored_bodies("T")) == number)
    await eventually(lambda: producer._in_flight.count == 0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


def stored(record: Record, **properties: str) -> StoredMessage:
    """The message as a consumer would be given it; brokers add the name of their cluster."""
    message = decode_record(record.data)
    return message.with_properties(dict(message.properties) | properties)


# --------------------------------------------------------------------------------------------------- the side that asks


async def test_a_request_returns_its_reply(cluster: FakeCluster, producer: Producer) -> None:
    asking = asyncio.create_task(producer.request(Message("T", b"question", tag="A"), timeout_s=WAIT_S))
    properties = await sent_request(cluster)
    assert properties["REPLY_TO_CLIENT"] == producer.session.client_id
    assert (properties["TTL"], properties["TAGS"]) == (str(int(WAIT_S * 1000)), "A")
    answer = await cluster.ask_client(
        producer.session.client_id, PUSH_REPLY, pushed(properties["CORRELATION_ID"]), b"answer"
    )
    assert answer.code == ResponseCode.SUCCESS
    reply = await asking
    assert (reply.body, reply.topic, reply.flag, reply.find_property("p")) == (b"answer", REPLY_TOPIC, 7, "v")
    assert (reply.born_at_ms, reply.stored_at_ms) == (1_700_000_000_000, 1_700_000_000_123)
    assert (str(reply.born_host.ip), reply.store_host.port) == ("10.0.0.1", 10911)
    assert 0 <= time.time() * 1000 - int(reply.properties["ARRIVE_TIME"]) < WAIT_S * 1000
    assert producer._replies._awaited == {}


async def test_a_request_without_a_reply_ends_in_time(cluster: FakeCluster, producer: Producer) -> None:
    await give_up_asking(cluster, producer)  # and make everything known
    with pytest.raises(RequestTimeoutError, match="no reply came in time") as caught:
        await producer.request(Message("T", b"x"), timeout_s=0.5)
    assert caught.value.retryable
    assert producer._replies._awaited == {}


async def test_brokers_know_of_us_before_the_first_request(cluster: FakeCluster, producer: Producer) -> None:
    for number in (1, 2):
        await give_up_asking(cluster, producer, number)
    codes = [command.code for name, command in cluster.heard if name]
    assert codes.index(RequestCode.HEART_BEAT) < codes.index(SEND)
    assert {command.fields["topic"] for command in cluster.seen(RequestCode.GET_ROUTEINFO_BY_TOPIC)} == {
        "T",
        REPLY_TOPIC,
    }
    assert len(cluster.seen(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 2
    assert producer._replies._awaited == {}
    assert producer._in_flight.count == 0


async def test_a_cluster_without_a_topic_for_replies_may_still_reply(cluster: FakeCluster, producer: Producer) -> None:
    del cluster.topics[REPLY_TOPIC]
    await give_up_asking(cluster, producer)


async def test_a_request_that_is_refused_waits_for_nothing(cluster: FakeCluster) -> None:
    cluster.refuse(SEND, ResponseCode.SYSTEM_BUSY, "busy")
    async with Producer("g", cluster.address, retries=0) as producer:
        with pytest.raises(SystemBusyError):
            await producer.request(Message("T", b"x"), timeout_s=WAIT_S)
        assert producer._replies._awaited == {}


async def test_the_reply_to_a_cancelled_request_is_accepted(
    cluster: FakeCluster, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "skyroute.client")
    asking = asyncio.create_task(producer.request(Message("T", b"x"), timeout_s=WAIT_S))
    properties = await sent_request(cluster)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert producer._replies._awaited == {}
    late = await cluster.ask_client(producer.session.client_id, PUSH_REPLY, pushed(properties["CORRELATION_ID"]))
    assert late.code == ResponseCode.SUCCESS
    assert "late reply dropped peer=" in caplog.text


async def test_a_reply_may_arrive_before_the_send_response(cluster: FakeCluster, producer: Producer) -> None:
    acknowledge = asyncio.Event()
    cluster.delay(SEND, acknowledge)
    asking = asyncio.create_task(producer.request(Message("T", b"x"), timeout_s=WAIT_S))
    properties = await sent_request(cluster)
    for body in (b"first", b"second"):
        await cluster.ask_client(producer.session.client_id, PUSH_REPLY, pushed(properties["CORRELATION_ID"]), body)
    acknowledge.set()
    assert (await asking).body == b"first"


async def test_each_reply_goes_to_its_request(cluster: FakeCluster, producer: Producer) -> None:
    async with Producer("other", session=producer.session) as other:
        asking = asyncio.create_task(other.request(Message("T", b"x"), timeout_s=WAIT_S))
        correlation_id = (await sent_request(cluster))["CORRELATION_ID"]
        client_id = producer.session.client_id
        assert (
            await cluster.ask_client(client_id, PUSH_REPLY, pushed(correlation_id), b"answer")
        ).code == ResponseCode.SUCCESS
        assert (await asking).body == b"answer"


async def test_replies_find_their_requests_in_any_order(cluster: FakeCluster, producer: Producer) -> None:
    asking = [
        asyncio.create_task(producer.request(Message("T", b"%d" % number), timeout_s=WAIT_S)) for number in range(20)
    ]
    for sent in reversed(await cluster.until_seen(SEND, 20)):
        correlation_id = decode_properties(sent.fields["i"])["CORRELATION_ID"]
        await cluster.tell_client(producer.session.client_id, PUSH_REPLY, pushed(correlation_id), sent.body)
    assert [(await each).body for each in asking] == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize(
    "changes",
    [
        {"properties": ""},
        {"bornHost": "host.example:1"},
        {"sysFlag": "x"},
        {"storeTimestamp": ""},
    ],
)
async def test_a_reply_that_means_nothing_is_refused(
    cluster: FakeCluster, producer: Producer, changes: dict[str, str]
) -> None:
    asking = asyncio.create_task(producer.request(Message("T", b"x"), timeout_s=WAIT_S))
    correlation_id = (await sent_request(cluster))["CORRELATION_ID"]
    client_id = producer.session.client_id
    assert (
        await cluster.ask_client(client_id, PUSH_REPLY, pushed(correlation_id, **changes))
    ).code == ResponseCode.SYSTEM_ERROR
    assert (
        await cluster.ask_client(client_id, PUSH_REPLY, pushed(correlation_id), b"good")
    ).code == ResponseCode.SUCCESS
    assert (await asking).body == b"good"


async def test_a_hanging_broker_does_not_exceed_the_timeout(cluster: FakeCluster) -> None:
    loop = asyncio.get_running_loop()
    cluster.hang(RequestCode.HEART_BEAT)
    async with Producer("g", cluster.address, request_timeout_s=WAIT_S) as producer:
        began = loop.time()
        with pytest.raises(CallTimeoutError, match="request not sent: heartbeats to the brokers of topic T"):
            await producer.request(Message("T", b"x"), timeout_s=0.1)
        assert loop.time() - began < 2.0
    assert cluster.seen(SEND) == []


async def test_requests_that_wait_are_bounded(
    cluster: FakeCluster, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_reply, "REQUESTS_MAX", 2)
    asking = [asyncio.create_task(producer.request(Message("T", b"x"), timeout_s=WAIT_S)) for _ in range(2)]
    await cluster.until_seen(SEND, 2)
    with pytest.raises(ClientError, match="2 requests wait"):
        await producer.request(Message("T", b"x"))
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)


async def test_a_stop_ends_the_wait_for_a_reply(cluster: FakeCluster) -> None:
    producer = Producer("g", cluster.address)
    await producer.start()
    asking = asyncio.create_task(producer.request(Message("T", b"x"), timeout_s=WAIT_S))
    await cluster.until_seen(SEND)
    await eventually(lambda: producer._in_flight.count == 0)
    await producer.stop()
    with pytest.raises(NotRunningError):
        await asyncio.wait_for(asking, WAIT_S / 2)


# ------------------------------------------------------------------------------------------------ the side that answers


async def request_of(cluster: FakeCluster, producer: Producer) -> StoredMessage:
    await give_up_asking(cluster, producer)
    (record,) = cluster.stored(cluster.queue("T", 0))
    return stored(record, CLUSTER=CLUSTER)


async def test_a_reply_uses_the_cluster_of_the_request(cluster: FakeCluster, producer: Producer) -> None:
    cluster.on(SEND_REPLY, lambda *_: Reply(fields={"msgId": "0", "queueId": "0", "queueOffset": "0"}))
    request = await request_of(cluster, producer)
    async with Producer("answering", cluster.address) as answering:
        result = await answering.reply(request, b"answer")
    assert (result.ok, result.offset_id) == (True, "0")
    (sent,) = cluster.seen(SEND_REPLY)
    assert (sent.fields["a"], sent.fields["b"], sent.body) == ("answering", REPLY_TOPIC, b"answer")
    assert decode_properties(sent.fields["i"]) == {
        "MSG_TYPE": "reply",
        "CORRELATION_ID": request.properties["CORRELATION_ID"],
        "REPLY_TO_CLIENT": producer.session.client_id,
        "TTL": str(int(WAIT_S * 1000)),
        "UNIQ_KEY": result.message_id,
    }


async def test_a_reply_has_no_namespace(cluster: FakeCluster, producer: Producer) -> None:
    cluster.on(SEND_REPLY, lambda *_: Reply(fields={"msgId": "0", "queueId": "0", "queueOffset": "0"}))
    request = await request_of(cluster, producer)
    async with Producer("answering", cluster.address, namespace="ns") as answering:
        await answering.reply(request, b"answer")
    assert cluster.seen(SEND_REPLY)[0].fields["b"] == REPLY_TOPIC


async def test_a_reply_to_a_disconnected_requester_raises(cluster: FakeCluster, producer: Producer) -> None:
    cluster.refuse(SEND_REPLY, ResponseCode.SYSTEM_ERROR, "push reply message fail, channel of <x> not found.")
    request = await request_of(cluster, producer)
    async with Producer("answering", cluster.address, retries=0) as answering:
        with pytest.raises(ServerFailedError, match="channel of <x> not found"):
            await answering.reply(request, b"answer")


@pytest.mark.parametrize("missing", ["CLUSTER", "CORRELATION_ID", "REPLY_TO_CLIENT"])
async def test_a_message_that_is_not_a_request_cannot_be_replied_to(
    cluster: FakeCluster, producer: Producer, missing: str
) -> None:
    request = await request_of(cluster, producer)
    kept = {name: value for name, value in request.properties.items() if name != missing}
    with pytest.raises(InvalidMessageError, match="wants no reply"):
        await producer.reply(request.with_properties(kept), b"answer")
    with pytest.raises(InvalidMessageError, match="empty"):
        await producer.reply(request, b"")


async def test_request_and_reply_pass_through_a_broker(cluster: FakeCluster) -> None:
    body = b"a long answer " * 1000

    async def pass_on(command: Command, peer: Any) -> Reply:
        properties = decode_properties(command.fields["i"])
        fields = pushed("") | {
            "properties": command.fields["i"],
            "sysFlag": command.fields["f"],
            "topic": command.fields["b"],
        }
        answer = await cluster.ask_client(properties["REPLY_TO_CLIENT"], PUSH_REPLY, fields, command.body)
        return Reply(answer.code, {"msgId": "0", "queueId": "0", "queueOffset": "0"})

    cluster.on(SEND_REPLY, pass_on)
    async with (
        Producer("asking", cluster.address) as asking,
        Producer("answering", cluster.address, compression=Compression.ZSTD) as answering,
    ):
        question = asyncio.create_task(asking.request(Message("T", b"question"), timeout_s=WAIT_S))
        await cluster.until(lambda: bool(cluster.stored_bodies("T")))
        request = stored(cluster.stored(cluster.queue("T", 0))[0], CLUSTER=CLUSTER)
        await answering.reply(request, body)
        assert (await question).body == body
