"""The requests of one connection: each is decoded and handled, and its response put into the outbox."""

from typing import Final

from skyroute.remoting.dispatch import Peer
from skyroute.remoting.fair_queue import SHARE_S, Share
from skyroute.remoting.peer_calls import PeerCalls
from skyroute.remoting.pending_responses import PendingResponses, Responder
from skyroute.remoting.response_writer import ResponseWriter
from skyroute.remoting.server_context import ServerContext
from skyroute.wire.codes import CANCELLABLE_CODES, READ_CODES
from skyroute.wire.command import FLAG_ONEWAY, FLAG_RESPONSE, Response
from skyroute.wire.conversation import OUTBOX_BYTES_MAX, Piece
from skyroute.wire.errors import FrameError
from skyroute.wire.fast_path import PreparedResponse
from skyroute.wire.header import response_head

CACHED_PER_CHECK: Final = 32
"""Cached responses between two checks of the connection's time share."""


class RequestProcessor:
    """Processes frames in order, and charges the connection's share of the loop for the time."""

    __slots__ = ("_calls", "_context", "_dispatcher", "_peer", "_share", "_writer", "pending")

    def __init__(
        self, peer: Peer, calls: PeerCalls, writer: ResponseWriter, share: Share, context: ServerContext
    ) -> None:
        self._peer = peer
        self._calls = calls
        self._writer = writer
        self._share = share
        self._context = context
        self._dispatcher = context.dispatcher
        self.pending = PendingResponses()

    def process(self, connection: Responder, frames: list[bytes], began: float) -> int:
        """Process frames for one share of time, or until later ones must wait; return how many were processed.

        The connection is closed at a malformed frame.
        """
        dispatcher, pending, writer = self._dispatcher, self.pending, self._writer
        fast_path, monotonic = dispatcher.fast_path, self._context.clock.monotonic
        has_cached = not fast_path.is_empty
        dispatcher.read_at = now = began
        out: list[Piece] = []
        size = at = 0
        try:
            for at, frame in enumerate(frames):
                cached = fast_path.find(frame) if has_cached else None
                if cached is None:
                    size += self._carry_out(connection, frame, out)
                else:
                    out += cached
                    size += len(cached[3])
                    if size <= OUTBOX_BYTES_MAX and (at + 1) % CACHED_PER_CHECK:
                        continue
                now = monotonic()
                if size > OUTBOX_BYTES_MAX or pending.tasks or now - began > SHARE_S:
                    writer.put(out, size)
                    out, size = [], 0
                    if writer.is_closing or writer.is_blocked or pending.is_full or now - began > SHARE_S:
                        break
        except FrameError as error:
            writer.put(out, size)
            connection.close(str(error))
        else:
            writer.put(out, size)
        if now > began:
            self._context.queue.charge(self._share, now - began)
        return at + 1

    def end(self, reason: str) -> None:
        """Note that the connection has ended: fail calls to the peer, and cancel work that only served to respond."""
        self._calls.end(reason)
        self.pending.hang_up()

    def _carry_out(self, connection: Responder, frame: bytes, out: list[Piece]) -> int:
        """Process one request; add its response, if it is ready, to `out` and return the size of its body."""
        dispatcher = self._dispatcher
        request = dispatcher.fast_path.decode(frame)
        is_oneway = 0
        if request.flag:
            if request.flag & FLAG_RESPONSE:
                self._calls.deliver(request)
                return 0
            is_oneway = request.flag & FLAG_ONEWAY
        if (is_oneway and request.code in READ_CODES) or (
            self.pending.has_hung_up and request.code in CANCELLABLE_CODES
        ):
            return 0
        response = dispatcher.answer(request, self._peer)
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
        self.pending.add(connection, request, len(frame), response)
        return 0
