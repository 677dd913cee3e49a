"""Our consumer of POP on brokers of others: receipts, redelivery, order, and handlers."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from skyroute import Message, Producer, SimpleConsumer, StoredMessage, blocking
from skyroute.client.admin import Admin
from skyroute.client.errors import ArgumentError
from skyroute.errors import SkyrouteError
from skyroute.wire.codes import RequestCode
from tests.peers.client.java_client import JavaClients, Place
from tests.support.raw import RawConnection
from tests.support.waiting import eventually

SHORT_S = 3.0
AGAIN_S = 40.0
"""Apache's brokers deliver a message again some seconds after it has become visible, under load later."""


async def send(place: Place, topic: str, count: int, **parts: Any) -> set[bytes]:
    bodies = [str(number).encode() for number in range(count)]
    async with Producer("simple-producer", **place.python) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, **parts))
    return set(bodies)


async def receive_all(consumer: SimpleConsumer, bodies: set[bytes], **how: float) -> list[StoredMessage]:
    """Receive until all bodies were received."""
    found: list[StoredMessage] = []
    async with asyncio.timeout(AGAIN_S):
        while not bodies <= {message.body for message in found}:
            found += await consumer.receive(32, wait_s=5, **how)
    return found


async def test_messages_of_all_brokers_are_received_once_and_acknowledged(java: JavaClients, pair: Place) -> None:
    topic = await java.create_topic(pair, "SimpleAcked")
    bodies = await send(pair, topic, 40)
    async with SimpleConsumer("simple-acked", **pair.python) as consumer:
        consumer.subscribe(topic)
        found = await receive_all(consumer, bodies, invisible_s=SHORT_S * 3)
        assert sorted(message.body for message in found) == sorted(bodies)
        assert {message.broker_name for message in found} == {"first", "second"}
        await consumer.ack(*found)
        assert await consumer.receive(32, wait_s=SHORT_S * 6) == []


async def test_a_message_without_acknowledgement_comes_again(java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "SimpleAgain", queues=1)
    bodies = await send(place, topic, 1)
    async with SimpleConsumer("simple-again", **place.python) as consumer:
        consumer.subscribe(topic)
        (first,) = await receive_all(consumer, bodies, invisible_s=SHORT_S)
        (again,) = await receive_all(consumer, bodies, invisible_s=SHORT_S)
        assert (first.reconsume_times, again.reconsume_times) == (0, 1)
        assert again.topic == topic
        await consumer.ack(again)
        assert await consumer.receive(wait_s=SHORT_S * 4) == []


async def test_the_invisible_time_of_a_message_can_be_changed(java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "SimpleChanged", queues=1)
    bodies = await send(place, topic, 1)
    async with SimpleConsumer("simple-changed", **place.python) as consumer:
        consumer.subscribe(topic)
        (message,) = await receive_all(consumer, bodies, invisible_s=SHORT_S)
        longer = await consumer.change_invisible_time(message, 60)
        assert await consumer.receive(wait_s=SHORT_S * 4) == []
        await consumer.change_invisible_time(longer, 1)
        (again,) = await receive_all(consumer, bodies, invisible_s=60)
        await consumer.ack(again)


async def test_only_wanted_tags_are_received(java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "SimpleTags")
    await send(place, topic, 4, tag="other")
    async with SimpleConsumer("simple-tags", **place.python) as consumer:
        consumer.subscribe(topic, "paid")
        async with Producer("simple-producer", **place.python) as producer:
            await producer.send(Message(topic, b"x", tag="paid"))
        assert [message.body for message in await receive_all(consumer, {b"x"})] == [b"x"]


async def test_an_ordered_queue_is_blocked_until_its_messages_are_acknowledged(java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "SimpleOrdered", queues=1)
    bodies = await send(place, topic, 4, sharding_key="k")
    async with SimpleConsumer("simple-ordered", ordered=True, **place.python) as consumer:
        consumer.subscribe(topic)
        first = await receive_all(consumer, {b"0", b"1"}, invisible_s=60)
        assert [message.body for message in first] == sorted(bodies)[: len(first)]
        assert await consumer.receive(wait_s=1) == []
        await consumer.ack(*first)
        rest = await receive_all(consumer, bodies - {message.body for message in first}, invisible_s=60)
        await consumer.ack(*rest)


async def test_handlers_acknowledge_delay_and_keep_messages(java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "SimpleHandled")
    calls: list[tuple[bytes, int]] = []

    async def handle(message: StoredMessage) -> None:
        calls.append((message.body, message.reconsume_times))
        if message.body == b"slow":
            await asyncio.sleep(SHORT_S * 4)  # longer than the message is invisible: it must be renewed
        if message.body == b"fails" and not message.reconsume_times:
            raise ValueError("on purpose")

    async with SimpleConsumer("simple-handled", **place.python) as consumer:
        consumer.subscribe(topic)
        running = asyncio.create_task(consumer.run(handle, invisible_s=SHORT_S))
        async with Producer("simple-producer", **place.python) as producer:
            for body in (b"plain", b"slow", b"fails"):
                await producer.send(Message(topic, body))
        await eventually(lambda: len(calls) >= 4, timeout_s=AGAIN_S)
        await asyncio.sleep(SHORT_S * 4)  # for a message that comes too often
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert sorted(calls) == [(b"fails", 0), (b"fails", 1), (b"plain", 0), (b"slow", 0)]


async def test_assigned_queues_are_received_and_failures_become_dead_letters(java: JavaClients, place: Place) -> None:
    topic, group = await java.create_topic(place, "SimpleAssigned"), "simple-assigned"
    mode = {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}
    for address in place.brokers:
        with RawConnection(address) as line:
            assert line.call(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(mode).encode()).code == 0
    calls: list[bytes] = []

    def handle(message: StoredMessage) -> None:
        calls.append(message.body)
        if message.body == b"3":
            raise ValueError("on purpose")

    async with SimpleConsumer(group, **place.python, assigned=True) as consumer, Admin(**place.python) as admin:
        consumer.subscribe(topic)
        running = asyncio.create_task(consumer.run(handle, retries_max=0))
        bodies = await send(place, topic, 6)
        await eventually(lambda: set(calls) == bodies, timeout_s=AGAIN_S)
        async with asyncio.timeout(AGAIN_S):
            while await _dead_letters(admin, group) != 1:  # noqa: ASYNC110 - a broker makes it
                await asyncio.sleep(0.2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert sorted(calls) == sorted(bodies)


async def _dead_letters(admin: Admin, group: str) -> int:
    try:
        status = await admin.topic_status(f"%DLQ%{group}")
    except SkyrouteError:  # there is no such topic yet
        return 0
    return sum(span.max_offset for span in status.queues.values())


async def test_the_blocking_consumer_receives_and_acknowledges(java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "SimpleBlocking")
    bodies = await send(place, topic, 3)

    def consume() -> set[bytes]:
        found: set[bytes] = set()
        with blocking.SimpleConsumer("simple-blocking", **place.python) as consumer:
            consumer.subscribe(topic)
            deadline = time.monotonic() + AGAIN_S
            while found != bodies and time.monotonic() < deadline:
                messages = consumer.receive(2, wait_s=2)
                consumer.ack(*messages)
                found |= {message.body for message in messages}
        return found

    assert await asyncio.to_thread(consume) == bodies


async def test_a_message_that_was_not_received_cannot_be_acknowledged(java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "SimpleForeign")
    await send(place, topic, 1)
    async with SimpleConsumer("simple-foreign", **place.python) as consumer:
        with pytest.raises(ArgumentError, match="subscribe"):
            await consumer.receive(wait_s=1)
        consumer.subscribe(topic)
        (message,) = await receive_all(consumer, {b"0"})
        with pytest.raises(ArgumentError, match="receive"):
            await consumer.ack(message.with_properties({}))
        with pytest.raises(ArgumentError, match="count_max"):
            await consumer.receive(33)
