"""HTTP pages on their own port: `/metrics`, `/livez` and `/readyz`.

One request per connection, of bounded size and time. Anything else closes the connection.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from errno import EADDRINUSE
from http import HTTPStatus
from importlib.util import find_spec
from typing import Final

from skyroute.remoting.address import join_address
from skyroute.remoting.server import bind_error, listens
from skyroute.settings.errors import ConfigError

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 16
"""Above this, a new connection replaces the oldest one without a whole request, or else the oldest one."""
REQUEST_BYTES_MAX: Final = 8 * 1024
EXCHANGE_S: Final = 10.0
"""Time limit of a request and its response together."""

TEXT: Final = "text/plain; charset=utf-8"
METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of the Prometheus text format."""


def require_metrics_extra() -> None:
    """Check that the metrics package is installed.

    Raises:
        ConfigError: it is missing.
    """
    if find_spec("prometheus_client") is None:
        raise ConfigError(
            "metricsPort needs a package that is not installed: pip install 'skyroute[metrics]', or set no metricsPort"
        )


class Pages:
    """Serves metrics and health of a server over HTTP.

    Args:
        metrics: Returns the metrics page.
        why_not_ready: Returns in one line why the server is not ready; None if it is.
    """

    def __init__(self, metrics: Callable[[], Awaitable[bytes]], why_not_ready: Callable[[], str | None]) -> None:
        self._metrics = metrics
        self._why_not_ready = why_not_ready
        self._listener: asyncio.Server | None = None
        self._transports: dict[asyncio.Task[None], asyncio.WriteTransport] = {}
        self._idle: dict[asyncio.Task[None], asyncio.WriteTransport] = {}
        """Connections without a complete request, oldest first."""
        self._rendering: asyncio.Future[bytes] | None = None
        """The metrics page that is being written."""
        self.address = ""
        """`host:port` of the pages, once started."""

    def __repr__(self) -> str:
        return f"<Pages {self.address or 'not started'} connections={len(self._transports)}>"

    async def start(self, host: str, port: int) -> None:
        """Start to listen.

        Raises:
            BindError: the address cannot be bound.
        """
        try:
            self._listener = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX)
        except (OSError, ValueError, OverflowError) as error:
            raise bind_error(host, port, error, "metricsHost", "metricsPort") from None
        if not listens(self._listener):
            raise bind_error(host, port, OSError(EADDRINUSE, "taken"), "metricsHost", "metricsPort")
        self.address = join_address(host, self._listener.sockets[0].getsockname()[1])
        log.info("metrics served at=http://%s/metrics", self.address)

    async def stop(self) -> None:
        """Stop, and close all connections."""
        if self._listener is not None:
            self._listener.close()
        for transport in self._transports.values():
            transport.abort()
        if self._rendering is not None:
            self._rendering.cancel()
        await asyncio.gather(*self._transports, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._transports) >= CONNECTIONS_MAX:
            oldest = next(iter(self._idle or self._transports))
            self._idle.pop(oldest, None)
            self._transports[oldest].abort()
        self._transports[task] = self._idle[task] = writer.transport
        try:
            with suppress(TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
                async with asyncio.timeout(EXCHANGE_S):
                    request = await reader.readuntil(b"\r\n\r\n")
                    self._idle.pop(task, None)
                    response = await self._respond(request)
                    if writer.transport.is_closing():
                        return  # the client did not wait; uvloop refuses a write
                    writer.write(response)
                    writer.close()
                    await writer.wait_closed()
        finally:
            writer.transport.abort()  # also for a client that is slow to read the response
            self._idle.pop(task, None)
            del self._transports[task]

    async def _metrics_page(self) -> bytes:
        """Return the metrics. Clients that ask at the same time share a page: many cost no more than one."""
        if self._rendering is None:
            self._rendering = asyncio.ensure_future(self._metrics())
            self._rendering.add_done_callback(self._end_rendering)
        return await asyncio.shield(self._rendering)

    def _end_rendering(self, page: asyncio.Future[bytes]) -> None:
        self._rendering = None
        if not page.cancelled():
            page.exception()  # raised by all that wait; there may be none left

    async def _respond(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        target, _, protocol = rest.partition(b" ")
        if not protocol.startswith(b"HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST, "expected HTTP/1.1")
        if method != b"GET":
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "expected GET", more="Allow: GET\r\n")
        match target.partition(b"?")[0]:
            case b"/metrics":
                return _response(HTTPStatus.OK, await self._metrics_page(), METRICS)
            case b"/livez":
                return _response(HTTPStatus.OK, "alive")
            case b"/readyz":
                reason = self._why_not_ready()
                return _response(HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK, reason or "ready")
            case _:
                return _response(HTTPStatus.NOT_FOUND, "pages: /metrics, /livez, /readyz")


def _response(status: HTTPStatus, body: str | bytes, kind: str = TEXT, more: str = "") -> bytes:
    content = body if isinstance(body, bytes) else f"{body}\n".encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
        f"{more}Connection: close\r\n\r\n"
    )
    return head.encode() + content
