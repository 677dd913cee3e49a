"""The PROXY protocol: a load balancer sends this header first, with the client's address.

Any peer can send one: the caller decides which peers to trust.
"""

import ipaddress
from dataclasses import dataclass
from struct import Struct
from typing import Final

from skyroute.wire.errors import FrameError

V2_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
V1_START: Final = b"PROXY"
V1_BYTES_MAX: Final = 108
PROXY_STARTS: Final = (V1_START, V2_SIGNATURE)
"""A stream that starts with one of these starts with a header."""

_V2_FAMILIES: Final = frozenset({0x00, 0x11, 0x12, 0x21, 0x22, 0x31, 0x32})
_V2_FIXED = Struct(">12sBBH")


@dataclass(frozen=True, slots=True)
class ProxiedPeer:
    """The client behind a proxy; its address is None if the header has none."""

    address: str | None
    header_bytes: int


def read_proxy_header(data: bytes) -> ProxiedPeer | None:
    """Decode the header at the start of `data`; return None if more bytes are needed.

    For a stream without a header, return a `ProxiedPeer` with `header_bytes` 0.

    Raises:
        FrameError: the header is malformed.
    """
    if data.startswith(V2_SIGNATURE):
        return _read_v2(data)
    if data.startswith(V1_START):
        return _read_v1(data)
    if V2_SIGNATURE.startswith(data) or V1_START.startswith(data):
        return None
    return ProxiedPeer(None, 0)


def _read_v1(data: bytes) -> ProxiedPeer | None:
    end = data.find(b"\r\n", 0, V1_BYTES_MAX)
    if end < 0:
        if len(data) >= V1_BYTES_MAX:
            raise FrameError("a PROXY header without an end")
        return None
    line = data[:end].decode("ascii", "replace")
    words = line.split(" ")
    # A scope ("fe80::1%eth0") has a meaning on the proxy only, and may contain any character.
    if not line.isprintable() or "%" in line or words[0] != "PROXY" or len(words) < 2:
        raise FrameError("a malformed PROXY header")
    if words[1] == "UNKNOWN":
        return ProxiedPeer(None, end + 2)
    if words[1] not in ("TCP4", "TCP6") or len(words) != 6:
        raise FrameError("a malformed PROXY header")
    kind = ipaddress.IPv4Address if words[1] == "TCP4" else ipaddress.IPv6Address
    try:
        source, _ = kind(words[2]), kind(words[3])
    except ValueError:
        raise FrameError("a PROXY header with a malformed address") from None
    for port in words[4:]:
        if not (port.isdigit() and len(port) <= 5 and int(port) <= 65535):
            raise FrameError("a PROXY header with a malformed port")
    return ProxiedPeer(_display(source, int(words[4])), end + 2)


def _read_v2(data: bytes) -> ProxiedPeer | None:
    if len(data) < _V2_FIXED.size:
        return None
    _, version_and_command, family, length = _V2_FIXED.unpack_from(data)
    if version_and_command >> 4 != 2 or version_and_command & 0xF > 1:
        raise FrameError("a PROXY header of an unknown version or command")
    end = _V2_FIXED.size + length
    if len(data) < end:
        return None
    if version_and_command & 0xF == 0:  # LOCAL: a connection of the proxy itself
        return ProxiedPeer(None, end)
    if family not in _V2_FAMILIES:
        raise FrameError("a PROXY header of an unknown family")
    address_bytes = {0x11: 4, 0x21: 16}.get(family)
    if address_bytes is None:  # not TCP over IP
        return ProxiedPeer(None, end)
    if length < 2 * address_bytes + 4:
        raise FrameError("a PROXY header too short for its addresses")
    at = _V2_FIXED.size
    source = ipaddress.ip_address(data[at : at + address_bytes])
    port = int.from_bytes(data[at + 2 * address_bytes : at + 2 * address_bytes + 2])
    return ProxiedPeer(_display(source, port), end)


def _display(source: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> str | None:
    if port == 0:
        return None
    return f"[{source}]:{port}" if source.version == 6 else f"{source}:{port}"
