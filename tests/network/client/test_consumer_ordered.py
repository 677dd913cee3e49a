"""The ordered push consumer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from skyroute.client.consuming.offset_store import FileOffsets
from skyroute.client.consuming.push import queue_locks
from skyroute.client.consuming.push.handlers import ConsumeResult, RetryLater
from skyroute.message.message import StoredMessage
from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.clients import MessageModel
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.network.client.consumers import HURRIED, Inbox, consumer_of
from tests.support.clock import ManualClock
from tests.support.fake_broker import FakeCluster, Peer, Reply, fake_cluster
from tests.support.raw import Command
from tests.support.waiting import eventually

RETRY = "%RETRY%g"


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(topics={"T": 3}) as cluster:
        yield cluster


def committed(cluster: FakeCluster, queue_id: int = 0) -> int | None:
    return cluster.offsets.get(("g", cluster.queue("T", queue_id)))


def lock_without_a_response(cluster: FakeCluster) -> Callable[[Command, Peer], Awaitable[None]]:
    async def lock(command: Command, peer: Peer) -> None:
        await cluster.answer(command, peer)

    return lock


async def test_each_queue_is_handled_in_order_and_queues_concurrently(cluster: FakeCluster) -> None:
    for number in range(30):
        cluster.put(cluster.queue("T", number % 3), b"%d" % number)
    running: set[int] = set()
    most = 0
    inbox = Inbox()
    consumer = consumer_of(cluster, ordered=True, concurrency=8)

    @consumer.on("T")
    async def handle(message: StoredMessage) -> None:
        nonlocal most
        assert message.queue_id not in running, "two at once in one queue"
        running.add(message.queue_id)
        most = max(most, len(running))
        await asyncio.sleep(0)
        running.discard(message.queue_id)
        inbox.keep(message)

    async with consumer:
        await inbox.until(30)
    for queue_id in range(3):
        assert [m.queue_offset for m in inbox.messages if m.queue_id == queue_id] == list(range(10))
    assert most == 3


async def test_queues_are_locked_before_anything_is_pulled_and_unlocked_at_the_end(cluster: FakeCluster) -> None:
    inbox = Inbox()
    consumer = consumer_of(cluster, ordered=True)
    consumer.subscribe("T", handler=inbox)
    cluster.put(cluster.queue("T"), b"one")
    async with consumer:
        await inbox.until(1)
        assert {queue for _, queue in cluster.locks} >= {cluster.queue("T", number) for number in range(3)}
    codes = [command.code for _, command in cluster.heard]
    assert (
        codes.index(RequestCode.LOCK_BATCH_MQ)
        < codes.index(RequestCode.QUERY_CONSUMER_OFFSET)
        < codes.index(RequestCode.PULL_MESSAGE)
    )
    assert (
        codes.index(RequestCode.UPDATE_CONSUMER_OFFSET)
        < codes.index(RequestCode.UNLOCK_BATCH_MQ)
        < codes.index(RequestCode.UNREGISTER_CLIENT)
    )
    assert cluster.locks == {}
    assert committed(cluster) == 1


async def test_a_message_that_fails_is_tried_again_before_all_others(cluster: FakeCluster) -> None:
    for number in range(3):
        cluster.put(cluster.queue("T"), b"%d" % number)
    inbox = Inbox()
    consumer = consumer_of(cluster, ordered=True)

    @consumer.on("T")
    async def handle(message: StoredMessage) -> ConsumeResult | None:
        inbox.keep(message)
        if message.body == b"0" and message.reconsume_times < 2:
            return ConsumeResult.RETRY
        return None

    async with consumer:
        assert await inbox.until(5) == [b"0", b"0", b"0", b"1", b"2"]
    assert [message.reconsume_times for message in inbox.messages] == [0, 1, 2, 0, 0]
    assert committed(cluster) == 3
    assert cluster.seen(RequestCode.CONSUMER_SEND_MSG_BACK) == []


async def test_a_queue_that_waits_does_not_hold_up_the_others(cluster: FakeCluster) -> None:
    cluster.put(cluster.queue("T", 0), b"stuck")
    inbox = Inbox()
    consumer = consumer_of(cluster, ordered=True, concurrency=1, suspend_s=30)

    @consumer.on("T")
    async def handle(message: StoredMessage) -> None:
        inbox.keep(message)
        if message.body == b"stuck":
            raise RetryLater

    async with consumer:
        await inbox.until(1)
        cluster.put(cluster.queue("T", 0), b"behind")
        cluster.put(cluster.queue("T", 1), b"beside")
        assert await inbox.until(2) == [b"stuck", b"beside"]
    assert committed(cluster) == 0


async def test_after_the_last_retry_a_message_goes_to_the_retry_topic(cluster: FakeCluster) -> None:
    cluster.put(cluster.queue("T"), b"bad")
    cluster.put(cluster.queue("T"), b"good")
    inbox = Inbox()
    consumer = consumer_of(cluster, ordered=True, reconsume_times_max=2)

    @consumer.on("T")
    async def handle(message: StoredMessage) -> ConsumeResult | None:
        if message.reconsume_times > 2:
            return None  # the fake broker makes no dead letters
        inbox.keep(message)
        return ConsumeResult.RETRY if message.body == b"bad" else None

    async with consumer:
        assert (await inbox.until(4))[:4] == [b"bad", b"bad", b"bad", b"good"]
    (sent,) = cluster.seen(RequestCode.SEND_MESSAGE_V2)
    # The broker makes it a dead letter, because it was tried more often than allowed.
    assert (sent.fields["b"], sent.fields["j"], sent.fields["l"]) == (RETRY, "3", "0")
    assert committed(cluster) == 2


async def test_a_handler_may_make_a_dead_letter_at_once(cluster: FakeCluster) -> None:
    cluster.put(cluster.queue("T"), b"bad")
    cluster.put(cluster.queue("T"), b"good")
    inbox = Inbox()
    consumer = consumer_of(cluster, ordered=True)

    @consumer.on("T")
    async def handle(message: StoredMessage) -> None:
        inbox.keep(message)
        if message.body == b"bad" and message.reconsume_times == 0:
            raise RetryLater(-1)

    async with consumer:
        await inbox.until(2)
        await cluster.until_seen(RequestCode.SEND_MESSAGE_V2)
    assert cluster.stored_bodies(RETRY) == [b"bad"]


async def test_a_queue_locked_by_another_member_is_taken_when_it_is_unlocked(cluster: FakeCluster) -> None:
    queue = cluster.queue("T", 1)
    cluster.locks["g", queue] = "somebody else"
    cluster.put(queue, b"one")
    inbox = Inbox()
    consumer = consumer_of(cluster, ordered=True)
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        assert consumer.assignment == {cluster.queue("T", 0), cluster.queue("T", 2)}
        cluster.offsets["g", queue] = 1  # the other one consumes on
        cluster.put(queue, b"two")
        del cluster.locks["g", queue]
        assert await inbox.until(1) == [b"two"]


async def test_a_queue_that_was_locked_and_never_taken_is_unlocked(cluster: FakeCluster) -> None:
    cluster.refuse(RequestCode.QUERY_CONSUMER_OFFSET, ResponseCode.SYSTEM_ERROR, "do not know")
    consumer = consumer_of(cluster, ordered=True)
    consumer.subscribe("T", handler=Inbox())
    async with consumer:
        assert consumer.assignment == frozenset()
        assert len(cluster.locks) == 4
    assert cluster.locks == {}


async def test_a_lock_whose_response_is_lost_is_released_by_stop(cluster: FakeCluster) -> None:
    queue = cluster.queue("T", 0)
    cluster.locks["g", queue] = "somebody else"
    consumer = consumer_of(cluster, ordered=True)
    consumer.subscribe("T", handler=Inbox())
    async with consumer:
        cluster.on(RequestCode.LOCK_BATCH_MQ, lock_without_a_response(cluster))
        del cluster.locks["g", queue]
        await cluster.until(lambda: ("g", queue) in cluster.locks)
    assert cluster.locks == {}


async def test_a_lock_whose_response_is_lost_is_released_when_the_queue_is_not_wanted_any_more(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_locks, "LOCK_TIMEOUT_S", 0.05)
    queue = cluster.queue("T", 0)
    cluster.locks["g", queue] = "somebody else"
    consumer = consumer_of(cluster, ordered=True)
    consumer.subscribe("T", handler=Inbox())
    async with consumer:
        cluster.on(RequestCode.LOCK_BATCH_MQ, lock_without_a_response(cluster))
        del cluster.locks["g", queue]
        await cluster.until(lambda: ("g", queue) in cluster.locks)
        consumer.unsubscribe("T")
        await cluster.until(lambda: ("g", queue) not in cluster.locks)


async def test_failed_lock_requests_are_logged_at_once_and_then_seldom(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    consumer = consumer_of(cluster, ordered=True, clock=clock, intervals=replace(HURRIED, lock_renewal_s=0.01))
    consumer.subscribe("T", handler=Inbox())

    def lines() -> list[str]:
        return [line for line in caplog.messages if line.startswith("queues not locked")]

    async with consumer:
        cluster.refuse(RequestCode.LOCK_BATCH_MQ, ResponseCode.SYSTEM_BUSY, "busy")
        await cluster.until_seen(RequestCode.LOCK_BATCH_MQ, len(cluster.seen(RequestCode.LOCK_BATCH_MQ)) + 6)
        assert len(lines()) == 1
        clock.advance(11)
        await cluster.until_seen(RequestCode.LOCK_BATCH_MQ, len(cluster.seen(RequestCode.LOCK_BATCH_MQ)) + 3)
        assert len(lines()) == 2
        assert int(lines()[1].rpartition("suppressed=")[2]) >= 4


async def test_a_lock_that_is_lost_costs_the_queue_and_commits_nothing(cluster: FakeCluster) -> None:
    queue = cluster.queue("T", 0)
    cluster.put(queue, b"one")
    inbox = Inbox()
    consumer = consumer_of(cluster, ordered=True, intervals=replace(HURRIED, lock_renewal_s=0.01))
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        await inbox.until(1)
        cluster.locks["g", queue] = "somebody else"
        await eventually(lambda: queue not in consumer.assignment)
        cluster.offsets["g", queue] = 7
    assert cluster.offsets["g", queue] == 7
    assert cluster.locks == {("g", queue): "somebody else"}


async def test_without_a_valid_lock_nothing_is_handled(cluster: FakeCluster) -> None:
    clock = ManualClock()
    queue = cluster.queue("T", 0)
    inbox = Inbox()
    consumer = consumer_of(cluster, ordered=True, clock=clock, intervals=replace(HURRIED, lock_renewal_s=0.01))
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        cluster.put(queue, b"one")
        await inbox.until(1)
        cluster.refuse(RequestCode.LOCK_BATCH_MQ, ResponseCode.SYSTEM_ERROR, "not now")
        clock.advance(31)
        cluster.put(queue, b"two")
        await cluster.until_seen(RequestCode.LOCK_BATCH_MQ, len(cluster.seen(RequestCode.LOCK_BATCH_MQ)) + 3)
        assert inbox.bodies == [b"one"]
        cluster.heal(RequestCode.LOCK_BATCH_MQ)
        assert await inbox.until(2) == [b"one", b"two"]


async def test_a_lock_regained_after_a_minute_begins_anew(cluster: FakeCluster) -> None:
    clock = ManualClock()
    queue = cluster.queue("T", 0)
    inbox = Inbox()
    consumer = consumer_of(cluster, ordered=True, clock=clock, intervals=replace(HURRIED, lock_renewal_s=0.01))
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        cluster.put(queue, b"one")
        await inbox.until(1)
        cluster.refuse(RequestCode.LOCK_BATCH_MQ, ResponseCode.SYSTEM_ERROR, "not now")
        clock.advance(61)
        for body in (b"two", b"three"):
            cluster.put(queue, body)
        await cluster.until_seen(RequestCode.LOCK_BATCH_MQ, len(cluster.seen(RequestCode.LOCK_BATCH_MQ)) + 2)
        cluster.offsets["g", queue] = 2  # another member has consumed meanwhile
        cluster.heal(RequestCode.LOCK_BATCH_MQ)
        assert await inbox.until(2) == [b"one", b"three"]


async def test_a_queue_is_unlocked_after_its_handler_has_ended(cluster: FakeCluster) -> None:
    queues = [cluster.queue("T", number) for number in range(3)]
    for queue in queues:
        cluster.put(queue, b"one")
    go_on = asyncio.Event()
    inbox, other = Inbox(), Inbox()
    first = consumer_of(cluster, ordered=True, instance_name="a")

    @first.on("T")
    async def handle(message: StoredMessage) -> None:
        inbox.keep(message)
        await go_on.wait()

    async with first:
        await inbox.until(3)
        second = consumer_of(cluster, ordered=True, instance_name="b")
        second.subscribe("T", handler=other)
        async with second:
            await eventually(lambda: len(first.assignment) == 2)
            await cluster.until_seen(RequestCode.LOCK_BATCH_MQ, len(cluster.seen(RequestCode.LOCK_BATCH_MQ)) + 3)
            assert second.assignment == frozenset()
            assert other.bodies == []
            go_on.set()
            await eventually(lambda: len(second.assignment) == 1)
            (moved,) = second.assignment
            assert cluster.offsets["g", moved] == 1
            cluster.put(moved, b"two")
            assert await other.until(1) == [b"two"]


async def test_a_broadcasting_ordered_consumer_locks_nothing(cluster: FakeCluster, tmp_path: Path) -> None:
    for number in range(3):
        cluster.put(cluster.queue("T"), b"%d" % number)
    inbox = Inbox()
    offsets = FileOffsets("member", "g", directory=tmp_path)
    consumer = consumer_of(
        cluster, ordered=True, model=MessageModel.BROADCASTING, offsets=offsets, reconsume_times_max=1
    )

    @consumer.on("T")
    async def handle(message: StoredMessage) -> ConsumeResult | None:
        inbox.keep(message)
        return ConsumeResult.RETRY if message.body == b"1" else None

    async with consumer:
        assert await inbox.until(4) == [b"0", b"1", b"1", b"2"]
    assert cluster.seen(RequestCode.LOCK_BATCH_MQ) == []
    assert offsets.cached(cluster.queue("T")) == 3


async def test_each_broker_gets_one_lock_request() -> None:
    async with fake_cluster(topics={"T": 4}, brokers=("broker-a", "broker-b")) as cluster:
        asked: list[tuple[str, int]] = []

        async def note(command: Command, peer: Peer) -> Reply | None:
            asked.append((peer.server.name, len(json.loads(command.body)["mqSet"])))
            return await cluster.answer(command, peer)

        cluster.on(RequestCode.LOCK_BATCH_MQ, note)
        consumer = consumer_of(cluster, ordered=True)
        consumer.subscribe("T", handler=Inbox())
        async with consumer:
            await eventually(lambda: len(consumer.assignment) == 8)
        assert sorted(asked)[:2] == [("broker-a", 5), ("broker-b", 5)]
        assert QueueRef("T", "broker-b", 3) not in {queue for _, queue in cluster.locks}
