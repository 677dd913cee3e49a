"""Finds the address that a broker advertises to clients, once, at the start."""

import logging
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from skyroute.broker.config import BrokerConfig
from skyroute.settings.errors import ConfigError

log = logging.getLogger(__name__)

_ADVICE = "give the address that clients can reach with brokerIP1 or --advertise"
_TEST_ADDRESS = ("192.0.2.1", 9)
"""A reserved address (RFC 5737). Only the route to it is looked up; no packet is sent."""


@dataclass(frozen=True, slots=True)
class Advertised:
    """The addresses that a broker registers."""

    host: str
    """Address or DNS name for clients."""
    ip: str
    """Address in stored records."""


def find_advertised_address(config: BrokerConfig) -> Advertised:
    """Return the address that clients use.

    It is `brokerIP1` if set; else `bindAddress` if it is one address; else the address of the interface towards the
    first name server.

    Raises:
        ConfigError: there is no such address, or clients could not use it.
    """
    host = config.advertised_host or _default_host(config)
    ip = _usable_ip("brokerIP1", host)
    if _is_loopback(ip) and not _is_loopback(config.bind_address):
        log.warning("only clients on this machine can reach us address=%s advice=%s", host, _ADVICE)
    if config.advertised_ha_host:
        _usable_ip("brokerIP2", config.advertised_ha_host)
    return Advertised(host, ip)


def _default_host(config: BrokerConfig) -> str:
    bound = config.bind_address
    if _is_loopback(bound):
        for address in config.name_servers:
            if not _is_loopback(_host_of(address)):
                raise ConfigError(
                    f"the broker listens on {bound}, which clients of the name server {address} cannot reach: "
                    f"listen elsewhere with bindAddress, or {_ADVICE}"
                )
        return bound
    if bound not in ("0.0.0.0", "::", "*", ""):
        return bound
    for address in config.name_servers:
        host, _, port = address.rpartition(":")
        found = _local_address(host.strip("[]"), int(port) if port.isdigit() else 9)
        if found is not None:
            return found
    return outward_ip()


def outward_ip() -> str:
    """Return the address of the default interface; loopback if there is no network."""
    return _local_address(*_TEST_ADDRESS) or "127.0.0.1"


def _local_address(host: str, port: int) -> str | None:
    """Return the local address of the route to another host; None if there is no route."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return None
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # a datagram socket only looks up the route
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None


def _usable_ip(key: str, host: str) -> str:
    try:
        ip: IPv4Address | IPv6Address = ip_address(host)
    except ValueError:
        ip = _look_up(key, host)
    if ip.is_unspecified or ip.is_multicast or ip == IPv4Address("255.255.255.255"):
        raise ConfigError(f"{key}={host} is not an address that a client can reach: {_ADVICE}")
    return str(ip)


def _look_up(key: str, name: str) -> IPv4Address | IPv6Address:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        text = "has a port (expected a host only)" if ":" in name else "does not resolve to an address"
        raise ConfigError(f"{key}={name[:80]} {text}: {_ADVICE}") from None
    # If a name has both, use IPv4: old clients have no IPv6.
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return ip_address(found[0][4][0])


def _host_of(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
