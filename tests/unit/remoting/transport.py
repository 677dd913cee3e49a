"""A transport in memory: what a connection does to its socket, without one."""

import asyncio
import socket
from typing import Any

from skyroute.wire.command import Request
from skyroute.wire.frame import FrameDecoder
from skyroute.wire.header import decode_command


class MemoryTransport(asyncio.Transport):
    """Keeps what is written; `is_full` makes it report unsent bytes."""

    def __init__(
        self, peername: tuple[str, int] | None = ("10.0.0.1", 5000), sock: socket.socket | None = None
    ) -> None:
        super().__init__({"peername": peername, "socket": sock})
        self.written = b""
        self.writes = 0
        self.is_reading_paused = False
        self.is_aborted = False
        self.unsent = 0
        self._is_closing = False

    def frames(self) -> list[Request]:
        """Return the commands written since the last call."""
        written, self.written = self.written, b""
        return [decode_command(frame) for frame in FrameDecoder().feed(written)]

    def write(self, data: Any) -> None:
        self.written += bytes(data)
        self.writes += 1

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        assert not self.is_reading_paused
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        assert self.is_reading_paused
        self.is_reading_paused = False

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    def abort(self) -> None:
        self._is_closing = self.is_aborted = True
