"""One accepted connection: its first bytes, its frames, its answers."""

import asyncio
import logging
import math
import select
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, cast

from skyroute.clock import Clock
from skyroute.remoting.busy_polling import BusyPolling, WriteBatch
from skyroute.remoting.dispatch import Answer, DeferredResponse, Dispatcher, InTurn, Peer, failure
from skyroute.remoting.errors import CallTimeoutError, ConnectionLostError, TlsError
from skyroute.remoting.fair_queue import FADING, FIRST_COST_S, LIGHT_S, SHARE_S, TURN_S, FairQueue
from skyroute.remoting.tls import ServerTls, TlsStream
from skyroute.remoting.tls_settings import TlsMode
from skyroute.wire.codes import ABANDONABLE, QUESTIONS
from skyroute.wire.command import FLAG_ONEWAY, FLAG_RESPONSE, Request, Response
from skyroute.wire.errors import FrameError
from skyroute.wire.frame import FRAME_BYTES_MAX, FrameDecoder
from skyroute.wire.header import as_response, decode_command, encode_request, response_head
from skyroute.wire.proxy_protocol import PROXY_STARTS, read_proxy_header

log = logging.getLogger(__name__)

WRITE_BYTES: Final = 64 * 1024
"""Answers that are given in one turn of the loop are gathered up to this size before they are written."""

AWAITED_MAX: Final = 1024
"""How many answers of one connection may be waited for before reading stops."""

LOOK_EVERY: Final = 32
"""Cached responses between two checks of the connection's time share."""

BACKLOG_FRAMES: Final = 256
"""Maximum number of waiting frames processed at a time."""

FRAME_OVERHEAD_BYTES: Final = 64
"""Memory of a waiting frame besides its bytes."""

LATER_MAX: Final = 100_000
"""How many answers of one connection that cost no task, such as those to parked pulls, may be waited for."""

CALLS_MAX: Final = 1024
"""How many questions to one peer may be without an answer."""

STOOD_STILL_S: Final = 1.0
"""A question is waited for as much longer as this process itself was late to look, up to this."""

COMPLAINTS_MAX: Final = 50
COMPLAINTS_WINDOW_S: Final = 10.0
"""Of all peers that break the protocol in one such window, so many get a line of their own in the log."""

TLS_HANDSHAKE_BYTES: Final = 64 * 1024
"""What a handshake under way is taken to hold: the library does not say."""

SERVER_LANGUAGE: Final = "JAVA"
"""What every peer expects of a server."""

UNKNOWN_ADDRESS: Final = "?"
"""Address of a peer that closed the connection before the system reported its address."""

Piece = bytes | memoryview
"""A part of what is written."""

_TLS_HANDSHAKE: Final = 0x16
_HANG_UP: Final = getattr(select, "POLLRDHUP", 0)
"""Linux tells of the end behind bytes that are not read; elsewhere only a reset is seen."""
_DECIDING_BYTES: Final = 12
"""Whoever has said so much has begun in earnest: hardly a frame is shorter, and no handshake."""


def join_address(host: str, port: int) -> str:
    """Return `host:port`, as it is written for people."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class Limits:
    """Every bound a peer can run into."""

    connections_max: int = 50_000
    frame_bytes_max: int = FRAME_BYTES_MAX
    exempt: Mapping[int, int] = field(default_factory=dict)
    """Request code to the longest frame of that kind, where it may be longer than all others."""
    buffered_bytes_max: int = 1 << 30
    """All frames together that peers have begun and not finished, or that wait for their turn."""
    unsent_bytes_max: int = 1 << 30
    """All answers together that peers are slow to take."""
    write_high_bytes: int = 64 * 1024
    write_low_bytes: int = 32 * 1024
    idle_s: float = 120.0
    opening_s: float = 10.0
    """How long the first bytes, up to the end of a TLS handshake, may take."""
    listen_backlog: int = 1024
    send_buffer_bytes: int = 0
    receive_buffer_bytes: int = 0
    """Sizes of the system's own buffers; 0 leaves them to the system."""
    trusts_proxy: Callable[[str], bool] = field(default=lambda address: False)
    """Whether to trust a PROXY header from this IP address."""


class ByteBudget:
    """A sum over all connections that must stay within a bound."""

    __slots__ = ("_bound", "_shares", "freed", "total")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._shares: dict[int, int] = {}
        self.total = 0
        self.freed = 0
        """Sum of all decreases since the start."""

    def put(self, connection: int, share: int) -> bool:
        """Set one connection's share; false means that it grew and the sum is now too large."""
        grown = share - self._shares.get(connection, 0)
        if share:
            self._shares[connection] = share
        else:
            self._shares.pop(connection, None)
        self.total += grown
        if grown < 0:
            self.freed -= grown
        return grown <= 0 or self.total <= self._bound


@dataclass(slots=True)
class Complaints:
    """Keeps peers that connect again and again from filling the log."""

    lines: int = 0
    window_began_at: float = -math.inf

    def is_heard(self, now: float) -> bool:
        """Count a complaint about a peer; false once there were enough in this window of time."""
        if now - self.window_began_at > COMPLAINTS_WINDOW_S:
            if self.lines > COMPLAINTS_MAX:
                log.warning("connections closed without a line each count=%d", self.lines - COMPLAINTS_MAX)
            self.lines, self.window_began_at = 0, now
        self.lines += 1
        return self.lines <= COMPLAINTS_MAX


@dataclass(frozen=True, slots=True)
class ServerContext:
    """What the connections of one server share."""

    dispatcher: Dispatcher
    tls: ServerTls
    clock: Clock
    limits: Limits
    buffered: ByteBudget
    unsent: ByteBudget
    complaints: Complaints
    polling: BusyPolling
    turn_end: WriteBatch
    queue: FairQueue
    on_made: "Callable[[Connection], None]"
    on_lost: "Callable[[Connection, Exception | None], None]"
    """Called exactly once for every connection that was made."""
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    """Runs something in the background until it ends or the server stops."""


class Connection(asyncio.Protocol):
    """Reads frames, has them answered in order, and writes the answers.

    A connection is *opening* until its first bytes have told whether a PROXY header and TLS come first. It stops
    reading, and answering, while its peer does not take the answers. One that was answered for longer than its share,
    or is read when the loop has much to do, waits in the server's `FairQueue`.
    """

    __slots__ = (
        "_awaited",
        "_backlog",
        "_backlog_bytes",
        "_calls",
        "_decoder",
        "_first_bytes",
        "_has_ended",
        "_has_hung_up",
        "_held",
        "_is_paused",
        "_is_queued",
        "_last_call",
        "_later",
        "_lost",
        "_outbox",
        "_outbox_bytes",
        "_service",
        "_tls",
        "_transport",
        "_turn",
        "_turn_is_abandonable",
        "_unread",
        "_unsent",
        "_waiting",
        "_working_bytes",
        "active_at",
        "closing_since",
        "cost_s",
        "first_byte_at",
        "opening",
        "peer",
        "virtual_s",
    )

    def __init__(self, service: ServerContext, number: int) -> None:
        self._service = service
        self._transport = cast("asyncio.Transport", None)  # asyncio sets it before anything else is called
        self._decoder = FrameDecoder(service.limits.frame_bytes_max, service.limits.exempt)
        self._first_bytes = b""
        self._tls: TlsStream | None = None
        self._unread = b""
        """Bytes received while earlier frames wait."""
        self._backlog: deque[bytes] = deque()
        """Frames that wait for their turn, or for the peer to read earlier responses."""
        self._backlog_bytes = 0
        self._is_queued = False
        """Whether it waits in the server's `FairQueue`."""
        self._is_paused = False
        """Whether reading is paused."""
        self._has_ended = False
        """Whether the peer has closed its sending side."""
        self.virtual_s = 0.0
        """Its virtual time in the `FairQueue`."""
        self.cost_s = FIRST_COST_S
        """Expected time per turn, by the longest of the recent turns."""
        self._held = 0
        """Bytes of this connection in the server's account of what it buffers."""
        self._waiting = False
        """The peer does not take our answers at present."""
        self._awaited = 0
        """Answers that a handler is still working on."""
        self._working_bytes = 0
        """Bytes of the frames of those requests."""
        self._later = 0
        """Answers that somebody will give, and nobody works on."""
        self._outbox: list[Piece] = []
        """What is to be written at the end of this turn of the loop."""
        self._outbox_bytes = 0
        self._calls: dict[int, asyncio.Future[Response]] = {}
        """What we asked the peer, by number."""
        self._last_call = 0
        self._turn: asyncio.Task[None] | None = None
        """Work on a response that all later requests wait for."""
        self._turn_is_abandonable = False
        self._has_hung_up = False
        """The peer wants no answers any more; what it sent before is still to be carried out."""
        self._unsent = 0
        """Bytes not yet taken by the peer when the server last looked."""
        self._lost = False
        self.opening = True
        self.first_byte_at: float | None = None
        self.active_at = service.clock.monotonic()
        self.closing_since: float | None = None
        self.peer = Peer(number, UNKNOWN_ADDRESS, line=self)

    def __repr__(self) -> str:
        state = "closing" if self.closing_since is not None else "opening" if self.opening else "open"
        return f"<Connection {self.peer.connection} {self.peer.address} {state}>"

    # What asyncio tells us

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        limits = self._service.limits
        self._transport.set_write_buffer_limits(limits.write_high_bytes, limits.write_low_bytes)
        address = transport.get_extra_info("peername")
        if isinstance(address, tuple):
            self.peer.address = join_address(address[0], address[1])
        self._service.on_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self.peer.gone = True
        # A reference to this connection or its peer must not keep the input alive.
        self.peer.line = None
        self._tls = None
        self._drop_input()
        self._outbox.clear()
        if self._turn is not None and self._turn_is_abandonable:  # a change that has begun is finished
            self._turn.cancel()
        for call in self._calls.values():
            if not call.done():
                call.set_exception(
                    ConnectionLostError(f"{self.peer.address} closed the connection: {exc or 'no reason'}")
                )
        self._service.unsent.put(self.peer.connection, 0)
        self._service.on_lost(self, exc)

    def eof_received(self) -> bool:
        """Flush the responses; keep the connection open while its requests wait in the queue."""
        self._flush()
        self._has_ended = True
        return self._is_queued and not self._is_over

    def data_received(self, data: bytes) -> None:
        try:
            if self.opening:
                data = self._open(data)
            elif self._tls is not None:
                data = self._decrypt(data)
            if data:
                self._receive(data)
            if self._tls is not None and self._tls.ended and not self.eof_received():
                self.close()
        except (FrameError, TlsError) as error:
            self.close(str(error))

    def pause_writing(self) -> None:
        self._waiting = True
        self._pause_reading()
        if not self._service.unsent.put(self.peer.connection, self._transport.get_write_buffer_size()):
            self.abort("too many unread answers in all")

    def resume_writing(self) -> None:
        self._waiting = False
        self._service.unsent.put(self.peer.connection, 0)
        self._go_on()

    # What the server asks of us

    def close(self, reason: str | None = None) -> None:
        """End the connection once its answers are sent; say why if the peer is to blame."""
        if self.closing_since is not None:
            return
        self._flush()
        self._complain(reason)
        self.closing_since = self._service.clock.monotonic()
        self._drop_input()
        if self._tls is not None and not self._transport.is_closing():
            self._tls.finish()
            self._transport.write(self._tls.pending())
        self._transport.close()

    def abort(self, reason: str | None = None) -> None:
        """End the connection at once, sent or not."""
        self._complain(reason)
        self.closing_since = self._service.clock.monotonic()
        self._drop_input()
        self._transport.abort()

    def _drop_input(self) -> None:
        """Drop all input that is not processed yet."""
        self._first_bytes = self._unread = b""
        self._backlog.clear()
        self._backlog_bytes = 0
        self._decoder.buffer = bytearray()
        self._account()

    def _complain(self, reason: str | None) -> None:
        if reason is not None and self._service.complaints.is_heard(self._service.clock.monotonic()):
            log.warning("connection closed peer=%s reason=%s", self.peer.address, reason)

    def note_progress(self, now: float) -> None:
        """A peer that takes answers is not idle, though it asks nothing."""
        unsent = self._transport.get_write_buffer_size()
        if unsent < self._unsent:
            self.active_at = now
        self._unsent = unsent

    def notice_hang_up(self) -> None:
        """End the work on a long answer that nobody waits for; unless we read, asyncio does not tell."""
        if self._turn is not None and self._turn_is_abandonable and self._is_paused and not self._is_over:
            poll = select.poll()
            poll.register(self._transport.get_extra_info("socket").fileno(), _HANG_UP)
            if poll.poll(0):
                self._has_hung_up = True
                self._turn.cancel()

    # What we ask of the peer

    def tell(self, request: Request) -> None:
        """Send a request that nobody answers. A peer that takes nothing is told nothing."""
        if self._is_over or self._waiting:
            return
        request.flag |= FLAG_ONEWAY
        self._write([encode_request(request, self._next_call(), SERVER_LANGUAGE)], len(request.body))

    async def call(self, request: Request, timeout_s: float) -> Response:
        """Ask the peer something.

        Raises:
            CallTimeoutError: it did not answer in time, or has too many questions to answer.
            ConnectionLostError: the connection has ended, or does before the answer comes.
        """
        if self._is_over:
            raise ConnectionLostError(f"{self.peer.address} is gone")
        if self._waiting or len(self._calls) >= CALLS_MAX:
            raise CallTimeoutError(
                f"{self.peer.address} takes no more questions: {len(self._calls)} wait for an answer"
            )
        loop, number = asyncio.get_running_loop(), self._next_call()
        answered: asyncio.Future[Response] = loop.create_future()
        self._calls[number] = answered
        try:
            deadline = loop.time() + timeout_s
            self._write([encode_request(request, number, SERVER_LANGUAGE)], len(request.body))
            await asyncio.wait({answered}, timeout=timeout_s)
            if not answered.done():
                # Had this process stood still, the answer would wait unread.
                await asyncio.wait({answered}, timeout=min(max(0.0, loop.time() - deadline), STOOD_STILL_S))
            if not answered.done():
                raise CallTimeoutError(
                    f"{self.peer.address} did not answer request {request.code} in {timeout_s:.3g} s"
                )
            return answered.result()
        finally:
            del self._calls[number]
            answered.cancel()

    def _next_call(self) -> int:
        self._last_call = (self._last_call + 1) & 0x7FFFFFFF
        return self._last_call

    def _take_response(self, command: Request) -> None:
        call = self._calls.get(command.request_id)
        if call is None:
            log.debug("response dropped peer=%s request=%d", self.peer.address, command.request_id)
        elif not call.done():
            call.set_result(as_response(command))

    # First bytes

    def _open(self, data: bytes) -> bytes:
        """Look for a PROXY header, then for TLS; return what follows, or nothing while that is undecided."""
        if self.first_byte_at is None:
            self.first_byte_at = self._service.clock.monotonic()
        if self._tls is not None:
            return self._decrypt(data)
        data = self._first_bytes + data
        if data.startswith(PROXY_STARTS) and not self._is_trusted_proxy():
            if self.peer.address == UNKNOWN_ADDRESS:
                self.close()
                return b""
            raise FrameError("a PROXY header from an address that trustedProxies does not name")
        proxied = read_proxy_header(data)
        if proxied is None or _has_only_begun(data[proxied.header_bytes :]):
            self._first_bytes = data
            self._account()
            return b""
        rest = data[proxied.header_bytes :]
        self._first_bytes = b""
        if proxied.address is not None:
            self.peer.address = proxied.address
        mode = self._service.tls.mode
        if rest[0] == _TLS_HANDSHAKE:
            if mode is TlsMode.DISABLED:
                raise TlsError("the peer speaks TLS, which tls.server.mode=disabled forbids")
            context = self._service.tls.context
            if context is None:
                self._first_bytes = data
                self._pause_reading()
                self._service.spawn(self._open_when_prepared())
                return b""
            self._tls = TlsStream(context)
            return self._decrypt(rest)
        if mode is TlsMode.ENFORCING:
            raise TlsError("the peer does not speak TLS, which tls.server.mode=enforcing demands")
        self.opening = False
        return rest

    def _is_trusted_proxy(self) -> bool:
        address = self._transport.get_extra_info("peername")
        return isinstance(address, tuple) and self._service.limits.trusts_proxy(str(address[0]))

    async def _open_when_prepared(self) -> None:
        try:
            await self._service.tls.prepare()
        except TlsError as error:
            self.close(str(error))
        if not self._is_over:
            data, self._first_bytes = self._first_bytes, b""
            self._resume_reading()
            self.data_received(data)

    def _decrypt(self, data: bytes) -> bytes:
        assert self._tls is not None
        try:
            plain = self._tls.decrypt(data)
        finally:
            if pending := self._tls.pending():
                self._transport.write(pending)
        if self._tls.established:
            self.opening = False
        self._account()
        return plain

    # Frames and answers

    def _receive(self, data: bytes) -> None:
        if self._is_queued or self._stalled or (self.cost_s > LIGHT_S and self._must_queue):
            self._wait(data)
        else:
            self._take(data, self._service.clock.monotonic())

    def _take(self, data: bytes, now: float) -> None:
        """Cut bytes into frames and answer them."""
        decoder = self._decoder
        frames = decoder.feed(data)
        if decoder.buffer or self._held:
            self._account()
        if frames and self.closing_since is None:
            self.active_at = now
            self._service.polling.heard(now)
            self._answer(frames)
        if decoder.failure is not None:
            self._end_if_broken()

    # Waiting for a turn

    @property
    def _must_queue(self) -> bool:
        """Whether this connection was expensive recently, or the loop has used up its `TURN_S`."""
        return self.cost_s > SHARE_S or self._service.queue.spent_s > TURN_S

    def _wait(self, data: bytes) -> None:
        """Keep bytes for later; pause reading if some are kept already."""
        self._service.polling.reads += 1
        if self._unread or self._backlog or self._stalled:
            self._pause_reading()
        self._unread += data
        self._account()
        self._queue_up()

    def _queue_up(self) -> None:
        if not self._is_queued and not self._stalled and not self._is_over:
            self._is_queued = True
            self._service.queue.add(self)

    def take_turn(self) -> None:
        """Process waiting requests for one share of time. Called by the queue."""
        self._is_queued = False
        if not self._is_over and not self._stalled:
            self._proceed()

    def _go_on(self) -> None:
        """Continue with waiting requests after a stall."""
        if self._is_over or self._stalled or self._is_queued:
            return
        if self.cost_s > LIGHT_S and self._must_queue and (self._backlog or self._unread):
            self._queue_up()
        else:
            self._proceed()

    def _proceed(self) -> None:
        """Process waiting requests; resume reading once all are done."""
        try:
            if self._backlog:
                self.active_at = self._service.clock.monotonic()
                self._answer(self._take_back())
            elif self._unread:
                data, self._unread = self._unread, b""
                self._take(data, self._service.clock.monotonic())
        except FrameError as error:
            self.close(str(error))
        if self._is_over or self._stalled or self._is_queued:
            return
        if self._backlog or self._unread:
            self._queue_up()
            return
        self._account()
        self._end_if_broken()
        if self._has_ended:
            self.close()
        elif not self._is_over:
            self._resume_reading()

    @property
    def _is_over(self) -> bool:
        return self._lost or self.closing_since is not None or self._transport.is_closing()

    @property
    def _stalled(self) -> bool:
        return self._waiting or self._turn is not None or self._awaited >= AWAITED_MAX or self._later >= LATER_MAX

    def _put_back(self, frames: list[bytes]) -> None:
        """Put frames back at the front of the backlog."""
        self._backlog.extendleft(reversed(frames))
        self._backlog_bytes += sum(map(len, frames)) + FRAME_OVERHEAD_BYTES * len(frames)
        self._account()
        self._pause_reading()

    def _take_back(self) -> list[bytes]:
        """Remove and return the first waiting frames."""
        backlog = self._backlog
        frames = [backlog.popleft() for _ in range(min(BACKLOG_FRAMES, len(backlog)))]
        self._backlog_bytes -= sum(map(len, frames)) + FRAME_OVERHEAD_BYTES * len(frames)
        return frames

    def _pause_reading(self) -> None:
        if not self._is_paused and not self._transport.is_closing():  # uvloop refuses to pause what is closing
            self._is_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def _answer(self, frames: list[bytes]) -> None:
        """Process frames in order for one share of time; the rest waits."""
        service = self._service
        find_repeat, monotonic = service.dispatcher.repeats.find, service.clock.monotonic
        service.dispatcher.free_since = began = now = self.active_at
        out: list[Piece] = []
        size = 0
        try:
            for at, frame in enumerate(frames):
                known = find_repeat(frame)
                if known is None:
                    size += self._carry_out(frame, out)
                else:
                    out += known
                    size += len(known[3])
                    if size <= WRITE_BYTES and (at + 1) % LOOK_EVERY:
                        continue
                now = monotonic()
                if size > WRITE_BYTES or self._awaited or now - began > SHARE_S:
                    self._write(out, size)
                    out, size = [], 0
                    if self._is_over:
                        break
                    if at + 1 < len(frames) and (self._stalled or now - began > SHARE_S):
                        self._put_back(frames[at + 1 :])
                        self._queue_up()
                        break
        except FrameError as error:
            self._write(out, size)
            self.close(str(error))
        else:
            self._write(out, size)
        if now > began:
            took_s, queue = now - began, service.queue
            queue.spent_s += took_s
            if queue.is_busy:
                self.virtual_s += took_s
            self.cost_s = max(took_s, FADING * self.cost_s)

    def _carry_out(self, frame: bytes, out: list[Piece]) -> int:
        """Process one request; add its response, if it is ready, to `out` and return the size of its body."""
        request, dispatcher = decode_command(frame), self._service.dispatcher
        if request.flag & FLAG_RESPONSE:
            self._take_response(request)
            return 0
        is_oneway = request.flag & FLAG_ONEWAY
        if (is_oneway and request.code in QUESTIONS) or (self._has_hung_up and request.code in ABANDONABLE):
            return 0
        response = dispatcher.answer(request, self.peer)
        if type(response) is not Response:
            self._await_answer(request, len(frame), response)
            return 0
        if is_oneway:
            return 0
        out += (response_head(response, request.request_id, request.form), response.body, *response.more)
        if response.lasting:
            dispatcher.keep(frame, request, response)
        return response.body_bytes if response.more else len(response.body)

    def _await_answer(self, request: Request, frame_bytes: int, answer: Answer) -> None:
        if isinstance(answer, DeferredResponse):
            self._later += 1
            # The request itself may be large, and the answer long in coming.
            request_id = None if request.is_oneway else request.request_id
            answer.then(partial(self._receive_late, request_id, request.form))
            return
        self._awaited += 1
        self._working_bytes += frame_bytes
        self._account()
        in_turn = isinstance(answer, InTurn)
        work = cast("Awaitable[Response]", answer.work if isinstance(answer, InTurn) else answer)
        task = self._service.spawn(self._finish(request, work))
        task.add_done_callback(partial(self._end_work, work, frame_bytes))
        if in_turn:
            self._turn = task
            self._turn_is_abandonable = request.code in ABANDONABLE

    def _receive_late(self, request_id: int | None, form: int, response: Response) -> None:
        self._later -= 1
        if self._is_over:
            return
        if request_id is not None:
            head = response_head(response, request_id, form)
            self._write((head, response.body, *response.more), response.body_bytes)
        if self._later == LATER_MAX - 1:
            self._go_on()

    async def _finish(self, request: Request, work: Awaitable[Response]) -> None:
        try:
            response = await work
        except Exception as error:  # noqa: BLE001 - one peer's request must not end the others' service
            response = failure(error, request, self.peer)
        if not self._is_over and not request.is_oneway:
            head = response_head(response, request.request_id, request.form)
            self._write((head, response.body, *response.more), response.body_bytes)

    def _end_work(self, work: Awaitable[Response], frame_bytes: int, task: "asyncio.Task[None]") -> None:
        if isinstance(work, Coroutine):
            work.close()  # avoids a warning for a coroutine that was cancelled before it started
        self._awaited -= 1
        self._working_bytes -= frame_bytes
        if self._turn is task:
            self._turn = None
        if self._lost:
            self._hold(self._working_bytes)
        else:
            self._go_on()

    def _write(self, out: Sequence[Piece], body_bytes: int) -> None:
        """Have something written at the end of this turn of the loop, or now if there is much to write."""
        is_first = not self._outbox
        self._outbox += out
        self._outbox_bytes += body_bytes
        if self._outbox_bytes > WRITE_BYTES:
            self._flush()
        elif is_first and out:
            self._service.turn_end.add(self._flush)

    def _flush(self) -> None:
        out, self._outbox, self._outbox_bytes = self._outbox, [], 0
        if not out or self._is_over:
            return
        if self._tls is not None:
            self._tls.encrypt(b"".join(out))
            self._transport.write(self._tls.pending())
        elif isinstance(out[-1], memoryview):
            self._transport.writelines(out)  # uvloop does not copy them
        else:
            self._transport.write(b"".join(out))
        # Nobody holds late answers back from a peer that takes none, so they count as they come.
        if self._waiting and not self._service.unsent.put(
            self.peer.connection, self._transport.get_write_buffer_size()
        ):
            self.abort("too many unread answers in all")

    def _end_if_broken(self) -> None:
        """Close once everything before the broken part of the stream has been answered."""
        if self._decoder.failure is not None and not self._backlog and not self._stalled:
            self.close(self._decoder.failure)

    def _account(self) -> None:
        held = len(self._first_bytes) + len(self._unread) + self._backlog_bytes + self._working_bytes
        if self._decoder.buffer:
            held += self._decoder.held_bytes
        if self._tls is not None:
            held += self._tls.buffered if self._tls.established else TLS_HANDSHAKE_BYTES
        self._hold(held)

    def _hold(self, size: int) -> None:
        """Account for the bytes we keep; if the server holds too many in all, it closes this connection."""
        self._held = size
        if not self._service.buffered.put(self.peer.connection, size):
            self.abort("too many unfinished frames in all")


def _has_only_begun(data: bytes) -> bool:
    """Return whether a peer has hardly said anything: neither a short frame, whole or hopeless, nor more than one."""
    return len(data) < _DECIDING_BYTES and (len(data) < 4 or int.from_bytes(data[:4]) > len(data) - 4)
