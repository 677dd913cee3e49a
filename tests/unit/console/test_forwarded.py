"""The client's address behind proxies, and the key for limits per client."""

import pytest

from skyroute.console.guard.forwarded import client_address, client_key
from skyroute.settings.networks import parse_networks

TRUSTED = parse_networks("10.0.0.0/8, fd00::/8")


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("203.0.113.7", "1.2.3.4", "203.0.113.7"),  # not a trusted proxy
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.7", "203.0.113.7"),
        ("10.0.0.1", "1.2.3.4,203.0.113.7", "203.0.113.7"),  # the client forged the first
        ("10.0.0.1", "1.2.3.4, 203.0.113.7 , 10.9.9.9", "203.0.113.7"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("10.0.0.1", "unknown, 10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", "203.0.113.7:4711", "203.0.113.7"),
        ("10.0.0.1", "[2001:db8::1]:4711", "2001:db8::1"),
        ("fd00::1", "2001:db8::1", "2001:db8::1"),
        ("::ffff:10.0.0.1", "203.0.113.7", "203.0.113.7"),
    ],
)
def test_the_last_address_that_is_no_trusted_proxy_is_the_clients(peer: str, forwarded: str, address: str) -> None:
    assert client_address(peer, forwarded.split(","), TRUSTED) == address


def test_an_ipv6_client_is_its_network() -> None:
    assert client_key("2001:db8:0:1::1") == client_key("2001:db8:0:1:ffff::2") == "2001:db8:0:1::/64"
    assert client_key("2001:db8:0:2::1") != client_key("2001:db8:0:1::1")
    assert client_key("fe80::1%eth0") == "fe80::/64"
    assert client_key("::ffff:203.0.113.7") == client_key("203.0.113.7") == "203.0.113.7"
