"""One accepted connection: requests in, responses out, in the order in which they are processed."""

import asyncio
from typing import cast

from skyroute.remoting.address import UNKNOWN_ADDRESS, join_address
from skyroute.remoting.client_meters import ClientMeters, ConnectionMeter, TooManyError, client_key
from skyroute.remoting.connection_opening import OpeningStream, UntrustedProxyError
from skyroute.remoting.dispatch import Peer
from skyroute.remoting.errors import TlsError
from skyroute.remoting.fair_queue import LIGHT_S, Share
from skyroute.remoting.peer_calls import PeerCalls, PeerConversation
from skyroute.remoting.request_processing import RequestProcessor
from skyroute.remoting.response_writer import ResponseWriter
from skyroute.remoting.server_context import ServerContext
from skyroute.remoting.waiting_input import WaitingInput
from skyroute.wire.conversation import Conversation
from skyroute.wire.errors import FrameError


class Connection(asyncio.Protocol):
    """Reads frames, has them processed in order, and writes the responses.

    It stops reading and processing while its peer does not read the responses. If it was served for longer than its
    share, or is read while the loop is busy, it waits in the server's `FairQueue`.
    """

    __slots__ = (
        "_decoder",
        "_input",
        "_meter",
        "_opening",
        "_processor",
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
        self._input = WaitingInput(context.buffered)
        self._meter: ConnectionMeter | None = None
        """None if its address has no limits."""
        self.share = Share()
        self.active_at = context.clock.monotonic()
        self.closing_since: float | None = None
        self.peer = Peer(number, UNKNOWN_ADDRESS)
        conversation: PeerConversation = Conversation(limits.frame_bytes_max, limits.exempt)
        self._decoder = conversation.decoder
        self.writer = ResponseWriter(self.peer, conversation, context)
        calls = PeerCalls(self.peer, conversation, self.writer)
        self.peer.caller = calls
        self._processor = RequestProcessor(self.peer, calls, self.writer, self.share, context)

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
        self._processor.end(str(exc or "no reason"))
        self._drop_input()
        self.context.queue.leave(self.share)
        if self._meter is not None:
            self._meter.close(self.context.clock.monotonic())
            self._meter = None
        self.context.on_lost(self, exc)

    def eof_received(self) -> bool:
        """Flush the responses; keep the connection open while its requests wait in the queue."""
        self.writer.flush()
        self._input.has_ended = True
        return self.share.is_queued and not self._transport.is_closing()

    def data_received(self, data: bytes) -> None:
        """Process bytes now or keep them for later."""
        opening, context, share = self._opening, self.context, self.share
        try:
            if opening is not None:
                may_wait = not (opening.is_open or opening.has_turn)
                if may_wait and (share.is_queued or context.queue.must_wait(share)):
                    self._wait_to_open(opening, data)
                    return
                data = self._open(opening, data)
            if data:
                now, meter = context.clock.monotonic(), self._meter
                if meter is not None and (wait_s := meter.check(now)):
                    self._throttle(wait_s)
                if (
                    share.is_queued
                    or (
                        share.cost_s > LIGHT_S
                        and context.queue.must_wait(share)
                        and not (opening is not None and opening.has_turn)
                    )
                    or self.writer.is_blocked
                    or self._processor.pending.is_full
                    or (meter is not None and meter.is_throttled)
                ):
                    self._keep(data)
                else:
                    self._process(data, now)
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

    @property
    def buffered_bytes(self) -> int:
        """Bytes that were received and are not processed yet, as counted last."""
        return self._input.count.size

    def check(self, now: float) -> None:
        """Look for signs of life, and for a peer that has hung up. Called by the server every second."""
        if self.writer.has_progress():
            self.active_at = now
        if self._processor.pending.has_cancellable_work and self._input.has_hung_up(self._transport):
            self._processor.pending.hang_up()

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
        self._decoder.clear()
        self.count_bytes()

    def count_bytes(self) -> None:
        """Count the bytes of this connection. If the server buffers too many in all, it closes this one or others."""
        held = self._input.held_bytes + self._processor.pending.frame_bytes
        if self._decoder.buffer:
            held += self._decoder.held_bytes
        if self._opening is not None:
            held += self._opening.held_bytes
        if not self._input.count.set(held):
            self.context.on_full(self.peer.connection, self.context.buffered)

    # Input

    def _wait_to_open(self, opening: OpeningStream, data: bytes) -> None:
        """Keep the first bytes for the connection's turn: a TLS handshake takes as long as many requests."""
        opening.waiting = (opening.waiting or b"") + data
        self._input.pause(self._transport)
        self.count_bytes()
        if not (self.share.is_queued or self._transport.is_closing()):
            self.context.queue.add(self)

    def _open(self, opening: OpeningStream, data: bytes) -> bytes:
        """Return the plain bytes, without a PROXY header."""
        was_open, clock = opening.is_open, self.context.clock
        now = clock.monotonic()
        try:
            data = opening.feed(data, now)
        finally:
            if pending := opening.pending():
                self._transport.write(pending)
            if opening.tls is not None and not was_open:
                self.context.queue.charge(self.share, clock.monotonic() - now)
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

    def _keep(self, data: bytes) -> None:
        """Keep bytes for later; pause reading if some are kept already."""
        self.context.polling.reads += 1
        if not self._input.is_empty or self._is_stalled():
            self._input.pause(self._transport)
        self._input.unread += data
        self.count_bytes()
        self._queue_up()

    def _process(self, data: bytes, now: float) -> None:
        """Cut bytes into frames and process them."""
        decoder = self._decoder
        frames = decoder.feed(data)
        if decoder.buffer or self._input.count.size:
            self.count_bytes()
        if frames and self.closing_since is None:
            self.active_at = now
            self.context.polling.note_read(now)
            self._answer(frames)
        if decoder.failure is not None:
            self._close_if_broken()

    def _answer(self, frames: list[bytes]) -> None:
        """Process frames in order for one share of time; the rest waits."""
        done = self._processor.process(self, frames, self.active_at)
        meter = self._meter
        if meter is not None and (wait_s := meter.charge(frames[:done], self.context.clock.monotonic())):
            self._throttle(wait_s)
        if done < len(frames) and not self._transport.is_closing():
            self._input.put_back(frames[done:])
            self.count_bytes()
            self._input.pause(self._transport)
            self._queue_up()

    def _close_if_broken(self) -> None:
        """Close once everything before the broken part of the stream has been processed."""
        if self._decoder.failure is not None and not self._input.has_frames and not self._is_stalled():
            self.close(self._decoder.failure)

    def _is_stalled(self) -> bool:
        """Whether the next request must wait for the peer to read, for earlier responses, or for its rate."""
        is_throttled = self._meter is not None and self._meter.is_throttled
        return self.writer.is_blocked or self._processor.pending.is_full or is_throttled

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
        waiting, opening = self._input, self._opening
        try:
            if opening is not None and opening.waiting is not None:
                data, opening.waiting, opening.has_turn = opening.waiting, None, True
                self.data_received(data)
                opening.has_turn = False
            elif waiting.has_frames:
                self.active_at = self.context.clock.monotonic()
                self._answer(waiting.take_frames())
            elif waiting.unread:
                self._process(waiting.take_unread(), self.context.clock.monotonic())
        except FrameError as error:
            self.close(str(error))
        if self._transport.is_closing() or self._is_stalled() or self.share.is_queued:
            return
        if self._opening is not None and self._opening.needs_context:
            return  # reading goes on once there is a certificate
        if not waiting.is_empty:
            self._queue_up()
            return
        self.count_bytes()
        self._close_if_broken()
        if waiting.has_ended:
            self.close()
        elif not self._transport.is_closing():
            waiting.resume(self._transport)

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

    def _throttle(self, wait_s: float) -> None:
        """Read nothing for some seconds: the address has used its allowance."""
        if not self._transport.is_closing():
            self._input.pause(self._transport)
            asyncio.get_running_loop().call_later(wait_s, self._end_throttle)

    def _end_throttle(self) -> None:
        if self._meter is not None:
            self._meter.is_throttled = False
            self.resume()
