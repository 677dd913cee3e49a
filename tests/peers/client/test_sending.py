"""Apache's consumers receive messages of our producers."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from skyroute import Compression, Message, Producer
from tests.peers.client.conftest import DELAY_LEVEL, DELAY_S
from tests.peers.client.java_client import JavaClients, Place

LATE_S = 3.0  # a delayed message may be so much later than asked for, on a machine that is busy


async def test_plain_messages_arrive_with_all_they_carry(java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "SentPlain")
    async with (
        java.consumer(place, "sent-plain", topic) as everything,
        java.consumer(place, "sent-tags", {topic: "red || blue"}) as by_tag,
        java.consumer(place, "sent-sql", {topic: "size > 5 AND colour = 'blue'"}, is_sql=True) as by_sql,
        java.consumer(place, "sent-pulled", topic, kind="pullConsumer") as pulled,
        Producer("python-producers", **place.python) as producer,
        Producer("python-producers", vip_channel=True, **place.python) as by_the_fast_port,
    ):
        properties = {"size": "7", "colour": "blue", "note": "grün 绿"}
        blue = await producer.send(Message(topic, b"blue", tag="blue", keys=("k1", "k2"), properties=properties))
        await producer.send(Message(topic, b"red", tag="red", properties={"size": "7", "colour": "red"}))
        await producer.send_oneway(Message(topic, "grün".encode(), tag="green", properties={"size": "1"}))
        await by_the_fast_port.send(Message(topic, b"bare"))

        everybody = {b"blue", b"red", "grün".encode(), b"bare"}
        received = {each.body: each for each in await everything.take_bodies(everybody)}
        assert set(received) == everybody
        got = received[b"blue"]
        assert blue.ok
        assert (got.message_id, got.broker, got.queue_id, got.queue_offset) == (
            blue.message_id,
            blue.queue.broker_name,
            blue.queue.queue_id,
            blue.queue_offset,
        )
        assert (got.tag, got.keys) == ("blue", ("k1", "k2"))
        assert got.properties | properties == got.properties
        assert {each.body for each in await by_tag.take(2)} == {b"blue", b"red"}
        assert [each.body for each in await by_sql.take(1)] == [b"blue"]
        assert {each.body for each in await pulled.take_bodies(everybody)} == everybody
        assert (len(by_tag.received), len(by_sql.received)) == (2, 1)


async def test_the_first_send_creates_a_topic(java: JavaClients, place: Place) -> None:
    async with Producer("python-producers", **place.python) as producer:
        results = [await producer.send(Message("SentToNobody", b"%d" % number)) for number in range(8)]
        assert {result.queue.broker_name for result in results} == {"first"}
    async with java.consumer(place, "sent-to-nobody", "SentToNobody") as consumer:
        assert len(await consumer.take(8)) == 8


async def test_messages_with_one_sharding_key_keep_their_order_and_share_java_s_queue(
    java: JavaClients, pair: Place
) -> None:
    topic = await java.create_topic(pair, "SentOrdered")
    keys = [f"order-{number}" for number in range(12)]
    async with (
        Producer("python-producers", **pair.python) as producer,
        java.producer(pair) as java_producer,
        java.consumer(pair, "sent-ordered", topic, is_orderly=True) as consumer,
    ):
        for step in range(5):
            sent = await asyncio.gather(
                *(producer.send(Message(topic, f"{key} {step}".encode(), sharding_key=key)) for key in keys)
            )
            by_java = await asyncio.gather(
                *(java_producer.send(topic, f"{key} {step} java".encode(), order_key=key) for key in keys)
            )
            assert [(each.queue.broker_name, each.queue.queue_id) for each in sent] == [
                (each.broker, each.queue_id) for each in by_java
            ]
        received = await consumer.take(2 * 5 * len(keys))
        assert len({each.broker for each in received}) == 2
        for key in keys:
            steps = [
                each.body.decode().removeprefix(f"{key} ")
                for each in received
                if each.body.startswith(f"{key} ".encode())
            ]
            assert steps == [f"{step}{who}" for step in range(5) for who in ("", " java")]


async def test_a_batch_arrives_as_single_messages_and_a_long_one_is_cut(java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "SentBatch")
    async with (
        java.consumer(place, "sent-batch", topic) as consumer,
        Producer("python-producers", **place.python) as producer,
    ):
        small = [Message(topic, b"small %d" % number, tag="s", keys=f"k{number}") for number in range(20)]
        large = [Message(topic, b"%d" % number * 300_000) for number in range(10)]
        results = await producer.send_batch([*small, *large])
        assert all(result.ok for result in results)
        received = {each.body: each for each in await consumer.take_bodies({each.body for each in (*small, *large)})}
        for message, result in zip((*small, *large), results, strict=True):
            got = received[message.body]
            assert (got.message_id, got.tag, got.keys) == (result.message_id, message.tag, message.keys)
            assert (got.queue_id, got.queue_offset) == (result.queue.queue_id, result.queue_offset)
        assert len(consumer.received) == 30


async def test_delayed_messages_arrive_when_they_should(java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "SentDelayed")
    async with (
        java.consumer(place, "sent-delayed", topic) as consumer,
        Producer("python-producers", **place.python) as producer,
    ):
        began = time.time()
        at = datetime.now(UTC) + timedelta(seconds=2)
        await producer.send(Message(topic, b"level", delay_level=DELAY_LEVEL))
        await producer.send(Message(topic, b"after", deliver_after_s=1.5))
        await producer.send(Message(topic, b"at", deliver_at=at))
        await producer.send(Message(topic, b"now"))
        received = await consumer.take(4)
        arrived_s = {each.body: each.stored_ms / 1000 - began for each in received}
        for body, delay_s in {b"level": DELAY_S, b"after": 1.5, b"at": 2.0}.items():
            assert delay_s - 0.2 <= arrived_s[body] <= delay_s + LATE_S
        assert arrived_s[b"now"] < 1.0


@pytest.mark.parametrize("compression", list(Compression))
async def test_large_and_compressed_bodies_arrive_whole(
    java: JavaClients, place: Place, compression: Compression
) -> None:
    topic = await java.create_topic(place, f"SentCompressed-{compression.name}")
    async with (
        java.consumer(place, f"sent-{compression.name}", topic) as consumer,
        Producer("python-producers", compression=compression, send_timeout_s=10, **place.python) as producer,
    ):
        text = b"all work and no play " * 190_000
        await producer.send(Message(topic, text))
        (received,) = await consumer.take(1)
        assert received.body == text
        assert received.sys_flag >> 8 & 7 == compression  # Java takes off the flag of a compressed body, not the kind


async def test_the_largest_body_that_does_not_shrink_arrives(java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "SentLarge")
    async with (
        java.consumer(place, "sent-large", topic) as consumer,
        Producer("python-producers", compress_from_bytes=1 << 30, send_timeout_s=10, **place.python) as producer,
    ):
        body = bytes(range(256)) * (16 * 1024 - 4)  # 4 MiB is the limit of client and broker alike
        await producer.send(Message(topic, body))
        (received,) = await consumer.take(1)
        assert received.body == body
