"""PROXY headers: a header is recognised at its last byte, not before, and bytes after it change nothing.

Input: the start of a stream.
"""

import ipaddress

from skyroute.wire.errors import FrameError
from skyroute.wire.proxy_protocol import ProxiedPeer, read_proxy_header


def read(data: bytes) -> ProxiedPeer | str | None:
    try:
        return read_proxy_header(data)
    except FrameError:
        return "refused"


def check(data: bytes) -> None:
    found = read(data)
    if not isinstance(found, ProxiedPeer):
        return
    assert found.header_bytes <= len(data)
    assert read(data + b"more\r\n") == found
    for end in range(min(found.header_bytes, 300)):
        assert read(data[:end]) is None
    if found.address is not None:
        host, _, port = found.address.rpartition(":")
        assert 0 < int(port) <= 65535
        assert str(ipaddress.ip_address(host.strip("[]"))) == host.strip("[]")
