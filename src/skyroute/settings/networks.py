"""Lists of trusted IP addresses and networks, such as `10.0.0.5, 192.168.0.0/16, fd00::/8`."""

import ipaddress
from dataclasses import dataclass
from typing import Final

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_MAPPED_BITS: Final = 96
"""Bits of an IPv6 address before an IPv4 address in it."""


@dataclass(frozen=True, slots=True)
class Networks:
    """IP networks; an address is a network with one address."""

    networks: tuple[Network, ...] = ()

    def contains(self, address: str) -> bool:
        """Return whether an IP address, without a port, is in one of the networks; false for anything else."""
        found = parse_source(address) if self.networks else None
        return found is not None and any(found in network for network in self.networks)


def parse_source(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse the IP address of a peer, without a port; None for anything else.

    An IPv4 address that a dual-stack socket shows as `::ffff:10.0.0.5` counts as `10.0.0.5`.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def parse_network(text: str, *, strict: bool = True) -> Network:
    """Parse an address or a CIDR network. `::ffff:10.0.0.0/104` is `10.0.0.0/8`, as addresses of that form are IPv4.

    Args:
        text: The address or network.
        strict: Whether bits behind the prefix are refused.

    Raises:
        ValueError: it is neither.
    """
    network = ipaddress.ip_network(text, strict=strict)
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= _MAPPED_BITS:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return ipaddress.IPv4Network((int(mapped), network.prefixlen - _MAPPED_BITS))
    return network


def parse_networks(text: str) -> Networks:
    """Parse comma-separated addresses and CIDR networks; an empty text gives none.

    Raises:
        ValueError: a part is neither an address nor a network.
    """
    return Networks(tuple(parse_network(part) for word in text.split(",") if (part := word.strip())))
