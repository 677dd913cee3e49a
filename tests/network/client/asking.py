"""Asks a client as a broker does."""

import asyncio
from collections.abc import Mapping

from tests.support.fake_broker import FakeCluster
from tests.support.lines import WAIT_S
from tests.support.raw import Command, Request, encode


async def ask_client(
    cluster: FakeCluster, client_id: str, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
) -> Command:
    """Send a client that has sent a heartbeat a request, and return its answer."""
    peer = await cluster._peer_of(client_id)
    opaque = next(peer._opaque)
    answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
    peer._asked[opaque] = answer
    try:
        await peer.write(encode(Request(code, fields or {}, body), opaque))
        async with asyncio.timeout(WAIT_S):
            return await answer
    finally:
        del peer._asked[opaque]
