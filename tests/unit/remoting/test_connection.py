"""An accepted connection over a transport in memory: order, back-pressure, fairness, byte counts and its end."""

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from skyroute.remoting.busy_polling import BusyPolling, WriteBatch
from skyroute.remoting.client_meters import ClientLimits, ClientMeters
from skyroute.remoting.connection import Connection
from skyroute.remoting.dispatch import Answer, DeferredResponse, Dispatcher, OrderedResponse, Peer
from skyroute.remoting.errors import CallTimeoutError, ConnectionLostError
from skyroute.remoting.fair_queue import SHARE_S, TURN_S, FairQueue
from skyroute.remoting.limits import ByteBudget, CloseLog, Limits
from skyroute.remoting.server_context import ServerContext
from skyroute.remoting.tls import ServerTls
from skyroute.remoting.tls_settings import TlsMode, TlsSettings
from skyroute.wire.command import FLAG_RESPONSE, Request, Response
from skyroute.wire.header import encode_request
from tests.support.clock import ManualClock
from tests.support.waiting import eventually
from tests.unit.remoting.transport import MemoryTransport

ECHO, LATER, IN_TURN, SLOW = 3, 4, 5, 6


class Driver:
    """A connection without a socket, and the server's side of it."""

    def __init__(self, limits: Limits | None = None, peername: tuple[str, int] | None = ("10.0.0.1", 5000)) -> None:
        self.clock = ManualClock()
        self.deferred: list[DeferredResponse] = []
        self.gate = asyncio.Event()
        self.lost: list[Exception | None] = []
        self.slow: list[int] = []
        """Connections of the slow requests, in the order in which they were processed."""
        self.tasks: set[asyncio.Task[None]] = set()
        limits = limits or Limits()
        self.buffered, self.unsent = ByteBudget(limits.buffered_bytes_max), ByteBudget(limits.unsent_bytes_max)
        handlers = {ECHO: self._echo, LATER: self._later, IN_TURN: self._in_turn, SLOW: self._slow}
        queue = FairQueue(self.clock)
        self.context = ServerContext(
            dispatcher=Dispatcher(handlers),
            tls=ServerTls(TlsSettings(mode=TlsMode.DISABLED)),
            clock=self.clock,
            limits=limits,
            buffered=self.buffered,
            unsent=self.unsent,
            close_log=CloseLog(),
            polling=BusyPolling(),
            write_batch=WriteBatch(queue.end_turn),
            queue=queue,
            on_made=lambda connection: None,
            on_lost=lambda connection, error: self.lost.append(error),
            on_full=self._close,
            spawn=self._spawn,
            meters=ClientMeters(limits.clients) if limits.clients.are_set else None,
        )
        self.connection = Connection(self.context, 1)
        self.transport = MemoryTransport(peername)
        self.connection.connection_made(self.transport)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def _close(self, number: int, budget: ByteBudget) -> None:
        assert number == 1
        what = {self.buffered: "incomplete frames", self.unsent: "unread responses"}[budget]
        self.connection.abort(f"too many {what} in all")

    def _echo(self, request: Request, _peer: Peer) -> Answer:
        return Response(body=request.body)

    def _later(self, _request: Request, _peer: Peer) -> Answer:
        self.deferred.append(DeferredResponse())
        return self.deferred[-1]

    def _in_turn(self, _request: Request, _peer: Peer) -> Answer:
        return OrderedResponse(self._wait())

    def _slow(self, request: Request, peer: Peer) -> Answer:
        self.slow.append(peer.connection)
        self.clock.advance(2 * SHARE_S)
        return Response(body=request.body)

    async def _wait(self) -> Response:
        await self.gate.wait()
        return Response(body=b"in turn")

    def receive(self, *codes: int) -> None:
        """Receive one request of each code, all in one read; their ids are 1, 2, ..."""
        requests = [encode_request(Request(code, body=b"%d" % at), at) for at, code in enumerate(codes, 1)]
        self.connection.data_received(b"".join(requests))

    async def responses(self) -> list[int]:
        """Let the loop run a few turns and return the request ids of the responses written."""
        for _ in range(6):
            await asyncio.sleep(0)
        return [frame.request_id for frame in self.transport.frames()]


@pytest.fixture
async def driver() -> Driver:
    return Driver()


async def test_responses_of_one_turn_are_written_together_in_order(driver: Driver) -> None:
    driver.receive(ECHO, ECHO)
    driver.receive(ECHO)
    assert driver.transport.writes == 0
    assert await driver.responses() == [1, 2, 1]
    assert driver.transport.writes == 1


async def test_a_deferred_response_does_not_hold_up_later_requests(driver: Driver) -> None:
    driver.receive(LATER, ECHO)
    assert await driver.responses() == [2]
    driver.deferred[0].give(Response())
    assert await driver.responses() == [1]


async def test_later_requests_wait_for_a_response_in_turn(driver: Driver) -> None:
    driver.receive(IN_TURN, ECHO)
    assert await driver.responses() == []
    assert (driver.transport.is_reading_paused, driver.buffered.total > 0) == (True, True)
    driver.gate.set()
    assert await driver.responses() == [1, 2]
    assert (driver.transport.is_reading_paused, driver.buffered.total) == (False, 0)


async def test_requests_wait_while_the_peer_does_not_read(driver: Driver) -> None:
    driver.receive(ECHO)
    driver.transport.unsent = 1000
    driver.connection.pause_writing()
    assert (driver.unsent.total, driver.transport.is_reading_paused) == (1000, True)
    driver.receive(ECHO, ECHO)  # read before the pause took effect
    assert await driver.responses() == [1]
    driver.connection.resume_writing()
    assert await driver.responses() == [1, 2]
    assert (driver.unsent.total, driver.buffered.total, driver.transport.is_reading_paused) == (0, 0, False)


async def test_a_peer_that_does_not_read_is_closed_above_the_limit_of_all(caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver(Limits(unsent_bytes_max=999))
    driver.transport.unsent = 1000
    driver.connection.pause_writing()
    assert driver.transport.is_aborted
    assert "connection closed peer=10.0.0.1:5000 reason=too many unread" in caplog.text


async def test_a_connection_gives_way_after_its_share_of_time(driver: Driver) -> None:
    driver.receive(SLOW, SLOW, ECHO)
    assert driver.connection.share.is_queued
    assert driver.buffered.total > 0, "frames that wait are counted"
    assert await driver.responses() == [1, 2, 3]
    assert driver.buffered.total == 0


async def test_a_connection_queues_while_the_loop_is_busy(driver: Driver) -> None:
    driver.context.queue.spent_s = 2 * TURN_S
    driver.receive(ECHO)
    assert driver.connection.share.is_queued
    assert await driver.responses() == [1]


async def test_a_connection_does_not_queue_for_an_earlier_turn_of_the_loop(driver: Driver) -> None:
    driver.receive(ECHO)
    driver.context.queue.spent_s = 2 * TURN_S
    assert await driver.responses() == [1]
    driver.receive(ECHO)
    assert not driver.connection.share.is_queued


async def test_a_turn_is_charged_before_the_connection_queues_again(driver: Driver) -> None:
    others = [Connection(driver.context, number) for number in (2, 3)]
    for other in others:
        other.connection_made(MemoryTransport(("10.0.0.1", 5000)))
        driver.context.queue.spent_s = 2 * TURN_S  # so that it queues
        other.data_received(encode_request(Request(SLOW), 1))
        driver.context.queue.spent_s = 0.0
        if other is others[0]:
            driver.receive(SLOW, SLOW)  # one is processed as it is read
    await driver.responses()
    assert driver.slow == [1, 2, 3, 1]


async def test_connections_of_an_address_are_one_client_unless_it_is_a_proxy() -> None:
    limits = Limits(clients=ClientLimits(is_exempt=lambda source: source == "10.0.0.8"))
    driver = Driver(replace(limits, trusts_proxy=lambda source: source == "10.0.0.9"))
    connections = [driver.connection]
    for number, host in enumerate(("10.0.0.1", "10.0.0.2", "10.0.0.8", "10.0.0.8", "10.0.0.9", "10.0.0.9"), 2):
        connections.append(Connection(driver.context, number))
        connections[-1].connection_made(MemoryTransport((host, 5000 + number)))
    connections[-1].data_received(b"PROXY TCP4 10.0.0.2 5.6.7.8 99 80\r\n" + encode_request(Request(ECHO), 1))
    clients = [connection.share.client for connection in connections]
    assert clients[0] is clients[1]
    assert clients[2] is clients[6]
    assert len(set(map(id, clients))) == 5
    connections[0].connection_lost(None)
    connections[6].connection_lost(None)
    assert (clients[0].connections, clients[2].connections) == (1, 1)


async def test_nothing_is_read_while_an_address_has_used_its_allowance() -> None:
    driver = Driver(Limits(clients=ClientLimits(bytes_per_s=1_000_000)))
    driver.connection.data_received(encode_request(Request(ECHO, body=bytes(1_010_000)), 1))
    assert driver.transport.is_reading_paused
    driver.receive(ECHO, ECHO)  # read before the pause took effect
    assert await driver.responses() == [1]
    assert not driver.connection.share.is_queued
    driver.clock.advance(1.0)
    await eventually(lambda: not driver.transport.is_reading_paused)
    assert await driver.responses() == [1, 2]
    assert driver.buffered.total == 0


async def test_requests_before_a_malformed_one_are_charged_to_the_address() -> None:
    driver = Driver(Limits(clients=ClientLimits(requests_per_s=2)))
    good, meters = encode_request(Request(ECHO), 1), driver.context.meters
    driver.connection.data_received(3 * good + b"\0\0\0\6" + b"\0\0\0\2{]")
    assert driver.transport.is_closing()
    driver.connection.connection_lost(None)
    assert meters is not None
    again = meters.open("10.0.0.1", driver.clock.monotonic())
    assert again is not None
    assert again.check(driver.clock.monotonic()) == 1.0


async def test_a_peer_that_ends_its_side_gets_the_responses_to_queued_requests(driver: Driver) -> None:
    driver.receive(SLOW, ECHO)
    assert driver.connection.eof_received()
    assert await driver.responses() == [1, 2]
    assert driver.transport.is_closing()


async def test_an_incomplete_frame_is_counted_until_the_connection_ends(driver: Driver) -> None:
    driver.connection.data_received(encode_request(Request(ECHO, body=bytes(1000)), 1)[:-1])
    assert driver.buffered.total > 1000
    driver.connection.connection_lost(None)
    assert driver.buffered.total == 0
    assert driver.lost == [None]


async def test_a_connection_is_closed_above_the_limit_of_incomplete_frames(caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver(Limits(buffered_bytes_max=500))
    driver.connection.data_received(encode_request(Request(ECHO, body=bytes(1000)), 1)[:-1])
    assert (driver.transport.is_aborted, driver.buffered.total) == (True, 0)
    assert "too many incomplete frames in all" in caplog.text


async def test_requests_before_a_broken_frame_get_their_responses(driver: Driver) -> None:
    good = encode_request(Request(ECHO), 1)
    driver.connection.data_received(good + b"\0\0\0\1" + bytes(8))
    assert await driver.responses() == [1]
    assert driver.transport.is_closing()


async def test_first_bytes_wait_until_they_tell_what_follows(driver: Driver) -> None:
    frame = encode_request(Request(ECHO), 1)
    driver.connection.data_received(frame[:3])
    assert (driver.buffered.total, driver.connection.opening_since) == (3, driver.clock.monotonic())
    driver.connection.data_received(frame[3:])
    assert await driver.responses() == [1]
    assert (driver.buffered.total, driver.connection.opening_since) == (0, None)


async def test_a_trusted_proxy_names_the_client() -> None:
    driver = Driver(Limits(trusts_proxy=lambda address: address == "10.0.0.1"))
    driver.connection.data_received(b"PROXY TCP4 1.2.3.4 5.6.7.8 99 80\r\n" + encode_request(Request(ECHO), 1))
    assert await driver.responses() == [1]
    assert driver.connection.peer.address == "1.2.3.4:99"


@pytest.mark.parametrize(("peername", "lines"), [(("10.0.0.1", 5000), 1), (None, 0)])
async def test_a_proxy_that_is_not_trusted_is_closed(
    peername: tuple[str, int] | None, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Driver(peername=peername)
    driver.connection.data_received(b"PROXY TCP4 1.2.3.4 5.6.7.8 99 80\r\n")
    assert driver.transport.is_closing()
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == lines


async def test_calls_to_the_peer_get_its_responses(driver: Driver) -> None:
    driver.receive(ECHO)
    await driver.responses()
    call = asyncio.create_task(driver.connection.peer.call(Request(40), timeout_s=30.0))
    await asyncio.sleep(0)
    assert await driver.responses() == [1]
    driver.connection.data_received(encode_request(Request(0, flag=FLAG_RESPONSE, body=b"yes"), 1))
    assert (await call).body == b"yes"


async def test_calls_to_the_peer_fail_when_the_connection_ends(driver: Driver) -> None:
    call = asyncio.create_task(driver.connection.peer.call(Request(40), timeout_s=30.0))
    await asyncio.sleep(0)
    driver.connection.connection_lost(None)
    with pytest.raises(ConnectionLostError):
        await call
    with pytest.raises(ConnectionLostError):
        await driver.connection.peer.call(Request(40), timeout_s=30.0)


async def test_nothing_is_sent_to_a_peer_that_does_not_read(driver: Driver) -> None:
    driver.connection.pause_writing()
    driver.connection.peer.send_oneway(Request(40))
    with pytest.raises(CallTimeoutError):
        await driver.connection.peer.call(Request(40), timeout_s=30.0)
    assert await driver.responses() == []


async def test_a_peer_that_reads_is_alive(driver: Driver) -> None:
    began = driver.connection.active_at
    for unsent, is_alive in ((1000, False), (1000, False), (900, True)):
        driver.transport.unsent = unsent
        driver.connection.check(driver.clock.advance(1.0))
        assert (driver.connection.active_at > began) is is_alive


async def test_close_writes_the_last_responses(driver: Driver) -> None:
    driver.receive(ECHO)
    driver.connection.close()
    assert [frame.request_id for frame in driver.transport.frames()] == [1]
    assert driver.connection.closing_since == driver.clock.monotonic()
    driver.receive(ECHO)
    assert await driver.responses() == []
