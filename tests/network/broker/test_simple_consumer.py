"""The simple consumer on our brokers: receive, acknowledge, and handlers."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest

from skyroute import Message, SimpleConsumer, StoredMessage
from skyroute.client.consuming import pop_handlers, pop_targets, simple_consumer
from skyroute.client.errors import NotRunningError
from skyroute.clock import SystemClock
from skyroute.wire.codes import RequestCode
from tests.network.broker.clusters import Cluster
from tests.support.disks import bodies
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
    monkeypatch.setattr(pop_handlers, "RETRY_DELAYS_S", (1,))
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


async def test_a_message_that_always_fails_becomes_a_dead_letter(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_handlers, "RETRY_DELAYS_S", (1,))
    attempts: list[int] = []

    def handle(message: StoredMessage) -> None:
        attempts.append(message.reconsume_times)
        raise ValueError("on purpose")

    def dead_letters() -> list[bytes]:
        stores = [broker.components.store for broker in cluster.brokers]
        return [body for store in stores for body in bodies(store, "%DLQ%g", 0)]

    async with consumer_of(cluster) as consumer:
        running = asyncio.create_task(consumer.run(handle, invisible_s=60, retries_max=1))
        await cluster.send(Message("T", b"fails"))
        await eventually(lambda: dead_letters() == [b"fails"], timeout_s=30)
        in_flight = [broker.components.in_flight for broker in cluster.brokers]
        await eventually(lambda: not any(map(len, in_flight)), timeout_s=10)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert attempts == [0, 1]


async def test_members_receive_from_the_queues_that_a_broker_assigns(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (simple_consumer, pop_targets):
        monkeypatch.setattr(module, "ASSIGNMENT_S", 0.05)
    mode = {"topic": "T", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 1}
    for broker in cluster.brokers:
        line = await cluster.line(address=broker.address)
        assert (await line.call(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(mode).encode())).code == 0
    async with AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(consumer_of(cluster, assigned=True, instance_name=f"member-{at}"))
            for at in range(3)
        ]
        for member in members:
            assert await member.receive(wait_s=0) == []  # joins the group
        await asyncio.sleep(0.1)  # until the assignments are asked for again
        found: list[set[tuple[str, int]]] = [set(), set(), set()]
        for number in range(60):
            await cluster.send(Message("T", b"%d" % number))
            for at in (number, number + 1, number + 2):
                for message in await members[at % 3].receive(wait_s=0):
                    found[at % 3].add((message.broker_name, message.queue_id))
                    await members[at % 3].ack(message)
    # Four queues for three members; each also has those of the next member.
    assert set().union(*found) == {(name, at) for name in ("broker-a", "broker-b") for at in (0, 1)}
    assert all(1 <= len(queues) <= 3 for queues in found)


async def test_a_member_of_a_group_that_pulls_receives_from_all_queues(cluster: Cluster) -> None:
    async with consumer_of(cluster, assigned=True) as consumer:
        await cluster.send(Message("T", b"x"))
        # The group's mode is PULL: such assignments are for consumers that pull.
        (message,) = await consumer.receive(wait_s=10)
        await consumer.ack(message)


async def test_a_stopped_consumer_says_so(cluster: Cluster) -> None:
    consumer = consumer_of(cluster)
    with pytest.raises(NotRunningError):
        await consumer.receive()
    async with consumer:
        assert await consumer.receive(wait_s=0) == []
    with pytest.raises(NotRunningError):
        await consumer.receive()
