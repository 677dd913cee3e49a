"""One connection that we open: requests out, answers matched to them by number, and what the peer asks of us."""

import asyncio
import logging
import math
import ssl
from collections.abc import Callable
from typing import Final, cast

import msgspec

from skyroute.clock import SystemClock
from skyroute.remoting.busy_polling import BusyPolling
from skyroute.remoting.errors import CallTimeoutError, ConnectError, ConnectionLostError
from skyroute.remoting.log_backoff import LogBackoff
from skyroute.wire.command import FLAG_ONEWAY, FLAG_RESPONSE, Request, Response, WrittenRequest
from skyroute.wire.errors import FrameError
from skyroute.wire.frame import FrameDecoder
from skyroute.wire.header import as_response, decode_command, encode_request, response_head

log = logging.getLogger(__name__)

monotonic = SystemClock.monotonic

OUTBOX_BYTES_MAX: Final = 64 * 1024
"""What is held back to be written in one piece: whoever never lets the loop turn must not fill the memory."""

UNSENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Answers that a peer may ask for without taking them; then it is hung up on."""


class Call(msgspec.Struct):
    """A request that waits for its answer."""

    answer: "asyncio.Future[Response]"
    number: int
    code: int
    timeout_s: float
    deadline: float
    chunks_heard: int
    """How often anything had come from the peer when it began to wait."""


class Channel(asyncio.Protocol):
    """A connection to one peer. Many calls may be under way; answers may come in any order."""

    def __init__(
        self,
        address: str,
        *,
        on_request: "Callable[[Request, Channel], None] | None" = None,
        on_close: "Callable[[Channel], None] | None" = None,
        hang_ups: LogBackoff | None = None,
    ) -> None:
        self.address = address
        self._hang_ups = hang_ups if hang_ups is not None else LogBackoff()
        """When it was last written that somebody was hung up on; shared by connections that follow each other."""
        self._on_request = on_request
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._transport = cast("asyncio.Transport", None)  # asyncio sets it before anything else is called
        self._decoder = FrameDecoder()
        self._last_id = 0
        self._awaited: dict[int, Call] = {}
        self._look_at = math.inf
        """When the first of them is late. One timer for all: one for each would cost more than all else of a call."""
        self._look_timer: asyncio.TimerHandle | None = None
        self._outbox: list[bytes] = []
        """Frames of this turn of the loop."""
        self._outbox_bytes = 0
        self._polling = BusyPolling()
        self._writable: asyncio.Future[None] | None = None
        """Set while the peer takes less than we send: done when it has caught up."""
        self._held_back: dict[int, bytes] = {}
        """Frames of calls that began meanwhile, by number."""
        self._retired = False
        self._reason: str | None = None
        """Why we ended the connection, if we did."""
        self.closed = False
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def __repr__(self) -> str:
        return f"<Channel {self.address} awaited={len(self._awaited)} {'closed' if self.closed else 'open'}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.resume_writing()
        reason = self._reason or f"{self.address} closed the connection: {exc or 'no reason'}"
        for call in self._awaited.values():
            if not call.answer.done():
                call.answer.set_exception(ConnectionLostError(reason))
        self._awaited.clear()
        self._held_back.clear()
        self._outbox.clear()
        self._decoder = FrameDecoder()  # frees a half-read frame, even if the channel is still referenced
        if self._look_timer is not None:
            self._look_timer.cancel()
        self.ended.set_result(None)
        if self._on_close is not None:
            self._on_close(self)

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None
        if not self.closed:
            for frame in self._held_back.values():
                self._write(frame)
            self._held_back.clear()

    def data_received(self, data: bytes) -> None:
        self._polling.heard(monotonic())
        try:
            for frame in self._decoder.feed(data):
                command = decode_command(frame)
                if command.flag & FLAG_RESPONSE:
                    call = self._awaited.pop(command.request_id, None)
                    if call is not None and not call.answer.done():
                        call.answer.set_result(as_response(command))
                elif self._on_request is not None:
                    self._on_request(command, self)
            failure = self._decoder.failure
        except FrameError as error:
            failure = str(error)
        if failure is not None:
            self._hang_up(f"{self.address} does not speak RocketMQ's protocol: {failure}")
        if self._retired:
            self._close_if_idle()

    def _hang_up(self, reason: str) -> None:
        unsaid = self._hang_ups.unsaid(self.address, monotonic())
        if unsaid is not None:  # one that is silent now may be for hours, and is tried again all the time
            log.warning("channel closed peer=%s reason=%s unsaid=%d", self.address, reason, unsaid)
        self._reason = reason
        self._transport.abort()

    async def call(self, request: Request | WrittenRequest, timeout_s: float = 3.0) -> Response:
        """Send a request and wait for its answer.

        Raises:
            CallTimeoutError: none came in time. If nothing else came either, the connection is taken for dead.
            ConnectionLostError: the connection ended first.
        """
        call = self.begin(request, timeout_s)
        try:
            return await call.answer
        except asyncio.CancelledError:
            self.give_up(call)
            raise

    def begin(self, request: Request | WrittenRequest, timeout_s: float) -> Call:
        """Send a request. Whoever waits for its answer says so if they stop: `give_up`.

        Raises:
            ConnectionLostError: the connection has ended.
        """
        self._check_open()
        number = self._last_id = (self._last_id + 1) & 0x7FFFFFFF
        frame = encode_request(request, number)
        deadline = monotonic() + timeout_s
        call = Call(self._loop.create_future(), number, request.code, timeout_s, deadline, self._polling.reads)
        self._awaited[number] = call
        if deadline < self._look_at:
            self._plan_look(deadline)
        if self._writable is None:
            self._write(frame)
        else:
            self._held_back[number] = frame
        return call

    def give_up(self, call: Call) -> None:
        """Forget a call whose answer nobody waits for any more."""
        self._forget(call)
        if call.answer.done() and not call.answer.cancelled():
            call.answer.exception()  # it ended at this very moment, and nobody else will look at it
        if self._retired:
            self._close_if_idle()

    def _forget(self, call: Call) -> None:
        self._awaited.pop(call.number, None)
        self._held_back.pop(call.number, None)

    def _check_open(self) -> None:
        if self.closed:
            raise ConnectionLostError(f"the connection to {self.address} is closed")

    def _plan_look(self, deadline: float) -> None:
        if self._look_timer is not None:
            self._look_timer.cancel()
        self._look_at = deadline
        self._look_timer = self._loop.call_later(max(0.0, deadline - monotonic()), self._look)

    def _look(self) -> None:
        """End the calls that are late, and plan to look again when the next one is."""
        self._look_at, self._look_timer = math.inf, None
        now = monotonic()
        for call in list(self._awaited.values()):
            if call.deadline <= now:
                self._expire(call)
        if self._awaited:
            self._plan_look(min(call.deadline for call in self._awaited.values()))
        if self._retired:
            self._close_if_idle()

    def _expire(self, call: Call) -> None:
        self._forget(call)
        if call.answer.done():
            return
        late = f"{self.address} did not answer request {call.code} in {call.timeout_s:.3g} s"
        call.answer.set_exception(CallTimeoutError(late))
        if call.chunks_heard == self._polling.reads and not self.closed:
            # A half-open connection looks just like this, and would swallow every later request as well.
            self._hang_up(f"{self.address} was silent for {call.timeout_s:.3g} s")

    def send_oneway(self, request: Request) -> None:
        """Send a request that nobody answers.

        Raises:
            ConnectionLostError: the connection has ended.
        """
        self._check_open()
        request.flag |= FLAG_ONEWAY
        self._last_id = (self._last_id + 1) & 0x7FFFFFFF
        self._write(encode_request(request, self._last_id))

    async def until_writable(self, timeout_s: float = 3.0) -> None:
        """Wait while the peer takes less than we send.

        Raises:
            CallTimeoutError: it did not catch up in time.
        """
        if self._writable is not None:
            done, _ = await asyncio.wait({self._writable}, timeout=timeout_s)
            if not done:
                raise CallTimeoutError(f"{self.address} takes nothing any more: it did not for {timeout_s:.3g} s")

    def answer(self, request: Request, response: Response) -> None:
        """Answer what the peer asked; a connection that has ended meanwhile wants no answer."""
        if self.closed or request.is_oneway:
            return
        if self._transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self._hang_up(f"{self.address} asks and takes no answers")
        else:
            head = response_head(response, request.request_id, request.form)
            self._write(b"".join((head, response.body, *response.more)))

    def _write(self, frame: bytes) -> None:
        # What many tasks say in one turn of the loop goes out in one piece: writing to a socket is dear.
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(frame)
        self._outbox_bytes += len(frame)
        if self._outbox_bytes >= OUTBOX_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        if self._outbox and not self._transport.is_closing():
            self._transport.write(b"".join(self._outbox))
        self._outbox.clear()
        self._outbox_bytes = 0

    def retire(self) -> None:
        """End the connection once the calls that are under way are answered."""
        self._retired = True
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if not self._awaited:
            self.close()

    def close(self) -> None:
        """End the connection once what was sent is out."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        if not self.closed:  # a transport that has ended may fail to end again
            self._transport.abort()


async def connect(
    address: str,
    *,
    tls: ssl.SSLContext | None = None,
    timeout_s: float = 3.0,
    on_request: Callable[[Request, Channel], None] | None = None,
    on_close: Callable[[Channel], None] | None = None,
    hang_ups: LogBackoff | None = None,
) -> Channel:
    """Open a connection to `host:port`.

    Raises:
        ConnectError: nobody answers there, or not in time.
    """
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port[:6]) < 65536:
        raise ConnectError(f"{address!r} is not an address: host:port is expected")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            _, channel = await loop.create_connection(
                lambda: Channel(address, on_request=on_request, on_close=on_close, hang_ups=hang_ups),
                host.strip("[]"),
                int(port),
                ssl=tls,
            )
    except TimeoutError:
        raise ConnectError(f"{address} did not take the connection in {timeout_s} s") from None
    except (OSError, ValueError) as error:  # a name that cannot be one, such as a very long one, is a ValueError
        raise ConnectError(f"{address!r} cannot be reached: {getattr(error, 'strerror', None) or error}") from None
    return channel
