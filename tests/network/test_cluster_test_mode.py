"""A test environment in front of production: what is unknown here is looked for there."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skyroute.wire.codes import ResponseCode
from tests.network.cluster import MASTER, OTHER, addresses, register, route, topics
from tests.support.connections import AsyncConnection, ListeningBroker, connection_to, listening_broker
from tests.support.raw import Registration, Topic
from tests.support.servers import Running, running
from tests.support.waiting import eventually

PRODUCTION: Registration = OTHER.but(topics=(Topic("TopicA"), Topic("OnlyThere")))
THERE = {"broker-b": {"0": "10.0.0.3:10911"}}


@asynccontextmanager
async def environments(folder: Path, *more: str) -> AsyncIterator[tuple[Running, Running]]:
    """Test and production; addresses in `more` are asked before production."""
    for name in ("test", "production"):
        (folder / name).mkdir()
    async with running(folder / "production") as production:
        upstream = (*more, production.address)
        async with running(folder / "test", upstream=upstream, cluster_test_mode=True) as test:
            yield test, production


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[tuple[AsyncConnection, AsyncConnection]]:
    """A line to a test environment that knows `MASTER`, and one to a production environment that knows `PRODUCTION`."""
    async with (
        environments(tmp_path) as (test, production),
        connection_to(test.address) as here,
        connection_to(production.address) as there,
    ):
        await register(here, MASTER)
        await register(there, PRODUCTION)
        yield here, there


async def test_brokers_register_here_as_usual(both: tuple[AsyncConnection, AsyncConnection]) -> None:
    here, _ = both
    assert await topics(here) == ["TopicA", "TopicB"]
    assert (await here.call(106)).code == ResponseCode.SUCCESS


async def test_a_topic_of_the_test_environment_has_its_own_route(both: tuple[AsyncConnection, AsyncConnection]) -> None:
    here, _ = both
    assert await addresses(here) == {"broker-a": {"0": "10.0.0.1:10911"}}


async def test_an_unknown_topic_has_the_route_of_production(both: tuple[AsyncConnection, AsyncConnection]) -> None:
    here, there = both
    assert await addresses(here, "OnlyThere") == THERE
    await there.call(PRODUCTION.unregistration)
    assert (await route(here, "OnlyThere")).code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_topic_unknown_in_both_environments_has_no_route(both: tuple[AsyncConnection, AsyncConnection]) -> None:
    here, _ = both
    answer = await route(here, "Nowhere")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert (answer.remark or "").startswith("No topic route info in name server for the topic: Nowhere")


@pytest.mark.parametrize("topic", ["TopicA", "OnlyThere"])
async def test_responses_are_always_in_the_legacy_dialect(
    both: tuple[AsyncConnection, AsyncConnection], topic: str
) -> None:
    here, _ = both
    for version in (399, 479):
        assert '"brokerAddrs":{0:"' in (await route(here, topic, version=version)).text


async def test_order_config_is_always_told_and_readiness_never_awaited(tmp_path: Path) -> None:
    waiting = running(tmp_path, cluster_test_mode=True, wait_for_brokers=True)
    async with waiting as here, connection_to(here.address) as line:
        await register(line, MASTER)
        await line.call(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "TopicA", "value": "broker-a:4"})
        assert (await route(line)).value["orderTopicConf"] == "broker-a:4"


async def test_without_a_production_environment_the_unknown_stays_unknown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, cluster_test_mode=True) as here, connection_to(here.address) as line:
        assert (await route(line, "OnlyThere")).code == ResponseCode.TOPIC_NOT_EXIST
    assert "clusterTest has no production name servers" in caplog.text


async def test_many_requests_wait_for_production_at_once_and_each_gets_its_own_answer(
    both: tuple[AsyncConnection, AsyncConnection],
) -> None:
    here, there = both
    names = [f"Topic{number}" for number in range(50)]
    await register(there, PRODUCTION.but(broker="broker-c", address="10.0.0.9:10911", topics=list(map(Topic, names))))
    asked = [await here.send(105, {"topic": name}) for name in (*names, "Nowhere")]
    answers = [await here.answer(opaque) for opaque in asked]
    assert [answer.code for answer in answers] == [0] * 50 + [17]


async def test_later_requests_do_not_wait_for_a_forwarded_one(tmp_path: Path) -> None:
    async with silent_upstream(tmp_path) as (test, deaf), connection_to(test.address) as line:
        question = await line.send(105, {"topic": "OnlyThere"})
        await deaf.receive()
        await register(line, MASTER)
        assert await topics(line) == ["TopicA", "TopicB"]
        deaf.hang_up()
        assert (await line.answer(question)).code == ResponseCode.TOPIC_NOT_EXIST


# Production is away


async def test_an_unreachable_production_has_no_routes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with listening_broker() as gone:
        pass
    async with environments(tmp_path, gone.address) as (test, production), connection_to(production.address) as there:
        await register(there, PRODUCTION)
        async with connection_to(test.address) as here:
            assert await addresses(here, "OnlyThere") == THERE  # the next in line was asked
            await production.server.stop()
            assert (await route(here, "OnlyThere")).code == ResponseCode.TOPIC_NOT_EXIST
            assert (await route(here, "OnlyThere")).code == ResponseCode.TOPIC_NOT_EXIST
            await register(here, MASTER)
            assert await addresses(here) == {"broker-a": {"0": "10.0.0.1:10911"}}
    assert f"production name server does not respond address={gone.address}" in caplog.text


async def test_a_production_server_that_returns_is_used_again(tmp_path: Path) -> None:
    async with environments(tmp_path) as (test, production), connection_to(test.address) as here:
        async with connection_to(production.address) as there:
            await register(there, PRODUCTION)
            assert await addresses(here, "OnlyThere") == THERE
        port = int(production.address.rpartition(":")[2])
        await production.server.stop()
        assert (await route(here, "OnlyThere")).code == ResponseCode.TOPIC_NOT_EXIST
        async with running(tmp_path / "production", listen_port=port) as again, connection_to(again.address) as there:
            await register(there, PRODUCTION)
            assert await addresses(here, "OnlyThere") == THERE


async def test_a_production_server_that_does_not_respond_times_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with silent_upstream(tmp_path, timeout_ms=50) as (test, _), connection_to(test.address) as line:
        assert (await route(line, "OnlyThere")).code == ResponseCode.TOPIC_NOT_EXIST
    assert "did not respond to request 105" in caplog.text


# The client disconnects before the response


@asynccontextmanager
async def silent_upstream(folder: Path, timeout_ms: int = 60_000) -> AsyncIterator[tuple[Running, ListeningBroker]]:
    """A test environment whose production hears every question and answers none."""
    async with listening_broker() as deaf:
        asking = running(folder, upstream=[deaf.address], cluster_test_mode=True, connect_timeout_s=timeout_ms / 1000)
        async with asking as test:
            yield test, deaf


@pytest.mark.parametrize("end", ["close", "abort"])
async def test_an_client_that_leaves_before_the_answer_leaves_nothing_behind(tmp_path: Path, end: str) -> None:
    async with silent_upstream(tmp_path) as (test, deaf):
        async with connection_to(test.address) as asker:
            for _ in range(3):
                await asker.send(105, {"topic": "OnlyThere"})
                await deaf.receive()
            if end == "abort":
                asker.abort()
        await eventually(lambda: test.connections == 0)
        deaf.hang_up()  # now the forwarded requests end, and their client is gone
        await eventually(lambda: len(test.remoting._tasks) == 1)  # the sweep alone is left
        assert (test.buffered_bytes, test.unsent_bytes) == (0, 0)
        async with connection_to(test.address) as line:
            assert await topics(line) == []
    gc.collect()  # an exception that was never retrieved is reported here


async def test_a_server_that_stops_does_not_wait_for_production(tmp_path: Path) -> None:
    async with silent_upstream(tmp_path) as (test, deaf), connection_to(test.address) as line:
        await line.send(105, {"topic": "OnlyThere"})
        await deaf.receive()
        async with asyncio.timeout(5):
            await test.server.stop()
        await line.until_closed()
        await eventually(lambda: test.connections == 0)
    gc.collect()


async def test_a_connection_waits_for_a_bounded_number_of_answers(tmp_path: Path) -> None:
    async with silent_upstream(tmp_path) as (test, deaf), connection_to(test.address) as line:
        asked = [await line.send(105, {"topic": "OnlyThere"}) for _ in range(1500)]
        for _ in range(1024):
            await deaf.receive()
        await register_elsewhere(test)
        assert deaf.is_drained
        deaf.hang_up()

        async def hang_up_again() -> bool:
            deaf.hang_up()
            return len(line.strays) >= len(asked)

        collecting = asyncio.create_task(collect(line, len(asked)))
        await eventually(hang_up_again)
        await collecting
        assert sorted(answer.opaque for answer in line.strays) == asked
        assert {answer.code for answer in line.strays} == {17}


async def register_elsewhere(test: Running) -> None:
    """Another connection is served meanwhile."""
    async with connection_to(test.address) as other:
        await register(other, MASTER)


async def collect(line: AsyncConnection, count: int) -> None:
    while len(line.strays) < count:
        line.strays.append(await line.receive())
