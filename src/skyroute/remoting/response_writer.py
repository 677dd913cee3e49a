"""Writes one connection's output, in one piece per turn of the event loop."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, cast

from skyroute.remoting.dispatch import Peer
from skyroute.remoting.limits import ByteCount
from skyroute.remoting.server_context import ServerContext
from skyroute.remoting.tls import TlsStream
from skyroute.wire.command import Response
from skyroute.wire.conversation import OUTBOX_BYTES_MAX, Conversation, Piece
from skyroute.wire.fast_path import response_pieces

READ_BYTES_PER_S: Final = 1024
"""Lowest rate at which a peer may read its responses, after the idle time of the server."""


class ResponseWriter:
    """Collects output in the outbox, writes it at the end of the turn, and counts what the peer does not read."""

    __slots__ = (
        "_blocked_at",
        "_blocked_bytes",
        "_context",
        "_conversation",
        "_peer",
        "_seen_unsent",
        "_transport",
        "_unsent",
        "is_blocked",
        "tls",
    )

    def __init__(self, peer: Peer, conversation: Conversation[Any], context: ServerContext) -> None:
        self._peer = peer
        self._conversation = conversation
        self._context = context
        self._transport = cast("asyncio.Transport", None)  # set by `attach`, before anything is written
        self._unsent = ByteCount(context.unsent)
        self._seen_unsent = 0
        """Unsent bytes at the last `has_progress`."""
        self.is_blocked = False
        """Whether the peer has not read the responses it was sent."""
        self._blocked_at: float | None = None
        """When the server first saw that the peer does not read."""
        self._blocked_bytes = 0
        self.tls: TlsStream | None = None

    def attach(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    @property
    def is_closing(self) -> bool:
        """Whether the connection has ended or is about to: nothing more is written."""
        return self._transport.is_closing()

    def put(self, pieces: Sequence[Piece], body_bytes: int) -> None:
        """Write pieces at the end of this turn of the loop, or at once if there are many bytes."""
        conversation = self._conversation
        is_first = conversation.put(pieces, body_bytes)
        if conversation.outbox_bytes > OUTBOX_BYTES_MAX:
            self.flush()
        elif is_first and pieces:
            self._context.write_batch.add(self.flush)

    def respond(self, response: Response, request_id: int, form: int) -> None:
        """Write a response."""
        self.put(response_pieces(response, request_id, form), response.body_bytes)

    def flush(self) -> None:
        """Write the outbox."""
        pieces, transport = self._conversation.take_outbox(), self._transport
        if not pieces or transport.is_closing():
            return
        if self.tls is not None:
            self.tls.encrypt(b"".join(pieces))
            transport.write(self.tls.pending())
        elif isinstance(pieces[-1], memoryview):
            transport.writelines(pieces)  # uvloop does not copy them
        else:
            transport.write(b"".join(pieces))
        if self.is_blocked:  # deferred responses are written even to a peer that does not read
            self._count()

    def block(self) -> None:
        """Note that the peer does not read its responses."""
        self.is_blocked = True
        self._count()

    def unblock(self) -> None:
        """Note that the peer has read its responses."""
        self.is_blocked = False
        self._blocked_at = None
        self._unsent.set(0)

    def _count(self) -> None:
        if not self._unsent.set(self._transport.get_write_buffer_size()):
            self._context.on_full(self._peer.connection, self._context.unsent)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the peer has not read, as counted last."""
        return self._unsent.size

    def has_progress(self) -> bool:
        """Return whether the peer has read some of its responses since the last call."""
        unsent = self._transport.get_write_buffer_size()
        has_read, self._seen_unsent = unsent < self._seen_unsent, unsent
        return has_read

    def is_too_slow(self, now: float, patience_s: float) -> bool:
        """Return whether the peer has taken longer than `patience_s`, plus its bytes at `READ_BYTES_PER_S`, to read.

        Called by the server every second.
        """
        if not self.is_blocked:
            return False
        if self._blocked_at is None:
            self._blocked_at, self._blocked_bytes = now, self._transport.get_write_buffer_size()
        return now - self._blocked_at > patience_s + self._blocked_bytes / READ_BYTES_PER_S

    def finish(self) -> None:
        """Write the outbox and TLS's end of stream."""
        self.flush()
        if self.tls is not None and not self._transport.is_closing():
            self.tls.finish()
            self._transport.write(self.tls.pending())

    def drop(self) -> None:
        """Free what the connection held; it has ended."""
        self.tls = None
        self._unsent.set(0)
