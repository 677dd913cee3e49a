"""Our broker is killed under load, with both flush types, and loses no acknowledged message.

The page cache survives the death of a process, so that written messages survive with either flush type.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skyroute import Message, Producer, SkyrouteError
from tests.peers.broker.conftest import TARGET
from tests.peers.client.conftest import SETTINGS
from tests.peers.client.java_client import JavaClients, Place, message
from tests.peers.client.python_client import consuming
from tests.support.apache import NameServerProcess
from tests.support.connections import accepts_connections
from tests.support.waiting import eventually

KILLS = 3
BEFORE_A_KILL = 300


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_a_killed_broker_loses_no_acknowledged_message_and_consumers_continue(
    java: JavaClients, name_server: NameServerProcess, tmp_path: Path, flush: str
) -> None:
    name = flush.partition("_")[0].lower()
    settings = SETTINGS | {"flushDiskType": flush, "autoCreateTopicEnable": "false"}
    broker = TARGET(f"killed-{name}", tmp_path, [name_server.address], cluster=f"Killed-{name}", config=settings)
    with broker:
        place = Place.at(name_server.address, broker.address)
        topic = await java.create_topic(place, f"Survives-{name}")
        acknowledged: set[bytes] = set()
        stopping = asyncio.Event()

        async def is_listening() -> bool:
            return await accepts_connections(broker.address)

        async def send_on(producer: Producer, number: int) -> None:
            step = 0
            while not stopping.is_set():
                body, step = f"{number}-{step}".encode(), step + 1
                try:
                    await producer.send(Message(topic, body))
                    acknowledged.add(body)
                except SkyrouteError:
                    await eventually(is_listening, "the broker runs again", timeout_s=60)

        async def batch_on() -> None:
            async with java.producer(place, f"batches-{name}") as producer:
                step = 0
                while not stopping.is_set():
                    bodies, step = [f"batch {step} {at}".encode() for at in range(20)], step + 1
                    try:
                        await producer.send_batch([message(topic, body) for body in bodies])
                        acknowledged.update(bodies)
                    except Exception:  # noqa: BLE001 - Java's client has many errors for a dead broker
                        await eventually(is_listening, "the broker runs again", timeout_s=60)

        async with (
            consuming(place, f"killed-{name}-python", topic) as inbox,
            java.consumer(place, f"killed-{name}-java", topic) as java_inbox,
            Producer(f"killed-{name}", route_poll_interval_s=1.0, **place.python) as producer,
        ):
            async with asyncio.TaskGroup() as senders:
                for number in range(16):
                    senders.create_task(send_on(producer, number))
                senders.create_task(batch_on())
                try:
                    for _ in range(KILLS):
                        await until_more(acknowledged)
                        broker.kill()
                        await asyncio.to_thread(broker.start)
                    await until_more(acknowledged)
                finally:
                    stopping.set()
            received = await inbox.take_bodies(acknowledged, timeout_s=60)
            assert acknowledged <= {each.body for each in received}
            received_by_java = await java_inbox.take_bodies(acknowledged, timeout_s=60)
            assert acknowledged <= {each.body for each in received_by_java}


async def until_more(acknowledged: set[bytes]) -> None:
    """Wait until BEFORE_A_KILL more messages are acknowledged."""
    wanted = len(acknowledged) + BEFORE_A_KILL
    await eventually(lambda: len(acknowledged) >= wanted, f"{wanted} messages are acknowledged", timeout_s=60)
