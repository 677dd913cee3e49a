"""The push consumer and faults: brokers that refuse, hang or disconnect, and handlers that do not return."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from skyroute.client.consuming.push.pull_loop import DAMAGED_READS
from skyroute.message.message import StoredMessage
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.network.client.consumers import Inbox, consumer_of
from tests.support.clock import ManualClock
from tests.support.fake_broker import FakeCluster, Peer, Reply, encode_batch, fake_cluster
from tests.support.raw import Command
from tests.support.waiting import eventually

RETRY = "%RETRY%g"


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(topics={"T": 1}) as cluster:
        yield cluster


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """What a plain handler waits for that does not return while the test lasts."""
    event = threading.Event()
    yield event
    event.set()


def committed(cluster: FakeCluster) -> int | None:
    return cluster.offsets.get(("g", cluster.queue("T")))


def pulls(cluster: FakeCluster) -> list[Command]:
    return [each for each in cluster.seen(RequestCode.PULL_MESSAGE) if each.fields["topic"] == "T"]


# ------------------------------------------------------------------------------------------------------------ brokers


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.FLOW_CONTROL,
    ],
)
async def test_a_pull_that_is_refused_is_tried_again(cluster: FakeCluster, code: int) -> None:
    cluster.put(cluster.queue("T"), b"one")
    cluster.refuse(RequestCode.PULL_MESSAGE, code, "no", times=3)
    inbox = Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        assert await inbox.until(1) == [b"one"]


@pytest.mark.parametrize(
    ("code", "phrase"),
    [
        (RequestCode.PULL_MESSAGE, "pull failed queue=T"),
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, "share not known group=g topic=T"),
    ],
)
async def test_repeated_failures_are_logged_less_and_less_often(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, code: int, phrase: str
) -> None:
    def lines() -> list[str]:
        return [line for line in caplog.messages if line.startswith(phrase)]

    clock = ManualClock()
    cluster.refuse(code, ResponseCode.SYSTEM_ERROR, "no")
    consumer = consumer_of(cluster, clock=clock)
    consumer.subscribe("T", handler=Inbox())
    async with consumer:
        await cluster.until_seen(code, 40)
        assert [line.rpartition(" ")[2] for line in lines()] == ["suppressed=0"]
        clock.advance(10.0)
        await eventually(lambda: len(lines()) == 2)
        await cluster.until_seen(code, len(cluster.seen(code)) + 40)
        assert len(lines()) == 2
        cluster.heal(code)
        await eventually(lambda: len(consumer.assignment) == 1)
        cluster.put(cluster.queue("T"), b"one")


async def test_a_broker_without_our_subscription_gets_a_heartbeat_at_once(cluster: FakeCluster) -> None:
    inbox = Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        await cluster.until_seen(RequestCode.PULL_MESSAGE, 2)
        cluster.subscriptions.clear()
        cluster.put(cluster.queue("T"), b"one")  # answers the pull that waits; the next one is refused with 24
        await inbox.until(1)
        cluster.put(cluster.queue("T"), b"two")
        assert await inbox.until(2) == [b"one", b"two"]


async def test_a_pull_is_repeated_after_a_connection_cut_in_a_response(cluster: FakeCluster) -> None:
    for number in range(3):
        cluster.put(cluster.queue("T"), b"%d" % number)
    cluster.cut(RequestCode.PULL_MESSAGE, times=2)
    inbox = Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        assert await inbox.until(3) == [b"0", b"1", b"2"]


async def test_a_broker_that_is_restarted(cluster: FakeCluster) -> None:
    inbox = Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        cluster.put(cluster.queue("T"), b"before")
        await inbox.until(1)
        await cluster.until(lambda: pulls(cluster)[-1].fields["queueOffset"] == "1")
        await cluster.broker().stop()
        cluster.put(cluster.queue("T"), b"after")
        await cluster.broker().start()
        assert await inbox.until(2) == [b"before", b"after"]
    assert committed(cluster) == 2


async def test_stop_works_without_a_broker(cluster: FakeCluster) -> None:
    consumer = consumer_of(cluster, connect_timeout_s=0.2, request_timeout_s=0.2)
    consumer.subscribe("T", handler=Inbox())
    await consumer.start()
    await cluster.broker().stop()
    async with asyncio.timeout(5):
        await consumer.stop()
    assert not consumer.session.is_running


async def test_start_and_stop_work_with_a_hanging_broker(cluster: FakeCluster) -> None:
    for code in (
        RequestCode.PULL_MESSAGE,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    ):
        cluster.hang(code, broker="broker-a")
    consumer = consumer_of(cluster, request_timeout_s=0.05)
    consumer.subscribe("T", handler=Inbox())
    async with asyncio.timeout(5):
        await consumer.start()
        await consumer.stop()
    assert not consumer.session.is_running


async def test_after_an_illegal_offset_the_broker_s_next_offset_is_used(cluster: FakeCluster) -> None:
    for number in range(5):
        cluster.put(cluster.queue("T"), b"%d" % number)
    cluster.drop_before(cluster.queue("T"), 3)
    inbox = Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        assert await inbox.until(2) == [b"3", b"4"]
    assert committed(cluster) == 5


async def test_a_reset_at_the_broker_leads_back(cluster: FakeCluster) -> None:
    inbox = Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=inbox)
    for number in range(3):
        cluster.put(cluster.queue("T"), b"%d" % number)
    async with consumer:
        await inbox.until(3)
        await cluster.until(lambda: int(pulls(cluster)[-1].fields["queueOffset"]) == 3)
        places = {"suggestWhichBrokerId": "0", "nextBeginOffset": "1", "minOffset": "0", "maxOffset": "4"}
        cluster.put(cluster.queue("T"), b"3")
        cluster.on(
            RequestCode.PULL_MESSAGE, lambda _command, _peer: Reply(ResponseCode.PULL_OFFSET_MOVED, places), times=1
        )
        assert (await inbox.until(7))[4:] == [b"1", b"2", b"3"]


async def test_the_suggested_broker_is_followed(cluster: FakeCluster) -> None:
    inbox = Inbox()

    async def suggest(command: Command, peer: Peer) -> Reply | None:
        reply = await cluster.answer(command, peer)
        assert reply is not None
        return Reply(reply.code, {**reply.fields, "suggestWhichBrokerId": "1"}, reply.body)

    cluster.on(RequestCode.PULL_MESSAGE, suggest, times=1)
    cluster.put(cluster.queue("T"), b"one")
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        # There is no broker of that id, so the master is asked all the same.
        cluster.put(cluster.queue("T"), b"two")
        assert await inbox.until(2) == [b"one", b"two"]


async def test_an_invalid_pull_response_is_pulled_again(cluster: FakeCluster) -> None:
    cluster.put(cluster.queue("T"), b"one")
    places = {"suggestWhichBrokerId": "0", "nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1"}
    cluster.on(
        RequestCode.PULL_MESSAGE, lambda _command, _peer: Reply(ResponseCode.SUCCESS, places, b"no records"), times=2
    )
    cluster.on(RequestCode.PULL_MESSAGE, lambda _command, _peer: Reply(ResponseCode.SUCCESS, {}, b""), times=2)
    inbox = Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        assert await inbox.until(1) == [b"one"]


async def test_a_record_that_stays_damaged_is_passed_over(cluster: FakeCluster) -> None:
    for body in (b"damaged", b"two"):
        cluster.put(cluster.queue("T"), body)
    places = {"suggestWhichBrokerId": "0", "nextBeginOffset": "2", "minOffset": "0", "maxOffset": "2"}

    async def damaged_at_first(command: Command, peer: Peer) -> Reply | None:
        is_first = command.fields["queueOffset"] == "0" and command.fields["topic"] == "T"
        return Reply(ResponseCode.SUCCESS, places, b"no records") if is_first else await cluster.answer(command, peer)

    cluster.on(RequestCode.PULL_MESSAGE, damaged_at_first)
    inbox = Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        assert await inbox.until(1) == [b"two"]
        assert len([pull for pull in pulls(cluster) if pull.fields["queueOffset"] == "0"]) == DAMAGED_READS + 1


@pytest.mark.parametrize("code", [ResponseCode.PULL_NOT_FOUND, ResponseCode.SUCCESS])
async def test_a_broker_that_does_not_hold_long_polls_causes_no_busy_loop(
    cluster: FakeCluster, code: ResponseCode
) -> None:
    places = {"suggestWhichBrokerId": "0", "nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}
    cluster.on(RequestCode.PULL_MESSAGE, lambda _command, _peer: Reply(code, places))
    clock = asyncio.get_running_loop().time
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=Inbox())
    async with consumer:
        started = clock()
        await cluster.until(lambda: len(pulls(cluster)) > 10)
        assert clock() - started > 0.08


async def test_a_batch_record_is_split(cluster: FakeCluster) -> None:
    body = encode_batch([(b"zero", {}), (b"one", {}), (b"two", {})])
    cluster.put(cluster.queue("T"), body, sys_flag=0xC0, span=3)
    cluster.put(cluster.queue("T"), b"three")
    cluster.offsets["g", cluster.queue("T")] = 1
    inbox = Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        assert await inbox.until(3) == [b"one", b"two", b"three"]
    assert committed(cluster) == 4


# ----------------------------------------------------------------------------------------------------------- handlers


@pytest.mark.parametrize(
    "settings",
    [{"queue_messages_max": 5}, {"queue_bytes_max": 700}, {"offset_span_max": 5}],
    ids=["messages", "bytes", "span"],
)
async def test_more_is_fetched_only_when_there_is_room(cluster: FakeCluster, settings: dict[str, int]) -> None:
    for number in range(40):
        cluster.put(cluster.queue("T"), b"%d" % number)
    go_on = asyncio.Event()
    inbox = Inbox()
    consumer = consumer_of(cluster, pull_batch=4, concurrency=1, **settings)

    @consumer.on("T")
    async def handle(message: StoredMessage) -> None:
        inbox.keep(message)
        await go_on.wait()

    async with consumer:
        await inbox.until(1)
        await cluster.until(lambda: len(pulls(cluster)) == 2)
        await consumer.session.heartbeats.send()  # on the same line, after whatever else there was to say
        assert len(pulls(cluster)) == 2
        go_on.set()
        await inbox.until(40)
    assert inbox.bodies == [b"%d" % number for number in range(40)]
    assert committed(cluster) == 40


async def test_a_stuck_message_holds_the_offset_back_and_not_the_others(cluster: FakeCluster) -> None:
    for number in range(5):
        cluster.put(cluster.queue("T"), b"%d" % number)
    go_on = asyncio.Event()
    inbox = Inbox()
    consumer = consumer_of(cluster)

    @consumer.on("T")
    async def handle(message: StoredMessage) -> None:
        inbox.keep(message)
        if message.body == b"1":
            await go_on.wait()

    await consumer.start()
    await inbox.until(5)
    await consumer.stop(timeout_s=0.01)
    assert committed(cluster) == 1


async def test_a_late_async_handler_is_cancelled_and_its_message_sent_back(cluster: FakeCluster) -> None:
    cluster.put(cluster.queue("T"), b"one")
    clock = ManualClock()
    inbox = Inbox()
    ended: list[str] = []
    consumer = consumer_of(cluster, clock=clock, consume_timeout_s=0.05, concurrency=1)

    @consumer.on("T")
    async def handle(message: StoredMessage) -> None:
        inbox.keep(message)
        if message.reconsume_times == 0:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("cancelled")

    async with consumer:
        await inbox.until(1)
        clock.advance(1)
        await inbox.until(2)
    assert ended == ["cancelled"]
    (back,) = cluster.seen(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert back.fields["delayLevel"] == "3"
    assert committed(cluster) == 1


async def test_the_message_of_a_late_thread_is_sent_back(cluster: FakeCluster, never: threading.Event) -> None:
    cluster.put(cluster.queue("T"), b"one")
    clock = ManualClock()
    inbox = Inbox()
    loop = asyncio.get_running_loop()
    consumer = consumer_of(cluster, clock=clock, consume_timeout_s=0.05)

    @consumer.on("T")
    def handle(message: StoredMessage) -> None:
        loop.call_soon_threadsafe(inbox.keep, message)
        if message.reconsume_times == 0:
            never.wait()

    await consumer.start()
    await inbox.until(1)
    clock.advance(1)
    await inbox.until(2)
    await cluster.until_seen(RequestCode.CONSUMER_SEND_MSG_BACK)
    async with asyncio.timeout(5):
        await consumer.stop(timeout_s=0.05)
    assert committed(cluster) == 1


async def test_the_message_of_a_late_loop_is_sent_back(cluster: FakeCluster) -> None:
    cluster.put(cluster.queue("T"), b"one")
    clock = ManualClock()
    consumer = consumer_of(cluster, clock=clock, consume_timeout_s=0.05)
    consumer.subscribe("T")
    async with consumer:
        loop = aiter(consumer)
        await anext(loop)
        clock.advance(1)
        await cluster.until_seen(RequestCode.CONSUMER_SEND_MSG_BACK)
        again = await anext(loop)
        assert (again.body, again.reconsume_times) == (b"one", 1)
    assert committed(cluster) == 1


async def test_a_late_ordered_handler_is_called_again(cluster: FakeCluster) -> None:
    cluster.put(cluster.queue("T"), b"one")
    cluster.put(cluster.queue("T"), b"two")
    clock = ManualClock()
    inbox = Inbox()
    consumer = consumer_of(cluster, ordered=True, clock=clock, consume_timeout_s=0.05)

    @consumer.on("T")
    async def handle(message: StoredMessage) -> None:
        inbox.keep(message)
        if len(inbox.messages) == 1:
            await asyncio.Event().wait()

    async with consumer:
        await inbox.until(1)
        clock.advance(1)
        assert await inbox.until(3) == [b"one", b"one", b"two"]
    assert cluster.seen(RequestCode.CONSUMER_SEND_MSG_BACK) == []


async def test_stop_ends_despite_blocked_handlers(cluster: FakeCluster, never: threading.Event) -> None:
    cluster.topics |= {"Plain": 1, "Stubborn": 1}
    for topic in ("T", "Plain", "Stubborn"):
        cluster.put(cluster.queue(topic), b"one")
    begun: set[str] = set()
    cancelled = asyncio.Event()
    may_end = asyncio.Event()
    consumer = consumer_of(cluster)

    @consumer.on("T")
    async def hang(message: StoredMessage) -> None:
        begun.add(message.topic)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    @consumer.on("Plain")
    def block(message: StoredMessage) -> None:
        begun.add(message.topic)
        never.wait()

    @consumer.on("Stubborn")
    async def ignore(message: StoredMessage) -> None:
        begun.add(message.topic)
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    await consumer.start()
    await eventually(lambda: len(begun) == 3)
    stopping = asyncio.create_task(consumer.stop(timeout_s=0.05))
    await cancelled.wait()
    asyncio.get_running_loop().call_later(1.5, may_end.set)
    async with asyncio.timeout(6):
        await stopping
    assert committed(cluster) in (None, 0)


async def test_a_cancelled_stop_leaves_no_task_behind(cluster: FakeCluster) -> None:
    cluster.put(cluster.queue("T"), b"one")
    inbox = Inbox()
    consumer = consumer_of(cluster)

    @consumer.on("T")
    async def handle(message: StoredMessage) -> None:
        inbox.keep(message)
        await asyncio.Event().wait()

    await consumer.start()
    await inbox.until(1)
    stopping = asyncio.create_task(consumer.stop(timeout_s=60))
    await eventually(lambda: consumer.assignment == frozenset())
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert not consumer.session.is_running
    await eventually(lambda: not [task for task in asyncio.all_tasks() if task.get_name().startswith("skyroute")])


async def test_a_handler_that_raises_cancelled_error_is_retried(cluster: FakeCluster) -> None:
    cluster.put(cluster.queue("T"), b"one")
    inbox = Inbox()
    consumer = consumer_of(cluster, concurrency=1)

    @consumer.on("T")
    async def handle(message: StoredMessage) -> None:
        inbox.keep(message)
        if message.reconsume_times == 0:
            raise asyncio.CancelledError

    async with consumer:
        await inbox.until(2)
        cluster.put(cluster.queue("T"), b"two")
        assert (await inbox.until(3))[2] == b"two"


async def test_a_timeout_inside_a_handler_is_not_a_consume_timeout(cluster: FakeCluster) -> None:
    cluster.put(cluster.queue("T"), b"one")
    inbox = Inbox()
    consumer = consumer_of(cluster, concurrency=1)

    @consumer.on("T")
    async def handle(message: StoredMessage) -> None:
        inbox.keep(message)
        if message.reconsume_times == 0:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()

    async with consumer:
        await inbox.until(2)
    assert committed(cluster) == 1


async def test_a_clock_that_jumps_does_no_harm(cluster: FakeCluster) -> None:
    clock = ManualClock()
    inbox = Inbox()
    consumer = consumer_of(cluster, clock=clock)
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        for number, step in enumerate((0.0, 1e6, 1e9)):
            clock.advance(step)
            cluster.put(cluster.queue("T"), b"%d" % number)
            await inbox.until(number + 1)
    assert committed(cluster) == 3
