"""What Apache's Java client does among its own: both ends are Java's, and between them is our broker."""

from __future__ import annotations

import asyncio
import time

from tests.peers.client.conftest import DELAY_LEVEL, DELAY_S
from tests.peers.client.java_client import JavaClients, Place, message

LATE_S = 3.0  # a delayed message may be so much later than asked for, on a machine that is busy


async def test_every_way_to_send_reaches_every_way_to_consume(java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "JavaPlain")
    async with (
        java.consumer(place, "java-push", topic) as pushed,
        java.consumer(place, "java-tags", {topic: "red || blue"}) as by_tag,
        java.consumer(place, "java-sql", {topic: "size BETWEEN 5 AND 9 AND colour IS NOT NULL"}, is_sql=True) as by_sql,
        java.consumer(place, "java-pull", topic, kind="pullConsumer") as pulled,
        java.consumer(place, "java-assigned", {topic: "red"}, kind="pullConsumer", is_assigned=True) as assigned,
        java.producer(place) as producer,
    ):
        sent = await producer.send(topic, b"sync", tag="red", keys=["k"], properties={"size": "7", "colour": "red"})
        assert sent.status == "SEND_OK"
        assert (await producer.send(topic, b"async", tag="blue", is_async=True)).status == "SEND_OK"
        await producer.send(topic, b"one-way", tag="green", oneway=True)
        batch = [message(topic, b"batch %d" % number, tag="green", keys=[f"b{number}"]) for number in range(10)]
        assert (await producer.send_batch(batch)).message_id.count(",") == 9
        everybody = {b"sync", b"async", b"one-way", *(b"batch %d" % number for number in range(10))}
        for consumer in (pushed, pulled):
            received = await consumer.take_bodies(everybody)
            assert {each.body for each in received} == everybody
            (got,) = (each for each in received if each.body == b"sync")
            assert (got.message_id, got.queue_id, got.queue_offset) == (
                sent.message_id,
                sent.queue_id,
                sent.queue_offset,
            )
            assert (got.tag, got.keys, got.properties["colour"]) == ("red", ("k",), "red")
        assert {each.body for each in await by_tag.take(2)} == {b"sync", b"async"}
        assert [each.body for each in await by_sql.take(1)] == [b"sync"]
        assert [each.body for each in await assigned.take(1)] == [b"sync"]
        assert (len(by_tag.received), len(by_sql.received), len(assigned.received)) == (2, 1, 1)

        # Who assigns its queues itself may also go back.
        await assigned.seek(topic, 0)
        assert [each.body for each in await assigned.take(2)] == [b"sync", b"sync"]


async def test_ordered_messages_come_in_order_though_each_fails_at_first(java: JavaClients, pair: Place) -> None:
    topic = await java.create_topic(pair, "JavaOrdered")
    keys = [f"order-{number}" for number in range(6)]
    async with (
        java.producer(pair) as producer,
        java.consumer(pair, "java-ordered", topic, is_orderly=True, failures=1) as consumer,
    ):
        await consumer.await_owned(8)
        for step in range(5):
            await asyncio.gather(*(producer.send(topic, f"{key} {step}".encode(), order_key=key) for key in keys))
        received = await consumer.take(2 * 5 * len(keys))
    for key in keys:
        steps = [each.body.decode() for each in received if each.body.startswith(f"{key} ".encode())]
        assert steps == [f"{key} {step}" for step in range(5) for _ in range(2)]


async def test_delayed_failed_and_broadcast_messages(java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "JavaLate")
    async with (
        java.consumer(place, "java-late", topic, failures=1) as consumer,
        java.consumer(place, "java-never", topic, failures=99, reconsume_times_max=1) as never,
        java.consumer(place, "java-all", topic, is_broadcast=True) as one,
        java.consumer(place, "java-all", topic, is_broadcast=True) as other,
        java.producer(place) as producer,
    ):
        for each in (consumer, never, one, other):
            await each.await_owned(4)
        began = time.time()
        await producer.send(topic, b"now")
        await producer.send(topic, b"level", delay_level=DELAY_LEVEL)
        await producer.send(topic, b"after", delay_ms=1500)
        due_s = {b"now": 0.0, b"level": DELAY_S, b"after": 1.5}
        for received in (await one.take(3), await other.take(3)):
            arrived_s = {each.body: each.stored_ms / 1000 - began for each in received}
            assert set(arrived_s) == set(due_s)
            for body, delay_s in due_s.items():
                assert delay_s - 0.2 <= arrived_s[body] <= delay_s + LATE_S
        for each in (consumer, never):
            tries = sorted((got.body, got.reconsume_times) for got in await each.take(6))
            assert tries == sorted((body, attempt) for body in due_s for attempt in (0, 1))
        async with java.consumer(place, "java-dead", "%DLQ%java-never") as dead:
            assert {each.body for each in await dead.take(3)} == set(due_s)


async def test_transactions_among_java_producers(java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "JavaTransactions")
    scripts = {
        b"committed": ("commit", "rollback"),
        b"rolled back": ("rollback", "commit"),
        b"asked once": ("unknown", "commit"),
        b"asked twice": ("unknown", "unknown,commit"),
        b"asked in vain": ("unknown", "rollback"),
    }
    async with (
        java.consumer(place, "java-transactions", topic) as consumer,
        java.producer(place, "java-transactions", transactional=True) as producer,
    ):
        for body, (outcome, checks) in scripts.items():
            await producer.send(topic, body, properties={"outcome": outcome, "checks": checks})
        wanted = {b"committed", b"asked once", b"asked twice"}
        received = await consumer.take_bodies(wanted)
        asked = {each.body for each in await producer.checks(4)}
        assert asked == {b"asked once", b"asked twice", b"asked in vain"}
        assert {each.body for each in received} == wanted
