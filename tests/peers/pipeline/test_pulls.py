"""Apache's brokers give 32 messages a pull, and answer in any order: all come once and in order nevertheless."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from skyroute import Admin, Message, Producer
from skyroute.message.queue_ref import QueueRef
from tests.peers.client.java_client import JavaClients, Place
from tests.support.waiting import eventually
from tests.unit.pipeline.reading import bodies, read

COUNT = 20_000


@pytest.fixture
async def topic(java: JavaClients, place: Place) -> str:
    topic = await java.create_topic(place, "SparkPulls")
    async with Producer("senders", place.name_servers) as producer:
        queue = QueueRef(topic, "first", 0)
        for first in range(0, COUNT, 1_000):
            await producer.send_batch([Message(topic, b"%d" % (first + n)) for n in range(1_000)], queue=queue)
    async with Admin(place.name_servers) as admin:

        async def is_dispatched() -> bool:
            status = await admin.topic_status(topic)
            return sum(span.max_offset for span in status.queues.values()) == COUNT

        # Apache's broker acknowledges messages before they are in their queue, and a batch read ends with the queue.
        await eventually(is_dispatched, "all messages are dispatched")
    return topic


async def read_all(place: Place, topic: str, **options: str) -> list[bytes]:
    where: Any = SimpleNamespace(name_server_address=place.name_servers)
    began = time.perf_counter()
    # A worker of Spark has no event loop, and waits.
    rows = await asyncio.to_thread(read, where, topic=topic, columns="queue_offset,body", **options)
    print(f"{len(rows) / (time.perf_counter() - began):,.0f} rows a second")  # noqa: T201 - for a person who runs it
    return bodies(rows)


async def test_every_message_is_read_once_and_in_order(place: Place, topic: str) -> None:
    expected = [b"%d" % number for number in range(COUNT)]
    for pull_messages in ("1024", "50", "8"):
        assert await read_all(place, topic, pullBatchSize=pull_messages) == expected
    assert await read_all(place, topic, maxRecordsPerPartition="777") == expected
