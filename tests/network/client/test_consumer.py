"""The push consumer against a fake cluster on real sockets: handlers and their results."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skyroute.client.consuming.consumer import Consumer
from skyroute.client.consuming.offset_store import FileOffsets
from skyroute.client.consuming.pull_consumer import PullConsumer
from skyroute.client.consuming.push.handlers import BatchHandler, ConsumeResult, RetryLater
from skyroute.client.consuming.subscription import StartPosition, sql
from skyroute.client.errors import ClientError, ExpressionRefusedError, NoNameServerError, NotRunningError
from skyroute.client.producing.producer import Producer
from skyroute.client.session.session import Session
from skyroute.client.trace.records import ConsumeEnded, ConsumeStarted, TracedReturn, decode_trace
from skyroute.message.errors import InvalidNameError
from skyroute.message.message import StoredMessage
from skyroute.wire.calls.clients import MessageModel
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.network.client.consumers import Inbox, consumer_of
from tests.support.fake_broker import FakeCluster, fake_cluster

RETRY = "%RETRY%g"
DEAD = "%DLQ%g"


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(topics={"T": 2}) as cluster:
        yield cluster


def committed(cluster: FakeCluster, queue_id: int = 0, topic: str = "T") -> int | None:
    return cluster.offsets.get(("g", cluster.queue(topic, queue_id)))


# ---------------------------------------------------------------------------------------------------------- messages


async def test_a_handler_gets_existing_and_new_messages(cluster: FakeCluster) -> None:
    cluster.put(cluster.queue("T", 1), b"before", tag="A", keys="k")
    inbox = Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        await inbox.until(1)
        cluster.put(cluster.queue("T", 0), b"after")
        assert await inbox.until(2) == [b"before", b"after"]
    first = inbox.messages[0]
    assert (first.topic, first.tag, first.keys, first.queue) == ("T", "A", ("k",), cluster.queue("T", 1))
    assert (committed(cluster, 0), committed(cluster, 1)) == (1, 1)


async def test_last_means_from_the_return_of_start_on(cluster: FakeCluster) -> None:
    cluster.put(cluster.queue("T"), b"old")
    inbox = Inbox()
    consumer = consumer_of(cluster, start=StartPosition.LAST)
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        cluster.put(cluster.queue("T"), b"new")
        assert await inbox.until(1) == [b"new"]


async def test_a_member_continues_at_the_committed_offset(cluster: FakeCluster) -> None:
    for number in range(5):
        cluster.put(cluster.queue("T"), b"%d" % number)
    cluster.offsets["g", cluster.queue("T")] = 3
    inbox = Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        assert await inbox.until(2) == [b"3", b"4"]


async def test_only_subscribed_tags_are_handled_even_with_equal_hashes(cluster: FakeCluster) -> None:
    for number, tag in enumerate(("BB", "Aa", "C", None)):  # the first two have one hash
        cluster.put(cluster.queue("T"), b"%d" % number, tag=tag)
    inbox = Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("T", "Aa || D", inbox)
    async with consumer:
        await cluster.until(
            lambda: any(int(each.fields["queueOffset"]) == 4 for each in cluster.seen(RequestCode.PULL_MESSAGE))
        )
        assert await inbox.until(1) == [b"1"]
    assert committed(cluster) == 4


async def test_a_namespace_is_for_brokers_only() -> None:
    async with fake_cluster(topics={"ns%T": 1}) as cluster:
        cluster.put(cluster.queue("ns%T"), b"one")
        seen: list[tuple[str, int]] = []
        done = asyncio.Event()
        consumer = consumer_of(cluster, namespace="ns")

        @consumer.on("T")
        async def handle(message: StoredMessage) -> ConsumeResult:
            seen.append((message.topic, message.reconsume_times))
            if message.reconsume_times:
                done.set()
                return ConsumeResult.SUCCESS
            return ConsumeResult.RETRY

        async with consumer:
            await done.wait()
        assert seen == [("T", 0), ("T", 1)]
        (back,) = cluster.seen(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert (back.fields["group"], back.fields["originTopic"]) == ("ns%g", "ns%T")
        assert cluster.offsets["ns%g", cluster.queue("%RETRY%ns%g")] == 1


async def test_a_plain_function_runs_in_a_thread(cluster: FakeCluster) -> None:
    cluster.put(cluster.queue("T"), b"one")
    names: list[str] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    consumer = consumer_of(cluster)

    @consumer.on("T")
    def handle(_message: StoredMessage) -> None:
        names.append(threading.current_thread().name)
        loop.call_soon_threadsafe(done.set)

    async with consumer:
        await done.wait()
    assert names == ["consumer-g-1"]
    assert committed(cluster) == 1


async def test_a_batch_handler_gets_lists_of_one_queue(cluster: FakeCluster) -> None:
    for number in range(7):
        cluster.put(cluster.queue("T"), b"%d" % number)
    batches: list[list[bytes]] = []
    done = asyncio.Event()
    consumer = consumer_of(cluster, batch_size=3, concurrency=1)

    @consumer.on("T")
    async def handle(messages: list[StoredMessage]) -> None:
        batches.append([message.body for message in messages])
        if sum(map(len, batches)) == 7:
            done.set()

    async with consumer:
        await done.wait()
    assert batches == [[b"0", b"1", b"2"], [b"3", b"4", b"5"], [b"6"]]


async def test_handlers_run_concurrently_up_to_the_limit(cluster: FakeCluster) -> None:
    for number in range(6):
        cluster.put(cluster.queue("T", number % 2), b"%d" % number)
    running, most = 0, 0
    go_on = asyncio.Event()
    inbox = Inbox()
    consumer = consumer_of(cluster, concurrency=3)

    @consumer.on("T")
    async def handle(message: StoredMessage) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        inbox.keep(message)
        await go_on.wait()
        running -= 1

    async with consumer:
        await inbox.until(3)
        assert running == 3
        go_on.set()
        await inbox.until(6)
    assert most == 3


async def test_subscribing_and_unsubscribing_while_it_runs(cluster: FakeCluster) -> None:
    cluster.topics["U"] = 1
    cluster.put(cluster.queue("U"), b"u")
    first, second = Inbox(), Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=first)
    async with consumer:
        assert {queue.topic for queue in consumer.assignment} == {"T"}
        consumer.subscribe("U", handler=second)
        assert await second.until(1) == [b"u"]
        consumer.unsubscribe("T")
        assert {queue.topic for queue in consumer.assignment} == {"U"}
        await cluster.until(lambda: ("broker-a", "g", "T") not in cluster.subscriptions)


async def test_waiting_messages_of_an_unsubscribed_topic_are_not_sent_back(cluster: FakeCluster) -> None:
    for number in range(5):
        cluster.put(cluster.queue("T"), b"%d" % number)
    go_on = asyncio.Event()
    inbox = Inbox()
    consumer = consumer_of(cluster, concurrency=1)

    @consumer.on("T")
    async def handle(message: StoredMessage) -> None:
        inbox.keep(message)
        await go_on.wait()

    async with consumer:
        await inbox.until(1)
        consumer.unsubscribe("T")
        go_on.set()
        await cluster.until(lambda: committed(cluster) == 1)
    assert inbox.bodies == [b"0"]
    assert cluster.seen(RequestCode.CONSUMER_SEND_MSG_BACK) == []


async def test_pausing_fetches_nothing_more(cluster: FakeCluster) -> None:
    inbox = Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=inbox)
    consumer.pause()
    async with consumer:
        cluster.put(cluster.queue("T"), b"one")
        await cluster.until_seen(RequestCode.HEART_BEAT)
        assert cluster.seen(RequestCode.PULL_MESSAGE) == []
        consumer.resume()
        assert await inbox.until(1) == [b"one"]


# ---------------------------------------------------------------------------------------------------------- failures


async def test_a_handler_that_raises_gets_the_message_again(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.put(cluster.queue("T"), b"one", tag="A")
    inbox = Inbox()
    consumer = consumer_of(cluster)

    @consumer.on("T", "A")
    async def handle(message: StoredMessage) -> None:
        inbox.keep(message)
        if message.reconsume_times == 0:
            raise ValueError("not today")

    async with consumer:
        await inbox.until(2)
    again = inbox.messages[1]
    assert (again.body, again.topic, again.reconsume_times) == (b"one", "T", 1)
    assert (committed(cluster), committed(cluster, topic=RETRY)) == (1, 1)
    lines = [record for record in caplog.records if record.message.startswith("handler failed")]
    assert len(lines) == 1
    assert lines[0].exc_info is not None
    (back,) = cluster.seen(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert (back.fields["delayLevel"], back.fields["maxReconsumeTimes"]) == ("0", "16")


@pytest.mark.parametrize(("wish", "level"), [(RetryLater(5), "5"), (RetryLater(), "0"), (RetryLater(2), "2")])
async def test_a_handler_may_choose_the_retry_delay(cluster: FakeCluster, wish: RetryLater, level: str) -> None:
    cluster.put(cluster.queue("T"), b"one")
    inbox = Inbox()
    consumer = consumer_of(cluster)

    @consumer.on("T")
    async def handle(message: StoredMessage) -> None:
        inbox.keep(message)
        if message.reconsume_times == 0:
            raise wish

    async with consumer:
        await inbox.until(2)
    (back,) = cluster.seen(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert back.fields["delayLevel"] == level


async def test_a_handler_may_make_a_dead_letter_at_once(cluster: FakeCluster) -> None:
    cluster.put(cluster.queue("T"), b"one")
    consumer = consumer_of(cluster)

    @consumer.on("T")
    async def handle(_message: StoredMessage) -> None:
        raise RetryLater(-1)

    async with consumer:
        await cluster.until(lambda: cluster.stored_bodies(DEAD) == [b"one"])
    assert cluster.stored_bodies(RETRY) == []


async def test_after_so_many_tries_it_is_a_dead_letter(cluster: FakeCluster) -> None:
    cluster.put(cluster.queue("T"), b"one")
    inbox = Inbox()
    consumer = consumer_of(cluster, reconsume_times_max=2)

    @consumer.on("T")
    async def handle(message: StoredMessage) -> ConsumeResult:
        inbox.keep(message)
        return ConsumeResult.RETRY

    async with consumer:
        await cluster.until(lambda: cluster.stored_bodies(DEAD) == [b"one"])
    assert [message.reconsume_times for message in inbox.messages] == [0, 1, 2]


async def test_of_a_batch_only_the_rest_is_tried_again(cluster: FakeCluster) -> None:
    for number in range(3):
        cluster.put(cluster.queue("T"), b"%d" % number)
    consumer = consumer_of(cluster, batch_size=3)

    @consumer.on("T")
    async def handle(messages: list[StoredMessage]) -> None:
        if messages[0].reconsume_times == 0:
            raise RetryLater(from_index=1)

    async with consumer:
        await cluster.until(
            lambda: committed(cluster) == 3 or len(cluster.seen(RequestCode.CONSUMER_SEND_MSG_BACK)) == 2
        )
        await cluster.until(lambda: cluster.stored_bodies(RETRY) == [b"1", b"2"])
    assert committed(cluster) == 3


async def test_retries_of_several_topics_each_go_to_their_own_handler(cluster: FakeCluster) -> None:
    cluster.topics |= {RETRY: 1, "U": 1}
    for number, topic in enumerate(("T", "U", "U", "T")):
        cluster.put(cluster.queue(RETRY), b"%d" % number, properties={"RETRY_TOPIC": topic}, reconsume_times=1)
    seen: list[tuple[str, list[bytes]]] = []
    done = asyncio.Event()
    consumer = consumer_of(cluster, batch_size=10, concurrency=1)

    def handler_of(name: str) -> BatchHandler:
        async def handle(messages: list[StoredMessage]) -> None:
            seen.append((name, [message.body for message in messages]))
            if len(seen) == 3:
                done.set()

        return handle

    for topic in ("T", "U"):
        consumer.subscribe(topic, handler=handler_of(topic))
    async with consumer:
        await done.wait()
    assert seen == [("T", [b"0"]), ("U", [b"1", b"2"]), ("T", [b"3"])]


async def test_without_a_send_back_a_copy_goes_to_the_retry_topic(cluster: FakeCluster) -> None:
    cluster.refuse(RequestCode.CONSUMER_SEND_MSG_BACK, ResponseCode.SYSTEM_ERROR, "cannot")
    cluster.put(cluster.queue("T"), b"one", properties={"colour": "red", "TRAN_MSG": "true"})
    inbox = Inbox()
    consumer = consumer_of(cluster)

    @consumer.on("T")
    async def handle(message: StoredMessage) -> ConsumeResult | None:
        inbox.keep(message)
        return ConsumeResult.RETRY if message.reconsume_times == 0 else None

    async with consumer:
        await inbox.until(2)
    again = inbox.messages[1]
    assert (again.topic, again.body, again.reconsume_times) == ("T", b"one", 1)
    (sent,) = cluster.seen(RequestCode.SEND_MESSAGE_V2)
    assert (sent.fields["b"], sent.fields["j"], sent.fields["l"]) == (RETRY, "1", "16")
    (record,) = cluster.stored(cluster.queue(RETRY))
    assert (record.properties["colour"], record.properties["DELAY"]) == ("red", "3")
    assert record.properties["ORIGIN_MESSAGE_ID"] == inbox.messages[0].message_id
    assert "TRAN_MSG" not in record.properties


async def test_a_message_that_no_broker_takes_back_is_handled_again(cluster: FakeCluster) -> None:
    cluster.refuse(RequestCode.CONSUMER_SEND_MSG_BACK, ResponseCode.SYSTEM_ERROR, "cannot", times=1)
    cluster.refuse(RequestCode.SEND_MESSAGE_V2, ResponseCode.SYSTEM_ERROR, "cannot", times=1)
    cluster.put(cluster.queue("T"), b"one")
    inbox = Inbox()
    consumer = consumer_of(cluster)

    @consumer.on("T")
    async def handle(message: StoredMessage) -> ConsumeResult | None:
        inbox.keep(message)
        return ConsumeResult.RETRY if message.reconsume_times == 0 else None

    async with consumer:
        await inbox.until(2)
    again = inbox.messages[1]
    assert (again.reconsume_times, again.queue) == (1, cluster.queue("T"))
    assert committed(cluster) == 1
    assert cluster.stored_bodies(RETRY) == []


async def test_a_retry_without_a_handler_is_not_lost(cluster: FakeCluster) -> None:
    cluster.topics[RETRY] = 1
    cluster.put(cluster.queue(RETRY), b"one", properties={"RETRY_TOPIC": "Gone"})
    consumer = consumer_of(cluster, reconsume_times_max=1)
    consumer.subscribe("T", handler=Inbox())
    async with consumer:
        await cluster.until(lambda: cluster.stored_bodies(DEAD) == [b"one"])


# ---------------------------------------------------------------------------------------------------------- async for


async def test_without_a_handler_messages_come_in_a_loop(cluster: FakeCluster) -> None:
    for number in range(3):
        cluster.put(cluster.queue("T"), b"%d" % number)
    consumer = consumer_of(cluster)
    consumer.subscribe("T")
    found: list[bytes] = []
    async with consumer:
        async for message in consumer:
            found.append(message.body)
            if len(found) == 3:
                break
    assert found == [b"0", b"1", b"2"]
    assert committed(cluster) == 3


async def test_a_message_is_consumed_when_the_next_is_requested(cluster: FakeCluster) -> None:
    for number in range(3):
        cluster.put(cluster.queue("T"), b"%d" % number)
    consumer = consumer_of(cluster)
    consumer.subscribe("T")
    await consumer.start()
    loop = aiter(consumer)
    await anext(loop)
    await anext(loop)
    await consumer.stop()  # by the loop's own task: it does not wait for itself
    assert committed(cluster) == 1


async def test_leaving_by_an_exception_has_the_message_delivered_again(cluster: FakeCluster) -> None:
    cluster.put(cluster.queue("T"), b"one")
    consumer = consumer_of(cluster)
    consumer.subscribe("T")

    async def loop() -> None:
        async with consumer:
            async for _ in consumer:
                raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await loop()
    assert cluster.stored_bodies(RETRY) == [b"one"]
    assert committed(cluster) == 1


async def test_entering_a_loop_anew_has_the_message_delivered_again(cluster: FakeCluster) -> None:
    cluster.put(cluster.queue("T"), b"one")
    consumer = consumer_of(cluster)
    consumer.subscribe("T")
    async with consumer:
        async for _ in consumer:
            break
        async for message in consumer:
            assert (message.body, message.reconsume_times) == (b"one", 1)
            break


async def test_a_loop_that_is_cancelled_while_it_retries_a_message_loses_none(cluster: FakeCluster) -> None:
    for body in (b"one", b"two"):
        cluster.put(cluster.queue("T"), body)
    consumer = consumer_of(cluster)
    consumer.subscribe("T")
    may_answer = asyncio.Event()
    async with consumer:
        async for message in consumer:
            assert message.body == b"one"
            break
        cluster.delay(RequestCode.CONSUMER_SEND_MSG_BACK, may_answer)
        entered = asyncio.ensure_future(anext(aiter(consumer)))
        await cluster.until_seen(RequestCode.CONSUMER_SEND_MSG_BACK)
        entered.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entered
        may_answer.set()
        found = {}
        async for message in consumer:
            found[message.body] = message.reconsume_times
            if len(found) == 2:
                break
    assert found == {b"one": 1, b"two": 0}
    assert committed(cluster) == 2


async def test_a_loop_ends_when_the_consumer_is_stopped(cluster: FakeCluster) -> None:
    cluster.put(cluster.queue("T"), b"one")
    consumer = consumer_of(cluster)
    consumer.subscribe("T")
    found: list[bytes] = []
    first = asyncio.Event()

    async def loop() -> None:
        async for message in consumer:
            found.append(message.body)
            first.set()

    async with asyncio.TaskGroup() as group:
        await consumer.start()
        group.create_task(loop())
        await first.wait()
        await consumer.stop()
    assert found == [b"one"]
    assert committed(cluster) == 1


async def test_a_wait_in_a_loop_can_be_cut_short(cluster: FakeCluster) -> None:
    consumer = consumer_of(cluster)
    consumer.subscribe("T")
    async with consumer:
        loop = aiter(consumer)
        waiting = asyncio.ensure_future(anext(loop))
        await cluster.until_seen(RequestCode.PULL_MESSAGE, 2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        cluster.put(cluster.queue("T"), b"one")
        assert (await anext(loop)).body == b"one"


async def test_a_loop_beside_handlers_is_refused(cluster: FakeCluster) -> None:
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=Inbox())
    async with consumer:
        with pytest.raises(ClientError, match="handlers"):
            aiter(consumer)


# ------------------------------------------------------------------------------------------------------- broadcasting


async def test_broadcasting_delivers_every_message_to_every_member(cluster: FakeCluster, tmp_path: Path) -> None:
    for number in range(4):
        cluster.put(cluster.queue("T", number % 2), b"%d" % number)
    inboxes = [Inbox(), Inbox()]
    for number, inbox in enumerate(inboxes):
        consumer = consumer_of(
            cluster,
            model=MessageModel.BROADCASTING,
            instance_name=f"member-{number}",
            offsets=FileOffsets(f"member-{number}", "g", directory=tmp_path),
        )
        consumer.subscribe("T", handler=inbox)
        async with consumer:
            await inbox.until(4)
    assert [sorted(inbox.bodies) for inbox in inboxes] == [[b"0", b"1", b"2", b"3"]] * 2
    assert cluster.offsets == {}
    assert cluster.seen(RequestCode.GET_CONSUMER_LIST_BY_GROUP) == []
    assert (tmp_path / "member-1" / "g" / "offsets.json").read_text().count(":2") == 2


async def test_a_broadcast_message_that_fails_is_dropped(
    cluster: FakeCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.put(cluster.queue("T"), b"one")
    cluster.put(cluster.queue("T"), b"two")
    inbox = Inbox()
    offsets = FileOffsets("member", "g", directory=tmp_path)
    consumer = consumer_of(cluster, model=MessageModel.BROADCASTING, offsets=offsets, concurrency=1)

    @consumer.on("T")
    async def handle(message: StoredMessage) -> None:
        inbox.keep(message)
        raise ValueError("no")

    async with consumer:
        assert await inbox.until(2) == [b"one", b"two"]
    assert offsets.cached(cluster.queue("T")) == 2
    assert cluster.seen(RequestCode.CONSUMER_SEND_MSG_BACK) == []
    assert len([record for record in caplog.records if record.message.startswith("message dropped")]) == 2


def test_a_broadcaster_has_a_client_id_that_lasts() -> None:
    consumer = Consumer("g", "127.0.0.1:1", model=MessageModel.BROADCASTING)
    assert consumer.session.client_id.endswith("@DEFAULT")
    named = Consumer("g", "127.0.0.1:1", model=MessageModel.BROADCASTING, instance_name="DEFAULT")
    assert named.session.client_id.endswith("@DEFAULT")
    shared = Consumer("g", "127.0.0.1:1", instance_name="DEFAULT")
    assert not shared.session.client_id.endswith("@DEFAULT")


# ------------------------------------------------------------------------------------------------------ start and stop


async def test_a_sql_expression_is_checked_at_the_start(cluster: FakeCluster) -> None:
    cluster.refuse(
        RequestCode.CHECK_CLIENT_CONFIG, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "the expression is nonsense"
    )
    consumer = consumer_of(cluster)
    consumer.subscribe("T", sql("a >"), Inbox())
    with pytest.raises(ExpressionRefusedError, match="nonsense"):
        await consumer.start()
    assert not consumer.session.is_running
    (check,) = cluster.seen(RequestCode.CHECK_CLIENT_CONFIG)
    assert check.value["subscriptionData"]["subString"] == "a >"


async def test_an_sql_filter_is_sent_to_the_broker(cluster: FakeCluster) -> None:
    cluster.put(cluster.queue("T"), b"one")
    inbox = Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("T", sql("a > 5"), inbox)
    async with consumer:
        await inbox.until(1)
    pull = next(each for each in cluster.seen(RequestCode.PULL_MESSAGE) if each.fields["topic"] == "T")
    assert pull.fields["expressionType"] == "SQL92"
    (subscription,) = [
        each
        for each in cluster.seen(RequestCode.HEART_BEAT)[-1].value["consumerDataSet"][0]["subscriptionDataSet"]
        if each["topic"] == "T"
    ]
    assert (subscription["subString"], subscription["expressionType"]) == ("a > 5", "SQL92")


async def test_without_a_name_server_it_does_not_start() -> None:
    consumer = Consumer("g", "127.0.0.1:1")
    consumer.subscribe("T", handler=Inbox())
    with pytest.raises(NoNameServerError):
        await consumer.start()
    assert not consumer.session.is_running


async def test_a_topic_created_later_is_found(cluster: FakeCluster) -> None:
    inbox = Inbox()
    consumer = consumer_of(cluster, route_poll_interval_s=0.01)
    consumer.subscribe("Later", handler=inbox)
    async with consumer:
        assert consumer.assignment == frozenset()
        cluster.topics["Later"] = 1
        cluster.put(cluster.queue("Later"), b"one")
        assert await inbox.until(1) == [b"one"]


def test_numbers_that_make_no_sense_are_refused() -> None:
    for settings in ({"concurrency": 0}, {"batch_size": 0}, {"pull_batch": -1}, {"consume_timeout_s": 0}):
        with pytest.raises(ClientError, match=next(iter(settings))):
            Consumer("g", "127.0.0.1:1", **settings)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(InvalidNameError):
        Consumer("no such group!", "127.0.0.1:1")
    with pytest.raises(InvalidNameError):
        Consumer("DEFAULT_CONSUMER", "127.0.0.1:1")


async def test_a_batch_size_and_a_loop_do_not_go_together(cluster: FakeCluster) -> None:
    consumer = consumer_of(cluster, batch_size=2)
    consumer.subscribe("T")
    with pytest.raises(ClientError, match="batch_size"):
        await consumer.start()


async def test_run_returns_after_stop(cluster: FakeCluster) -> None:
    inbox = Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=inbox)
    running = asyncio.create_task(consumer.run())
    cluster.put(cluster.queue("T"), b"one")
    await inbox.until(1)
    await consumer.stop()
    await running
    assert not consumer.session.is_running


@pytest.mark.parametrize("plain", [False, True])
async def test_a_handler_may_stop_its_consumer(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, plain: bool
) -> None:
    caplog.set_level(logging.INFO, "skyroute")
    consumer = consumer_of(cluster)
    loop = asyncio.get_running_loop()

    async def stop(_: StoredMessage) -> None:
        await consumer.stop()

    def stop_from_thread(_: StoredMessage) -> None:
        asyncio.run_coroutine_threadsafe(consumer.stop(), loop).result()

    consumer.subscribe("T", handler=stop_from_thread if plain else stop)
    cluster.put(cluster.queue("T"), b"one")
    async with asyncio.timeout(5):  # less than a stop waits for a handler
        await consumer.run()
    assert committed(cluster) == 1
    assert [each.fields["consumerGroup"] for each in cluster.seen(RequestCode.UNREGISTER_CLIENT)] == ["g"]
    assert not [record for record in caplog.records if "cancelled" in record.message or "leave" in record.message]


async def test_a_second_stop_waits_for_the_first(cluster: FakeCluster) -> None:
    inbox, go_on = Inbox(), asyncio.Event()
    consumer = consumer_of(cluster)

    async def handle(message: StoredMessage) -> None:
        inbox.keep(message)
        await go_on.wait()

    consumer.subscribe("T", handler=handle)
    cluster.put(cluster.queue("T"), b"one")
    async with consumer:
        await inbox.until(1)
        first = asyncio.create_task(consumer.stop())
        await asyncio.sleep(0)
        second = asyncio.create_task(consumer.stop())
        await asyncio.sleep(0)
        assert consumer.session.is_running
        go_on.set()
        await second
        assert first.done() or not consumer.session.is_running
    await first
    assert committed(cluster) == 1


async def test_a_loop_over_a_consumer_that_is_not_running_is_refused(cluster: FakeCluster) -> None:
    consumer = consumer_of(cluster)
    consumer.subscribe("T")
    with pytest.raises(NotRunningError):
        aiter(consumer)


async def test_a_cancelled_run_stops_properly(cluster: FakeCluster) -> None:
    inbox = Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=inbox)
    running = asyncio.create_task(consumer.run())
    cluster.put(cluster.queue("T"), b"one")
    await inbox.until(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert committed(cluster) == 1
    assert [each.fields["consumerGroup"] for each in cluster.seen(RequestCode.UNREGISTER_CLIENT)] == ["g"]


async def test_a_consumer_can_be_started_again(cluster: FakeCluster) -> None:
    inbox = Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=inbox)
    for number in range(2):
        async with consumer:
            cluster.put(cluster.queue("T"), b"%d" % number)
            await inbox.until(number + 1)
    assert inbox.bodies == [b"0", b"1"]


async def test_a_shared_session_is_left_running(cluster: FakeCluster) -> None:
    cluster.put(cluster.queue("T"), b"one")
    async with Session(cluster.address) as session:
        for group in ("a", "b"):
            inbox = Inbox()
            consumer = consumer_of(cluster, group, session=session)
            consumer.subscribe("T", handler=inbox)
            async with consumer:
                await inbox.until(1)
        assert session.is_running
    assert [each.fields["consumerGroup"] for each in cluster.seen(RequestCode.UNREGISTER_CLIENT)] == ["a", "b"]


@pytest.mark.parametrize("kind", [Consumer, PullConsumer])
async def test_a_session_has_one_consumer_of_a_group(
    cluster: FakeCluster, kind: type[Consumer] | type[PullConsumer]
) -> None:
    inbox = Inbox()
    async with Session(cluster.address) as session:
        consumer = consumer_of(cluster, session=session, trace=True)
        consumer.subscribe("T", handler=inbox)
        async with Producer("g", session=session, trace=True), consumer:
            handlers = {code: list(known) for code, known in session.requests.handlers.items()}
            listeners, tasks = set(session.routes.listeners), len(session._tasks)
            second = kind("g", session=session)
            with pytest.raises(ClientError, match="already has a consumer of group g: use another group"):
                await second.start()
            assert session.requests.handlers == handlers
            assert (session.routes.listeners, len(session._tasks)) == (listeners, tasks)
            assert cluster.seen(RequestCode.UNREGISTER_CLIENT) == []
            cluster.put(cluster.queue("T"), b"still here")
            assert await inbox.until(1) == [b"still here"]
        async with second:
            assert session.heartbeats.sources


async def test_traces_contain_consumed_messages(cluster: FakeCluster) -> None:
    cluster.topics["RMQ_SYS_TRACE_TOPIC"] = 1
    cluster.put(cluster.queue("T"), b"one", properties={"UNIQ_KEY": "the-id"})
    inbox = Inbox()
    consumer = consumer_of(cluster, trace=True)
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        await inbox.until(1)
    (body,) = cluster.stored_bodies("RMQ_SYS_TRACE_TOPIC")
    before, after = decode_trace(body)
    assert isinstance(before, ConsumeStarted)
    assert isinstance(after, ConsumeEnded)
    assert (before.group, before.message_id, after.success) == ("g", "the-id", True)


async def test_traces_contain_the_result_of_the_handler(cluster: FakeCluster) -> None:
    cluster.topics["RMQ_SYS_TRACE_TOPIC"] = 1
    inbox = Inbox()

    async def handle(message: StoredMessage) -> ConsumeResult:
        if message.body == b"raise" and not message.reconsume_times:
            raise ValueError("no")
        if message.body == b"wish" and not message.reconsume_times:
            raise RetryLater from ValueError("not yet")
        inbox.keep(message)
        return ConsumeResult.SUCCESS

    consumer = consumer_of(cluster, trace=True)
    consumer.subscribe("T", handler=handle)
    for body in (b"raise", b"wish", b"fine"):
        cluster.put(cluster.queue("T"), body, properties={"UNIQ_KEY": body.decode()})
    async with consumer:
        await inbox.until(3)
    ended = [
        (record.message_id, record.success, record.returned)
        for body in cluster.stored_bodies("RMQ_SYS_TRACE_TOPIC")
        for record in decode_trace(body)
        if isinstance(record, ConsumeEnded)
    ]
    assert sorted(ended) == [
        ("fine", True, TracedReturn.SUCCESS),
        ("raise", False, TracedReturn.RAISED),
        ("raise", True, TracedReturn.SUCCESS),
        ("wish", False, TracedReturn.FAILED),
        ("wish", True, TracedReturn.SUCCESS),
    ]


async def test_single_messages_are_not_logged(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    inbox = Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        caplog.clear()
        caplog.set_level(logging.DEBUG, "skyroute")
        for number in range(10):
            cluster.put(cluster.queue("T"), b"%d" % number)
        await inbox.until(10)
        assert caplog.records == []
