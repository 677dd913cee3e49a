"""A connection that has ended leaves nothing in memory, whatever the garbage collector does."""

from __future__ import annotations

import gc
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from skyroute.remoting.client import Channel, connect
from skyroute.remoting.connection import Connection
from skyroute.wire.codes import ResponseCode
from skyroute.wire.frame import FrameDecoder
from tests.network.certificates import client_that_trusts_anyone
from tests.support.connections import AsyncConnection, connection_to
from tests.support.raw import Request, encode
from tests.support.servers import Running, running
from tests.support.waiting import eventually

HALF = encode(Request(105, {"topic": "T"}, bytes(1_000_000)), 1)[:500_000]
WHOLE = encode(Request(105, {"topic": "T"}), 1)


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """Nothing is collected, and what other tests have left behind does not count."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


def alive(kind: type) -> int:
    return sum(isinstance(each, kind) for each in gc.get_objects())


@asynccontextmanager
async def five_lines(here: Running, tls: ssl.SSLContext | None = None) -> AsyncIterator[list[AsyncConnection]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(connection_to(here.address, tls=tls)) for _ in range(5)]


@pytest.mark.parametrize("end", ["close", "abort"])
@pytest.mark.parametrize(
    ("said", "encrypted"),
    [
        (b"", False),
        (b"PROXY TCP4 1.2", False),
        (WHOLE, False),
        (HALF, False),
        (WHOLE + HALF, False),
        (WHOLE, True),
        (WHOLE + HALF, True),
    ],
    ids=["nothing", "proxy", "whole", "half", "both", "whole in tls", "both in tls"],
)
async def test_a_connection_is_freed_when_its_peer_hangs_up(
    tmp_path: Path, said: bytes, encrypted: bool, end: str
) -> None:
    async with running(tmp_path, trusted_proxies="127.0.0.1") as here:
        async with five_lines(here, client_that_trusts_anyone() if encrypted else None) as lines:
            for line in lines:
                await line.write(said)
                if said[: len(WHOLE)] == WHOLE:
                    assert (await line.receive()).code == ResponseCode.TOPIC_NOT_EXIST
                if HALF in said:
                    await eventually(lambda: here.buffered_bytes > len(HALF) // 2)
            await eventually(lambda: here.connections == 5)
            if end == "abort":
                for line in lines:
                    line.abort()
        await eventually(lambda: here.connections == 0)
        await eventually(lambda: alive(Connection) == 0)
        assert alive(FrameDecoder) == 0
        assert here.buffered_bytes == 0


@pytest.mark.parametrize(
    "broken",
    [bytes(100), WHOLE + bytes(100), HALF[:400_000] + bytes(700_000), WHOLE * 100 + b"\x7f" * 8],
    ids=["at once", "later", "in two", "too long"],
)
async def test_a_connection_is_freed_when_its_peer_breaks_the_protocol(tmp_path: Path, broken: bytes) -> None:
    async with running(tmp_path) as here:
        async with five_lines(here) as lines:
            for line in lines:
                await line.write(broken)
            for line in lines:
                await line.until_closed()
        await eventually(lambda: here.connections == 0)
        await eventually(lambda: alive(Connection) == 0)
        assert alive(FrameDecoder) == 0


async def test_a_closing_connection_counts_no_input(tmp_path: Path) -> None:
    async with running(tmp_path) as here, connection_to(here.address) as line:
        await line.write(HALF)
        await eventually(lambda: here.buffered_bytes > 0)
        (connection,) = here.remoting._connections.values()
        connection.close()  # it may take a while until the peer has taken all answers
        assert (here.connections, here.buffered_bytes) == (1, 0)


async def test_a_connection_is_freed_while_its_peer_is_still_referenced(tmp_path: Path) -> None:
    async with running(tmp_path) as here:
        async with connection_to(here.address) as line:
            await line.call(206)
            (peer,) = (connection.peer for connection in here.remoting._connections.values())
            await line.write(HALF)
            await eventually(lambda: here.buffered_bytes > 0)
        await eventually(lambda: here.connections == 0)
        await eventually(lambda: alive(Connection) == 0)
        assert peer.gone


async def test_a_channel_frees_an_incomplete_response_when_it_ends(tmp_path: Path) -> None:
    async with running(tmp_path) as here:
        channel = await connect(here.address)
        channel.data_received(HALF)
        held = channel._conversation.decoder.held_bytes
        assert held >= len(HALF)
        channel.close()
        await channel.ended
        assert channel._conversation.decoder.held_bytes == 0
        del channel
        await eventually(lambda: alive(Channel) == 0)
