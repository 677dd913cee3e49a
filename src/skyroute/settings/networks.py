"""Lists of trusted IP addresses and networks, such as `10.0.0.5, 192.168.0.0/16, fd00::/8`."""

import ipaddress
from dataclasses import dataclass

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


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


def parse_networks(text: str) -> Networks:
    """Parse comma-separated addresses and CIDR networks; an empty text gives none.

    Raises:
        ValueError: a part is neither an address nor a network.
    """
    return Networks(tuple(ipaddress.ip_network(part) for word in text.split(",") if (part := word.strip())))
