"""Our consumers receive messages of Apache's producers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from skyroute import Compression, MessageModel, PullConsumer, StartPosition, StoredMessage, sql
from skyroute.client.consuming.offset_store import FileOffsets
from tests.peers.client.conftest import DELAY_LEVEL, DELAY_S
from tests.peers.client.java_client import JavaClients, Place, message
from tests.peers.client.python_client import consuming

LATE_S = 3.0  # a delayed message may be so much later than asked for, on a machine that is busy


async def test_plain_messages_arrive_with_all_they_carry(java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "TakenPlain")
    async with (
        consuming(place, "taken-plain", topic) as everything,
        consuming(place, "taken-tags", {topic: "red || blue"}) as by_tag,
        consuming(place, "taken-sql", {topic: sql("size > 5 AND colour = 'blue'")}) as by_sql,
        java.producer(place) as producer,
    ):
        properties = {"size": "7", "colour": "blue", "note": "grün 绿"}
        blue = await producer.send(topic, b"blue", tag="blue", keys=["k1", "k2"], properties=properties)
        await producer.send(topic, b"red", tag="red", properties={"size": "7", "colour": "red"})
        await producer.send(topic, b"green", tag="green", oneway=True)
        await producer.send_batch(message(topic, b"batch %d" % number, tag="green") for number in range(10))

        everybody = {b"blue", b"red", b"green", *(b"batch %d" % number for number in range(10))}
        received = {each.body: each for each in await everything.take_bodies(everybody)}
        assert set(received) == everybody
        got = received[b"blue"]
        assert (got.message_id, got.broker_name, got.queue_id, got.queue_offset) == (
            blue.message_id,
            blue.broker,
            blue.queue_id,
            blue.queue_offset,
        )
        assert (got.topic, got.tag, got.keys, got.user_properties) == (topic, "blue", ("k1", "k2"), properties)
        assert {each.body for each in await by_tag.take(2)} == {b"blue", b"red"}
        assert [each.body for each in await by_sql.take(1)] == [b"blue"]
        assert (len(by_tag.received), len(by_sql.received)) == (2, 1)


async def test_ordered_messages_come_in_order_though_some_fail_at_first(java: JavaClients, pair: Place) -> None:
    topic = await java.create_topic(pair, "TakenOrdered")
    keys = [f"order-{number}" for number in range(6)]
    async with (
        java.producer(pair) as producer,
        consuming(pair, "taken-ordered", topic, ordered=True, suspend_s=0.1, failures=1) as inbox,
    ):
        await inbox.await_owned(8)
        for step in range(5):
            await asyncio.gather(*(producer.send(topic, f"{key} {step}".encode(), order_key=key) for key in keys))
        received = await inbox.take(2 * 5 * len(keys))
        for key in keys:
            steps = [each.body.decode() for each in received if each.body.startswith(f"{key} ".encode())]
            assert steps == [f"{key} {step}" for step in range(5) for _ in range(2)]


async def test_delayed_messages_arrive_when_they_should(java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "TakenDelayed")
    async with consuming(place, "taken-delayed", topic) as inbox, java.producer(place) as producer:
        began = time.time()
        await producer.send(topic, b"level", delay_level=DELAY_LEVEL)
        await producer.send(topic, b"after", delay_ms=1500)
        await producer.send(topic, b"at", deliver_at_ms=round((began + 2) * 1000))
        received = await inbox.take(3)
        arrived_s = {each.body: each.stored_at.timestamp() - began for each in received}
        for body, delay_s in {b"level": DELAY_S, b"after": 1.5, b"at": 2.0}.items():
            assert delay_s - 0.2 <= arrived_s[body] <= delay_s + LATE_S


@pytest.mark.parametrize("compression", list(Compression))
async def test_large_and_compressed_bodies_arrive_whole(
    java: JavaClients, place: Place, compression: Compression
) -> None:
    topic = await java.create_topic(place, f"TakenCompressed-{compression.name}")
    async with (
        consuming(place, f"taken-{compression.name}", topic) as inbox,
        java.producer(place, compression=compression.name, compress_over=4096) as compressing,
        java.producer(place) as plain,
    ):
        text = b"all work and no play " * 190_000
        await compressing.send(topic, text)
        (received,) = await inbox.take(1)
        assert received.body == text
        if compression is Compression.ZLIB:
            body = bytes(range(256)) * (16 * 1024 - 4)  # 4 MiB is the limit of client and broker alike
            await plain.send(topic, body)
            assert (await inbox.take(2))[1].body == body


async def test_failed_messages_are_retried_and_end_in_the_dead_letter_queue(java: JavaClients, place: Place) -> None:
    """Java's consumer reads our dead letters, and ours reads Java's."""
    topic = await java.create_topic(place, "TakenBadly")
    async with (
        consuming(place, "taken-badly", topic, failures=99, reconsume_times_max=2) as inbox,
        java.consumer(place, "taken-badly-java", topic, failures=99, reconsume_times_max=2) as java_inbox,
        consuming(place, "taken-at-last", topic, failures=2) as at_last,
        java.producer(place) as producer,
    ):
        await inbox.await_owned(4)
        await java_inbox.await_owned(4)
        sent = await producer.send(topic, b"bad", tag="t", keys=["k"], properties={"p": "v"})
        received, by_java, in_the_end = await asyncio.gather(inbox.take(3), java_inbox.take(3), at_last.take(3))
        assert [each.reconsume_times for each in received] == [0, 1, 2]
        assert [each.reconsume_times for each in by_java] == [0, 1, 2]
        assert [each.reconsume_times for each in in_the_end] == [0, 1, 2]
        assert {each.topic for each in received} == {topic}
        assert {each.message_id for each in received} == {sent.message_id}
        async with (
            java.consumer(place, "taken-ours-dead", "%DLQ%taken-badly") as ours_dead,
            consuming(place, "taken-java-s-dead", "%DLQ%taken-badly-java") as java_s_dead,
        ):
            (ours,) = await ours_dead.take(1)
            (theirs,) = await java_s_dead.take(1)
    assert (ours.body, ours.tag, ours.keys, ours.properties["p"]) == (b"bad", "t", ("k",), "v")
    assert (theirs.body, theirs.tag, theirs.keys, theirs.user_properties["p"]) == (b"bad", "t", ("k",), "v")
    # What a tool shows of a dead letter: where it came from, and which message it was.
    assert ours.properties["RETRY_TOPIC"] == theirs.find_property("RETRY_TOPIC") == topic
    assert ours.properties["ORIGIN_MESSAGE_ID"] == theirs.find_property("ORIGIN_MESSAGE_ID")
    assert (len(inbox.received), len(java_inbox.received), len(at_last.received)) == (3, 3, 3)


async def test_broadcasting_delivers_every_message_to_every_member(
    java: JavaClients, place: Place, tmp_path: Path
) -> None:
    topic = await java.create_topic(place, "TakenByAll")
    group = "taken-by-all"

    def member(number: int) -> dict[str, Any]:
        return {
            "model": MessageModel.BROADCASTING,
            "instance_name": f"member-{number}",
            "offsets": FileOffsets(f"member-{number}", group, directory=tmp_path),
        }

    async with (
        java.producer(place) as producer,
        java.consumer(place, group, topic, is_broadcast=True) as theirs,
        consuming(place, group, topic, **member(1)) as first,
    ):
        async with consuming(place, group, topic, **member(2)) as second:
            bodies = {b"%d" % number for number in range(20)}
            for body in bodies:
                await producer.send(topic, body)
            for received in (await theirs.take(20), await first.take(20), await second.take(20)):
                assert {each.body for each in received} == bodies
        await producer.send(topic, b"later")
        await first.take(21)
        async with consuming(place, group, topic, start=StartPosition.LAST, **member(2)) as again:
            (received_later,) = await again.take(1)
            assert received_later.body == b"later"


async def test_a_pull_consumer_reads_seeks_and_commits(java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "TakenByPull", queues=2)
    bodies = [b"%d" % number for number in range(40)]
    async with java.producer(place) as producer:
        for body in bodies:
            await producer.send(topic, body)

        async with PullConsumer("taken-by-pull", start=StartPosition.FIRST, **place.python) as consumer:
            consumer.subscribe(topic)
            first = await _poll(consumer, 40)
            assert {each.body for each in first} == set(bodies)
            await consumer.commit()
            queue = min(consumer.assignment)
            await consumer.seek_to_begin(queue)
            # About half of them: a send that Java tried twice skips a queue.
            again = await _poll(consumer, sum(each.queue == queue for each in first))
            assert {each.queue for each in again} == {queue}
            await consumer.commit()

        # Java goes on where ours has committed.
        async with java.consumer(place, "taken-by-pull", topic, kind="pullConsumer") as theirs:
            await theirs.await_owned(2)
            await producer.send(topic, b"after")
            (after,) = await theirs.take(1)
            assert after.body == b"after"

        async with PullConsumer("taken-by-assignment", **place.python) as consumer:
            queues = await consumer.queues(topic)
            consumer.assign(queues)
            for queue in queues:
                consumer.seek(queue, 15)
            assert len({each.body for each in await _poll(consumer, 11)}) == 11


async def _poll(consumer: PullConsumer, count: int) -> list[StoredMessage]:
    messages: list[StoredMessage] = []
    async with asyncio.timeout(30):
        while len(messages) < count:
            messages += await consumer.poll(timeout_s=1.0)
    return messages
