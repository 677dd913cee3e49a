import asyncio

from skyroute.remoting.dispatch import Peer
from skyroute.remoting.response_writer import READ_BYTES_PER_S, ResponseWriter
from skyroute.wire.conversation import Conversation
from tests.unit.remoting.test_connection import Driver
from tests.unit.remoting.transport import MemoryTransport

PATIENCE_S = 120.0


async def blocked_writer() -> ResponseWriter:
    conversation: Conversation[asyncio.Future[None]] = Conversation()
    writer = ResponseWriter(Peer(1, "10.0.0.1:1"), conversation, Driver().context)
    transport = MemoryTransport()
    transport.unsent = 100 * READ_BYTES_PER_S
    writer.attach(transport)
    writer.block()
    return writer


async def test_a_reader_has_the_idle_time_and_the_time_of_its_bytes() -> None:
    writer = await blocked_writer()
    assert not writer.is_too_slow(1000.0, PATIENCE_S)
    assert not writer.is_too_slow(1000.0 + PATIENCE_S + 100, PATIENCE_S)
    assert writer.is_too_slow(1000.0 + PATIENCE_S + 101, PATIENCE_S)


async def test_a_reader_that_catches_up_starts_anew() -> None:
    writer = await blocked_writer()
    assert not writer.is_too_slow(0.0, PATIENCE_S)
    writer.unblock()
    assert not writer.is_too_slow(1000.0, PATIENCE_S)
    writer.block()
    assert not writer.is_too_slow(1001.0, PATIENCE_S)
