"""Reads the name servers' addresses from a web server, as Apache's clients can: the body is `host:port;host:port`.

A thread does the request with `http.client`, the base of `urllib.request`: that would follow redirects, use proxies,
and hide the socket, which a timeout has to close so that a slow server cannot keep the thread.
"""

import asyncio
import http.client
import socket
from contextlib import suppress
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

from skyroute.client.errors import ArgumentError, NoNameServerError

TIMEOUT_S: Final = 3.0
"""For one request, from the connection to the last byte."""

ANSWER_BYTES_MAX: Final = 64 * 1024
"""Longest body that is read. `http.client` bounds the header: 100 lines of 64 KiB."""


def is_address_server(text: str) -> bool:
    """Return whether an address is the URL of an address server: with a path, `http://host/rocketmq/nsaddr`.

    Without a path, `http://host:port` is another way to write the address of a name server.
    """
    scheme, _, rest = text.partition("://")
    return scheme.lower() in ("http", "https") and bool(rest.partition("/")[2])


class AddressServer:
    """A web server that returns the addresses of the name servers."""

    def __init__(self, url: str, unit_name: str | None = None) -> None:
        """Take `http://host:port/path`; with a unit name, the URL gets the form of Apache's clients.

        Raises:
            ArgumentError: the URL is invalid.
        """
        self.url = f"{url}-{unit_name}?nofix=1" if unit_name else url
        try:
            parts = urlsplit(self.url)
            self._port = parts.port
        except ValueError as error:
            raise ArgumentError(f"name_servers is {url!r}: expected http://host:port/path ({error})") from None
        if not parts.hostname or not self.url.isascii() or not self.url.isprintable() or " " in self.url:
            raise ArgumentError(f"name_servers is {url!r}: expected http://host:port/path")
        self._is_secure = parts.scheme.lower() == "https"
        self._host = parts.hostname
        self._target = f"{parts.path}?{parts.query}" if parts.query else parts.path

    async def ask(self) -> str:
        """Return the body of the response, without white space around it.

        Raises:
            NoNameServerError: there is no usable response in time.
        """
        kind = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=TIMEOUT_S)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status, body = await asyncio.to_thread(self._get, connection, monotonic() + TIMEOUT_S)
        except TimeoutError:
            raise NoNameServerError(f"{self.url} did not return the name servers in {TIMEOUT_S:g} s") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise NoNameServerError(f"{self.url} did not return the name servers: {reason}") from None
        finally:
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)  # ends the thread after a timeout
        if status != http.client.OK:
            raise NoNameServerError(f"{self.url} returned status {status}: expected {int(http.client.OK)}")
        return body.decode("utf-8", "replace").strip()

    def _get(self, connection: http.client.HTTPConnection, deadline: float) -> tuple[int, bytes]:
        try:
            connection.connect()
            if monotonic() > deadline:
                raise TimeoutError
            connection.request("GET", self._target, headers={"User-Agent": "skyroute"})
            with connection.getresponse() as response:
                body = response.read(ANSWER_BYTES_MAX + 1)
                if len(body) > ANSWER_BYTES_MAX:
                    raise ValueError(f"the body is longer than {ANSWER_BYTES_MAX} bytes")
                if response.length:
                    raise ValueError(f"the body ended {response.length} bytes before its Content-Length")
                return response.status, body
        finally:
            connection.close()
