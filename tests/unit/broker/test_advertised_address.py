import socket
from typing import Any

import pytest

from skyroute.broker.advertised_address import Advertised, find_advertised_address, outward_ip
from skyroute.broker.config import BrokerConfig
from skyroute.settings.errors import ConfigError


def advertised(**settings: Any) -> Advertised:
    return find_advertised_address(BrokerConfig(**settings))


@pytest.mark.parametrize("bound", ["127.0.0.1", "127.0.0.9", "::1"])
def test_a_broker_on_loopback_advertises_loopback(bound: str) -> None:
    assert advertised(bind_address=bound) == Advertised(bound, bound)


def test_a_broker_bound_to_an_address_advertises_it() -> None:
    assert advertised(bind_address="10.0.0.5").host == "10.0.0.5"


def test_a_broker_on_all_addresses_advertises_the_interface_to_the_name_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert advertised(name_server_list="127.0.0.1:9876;192.0.2.7:9876").host == "127.0.0.1"
    assert "only clients on this machine can reach us" in caplog.text


def test_without_a_name_server_the_default_interface_is_advertised() -> None:
    assert advertised().host == outward_ip()


def test_a_name_server_that_does_not_resolve_is_skipped() -> None:
    assert advertised(name_server_list="no-such-host.invalid:9876;127.0.0.1:9876").host == "127.0.0.1"


def test_brokerip1_takes_precedence(caplog: pytest.LogCaptureFixture) -> None:
    told = advertised(
        advertised_host="203.0.113.5",
        bind_address="127.0.0.1",
        name_server_list="far:9876",
    )
    assert told == Advertised("203.0.113.5", "203.0.113.5")
    assert caplog.records == []


def test_a_dns_name_is_advertised_and_records_have_its_address() -> None:
    assert advertised(advertised_host="localhost", bind_address="127.0.0.1") == Advertised("localhost", "127.0.0.1")


@pytest.mark.parametrize("key", ["advertised_host", "advertised_ha_host"])
@pytest.mark.parametrize(
    ("host", "complaint"),
    [
        ("0.0.0.0", "is not an address that a client can reach"),
        ("::", "is not an address that a client can reach"),
        ("224.0.0.1", "is not an address that a client can reach"),
        ("255.255.255.255", "is not an address that a client can reach"),
        ("no-such-host.invalid", "does not resolve to an address"),
        ("x" * 300, "does not resolve to an address"),
        ("10.0.0.1:10911", "has a port (expected a host only)"),
    ],
)
def test_an_address_that_clients_cannot_use_is_refused_with_advice(key: str, host: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        advertised(**{"advertised_host": "127.0.0.1", key: host})
    assert complaint in str(caught.value)
    assert "with brokerIP1 or --advertise" in str(caught.value)


def test_loopback_with_a_remote_name_server_is_refused_with_advice() -> None:
    with pytest.raises(
        ConfigError, match=r"clients of the name server 192\.0\.2\.7:9876 cannot reach: listen elsewhere"
    ):
        advertised(bind_address="127.0.0.1", name_server_list="127.0.0.1:9876;192.0.2.7:9876")


def test_no_packet_is_sent_to_find_the_interface() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as name_server:
        name_server.bind(("127.0.0.1", 0))
        name_server.setblocking(False)
        advertised(name_server_list=f"127.0.0.1:{name_server.getsockname()[1]}")
        with pytest.raises(BlockingIOError):
            name_server.recv(1)
