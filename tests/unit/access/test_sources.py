import pytest

from skyroute.access.errors import RulesError
from skyroute.access.sources import NO_SOURCES, PATTERNS_MAX, join_sources, parse_patterns, parse_sources


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("10.0.0.5", ["10.0.0.5", "::ffff:10.0.0.5"], ["10.0.0.6", "fd00::1", "?", ""]),
        ("10.1.2.3/8", ["10.0.0.0", "10.255.255.255"], ["11.0.0.0", "9.255.255.255"]),
        ("fd00::/8", ["fd00::1", "fdff::"], ["fe00::", "10.0.0.1"]),
        ("fe80::1", ["fe80::1", "fe80::1%eth0"], ["fe80::2"]),
        ("::ffff:10.0.0.5", ["10.0.0.5", "::ffff:10.0.0.5"], ["10.0.0.6", "::10.0.0.5"]),
        ("::ffff:10.1.2.3/104", ["10.0.0.0", "10.255.255.255", "::ffff:10.0.0.1"], ["11.0.0.0", "fd00::1"]),
        ("::/0", ["fd00::1"], ["10.0.0.1"]),
    ],
)
def test_addresses_and_networks(text: str, inside: list[str], outside: list[str]) -> None:
    sources = parse_sources([text])
    assert sources.texts == (text,)
    assert [address for address in inside + outside if sources.contains(address)] == inside


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("*", ["10.0.0.1", "fd00::1"], ["?"]),
        ("*.*.*.*", ["10.0.0.1", "fd00::1"], []),
        ("10.10.103.*", ["10.10.103.0", "10.10.103.255"], ["10.10.104.0", "10.10.102.255"]),
        ("10.10.*.*", ["10.10.0.0", "10.10.255.255"], ["10.11.0.0"]),
        ("10.10.*", ["10.10.7.7"], ["10.11.0.0"]),
        ("192.168.0.1-20", ["192.168.0.1", "192.168.0.20"], ["192.168.0.0", "192.168.0.21"]),
        ("192.168.1-20.*", ["192.168.1.0", "192.168.20.255"], ["192.168.0.255", "192.168.21.0"]),
        ("192.168.0.{7,9}", ["192.168.0.7", "192.168.0.9"], ["192.168.0.8"]),
        ("10.0.0.1, 10.0.0.3", ["10.0.0.1", "10.0.0.3"], ["10.0.0.2"]),
        ("fd00:0:0:0:0:0:0:1-f", ["fd00::1", "fd00::f"], ["fd00::10", "fd00::"]),
        ("fd00:1:*", ["fd00:1::1"], ["fd00:2::"]),
    ],
)
def test_patterns_of_acl_1(text: str, inside: list[str], outside: list[str]) -> None:
    sources = parse_patterns([text])
    assert [address for address in inside + outside if sources.contains(address)] == inside


@pytest.mark.parametrize("text", ["", "10.0.0", "10.0.0.256", "host", "10.0.0.*", "*", "10.0.0.0/33"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(RulesError, match="invalid source address"):
        parse_sources([text])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.*.0.1",
        "10.0.0.20-1",
        "10.0.0.-5",
        "10.0.0.1-",
        "10.0.0.1-300",
        "10.0.1-20",
        "{1,2}",
        "10.0.0{1}",
        "a.*",
        "1.2.3.4.*",
    ],
)
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(RulesError, match="invalid source address"):
        parse_patterns([text])


def test_a_list_has_a_bound() -> None:
    with pytest.raises(RulesError, match="expected at most"):
        parse_sources(["10.0.0.1"] * (PATTERNS_MAX + 1))


def test_no_sources_contain_nothing() -> None:
    assert not NO_SOURCES.contains("10.0.0.1")
    joined = join_sources(parse_sources(["10.0.0.1"]), parse_sources(["10.0.0.2"]))
    assert joined.contains("10.0.0.1")
    assert joined.contains("10.0.0.2")
