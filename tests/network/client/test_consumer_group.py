"""Rebalance and handover between the members of a group."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from skyroute.client.consuming.strategies import AverageByCircle
from skyroute.message.message import StoredMessage
from skyroute.message.queue_ref import QueueRef
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.network.client.consumers import HURRIED, Inbox, consumer_of
from tests.support.fake_broker import FakeCluster, Peer, Reply, fake_cluster
from tests.support.raw import Command
from tests.support.waiting import eventually


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(topics={"T": 4}) as cluster:
        yield cluster


def queue_ids(queues: frozenset[QueueRef]) -> list[int]:
    return sorted(queue.queue_id for queue in queues)


async def test_members_share_the_queues_and_take_over_when_one_leaves(cluster: FakeCluster) -> None:
    inboxes = [Inbox(), Inbox()]
    first, second = (consumer_of(cluster, instance_name=name) for name in ("a", "b"))
    for consumer, inbox in zip((first, second), inboxes, strict=True):
        consumer.subscribe("T", handler=inbox)
    async with first:
        assert queue_ids(first.assignment) == [0, 1, 2, 3]
        async with second:
            await eventually(lambda: queue_ids(first.assignment) == [0, 1])
            await eventually(lambda: queue_ids(second.assignment) == [2, 3])
            for number in range(4):
                cluster.put(cluster.queue("T", number), b"%d" % number)
            await inboxes[0].until(2)
            await inboxes[1].until(2)
        await eventually(lambda: queue_ids(first.assignment) == [0, 1, 2, 3])
        cluster.put(cluster.queue("T", 3), b"again")
        await inboxes[0].until(3)
    assert sorted(inboxes[0].bodies) == [b"0", b"1", b"again"]
    assert sorted(inboxes[1].bodies) == [b"2", b"3"]


async def test_nothing_is_lost_or_doubled_when_queues_move_while_messages_come(cluster: FakeCluster) -> None:
    seen: list[bytes] = []
    intervals = replace(HURRIED, takeover_delay_s=0.2)
    consumers = [consumer_of(cluster, instance_name=f"member-{number}", intervals=intervals) for number in range(3)]
    for consumer in consumers:

        @consumer.on("T")
        async def handle(message: StoredMessage) -> None:
            await asyncio.sleep(0)
            seen.append(message.body)

    total = 0

    def put(count: int) -> None:
        nonlocal total
        for _ in range(count):
            cluster.put(cluster.queue("T", total % 4), b"%d" % total)
            total += 1

    async with consumers[0]:
        put(100)
        async with consumers[1]:
            put(100)
            await eventually(lambda: len(consumers[1].assignment) == 2)
            put(100)
            async with consumers[2]:
                put(100)
                await eventually(lambda: len(consumers[2].assignment) == 1)
                put(100)
            put(100)
        put(100)
        await eventually(lambda: len(set(seen)) == total)
    assert len(seen) == total


async def test_a_change_of_the_allocation_is_announced_with_a_newer_version(cluster: FakeCluster) -> None:
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=Inbox())
    async with consumer:
        beats = await cluster.until_seen(RequestCode.HEART_BEAT, 2)
        versions = [
            subscription["subVersion"]
            for beat in beats
            for subscription in beat.value["consumerDataSet"][0]["subscriptionDataSet"]
            if subscription["topic"] == "T"
        ]
        assert versions[-1] > versions[0]
        pulls = [each for each in await cluster.until_seen(RequestCode.PULL_MESSAGE, 5) if each.fields["topic"] == "T"]
        assert {int(pull.fields["subVersion"]) for pull in pulls} == {versions[-1]}


async def test_a_new_queue_of_the_topic_is_found_with_the_route(cluster: FakeCluster) -> None:
    inbox = Inbox()
    consumer = consumer_of(cluster, route_poll_interval_s=0.01)
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        cluster.topics["T"] = 6
        await eventually(lambda: queue_ids(consumer.assignment) == [0, 1, 2, 3, 4, 5])
        cluster.topics["T"] = 2
        await eventually(lambda: queue_ids(consumer.assignment) == [0, 1])


async def test_a_topic_without_readable_queues_keeps_the_assignment(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        cluster.topics["T"] = 0
        await consumer.session.routes.refresh("T")
        await eventually(lambda: "no queue of the topic is readable" in caplog.text)
        assert queue_ids(consumer.assignment) == [0, 1, 2, 3]
        cluster.topics["T"] = 4
        cluster.put(cluster.queue("T"), b"one")
        assert await inbox.until(1) == [b"one"]
    assert "queue released" not in caplog.text


async def test_members_share_by_the_given_strategy(cluster: FakeCluster) -> None:
    consumers = [consumer_of(cluster, instance_name=name, strategy=AverageByCircle()) for name in ("a", "b")]
    for consumer in consumers:
        consumer.subscribe("T", handler=Inbox())
    async with consumers[0], consumers[1]:
        await eventually(lambda: queue_ids(consumers[0].assignment) == [0, 2])
        await eventually(lambda: queue_ids(consumers[1].assignment) == [1, 3])


async def test_a_failing_strategy_is_retried(cluster: FakeCluster, expects_errors: None) -> None:
    calls = 0

    def strategy(_client_id: str, queues: object, _client_ids: object) -> list[QueueRef]:
        nonlocal calls
        calls += 1
        if calls <= 4:
            raise ValueError("no idea")
        return list(queues)  # type: ignore[call-overload,no-any-return]  # a sequence of queues

    consumer = consumer_of(cluster, strategy=strategy)
    consumer.subscribe("T", handler=Inbox())
    async with consumer:
        await eventually(lambda: queue_ids(consumer.assignment) == [0, 1, 2, 3])


async def test_a_broker_without_our_membership_gets_a_heartbeat_and_queues_stay(cluster: FakeCluster) -> None:
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=Inbox())
    async with consumer:
        members = cluster.members["broker-a", "g"]
        members.clear()
        members["somebody else"] = next(iter(cluster.broker().peers))
        beats = len(cluster.seen(RequestCode.HEART_BEAT))
        await cluster.tell_client(
            consumer.session.client_id, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"}
        )
        await eventually(lambda: len(consumer.assignment) == 2)
        assert len(cluster.seen(RequestCode.HEART_BEAT)) > beats


async def test_a_broker_that_names_us_twice_does_not_cost_us_our_queues(cluster: FakeCluster) -> None:
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=Inbox())
    async with consumer:
        twice = json.dumps({"consumerIdList": [consumer.session.client_id] * 2}).encode()
        cluster.on(RequestCode.GET_CONSUMER_LIST_BY_GROUP, lambda _command, _peer: Reply(body=twice))
        for _ in range(2):  # when the second round begins, the first has had its effect
            asked = len(cluster.seen(RequestCode.GET_CONSUMER_LIST_BY_GROUP))
            await cluster.tell_client(
                consumer.session.client_id, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"}
            )
            await cluster.until_seen(RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked + 2)
        assert len(consumer.assignment) == 4


async def test_without_the_member_list_the_assignment_stays(cluster: FakeCluster) -> None:
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=Inbox())
    async with consumer:
        cluster.refuse(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ResponseCode.SYSTEM_ERROR, "do not know")
        asked = len(cluster.seen(RequestCode.GET_CONSUMER_LIST_BY_GROUP))
        await cluster.tell_client(
            consumer.session.client_id, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"}
        )
        await cluster.until_seen(RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked + 4)
        assert len(consumer.assignment) == 4


async def test_a_queue_is_taken_only_once_its_start_is_known(cluster: FakeCluster) -> None:
    cluster.refuse(RequestCode.QUERY_CONSUMER_OFFSET, ResponseCode.SYSTEM_ERROR, "do not know", times=5)
    cluster.offsets["g", cluster.queue("T")] = 1
    cluster.put(cluster.queue("T"), b"consumed before")
    cluster.put(cluster.queue("T"), b"new")
    inbox = Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        assert consumer.assignment == frozenset()
        assert await inbox.until(1) == [b"new"]


async def test_a_running_handler_is_waited_for_when_its_queue_moves(cluster: FakeCluster) -> None:
    for number in range(4):
        for text in (b"begun", b"waiting"):
            cluster.put(cluster.queue("T", number), b"%d %s" % (number, text))
    go_on = asyncio.Event()
    inbox, other = Inbox(), Inbox()
    first = consumer_of(cluster, instance_name="a", concurrency=4, intervals=replace(HURRIED, handover_s=30.0))

    @first.on("T")
    async def handle(message: StoredMessage) -> None:
        inbox.keep(message)
        await go_on.wait()

    # The other one asks where to begin only after the hand-over, as it happens where handlers are quick.
    may_begin = asyncio.Event()

    async def later(command: Command, peer: Peer) -> Reply | None:
        if peer.client_id.endswith("@b"):
            await may_begin.wait()
        return await cluster.answer(command, peer)

    async with first:
        await inbox.until(4)
        cluster.on(RequestCode.QUERY_CONSUMER_OFFSET, later)
        second = consumer_of(cluster, instance_name="b")
        second.subscribe("T", handler=other)
        starting = asyncio.create_task(second.start())
        await eventually(lambda: queue_ids(first.assignment) == [0, 1])
        go_on.set()
        await cluster.until(lambda: all(cluster.offsets.get(("g", cluster.queue("T", q)), 0) == 1 for q in (2, 3)))
        may_begin.set()
        await starting
        await other.until(2)
        await second.stop()
    assert sorted(other.bodies) == [b"2 waiting", b"3 waiting"]
    assert sorted(inbox.bodies) == [b"0 begun", b"0 waiting", b"1 begun", b"1 waiting", b"2 begun", b"3 begun"]


async def test_stop_waits_for_handlers_and_drops_waiting_messages(cluster: FakeCluster) -> None:
    for number in range(3):
        cluster.put(cluster.queue("T"), b"%d" % number)
    go_on = asyncio.Event()
    inbox = Inbox()
    consumer = consumer_of(cluster, concurrency=1)

    @consumer.on("T")
    async def handle(message: StoredMessage) -> None:
        inbox.keep(message)
        await go_on.wait()

    await consumer.start()
    await inbox.until(1)
    stopping = asyncio.create_task(consumer.stop())
    await eventually(lambda: consumer.assignment == frozenset())
    assert not stopping.done()
    go_on.set()
    await stopping
    assert inbox.bodies == [b"0"]
    assert cluster.offsets["g", cluster.queue("T")] == 1
    codes = [command.code for _, command in cluster.heard]
    assert max(at for at, code in enumerate(codes) if code == RequestCode.UPDATE_CONSUMER_OFFSET) < codes.index(
        RequestCode.UNREGISTER_CLIENT
    )


async def test_offsets_are_committed_periodically(cluster: FakeCluster) -> None:
    inbox = Inbox()
    consumer = consumer_of(cluster, intervals=replace(HURRIED, commit_s=0.01))
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        cluster.put(cluster.queue("T"), b"one")
        await inbox.until(1)
        await cluster.until(lambda: cluster.offsets.get(("g", cluster.queue("T"))) == 1)


async def test_pulls_say_how_far_we_have_come(cluster: FakeCluster) -> None:
    inbox = Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=inbox)
    async with consumer:
        for number in range(3):
            cluster.put(cluster.queue("T"), b"%d" % number)
            await inbox.until(number + 1)
    # All but the last may be committed by the next pull; how many were, depends on who was quicker.
    said = [
        int(each.fields["commitOffset"])
        for each in cluster.seen(RequestCode.PULL_MESSAGE)
        if int(each.fields["sysFlag"]) & 1
    ]
    assert said == sorted(said)
    assert all(each.fields["sysFlag"] in ("2", "3") for each in cluster.seen(RequestCode.PULL_MESSAGE))
