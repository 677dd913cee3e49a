"""Delayed messages, retries and dead letters, with a real broker and our clients."""

from datetime import UTC, datetime
from typing import Any

import pytest

from skyroute.broker.broker import Broker
from skyroute.client.errors import BrokerRefusedError, NoPermissionError
from skyroute.clock import Clock, SystemClock
from skyroute.message.message import Message, StoredMessage
from skyroute.message.reserved_topics import TIMER_TOPIC
from tests.network.broker.clusters import Cluster
from tests.network.client.consumers import Inbox
from tests.support.waiting import eventually


@pytest.fixture
async def cluster(empty_cluster: Cluster) -> Cluster:
    return empty_cluster


async def start(cluster: Cluster, clock: Clock | None = None, **settings: Any) -> Broker:
    """Replace the running broker by a new one."""
    if cluster.brokers:
        await cluster.stop()
    await cluster.start(clock=clock, **settings)
    await cluster.add_topic("T")
    return cluster.broker


async def test_delayed_messages_are_delivered_when_they_are_due(cluster: Cluster) -> None:
    await start(cluster, SystemClock(), delay_level_list="1s")
    inbox = Inbox()
    consumer = cluster.consumer()
    consumer.on("T")(inbox)
    async with consumer, cluster.producer() as producer:
        for message in (
            Message("T", b"at a level", delay_level=1),
            Message("T", b"after a while", deliver_after_s=0.001),
            Message("T", b"at a time", deliver_at=datetime.fromtimestamp(0, UTC)),
        ):
            await producer.send(message)
        assert sorted(await inbox.until(3)) == [b"after a while", b"at a level", b"at a time"]
    (late,) = [stored for stored in inbox.messages if stored.body == b"at a level"]
    assert late.stored_at_ms - late.born_at_ms >= 1_000
    assert late.properties["REAL_TOPIC"] == "T"


async def test_a_failed_message_is_retried_and_then_becomes_a_dead_letter(cluster: Cluster) -> None:
    broker = await start(cluster, SystemClock(), delay_level_list="0s 0s 0s 0s")
    attempts: list[int] = []

    async def fail(message: StoredMessage) -> None:
        attempts.append(message.reconsume_times)
        raise ValueError("never")

    consumer = cluster.consumer(reconsume_times_max=2)
    consumer.on("T")(fail)
    async with consumer, cluster.producer() as producer:
        await producer.send(Message("T", b"x"))
        await eventually(lambda: broker.components.store.max_offset("%DLQ%g", 0) == 1)
    assert attempts == [0, 1, 2]
    assert {"%RETRY%g", "%DLQ%g"} <= set(cluster.name_server.server.table.topics)


async def test_a_recalled_message_is_never_delivered(cluster: Cluster) -> None:
    clock = cluster.clock
    broker = await start(cluster, recall_enabled=True)
    due = datetime.fromtimestamp(clock.wall() + 60, UTC)
    inbox = Inbox()
    consumer = cluster.consumer()
    consumer.on("T")(inbox)
    async with consumer, cluster.producer() as producer:
        recalled = await producer.send(Message("T", b"recalled", deliver_at=due))
        await producer.send(Message("T", b"kept", deliver_at=due))
        assert recalled.recall_handle is not None
        await producer.recall("T", recalled.recall_handle)
        clock.advance(61)
        # The last message wakes tasks that wait by the manual clock.
        await producer.send(Message("T", b"the last", deliver_after_s=0.001))
        clock.advance(2)
        assert (await inbox.until(1))[0] == b"kept"
        await eventually(lambda: len(broker.components.timers) == 0)
        with pytest.raises(BrokerRefusedError, match="timestamp invalid"):
            await producer.recall("T", recalled.recall_handle)
    assert b"recalled" not in inbox.bodies


async def test_a_recall_that_is_off_names_the_setting(cluster: Cluster) -> None:
    await start(cluster)
    async with cluster.producer() as producer:
        sent = await producer.send(Message("T", b"x", deliver_after_s=60))
        assert sent.recall_handle is not None
        with pytest.raises(NoPermissionError, match="recallMessageEnable is false"):
            await producer.recall("T", sent.recall_handle)


async def test_delayed_messages_survive_a_broker_restart(cluster: Cluster) -> None:
    clock = cluster.clock
    broker = await start(cluster)
    async with cluster.producer() as producer:
        await producer.send(Message("T", b"at a level", delay_level=2))
        await producer.send(Message("T", b"after a while", deliver_after_s=5))
    assert broker.components.store.max_offset(TIMER_TOPIC, 0) == 1
    broker = await start(cluster)
    assert broker.components.store.max_offset("T", 0) == 0
    clock.advance(6)
    broker = await start(cluster)
    await eventually(lambda: broker.components.store.max_offset("T", 0) == 2)
    clock.advance(60)
    broker = await start(cluster)
    assert broker.components.timers.step(int(clock.wall() * 1000)) is None
    assert broker.components.store.max_offset("T", 0) == 2
