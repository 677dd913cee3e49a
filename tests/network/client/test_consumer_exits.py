"""Handlers that call sys.exit(): the consumer stops properly, and `run` raises the same."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest

from skyroute.message.message import StoredMessage
from skyroute.wire.codes import RequestCode
from tests.network.client.consumers import Inbox, consumer_of
from tests.support.fake_broker import FakeCluster, fake_cluster

EXITS = [SystemExit(3), KeyboardInterrupt("enough"), GeneratorExit("strange")]


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(topics={"T": 1}) as running:
        yield running


async def outcome_of_run(consumer: object) -> BaseException | None:
    """Return what `run` raises; in a task of the test's own, what it is would end the test's event loop."""
    try:
        await consumer.run()  # type: ignore[attr-defined]  # consumers of both kinds have it
    except BaseException as error:  # noqa: BLE001 - that is what is asked for
        return error
    return None


@pytest.mark.usefixtures("nothing_lost")
@pytest.mark.parametrize("error", EXITS, ids=repr)
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "concurrent"])
async def test_run_raises_the_exit_of_a_handler(
    cluster: FakeCluster, error: BaseException, is_async: bool, ordered: bool
) -> None:
    for body in (b"first", b"exit", b"never"):
        cluster.put(cluster.queue("T"), body)
    seen: list[bytes] = []
    consumer = consumer_of(cluster, ordered=ordered, concurrency=1)

    def handle(message: StoredMessage) -> None:
        seen.append(message.body)
        if message.body == b"exit":
            raise error

    async def handle_async(message: StoredMessage) -> None:
        handle(message)

    consumer.subscribe("T", handler=handle_async if is_async else handle)
    assert await asyncio.wait_for(outcome_of_run(consumer), 10.0) is error
    assert seen == [b"first", b"exit"]
    assert cluster.offsets["g", cluster.queue("T")] == 1  # what was done is committed, and nothing else
    assert cluster.seen(RequestCode.CONSUMER_SEND_MSG_BACK) == []
    assert len(cluster.seen(RequestCode.UNREGISTER_CLIENT)) == 1
    assert not consumer.session.is_running


@pytest.mark.usefixtures("nothing_lost")
async def test_an_exit_in_direct_consumption_stops_the_consumer(cluster: FakeCluster) -> None:
    cluster.put(cluster.queue("T"), b"body")
    (record,) = cluster.stored(cluster.queue("T"))
    consumer = consumer_of(cluster)

    async def leave(_: StoredMessage) -> None:
        sys.exit(3)

    cluster.topics["U"] = 1
    consumer.subscribe("U", handler=Inbox())
    consumer.subscribe("T", "never", leave)
    running = asyncio.create_task(outcome_of_run(consumer))
    await cluster.until_seen(RequestCode.PULL_MESSAGE, 1)
    fields = {"consumerGroup": "g", "clientId": consumer.session.client_id, "brokerName": "broker-a"}
    answer = await cluster.ask_client(
        consumer.session.client_id, RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, record.data
    )
    assert (answer.value["consumeResult"], answer.value["remark"]) == ("CR_THROW_EXCEPTION", "SystemExit")
    assert isinstance(await asyncio.wait_for(running, 10.0), SystemExit)


async def test_it_can_be_run_again_afterwards(cluster: FakeCluster) -> None:
    cluster.put(cluster.queue("T"), b"x")
    consumer = consumer_of(cluster)
    seen: list[bytes] = []

    async def handle(message: StoredMessage) -> None:
        seen.append(message.body)
        if len(seen) == 1:
            sys.exit(3)
        await consumer.stop()

    consumer.subscribe("T", handler=handle)
    assert isinstance(await asyncio.wait_for(outcome_of_run(consumer), 10.0), SystemExit)
    assert await asyncio.wait_for(outcome_of_run(consumer), 10.0) is None
    assert seen == [b"x", b"x"]


@pytest.mark.parametrize("waits", ["await consumer.run()", "await consumer.start(); await asyncio.Event().wait()"])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_a_program_ends_with_the_code_of_its_handler(cluster: FakeCluster, waits: str, loop: str) -> None:
    script = f"""if True:
        import asyncio, sys, {loop}
        from skyroute import Consumer, StartPosition

        async def main() -> None:
            consumer = Consumer("c", sys.argv[1], start=StartPosition.FIRST)
            consumer.subscribe("T", handler=leave)
            {waits}

        async def leave(message) -> None:
            sys.exit(int(message.body))

        {loop}.run(main())
    """
    cluster.put(cluster.queue("T"), b"42")
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, cluster.address)
    assert await asyncio.wait_for(process.wait(), 15.0) == 42
    assert [each.fields["consumerGroup"] for each in cluster.seen(RequestCode.UNREGISTER_CLIENT)] == ["c"]
