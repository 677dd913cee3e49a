"""The simple consumer, and brokers that break the rules of POP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from skyroute import SimpleConsumer, StoredMessage
from skyroute.client.consuming import pop_handlers, simple_consumer
from skyroute.errors import SkyrouteError
from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.pop_receipts import decode_receipt
from skyroute.wire.codes import RequestCode
from tests.support.connections import WAIT_S
from tests.support.fake_broker import FakeCluster, Reply, encode_record, fake_cluster

pytestmark = pytest.mark.usefixtures("nothing_lost")

POP, ACK, CHANGE = RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME
NONE_LEFT = Reply(210)
POPPED_AT_MS = 1_794_824_709_000


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(topics={"T": 1}) as cluster:
        cluster.on(ACK, lambda *_: Reply())
        cluster.on(CHANGE, lambda *_: Reply(0, visibility(POPPED_AT_MS + 1)))
        yield cluster


def visibility(popped_at_ms: int = POPPED_AT_MS) -> dict[str, str]:
    return {"popTime": str(popped_at_ms), "invisibleTime": "60000", "reviveQid": "3"}


def record(offset: int, properties: Mapping[str, str] | None = None, body: bytes = b"x") -> bytes:
    queue = QueueRef("T", "broker-a", 0)
    return encode_record(queue, offset, offset * 1000, body, properties or {}, port=1, stored_at_ms=POPPED_AT_MS)


def popped(*offsets: int, properties: Mapping[str, str] | None = None, **changes: str) -> Reply:
    places = {"startOffsetInfo": f"0 0 {offsets[0]}", "msgOffsetInfo": f"0 0 {','.join(map(str, offsets))}"}
    body = b"".join(record(offset, properties, b"%d" % offset) for offset in offsets)
    return Reply(0, visibility() | {"restNum": "0"} | places | changes, body)


def answer(cluster: FakeCluster, *replies: Reply, broker: str | None = None) -> None:
    """Answer pops with these, and then find nothing, after the long poll."""

    async def nothing(*_: object) -> Reply:
        await asyncio.sleep(WAIT_S)
        return NONE_LEFT

    cluster.on(POP, nothing, broker=broker)
    for reply in reversed(replies):
        cluster.on(POP, lambda *_, reply=reply: reply, broker=broker, times=1)


def consumer_of(cluster: FakeCluster, **arguments: Any) -> SimpleConsumer:
    consumer = SimpleConsumer("g", cluster.address, **arguments)
    consumer.subscribe("T")
    return consumer


LIES = {
    "a message without a receipt": Reply(0, visibility() | {"restNum": "0"}, record(0)),
    "the receipt of another message": popped(0, msgOffsetInfo="0 0 1"),
    "a queue without a start": popped(0, startOffsetInfo="0 1 0"),
    "a negative offset": popped(0, msgOffsetInfo="0 0 -1"),
    "an offset that is no number": popped(0, msgOffsetInfo="0 0 one"),
    "an offset of 40 digits": popped(0, msgOffsetInfo="0 0 " + "9" * 40),
    "no offsets": popped(0, msgOffsetInfo="0 0 "),
    "a million offsets": popped(0, msgOffsetInfo="0 0 " + ",".join(map(str, range(1_000_000)))),
    "a million queues": popped(0, startOffsetInfo=";".join(f"0 {queue} 0" for queue in range(1_000_000))),
    "a flag that does not exist": popped(0, startOffsetInfo="7 0 0", msgOffsetInfo="7 0 0"),
    "a count that is no number": popped(0, orderCountInfo="0 qo0%0 x"),
    "a time before 1970": popped(0, popTime="-1"),
    "a time after all times": popped(0, popTime=str((1 << 63) - 1)),
    "no time": popped(0, popTime=""),
    "a negative invisible time": popped(0, invisibleTime="-1"),
    "more messages than were asked for": popped(*range(17)),
    "a cut record": Reply(0, popped(0).fields, popped(0).body[:-1]),
    "a body of zeros": Reply(0, popped(0).fields, bytes(1_000)),
    "a code that does not exist": Reply(-7),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
async def test_a_lying_response_raises_and_the_next_one_is_used(cluster: FakeCluster, lie: Reply) -> None:
    answer(cluster, lie, popped(5))
    async with consumer_of(cluster) as consumer:
        with pytest.raises(SkyrouteError):
            await consumer.receive(16, wait_s=WAIT_S)
        (message,) = await consumer.receive(16, wait_s=WAIT_S)
        assert message.queue_offset == 5


@pytest.mark.parametrize("forged", ["", "garbage", f"0 {POPPED_AT_MS} 60000 3 0 broker-b 0 77"])
async def test_a_receipt_that_the_sender_of_a_message_has_set_is_not_used(cluster: FakeCluster, forged: str) -> None:
    answer(cluster, popped(5, properties={"POP_CK": forged}))
    async with consumer_of(cluster) as consumer:
        await consumer.ack(*await consumer.receive(wait_s=WAIT_S))
    (ack,) = cluster.seen(ACK)
    assert ack.fields["offset"] == "5"
    assert decode_receipt(ack.fields["extraInfo"]).broker_name == "broker-a"


@pytest.mark.parametrize("changes", [{"popTime": "-1"}, {"invisibleTime": str(1 << 62), "popTime": str(1 << 62)}, {}])
async def test_a_lying_response_to_a_change_raises(cluster: FakeCluster, changes: dict[str, str]) -> None:
    answer(cluster, popped(5))
    cluster.on(CHANGE, lambda *_: Reply(0, visibility() | changes if changes else {}))
    async with consumer_of(cluster) as consumer:
        (message,) = await consumer.receive(wait_s=WAIT_S)
        with pytest.raises(SkyrouteError):
            await consumer.change_invisible_time(message, 10)


@pytest.mark.parametrize("brokers", [1, 2])
async def test_a_broker_that_holds_no_long_poll_causes_no_busy_loop(
    monkeypatch: pytest.MonkeyPatch, brokers: int
) -> None:
    monkeypatch.setattr(simple_consumer, "EMPTY_RECEIVE_S", 0.1)
    names = ("broker-a", "broker-b")[:brokers]
    async with fake_cluster(topics={"T": 1}, brokers=names) as cluster:
        cluster.on(POP, lambda *_: Reply(209))  # too many requests wait
        cluster.on(RequestCode.NOTIFICATION, lambda *_: Reply(0, {"hasMsg": "true"}))
        async with consumer_of(cluster) as consumer:
            assert await consumer.receive(wait_s=0.5) == []
        assert len(cluster.seen(POP)) <= 7 * brokers


async def test_a_broker_that_fails_does_not_hold_up_the_others() -> None:
    async with fake_cluster(topics={"T": 1}, brokers=("broker-a", "broker-b")) as cluster:
        cluster.refuse(POP, 14, "disk full", broker="broker-a")
        cluster.refuse(RequestCode.NOTIFICATION, 14, "disk full", broker="broker-a")
        cluster.on(RequestCode.NOTIFICATION, lambda *_: Reply(0, {"hasMsg": "true"}), broker="broker-b")
        async with consumer_of(cluster) as consumer:
            for offset in range(4):
                cluster.on(POP, lambda *_: NONE_LEFT, broker="broker-b", times=1)
                found = popped(offset)
                cluster.on(POP, lambda *_, found=found: found, broker="broker-b", times=1)
                (message,) = await consumer.receive(wait_s=WAIT_S)
                assert message.queue_offset == offset
            cluster.refuse(POP, 14, "disk full", broker="broker-b")
            with pytest.raises(SkyrouteError, match="disk full"):
                await consumer.receive(wait_s=WAIT_S)


async def test_queues_of_other_topics_and_unknown_brokers_are_not_taken_as_assigned(cluster: FakeCluster) -> None:
    entries = ",".join(
        f'{{"messageQueue":{{"brokerName":"{broker}","queueId":{queue},"topic":"{topic}"}},"mode":"POP"}}'
        for topic, broker, queue in (("U", "broker-a", 0), ("T", "elsewhere", 0), ("T", "broker-a", 3))
    )
    body = f'{{"messageQueueAssignments":[{entries}]}}'.encode()
    cluster.on(RequestCode.QUERY_ASSIGNMENT, lambda *_: Reply(0, {}, body))
    answer(cluster, popped(5))
    async with consumer_of(cluster, assigned=True) as consumer:
        assert len(await consumer.receive(wait_s=WAIT_S)) == 1
    assert [(pop.fields["topic"], pop.fields["queueId"]) for pop in cluster.seen(POP)] == [("T", "3")]


async def test_an_unwanted_message_that_cannot_be_acknowledged_does_not_hold_up_the_others(
    cluster: FakeCluster,
) -> None:
    wanted, other = record(1, {"TAGS": "paid"}), record(0, {"TAGS": "other"})
    answer(cluster, Reply(0, popped(0, 1).fields, other + wanted))
    cluster.refuse(ACK, 1, "no")
    async with consumer_of(cluster) as consumer:
        consumer.subscribe("T", "paid")
        assert [message.queue_offset for message in await consumer.receive(wait_s=WAIT_S)] == [1]


async def test_unsubscribing_ends_a_waiting_receive(cluster: FakeCluster) -> None:
    cluster.on(POP, lambda *_: NONE_LEFT)
    async with consumer_of(cluster) as consumer:
        waiting = asyncio.create_task(consumer.receive(wait_s=WAIT_S))
        await cluster.until_seen(POP)
        consumer.unsubscribe("T")
        with pytest.raises(SkyrouteError, match="nothing is subscribed"):
            await waiting


# ---------------------------------------------------------------------------------------------------------- handlers


async def test_an_acknowledgement_waits_for_a_running_renewal_and_uses_its_receipt(cluster: FakeCluster) -> None:
    answer(cluster, popped(5))
    may_renew, handled = asyncio.Event(), asyncio.Event()

    async def renew(*_: object) -> Reply:
        await may_renew.wait()
        return Reply(0, visibility(POPPED_AT_MS + 7))

    async def handle(_message: StoredMessage) -> None:
        await cluster.until_seen(CHANGE)
        handled.set()

    cluster.on(CHANGE, renew, times=1)
    async with consumer_of(cluster) as consumer:
        running = asyncio.create_task(consumer.run(handle, invisible_s=0.2))
        await handled.wait()
        may_renew.set()
        (ack,) = await cluster.until_seen(ACK)
        await consumer.stop()
        await running
    assert decode_receipt(ack.fields["extraInfo"]).popped_at_ms > POPPED_AT_MS


async def test_messages_that_wait_for_a_handler_stay_invisible(cluster: FakeCluster) -> None:
    answer(cluster, popped(0), popped(1))
    may_end = asyncio.Event()

    async def handle(_message: StoredMessage) -> None:
        await may_end.wait()

    async with consumer_of(cluster) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=2, invisible_s=0.2))
        await cluster.until(lambda: {call.fields["offset"] for call in cluster.seen(CHANGE)} == {"0", "1"})
        may_end.set()
        await cluster.until_seen(ACK, 2)
        await consumer.stop()
        await running


async def test_stop_waits_for_handlers_and_acknowledges(cluster: FakeCluster) -> None:
    answer(cluster, popped(5))
    called, may_end = asyncio.Event(), asyncio.Event()

    async def handle(_message: StoredMessage) -> None:
        called.set()
        await may_end.wait()

    consumer = consumer_of(cluster)
    await consumer.start()
    running = asyncio.create_task(consumer.run(handle))
    await called.wait()
    stopping = asyncio.create_task(consumer.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    may_end.set()
    await stopping
    await running
    assert len(cluster.seen(ACK)) == 1


async def test_stop_cancels_handlers_that_take_too_long(cluster: FakeCluster) -> None:
    answer(cluster, popped(5))
    called = asyncio.Event()

    async def handle(_message: StoredMessage) -> None:
        called.set()
        await asyncio.Event().wait()

    consumer = consumer_of(cluster)
    await consumer.start()
    running = asyncio.create_task(consumer.run(handle))
    await called.wait()
    await consumer.stop(timeout_s=0)
    await asyncio.gather(running, return_exceptions=True)
    assert cluster.seen(ACK) == []


async def test_a_handler_may_stop_the_consumer(cluster: FakeCluster) -> None:
    answer(cluster, popped(5))
    consumer = consumer_of(cluster)

    async def handle(_message: StoredMessage) -> None:
        await consumer.stop()

    await consumer.start()
    async with asyncio.timeout(WAIT_S):
        await consumer.run(handle)
    assert len(cluster.seen(ACK)) == 1


async def test_as_many_plain_functions_run_at_once_as_were_asked_for(cluster: FakeCluster) -> None:
    count = 32  # more than the default threads of asyncio on most machines
    answer(cluster, popped(*range(count)))
    together = threading.Barrier(count, timeout=WAIT_S)

    def handle(_message: StoredMessage) -> None:
        together.wait()

    async with consumer_of(cluster) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=count))
        await cluster.until_seen(ACK, count)
        await consumer.stop()
        await running


async def test_run_goes_on_after_any_failure(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_handlers, "FAILED_RECEIVE_S", 0.01)
    answer(cluster, *LIES.values(), popped(5))
    async with consumer_of(cluster) as consumer:
        running = asyncio.create_task(consumer.run(lambda _message: None))
        await cluster.until_seen(ACK)
        await consumer.stop()
        await running


async def test_a_cancelled_stop_closes_the_connections(cluster: FakeCluster) -> None:
    answer(cluster, popped(0))
    consumer = consumer_of(cluster)
    await consumer.start()
    await consumer.receive()
    cluster.hang(RequestCode.UNREGISTER_CLIENT)
    stopping = asyncio.create_task(consumer.stop())
    await cluster.until_seen(RequestCode.UNREGISTER_CLIENT)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert not consumer.session.is_running
