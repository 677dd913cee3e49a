"""One connection that we open: requests out, answers matched to them by number."""

import asyncio
import logging
import ssl
from typing import cast

from skyroute.remoting.errors import CallTimeoutError, ConnectError, ConnectionLostError
from skyroute.wire.command import FLAG_ONEWAY, Request, Response
from skyroute.wire.errors import FrameError
from skyroute.wire.frame import FrameDecoder
from skyroute.wire.header import as_response, decode_command, encode_request

log = logging.getLogger(__name__)


class Channel(asyncio.Protocol):
    """A connection to one peer. Many calls may be under way; answers may come in any order."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._transport = cast("asyncio.Transport", None)  # asyncio sets it before anything else is called
        self._decoder = FrameDecoder()
        self._last_id = 0
        self._awaited: dict[int, asyncio.Future[Response]] = {}
        self.closed = False

    def __repr__(self) -> str:
        return f"<Channel {self.address} awaited={len(self._awaited)} {'closed' if self.closed else 'open'}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        for future in self._awaited.values():
            if not future.done():
                future.set_exception(ConnectionLostError(f"{self.address} closed the connection: {exc or 'no reason'}"))
        self._awaited.clear()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                command = decode_command(frame)
                future = self._awaited.pop(command.request_id, None) if command.is_response else None
                if future is not None and not future.done():
                    future.set_result(as_response(command))
        except FrameError as error:
            log.warning("channel closed peer=%s reason=%s", self.address, error)
            self.close()

    async def call(self, request: Request, timeout_s: float = 3.0) -> Response:
        """Send a request and wait for its answer.

        Raises:
            CallTimeoutError: none came in time.
            ConnectionLostError: the connection ended first.
        """
        request_id = self._send(request)
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._awaited[request_id] = future
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise CallTimeoutError(f"{self.address} did not answer request {request.code} in {timeout_s} s") from None
        finally:
            self._awaited.pop(request_id, None)

    def send_oneway(self, request: Request) -> None:
        """Send a request that nobody answers.

        Raises:
            ConnectionLostError: the connection has ended.
        """
        request.flag |= FLAG_ONEWAY
        self._send(request)

    def _send(self, request: Request) -> int:
        if self.closed:
            raise ConnectionLostError(f"the connection to {self.address} is closed")
        self._last_id = (self._last_id + 1) & 0x7FFFFFFF
        self._transport.write(encode_request(request, self._last_id))
        return self._last_id

    def close(self) -> None:
        """End the connection once what was sent is out."""
        if self._transport is not None:
            self._transport.close()


async def connect(address: str, *, tls: ssl.SSLContext | None = None, timeout_s: float = 3.0) -> Channel:
    """Open a connection to `host:port`.

    Raises:
        ConnectError: nobody answers there, or not in time.
    """
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port[:6]) < 65536:
        raise ConnectError(f"{address!r} is not an address: host:port is expected")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            _, channel = await loop.create_connection(lambda: Channel(address), host.strip("[]"), int(port), ssl=tls)
    except TimeoutError:
        raise ConnectError(f"{address} did not take the connection in {timeout_s} s") from None
    except (OSError, ValueError) as error:  # a name that cannot be one, such as a very long one, is a ValueError
        raise ConnectError(f"{address!r} cannot be reached: {getattr(error, 'strerror', None) or error}") from None
    return channel
