"""The simple consumer on our brokers: receive, acknowledge, and handlers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skyroute import Message, SimpleConsumer, StoredMessage
from skyroute.client.consuming import simple_consumer
from skyroute.client.errors import NotRunningError
from skyroute.clock import SystemClock
from tests.network.broker.clusters import Cluster
from tests.support.waiting import eventually


@pytest.fixture
async def cluster(empty_cluster: Cluster) -> Cluster:
    """Two brokers with the topic T."""
    for name in ("broker-a", "broker-b"):
        await empty_cluster.start(name, clock=SystemClock())
        await empty_cluster.add_topic("T", 2)
    return empty_cluster


def consumer_of(cluster: Cluster, **settings: Any) -> SimpleConsumer:
    consumer = SimpleConsumer("g", cluster.name_server_address, **settings)
    consumer.subscribe("T")
    return consumer


async def test_a_waiting_receive_gets_a_message_of_any_broker(cluster: Cluster) -> None:
    async with consumer_of(cluster) as consumer:
        for number in range(6):  # queues of both brokers in turn
            waiting = asyncio.create_task(consumer.receive(wait_s=20))
            await asyncio.sleep(0.1)
            await cluster.send(Message("T", b"%d" % number))
            async with asyncio.timeout(10):
                (message,) = await waiting
            assert message.body == b"%d" % number
            await consumer.ack(message)
        assert await consumer.receive(wait_s=0) == []


async def test_a_namespace_is_invisible(cluster: Cluster) -> None:
    await cluster.add_topic("N%T", 1)
    async with consumer_of(cluster, namespace="N") as consumer, cluster.producer() as producer:
        await producer.send(Message("N%T", b"x"))
        (message,) = await consumer.receive(wait_s=10)
        assert message.topic == "T"
        renewed = await consumer.change_invisible_time(message, 10)
        assert renewed.find_property("POP_CK") != message.find_property("POP_CK")
        await consumer.ack(renewed)


async def test_a_message_whose_handler_failed_comes_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simple_consumer, "RETRY_DELAYS_S", (1,))
    calls: list[tuple[bytes, int]] = []

    def handle(message: StoredMessage) -> None:
        calls.append((message.body, message.reconsume_times))
        if message.body == b"fails" and not message.reconsume_times:
            raise ValueError("on purpose")

    async with consumer_of(cluster) as consumer:
        running = asyncio.create_task(consumer.run(handle, invisible_s=60))
        await cluster.send(Message("T", b"plain"), Message("T", b"fails"))
        await eventually(lambda: len(calls) == 3, timeout_s=30)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert sorted(calls) == [(b"fails", 0), (b"fails", 1), (b"plain", 0)]


async def test_a_stopped_consumer_says_so(cluster: Cluster) -> None:
    consumer = consumer_of(cluster)
    with pytest.raises(NotRunningError):
        await consumer.receive()
    async with consumer:
        assert await consumer.receive(wait_s=0) == []
    with pytest.raises(NotRunningError):
        await consumer.receive()
