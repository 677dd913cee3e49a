"""Three pages over HTTP, on a port of their own: `/metrics`, `/livez` and `/readyz`.

Whoever watches a server is no peer of it. A request is short, is answered once, and the connection ends; whatever is
not such a request ends the connection sooner.
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
"""How long a request and taking its answer may take together."""

TEXT: Final = "text/plain; charset=utf-8"
METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus's own name for its text."""


def require_metrics_extra() -> None:
    """Make sure that the page of metrics can be made, before anything is begun.

    Raises:
        ConfigError: a package for it is missing.
    """
    if find_spec("prometheus_client") is None:
        raise ConfigError(
            "metricsPort needs a package that is not installed: pip install 'skyroute[metrics]', or set no metricsPort"
        )


class Pages:
    """Tells how a server is.

    Args:
        metrics: Makes the page of that name.
        why_not_ready: Says in one line why the server should be sent nobody now; None if it is ready.
    """

    def __init__(self, metrics: Callable[[], Awaitable[bytes]], why_not_ready: Callable[[], str | None]) -> None:
        self._metrics = metrics
        self._why_not_ready = why_not_ready
        self._listener: asyncio.Server | None = None
        self._transports: dict[asyncio.Task[None], asyncio.WriteTransport] = {}
        self._unasked: dict[asyncio.Task[None], asyncio.WriteTransport] = {}
        """Connections without a whole request, oldest first."""
        self.address = ""
        """Where the pages are, as `host:port`, once started."""

    def __repr__(self) -> str:
        return f"<Pages {self.address or 'not started'} connections={len(self._transports)}>"

    async def start(self, host: str, port: int) -> None:
        """Begin to answer.

        Raises:
            BindError: the address cannot be had.
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
        """End, whoever is still there."""
        if self._listener is not None:
            self._listener.close()
        for transport in self._transports.values():
            transport.abort()
        await asyncio.gather(*self._transports, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._transports) >= CONNECTIONS_MAX:
            oldest = next(iter(self._unasked or self._transports))
            self._unasked.pop(oldest, None)
            self._transports[oldest].abort()
        self._transports[task] = self._unasked[task] = writer.transport
        try:
            with suppress(TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
                async with asyncio.timeout(EXCHANGE_S):
                    request = await reader.readuntil(b"\r\n\r\n")
                    self._unasked.pop(task, None)
                    writer.write(await self._answer(request))
                    writer.close()
                    await writer.wait_closed()
        finally:
            writer.transport.abort()  # it takes no part of an answer from a peer that is slow to read one
            self._unasked.pop(task, None)
            del self._transports[task]

    async def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
        target, _, protocol = rest.partition(b" ")
        if not protocol.startswith(b"HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST, "this is HTTP/1.1")
        if method != b"GET":
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "there is only GET here", more="Allow: GET\r\n")
        match target.partition(b"?")[0]:
            case b"/metrics":
                return _response(HTTPStatus.OK, await self._metrics(), METRICS)
            case b"/livez":
                return _response(HTTPStatus.OK, "alive")
            case b"/readyz":
                reason = self._why_not_ready()
                return _response(HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK, reason or "ready")
            case _:
                return _response(HTTPStatus.NOT_FOUND, "there are /metrics, /livez and /readyz")


def _response(status: HTTPStatus, body: str | bytes, kind: str = TEXT, more: str = "") -> bytes:
    content = body if isinstance(body, bytes) else f"{body}\n".encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
        f"{more}Connection: close\r\n\r\n"
    )
    return head.encode() + content
