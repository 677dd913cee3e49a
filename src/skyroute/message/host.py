"""Address and port in records and message ids: 4 or 16 bytes of address, then 4 of port."""

from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final, NamedTuple

from skyroute.message.errors import HostError

IPV4_HOST_BYTES: Final = 8
IPV6_HOST_BYTES: Final = 20
_PORT_MAX: Final = 0xFFFF


class Host(NamedTuple):
    """Address of a producer or broker."""

    ip: str
    port: int

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


def encode_ip(ip: str) -> bytes:
    """Return the 4 or 16 bytes of an address.

    Raises:
        HostError: the text is not an IP address. Host names are not resolved.
    """
    try:
        return IPv6Address(ip).packed if ":" in ip else IPv4Address(ip).packed
    except AddressValueError as error:
        raise HostError(f"not an IP address: {ip[:80]!r}") from error


@lru_cache(maxsize=1024)
def encode_host(ip: str, port: int) -> bytes:
    """Return a host's 8 or 20 bytes.

    Raises:
        HostError: the address or the port is invalid.
    """
    if not 0 <= port <= _PORT_MAX:
        raise HostError(f"not a port: {port} (expected 0 to 65535)")
    return encode_ip(ip) + port.to_bytes(4, "big")


@lru_cache(maxsize=1024)
def decode_host(raw: bytes) -> Host:
    """Return the host of 8 or 20 bytes. The port may be any 32-bit number.

    Raises:
        HostError: the number of bytes is wrong.
    """
    if len(raw) == IPV4_HOST_BYTES:
        ip = str(IPv4Address(raw[:4]))
    elif len(raw) == IPV6_HOST_BYTES:
        ip = str(IPv6Address(raw[:16]))
    else:
        raise HostError(f"a host has {len(raw)} bytes (expected {IPV4_HOST_BYTES} or {IPV6_HOST_BYTES})")
    return Host(ip, int.from_bytes(raw[-4:], "big", signed=True))
