"""The input of a connection that is received and not processed yet."""

import asyncio
import select
from typing import Final

from skyroute.remoting.limits import ByteBudget, ByteCount

BACKLOG_FRAMES: Final = 256
"""Maximum number of waiting frames processed at a time."""

FRAME_OVERHEAD_BYTES: Final = 64
"""Memory of a waiting frame besides its bytes."""

_HANG_UP: Final = getattr(select, "POLLRDHUP", 0)
"""Linux reports a closed peer behind unread bytes; other systems report a reset only."""


class WaitingInput:
    """Frames and bytes that wait for their turn, or for the peer to read earlier responses."""

    __slots__ = ("_frames", "_frames_bytes", "count", "has_ended", "is_paused", "unread")

    def __init__(self, budget: ByteBudget) -> None:
        self._frames: list[bytes] = []
        """The first frame is last, so that it is removed and put back cheaply. An empty deque takes 600 bytes more."""
        self._frames_bytes = 0
        self.unread = b""
        """Bytes received while earlier frames wait."""
        self.is_paused = False
        """Whether reading from the socket is paused."""
        self.has_ended = False
        """Whether the peer has closed its sending side."""
        self.count = ByteCount(budget)
        """All bytes this connection buffers."""

    @property
    def has_frames(self) -> bool:
        return bool(self._frames)

    @property
    def is_empty(self) -> bool:
        return not self._frames and not self.unread

    @property
    def held_bytes(self) -> int:
        return len(self.unread) + self._frames_bytes

    def put_back(self, frames: list[bytes]) -> None:
        """Put frames back at the front."""
        self._frames += reversed(frames)
        self._frames_bytes += sum(map(len, frames)) + FRAME_OVERHEAD_BYTES * len(frames)

    def take_frames(self) -> list[bytes]:
        """Remove and return the first frames, if `has_frames`."""
        frames = self._frames[-BACKLOG_FRAMES:]
        del self._frames[-BACKLOG_FRAMES:]
        frames.reverse()
        self._frames_bytes -= sum(map(len, frames)) + FRAME_OVERHEAD_BYTES * len(frames)
        return frames

    def take_unread(self) -> bytes:
        """Remove and return the bytes behind the frames."""
        data, self.unread = self.unread, b""
        return data

    def clear(self) -> None:
        self._frames.clear()
        self._frames_bytes = 0
        self.unread = b""

    def pause(self, transport: asyncio.Transport) -> None:
        """Stop reading from the socket."""
        if not self.is_paused and not transport.is_closing():  # uvloop refuses to pause what is closing
            self.is_paused = True
            transport.pause_reading()

    def resume(self, transport: asyncio.Transport) -> None:
        """Read from the socket again."""
        if self.is_paused:
            self.is_paused = False
            transport.resume_reading()

    def has_hung_up(self, transport: asyncio.Transport) -> bool:
        """Return whether the peer has closed the connection while reading is paused: asyncio does not report that."""
        if not self.is_paused or transport.is_closing():
            return False
        poll = select.poll()
        poll.register(transport.get_extra_info("socket").fileno(), _HANG_UP)
        return bool(poll.poll(0))
