"""Addresses in the form `host:port`, or `[host]:port` for IPv6."""

from typing import Final

UNKNOWN_ADDRESS: Final = "?"
"""Address of a peer that closed the connection before the system reported its address."""


def join_address(host: str, port: int) -> str:
    """Return `host:port`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Return host and port.

    Raises:
        ValueError: the text is not an address.
    """
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port[:6]) < 65536:
        raise ValueError(f"{address!r} is not an address (expected host:port)")
    return host.strip("[]"), int(port)
