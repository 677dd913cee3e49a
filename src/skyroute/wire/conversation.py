"""One connection's conversation: request ids, open calls with their deadlines, frames in, and bytes out.

There is no I/O and no clock here: callers pass bytes and times in, and write what `take_outbox` returns.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Generic, TypeVar

import msgspec

from skyroute.wire.command import FLAG_ONEWAY, FLAG_RESPONSE, Request
from skyroute.wire.errors import FrameError
from skyroute.wire.fast_path import PreparedRequest
from skyroute.wire.frame import FRAME_BYTES_MAX, FrameDecoder
from skyroute.wire.header import OURS, decode_command, encode_request

T = TypeVar("T")

OUTBOX_BYTES_MAX: Final = 64 * 1024
"""Bytes that are collected for one write. A larger outbox is written at once."""

Piece = bytes | memoryview
"""A part of what is written."""


class OpenCall(msgspec.Struct, Generic[T]):
    """A request that waits for its response."""

    waiter: T
    """What the caller needs to deliver the response."""
    request_id: int
    code: int
    timeout_s: float
    deadline: float
    reads_before: int
    """Number of reads from the peer when the call began."""
    frame: bytes
    """The encoded request. The caller empties it once it is in the outbox."""


class Conversation(Generic[T]):
    """The calls, input and output of one connection. `T` is the type of `OpenCall.waiter`."""

    __slots__ = ("_last_id", "_outbox", "calls", "decoder", "failure", "outbox_bytes", "reads")

    def __init__(
        self, frame_bytes_max: int = FRAME_BYTES_MAX, exempt: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        self._last_id = 0
        self.calls: dict[int, OpenCall[T]] = {}
        """Open calls by request id."""
        self.decoder = FrameDecoder(frame_bytes_max, exempt)
        self.failure: str | None = None
        """Why `receive` could not read the rest of the stream."""
        self.reads = 0
        """Number of calls of `receive`."""
        self._outbox: list[Piece] = []
        self.outbox_bytes = 0

    # Calls

    def begin(
        self, request: Request | PreparedRequest, waiter: T, now: float, timeout_s: float, language: str = OURS
    ) -> OpenCall[T]:
        """Open a call and encode its request. The caller sends `frame`."""
        request_id = self._last_id = (self._last_id + 1) & 0x7FFFFFFF
        if isinstance(request, PreparedRequest):
            frame = request.encode(request_id)
        else:
            frame = encode_request(request, request_id, language)
        call = OpenCall(waiter, request_id, request.code, timeout_s, now + timeout_s, self.reads, frame)
        self.calls[request_id] = call
        return call

    def encode_oneway(self, request: Request, language: str = OURS) -> bytes:
        """Encode a request that has no response."""
        self._last_id = (self._last_id + 1) & 0x7FFFFFFF
        return encode_request(request, self._last_id, language, request.flag | FLAG_ONEWAY)

    def match(self, response: Request) -> OpenCall[T] | None:
        """Close the call that a response belongs to and return it; None if it is not open."""
        return self.calls.pop(response.request_id, None)

    def forget(self, call: OpenCall[T]) -> None:
        """Close a call without a response."""
        self.calls.pop(call.request_id, None)

    def expire(self, now: float) -> list[OpenCall[T]]:
        """Close and return the calls whose deadline has passed."""
        expired = [call for call in self.calls.values() if call.deadline <= now]
        for call in expired:
            del self.calls[call.request_id]
        return expired

    @property
    def next_deadline(self) -> float:
        """The earliest deadline of an open call, or infinity."""
        return min((call.deadline for call in self.calls.values()), default=math.inf)

    # Input

    def receive(self, data: bytes) -> "list[tuple[OpenCall[T] | None, Request]]":
        """Take bytes from the peer; return the calls with their responses, and None with each request of the peer.

        If the stream breaks the protocol, the events before that point are returned and `failure` is set.
        """
        self.reads += 1
        events: list[tuple[OpenCall[T] | None, Request]] = []
        try:
            for frame in self.decoder.feed(data):
                command = decode_command(frame)
                if not command.flag & FLAG_RESPONSE:
                    events.append((None, command))
                elif (call := self.calls.pop(command.request_id, None)) is not None:
                    events.append((call, command))
            self.failure = self.decoder.failure
        except FrameError as error:
            self.failure = str(error)
        return events

    # Output

    def put(self, pieces: Sequence[Piece], size: int) -> bool:
        """Add pieces of `size` bytes to the outbox; return whether they are its first."""
        is_first = not self._outbox
        self._outbox += pieces
        self.outbox_bytes += size
        return is_first

    def take_outbox(self) -> list[Piece]:
        """Empty the outbox and return its pieces."""
        pieces, self._outbox, self.outbox_bytes = self._outbox, [], 0
        return pieces

    def end(self) -> list[OpenCall[T]]:
        """Drop input and output, and close and return all open calls."""
        calls = list(self.calls.values())
        self.calls.clear()
        self._outbox.clear()
        self.decoder.clear()
        return calls
