"""Asynchronous connections to a server, and a broker that only listens, on the independent codec of `raw`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.support.raw import ClosedError, Command, Form, Request, decode, encode, split_address
from tests.support.waiting import eventually

WAIT_S = 10.0
"""How long any single wait may take before the test fails."""

TLS_GOODBYE_S = 0.05
"""How long a TLS connection waits for the server's close_notify when it closes."""


class AsyncConnection:
    """One connection to a server. Frames that answer no pending call are kept in `strays`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, form: Form = "json") -> None:
        self.form: Form = form
        self.strays: list[Command] = []
        self._reader = reader
        self._writer = writer
        self._opaque = 0

    @property
    def local_address(self) -> str:
        """Our end as `host:port`."""
        name = self._writer.get_extra_info("sockname")
        return f"{name[0]}:{name[1]}"

    async def call(self, code: int | Request, fields: Mapping[str, str] | None = None, body: bytes = b"") -> Command:
        """Send a request and return its response."""
        opaque = await self.send(code, fields, body)
        return await self.answer(opaque)

    async def answer(self, opaque: int) -> Command:
        """Return the response to a request that `send` wrote."""
        for at, stray in enumerate(self.strays):
            if stray.is_reply and stray.opaque == opaque:
                return self.strays.pop(at)
        while True:
            command = await self.receive()
            if command.is_reply and command.opaque == opaque:
                return command
            self.strays.append(command)

    async def send_oneway(
        self, code: int | Request, fields: Mapping[str, str] | None = None, body: bytes = b""
    ) -> None:
        """Send a one-way request: the server must not respond."""
        await self.send(code, fields, body, flag=2)

    async def send(
        self, code: int | Request, fields: Mapping[str, str] | None = None, body: bytes = b"", *, flag: int = 0
    ) -> int:
        """Write one request without waiting; return its id."""
        request = code if isinstance(code, Request) else Request(code, fields or {}, body)
        self._opaque += 1
        await self.write(encode(request, self._opaque, form=self.form, flag=flag))
        return self._opaque

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        async with asyncio.timeout(WAIT_S):
            await self._writer.drain()

    async def receive(self) -> Command:
        """Return the next frame of any kind.

        Raises:
            ClosedError: The server closed the connection.
        """
        async with asyncio.timeout(WAIT_S):
            try:
                (length,) = struct.unpack(">I", await self._reader.readexactly(4))
                return decode(await self._reader.readexactly(length))
            except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError) as error:
                raise ClosedError("closed by the server") from error

    async def until_closed(self) -> None:
        """Wait until the server closes the connection; keep frames that still arrive as strays."""
        with contextlib.suppress(ClosedError):
            while True:
                self.strays.append(await self.receive())

    def pause_reading(self) -> None:
        """Stop reading, so that the socket's receive buffer fills."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]  # its type is too general

    def resume_reading(self) -> None:
        self._writer.transport.resume_reading()  # type: ignore[attr-defined]  # its type is too general

    def write_eof(self) -> None:
        """Close our half; responses can still arrive."""
        self._writer.write_eof()

    def abort(self) -> None:
        """Close the connection at once, without flushing."""
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError, TimeoutError):
            async with asyncio.timeout(WAIT_S):
                await self._writer.wait_closed()


async def accepts_connections(address: str) -> bool:
    """Whether a server listens on `host:port`."""
    try:
        _, writer = await asyncio.open_connection(*split_address(address))
    except OSError:
        return False
    writer.close()
    return True


@asynccontextmanager
async def connection_to(
    address: str,
    *,
    form: Form = "json",
    tls: ssl.SSLContext | None = None,
    prologue: bytes = b"",
    receive_buffer_bytes: int | None = None,
    source: str | None = None,
) -> AsyncIterator[AsyncConnection]:
    """Connect to `host:port`, from an address, and close at the end; `prologue` is sent first, before TLS."""
    host, port = split_address(address)
    host = host.strip("[]")
    loop = asyncio.get_running_loop()
    encryption: dict[str, Any] = {}
    if tls is not None:
        encryption = {"ssl": tls, "server_hostname": "localhost", "ssl_shutdown_timeout": TLS_GOODBYE_S}
    opened = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    opened.setblocking(False)
    if receive_buffer_bytes is not None:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    if source is not None:
        opened.bind((source, 0))
    try:
        async with asyncio.timeout(WAIT_S):
            await loop.sock_connect(opened, (host, port))
            await loop.sock_sendall(opened, prologue)
            reader, writer = await asyncio.open_connection(sock=opened, **encryption)
    except BaseException:
        opened.close()
        raise
    connection = AsyncConnection(reader, writer, form)
    try:
        yield connection
    finally:
        await connection.close()


class ListeningBroker:
    """A broker that only listens, and gives out the requests of a name server in order."""

    def __init__(self) -> None:
        self.address = ""
        self._received: asyncio.Queue[Command] = asyncio.Queue()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._writers)

    @property
    def is_drained(self) -> bool:
        """Whether every received request was taken."""
        return self._received.empty()

    async def receive(self) -> Command:
        """Return the next request."""
        async with asyncio.timeout(WAIT_S):
            return await self._received.get()

    def hang_up(self) -> None:
        """Close every connection, and keep listening."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def until_disconnected(self) -> None:
        """Wait until no connection is open."""
        await eventually(lambda: not self._writers)

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                (length,) = struct.unpack(">I", await reader.readexactly(4))
                self._received.put_nowait(decode(await reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            writer.transport.abort()
        finally:
            self._writers.discard(writer)


@asynccontextmanager
async def listening_broker(*, tls: ssl.SSLContext | None = None) -> AsyncIterator[ListeningBroker]:
    """Listen as a broker on a port of loopback."""
    broker = ListeningBroker()
    listening = await asyncio.start_server(broker._listen, "127.0.0.1", 0, ssl=tls)
    broker.address = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield broker
    finally:
        listening.close()
        broker.hang_up()
        await broker.until_disconnected()
