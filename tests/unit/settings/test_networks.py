"""Lists of trusted addresses."""

from __future__ import annotations

import re

import pytest

from skyroute.settings.networks import Networks, parse_networks

SOME = "10.0.0.5, 192.168.0.0/16,fd00::/8,"


@pytest.mark.parametrize(
    ("address", "inside"),
    [
        ("10.0.0.5", True),
        ("10.0.0.6", False),
        ("192.168.7.9", True),
        ("::ffff:192.168.7.9", True),
        ("::ffff:10.0.0.6", False),
        ("fd00::1", True),
        ("fd00::1%eth0", True),
        ("fe80::1%eth0", False),
        ("", False),
        ("localhost", False),
        ("10.0.0.5:4711", False),
    ],
)
def test_an_address_is_found_in_a_list_of_networks(address: str, inside: bool) -> None:
    assert parse_networks(SOME).contains(address) is inside


@pytest.mark.parametrize("text", ["", " ", ",", " , "])
def test_an_empty_list_contains_nothing(text: str) -> None:
    assert parse_networks(text) == Networks()
    assert not parse_networks(text).contains("127.0.0.1")


@pytest.mark.parametrize("text", ["localhost", "10.0.0.5/8", "10.0.0.256", "10.0.0.0/33", "10.0.0.1 10.0.0.2", "*"])
def test_an_invalid_network_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        parse_networks(f"127.0.0.1,{text}")


def test_a_network_of_mapped_addresses_is_one_of_ipv4() -> None:
    mapped = parse_networks("::ffff:10.0.0.0/104")
    assert mapped == parse_networks("10.0.0.0/8")
    assert mapped.contains("10.0.0.5")
    assert mapped.contains("::ffff:10.0.0.5")
