"""The addresses of the name servers, and which of them gets the next request."""

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
"""The environment variable that Apache's tools use as well."""


class NameServers:
    """The name servers of one session. Requests go to one server until it fails, and then to the next."""

    def __init__(self, addresses: str | Sequence[str] | None, unit_name: str | None = None) -> None:
        """Take `host:port;host:port`, or a sequence of `host:port`, or None for the environment variable NAMESRV_ADDR.

        `http://host:port/path` is an address server, which is asked when the addresses are first needed.

        Raises:
            ClientError: no address is given, or one is invalid.
        """
        if addresses is None:
            addresses = os.environ.get(ADDRESSES_ENV, "")
        if not isinstance(addresses, str):
            addresses = ";".join(_listed(addresses))
        pieces = _pieces(addresses)
        self.source: AddressServer | None = None
        """The address server, if one was given."""
        if len(pieces) == 1 and (source := _address_server(pieces[0], unit_name)) is not None:
            self.source, pieces = source, []
        self.addresses = tuple(map(_checked, pieces))
        if not self.addresses and self.source is None:
            raise ClientError(
                "no name server is given: pass name_servers='host:port;host:port' (-n on the command line), or set"
                f" {ADDRESSES_ENV}"
            )
        # Clients with the same list start at different servers.
        self._first = random.randrange(len(self.addresses) or 1)
        self._preferred: str | None = None

    async def in_turn(self) -> list[str]:
        """Return all addresses in the order of requests; a host name with several IP addresses counts as several.

        Raises:
            NoNameServerError: the address server did not return them.
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
        """Read the addresses from the address server, if there is one. After a failure the old ones are kept.

        Raises:
            NoNameServerError: the address server did not return them.
        """
        if self.source is None:
            return
        answer = await self.source.ask()
        try:
            addresses = tuple(map(_checked, _pieces(answer)))
        except ClientError as error:
            raise NoNameServerError(f"{self.source.url} returned an invalid list: {error}") from None
        if not addresses:
            raise NoNameServerError(f"{self.source.url} returned no address: expected host:port;host:port")
        if addresses != self.addresses:
            log.info("name servers changed addresses=%s source=%s", ";".join(addresses), self.source.url)
            self.addresses = addresses
            self._first = random.randrange(len(addresses))
            self._preferred = None

    @property
    def preferred(self) -> str | None:
        """The server that responded last; None: none has responded yet."""
        return self._preferred

    def prefer(self, address: str) -> None:
        """Send the next requests to this server first: it responds."""
        self._preferred = address


def _address_server(text: str, unit_name: str | None) -> "AddressServer | None":
    if "://" not in text:
        return None
    from skyroute.client.session.address_server import AddressServer, is_address_server  # noqa: PLC0415 - few clients need it

    return AddressServer(text, unit_name) if is_address_server(text) else None


def _pieces(addresses: str) -> list[str]:
    return [piece for each in addresses.replace(",", ";").split(";") if (piece := each.strip())]


def _listed(addresses: object) -> Iterator[str]:
    for address in addresses if isinstance(addresses, Iterable) else (addresses,):
        if not isinstance(address, str):
            raise ClientError(f"name_servers is {addresses!r}: expected 'host:port;host:port', or a list of addresses")
        yield address


def _checked(address: str) -> str:
    host, _, port = address.removeprefix("http://").rpartition(":")
    is_host = bool(host) and not any(char.isspace() or char == "/" for char in host)
    if not is_host or not (port.isascii() and port.isdigit()) or not 0 < int(port[:6]) < 65536:
        raise ClientError(f"name server address {address!r} is invalid: expected host:port")
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
        return [address]  # connecting to it raises the error
    return [f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip in (str(entry[4][0]) for entry in found)]
