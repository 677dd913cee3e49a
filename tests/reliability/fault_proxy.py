"""A TCP proxy between two real processes, with the faults of a network."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

PIECE_BYTES: Final = 64 * 1024
LINGER_NONE: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to bytes, in both directions."""

    latency_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float | None = None
    piece_bytes: int = PIECE_BYTES
    """Larger reads are forwarded in pieces of this size."""
    is_black_hole: bool = False
    """Bytes and new connections are accepted, and nothing is forwarded. Later bytes of such connections are lost too,
    so they are reset when the fault ends."""
    is_half_closed: bool = False
    """The server side of each connection sees the end of the stream; the client side stays open."""


NO_FAULT: Final = Fault()
FAULTS: Final = {
    "latency": Fault(latency_s=0.2, jitter_s=0.1),
    "slicer": Fault(piece_bytes=7, latency_s=0.0005),
    "bandwidth": Fault(bytes_per_s=20_000),
    "black hole": Fault(is_black_hole=True),
    "half close": Fault(is_half_closed=True),
}
"""Faults that last. `reset` is a method, because it is over at once."""


class _Link:
    """One connection through the proxy."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client, self.server = client, server
        self.lost_bytes = False

    def reset(self) -> None:
        """End both sides with a TCP reset."""
        for side in (self.client, self.server):
            raw = side.get_extra_info("socket")
            with suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
            side.transport.abort()

    def half_close(self) -> None:
        with suppress(OSError, RuntimeError):
            self.server.write_eof()


class FaultProxy:
    """Forwards connections to an address. `fault` may change at any time."""

    def __init__(self, target: str, seed: int = 0) -> None:
        self.target = target
        self.address = ""
        self._fault = NO_FAULT
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._random = random.Random(seed)
        self.forwarded = 0

    @property
    def fault(self) -> Fault:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault) -> None:
        self._fault = fault
        if fault.is_half_closed:
            for link in self._links:
                link.half_close()
        if not fault.is_black_hole:
            for link in [link for link in self._links if link.lost_bytes]:
                link.reset()

    def reset(self) -> None:
        """Reset all connections; new ones are forwarded."""
        for link in list(self._links):
            link.reset()

    async def close(self) -> None:
        """Reset all connections, and wait for their end."""
        self.fault = NO_FAULT
        while self._tasks:
            self.reset()
            await asyncio.wait(self._tasks, timeout=0.1)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until it ends."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        host, _, port = self.target.rpartition(":")
        try:
            back_reader, back_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        link = _Link(writer, back_writer)
        self._links.add(link)
        try:
            if self._fault.is_half_closed:
                link.half_close()
            await asyncio.gather(
                self._pump(link, reader, back_writer), self._pump(link, back_reader, writer), return_exceptions=True
            )
        finally:
            self._links.discard(link)
            for side in (writer, back_writer):
                side.close()

    async def _pump(self, link: _Link, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(PIECE_BYTES):
                for piece in _pieces(data, self._fault.piece_bytes):
                    fault = self._fault
                    if fault.is_black_hole or link.lost_bytes:
                        link.lost_bytes = True
                        break
                    pause_s = fault.latency_s + fault.jitter_s * self._random.random()
                    if fault.bytes_per_s is not None:
                        pause_s += len(piece) / fault.bytes_per_s
                    if pause_s:
                        await asyncio.sleep(pause_s)
                    sink.write(piece)
                    self.forwarded += len(piece)
                    await sink.drain()
        with suppress(OSError, RuntimeError):
            sink.write_eof()


def _pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@asynccontextmanager
async def fault_proxy(target: str, port: int = 0) -> AsyncIterator[FaultProxy]:
    """Listen on loopback and forward to an address."""
    proxy = FaultProxy(target)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", port)
    proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
        await server.wait_closed()
