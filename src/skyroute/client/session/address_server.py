"""Asks a web server where the name servers are, as Apache's clients can: its answer is `host:port;host:port`."""

import asyncio
import ssl
from typing import Final
from urllib.parse import urlsplit

from skyroute.client.errors import ArgumentError, NoNameServerError

TIMEOUT_S: Final = 3.0
"""For all of one question."""

ANSWER_BYTES_MAX: Final = 64 * 1024
"""Of the head of an answer, and of its body."""

OK: Final = 200


def is_address_server(text: str) -> bool:
    """Return whether this says where to ask, and not whom: with a path, `http://host/rocketmq/nsaddr`.

    Without one, it is a name server's own address as some write it: `http://host:port`.
    """
    scheme, _, rest = text.partition("://")
    return scheme.lower() in ("http", "https") and bool(rest.partition("/")[2])


class AddressServer:
    """A web server that knows the name servers."""

    def __init__(self, url: str, unit_name: str | None = None) -> None:
        """Take `http://host:port/path`; one of a unit is asked as Apache's clients ask for a unit's name servers.

        Raises:
            ArgumentError: nobody could be asked there.
        """
        self.url = f"{url}-{unit_name}?nofix=1" if unit_name else url
        try:
            parts = urlsplit(self.url)
            port = parts.port
        except ValueError as error:
            raise ArgumentError(f"name_servers is no address of a web server: {url!r}: {error}") from None
        if not parts.hostname or not self.url.isascii() or not self.url.isprintable() or " " in self.url:
            raise ArgumentError(f"name_servers is no address of a web server: {url!r}")
        self._is_secure = parts.scheme.lower() == "https"
        self._host = parts.hostname
        self._port = port if port is not None else 443 if self._is_secure else 80
        self._names = f"{parts.path}?{parts.query}" if parts.query else parts.path
        self._netloc = parts.netloc.rpartition("@")[2]

    async def ask(self) -> str:
        """Return what it answers, without what is around it.

        Raises:
            NoNameServerError: it does not, or cannot be asked.
        """
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status, body = await self._get()
        except TimeoutError:
            raise NoNameServerError(f"{self.url} did not say in {TIMEOUT_S:g} s where the name servers are") from None
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise NoNameServerError(f"{self.url} does not say where the name servers are: {reason}") from None
        if status != OK:
            raise NoNameServerError(f"{self.url} answers {status} instead of where the name servers are")
        return body.decode("utf-8", "replace").strip()

    async def _get(self) -> tuple[int, bytes]:
        context = ssl.create_default_context() if self._is_secure else None
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=context, limit=ANSWER_BYTES_MAX)
        try:
            # Of version 1.0, so that the answer comes in one piece and ends with the connection.
            head = f"GET {self._names} HTTP/1.0\r\nHost: {self._netloc}\r\nUser-Agent: skyroute\r\nAccept: */*\r\n\r\n"
            writer.write(head.encode())
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            version, _, rest = first.partition(" ")
            status = rest.partition(" ")[0]
            if not version.startswith("HTTP/") or not status.isdecimal():
                raise ValueError(f"{first[:80]!r} is no answer of a web server")
            names = (line.partition(":") for line in lines)
            fields = {name.strip().lower(): value.strip() for name, _, value in names}
            return int(status), await _read_body(reader, fields.get("content-length"))
        finally:
            writer.transport.abort()


async def _read_body(reader: asyncio.StreamReader, length: str | None) -> bytes:
    if length is not None and length.isdecimal():
        if int(length[:10]) > ANSWER_BYTES_MAX:
            raise ValueError(f"an answer of {length[:10]} bytes; at most {ANSWER_BYTES_MAX} are read")
        return await reader.readexactly(int(length))
    body = b""
    while piece := await reader.read(ANSWER_BYTES_MAX):
        body += piece
        if len(body) > ANSWER_BYTES_MAX:
            raise ValueError(f"an answer that does not end; at most {ANSWER_BYTES_MAX} bytes are read")
    return body
