"""A server that asks its peers, and answers later than it was asked; one that takes an address before it serves."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest

from skyroute.remoting import pending_responses
from skyroute.remoting.busy_polling import BATCH_MAX
from skyroute.remoting.dispatch import DeferredResponse, Dispatcher, Handler, Peer
from skyroute.remoting.errors import BindError, CallTimeoutError, ConnectionLostError
from skyroute.remoting.limits import Limits
from skyroute.remoting.peer_calls import CALLS_MAX
from skyroute.remoting.server import Server
from skyroute.remoting.tls import ServerTls
from skyroute.remoting.tls_settings import TlsSettings
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response
from tests.support.clock import ManualClock
from tests.support.connections import AsyncConnection, connection_to
from tests.support.raw import Form, encode
from tests.support.raw import Request as RawRequest
from tests.support.waiting import eventually

GREET, WAIT, ECHO = 1, 2, 3


@dataclass
class Host:
    """A server that knows its peers by name, and lets them wait."""

    limits: Limits = field(default_factory=Limits)
    peers: dict[str, Peer] = field(default_factory=dict)
    waiting: list[DeferredResponse] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        handlers: dict[int, Handler] = {GREET: self._greet, WAIT: self._wait, ECHO: self._echo}
        self.server = Server(
            Dispatcher(handlers),
            tls=ServerTls(TlsSettings()),
            clock=ManualClock(),
            on_disconnect=self.gone.append,
            limits=self.limits,
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def _greet(self, request: Request, peer: Peer) -> Response:
        self.peers[request.fields["name"]] = peer
        return Response()

    def _echo(self, request: Request, _peer: Peer) -> Response:
        return Response(body=request.body)

    def _wait(self, _request: Request, _peer: Peer) -> DeferredResponse:
        self.waiting.append(DeferredResponse())
        return self.waiting[-1]

    def give_all(self, body: bytes = b"") -> None:
        waiting, self.waiting = self.waiting, []
        for number, later in enumerate(waiting):
            later.give(Response(body=body or b"%d" % number))


@asynccontextmanager
async def hosted(limits: Limits | None = None) -> AsyncIterator[Host]:
    host = Host(limits or Limits())
    await host.server.start("127.0.0.1", 0)
    try:
        yield host
    finally:
        await host.server.stop()


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with hosted() as host:
        yield host


@pytest.fixture
async def guest(host: Host) -> AsyncIterator[AsyncConnection]:
    async with connection_to(host.address) as line:
        await line.call(GREET, {"name": "guest"})
        yield line


async def reply(line: AsyncConnection, opaque: int, body: bytes = b"", code: int = 0) -> None:
    await line.write(encode(RawRequest(code, body=body), opaque, form=line.form, flag=1))


# --------------------------------------------------------------------------------------------------- asking and telling


@pytest.mark.parametrize("form", ["json", "binary"])
async def test_a_one_way_request_is_sent_to_a_peer(host: Host, form: Form) -> None:
    async with connection_to(host.address, form=form) as line:
        await line.call(GREET, {"name": "guest"})
        host.peers["guest"].send_oneway(Request(40, {"consumerGroup": "g"}, body=b"body"))
        heard = await line.receive()
        assert (heard.code, heard.fields, heard.body, heard.language) == (40, {"consumerGroup": "g"}, b"body", "JAVA")
        assert heard.is_one_way
        assert not heard.is_reply


async def test_responses_are_matched_to_calls_in_any_order(host: Host, guest: AsyncConnection) -> None:
    peer = host.peers["guest"]
    calls = [asyncio.ensure_future(peer.call(Request(39, {"n": str(number)}), 5)) for number in range(3)]
    heard = [await guest.receive() for _ in range(3)]
    assert len({one.opaque for one in heard}) == 3
    for one in reversed(heard):
        await reply(guest, one.opaque, one.fields["n"].encode(), code=7)
    assert [(response.code, response.body) for response in await asyncio.gather(*calls)] == [
        (7, b"0"),
        (7, b"1"),
        (7, b"2"),
    ]


async def test_a_peer_can_be_called_while_it_waits_for_our_response(host: Host, guest: AsyncConnection) -> None:
    waiting = await guest.send(WAIT)
    await eventually(lambda: len(host.waiting) == 1)
    call = asyncio.ensure_future(host.peers["guest"].call(Request(39), 5))
    asked = await guest.receive()
    await reply(guest, asked.opaque, b"fine")
    assert (await call).body == b"fine"
    host.give_all(b"done")
    assert (await guest.answer(waiting)).body == b"done"


async def test_a_call_without_a_response_times_out(host: Host, guest: AsyncConnection) -> None:
    peer = host.peers["guest"]
    with pytest.raises(CallTimeoutError, match=r"did not respond to request 39 in 0\.01 s"):
        await peer.call(Request(39), 0.01)
    late = await guest.receive()
    await reply(guest, late.opaque)
    await reply(guest, 12345)  # an answer to nothing
    assert (await guest.call(ECHO, body=b"still here")).body == b"still here"


async def test_a_response_received_while_the_process_was_stalled_counts(host: Host, guest: AsyncConnection) -> None:
    call = asyncio.ensure_future(host.peers["guest"].call(Request(39), 1))
    asked = await guest.receive()
    await reply(guest, asked.opaque, b"in time")
    time.sleep(1.1)  # noqa: ASYNC251 - nothing of this process goes on meanwhile
    assert (await call).body == b"in time"


async def test_a_call_fails_when_the_peer_hangs_up(host: Host, guest: AsyncConnection) -> None:
    peer = host.peers["guest"]
    call = asyncio.ensure_future(peer.call(Request(39), 5))
    await guest.receive()
    guest.abort()
    with pytest.raises(ConnectionLostError, match="closed the connection"):
        await call
    assert peer.gone
    peer.send_oneway(Request(40))
    with pytest.raises(ConnectionLostError, match="is gone"):
        await peer.call(Request(39), 5)
    assert host.gone == [peer.connection]


async def test_open_calls_to_a_peer_are_limited(host: Host, guest: AsyncConnection) -> None:
    peer = host.peers["guest"]
    calls = [asyncio.ensure_future(peer.call(Request(39), 5)) for _ in range(CALLS_MAX)]
    heard = [await guest.receive() for _ in range(CALLS_MAX)]
    with pytest.raises(CallTimeoutError, match=f"has too many open calls: {CALLS_MAX}"):
        await peer.call(Request(39), 5)
    for one in heard:
        await reply(guest, one.opaque)
    await asyncio.gather(*calls)
    another = asyncio.ensure_future(peer.call(Request(39), 5))
    await reply(guest, (await guest.receive()).opaque)
    await another


async def test_nothing_is_sent_to_a_peer_that_does_not_read(host: Host, guest: AsyncConnection) -> None:
    peer = host.peers["guest"]
    guest.pause_reading()
    asked = [await guest.send(WAIT) for _ in range(16)]
    await eventually(lambda: len(host.waiting) == 16)
    host.give_all(bytes(1 << 20))
    await eventually(lambda: host.server._connections[peer.connection].writer.is_blocked)
    peer.send_oneway(Request(40))
    with pytest.raises(CallTimeoutError, match="has too many open calls"):
        await peer.call(Request(39), 5)
    guest.resume_reading()
    assert [len((await guest.answer(opaque)).body) for opaque in asked] == [1 << 20] * 16
    assert (await guest.call(ECHO)).code == ResponseCode.SUCCESS
    assert guest.strays == []


# ------------------------------------------------------------------------------------------------------ answering later


async def test_deferred_responses_reach_their_requests(host: Host, guest: AsyncConnection) -> None:
    asked = [await guest.send(WAIT) for _ in range(3)]
    assert (await guest.call(ECHO, body=b"meanwhile")).body == b"meanwhile"
    host.give_all()
    assert [(await guest.answer(opaque)).body for opaque in asked] == [b"0", b"1", b"2"]


async def test_a_one_way_request_gets_no_deferred_response(host: Host, guest: AsyncConnection) -> None:
    await guest.send_oneway(WAIT)
    await eventually(lambda: len(host.waiting) == 1)
    host.give_all()
    assert (await guest.call(ECHO, body=b"next")).body == b"next"
    assert guest.strays == []


async def test_a_deferred_response_for_a_closed_connection_is_dropped(host: Host, guest: AsyncConnection) -> None:
    await guest.send(WAIT)
    await eventually(lambda: len(host.waiting) == 1)
    guest.abort()
    await eventually(lambda: len(host.gone) == 1)
    host.give_all()
    async with connection_to(host.address) as other:
        assert (await other.call(ECHO)).code == ResponseCode.SUCCESS


async def test_a_deferred_response_given_just_before_the_stop_is_sent(host: Host, guest: AsyncConnection) -> None:
    asked = await guest.send(WAIT)
    await eventually(lambda: len(host.waiting) == 1)
    host.give_all(b"just in time")
    await host.server.stop()
    assert (await guest.answer(asked)).body == b"just in time"


@pytest.mark.skipif(
    not str(pending_responses.__file__).endswith(".py"), reason="compiled code has its constants inlined"
)
async def test_reading_pauses_above_the_limit_of_deferred_responses(
    host: Host, guest: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_responses, "DEFERRED_MAX", 2)
    asked = [await guest.send(WAIT) for _ in range(2)]
    await eventually(lambda: len(host.waiting) == 2)
    echoed = await guest.send(ECHO, body=b"at last")
    assert guest.strays == []
    host.give_all()
    assert (await guest.answer(echoed)).body == b"at last"
    assert [(await guest.answer(opaque)).code for opaque in asked] == [ResponseCode.SUCCESS, ResponseCode.SUCCESS]


async def test_too_many_unread_deferred_responses_close_the_connection() -> None:
    async with hosted(Limits(unsent_bytes_max=4 << 20)) as host, connection_to(host.address) as slow:
        slow.pause_reading()
        for _ in range(40):
            await slow.send(WAIT)
        await eventually(lambda: len(host.waiting) == 40)
        (connection,) = host.server._connections.values()
        host.give_all(bytes(1 << 20))
        assert connection._transport.get_write_buffer_size() < 10 << 20
        await eventually(lambda: len(host.gone) == 1)
        assert host.server._context.unsent.total == 0


# ---------------------------------------------------------------------------------------------------------------- life


async def test_a_bound_server_refuses_connections_until_it_serves() -> None:
    host = Host()
    await host.server.bind("127.0.0.1", 0)
    port = host.server.port
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    await host.server.serve()
    assert host.server.port == port
    async with connection_to(host.address) as line:
        assert (await line.call(ECHO, body=b"now")).body == b"now"
    await host.server.stop()


async def test_a_bound_address_that_another_server_took_cannot_be_served() -> None:
    host, other = Host(), Host()
    await host.server.bind("127.0.0.1", 0)
    await other.server.bind("127.0.0.1", host.server.port)
    await host.server.serve()
    with pytest.raises(BindError, match="Is another server running there"):
        await other.server.serve()
    await other.server.stop()
    async with connection_to(host.address) as line:
        assert (await line.call(ECHO, body=b"ours")).body == b"ours"
    await host.server.stop()


async def test_an_address_has_one_server() -> None:
    host, other = Host(), Host()
    await host.server.bind("127.0.0.1", 0)
    await host.server.serve()
    with pytest.raises(BindError, match="Is another server running there"):
        await other.server.bind("127.0.0.1", host.server.port)
    await other.server.stop()
    await host.server.stop()


async def test_an_aborted_server_sends_no_responses_and_reports_no_disconnects(
    host: Host, guest: AsyncConnection
) -> None:
    asked = await guest.send(WAIT)
    await eventually(lambda: len(host.waiting) == 1)
    call = asyncio.ensure_future(host.peers["guest"].call(Request(39), 5))
    await guest.receive()
    host.server.abort()
    host.give_all()
    await guest.until_closed()
    assert [stray for stray in guest.strays if stray.opaque == asked and stray.is_reply] == []
    assert host.gone == []
    with pytest.raises(ConnectionLostError):
        await call
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", host.server.port)


# Answers of one turn of the loop


def connect_plainly(stack: ExitStack, host: Host) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", host.server.port)))


def has_heard(client: socket.socket) -> bool:
    """Return whether a client received something that no caller waits for."""
    try:
        return bool(client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return False


@pytest.mark.parametrize("more", [0, 10])
async def test_all_reads_of_a_turn_are_processed_before_the_first_write_up_to_the_batch_limit(
    host: Host, more: int
) -> None:
    count = BATCH_MAX + more
    answered_before: list[int] = []
    with ExitStack() as stack:
        clients = [connect_plainly(stack, host) for _ in range(count)]
        await eventually(lambda: len(host.server._connections) == count)

        def look(_request: Request, _peer: Peer) -> Response:
            answered_before.append(sum(map(has_heard, clients)))
            return Response()

        host.server._context.dispatcher.set_handlers({GREET: look})
        for number, client in enumerate(clients):
            client.sendall(encode(RawRequest(GREET), number))  # the loop has no turn meanwhile
        await eventually(lambda: all(map(has_heard, clients)))
    assert answered_before == [0] * BATCH_MAX + [BATCH_MAX] * more


async def test_a_response_is_sent_if_the_connection_is_closed_in_the_same_turn(
    host: Host, guest: AsyncConnection
) -> None:
    connection = next(iter(host.server._connections.values()))

    def answer_and_close(_request: Request, _peer: Peer) -> Response:
        asyncio.get_running_loop().call_soon(partial(connection.close, "enough"))
        return Response(remark="the last word")

    host.server._context.dispatcher.set_handlers({GREET: answer_and_close})
    assert (await guest.call(GREET)).remark == "the last word"
    await eventually(lambda: not host.server._connections)


async def test_a_request_gets_its_response_after_the_end_of_the_stream(host: Host) -> None:
    with ExitStack() as stack:
        client = connect_plainly(stack, host)
        client.sendall(encode(RawRequest(GREET, {"name": "brief"}), 7))
        client.shutdown(socket.SHUT_WR)
        await eventually(lambda: has_heard(client))
        assert b'"opaque":7' in client.recv(1000)
        await eventually(lambda: not host.server._connections)


async def test_a_request_to_the_peer_does_not_overtake_an_earlier_response(host: Host, guest: AsyncConnection) -> None:
    peer = host.peers["guest"]

    def answer_and_ask(request: Request, _peer: Peer) -> Response:
        asyncio.get_running_loop().call_soon(peer.send_oneway, Request(77))
        return Response(body=request.body)

    host.server._context.dispatcher.set_handlers({ECHO: answer_and_ask})
    await guest.write(encode(RawRequest(ECHO, body=b"first"), 500))
    heard = [await guest.receive() for _ in range(2)]
    assert (heard[0].opaque, heard[0].body) == (500, b"first")
    assert heard[1].code == 77
