"""A peer that asks for much is answered in turns, and others are answered in between.

What a request costs is told by the clock, which only the handlers move: so turns are counted here, not seconds.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Generator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from typing import Final

import pytest

from skyroute.remoting.busy_polling import BusyPolling
from skyroute.remoting.dispatch import Answer, Dispatcher, OrderedResponse, Peer
from skyroute.remoting.fair_queue import SHARE_S, TURN_S
from skyroute.remoting.request_processing import CACHED_PER_CHECK
from skyroute.remoting.server import Server
from skyroute.remoting.stepwise import ROUND_S, StepRunner
from skyroute.remoting.tls import ServerTls
from skyroute.remoting.tls_settings import TlsSettings
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.fast_path import PreparedResponse
from tests.network.certificates import client_that_trusts_anyone
from tests.support import raw
from tests.support.clock import ManualClock
from tests.support.connections import AsyncConnection, connection_to
from tests.support.waiting import eventually

DEAR, DEARER, CHEAP, LASTING, LONG_CHANGE, EFFECT, ROUNDS = range(10001, 10008)
QUESTION: Final = int(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
LONG: Final = int(RequestCode.GET_TOPICS_BY_CLUSTER)
DEAR_S: Final = 0.001
CHEAP_S: Final = 0.00002
A_TURN: Final = round(2 * (TURN_S + SHARE_S) / DEAR_S)
"""How many dear requests are carried out at most while the loop turns once."""


class TickingClock(ManualClock):
    """Goes on by `tick_s` whenever it is looked at."""

    tick_s = 0.0

    def monotonic(self) -> float:
        return self.advance(self.tick_s)


class Asked:
    """A server, and who was answered in which order."""

    def __init__(self) -> None:
        self.clock = TickingClock()
        self.polling = BusyPolling()
        self.step_runner = StepRunner(self.polling, self.clock)
        self.order: list[int] = []
        """Connections, as their requests were carried out."""
        self.closed: list[int] = []
        """Connections whose long work was given up."""
        self.change_steps = 0
        self.may_change = self.has_changed = False
        self.server = Server(
            Dispatcher(
                {
                    DEAR: self._dear,
                    DEARER: self._dearer,
                    EFFECT: self._dear,
                    CHEAP: self._cheap,
                    LASTING: self._lasting,
                    LONG: self._long,
                    LONG_CHANGE: self._long_change,
                    ROUNDS: self._rounds,
                    QUESTION: self._dear,
                }
            ),
            tls=ServerTls(TlsSettings()),
            clock=self.clock,
            on_disconnect=lambda _: None,
            polling=self.polling,
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    @property
    def dear(self) -> int:
        return len(self.order)

    def _dear(self, request: Request, peer: Peer) -> Answer:
        self.clock.advance(DEAR_S)
        self.order.append(peer.connection)
        return Response()

    def _dearer(self, request: Request, peer: Peer) -> Answer:
        self.clock.advance(10 * SHARE_S)
        return Response()

    def _cheap(self, request: Request, peer: Peer) -> Answer:
        self.clock.advance(CHEAP_S)
        return Response()

    def _lasting(self, request: Request, peer: Peer) -> Answer:
        return PreparedResponse(is_cacheable=True)

    def _long(self, request: Request, peer: Peer) -> Answer:
        return OrderedResponse(self.step_runner.run(self._steps(peer)))

    def _long_change(self, request: Request, peer: Peer) -> Answer:
        return OrderedResponse(self.step_runner.run(self._change_steps()))

    def _rounds(self, request: Request, peer: Peer) -> Answer:
        return OrderedResponse(self.step_runner.run(self._round_steps(peer)))

    def _round_steps(self, peer: Peer) -> Generator[None, None, Response]:
        for _ in range(5):
            self.clock.advance(ROUND_S)
            self.order.append(peer.connection)
            yield
        return Response()

    def _change_steps(self) -> Generator[None, None, Response]:
        while not self.may_change:
            self.change_steps += 1
            yield
        self.has_changed = True
        return Response()

    def _steps(self, peer: Peer) -> Generator[None, None, Response]:
        try:
            while True:
                self.order.append(peer.connection)
                yield
        finally:
            self.closed.append(peer.connection)


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    here = Asked()
    await here.server.start("127.0.0.1", 0)
    yield here
    await here.server.stop()


def many(code: int, count: int, *, flag: int = 0) -> bytes:
    return b"".join(raw.encode(raw.Request(code), number, flag=flag) for number in range(1, count + 1))


async def be_known(line: AsyncConnection) -> None:
    """Ask for little, often enough that little is expected."""
    for _ in range(30):
        await line.call(CHEAP)


@asynccontextmanager
async def lines(asked: Asked, count: int) -> AsyncIterator[list[AsyncConnection]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(connection_to(asked.address)) for _ in range(count)]


async def test_requests_of_a_connection_get_responses_in_order(asked: Asked) -> None:
    async with connection_to(asked.address) as line:
        sending = asyncio.ensure_future(line.write(many(DEAR, 3_000)))
        assert [(await line.receive()).opaque for _ in range(3_000)] == list(range(1, 3_001))
        await sending
        await eventually(lambda: asked.server.buffered_bytes == 0)


@pytest.mark.parametrize("flag", [0, 2], ids=["answered", "one-way"])
async def test_a_cheap_request_is_processed_while_another_connection_is_expensive(asked: Asked, flag: int) -> None:
    async with lines(asked, 2) as (hostile, polite):
        await be_known(polite)
        sending = asyncio.ensure_future(hostile.write(many(EFFECT, 10_000, flag=flag)))
        await eventually(lambda: asked.dear > 0)
        for _ in range(20):
            before = asked.dear
            await polite.call(CHEAP)
            assert asked.dear - before <= 3 * A_TURN, "it takes both ends some turns to write, read and write"
        assert asked.dear < 10_000, "the other one is not done yet"
        hostile.abort()
        await asyncio.gather(sending, return_exceptions=True)


async def test_a_cheap_request_is_processed_while_a_hundred_connections_are_expensive(asked: Asked) -> None:
    async with lines(asked, 101) as (polite, *hostile):
        await be_known(polite)
        for line in hostile:
            await line.write(many(DEAR, 500))
        for _ in range(20):
            before = asked.dear
            await polite.call(CHEAP)
            assert asked.dear - before <= 3 * A_TURN
        assert asked.dear < 50_000
        async with connection_to(asked.address) as late:
            before = asked.dear
            await late.call(CHEAP)
            assert asked.dear - before <= 6 * A_TURN, "one that came later is answered soon, too"
        for line in hostile:
            line.abort()


async def test_expensive_connections_get_equal_shares(asked: Asked) -> None:
    async with lines(asked, 10) as hostile:
        for line in hostile:
            await line.write(many(DEAR, 200))
        await eventually(lambda: asked.dear == 2_000)
        first_half = asked.order[:1_000]
        counts = [first_half.count(number) for number in set(asked.order)]
        assert len(counts) == 10
        assert max(counts) - min(counts) <= A_TURN


async def test_an_expensive_connection_queues_until_it_becomes_cheap(asked: Asked) -> None:
    async with connection_to(asked.address) as line:
        await be_known(line)
        (connection,) = asked.server._connections.values()
        waits = []
        for code in (DEARER, CHEAP, *[CHEAP] * 30):
            waits.append(asked.server._context.queue.must_wait(connection.share))
            await line.call(code)
        assert waits[:3] == [False, True, True], "one that costs little does not make up for it"
        assert not waits[-1]


async def test_cached_responses_count_towards_the_share(asked: Asked) -> None:
    fast_path = asked.server._context.dispatcher.fast_path
    async with lines(asked, 2) as (hostile, polite):
        await be_known(polite)
        await hostile.call(LASTING)
        asked.clock.tick_s = SHARE_S
        await hostile.write(many(LASTING, 2_000))
        await eventually(lambda: fast_path.found > 0)
        before = fast_path.found
        await polite.call(CHEAP)
        assert fast_path.found - before <= 8 * CACHED_PER_CHECK


async def test_requests_get_responses_after_the_end_of_the_stream(asked: Asked) -> None:
    async with connection_to(asked.address) as line:
        await line.write(many(DEAR, 300))
        line.write_eof()
        assert [(await line.receive()).opaque for _ in range(300)] == list(range(1, 301))
        await line.until_closed()
    await eventually(lambda: asked.server.connection_count == 0)


async def test_requests_over_tls_get_responses_in_order(asked: Asked) -> None:
    async with connection_to(asked.address, tls=client_that_trusts_anyone()) as line:
        await line.write(many(DEAR, 300))
        assert [(await line.receive()).opaque for _ in range(300)] == list(range(1, 301))


def client_hello() -> bytes:
    """The first bytes of a TLS connection."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        client_that_trusts_anyone().wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


async def test_tls_handshakes_of_many_connections_take_turns(asked: Asked) -> None:
    async with connection_to(asked.address, tls=client_that_trusts_anyone()) as line:
        await line.call(CHEAP)  # now there is a certificate
    await eventually(lambda: asked.server.connection_count == 0)

    def handshakes() -> int:
        openings = [connection._opening for connection in asked.server._connections.values()]
        return sum(opening is not None and opening.tls is not None for opening in openings)

    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_connection(("127.0.0.1", asked.server.port))) for _ in range(60)]
        await eventually(lambda: asked.server.connection_count == len(sockets))
        asked.clock.tick_s = DEAR_S  # at least one for each handshake
        for each in sockets:
            each.sendall(client_hello())
        begun = most = 0
        while begun < len(sockets):
            before = begun
            await asyncio.sleep(0)
            begun = handshakes()
            most = max(most, begun - before)
        assert most <= A_TURN
        asked.clock.tick_s = 0.0
        for each in sockets:
            assert await asyncio.to_thread(each.recv, 1) == b"\x16"
    async with connection_to(asked.address, tls=client_that_trusts_anyone()) as line:
        assert (await line.call(CHEAP)).code == ResponseCode.SUCCESS


async def test_waiting_requests_before_a_malformed_frame_get_responses(asked: Asked) -> None:
    async with connection_to(asked.address) as line:
        await line.write(many(DEAR, 300) + bytes(40))
        await line.until_closed()
        assert [stray.opaque for stray in line.strays] == list(range(1, 301))


# One-way


async def test_a_one_way_request_that_only_reads_is_dropped(asked: Asked) -> None:
    async with connection_to(asked.address) as line:
        await line.write(many(QUESTION, 100, flag=2))
        assert (await line.call(CHEAP)).code == ResponseCode.SUCCESS
        assert asked.order == []
        assert (await line.call(QUESTION)).code == ResponseCode.SUCCESS
        assert len(asked.order) == 1


async def test_a_one_way_request_with_an_effect_is_processed(asked: Asked) -> None:
    async with connection_to(asked.address) as line:
        await line.write(many(EFFECT, 100, flag=2))
        assert (await line.call(CHEAP)).code == ResponseCode.SUCCESS
        assert len(asked.order) == 100


# Long work


async def test_long_work_that_only_reads_is_cancelled_with_its_connection(asked: Asked) -> None:
    async with lines(asked, 2) as (first, second):
        await first.send(LONG)
        await eventually(lambda: len(asked.order) > 3)
        await second.send(LONG)
        (number,) = set(asked.order)
        await eventually(lambda: asked.server.buffered_bytes > 0)
    await eventually(lambda: asked.server.connection_count == 0)
    await eventually(lambda: asked.server.buffered_bytes == 0)
    assert asked.closed[0] == number
    done = len(asked.order)
    async with connection_to(asked.address) as line:
        await line.call(CHEAP)
        assert len(asked.order) == done


async def test_long_work_beside_that_of_fifty_connections_of_another_address_takes_turns_with_it(asked: Asked) -> None:
    async with lines(asked, 1) as (line,), AsyncExitStack() as stack:
        others = [await stack.enter_async_context(connection_to(asked.address, source="127.0.0.2")) for _ in range(50)]
        answers = [asyncio.ensure_future(other.call(ROUNDS)) for other in others]
        await eventually(lambda: len(asked.order) > 3)
        done = len(asked.order)
        await line.call(ROUNDS)
        assert len(asked.order) - done <= 15
        await asyncio.gather(*answers)
        assert len(asked.order) == 51 * 5


async def test_a_long_change_is_finished_after_its_connection_has_ended(asked: Asked) -> None:
    async with connection_to(asked.address) as line:
        await line.send(LONG_CHANGE)
        await eventually(lambda: asked.change_steps > 3)
    await eventually(lambda: asked.server.connection_count == 0)
    steps = asked.change_steps
    await eventually(lambda: asked.change_steps > steps)
    asked.may_change = True
    await eventually(lambda: asked.has_changed)
