"""Reads the headers of trusted proxies: the client's address, and the scheme and host that the browser uses."""

from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Receive, Scope, Send

from skyroute.settings.networks import Networks

IPV6_CLIENT_BITS: Final = 64
"""A client with one IPv6 address usually has a /64 network."""

PEER: Final = "skyroute.peer"
"""Key of a request's scope: the address that opened the connection, a proxy's or a client's."""


class Forwarded:
    """Replaces client, scheme and host of a request with those in `X-Forwarded-For`, `-Proto` and `-Host`.

    It ignores these headers unless a trusted proxy sends them.
    """

    def __init__(self, app: ASGIApp, trusted_proxies: Networks) -> None:
        self._app = app
        self._trusted = trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["client"]:
            scope[PEER] = scope["client"][0]
        if scope["type"] == "http" and scope["client"] and self._trusted.contains(scope["client"][0]):
            headers = MutableHeaders(scope=scope)
            hops = ",".join(headers.getlist("x-forwarded-for")).split(",")
            scope["client"] = (client_address(scope["client"][0], hops, self._trusted), 0)
            if (scheme := _last(headers, "x-forwarded-proto")) in ("http", "https"):
                scope["scheme"] = scheme
            if host := _last(headers, "x-forwarded-host"):
                headers["host"] = host
        await self._app(scope, receive, send)


def client_address(peer: str, hops: list[str], trusted: Networks) -> str:
    """Return the last address of `X-Forwarded-For` that is not a trusted proxy: the ones before it may be forged.

    If a hop is not an address, return the proxy that added it.
    """
    address = peer
    for hop in reversed(hops):
        if not trusted.contains(address):
            break
        found = _address_of(hop)
        if found is None:
            break
        address = found
    return address


def client_key(address: str) -> str:
    """Return the key for limits per client: its IPv4 address, or the /64 network of its IPv6 address."""
    found = ip_address(address.partition("%")[0])
    if not isinstance(found, IPv6Address):
        return str(found)
    return str(found.ipv4_mapped or ip_network((found, IPV6_CLIENT_BITS), strict=False))


def _address_of(hop: str) -> str | None:
    """Return the address of a hop without a port; None if it is not an address."""
    text = hop.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ip_address(text))
    except ValueError:
        return None


def _last(headers: MutableHeaders, name: str) -> str:
    """Return the value that the nearest proxy set."""
    values = headers.getlist(name)
    return values[-1].rpartition(",")[2].strip() if values else ""
