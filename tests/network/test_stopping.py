"""How a server stops: at once or after a while, always within a bounded time."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.server import NameServer
from skyroute.wire.codes import ResponseCode
from tests.network.cluster import MASTER, OTHER, register, topics
from tests.network.notices import at
from tests.support.connections import AsyncConnection, connection_to, listening_broker
from tests.support.raw import VERSION_4, VERSION_5, Request, Topic, split_address
from tests.support.servers import Running, own_files, running
from tests.support.waiting import eventually


@asynccontextmanager
async def draining(folder: Path) -> AsyncIterator[tuple[Running, AsyncConnection, asyncio.Task[None]]]:
    """A server that was told to stop and still serves, a line to it, and the stop that is under way."""
    waiting = running(folder, graceful_shutdown=True, shutdown_wait_s=600)
    async with waiting as here, connection_to(here.address) as line:
        await register(line, MASTER)
        stopping = asyncio.create_task(here.server.stop())
        await eventually(lambda: is_sent_away(line))
        yield here, line, stopping
        await line.close()
        async with asyncio.timeout(5):
            await stopping


async def is_sent_away(line: AsyncConnection) -> bool:
    return (await line.call(9999)).code == ResponseCode.GO_AWAY


@pytest.mark.parametrize("version", [476, VERSION_5, 500])
@pytest.mark.parametrize("code", [103, 105, 9999])
async def test_a_draining_server_responds_go_away_to_peers_that_understand_it(
    tmp_path: Path, version: int, code: int
) -> None:
    async with draining(tmp_path) as (_, line, _):
        answer = await line.call(Request(code, {"topic": "TopicA"}, version=version))
        assert (answer.code, answer.remark, answer.body) == (1500, "please go away", b"")


@pytest.mark.parametrize("version", [0, 317, 401, VERSION_4, 475])
async def test_a_draining_server_serves_older_peers(tmp_path: Path, version: int) -> None:
    async with draining(tmp_path) as (_, line, _):
        assert (await line.call(Request(105, {"topic": "TopicA"}, version=version))).code == ResponseCode.SUCCESS
        assert (await line.call(OTHER.but(generation=4).request)).code == ResponseCode.SUCCESS
        assert (await line.call(Request(105, {"topic": "TopicC"}, version=version))).code == ResponseCode.SUCCESS


async def test_a_draining_server_drops_one_way_requests_of_newer_peers(tmp_path: Path) -> None:
    async with draining(tmp_path) as (_, line, _):
        await line.send_oneway(OTHER.request)
        answer = await line.call(Request(206, version=VERSION_4))
        assert answer.value == {"topicList": ["TopicA", "TopicB"]}
        assert line.strays == []


async def test_a_draining_server_accepts_connections(tmp_path: Path) -> None:
    async with draining(tmp_path) as (here, _, _), connection_to(here.address) as late:
        assert (await late.call(Request(105, {"topic": "TopicA"}, version=VERSION_5))).code == ResponseCode.GO_AWAY
        assert (await late.call(Request(105, {"topic": "TopicA"}, version=401))).code == ResponseCode.SUCCESS


async def test_draining_ends_with_the_last_connection(tmp_path: Path) -> None:
    async with draining(tmp_path) as (here, line, stopping):
        assert not stopping.done()
        await line.close()
        async with asyncio.timeout(5):
            await stopping
        assert here.connections == 0


async def test_connections_are_closed_after_the_drain_time(tmp_path: Path) -> None:
    waiting = running(tmp_path, graceful_shutdown=True, shutdown_wait_s=1)
    async with waiting as here, connection_to(here.address) as line:
        await register(line, MASTER)
        began = time.monotonic()
        async with asyncio.timeout(5):
            await here.server.stop()
        assert time.monotonic() - began >= 0.9
        await line.until_closed()


async def test_stopping_without_draining_closes_all_connections_at_once(
    nameserver: Running, line: AsyncConnection
) -> None:
    async with connection_to(nameserver.address) as other:
        await register(line, MASTER)
        await topics(other)
        address = split_address(nameserver.address)
        async with asyncio.timeout(2):
            await nameserver.server.stop()
        await line.until_closed()
        await other.until_closed()
    assert nameserver.connections == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


async def test_stopping_the_server_does_not_remove_brokers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with listening_broker() as slaves, running(tmp_path, notify_min_broker_id=True) as here:
        async with connection_to(here.address) as line, connection_to(here.address) as other:
            await register(line, at("127.0.0.1:1", 0))
            await register(other, at(slaves.address, 1))
            await here.server.stop()
            await line.until_closed()
            await other.until_closed()
        assert "broker left" not in caplog.text
        assert slaves.is_drained


async def test_ready_responses_are_sent_before_the_end(nameserver: Running, line: AsyncConnection) -> None:
    await register(line, MASTER)
    asked = [await line.send(105, {"topic": "TopicA"}) for _ in range(100)]
    last = await line.answer(asked[-1])  # the server has answered all of them
    await nameserver.server.stop()
    await line.until_closed()
    assert last.code == ResponseCode.SUCCESS
    assert [answer.opaque for answer in line.strays] == asked[:-1]


async def test_stopping_twice_or_before_the_start_does_nothing(tmp_path: Path) -> None:
    server = NameServer(NameServerConfig(listen_port=0, bind_address="127.0.0.1", **own_files(tmp_path)))
    await server.stop()
    await server.start()
    await server.stop()
    await server.stop()


async def test_a_stopped_server_leaves_no_tasks(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    async with running(tmp_path) as here:
        async with connection_to(here.address) as line:
            await register(line, MASTER)
        assert len(asyncio.all_tasks()) > len(before)
    assert asyncio.all_tasks() == before


async def test_the_port_can_be_used_again_at_once(tmp_path: Path) -> None:
    port = 0
    for _ in range(3):
        async with running(tmp_path, listen_port=port) as here, connection_to(here.address) as line:
            await register(line, MASTER)
            port = split_address(here.address)[1]


@pytest.mark.asyncio(loop_factories=["uvloop"])  # it takes as long as a closing connection may
async def test_a_peer_that_does_not_read_does_not_delay_the_stop(tmp_path: Path) -> None:
    async with (
        running(tmp_path, send_buffer_bytes=8192) as here,
        connection_to(here.address, receive_buffer_bytes=8192) as line,
    ):
        many = [Topic(f"topic-with-a-long-name-{number:06}") for number in range(4_000)]
        await register(line, MASTER.but(topics=many))
        line.pause_reading()
        for _ in range(10):
            await line.send(206)
        await eventually(lambda: here.unsent_bytes > 0)
        began = time.monotonic()
        async with asyncio.timeout(9):
            await here.server.stop()
        assert time.monotonic() - began >= 4
        assert here.connections == 0
