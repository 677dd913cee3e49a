"""The blocking face, used from threads as scripts use it, while the cluster lives on the test's own loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

import skyroute
from skyroute import Message, StartPosition, StoredMessage, blocking
from skyroute.client.errors import ClientError, NoNameServerError, NotRunningError
from tests.support.fake_broker import FakeCluster, fake_cluster

SEND = 310


@pytest.mark.parametrize("name", ["Producer", "Consumer", "PullConsumer", "Admin"])
def test_every_public_name_of_the_asynchronous_class_is_there(name: str) -> None:
    ours, theirs = getattr(blocking, name), getattr(skyroute, name)
    of_the_session = {"session", "producer_groups", "consumer_data", "topics"} - (
        {"topics"} if name == "Admin" else set()
    )
    assert {word for word in dir(theirs) if not word.startswith("_")} - of_the_session <= set(dir(ours))


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(topics={"T": 2}) as running:
        yield running


async def test_a_script_sends_and_reads_back(cluster: FakeCluster) -> None:
    def script() -> set[bytes]:
        with blocking.Producer("p", cluster.address) as producer:
            assert producer.send(Message("T", b"one")).ok
            assert len(producer.send_batch([Message("T", b"two"), Message("T", b"three")])) == 2
            assert len(producer.queues("T")) == 2
        with blocking.PullConsumer("c", cluster.address) as consumer:
            consumer.assign(consumer.queues("T"))
            for queue in consumer.assignment:
                consumer.seek_to_begin(queue)
            read: set[bytes] = set()
            while len(read) < 3:
                read |= {message.body for message in consumer.poll(timeout_s=10.0)}
            return read

    assert await asyncio.to_thread(script) == {b"one", b"two", b"three"}


async def test_a_plain_handler_is_given_messages_until_another_thread_stops(cluster: FakeCluster) -> None:
    for number in range(5):
        cluster.put(cluster.queue("T", number % 2), b"%d" % number)
    consumer = await asyncio.to_thread(blocking.Consumer, "c", cluster.address, start=StartPosition.FIRST)
    handled: list[bytes] = []
    enough = threading.Event()

    def script() -> None:
        @consumer.on("T")
        def handle(message: StoredMessage) -> None:
            handled.append(message.body)
            if len(handled) == 5:
                enough.set()

        consumer.run()

    running = asyncio.create_task(asyncio.to_thread(script))
    assert await asyncio.to_thread(enough.wait, 10.0)
    await asyncio.to_thread(consumer.stop)
    await asyncio.wait_for(running, 10.0)
    assert sorted(handled) == [b"0", b"1", b"2", b"3", b"4"]


async def test_messages_come_in_a_plain_loop(cluster: FakeCluster) -> None:
    for number in range(3):
        cluster.put(cluster.queue("T"), b"%d" % number)

    def script() -> list[bytes]:
        bodies = []
        with blocking.Consumer("c", cluster.address, start=StartPosition.FIRST) as consumer:
            consumer.subscribe("T")
            for message in consumer:
                bodies.append(message.body)
                if len(bodies) == 3:
                    consumer.stop()
        return bodies

    assert await asyncio.wait_for(asyncio.to_thread(script), 8.0) == [b"0", b"1", b"2"]


async def test_errors_are_those_of_the_asynchronous_client(cluster: FakeCluster) -> None:
    def script() -> None:
        producer = blocking.Producer("p", cluster.address)
        with pytest.raises(NotRunningError):
            producer.send(Message("T", b"x"))
        with blocking.Producer("p", "127.0.0.1:1") as lost, pytest.raises(NoNameServerError):
            lost.send(Message("T", b"x"))
        with pytest.raises(ClientError, match="not the address of a name server"):
            blocking.Producer("p", "nowhere")

    await asyncio.to_thread(script)


async def test_a_blocking_call_on_the_loop_that_would_answer_it_is_refused(cluster: FakeCluster) -> None:
    def script() -> None:
        with blocking.Consumer("c", cluster.address, start=StartPosition.FIRST) as consumer:
            consumer.subscribe("T", handler=careless)
            assert refused.wait(10.0)

    refused = threading.Event()
    producer = await asyncio.to_thread(blocking.Producer, "p", cluster.address)

    async def careless(message: StoredMessage) -> None:
        with pytest.raises(ClientError, match="would wait for itself"):
            producer.send(Message("T", b"never"))
        refused.set()

    cluster.put(cluster.queue("T"), b"x")
    await asyncio.to_thread(script)


async def test_many_threads_share_one_producer(cluster: FakeCluster) -> None:
    def script() -> None:
        with blocking.Producer("p", cluster.address) as producer:
            threads = [
                threading.Thread(target=lambda: [producer.send(Message("T", b"x")) for _ in range(20)])
                for _ in range(5)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    await asyncio.to_thread(script)
    assert len(cluster.seen(SEND)) == 100
