"""The producer: requests, queues and retries."""

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import lz4.frame  # type: ignore[import-untyped]  # it has no types
import pytest
import zstandard

from skyroute.client.errors import (
    BrokerRefusedError,
    ClientError,
    InvalidParameterError,
    MessageRefusedError,
    NoBrokerError,
    NotRunningError,
    SystemBusyError,
)
from skyroute.client.producing.prepared_message import MessageTooLargeError
from skyroute.client.producing.producer import Producer
from skyroute.client.results import SendStatus
from skyroute.client.session.session import Session
from skyroute.client.trace.records import Recalled, decode_trace
from skyroute.message.errors import InvalidMessageError, InvalidNameError, PropertyError
from skyroute.message.flags import Compression
from skyroute.message.message import Message
from skyroute.message.message_id import decode_unique_id
from skyroute.message.queue_ref import QueueRef
from skyroute.remoting.errors import CallTimeoutError, ConnectError, ConnectionLostError, RemotingError
from skyroute.wire.calls.send_back import RecallHandle, encode_recall_handle
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.support.clock import ManualClock
from tests.support.connections import WAIT_S
from tests.support.fake_broker import FakeCluster, Reply, decode_properties, fake_cluster, java_hash, offset_id
from tests.support.raw import Command

pytestmark = pytest.mark.usefixtures("nothing_lost")

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE
HEARTBEAT = RequestCode.HEART_BEAT


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(topics={"T": 4}) as cluster:
        yield cluster


@pytest.fixture
async def two_brokers() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(topics={"T": 2}, brokers=("broker-a", "broker-b")) as cluster:
        yield cluster


@pytest.fixture
async def producer(cluster: FakeCluster) -> AsyncIterator[Producer]:
    async with producer_of(cluster) as producer:
        yield producer


def producer_of(cluster: FakeCluster, **settings: Any) -> Producer:
    return Producer("g", cluster.address, **({"send_timeout_s": WAIT_S} | settings))


def properties_of(sent: Command) -> dict[str, str]:
    return decode_properties(sent.fields["i"])


# ---------------------------------------------------------------------------------------------------------- one message


async def test_send_returns_the_queue_and_the_offset(cluster: FakeCluster, producer: Producer) -> None:
    result = await producer.send(Message("T", b"body", tag="A", keys=("k1", "k2"), properties={"p": "字"}, flag=7))
    (sent,) = cluster.seen(SEND)
    assert (result.status, result.ok, result.queue_offset) == (SendStatus.OK, True, 0)
    assert result.queue == cluster.queue("T", int(sent.fields["e"]))
    (record,) = cluster.stored(result.queue)
    assert (record.body, record.tag) == (b"body", "A")
    assert result.offset_id == offset_id(cluster.broker().address, record.position)
    assert result.message_id == result.transaction_id == record.properties["UNIQ_KEY"]
    assert (result.region, result.trace_on) == ("DefaultRegion", True)
    assert record.properties == {"p": "字", "TAGS": "A", "KEYS": "k1 k2", "UNIQ_KEY": result.message_id}
    fields = {name: value for name, value in sent.fields.items() if name not in "eig"}
    assert fields == {
        "a": "g",
        "b": "T",
        "c": "TBW102",
        "d": "4",
        "f": "0",
        "h": "7",
        "j": "0",
        "k": "false",
        "m": "false",
        "n": "broker-a",
    }


async def test_every_message_has_an_id_of_its_own(cluster: FakeCluster, producer: Producer) -> None:
    message = Message("T", b"same")
    results = await asyncio.gather(*(producer.send(message) for _ in range(300)))
    assert len({result.message_id for result in results}) == 300
    assert decode_unique_id(results[0].message_id).ip in producer.session.client_id
    assert sorted(result.queue_offset for result in results if result.queue.queue_id == 0) == list(range(75))


async def test_queues_have_their_turns(cluster: FakeCluster, producer: Producer) -> None:
    queues = [(await producer.send(Message("T", b"x"))).queue.queue_id for _ in range(8)]
    assert sorted(queues) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert queues[:4] == queues[4:]


async def test_a_message_may_be_sent_without_waiting(cluster: FakeCluster, producer: Producer) -> None:
    for number in range(20):
        await producer.send_oneway(Message("T", b"%d" % number), queue=cluster.queue("T", 1))
    sent = await cluster.until_seen(SEND, 20)
    assert all(command.is_one_way for command in sent)
    await cluster.until(lambda: len(cluster.stored_bodies("T")) == 20)
    assert cluster.stored_bodies("T") == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize(
    ("message", "properties"),
    [
        (Message("T", b"x", delay_level=3), {"DELAY": "3"}),
        (Message("T", b"x", deliver_after_s=1.5), {"TIMER_DELAY_MS": "1500"}),
        (Message("T", b"x", deliver_at=datetime(2026, 1, 1, tzinfo=UTC)), {"TIMER_DELIVER_MS": "1767225600000"}),
        (Message("T", b"x", wait_stored=False), {"WAIT": "false"}),
        (Message("T", b"x", sharding_key="k"), {"__SHARDINGKEY": "k"}),
    ],
)
async def test_message_options_are_sent_as_properties(
    cluster: FakeCluster, producer: Producer, message: Message, properties: dict[str, str]
) -> None:
    await producer.send(message)
    (sent,) = cluster.seen(SEND)
    found = properties_of(sent)
    del found["UNIQ_KEY"]
    assert found == properties


async def test_the_time_of_birth_is_the_wall_clocks(cluster: FakeCluster) -> None:
    async with producer_of(cluster, clock=ManualClock(wall=1_700_000_000.5)) as producer:
        await producer.send(Message("T", b"x"))
    assert cluster.seen(SEND)[0].fields["g"] == "1700000000500"


async def test_a_delayed_message_can_be_recalled(cluster: FakeCluster, producer: Producer) -> None:
    async def with_handle(command: Command, peer: Any) -> Reply:
        reply = await cluster.answer(command, peer)
        assert reply is not None
        return Reply(fields=dict(reply.fields) | {"recallHandle": "HANDLE"})

    cluster.on(SEND, with_handle)
    cluster.on(RequestCode.RECALL_MESSAGE, lambda *_: Reply(fields={"msgId": "x"}))
    result = await producer.send(Message("T", b"x", deliver_after_s=60))
    assert result.recall_handle == "HANDLE"
    await producer.recall("T", result.recall_handle)
    (recall,) = cluster.seen(RequestCode.RECALL_MESSAGE)
    assert recall.fields == {"producerGroup": "g", "topic": "T", "recallHandle": "HANDLE"}
    cluster.refuse(RequestCode.RECALL_MESSAGE, ResponseCode.ILLEGAL_OPERATION, "too late")
    with pytest.raises(BrokerRefusedError, match="too late"):
        await producer.recall("T", "HANDLE")
    with pytest.raises(NoBrokerError):
        await producer.recall("T", "HANDLE", broker_name="nobody")


async def test_traces_say_whether_a_message_was_recalled(cluster: FakeCluster) -> None:
    cluster.topics["RMQ_SYS_TRACE_TOPIC"] = 1
    handle = encode_recall_handle(RecallHandle("T", "broker-a", 1_700_000_000_000, "UNIQ"))
    cluster.refuse(RequestCode.RECALL_MESSAGE, ResponseCode.ILLEGAL_OPERATION, "too late")
    cluster.on(RequestCode.RECALL_MESSAGE, lambda *_: Reply(fields={"msgId": "UNIQ", "MSG_REGION": "North"}), times=1)
    async with producer_of(cluster, trace=True) as producer:
        await producer.recall("T", handle)
        for recalled in (handle, "of no message"):
            with pytest.raises(BrokerRefusedError, match="too late"):
                await producer.recall("T", recalled)
    records = [record for body in cluster.stored_bodies("RMQ_SYS_TRACE_TOPIC") for record in decode_trace(body)]
    assert records == [
        Recalled(at_ms=record.at_ms, region=region, group="g", topic="T", message_id="UNIQ", success=success)
        for record, (region, success) in zip(records, [("North", True), ("DefaultRegion", False)], strict=True)
    ]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_DISK_TIMEOUT),
        (ResponseCode.SLAVE_NOT_AVAILABLE, SendStatus.SLAVE_NOT_AVAILABLE),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
async def test_a_message_that_is_stored_less_safely_is_stored(
    two_brokers: FakeCluster, code: int, status: SendStatus
) -> None:
    fields = {"msgId": "0", "queueId": "1", "queueOffset": "5"}
    two_brokers.on(SEND, lambda *_: Reply(code, fields))
    async with producer_of(two_brokers) as producer:
        result = await producer.send(Message("T", b"x"))
        assert (result.status, result.ok, result.queue_offset) == (status, False, 5)
        assert len(two_brokers.seen(SEND)) == 1
    async with producer_of(two_brokers, retry_unsafe=True) as producer:
        assert (await producer.send(Message("T", b"x"))).status is status
        assert len(two_brokers.seen(SEND)) == 4
        two_brokers.heal(SEND)
        two_brokers.on(SEND, lambda *_: Reply(code, fields), times=1)
        assert (await producer.send(Message("T", b"x"))).ok
        # A fixed queue has no other broker.
        two_brokers.on(SEND, lambda *_: Reply(code, fields), times=1)
        assert (await producer.send(Message("T", b"x"), queue=two_brokers.queue("T", 1))).status is status


async def test_less_safe_is_better_than_not_at_all(two_brokers: FakeCluster) -> None:
    two_brokers.refuse(SEND, ResponseCode.MESSAGE_ILLEGAL, "no")
    two_brokers.on(
        SEND,
        lambda *_: Reply(ResponseCode.SLAVE_NOT_AVAILABLE, {"msgId": "0", "queueId": "1", "queueOffset": "5"}),
        times=1,
    )
    async with producer_of(two_brokers, retry_unsafe=True) as producer:
        assert (await producer.send(Message("T", b"x"))).status is SendStatus.SLAVE_NOT_AVAILABLE


# --------------------------------------------------------------------------------------------------- choosing the queue


@pytest.mark.parametrize("key", ["a", "order-17", "TagA", "订单", "polygenelubricants", "Aa", "BB", "😀"])
async def test_a_sharding_key_leads_to_the_queue_that_java_would_choose(two_brokers: FakeCluster, key: str) -> None:
    async with producer_of(two_brokers) as producer:
        queues = await producer.queues("T")
        assert queues == [QueueRef("T", broker, number) for broker in ("broker-a", "broker-b") for number in range(2)]
        results = [await producer.send(Message("T", b"x", sharding_key=key)) for _ in range(3)]
    value = java_hash(key)
    remainder = value % 4 if value >= 0 else -(-value % 4)  # Java's keeps the sign
    assert {result.queue for result in results} == {queues[abs(remainder)]}


async def test_the_application_may_choose(cluster: FakeCluster, producer: Producer) -> None:
    seen: list[tuple[Sequence[QueueRef], Message]] = []

    def last(queues: Sequence[QueueRef], message: Message) -> QueueRef:
        seen.append((queues, message))
        return queues[-1]

    message = Message("T", b"x", sharding_key="ignored")
    assert (await producer.send(message, select=last)).queue.queue_id == 3
    await producer.send_oneway(message, select=last)
    assert (await producer.send(message, queue=cluster.queue("T", 2))).queue.queue_id == 2
    assert seen == [([cluster.queue("T", number) for number in range(4)], message)] * 2


async def test_an_invalid_choice_of_the_queue_is_refused(cluster: FakeCluster, producer: Producer) -> None:
    message = Message("T", b"x")
    queue = cluster.queue("T", 0)
    with pytest.raises(InvalidMessageError, match="queue and select are both given"):
        await producer.send(message, queue=queue, select=lambda queues, _: queues[0])
    with pytest.raises(InvalidMessageError, match="queue is of topic U and the message of topic T"):
        await producer.send(message, queue=QueueRef("U", "broker-a", 0))
    with pytest.raises(InvalidMessageError, match="queue is of topic U and the message of topic T"):
        await producer.send_oneway(message, select=lambda *_: QueueRef("U", "broker-a", 0))
    with pytest.raises(InvalidMessageError, match="select returned None: expected one of the given queues"):
        await producer.send(message, select=lambda *_: None)  # type: ignore[arg-type]  # what happens
    with pytest.raises(ZeroDivisionError):
        await producer.send(message, select=lambda *_: 1 // 0)  # type: ignore[arg-type]  # what happens
    with pytest.raises(NoBrokerError, match="broker nobody"):
        await producer.send(message, queue=QueueRef("T", "nobody", 0))
    assert cluster.seen(SEND) == []
    assert producer._in_flight.count == 0


# ---------------------------------------------------------------------------------------------------------- compression


@pytest.mark.parametrize(
    ("compression", "flag", "unpack"),
    [
        (Compression.ZLIB, 1 | 3 << 8, zlib.decompress),
        (Compression.LZ4, 1 | 1 << 8, lz4.frame.decompress),
        (Compression.ZSTD, 1 | 2 << 8, lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data)),
    ],
)
@pytest.mark.parametrize("size", [4096, 200_000])
async def test_long_bodies_travel_compressed(
    cluster: FakeCluster, compression: Compression, flag: int, unpack: Any, size: int
) -> None:
    body = b"again " * (size // 6 + 1)
    async with producer_of(cluster, compression=compression) as producer:
        await producer.send(Message("T", body))
    (sent,) = cluster.seen(SEND)
    assert int(sent.fields["f"]) in (flag, 1)  # zlib is also what no type at all means
    assert len(sent.body) < len(body)
    assert unpack(sent.body) == body


async def test_short_bodies_travel_as_they_are(cluster: FakeCluster) -> None:
    async with producer_of(cluster, compress_from_bytes=100) as producer:
        await producer.send(Message("T", b"x" * 99))
        await producer.send(Message("T", b"x" * 100))
    assert [sent.fields["f"] != "0" for sent in cluster.seen(SEND)] == [False, True]


# -------------------------------------------------------------------------------------------------------------- batches


async def test_a_batch_is_one_request_and_one_result_each(cluster: FakeCluster, producer: Producer) -> None:
    messages = [Message("T", b"%d" % number, tag=f"t{number}", keys=f"k{number}") for number in range(10)]
    results = await producer.send_batch(messages)
    (sent,) = cluster.seen(BATCH)
    assert sent.fields["m"] == "true"
    (queue,) = {result.queue for result in results}
    records = cluster.stored(queue)
    assert [record.body for record in records] == [message.body for message in messages]
    assert [record.properties["UNIQ_KEY"] for record in records] == [result.message_id for result in results]
    assert [record.properties["KEYS"] for record in records] == [f"k{number}" for number in range(10)]
    assert [result.queue_offset for result in results] == list(range(10))
    assert [result.offset_id for result in results] == [
        offset_id(cluster.broker().address, record.position) for record in records
    ]
    assert len({result.message_id for result in results} | {properties_of(sent)["UNIQ_KEY"]}) == 11


async def test_a_batch_is_cut_by_size(cluster: FakeCluster) -> None:
    async with producer_of(cluster, batch_bytes_max=1000) as producer:
        messages = [Message("T", bytes([number]) * size) for number, size in enumerate([300, 300, 300, 2000, 300, 300])]
        results = await producer.send_batch(messages, queue=cluster.queue("T", 2))
    assert cluster.stored_bodies("T") == [message.body for message in messages]
    assert [result.queue_offset for result in results] == list(range(6))
    batches, singles = cluster.seen(BATCH), cluster.seen(SEND)
    assert all(len(batch.body) <= 1000 for batch in batches)
    assert (len(batches), [len(single.body) for single in singles]) == (2, [300, 2000])


async def test_the_order_of_a_key_survives_a_batch(cluster: FakeCluster) -> None:
    keys = ["a", "b", "c", "d", "e"]
    async with producer_of(cluster, batch_bytes_max=500) as producer:
        messages = [
            Message("T", f"{keys[number % 5]}-{number:03}".encode(), sharding_key=keys[number % 5])
            for number in range(100)
        ]
        results = await producer.send_batch(messages)
    for result, message in zip(results, messages, strict=True):
        assert result.queue.queue_id == abs(java_hash(message.sharding_key or "")) % 4
        begin = cluster.begin(result.queue)
        assert cluster.stored(result.queue)[result.queue_offset - begin].body == message.body
    for number in range(4):
        bodies = [record.body for record in cluster.stored(cluster.queue("T", number))]
        for key in keys:
            of_key = [body for body in bodies if body.startswith(key.encode())]
            assert of_key == sorted(of_key)


async def test_one_message_is_no_batch(cluster: FakeCluster, producer: Producer) -> None:
    (result,) = await producer.send_batch(iter([Message("T", b"alone")]))
    assert cluster.seen(BATCH) == []
    assert cluster.stored(result.queue)[0].body == b"alone"


async def test_a_batch_that_is_one_record_has_one_id(cluster: FakeCluster, producer: Producer) -> None:
    cluster.on(BATCH, lambda *_: Reply(fields={"msgId": "ONE", "queueId": "0", "queueOffset": "7"}))
    results = await producer.send_batch([Message("T", b"x")] * 3)
    assert [(result.offset_id, result.queue_offset) for result in results] == [("ONE", 7), ("ONE", 8), ("ONE", 9)]


async def test_wait_stored_false_applies_to_the_whole_batch(cluster: FakeCluster, producer: Producer) -> None:
    await producer.send_batch([Message("T", b"x", wait_stored=False)] * 2)
    (sent,) = cluster.seen(BATCH)
    assert properties_of(sent)["WAIT"] == "false"


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [Message("T", b"x"), Message("U", b"x")],
        [Message("T", b"x"), Message("T", b"x", delay_level=1)],
        [Message("T", b"x", deliver_after_s=1)] * 2,
        [Message("T", b"x"), Message("T", b"x", wait_stored=False)],
        [Message("T", b"x"), Message("T", b"")],
        [Message("%RETRY%g", b"x")] * 2,
    ],
)
async def test_an_invalid_batch_is_refused_before_anything_is_sent(
    cluster: FakeCluster, producer: Producer, messages: list[Message]
) -> None:
    with pytest.raises(InvalidMessageError):
        await producer.send_batch(messages)
    assert cluster.seen(BATCH) == cluster.seen(SEND) == []


# ----------------------------------------------------------------------------------------------------------- namespaces


async def test_a_namespace_is_added_to_requests_and_removed_from_results(cluster: FakeCluster) -> None:
    cluster.topics["ns%T"] = 4
    async with producer_of(cluster, namespace="ns") as producer:
        queues = await producer.queues("T")
        assert {queue.topic for queue in queues} == {"T"}
        results = [
            await producer.send(Message("T", b"x")),
            await producer.send(Message("T", b"x"), queue=queues[1]),
            await producer.send(Message("T", b"x"), select=lambda queues, _: queues[2]),
            *await producer.send_batch([Message("T", b"x"), Message("T", b"y")], queue=queues[3]),
        ]
        (heartbeat,) = await cluster.until_seen(HEARTBEAT)
    assert {result.queue.topic for result in results} == {"T"}
    assert [result.queue.queue_id for result in results[1:]] == [1, 2, 3, 3]
    sent = cluster.seen(SEND) + cluster.seen(BATCH)
    assert {(command.fields["a"], command.fields["b"]) for command in sent} == {("ns%g", "ns%T")}
    records = [record for queue in range(4) for record in cluster.stored(cluster.queue("ns%T", queue))]
    assert [record.properties["INSTANCE_ID"] for record in records] == ["ns"] * 5
    assert heartbeat.value["producerDataSet"] == [{"groupName": "ns%g"}]
    assert repr(producer) == "<Producer ns%g stopped>"


# ------------------------------------------------------------------------------------------------- retries and refusals


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    ],
)
async def test_another_broker_is_tried_after_a_refusal_that_only_concerns_the_first(
    two_brokers: FakeCluster, code: int
) -> None:
    two_brokers.refuse(SEND, code, "not me", times=1)
    async with producer_of(two_brokers) as producer:
        result = await producer.send(Message("T", b"x"))
    assert result.ok
    assert {name for name, command in two_brokers.heard if command.code == SEND} == {"broker-a", "broker-b"}
    first, second = two_brokers.seen(SEND)
    assert properties_of(first) == properties_of(second)


@pytest.mark.parametrize(
    ("code", "error"),
    [(ResponseCode.MESSAGE_ILLEGAL, MessageRefusedError), (ResponseCode.INVALID_PARAMETER, InvalidParameterError)],
)
async def test_a_refusal_of_the_message_itself_is_final(
    two_brokers: FakeCluster, code: int, error: type[BrokerRefusedError]
) -> None:
    two_brokers.refuse(SEND, code, "no")
    async with producer_of(two_brokers) as producer:
        with pytest.raises(error, match="no"):
            await producer.send(Message("T", b"x"))
    assert len(two_brokers.seen(SEND)) == 1


@pytest.mark.parametrize("retries", [0, 1, 2, 4])
async def test_the_error_contains_all_failed_attempts(two_brokers: FakeCluster, retries: int) -> None:
    two_brokers.refuse(SEND, ResponseCode.SYSTEM_BUSY, "busy")
    async with producer_of(two_brokers, retries=retries) as producer:
        with pytest.raises(SystemBusyError) as caught:
            await producer.send(Message("T", b"x"))
        assert producer._in_flight.count == 0
    assert len(two_brokers.seen(SEND)) == 1 + retries
    notes = getattr(caught.value, "__notes__", [])
    assert len(notes) == retries
    assert all(note.startswith("earlier attempt: 127.0.0.1:") and "busy" in note for note in notes)


async def test_a_broker_that_is_sent_away_from_is_followed_by_another(two_brokers: FakeCluster) -> None:
    two_brokers.refuse(SEND, ResponseCode.GO_AWAY, "go away", broker="broker-a")
    async with producer_of(two_brokers, avoid_slow=False) as producer:
        for _ in range(4):
            assert (await producer.send(Message("T", b"x"))).queue.broker_name == "broker-b"


async def test_a_dead_broker_is_followed_by_another(two_brokers: FakeCluster) -> None:
    await two_brokers.broker("broker-a").stop()
    async with producer_of(two_brokers, avoid_slow=False) as producer:
        for _ in range(4):
            assert (await producer.send(Message("T", b"x"))).queue.broker_name == "broker-b"


async def test_after_a_cut_response_another_broker_is_tried(two_brokers: FakeCluster) -> None:
    two_brokers.cut(SEND, times=1)
    async with producer_of(two_brokers) as producer:
        assert (await producer.send(Message("T", b"x"))).ok
    assert two_brokers.stored_bodies("T") == [b"x", b"x"]  # which is why consumers must bear duplicates


@pytest.mark.parametrize("how", ["queue", "select", "key"])
async def test_a_fixed_queue_is_tried_once_where_the_broker_was_reached(two_brokers: FakeCluster, how: str) -> None:
    ways: dict[str, dict[str, Any]] = {
        "queue": {"queue": two_brokers.queue("T", 1)},
        "select": {"select": lambda queues, _: queues[1]},
        "key": {},
    }
    fixed = ways[how]
    message = Message("T", b"x", sharding_key="k" if how == "key" else None)
    async with producer_of(two_brokers) as producer:
        two_brokers.refuse(SEND, ResponseCode.SYSTEM_BUSY, "busy", times=1)
        with pytest.raises(SystemBusyError):
            await producer.send(message, **fixed)
        two_brokers.cut(SEND, times=1)
        with pytest.raises(ConnectionLostError):
            await producer.send(message, **fixed)
    assert len(two_brokers.seen(SEND)) == 2


async def test_a_fixed_queue_is_tried_again_where_the_broker_was_never_reached(cluster: FakeCluster) -> None:
    await cluster.broker().stop()
    async with producer_of(cluster) as producer:
        with pytest.raises(ConnectError) as caught:
            await producer.send(Message("T", b"x"), queue=cluster.queue("T", 1))
        assert len(caught.value.__notes__) == 2
        sending = asyncio.create_task(producer.send(Message("T", b"x", sharding_key="k")))
        await asyncio.sleep(0)
        await cluster.broker().start()
        assert (await sending).ok


async def test_a_broker_that_moved_is_found_where_it_is_now(cluster: FakeCluster) -> None:
    async with producer_of(cluster, retries=4) as producer:
        await producer.send(Message("T", b"x"))
        await cluster.broker().stop()
        cluster.broker().address = "127.0.0.1:0"
        await cluster.broker().start()
        assert (await producer.send(Message("T", b"y"))).ok
    assert sorted(cluster.stored_bodies("T")) == [b"x", b"y"]


async def test_a_slow_or_failing_broker_is_avoided_for_a_while(two_brokers: FakeCluster) -> None:
    clock = ManualClock()
    async with producer_of(two_brokers, clock=clock) as producer:
        two_brokers.refuse(SEND, ResponseCode.SYSTEM_BUSY, "busy", broker="broker-a", times=1)
        while not producer._delivery.avoided():
            await producer.send(Message("T", b"x"))
        assert {(await producer.send(Message("T", b"x"))).queue.broker_name for _ in range(8)} == {"broker-b"}
        clock.advance(9.9)
        assert {(await producer.send(Message("T", b"x"))).queue.broker_name for _ in range(8)} == {"broker-b"}
        clock.advance(0.2)
        assert {(await producer.send(Message("T", b"x"))).queue.broker_name for _ in range(8)} == {
            "broker-a",
            "broker-b",
        }

        async def slow(command: Command, peer: Any) -> Any:
            clock.advance(0.6)
            return await two_brokers.answer(command, peer)

        two_brokers.on(SEND, slow, broker="broker-b", times=1)
        while not producer._delivery.avoided():
            await producer.send(Message("T", b"x"))
        assert producer._delivery.avoided() == {"broker-b"}
        clock.advance(2.1)
        assert producer._delivery.avoided() == set()


async def test_avoid_slow_can_be_turned_off(two_brokers: FakeCluster) -> None:
    async with producer_of(two_brokers, avoid_slow=False) as producer:
        two_brokers.refuse(SEND, ResponseCode.SYSTEM_BUSY, "busy", times=1)
        await producer.send(Message("T", b"x"))
        assert {(await producer.send(Message("T", b"x"))).queue.broker_name for _ in range(4)} == {
            "broker-a",
            "broker-b",
        }


# -------------------------------------------------------------------------------------------------------- back-pressure


async def test_sends_under_way_are_bounded_by_count(cluster: FakeCluster) -> None:
    answer = asyncio.Event()
    cluster.delay(SEND, answer)
    async with producer_of(cluster, in_flight_max=5) as producer:
        sends = [asyncio.create_task(producer.send(Message("T", b"x"))) for _ in range(12)]
        await cluster.until_seen(SEND, 5)
        await producer.session.routes.refresh("T")  # a whole round trip in which no sixth one may come
        assert len(cluster.seen(SEND)) == 5
        sends[2].cancel()  # one under way, and one that waits
        sends[9].cancel()
        answer.set()
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert [number for number, each in enumerate(outcomes) if isinstance(each, BaseException)] == [2, 9]
        assert (producer._in_flight.count, producer._in_flight.bytes) == (0, 0)
        assert all(not channel._conversation.calls for channel in producer.session.connections.open)


async def test_sends_under_way_are_bounded_by_bytes(cluster: FakeCluster) -> None:
    answer = asyncio.Event()
    cluster.delay(SEND, answer)
    async with producer_of(cluster, in_flight_bytes_max=2500) as producer:
        sends = [asyncio.create_task(producer.send(Message("T", b"x" * 1000))) for _ in range(6)]
        await cluster.until_seen(SEND, 2)
        await producer.session.routes.refresh("T")
        assert len(cluster.seen(SEND)) == 2
        answer.set()
        assert all(result.ok for result in await asyncio.gather(*sends))


async def test_many_tasks_send_at_once(two_brokers: FakeCluster) -> None:
    async with producer_of(two_brokers, in_flight_max=50) as producer:
        results = await asyncio.gather(*(producer.send(Message("T", b"%d" % number)) for number in range(1000)))
    assert sorted(two_brokers.stored_bodies("T"), key=int) == [b"%d" % number for number in range(1000)]
    for number, result in enumerate(results):
        assert two_brokers.stored(result.queue)[result.queue_offset].body == b"%d" % number


# ------------------------------------------------------------------------------------------------------- life and death


async def test_a_producer_is_of_use_between_start_and_stop(cluster: FakeCluster) -> None:
    producer = producer_of(cluster)
    message = Message("T", b"x")
    for _ in range(2):
        for attempt in (
            producer.send(message),
            producer.send_oneway(message),
            producer.send_batch([message]),
            producer.request(message),
            producer.recall("T", "x"),
            producer.queues("T"),
        ):
            with pytest.raises(NotRunningError, match=r"producer g is not running: use `async with`, or call `start`"):
                await attempt
        assert repr(producer) == "<Producer g stopped>"
        await producer.start()
        await producer.start()
        assert repr(producer) == "<Producer g running>"
        assert (await producer.send(message)).ok
        await producer.stop()
        await producer.stop()
    assert len(cluster.seen(RequestCode.UNREGISTER_CLIENT)) == 2


async def test_a_shared_session_outlives_its_producers(cluster: FakeCluster) -> None:
    async with Session(cluster.address) as session:
        async with Producer("g1", session=session) as first, Producer("g2", session=session) as second:
            await first.send(Message("T", b"x"))
            await second.send(Message("T", b"x"))
            assert len(cluster.broker().peers) == 1
        assert session.is_running
        assert {command.fields["producerGroup"] for command in cluster.seen(RequestCode.UNREGISTER_CLIENT)} == {
            "g1",
            "g2",
        }
        assert session.requests.handlers[RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT] == []


async def test_a_session_has_one_producer_of_a_group(cluster: FakeCluster) -> None:
    async with Session(cluster.address) as session:
        second = Producer("g", session=session, trace=True)
        async with Producer("g", session=session, trace=True) as first:
            members = list(session.heartbeats.sources)
            with pytest.raises(ClientError, match="already has a producer of group g: use another group"):
                await second.start()
            assert session.heartbeats.sources == members
            with pytest.raises(NotRunningError):
                await second.send(Message("T", b"x"))
            await first.send(Message("T", b"x"))
        async with second:
            await second.send(Message("T", b"x"))


async def test_a_producer_of_a_stopped_session_raises(cluster: FakeCluster) -> None:
    session = Session(cluster.address)
    async with Producer("g", session=session) as producer:
        with pytest.raises(NotRunningError):
            await producer.send(Message("T", b"x"))


async def test_a_stop_ends_the_sends_that_are_under_way(cluster: FakeCluster) -> None:
    cluster.hang(SEND)
    producer = producer_of(cluster, in_flight_max=2)
    await producer.start()
    sends = [asyncio.create_task(producer.send(Message("T", b"x"))) for _ in range(4)]
    await cluster.until_seen(SEND, 2)
    await producer.stop()
    outcomes = await asyncio.wait_for(asyncio.gather(*sends, return_exceptions=True), WAIT_S)
    assert all(isinstance(outcome, RemotingError | NotRunningError) for outcome in outcomes)
    assert producer._in_flight.count == 0


async def test_stop_before_the_first_response_of_a_name_server(cluster: FakeCluster) -> None:
    cluster.hang(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    producer = producer_of(cluster)
    await producer.start()
    sending = asyncio.create_task(producer.send(Message("T", b"x")))
    await cluster.until_seen(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    await producer.stop()
    with pytest.raises(NotRunningError):
        await sending


async def test_a_stop_that_is_cancelled_stops_the_session_all_the_same(cluster: FakeCluster) -> None:
    cluster.hang(RequestCode.UNREGISTER_CLIENT)
    producer = producer_of(cluster)
    await producer.start()
    await producer.send(Message("T", b"x"))
    stopping = asyncio.create_task(producer.stop())
    await cluster.until_seen(RequestCode.UNREGISTER_CLIENT)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert not producer.session.is_running
    assert producer.session._tasks == set()


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize("group", ["", " ", "a b", "a.b", "字", "x" * 121, "DEFAULT_PRODUCER", "a\n"])
def test_a_group_that_cannot_have_this_name(group: str) -> None:
    with pytest.raises(InvalidNameError):
        Producer(group, "127.0.0.1:1")


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "OFFSET_MOVED_EVENT"])
async def test_topics_that_only_brokers_write_to(cluster: FakeCluster, producer: Producer, topic: str) -> None:
    message = Message(topic, b"x")
    for attempt in (producer.send(message), producer.send_oneway(message), producer.send_batch([message] * 2)):
        with pytest.raises(InvalidNameError, match="is forbidden"):
            await attempt
    assert cluster.seen(RequestCode.GET_ROUTEINFO_BY_TOPIC) == []


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Message("T", b""), InvalidMessageError),
        (Message("T", bytes(1001)), MessageTooLargeError),
        (Message("T", b"x", properties={"p": "v" * 33_000}), MessageTooLargeError),
        (Message("T", b"x", tag="\ud800"), PropertyError),
    ],
)
async def test_a_message_that_brokers_refuse_is_not_sent(
    cluster: FakeCluster, message: Message, error: type[Exception]
) -> None:
    async with producer_of(cluster, body_bytes_max=1000) as producer:
        for attempt in (
            producer.send(message),
            producer.send_oneway(message),
            producer.send_batch([message, Message("T", b"good")]),
            producer.request(message),
        ):
            with pytest.raises(error):
                await attempt
        assert producer._in_flight.count == 0
        assert producer._replies._awaited == {}
    assert cluster.seen(SEND) == cluster.seen(BATCH) == []


async def test_time_that_is_over_before_it_begins(cluster: FakeCluster, producer: Producer) -> None:
    await producer.queues("T")
    with pytest.raises(CallTimeoutError):
        await producer.send(Message("T", b"x"), timeout_s=0)
    assert cluster.seen(SEND) == []


async def test_the_log_has_no_bodies(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    cluster.refuse(SEND, ResponseCode.SYSTEM_BUSY, "busy")
    async with producer_of(cluster, retries=1) as producer:
        with pytest.raises(SystemBusyError):
            await producer.send(Message("T", b"a secret body"))
    assert "secret body" not in caplog.text
