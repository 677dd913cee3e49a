"""A connection that we open, over a transport in memory. With a real socket: `tests/network/client/test_channel.py`."""

import asyncio

import pytest

from skyroute.remoting.client import Channel
from skyroute.remoting.errors import CallTimeoutError, ConnectionLostError
from skyroute.wire.command import FLAG_ONEWAY, FLAG_RESPONSE, Request, Response
from skyroute.wire.header import encode_request
from tests.unit.remoting.transport import MemoryTransport

ECHO = 3


class Driver:
    """A channel without a socket."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.channel = Channel("10.0.0.1:9", on_request=lambda request, channel: self.requests.append(request))
        self.transport = MemoryTransport()
        self.channel.connection_made(self.transport)

    async def written(self) -> list[Request]:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return self.transport.frames()

    def respond(self, request_id: int, body: bytes = b"") -> None:
        self.channel.data_received(encode_request(Request(0, flag=FLAG_RESPONSE, body=body), request_id))


@pytest.fixture
async def driver() -> Driver:
    return Driver()


async def test_requests_of_one_turn_are_written_together(driver: Driver) -> None:
    calls = [driver.channel.begin(Request(ECHO), 3.0) for _ in range(3)]
    driver.channel.send_oneway(Request(ECHO))
    written = await driver.written()
    assert driver.transport.writes == 1
    assert [(request.request_id, request.flag) for request in written] == [(1, 0), (2, 0), (3, 0), (4, FLAG_ONEWAY)]
    assert all(call.frame == b"" for call in calls), "a written request is not kept"


async def test_responses_find_their_calls(driver: Driver) -> None:
    first, second = (driver.channel.begin(Request(ECHO), 3.0) for _ in range(2))
    driver.respond(2, b"2")
    assert (first.waiter.done(), second.waiter.result().body) == (False, b"2")


async def test_requests_of_the_peer_are_passed_on_and_get_responses(driver: Driver) -> None:
    driver.channel.data_received(encode_request(Request(40), 8))
    (request,) = driver.requests
    driver.channel.answer(request, Response(body=b"done"))
    ((response),) = await driver.written()
    assert (response.request_id, response.body, response.is_response) == (8, b"done", True)


async def test_calls_wait_while_the_peer_does_not_read(driver: Driver) -> None:
    driver.channel.pause_writing()
    given_up, waiting = (driver.channel.begin(Request(ECHO), 3.0) for _ in range(2))
    assert await driver.written() == []
    driver.channel.give_up(given_up)
    driver.channel.resume_writing()
    assert [request.request_id for request in await driver.written()] == [waiting.request_id]


async def test_a_call_without_a_response_expires_and_ends_a_silent_connection(driver: Driver) -> None:
    with pytest.raises(CallTimeoutError):
        await driver.channel.call(Request(ECHO), timeout_s=0.0)
    assert driver.transport.is_aborted


async def test_a_late_response_does_not_end_a_connection_with_other_traffic(driver: Driver) -> None:
    call = driver.channel.begin(Request(ECHO), 0.0)
    driver.channel.data_received(encode_request(Request(40), 8))
    with pytest.raises(CallTimeoutError):
        await call.waiter
    assert not driver.transport.is_closing()


async def test_open_calls_fail_when_the_connection_ends(driver: Driver) -> None:
    call = driver.channel.begin(Request(ECHO), 3.0)
    driver.channel.connection_lost(None)
    assert isinstance(call.waiter.exception(), ConnectionLostError)
    assert driver.channel.closed
    with pytest.raises(ConnectionLostError):
        driver.channel.begin(Request(ECHO), 3.0)


async def test_a_broken_frame_ends_the_connection(driver: Driver) -> None:
    call = driver.channel.begin(Request(ECHO), 3.0)
    driver.channel.data_received(bytes(20))
    assert driver.transport.is_aborted
    driver.channel.connection_lost(None)
    assert "does not speak RocketMQ's protocol" in str(call.waiter.exception())


async def test_a_retired_channel_closes_after_its_last_response(driver: Driver) -> None:
    driver.channel.begin(Request(ECHO), 3.0)
    driver.channel.retire()
    assert not driver.transport.is_closing()
    driver.respond(1)
    assert driver.transport.is_closing()
