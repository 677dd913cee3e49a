"""One accepted connection: requests in, responses out, in the order in which they are processed."""

import asyncio
import logging
import select
from typing import Final, cast

from skyroute.remoting.address import UNKNOWN_ADDRESS, join_address
from skyroute.remoting.client_meters import ClientMeter, ClientMeters, TooManyError, client_key
from skyroute.remoting.connection_opening import OpeningStream, UntrustedProxyError
from skyroute.remoting.dispatch import Peer
from skyroute.remoting.errors import ConnectionLostError, TlsError
from skyroute.remoting.fair_queue import LIGHT_S, SHARE_S, Share
from skyroute.remoting.peer_calls import PeerCalls, PeerConversation
from skyroute.remoting.pending_responses import PendingResponses
from skyroute.remoting.response_writer import ResponseWriter
from skyroute.remoting.server_context import ServerContext
from skyroute.remoting.waiting_input import WaitingInput
from skyroute.wire.codes import CANCELLABLE_CODES, READ_CODES
from skyroute.wire.command import FLAG_ONEWAY, FLAG_RESPONSE, Response
from skyroute.wire.conversation import OUTBOX_BYTES_MAX, Conversation, Piece
from skyroute.wire.errors import FrameError
from skyroute.wire.fast_path import PreparedResponse
from skyroute.wire.header import as_response, response_head

log = logging.getLogger(__name__)

CACHED_PER_CHECK: Final = 32
"""Cached responses between two checks of the connection's time share."""

_HANG_UP: Final = getattr(select, "POLLRDHUP", 0)
"""Linux reports a closed peer behind unread bytes; other systems report a reset only."""


class Connection(asyncio.Protocol):
    """Reads frames, has them processed in order, and writes the responses.

    It stops reading and processing while its peer does not read the responses. If it was served for longer than its
    share, or is read while the loop is busy, it waits in the server's `FairQueue`.
    """

    __slots__ = (
        "_conversation",
        "_input",
        "_is_handshaking",
        "_is_throttled",
        "_meter",
        "_opening",
        "_pending",
        "_transport",
        "active_at",
        "closing_since",
        "context",
        "peer",
        "share",
        "writer",
    )

    def __init__(self, context: ServerContext, number: int) -> None:
        limits = context.limits
        self.context = context
        self._transport = cast("asyncio.Transport", None)  # asyncio sets it before anything else is called
        self._opening: OpeningStream | None = None
        """Set while the connection opens, and until its end if it uses TLS."""
        self._conversation: PeerConversation = Conversation(limits.frame_bytes_max, limits.exempt)
        self._input = WaitingInput(context.buffered)
        self._pending = PendingResponses()
        self._meter: ClientMeter | None = None
        """What its address uses; None without limits for that."""
        self._is_handshaking = False
        """Whether the meter counts it as a connection without a request."""
        self._is_throttled = False
        """Whether its address has used its allowance: nothing is read for a while."""
        self.share = Share()
        self.active_at = context.clock.monotonic()
        self.closing_since: float | None = None
        self.peer = Peer(number, UNKNOWN_ADDRESS)
        self.writer = ResponseWriter(self.peer, self._conversation, context)
        self.peer.caller = PeerCalls(self.peer, self._conversation, self.writer)

    def __repr__(self) -> str:
        is_opening = self._opening is not None and not self._opening.is_open
        state = "closing" if self.closing_since is not None else "opening" if is_opening else "open"
        return f"<Connection {self.peer.connection} {self.peer.address} {state}>"

    # Events of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        context = self.context
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(context.limits.write_high_bytes, context.limits.write_low_bytes)
        self.writer.attach(self._transport)
        address = transport.get_extra_info("peername")
        is_trusted_proxy = False
        if isinstance(address, tuple):
            self._set_address(join_address(address[0], address[1]))
            is_trusted_proxy = context.limits.trusts_proxy(str(address[0]))
        self._opening = OpeningStream(context.tls, is_trusted_proxy=is_trusted_proxy)
        context.on_made(self)
        if context.meters is not None and not is_trusted_proxy:
            self._use_meter(context.meters)

    def connection_lost(self, exc: Exception | None) -> None:
        self.peer.gone = True
        # A reference to this connection or its peer must not keep the input alive.
        self.peer.caller = None
        self._opening = None
        self.writer.drop()
        for call in self._conversation.end():
            if not call.waiter.done():
                call.waiter.set_exception(
                    ConnectionLostError(f"{self.peer.address} closed the connection: {exc or 'no reason'}")
                )
        self._drop_input()
        self._pending.hang_up()
        self.context.queue.leave(self.share)
        if self._meter is not None and self.context.meters is not None:
            self._end_handshake(self._meter)
            self.context.meters.close(self._meter, self.context.clock.monotonic())
            self._meter = None
        self.context.on_lost(self, exc)

    def eof_received(self) -> bool:
        """Flush the responses; keep the connection open while its requests wait in the queue."""
        self.writer.flush()
        self._input.has_ended = True
        return self.share.is_queued and not self._transport.is_closing()

    def data_received(self, data: bytes) -> None:
        opening = self._opening
        try:
            if opening is not None:
                data = self._open(opening, data)
            if data:
                self._receive(data)
            if opening is not None and opening.tls is not None and opening.tls.ended and not self.eof_received():
                self.close()
        except UntrustedProxyError as error:
            self.close(str(error) if self.peer.address != UNKNOWN_ADDRESS else None)
        except (FrameError, TlsError) as error:
            self.close(str(error))

    def pause_writing(self) -> None:
        self._input.pause(self._transport)
        self.writer.block()

    def resume_writing(self) -> None:
        self.writer.unblock()
        self.resume()

    # Life

    @property
    def opening_since(self) -> float | None:
        """When the first byte came, while the first request or the TLS handshake is incomplete."""
        return None if self._opening is None or self._opening.is_open else self._opening.first_byte_at

    def check(self, now: float) -> None:
        """Look for signs of life, and for a peer that has hung up. Called by the server every second."""
        if self.writer.has_progress():
            self.active_at = now
        # Unless we read, asyncio does not report the end of a connection.
        if self._pending.has_cancellable_work and self._input.is_paused and not self._transport.is_closing():
            poll = select.poll()
            poll.register(self._transport.get_extra_info("socket").fileno(), _HANG_UP)
            if poll.poll(0):
                self._pending.hang_up()

    def close(self, reason: str | None = None) -> None:
        """End the connection once its responses are sent. A reason is logged as the peer's fault."""
        if self.closing_since is not None:
            return
        self.writer.finish()
        self.closing_since = self.context.clock.monotonic()
        self.context.close_log.add(self.peer.address, reason, self.closing_since)
        self._drop_input()
        self._transport.close()

    def abort(self, reason: str | None = None) -> None:
        """End the connection at once. A reason is logged as the peer's fault."""
        self.closing_since = self.context.clock.monotonic()
        self.context.close_log.add(self.peer.address, reason, self.closing_since)
        self._drop_input()
        self._transport.abort()

    def _drop_input(self) -> None:
        """Drop all input that is not processed yet."""
        if self._opening is not None:
            self._opening.clear()
        self._input.clear()
        self._conversation.drop_input()
        self.count_bytes()

    def count_bytes(self) -> None:
        """Count the bytes of this connection; close it if the server buffers too many in all."""
        held = self._input.held_bytes + self._pending.frame_bytes
        if self._conversation.decoder.buffer:
            held += self._conversation.decoder.held_bytes
        if self._opening is not None:
            held += self._opening.held_bytes
        if not self._input.count.set(held):
            self.abort("too many incomplete frames in all")

    # Input

    def _open(self, opening: OpeningStream, data: bytes) -> bytes:
        """Return the plain bytes, without a PROXY header."""
        try:
            data = opening.feed(data, self.context.clock.monotonic())
        finally:
            if pending := opening.pending():
                self._transport.write(pending)
        if opening.proxied_address is not None:
            self._set_address(opening.proxied_address)
            if self.context.meters is not None and self._meter is None:
                self._use_meter(self.context.meters)
        self.writer.tls = opening.tls
        if opening.tls is not None and opening.tls.certificate_names:
            self.peer.certificate_names = opening.tls.certificate_names
        if opening.needs_context:
            self._input.pause(self._transport)
            self.context.spawn(self._open_with_context())
        elif opening.is_open and opening.tls is None:
            self._opening = None
        self.count_bytes()
        return data

    async def _open_with_context(self) -> None:
        try:
            await self.context.tls.prepare()
        except TlsError as error:
            self.close(str(error))
        if not self._transport.is_closing():
            self._input.resume(self._transport)
            self.data_received(b"")

    def _receive(self, data: bytes) -> None:
        """Process bytes now or keep them for later; pause reading if some are kept already."""
        share, context = self.share, self.context
        if self._meter is not None:
            self._throttle(self._meter.charge(0, 0, context.clock.monotonic()))
        must_wait = share.is_queued or (share.cost_s > LIGHT_S and context.queue.must_wait(share))
        if not (must_wait or self.writer.is_blocked or self._pending.is_full or self._is_throttled):
            self._process(data, context.clock.monotonic())
            return
        context.polling.reads += 1
        if not self._input.is_empty or self._is_stalled():
            self._input.pause(self._transport)
        self._input.unread += data
        self.count_bytes()
        self._queue_up()

    def _process(self, data: bytes, now: float) -> None:
        """Cut bytes into frames and process them."""
        decoder = self._conversation.decoder
        frames = decoder.feed(data)
        if decoder.buffer or self._input.count.size:
            self.count_bytes()
        if frames and self.closing_since is None:
            self.active_at = now
            self.context.polling.note_read(now)
            self._answer(frames)
        if decoder.failure is not None:
            self._close_if_broken()

    def _close_if_broken(self) -> None:
        """Close once everything before the broken part of the stream has been processed."""
        if self._conversation.decoder.failure is not None and not self._input.has_frames and not self._is_stalled():
            self.close(self._conversation.decoder.failure)

    def _is_stalled(self) -> bool:
        """Whether the next request must wait for the peer to read, for earlier responses, or for its rate."""
        return self.writer.is_blocked or self._pending.is_full or self._is_throttled

    def _queue_up(self) -> None:
        if not self.share.is_queued and not self._is_stalled() and not self._transport.is_closing():
            self.context.queue.add(self)

    def resume(self) -> None:
        """Continue with waiting requests after a stall."""
        if self.share.is_queued:
            return
        if not self._input.is_empty and self.context.queue.must_wait(self.share):
            self._queue_up()
        else:
            self.take_turn()

    def take_turn(self) -> None:
        """Process waiting requests for one share of time; resume reading once all are done."""
        if self._transport.is_closing() or self._is_stalled():
            return
        waiting = self._input
        try:
            if waiting.has_frames:
                self.active_at = self.context.clock.monotonic()
                self._answer(waiting.take_frames())
            elif waiting.unread:
                self._process(waiting.take_unread(), self.context.clock.monotonic())
        except FrameError as error:
            self.close(str(error))
        if self._transport.is_closing() or self._is_stalled() or self.share.is_queued:
            return
        if not waiting.is_empty:
            self._queue_up()
            return
        self.count_bytes()
        self._close_if_broken()
        if waiting.has_ended:
            self.close()
        elif not self._transport.is_closing():
            waiting.resume(self._transport)

    def _answer(self, frames: list[bytes]) -> None:
        """Process frames in order for one share of time; the rest waits."""
        context, pending, writer = self.context, self._pending, self.writer
        fast_path, monotonic = context.dispatcher.fast_path, context.clock.monotonic
        has_cached = not fast_path.is_empty
        context.dispatcher.read_at = began = now = self.active_at
        out: list[Piece] = []
        size = at = 0
        has_more = False
        try:
            for at, frame in enumerate(frames):
                cached = fast_path.find(frame) if has_cached else None
                if cached is None:
                    size += self._carry_out(frame, out)
                else:
                    out += cached
                    size += len(cached[3])
                    if size <= OUTBOX_BYTES_MAX and (at + 1) % CACHED_PER_CHECK:
                        continue
                now = monotonic()
                if size > OUTBOX_BYTES_MAX or pending.tasks or now - began > SHARE_S:
                    writer.put(out, size)
                    out, size = [], 0
                    if self._transport.is_closing():
                        break
                    if at + 1 < len(frames) and (self._is_stalled() or now - began > SHARE_S):
                        self._input.put_back(frames[at + 1 :])
                        self.count_bytes()
                        self._input.pause(self._transport)
                        has_more = True
                        break
        except FrameError as error:
            writer.put(out, size)
            self.close(str(error))
        else:
            writer.put(out, size)
        if now > began:
            context.queue.charge(self.share, now - began)
        if has_more:
            self._queue_up()
        if self._meter is not None:
            self._charge(self._meter, frames[: at + 1], monotonic())

    # The client at the other end

    def _set_address(self, address: str) -> None:
        """Set the client's address: its connections share the time of one client, unless it is a proxy with many."""
        self.peer.set_address(address)
        source, limits = self.peer.source, self.context.limits
        if not (limits.clients.is_exempt(source) or limits.trusts_proxy(source)):
            self.context.queue.join(self.share, client_key(source))

    def _use_meter(self, meters: ClientMeters) -> None:
        """Count this connection for its address, or close it if the address has too many."""
        if self._transport.is_closing() or self.peer.address == UNKNOWN_ADDRESS:
            return
        try:
            self._meter = meters.open(self.peer.source, self.context.clock.monotonic())
        except TooManyError as error:
            self.abort(str(error))
        else:
            self._is_handshaking = self._meter is not None

    def _end_handshake(self, meter: ClientMeter) -> None:
        if self._is_handshaking:
            self._is_handshaking = False
            meter.handshakes -= 1

    def _charge(self, meter: ClientMeter, frames: list[bytes], now: float) -> None:
        """Charge the address for processed requests; if it has used its allowance, read nothing for a while."""
        self._end_handshake(meter)
        self._throttle(meter.charge(len(frames), sum(map(len, frames)), now))

    def _throttle(self, wait_s: float) -> None:
        if wait_s > 0 and not self._is_throttled and not self._transport.is_closing():
            self._is_throttled = True
            self._input.pause(self._transport)
            asyncio.get_running_loop().call_later(wait_s, self._end_throttle)

    def _end_throttle(self) -> None:
        self._is_throttled = False
        if not self._transport.is_closing():
            self.resume()

    def _carry_out(self, frame: bytes, out: list[Piece]) -> int:
        """Process one request; add its response, if it is ready, to `out` and return the size of its body."""
        dispatcher = self.context.dispatcher
        request = dispatcher.fast_path.decode(frame)
        if request.flag & FLAG_RESPONSE:
            call = self._conversation.match(request)
            if call is None:
                log.debug("response dropped peer=%s request=%d", self.peer.address, request.request_id)
            elif not call.waiter.done():
                call.waiter.set_result(as_response(request))
            return 0
        is_oneway = request.flag & FLAG_ONEWAY
        if (is_oneway and request.code in READ_CODES) or (
            self._pending.has_hung_up and request.code in CANCELLABLE_CODES
        ):
            return 0
        response = dispatcher.answer(request, self.peer)
        if is_oneway and isinstance(response, Response):
            return 0
        if type(response) is PreparedResponse:  # not `isinstance`, which takes longer: most responses pass here
            out += response.pieces(request.request_id, request.form)
            if response.is_cacheable:
                dispatcher.keep(frame, request, response)
            return response.body_bytes if response.more else len(response.body)
        if isinstance(response, Response):
            out += (response_head(response, request.request_id, request.form), response.body)
            return len(response.body)
        self._pending.add(self, request, len(frame), response)
        return 0
