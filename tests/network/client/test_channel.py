"""One connection that we open: what the peer may do to it, and what must not be lost or leak then."""

import asyncio
import logging
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from skyroute.remoting.client import UNSENT_BYTES_MAX, Channel, connect
from skyroute.remoting.errors import CallTimeoutError, ConnectError, ConnectionLostError
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.conversation import OUTBOX_BYTES_MAX
from tests.network.certificates import client_that_trusts_anyone
from tests.support import raw
from tests.support.connections import WAIT_S
from tests.support.fake_broker import Reply, encode_reply
from tests.support.raw import Command
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("nothing_lost")

ECHO = 77
CHUNK = bytes(1024 * 1024)


class Peer:
    """The other end: reads nothing unless told to."""

    def __init__(self) -> None:
        self.address = ""
        self._ends: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def accepted(self) -> None:
        """Wait for the next connection, and talk over that one from now on."""
        async with asyncio.timeout(WAIT_S):
            self._reader, self._writer = await self._ends.get()

    async def hear(self) -> Command:
        async with asyncio.timeout(WAIT_S):
            (length,) = struct.unpack(">I", await self._reader.readexactly(4))
            return raw.decode(await self._reader.readexactly(length))

    async def say(self, data: bytes) -> None:
        self._writer.write(data)
        async with asyncio.timeout(WAIT_S):
            await self._writer.drain()

    async def answer(self, command: Command, body: bytes = b"", code: int = 0) -> None:
        await self.say(encode_reply(Reply(code, body=body), command.opaque))

    async def is_hung_up_on(self) -> bool:
        async with asyncio.timeout(WAIT_S):
            try:
                while await self._reader.read(1 << 20):
                    pass
            except ConnectionError:
                pass
        return True

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def peer(*, tls: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
    here = Peer()
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        here._ends.put_nowait((reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=65536, ssl=tls)
    here.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield here
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


@asynccontextmanager
async def joined(
    on_request: Callable[[Request, Channel], None] | None = None,
) -> AsyncIterator[tuple[Channel, Peer]]:
    async with peer() as other:
        channel = await connect(other.address, on_request=on_request)
        await other.accepted()
        try:
            yield channel, other
        finally:
            channel.abort()
            await channel.ended


def call(channel: Channel, body: bytes = b"", timeout_s: float = WAIT_S) -> "asyncio.Task[Response]":
    return asyncio.create_task(channel.call(Request(ECHO, body=body), timeout_s))


async def fill(channel: Channel) -> None:
    """Send until the peer, which reads nothing, takes no more."""
    while channel._writable is None:
        channel.send_oneway(Request(ECHO, body=CHUNK))
        await asyncio.sleep(0)


# ---------------------------------------------------------------------------------------------------------------- calls


async def test_answers_find_their_calls_in_any_order() -> None:
    async with joined() as (channel, other):
        calls = [call(channel, b"%d" % number) for number in range(3)]
        heard = [await other.hear() for _ in calls]
        for command in reversed(heard):
            await other.answer(command, command.body)
        assert [(await each).body for each in calls] == [b"0", b"1", b"2"]
        assert channel._conversation.calls == {}
        assert repr(channel) == f"<Channel {other.address} calls=0 open>"


async def test_an_answer_may_come_one_byte_at_a_time() -> None:
    async with joined() as (channel, other):
        waiting = call(channel)
        for byte in encode_reply(Reply(body=b"slow"), (await other.hear()).opaque):
            await other.say(bytes([byte]))
        assert (await waiting).body == b"slow"


async def test_what_is_said_in_one_turn_of_the_loop_is_said_in_order() -> None:
    async with joined() as (channel, other):
        for number in range(100):
            channel.send_oneway(Request(number))
        assert [(await other.hear()).code for _ in range(100)] == list(range(100))


async def test_what_was_said_before_the_end_is_still_heard() -> None:
    async with joined() as (channel, other):
        channel.send_oneway(Request(ECHO, body=CHUNK))
        channel.close()
        channel.close()
        heard = await other.hear()
        assert (heard.is_one_way, heard.body) == (True, CHUNK)
        assert await other.is_hung_up_on()
        await channel.ended


async def test_an_answer_that_nobody_asked_for_is_passed_over() -> None:
    async with joined() as (channel, other):
        await other.say(encode_reply(Reply(), 12345))
        waiting = call(channel)
        command = await other.hear()
        await other.answer(command, b"first")
        await other.answer(command, b"second")
        assert (await waiting).body == b"first"
        assert not channel.closed


async def test_a_call_that_is_given_up_leaves_nothing_behind() -> None:
    async with joined() as (channel, other):
        waiting = call(channel)
        command = await other.hear()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert channel._conversation.calls == {}
        await other.answer(command)
        again = call(channel)
        await other.answer(await other.hear())
        await again


async def test_numbers_of_requests_begin_again_where_java_would_go_below_zero() -> None:
    async with joined() as (channel, other):
        channel._conversation._last_id = 0x7FFFFFFF - 1
        for expected in (0x7FFFFFFF, 0, 1):
            waiting = call(channel)
            command = await other.hear()
            assert command.opaque == expected
            await other.answer(command)
            await waiting


# --------------------------------------------------------------------------------------------------- the line goes dead


async def test_a_line_on_which_nothing_comes_is_taken_for_dead() -> None:
    async with joined() as (channel, other):
        patient, hasty = call(channel), call(channel, timeout_s=0.02)
        with pytest.raises(CallTimeoutError, match=r"did not respond to request 77 in 0\.02 s"):
            await hasty
        with pytest.raises(ConnectionLostError, match=r"sent nothing for 0\.02 s"):
            await patient
        assert channel.closed
        assert channel._conversation.calls == {}
        with pytest.raises(ConnectionLostError, match="is closed"):
            await channel.call(Request(ECHO))
        assert await other.is_hung_up_on()


async def test_a_line_on_which_anything_comes_is_alive() -> None:
    async with joined() as (channel, other):
        patient, hasty = call(channel), call(channel, timeout_s=0.5)
        first = await other.hear()
        await other.say(encode_reply(Reply(), 12345))
        with pytest.raises(CallTimeoutError):
            await hasty
        await other.answer(first)
        await patient
        assert not channel.closed


@pytest.mark.parametrize("cut_at", [0, 1, 4, 10])
async def test_a_line_that_is_cut_in_the_middle_of_a_frame_ends_every_call(cut_at: int) -> None:
    async with joined() as (channel, other):
        calls = [call(channel) for _ in range(3)]
        heard = [await other.hear() for _ in calls]
        await other.say(encode_reply(Reply(), heard[0].opaque)[:cut_at])
        other.close()
        for each in calls:
            with pytest.raises(ConnectionLostError, match="closed the connection"):
                await each
        assert channel._conversation.calls == {}


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        bytes(4),
        struct.pack(">II", 4 + 2, 2) + b"{]",
        struct.pack(">II", 4, 2 << 24),
        struct.pack(">II", 8, 100) + bytes(4),
        b"\xff" * 64,
    ],
)
async def test_garbage_ends_the_line_and_the_error_says_so(garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with joined() as (channel, other):
        waiting = call(channel)
        await other.hear()
        await other.say(garbage)
        with pytest.raises(ConnectionLostError, match="does not speak RocketMQ's protocol"):
            await waiting
        assert await other.is_hung_up_on()
    assert [record.levelno for record in caplog.records if "channel closed" in record.message] == [logging.WARNING]


async def test_frames_before_the_garbage_count() -> None:
    async with joined() as (channel, other):
        first, second = call(channel), call(channel)
        command = await other.hear()
        await other.say(encode_reply(Reply(body=b"good"), command.opaque) + b"\xff" * 8)
        assert (await first).body == b"good"
        with pytest.raises(ConnectionLostError):
            await second


# -------------------------------------------------------------------------------------------- a peer that takes nothing


async def test_a_peer_that_takes_nothing_is_waited_for() -> None:
    async with joined() as (channel, other):
        await fill(channel)
        with pytest.raises(CallTimeoutError, match=r"has read nothing for 0\.01 s"):
            await channel.until_writable(0.01)
        waiting = asyncio.create_task(channel.until_writable(WAIT_S))
        reading = asyncio.create_task(other.is_hung_up_on())
        await waiting
        await channel.until_writable(0)
        channel.close()
        assert await reading


async def test_who_never_lets_the_loop_turn_is_held_back_as_well() -> None:
    async with joined() as (channel, _):
        sent = 0
        while channel._writable is None:
            channel.send_oneway(Request(ECHO, body=bytes(1024)))
            sent += 1
            assert sent < 100_000
        assert channel._conversation.outbox_bytes <= OUTBOX_BYTES_MAX


async def test_a_call_waits_until_it_can_be_said_and_no_longer_than_it_may() -> None:
    async with joined() as (channel, _):
        await fill(channel)
        late, hasty = call(channel, b"late"), call(channel, timeout_s=0.02)
        cancelled = call(channel)
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(CallTimeoutError):
            await hasty
        # Nothing came for so long, which is what a dead line looks like.
        with pytest.raises(ConnectionLostError):
            await late
        assert channel._conversation.calls == {}


async def test_a_call_is_said_once_the_peer_listens_again() -> None:
    async with joined() as (channel, other):
        await fill(channel)
        late = call(channel, b"late")
        while (command := await other.hear()).body != b"late":
            assert command.is_one_way
        await other.answer(command, b"after all")
        assert (await late).body == b"after all"


async def test_a_call_that_was_given_up_before_it_could_be_said_is_never_said() -> None:
    async with joined() as (channel, other):
        await fill(channel)
        given_up, late = call(channel, b"given up"), call(channel, b"late")
        await asyncio.sleep(0)
        given_up.cancel()
        while (command := await other.hear()).body != b"late":
            assert command.is_one_way
        await other.answer(command)
        await late
        assert channel._conversation.calls == {}


async def test_a_call_that_ends_twice_at_once_loses_no_exception() -> None:
    async with joined() as (channel, _):
        await fill(channel)
        waiting = call(channel, timeout_s=0)
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0, waiting.cancel)  # right after the time is over
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_peer_that_asks_and_takes_no_answers_is_hung_up_on() -> None:
    large = Response(body=CHUNK)
    async with joined(lambda request, channel: channel.answer(request, large)) as (channel, other):
        for number in range(UNSENT_BYTES_MAX // len(CHUNK) + 20):
            await other.say(raw.encode(raw.Request(ECHO), number))
        await eventually(lambda: channel.closed)


# --------------------------------------------------------------------------------------------------- what the peer asks


async def test_the_peer_asks_and_is_answered_in_its_own_form() -> None:
    def answer(request: Request, channel: Channel) -> None:
        channel.answer(request, Response(ResponseCode.SUCCESS, None, {"seen": str(request.code)}, request.body))

    async with joined(answer) as (_, other):
        for form in ("json", "binary"):
            await other.say(raw.encode(raw.Request(ECHO, {}, b"body"), 9, form=form))
            heard = await other.hear()
            assert (heard.is_reply, heard.opaque, heard.form) == (True, 9, form)
            assert (heard.fields, heard.body) == ({"seen": "77"}, b"body")


async def test_what_wants_no_answer_gets_none() -> None:
    async with joined(lambda request, channel: channel.answer(request, Response())) as (_, other):
        await other.say(raw.encode(raw.Request(ECHO), 1, flag=2) + raw.encode(raw.Request(ECHO), 2))
        assert (await other.hear()).opaque == 2


async def test_requests_and_answers_with_one_number_are_not_mixed_up() -> None:
    async with joined(lambda request, channel: channel.answer(request, Response(body=b"ours"))) as (channel, other):
        waiting = call(channel)
        command = await other.hear()
        await other.say(raw.encode(raw.Request(ECHO), command.opaque))
        assert (await other.hear()).body == b"ours"
        assert not waiting.done()
        await other.answer(command, b"theirs")
        assert (await waiting).body == b"theirs"


async def test_an_answer_to_who_has_gone_is_dropped() -> None:
    asked: list[Request] = []
    async with joined(lambda request, _: asked.append(request)) as (channel, other):
        await other.say(raw.encode(raw.Request(ECHO), 1))
        await eventually(lambda: bool(asked))
        other.close()
        await channel.ended
        channel.answer(asked[0], Response())


# ----------------------------------------------------------------------------------------------------------- retirement


async def test_a_retired_line_ends_with_its_last_answer() -> None:
    async with joined() as (channel, other):
        first, second = call(channel), call(channel)
        heard = [await other.hear() for _ in range(2)]
        channel.retire()
        await other.answer(heard[0])
        await first
        assert not channel._transport.is_closing()
        await other.answer(heard[1])
        await second
        await asyncio.wait_for(asyncio.shield(channel.ended), WAIT_S)


async def test_a_retired_line_ends_when_nobody_waits_for_its_last_answer() -> None:
    async with joined() as (channel, other):
        waiting = call(channel)
        await other.hear()
        channel.retire()
        waiting.cancel()
        assert await other.is_hung_up_on()


async def test_a_retired_line_ends_when_its_last_answer_is_late() -> None:
    async with joined() as (channel, other):
        waiting = call(channel, timeout_s=0.05)
        await other.hear()
        channel.retire()
        await other.say(encode_reply(Reply(), 12345))  # it is alive
        with pytest.raises(CallTimeoutError):
            await waiting
        assert await other.is_hung_up_on()


async def test_an_idle_line_ends_when_it_retires() -> None:
    async with joined() as (channel, other):
        channel.retire()
        assert await other.is_hung_up_on()


# -------------------------------------------------------------------------------------------------------------- opening


@pytest.mark.parametrize(
    "address", ["", "host", ":1", "host:", "host:0", "host:65536", "host:x", "127.0.0.1:1", "a" * 300 + ":1", "[::1:9"]
)
async def test_where_nobody_can_be_reached_the_error_says_where(address: str) -> None:
    with pytest.raises(ConnectError) as caught:
        await connect(address)
    assert address[:60] in str(caught.value)


async def test_a_peer_that_never_finishes_the_greeting_is_not_waited_for() -> None:
    async with peer() as other:
        with pytest.raises(ConnectError, match=r"did not accept the connection in 0\.05 s"):
            await connect(other.address, tls=client_that_trusts_anyone(), timeout_s=0.05)


async def test_a_peer_that_speaks_no_tls_is_refused() -> None:
    async with peer() as other:
        opening = asyncio.create_task(connect(other.address, tls=client_that_trusts_anyone()))
        await other.accepted()
        await other.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(ConnectError):
            await opening
