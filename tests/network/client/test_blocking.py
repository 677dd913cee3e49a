"""The blocking classes in threads, while the fake cluster runs on the test's event loop."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator

import pytest

import skyroute
from skyroute import Message, SendResult, StartPosition, StoredMessage, TransactionOutcome, blocking
from skyroute.client.errors import ClientError, NoNameServerError, NotRunningError
from skyroute.wire.codes import RequestCode
from tests.support.fake_broker import FakeCluster, fake_cluster

SEND = RequestCode.SEND_MESSAGE_V2


@pytest.mark.parametrize("name", ["Producer", "Consumer", "PullConsumer", "SimpleConsumer", "Admin"])
def test_every_public_name_of_the_asynchronous_class_is_there_with_its_arguments(name: str) -> None:
    ours, theirs = getattr(blocking, name), getattr(skyroute, name)
    of_the_session = {"session", "producer_groups", "consumer_data", "topics"} - (
        {"topics"} if name == "Admin" else set()
    )
    words = {word for word in dir(theirs) if not word.startswith("_")} - of_the_session
    assert words <= set(dir(ours))
    for word in words:
        if callable(method := getattr(theirs, word)):
            arguments = inspect.signature(method).parameters
            assert list(inspect.signature(getattr(ours, word)).parameters) == list(arguments), word


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
        with pytest.raises(ClientError, match=r"name server address .* is invalid"):
            blocking.Producer("p", "nowhere")

    await asyncio.to_thread(script)


async def test_a_blocking_call_on_its_own_event_loop_is_refused(cluster: FakeCluster) -> None:
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


async def test_a_handler_may_stop_its_consumer(cluster: FakeCluster) -> None:
    def script() -> None:
        consumer = blocking.Consumer("c", cluster.address, start=StartPosition.FIRST)

        @consumer.on("T")
        def handle(_: StoredMessage) -> None:
            consumer.stop()

        consumer.run()

    cluster.put(cluster.queue("T"), b"x")
    await asyncio.wait_for(asyncio.to_thread(script), 5.0)  # less than a stop waits for a handler
    assert cluster.offsets["c", cluster.queue("T")] == 1


async def test_blocking_stop_takes_a_timeout(cluster: FakeCluster) -> None:
    at_work, go_on = threading.Event(), threading.Event()

    def script() -> None:
        consumer = blocking.Consumer("c", cluster.address, start=StartPosition.FIRST)

        @consumer.on("T")
        def handle(_: StoredMessage) -> None:
            at_work.set()
            go_on.wait(10.0)

        consumer.start()
        assert at_work.wait(10.0)
        consumer.stop(timeout_s=0.01)

    cluster.put(cluster.queue("T"), b"x")
    await asyncio.wait_for(asyncio.to_thread(script), 5.0)
    go_on.set()


async def test_an_interrupted_script_commits_its_offsets(cluster: FakeCluster) -> None:
    script = """if True:
        import sys
        from skyroute import StartPosition
        from skyroute.blocking import Consumer

        consumer = Consumer("c", sys.argv[1], start=StartPosition.FIRST)
        consumer.subscribe("T", handler=lambda message: print("handled", flush=True))
        consumer.run()
    """
    cluster.put(cluster.queue("T"), b"x")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, cluster.address, stdout=pipe, stderr=pipe
    )
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.readline(), 10.0) == b"handled\n"
    process.send_signal(signal.SIGINT)
    _, complaint = await asyncio.wait_for(process.communicate(), 10.0)
    assert complaint.endswith(b"KeyboardInterrupt\n")
    assert cluster.offsets["c", cluster.queue("T")] == 1
    assert [each.fields["consumerGroup"] for each in cluster.seen(RequestCode.UNREGISTER_CLIENT)] == ["c"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
async def test_clients_created_before_a_fork_are_refused_after_it(cluster: FakeCluster) -> None:
    # In a process of its own: this one has threads, which a fork does not take along.
    script = """if True:
        import asyncio, os, sys
        from skyroute import Message, Producer
        from skyroute.client.errors import ClientError
        from skyroute.blocking import Producer as BlockingProducer

        plain, blocking = Producer("p", sys.argv[1]), BlockingProducer("p", sys.argv[1])
        if (child := os.fork()) == 0:
            for use in (lambda: asyncio.run(plain.start()), lambda: blocking.send(Message("T", b"x"))):
                try:
                    use()
                except ClientError as error:
                    print(error, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "ignore", "-c", script, cluster.address, stdout=asyncio.subprocess.PIPE
    )
    errors, _ = await asyncio.wait_for(process.communicate(), 10.0)
    assert [b"fork" in line for line in errors.splitlines()] == [True, True]


@pytest.mark.usefixtures("expects_errors")
async def test_an_exit_of_a_handler_does_not_end_the_event_loop(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def script() -> None:
        with blocking.Consumer("c", cluster.address, start=StartPosition.FIRST) as consumer:
            consumer.subscribe("T", handler=leave)
            assert left.wait(10.0)
            with blocking.Producer("p", cluster.address) as producer:
                assert producer.send(Message("T", b"after")).ok

    left = threading.Event()

    async def leave(_: StoredMessage) -> None:
        left.set()
        sys.exit(3)

    cluster.put(cluster.queue("T"), b"x")
    await asyncio.wait_for(asyncio.to_thread(script), 10.0)
    assert "task tried to exit the program error=SystemExit" in caplog.messages


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("enough"), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
async def test_a_handler_that_exits_ends_run(cluster: FakeCluster, error: BaseException, is_async: bool) -> None:
    def script() -> None:
        consumer = blocking.Consumer("c", cluster.address, start=StartPosition.FIRST)
        consumer.subscribe("T", handler=leave_async if is_async else leave)
        with pytest.raises(type(error)) as caught:
            consumer.run()
        assert caught.value is error
        with blocking.Producer("p", cluster.address) as producer:  # all others go on
            assert producer.send(Message("T", b"after")).ok

    def leave(_: StoredMessage) -> None:
        raise error

    async def leave_async(_: StoredMessage) -> None:
        raise error

    cluster.put(cluster.queue("T"), b"x")
    await asyncio.wait_for(asyncio.to_thread(script), 10.0)
    assert cluster.offsets.get(("c", cluster.queue("T")), 0) == 0  # the next owner gets it again
    assert [
        each.fields["consumerGroup"]
        for each in cluster.seen(RequestCode.UNREGISTER_CLIENT)
        if "consumerGroup" in each.fields
    ] == ["c"]


async def test_a_call_that_is_left_by_exit_is_left_in_the_thread_of_the_caller(cluster: FakeCluster) -> None:
    def script() -> None:
        with blocking.Producer("p", cluster.address, check=lambda _: TransactionOutcome.COMMIT) as producer:
            with pytest.raises(SystemExit):
                producer.send_in_transaction(Message("T", b"x"), leave)
            assert producer.send(Message("T", b"after")).ok

    async def leave(_message: Message, _sent: SendResult) -> TransactionOutcome:
        sys.exit(3)

    await asyncio.wait_for(asyncio.to_thread(script), 10.0)
