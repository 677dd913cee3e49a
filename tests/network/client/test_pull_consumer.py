"""The pull consumer against a fake cluster on real sockets."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from skyroute.client.consuming.pull.assignment import AssignmentChange
from skyroute.client.consuming.pull_consumer import PullConsumer
from skyroute.client.consuming.subscription import StartPosition, sql
from skyroute.client.errors import ClientError, NoNameServerError, NoPermissionError, NotRunningError, UnsupportedError
from skyroute.message.errors import RecordError
from skyroute.message.message import StoredMessage
from skyroute.message.queue_ref import QueueRef
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.network.client.consumers import HURRIED
from tests.support.fake_broker import FIRST_STORED_AT_MS, FakeCluster, Reply, encode_batch, fake_cluster, java_hash
from tests.support.waiting import eventually

QUEUE = QueueRef("T", "broker-a", 0)
PULL = RequestCode.LITE_PULL_MESSAGE
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(topics={"T": 4}) as cluster:
        yield cluster


def consumer_of(cluster: FakeCluster, **settings: object) -> PullConsumer:
    values = {"name_servers": cluster.address, "start": StartPosition.FIRST, "intervals": HURRIED} | settings
    return PullConsumer("g", **values)  # type: ignore[arg-type]  # whatever a test wants


def bodies(messages: list[StoredMessage]) -> list[bytes]:
    return [message.body for message in messages]


async def poll_bodies(consumer: PullConsumer, count: int) -> list[bytes]:
    """Poll until this number of messages was returned."""
    found: list[bytes] = []
    while len(found) < count:
        found += bodies(await consumer.poll())
    return found


# ----------------------------------------------------------------------------------------------------------- polling


async def test_existing_and_new_messages_are_returned(cluster: FakeCluster) -> None:
    cluster.put(cluster.queue("T", 1), b"before")
    async with consumer_of(cluster) as consumer:
        consumer.subscribe("T")
        assert await poll_bodies(consumer, 1) == [b"before"]
        cluster.put(cluster.queue("T", 3), b"after", tag="A", keys="k")
        (message,) = await consumer.poll()
        assert (message.body, message.tag, message.keys) == (b"after", "A", ("k",))
        assert message.queue == cluster.queue("T", 3)


async def test_a_topic_can_be_subscribed_to_before_the_start(cluster: FakeCluster) -> None:
    cluster.put(QUEUE, b"one")
    consumer = consumer_of(cluster)
    consumer.subscribe("T")
    async with consumer:
        assert consumer.assignment == {cluster.queue("T", queue_id) for queue_id in range(4)}
        assert await poll_bodies(consumer, 1) == [b"one"]


async def test_a_poll_that_finds_nothing_ends_in_time(cluster: FakeCluster) -> None:
    async with consumer_of(cluster) as consumer:
        consumer.assign([QUEUE])
        assert await consumer.poll(timeout_s=0) == []
        assert await consumer.poll(timeout_s=0.01) == []


async def test_a_poll_respects_messages_max_and_rotates_the_queues(cluster: FakeCluster) -> None:
    for number in range(3):
        cluster.put(cluster.queue("T", 0), b"a%d" % number)
        cluster.put(cluster.queue("T", 1), b"b%d" % number)
    async with consumer_of(cluster) as consumer:
        consumer.assign([cluster.queue("T", 0), cluster.queue("T", 1)])
        await eventually(lambda: consumer._prefetch.buffered == 6)
        found = [bodies(await consumer.poll(messages_max=1)) for _ in range(6)]
    in_turn = [[body[:1] for body in each] for each in found]
    assert in_turn in ([[b"a"], [b"b"]] * 3, [[b"b"], [b"a"]] * 3)
    with pytest.raises(ClientError, match="messages_max is 0: expected a whole number, 1 or more"):
        await consumer.poll(messages_max=0)


async def test_messages_come_one_by_one_until_the_stop(cluster: FakeCluster) -> None:
    for number in range(5):
        cluster.put(QUEUE, b"%d" % number)
    consumer = consumer_of(cluster)
    consumer.assign([QUEUE])
    found = []
    async with consumer:
        async for message in consumer:
            found.append(message.body)
            if len(found) == 5:
                await consumer.stop()
    assert found == [b"0", b"1", b"2", b"3", b"4"]


async def test_tags_with_the_same_hash_are_filtered_by_the_client(cluster: FakeCluster) -> None:
    assert java_hash("Aa") == java_hash("BB")
    for tag in ("Aa", "BB", "C", None):
        cluster.put(QUEUE, str(tag).encode(), tag=tag)
    async with consumer_of(cluster) as consumer:
        consumer.assign([QUEUE], "Aa || C")
        assert await poll_bodies(consumer, 2) == [b"Aa", b"C"]
        await cluster.until_seen(PULL, 2)
        assert await consumer.position(QUEUE) == 4


async def test_an_sql_filter_is_sent_unchanged(cluster: FakeCluster) -> None:
    async with consumer_of(cluster) as consumer:
        consumer.subscribe("T", sql("amount > 5"))
        pull = (await cluster.until_seen(PULL, 1))[0]
        assert pull.fields["subscription"] == "amount > 5"
        assert pull.fields["expressionType"] == "SQL92"
        assert int(pull.fields["subVersion"]) > 0
        assert int(pull.fields["sysFlag"]) == 2 + 4 + 16


async def test_another_expression_counts_from_the_next_message_on(cluster: FakeCluster) -> None:
    for tag in ("A", "B", "A", "B"):
        cluster.put(QUEUE, tag.encode(), tag=tag)
    async with consumer_of(cluster) as consumer:
        consumer.subscribe("T", "A")
        assert await consumer.poll(messages_max=1) != []
        consumer.subscribe("T", "B")
        assert await poll_bodies(consumer, 1) in ([b"B"], [b"B", b"B"])


async def test_a_batch_record_is_split_and_returned_once(cluster: FakeCluster) -> None:
    batch = encode_batch([(b"one", {"TAGS": "A"}), (b"two", {"TAGS": "A"}), (b"three", {"TAGS": "A"})])
    cluster.put(QUEUE, batch, sys_flag=0xC0, span=3)
    async with consumer_of(cluster) as consumer:
        consumer.assign([QUEUE])
        messages = await consumer.poll()
        assert [(message.queue_offset, message.body) for message in messages] == [
            (0, b"one"),
            (1, b"two"),
            (2, b"three"),
        ]
        consumer.seek(QUEUE, 1)
        assert bodies(await consumer.poll()) == [b"two", b"three"]


# ------------------------------------------------------------------------------------------------------ life and end


async def test_a_consumer_that_does_not_run_refuses_to_poll(cluster: FakeCluster) -> None:
    consumer = consumer_of(cluster)
    with pytest.raises(NotRunningError):
        await consumer.poll()
    with pytest.raises(NotRunningError):
        aiter(consumer)
    async with consumer:
        pass
    with pytest.raises(NotRunningError):
        await consumer.poll()
    await consumer.stop()


async def test_a_waiting_poll_ends_when_the_consumer_stops(cluster: FakeCluster) -> None:
    consumer = consumer_of(cluster)
    consumer.assign([QUEUE])
    await consumer.start()
    polling = asyncio.create_task(consumer.poll(timeout_s=3600))
    await cluster.until_seen(PULL)
    await consumer.stop()
    assert await polling == []


async def test_a_stop_ends_while_the_broker_is_silent(cluster: FakeCluster) -> None:
    consumer = consumer_of(cluster)
    consumer.subscribe("T")
    await consumer.start()
    cluster.hang(RequestCode.UNREGISTER_CLIENT)
    consumer.session.request_timeout_s = 0.05
    await consumer.stop()
    assert cluster.seen(RequestCode.UNREGISTER_CLIENT)


async def test_leaving_tells_the_brokers(cluster: FakeCluster) -> None:
    async with consumer_of(cluster) as consumer:
        consumer.subscribe("T")
        await cluster.until_seen(PULL)
    (farewell,) = cluster.seen(RequestCode.UNREGISTER_CLIENT)
    assert farewell.fields["consumerGroup"] == "g"
    assert farewell.fields["clientID"] == consumer.session.client_id


async def test_start_without_a_name_server_raises_and_cleans_up() -> None:
    async with fake_cluster() as gone:
        address = gone.address
    consumer = PullConsumer("g", address)
    consumer.subscribe("T")
    with pytest.raises(NoNameServerError):
        await consumer.start()
    assert not consumer.session.is_running


async def test_a_topic_that_does_not_exist_is_read_once_it_does(cluster: FakeCluster) -> None:
    async with consumer_of(cluster) as consumer:
        consumer.subscribe("Later")
        await cluster.until_seen(RequestCode.GET_ROUTEINFO_BY_TOPIC, 2)
        cluster.topics["Later"] = 1
        cluster.put(cluster.queue("Later"), b"at last")
        assert await poll_bodies(consumer, 1) == [b"at last"]


async def test_a_topic_without_readable_queues_keeps_the_assignment(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with consumer_of(cluster) as consumer:
        consumer.subscribe("T")
        await eventually(lambda: len(consumer.assignment) == 4)
        cluster.topics["T"] = 0
        await consumer.session.routes.refresh("T")
        await eventually(lambda: "no queue of the topic is readable" in caplog.text)
        assert len(consumer.assignment) == 4


async def test_a_session_can_be_shared(cluster: FakeCluster) -> None:
    cluster.put(QUEUE, b"one")
    first = consumer_of(cluster)
    async with first.session as session:
        second = PullConsumer("other", session=session, start=StartPosition.FIRST)
        second.assign([QUEUE])
        async with second:
            assert await poll_bodies(second, 1) == [b"one"]
        assert session.is_running


# --------------------------------------------------------------------------------------------------------- positions


async def test_a_group_continues_at_its_committed_offset(cluster: FakeCluster) -> None:
    for number in range(4):
        cluster.put(QUEUE, b"%d" % number)
    cluster.offsets["g", QUEUE] = 2
    async with consumer_of(cluster) as consumer:
        consumer.assign([QUEUE])
        assert await consumer.position(QUEUE) == 2
        assert await consumer.committed(QUEUE) == 2
        assert await poll_bodies(consumer, 2) == [b"2", b"3"]


async def test_a_new_group_starts_at_its_start_position(cluster: FakeCluster) -> None:
    for number in range(4):
        cluster.put(QUEUE, b"%d" % number)
    when = datetime.fromtimestamp(FIRST_STORED_AT_MS / 1000, UTC) + timedelta(milliseconds=1)
    for start, expected in ((StartPosition.FIRST, 0), (StartPosition.LAST, 4), (StartPosition.at(when), 1)):
        async with consumer_of(cluster, start=start, auto_commit=False) as consumer:
            consumer.assign([QUEUE])
            assert await consumer.committed(QUEUE) is None
            assert await consumer.position(QUEUE) == expected


async def test_seeking_moves_the_position(cluster: FakeCluster) -> None:
    for number in range(4):
        cluster.put(QUEUE, b"%d" % number)
    cluster.drop_before(QUEUE, 1)
    async with consumer_of(cluster) as consumer:
        consumer.assign([QUEUE])
        consumer.seek(QUEUE, 3)
        assert bodies(await consumer.poll()) == [b"3"]
        await consumer.seek_to_begin(QUEUE)
        assert bodies(await consumer.poll()) == [b"1", b"2", b"3"]
        await consumer.seek_to_time(QUEUE, datetime.fromtimestamp((FIRST_STORED_AT_MS + 2) / 1000, UTC))
        assert bodies(await consumer.poll()) == [b"2", b"3"]
        await consumer.seek_to_end(QUEUE)
        assert await consumer.position(QUEUE) == 4
        cluster.put(QUEUE, b"4")
        assert bodies(await consumer.poll()) == [b"4"]
        with pytest.raises(ClientError, match="0 or more"):
            consumer.seek(QUEUE, -1)
        with pytest.raises(ClientError, match="not assigned"):
            consumer.seek(cluster.queue("T", 3), 0)
        with pytest.raises(ClientError, match="time zone"):
            await consumer.seek_to_time(QUEUE, datetime(2024, 1, 1))  # noqa: DTZ001 - that is what is wrong with it


async def test_a_pull_result_from_before_a_seek_is_dropped(cluster: FakeCluster) -> None:
    for number in range(4):
        cluster.put(QUEUE, b"%d" % number)
    answered = asyncio.Event()
    cluster.delay(PULL, answered, times=1)
    async with consumer_of(cluster) as consumer:
        consumer.assign([QUEUE])
        await cluster.until_seen(PULL)
        consumer.seek(QUEUE, 2)
        answered.set()
        assert await poll_bodies(consumer, 2) == [b"2", b"3"]


async def test_an_offset_outside_the_queue_is_corrected_and_logged(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(4):
        cluster.put(QUEUE, b"%d" % number)
    cluster.drop_before(QUEUE, 2)
    async with consumer_of(cluster) as consumer:
        consumer.assign([QUEUE])
        assert await poll_bodies(consumer, 2) == [b"2", b"3"]
    moved = [record.getMessage() for record in caplog.records if record.getMessage().startswith("offset corrected")]
    assert len(moved) == 1
    assert "from=0 to=2" in moved[0]


async def test_a_paused_queue_returns_nothing_and_keeps_its_position(cluster: FakeCluster) -> None:
    cluster.put(QUEUE, b"one")
    async with consumer_of(cluster) as consumer:
        consumer.assign([QUEUE])
        await eventually(lambda: consumer._prefetch.buffered == 1)
        consumer.pause(QUEUE)
        assert consumer.paused == {QUEUE}
        assert await consumer.poll(timeout_s=0.01) == []
        polling = asyncio.create_task(consumer.poll())
        await asyncio.sleep(0)
        consumer.resume()
        assert bodies(await polling) == [b"one"]
        assert consumer.paused == frozenset()


async def test_a_queue_paused_at_once_is_read_when_it_is_resumed(cluster: FakeCluster) -> None:
    cluster.put(QUEUE, b"one")
    async with consumer_of(cluster) as consumer:
        consumer.assign([QUEUE])
        consumer.pause()
        assert await consumer.poll(timeout_s=0.01) == []
        consumer.resume(QUEUE)
        assert bodies(await consumer.poll()) == [b"one"]


# -------------------------------------------------------------------------------------------------------- committing


async def test_stop_commits_only_messages_before_the_last_poll(cluster: FakeCluster) -> None:
    for number in range(4):
        cluster.put(QUEUE, b"%d" % number)
    async with consumer_of(cluster) as consumer:
        consumer.assign([QUEUE])
        assert bodies(await consumer.poll(messages_max=2)) == [b"0", b"1"]
        assert bodies(await consumer.poll(messages_max=1)) == [b"2"]
    assert cluster.offsets["g", QUEUE] == 2


async def test_a_second_stop_returns_after_the_last_commit(cluster: FakeCluster) -> None:
    for number in range(2):
        cluster.put(QUEUE, b"%d" % number)
    may_answer = asyncio.Event()
    stops: list[asyncio.Task[None]] = []
    async with consumer_of(cluster) as consumer:
        consumer.assign([QUEUE])
        async for message in consumer:
            if message.body == b"1":
                cluster.delay(COMMIT, may_answer)
                stops.append(asyncio.create_task(consumer.stop()))
                await cluster.until_seen(COMMIT)
                asyncio.get_running_loop().call_soon(may_answer.set)
    assert cluster.offsets["g", QUEUE] == 1
    assert not consumer.session.is_running
    await asyncio.gather(*stops)


async def test_a_cancelled_stop_leaves_the_group_and_closes_the_connections(cluster: FakeCluster) -> None:
    cluster.put(QUEUE, b"one")
    consumer = consumer_of(cluster)
    consumer.subscribe("T")
    await consumer.start()
    await consumer.poll()
    cluster.hang(COMMIT)
    stopping = asyncio.create_task(consumer.stop())
    await cluster.until_seen(COMMIT)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert len(cluster.seen(RequestCode.UNREGISTER_CLIENT)) == 1
    assert not consumer.session.is_running


async def test_offsets_are_committed_every_few_seconds(cluster: FakeCluster) -> None:
    cluster.put(QUEUE, b"one")
    async with consumer_of(cluster, intervals=replace(HURRIED, commit_s=0.001)) as consumer:
        consumer.assign([QUEUE])
        await poll_bodies(consumer, 1)
        await consumer.poll(timeout_s=0)
        await cluster.until(lambda: cluster.offsets.get(("g", QUEUE)) == 1)
        assert all(command.is_one_way for command in cluster.seen(COMMIT))


async def test_without_auto_commit_only_the_application_commits(cluster: FakeCluster) -> None:
    for number in range(4):
        cluster.put(QUEUE, b"%d" % number)
    async with consumer_of(cluster, auto_commit=False) as consumer:
        consumer.assign([QUEUE])
        await consumer.poll(messages_max=3)
        assert cluster.seen(COMMIT) == []
        await consumer.commit()
        assert cluster.offsets["g", QUEUE] == 3
        await consumer.commit({QUEUE: 1})
        assert await consumer.committed(QUEUE) == 1
        await consumer.poll(messages_max=1)
    assert cluster.offsets["g", QUEUE] == 1


async def test_stop_does_not_undo_a_commit_of_the_application(cluster: FakeCluster) -> None:
    for number in range(4):
        cluster.put(QUEUE, b"%d" % number)
    for offsets, expected in ((None, 4), ({QUEUE: 2}, 2)):
        async with consumer_of(cluster) as consumer:
            consumer.assign([QUEUE])
            consumer.seek(QUEUE, 0)
            await poll_bodies(consumer, 4)
            await consumer.commit(offsets)
        assert cluster.offsets["g", QUEUE] == expected


async def test_a_commit_of_a_consumer_that_does_not_run_is_refused(cluster: FakeCluster) -> None:
    cluster.put(QUEUE, b"one")
    consumer = consumer_of(cluster, auto_commit=False)
    with pytest.raises(NotRunningError):
        await consumer.commit()
    async with consumer:
        consumer.subscribe("T")
        await consumer.poll()
    with pytest.raises(NotRunningError):
        await consumer.commit()


async def test_a_commit_that_is_refused_raises(cluster: FakeCluster) -> None:
    async with consumer_of(cluster, auto_commit=False) as consumer:
        cluster.refuse(COMMIT, ResponseCode.NO_PERMISSION, "not you")
        with pytest.raises(NoPermissionError, match="not you"):
            await consumer.commit({QUEUE: 1})


# -------------------------------------------------------------------------------------------------------------- group


async def test_two_members_share_the_queues_and_one_takes_over(cluster: FakeCluster) -> None:
    changes: list[AssignmentChange] = []
    first = consumer_of(cluster, instance_name="1", on_assignment_changed=changes.append)
    first.subscribe("T")
    second = consumer_of(cluster, instance_name="2")
    second.subscribe("T")
    everything = {cluster.queue("T", queue_id) for queue_id in range(4)}
    async with first:
        assert first.assignment == everything
        async with second:
            await eventually(lambda: len(first.assignment) == len(second.assignment) == 2)
            assert first.assignment | second.assignment == everything
            cluster.put(cluster.queue("T", 0), b"first's")
            cluster.put(cluster.queue("T", 3), b"second's")
            assert await poll_bodies(first, 1) == [b"first's"]
            assert await poll_bodies(second, 1) == [b"second's"]
        await eventually(lambda: first.assignment == everything)
        # It was returned, and no poll followed: it is not committed.
        assert await poll_bodies(first, 1) == [b"second's"]
    handed_over = frozenset({cluster.queue("T", 2), cluster.queue("T", 3)})
    assert changes == [
        AssignmentChange(frozenset(everything), frozenset()),
        AssignmentChange(frozenset(), handed_over),
        AssignmentChange(handed_over, frozenset()),
    ]


async def test_a_queue_is_committed_before_its_handover(cluster: FakeCluster) -> None:
    queue = cluster.queue("T", 3)
    cluster.put(queue, b"one")
    first = consumer_of(cluster, instance_name="1")
    first.subscribe("T")
    second = consumer_of(cluster, instance_name="2")
    second.subscribe("T")
    async with first:
        await poll_bodies(first, 1)
        await first.poll(timeout_s=0)
        async with second:
            await eventually(lambda: queue in second.assignment)
            await cluster.until(lambda: cluster.offsets.get(("g", queue)) == 1)


async def test_an_async_listener_can_commit_removed_queues(cluster: FakeCluster) -> None:
    queue = cluster.queue("T", 3)
    cluster.put(queue, b"one")

    async def commit(change: AssignmentChange) -> None:
        if change.removed:
            await first.commit()

    first = consumer_of(cluster, instance_name="1", auto_commit=False, on_assignment_changed=commit)
    first.subscribe("T")
    second = consumer_of(cluster, instance_name="2", auto_commit=False)
    second.subscribe("T")
    async with first:
        await poll_bodies(first, 1)
        async with second:
            await cluster.until(lambda: cluster.offsets.get(("g", queue)) == 1)


async def test_a_listener_can_stop_the_consumer(cluster: FakeCluster) -> None:
    stopped = asyncio.Event()

    async def stop(_change: AssignmentChange) -> None:
        await consumer.stop()
        stopped.set()

    consumer = consumer_of(cluster, on_assignment_changed=stop)
    await consumer.start()
    consumer.subscribe("T")
    await stopped.wait()
    assert consumer.assignment == frozenset()
    assert not consumer.session.is_running


async def test_a_stopped_subscriber_can_be_started_again(cluster: FakeCluster) -> None:
    consumer = consumer_of(cluster)
    consumer.subscribe("T")
    for body in (b"one", b"two"):
        cluster.put(QUEUE, body)
        async with consumer:
            assert await poll_bodies(consumer, 1) == [body]
            await consumer.commit()


@pytest.mark.usefixtures("expects_errors")
async def test_a_listener_that_fails_stops_nothing(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_change: AssignmentChange) -> None:
        raise RuntimeError("no")

    cluster.put(QUEUE, b"one")
    async with consumer_of(cluster, on_assignment_changed=fail) as consumer:
        consumer.subscribe("T")
        assert await poll_bodies(consumer, 1) == [b"one"]
    assert "on_assignment_changed failed" in caplog.text


async def test_new_queues_of_a_topic_are_read(cluster: FakeCluster) -> None:
    async with consumer_of(cluster) as consumer:
        consumer.subscribe("T")
        await cluster.until_seen(PULL, 4)
        cluster.topics["T"] = 5
        cluster.put(cluster.queue("T", 4), b"new")
        await consumer.session.routes.refresh("T")
        assert await poll_bodies(consumer, 1) == [b"new"]


async def test_an_unsubscribed_topic_is_given_up(cluster: FakeCluster) -> None:
    cluster.topics["U"] = 1
    async with consumer_of(cluster) as consumer:
        consumer.subscribe("T")
        consumer.subscribe("U")
        await eventually(lambda: len(consumer.assignment) == 5)
        consumer.unsubscribe("T")
        await eventually(lambda: consumer.assignment == {cluster.queue("U")})
        beat = cluster.seen(RequestCode.HEART_BEAT)[-1].value
        assert [each["topic"] for each in beat["consumerDataSet"][0]["subscriptionDataSet"]] == ["U"]


async def test_heartbeats_name_the_group_as_one_that_pulls(cluster: FakeCluster) -> None:
    async with consumer_of(cluster) as consumer:
        consumer.subscribe("T", "A || B")
        (data,) = (await cluster.until_seen(RequestCode.HEART_BEAT))[0].value["consumerDataSet"]
    assert data["groupName"] == "g"
    assert data["consumeType"] == "CONSUME_ACTIVELY"
    assert data["messageModel"] == "CLUSTERING"
    assert data["consumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"
    (subscription,) = data["subscriptionDataSet"]
    assert (subscription["topic"], subscription["subString"]) == ("T", "A || B")
    assert (subscription["tagsSet"], subscription["codeSet"]) == (["A", "B"], [65, 66])


async def test_to_subscribe_and_to_be_assigned_exclude_each_other(cluster: FakeCluster) -> None:
    consumer = consumer_of(cluster)
    consumer.subscribe("T")
    with pytest.raises(ClientError, match="cannot assign queues"):
        consumer.assign([QUEUE])
    consumer.unsubscribe("T")
    consumer.assign([QUEUE])
    with pytest.raises(ClientError, match="cannot subscribe to T"):
        consumer.subscribe("T")


async def test_assign_keeps_the_position_of_queues_in_both_assignments(cluster: FakeCluster) -> None:
    for number in range(2):
        cluster.put(QUEUE, b"a%d" % number)
    other = cluster.queue("T", 1)
    async with consumer_of(cluster) as consumer:
        consumer.assign([QUEUE, cluster.queue("T", 2)])
        assert bodies(await consumer.poll(messages_max=1)) == [b"a0"]
        consumer.assign([QUEUE, other])
        assert consumer.assignment == {QUEUE, other}
        assert bodies(await consumer.poll()) == [b"a1"]


async def test_namespaces_are_added_and_removed(cluster: FakeCluster) -> None:
    cluster.topics["ns%T"] = 1
    wire = cluster.queue("ns%T")
    cluster.put(wire, b"one")
    async with consumer_of(cluster, namespace="ns") as consumer:
        assert await consumer.queues("T") == [QUEUE]
        consumer.subscribe("T")
        (message,) = await consumer.poll()
        assert (message.topic, message.queue) == ("T", QUEUE)
        assert consumer.assignment == {QUEUE}
        await consumer.commit()
        assert await consumer.committed(QUEUE) == 1
    assert cluster.offsets["ns%g", wire] == 1
    assert cluster.seen(RequestCode.HEART_BEAT)[0].value["consumerDataSet"][0]["groupName"] == "ns%g"


# -------------------------------------------------------------------------------------------------------------- bounds


async def test_a_queue_at_its_limit_is_not_pulled_until_a_poll(cluster: FakeCluster) -> None:
    for number in range(10):
        cluster.put(QUEUE, b"%d" % number)
    async with consumer_of(cluster, queue_messages_max=4, pull_batch=2) as consumer:
        consumer.assign([QUEUE])
        await eventually(lambda: consumer._prefetch.buffered == 4)
        assert len(cluster.seen(PULL)) == 2
        assert len(await consumer.poll(messages_max=1)) == 1
        await cluster.until_seen(PULL, 3)
        await eventually(lambda: consumer._prefetch.buffered == 5)
        assert await poll_bodies(consumer, 9) == [b"%d" % number for number in range(1, 10)]


async def test_all_queues_together_have_a_bound(cluster: FakeCluster) -> None:
    for queue_id in range(4):
        for number in range(10):
            cluster.put(cluster.queue("T", queue_id), b"%d" % number)
    bounds = {"buffered_messages_max": 8, "pull_batch": 1}
    async with consumer_of(cluster, **bounds) as consumer:
        consumer.assign(await consumer.queues("T"))
        await eventually(lambda: consumer._prefetch.buffered >= 8)
        assert consumer._prefetch.buffered <= 8 + 4
        assert len(await poll_bodies(consumer, 40)) == 40


async def test_bytes_are_bounded_too(cluster: FakeCluster) -> None:
    for _ in range(4):
        cluster.put(QUEUE, bytes(1000))
    async with consumer_of(cluster, queue_bytes_max=1500, pull_batch=1) as consumer:
        consumer.assign([QUEUE])
        await eventually(lambda: consumer._prefetch.buffered == 2)
        assert len(cluster.seen(PULL)) == 2
        assert len(await poll_bodies(consumer, 4)) == 4


async def test_a_queue_has_one_pull_under_way(cluster: FakeCluster) -> None:
    cluster.hang(PULL)
    async with consumer_of(cluster) as consumer:
        consumer.assign([QUEUE])
        await cluster.until_seen(PULL)
        assert await consumer.poll(timeout_s=0.02) == []
        assert len(cluster.seen(PULL)) == 1


# -------------------------------------------------------------------------------------------------------------- faults


async def test_a_refusal_that_will_not_pass_is_raised_by_a_poll_and_the_next_poll_tries_again(
    cluster: FakeCluster,
) -> None:
    cluster.put(QUEUE, b"one")
    cluster.refuse(PULL, ResponseCode.NO_PERMISSION, "not you", times=1)
    async with consumer_of(cluster) as consumer:
        consumer.assign([QUEUE])
        with pytest.raises(NoPermissionError, match="not you"):
            await consumer.poll()
        assert bodies(await consumer.poll()) == [b"one"]


@pytest.mark.parametrize(
    "code",
    [ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.FLOW_CONTROL],
)
async def test_a_refusal_that_may_pass_is_tried_again(cluster: FakeCluster, code: int) -> None:
    cluster.put(QUEUE, b"one")
    cluster.refuse(PULL, code, "later", times=3)
    async with consumer_of(cluster) as consumer:
        consumer.assign([QUEUE])
        assert bodies(await consumer.poll()) == [b"one"]
    assert len(cluster.seen(PULL)) >= 4


async def test_4x_brokers_get_the_old_pull_request(cluster: FakeCluster) -> None:
    cluster.put(QUEUE, b"one")
    cluster.refuse(PULL, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 361 not supported")
    async with consumer_of(cluster) as consumer:
        consumer.assign([QUEUE])
        assert bodies(await consumer.poll()) == [b"one"]
        cluster.refuse(RequestCode.PULL_MESSAGE, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not even that")
        consumer.seek(QUEUE, 0)
        with pytest.raises(UnsupportedError):
            await consumer.poll()
    assert len(cluster.seen(PULL)) == 1


async def test_a_connection_cut_in_a_response_loses_no_message(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.put(QUEUE, b"one")
    cluster.cut(PULL, times=2)
    async with consumer_of(cluster) as consumer:
        consumer.assign([QUEUE])
        assert bodies(await consumer.poll()) == [b"one"]
        await cluster.until_seen(PULL, 4)
    text = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len([line for line in text if line.startswith("pull failed")]) == 1


async def test_a_broker_that_was_away_is_read_again(cluster: FakeCluster) -> None:
    async with consumer_of(cluster) as consumer:
        consumer.subscribe("T")
        await cluster.until_seen(PULL, 4)
        await cluster.broker().stop()
        cluster.put(QUEUE, b"one")
        assert await consumer.poll(timeout_s=0.01) == []
        await cluster.broker().start()
        assert await poll_bodies(consumer, 1) == [b"one"]
        assert len(consumer.assignment) == 4


async def test_without_the_committed_offset_reading_waits(cluster: FakeCluster) -> None:
    for number in range(3):
        cluster.put(QUEUE, b"%d" % number)
    cluster.offsets["g", QUEUE] = 2
    cluster.refuse(RequestCode.QUERY_CONSUMER_OFFSET, ResponseCode.SYSTEM_ERROR, "cannot say", times=2)
    async with consumer_of(cluster) as consumer:
        consumer.assign([QUEUE])
        assert await poll_bodies(consumer, 1) == [b"2"]


async def test_damaged_records_are_raised_by_a_poll(cluster: FakeCluster) -> None:
    cluster.put(QUEUE, b"one")
    offsets = {"suggestWhichBrokerId": "0", "nextBeginOffset": "1", "minOffset": "0", "maxOffset": "1"}
    damaged = Reply(fields=offsets, body=b"\x00\x00\x00\x64 not a record")
    cluster.on(PULL, lambda _command, _peer: damaged, times=1)
    async with consumer_of(cluster) as consumer:
        consumer.assign([QUEUE])
        with pytest.raises(RecordError):
            await consumer.poll()
        assert bodies(await consumer.poll()) == [b"one"]


async def test_a_queue_that_its_broker_does_not_have_is_raised_where_it_was_assigned(cluster: FakeCluster) -> None:
    async with consumer_of(cluster) as consumer:
        consumer.assign([cluster.queue("T", 9)])
        with pytest.raises(ClientError, match="illegal"):
            await consumer.poll()


async def test_a_cancelled_poll_loses_nothing(cluster: FakeCluster) -> None:
    async with consumer_of(cluster) as consumer:
        consumer.assign([QUEUE])
        polling = asyncio.create_task(consumer.poll())
        await cluster.until_seen(PULL)
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        cluster.put(QUEUE, b"one")
        assert await poll_bodies(consumer, 1) == [b"one"]


async def test_it_can_be_used_on_one_event_loop_after_the_other(cluster: FakeCluster) -> None:
    consumer = consumer_of(cluster)
    consumer.subscribe("T")

    async def use() -> list[bytes]:
        async with consumer:
            found = await poll_bodies(consumer, 1)
            await consumer.commit()
            return found + bodies(await consumer.poll(timeout_s=0.01))

    for body in (b"one", b"two"):
        cluster.put(cluster.queue("T"), body)
        assert await asyncio.to_thread(asyncio.run, use()) == [body]
