"""A connection that we open: our requests and their responses, and requests from the peer."""

import asyncio
import logging
import math
import ssl
from collections.abc import Callable
from typing import Final, TypeAlias, cast

from skyroute.clock import SystemClock
from skyroute.remoting.address import split_address
from skyroute.remoting.busy_polling import BusyPolling
from skyroute.remoting.errors import CallTimeoutError, ConnectError, ConnectionLostError, reason_of
from skyroute.remoting.log_backoff import LogBackoff
from skyroute.remoting.signing import Signer
from skyroute.wire.command import Request, Response
from skyroute.wire.conversation import OUTBOX_BYTES_MAX, Conversation, OpenCall
from skyroute.wire.fast_path import PreparedRequest, response_pieces
from skyroute.wire.header import as_response

log = logging.getLogger(__name__)

monotonic = SystemClock.monotonic

UNSENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum size of our responses that the peer has not read. Above it the connection is closed."""


Call: TypeAlias = "OpenCall[asyncio.Future[Response]]"
"""A request that waits for its response, in `waiter`."""


class Channel(asyncio.Protocol):
    """A connection to one peer. Many calls may be open; responses may come in any order."""

    def __init__(
        self,
        address: str,
        *,
        on_request: "Callable[[Request, Channel], None] | None" = None,
        on_close: "Callable[[Channel], None] | None" = None,
        close_log: LogBackoff | None = None,
        signer: Signer | None = None,
    ) -> None:
        self.address = address
        self._signer = signer
        self._close_log = close_log if close_log is not None else LogBackoff()
        """Limits the log lines about closed connections; shared by successive connections to an address."""
        self._on_request = on_request
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._transport = cast("asyncio.Transport", None)  # asyncio sets it before anything else is called
        self._conversation: Conversation[asyncio.Future[Response]] = Conversation()
        self._check_at = math.inf
        """When the first call expires. One timer for all: one for each would cost more than the rest of a call."""
        self._timer: asyncio.TimerHandle | None = None
        self._polling = BusyPolling()
        self._writable: asyncio.Future[None] | None = None
        """Set while the peer reads less than we send: done when it has caught up."""
        self._retired = False
        self._reason: str | None = None
        """Why we closed the connection, if we did."""
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def __repr__(self) -> str:
        return f"<Channel {self.address} calls={len(self._conversation.calls)} {'closed' if self.closed else 'open'}>"

    @property
    def closed(self) -> bool:
        return self.ended.done()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)
        self.resume_writing()
        reason = self._reason or f"{self.address} closed the connection: {exc or 'no reason'}"
        for call in self._conversation.end():
            if not call.waiter.done():
                call.waiter.set_exception(ConnectionLostError(reason))
        if self._timer is not None:
            self._timer.cancel()
        if self._on_close is not None:
            self._on_close(self)

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None
        if not self.closed:
            for call in self._conversation.calls.values():
                if call.frame:
                    self._write(call.frame)
                    call.frame = b""

    def data_received(self, data: bytes) -> None:
        self._polling.note_read(monotonic())
        conversation = self._conversation
        for call, command in conversation.receive(data):
            if call is None:
                if self._on_request is not None:
                    self._on_request(command, self)
            elif not call.waiter.done():
                call.waiter.set_result(as_response(command))
        if conversation.failure is not None:
            self._abort(f"{self.address} does not speak RocketMQ's protocol: {conversation.failure}")
        if self._retired:
            self._close_if_idle()

    def _abort(self, reason: str) -> None:
        suppressed = self._close_log.suppressed(self.address, monotonic())
        if suppressed is not None:  # a peer may be down for hours, and is tried again all the time
            log.warning("channel closed peer=%s reason=%s suppressed=%d", self.address, reason, suppressed)
        self._reason = reason
        self._transport.abort()

    async def call(self, request: Request | PreparedRequest, timeout_s: float = 3.0) -> Response:
        """Send a request and wait for its response.

        Raises:
            CallTimeoutError: there was none in time. If nothing else was received either, the connection is closed.
            ConnectionLostError: the connection ended first.
        """
        call = self.begin(request, timeout_s)
        try:
            return await call.waiter
        except asyncio.CancelledError:
            self.give_up(call)
            raise

    def begin(self, request: Request | PreparedRequest, timeout_s: float) -> Call:
        """Send a request. A caller that stops waiting for the response calls `give_up`.

        Raises:
            ConnectionLostError: the connection has ended.
        """
        if self.ended.done():
            raise self._closed_error()
        if self._signer is not None and isinstance(request, Request):
            self._signer.sign(request)
        call = self._conversation.begin(request, self._loop.create_future(), monotonic(), timeout_s)
        if call.deadline < self._check_at:
            self._plan_check(call.deadline)
        if self._writable is None:
            self._write(call.frame)
            call.frame = b""
        return call

    def give_up(self, call: Call) -> None:
        """Close a call whose response is not needed any more."""
        self._conversation.forget(call)
        if call.waiter.done() and not call.waiter.cancelled():
            call.waiter.exception()  # marks an error as seen, so that asyncio does not log it
        if self._retired:
            self._close_if_idle()

    def _closed_error(self) -> ConnectionLostError:
        return ConnectionLostError(f"the connection to {self.address} is closed")

    def _plan_check(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._check_at = deadline
        self._timer = self._loop.call_later(max(0.0, deadline - monotonic()), self._check_deadlines)

    def _check_deadlines(self) -> None:
        """End the calls whose deadline has passed, and plan the next check."""
        self._check_at, self._timer = math.inf, None
        for call in self._conversation.expire(monotonic()):
            if call.waiter.done():
                continue
            late = f"{self.address} did not respond to request {call.code} in {call.timeout_s:.3g} s"
            call.waiter.set_exception(CallTimeoutError(late))
            if call.reads_before == self._conversation.reads and not self.closed:
                # The connection is probably half-open, and would lose every later request as well.
                self._abort(f"{self.address} sent nothing for {call.timeout_s:.3g} s")
        if self._conversation.calls:
            self._plan_check(self._conversation.next_deadline)
        if self._retired:
            self._close_if_idle()

    def send_oneway(self, request: Request) -> None:
        """Send a request that has no response.

        Raises:
            ConnectionLostError: the connection has ended.
        """
        if self.ended.done():
            raise self._closed_error()
        if self._signer is not None:
            self._signer.sign(request)
        self._write(self._conversation.encode_oneway(request))

    async def until_writable(self, timeout_s: float = 3.0) -> None:
        """Wait while the peer reads less than we send.

        Raises:
            CallTimeoutError: it did not catch up in time.
        """
        if self._writable is not None:
            done, _ = await asyncio.wait({self._writable}, timeout=timeout_s)
            if not done:
                raise CallTimeoutError(f"{self.address} has read nothing for {timeout_s:.3g} s")

    def answer(self, request: Request, response: Response) -> None:
        """Respond to a request of the peer. Does nothing if the connection has ended."""
        if self.closed or request.is_oneway:
            return
        if self._transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self._abort(f"{self.address} sends requests and does not read the responses")
        else:
            self._write(b"".join(response_pieces(response, request.request_id, request.form)))

    def _write(self, frame: bytes) -> None:
        """Write a frame at the end of this turn of the loop, together with those of other tasks."""
        conversation = self._conversation
        if conversation.put((frame,), len(frame)):
            self._loop.call_soon(self._flush)
        if conversation.outbox_bytes > OUTBOX_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        pieces = self._conversation.take_outbox()
        if pieces and not self._transport.is_closing():
            self._transport.write(b"".join(pieces))

    def retire(self) -> None:
        """Close the connection once its open calls have their responses."""
        self._retired = True
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if not self._conversation.calls:
            self.close()

    def close(self) -> None:
        """Close the connection once everything is written."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if not self.closed:  # aborting a closed transport may fail
            self._transport.abort()


async def connect(
    address: str,
    *,
    tls: ssl.SSLContext | None = None,
    timeout_s: float = 3.0,
    on_request: Callable[[Request, Channel], None] | None = None,
    on_close: Callable[[Channel], None] | None = None,
    close_log: LogBackoff | None = None,
    signer: Signer | None = None,
) -> Channel:
    """Open a connection to `host:port`. A signer signs all requests that are not prepared.

    Raises:
        ConnectError: the address cannot be reached, or not in time.
    """
    try:
        host, port = split_address(address)
    except ValueError as error:
        raise ConnectError(str(error)) from None
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            _, channel = await loop.create_connection(
                lambda: Channel(address, on_request=on_request, on_close=on_close, close_log=close_log, signer=signer),
                host,
                port,
                ssl=tls,
            )
    except TimeoutError:
        raise ConnectError(f"{address} did not accept the connection in {timeout_s} s") from None
    except (OSError, ValueError) as error:  # an invalid host name is a ValueError
        raise ConnectError(f"{address!r} cannot be reached: {reason_of(error)}") from None
    return channel
