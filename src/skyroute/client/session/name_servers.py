"""Which name servers there are, and which of them to ask next."""

import asyncio
import ipaddress
import logging
import os
import random
import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from skyroute.client.errors import ClientError, NoNameServerError

if TYPE_CHECKING:
    from skyroute.client.session.address_server import AddressServer

log = logging.getLogger(__name__)

ADDRESSES_ENV: Final = "NAMESRV_ADDR"
"""Where Apache's tools look for addresses that nobody gave them, and so do we."""


class NameServers:
    """The addresses an application gave. One is asked while it answers; when it fails, it is the next one's turn."""

    def __init__(self, addresses: str | Sequence[str] | None, unit_name: str | None = None) -> None:
        """Take `host:port;host:port`, or a sequence of `host:port`, or None for the environment's NAMESRV_ADDR.

        `http://host:port/path` is a web server that knows them, and is asked when they are first needed.

        Raises:
            ClientError: there is no address, or one cannot be one.
        """
        if addresses is None:
            addresses = os.environ.get(ADDRESSES_ENV, "")
        if not isinstance(addresses, str):
            addresses = ";".join(_listed(addresses))
        pieces = _pieces(addresses)
        self.source: AddressServer | None = None
        """Who knows the addresses, if they were not given."""
        if len(pieces) == 1 and (source := _address_server(pieces[0], unit_name)) is not None:
            self.source, pieces = source, []
        self.addresses = tuple(map(_checked, pieces))
        if not self.addresses and self.source is None:
            raise ClientError(
                "no name server is given: pass name_servers='host:port;host:port' (-n on the command line), or set"
                f" {ADDRESSES_ENV}"
            )
        # Clients that are given the same list do not all begin with the same server.
        self._first = random.randrange(len(self.addresses) or 1)
        self._preferred: str | None = None

    async def in_turn(self) -> list[str]:
        """Return every address, the one to ask first in front; a name with several addresses counts as several.

        Raises:
            NoNameServerError: they are not known yet, and who knows them does not say.
        """
        if not self.addresses:
            await self.refresh()
        found: list[str] = []
        for address in self.addresses[self._first :] + self.addresses[: self._first]:
            found += await _resolve(address)
        if self._preferred in found:
            found.insert(0, self._preferred)
        return list(dict.fromkeys(found))

    async def refresh(self) -> None:
        """Ask again where the name servers are, if there is somebody to ask; what was known stays if that fails.

        Raises:
            NoNameServerError: who knows them does not say.
        """
        if self.source is None:
            return
        answer = await self.source.ask()
        try:
            addresses = tuple(map(_checked, _pieces(answer)))
        except ClientError as error:
            raise NoNameServerError(f"{self.source.url} does not say where the name servers are: {error}") from None
        if not addresses:
            raise NoNameServerError(f"{self.source.url} says that there are no name servers")
        if addresses != self.addresses:
            log.info("name servers changed addresses=%s source=%s", ";".join(addresses), self.source.url)
            self.addresses = addresses
            self._first = random.randrange(len(addresses))
            self._preferred = None

    @property
    def preferred(self) -> str | None:
        """The one that is asked first; None: nobody has answered yet."""
        return self._preferred

    def prefer(self, address: str) -> None:
        """Ask this one first from now on: it answers."""
        self._preferred = address


def _address_server(text: str, unit_name: str | None) -> "AddressServer | None":
    if "://" not in text:
        return None
    from skyroute.client.session.address_server import AddressServer, is_address_server  # noqa: PLC0415 - few need it

    return AddressServer(text, unit_name) if is_address_server(text) else None


def _pieces(addresses: str) -> list[str]:
    return [piece for each in addresses.replace(",", ";").split(";") if (piece := each.strip())]


def _listed(addresses: object) -> Iterator[str]:
    for address in addresses if isinstance(addresses, Iterable) else (addresses,):
        if not isinstance(address, str):
            raise ClientError(f"name_servers is 'host:port;host:port', or a list of such: {addresses!r} is neither")
        yield address


def _checked(address: str) -> str:
    host, _, port = address.removeprefix("http://").rpartition(":")
    is_host = bool(host) and not any(char.isspace() or char == "/" for char in host)
    if not is_host or not (port.isascii() and port.isdigit()) or not 0 < int(port[:6]) < 65536:
        raise ClientError(f"{address!r} is not the address of a name server: host:port is expected")
    return f"{host}:{port}"


async def _resolve(address: str) -> list[str]:
    host, _, port = address.rpartition(":")
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        pass
    else:
        return [address]
    try:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return [address]  # connecting to it says what is wrong with the name
    return [f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip in (str(entry[4][0]) for entry in found)]
