import pytest

from skyroute.remoting import client_meters
from skyroute.remoting.client_meters import Allowance, ClientLimits, ClientMeters, TooManyError, client_key


def test_an_allowance_may_be_overdrawn_and_is_paid_back_in_time() -> None:
    allowance = Allowance(10, now=0.0)
    assert allowance.charge(10, 0.0) == 0
    assert allowance.charge(5, 0.0) == pytest.approx(0.5)
    assert allowance.charge(0, 0.5) == 0
    assert allowance.charge(10, 100.0) == 0  # a long pause saves up one second only
    assert allowance.charge(1, 100.0) == pytest.approx(0.1)


def test_no_wait_is_longer_than_the_limit() -> None:
    assert Allowance(1, now=0.0).charge(1_000_000, 0.0) == client_meters.WAIT_S_MAX


def test_an_allowance_admits_until_it_is_used_up() -> None:
    allowance = Allowance(2, now=0.0)
    assert [allowance.admit(1, 0.0) for _ in range(4)] == [True, True, True, False]
    assert allowance.admit(1, 1.0)
    assert all(Allowance(0, now=0.0).admit(1 << 40, 0.0) for _ in range(3))


def test_connections_and_handshakes_of_one_address_are_limited() -> None:
    meters = ClientMeters(ClientLimits(connections_max=2, handshakes_max=1))
    first = meters.open("10.0.0.1", 0.0)
    assert first is not None
    with pytest.raises(TooManyError, match="have sent no request"):
        meters.open("10.0.0.1", 0.0)
    first.charge([b"request"], 0.0)
    second = meters.open("10.0.0.1", 0.0)
    assert second is not None
    assert second.client is first.client
    second.charge([b"request"], 0.0)
    with pytest.raises(TooManyError, match="2 connections"):
        meters.open("10.0.0.1", 0.0)
    other = meters.open("10.0.0.2", 0.0)
    assert other is not None
    assert other.client is not first.client
    assert meters.refused == 2
    first.close(0.0)
    third = meters.open("10.0.0.1", 0.0)
    assert third is not None
    assert third.client is first.client


def test_a_connection_that_ends_before_its_first_request_has_no_handshake_left() -> None:
    meters = ClientMeters(ClientLimits(handshakes_max=1))
    for _ in range(3):
        meter = meters.open("10.0.0.1", 0.0)
        assert meter is not None
        meter.close(0.0)
    served = meters.open("10.0.0.1", 0.0)
    assert served is not None
    for _ in range(3):  # only the first request ends the handshake
        served.charge([b"request"], 0.0)
    assert served.client.handshakes == 0
    served.close(0.0)
    assert (served.client.connections, served.client.handshakes, len(meters)) == (0, 0, 0)


def test_a_connection_is_throttled_once_for_each_wait() -> None:
    meter = ClientMeters(ClientLimits(bytes_per_s=10)).open("10.0.0.1", 0.0)
    assert meter is not None
    assert (meter.charge([b"12345", b"67890"], 0.0), meter.is_throttled) == (0, False)
    assert (meter.charge([b"12345"], 0.0), meter.is_throttled) == (0.5, True)
    assert (meter.charge([b"12345"], 0.0), meter.check(0.0)) == (0, 0)  # its wait has begun
    meter.is_throttled = False
    assert meter.check(0.5) == pytest.approx(0.5)


def test_connections_of_an_address_share_its_allowance() -> None:
    meters = ClientMeters(ClientLimits(requests_per_s=2))
    first, second = meters.open("10.0.0.1", 0.0), meters.open("10.0.0.1", 0.0)
    assert first is not None
    assert second is not None
    assert first.charge([b""] * 3, 0.0) == pytest.approx(0.5)
    assert not second.is_throttled
    assert second.check(0.0) == pytest.approx(0.5)


def test_exempt_addresses_have_no_meter() -> None:
    meters = ClientMeters(ClientLimits(connections_max=1, is_exempt=lambda address: address == "10.0.0.1"))
    assert [meters.open("10.0.0.1", 0.0) for _ in range(3)] == [None] * 3


def test_a_greedy_address_is_remembered_after_it_reconnects() -> None:
    meters = ClientMeters(ClientLimits(requests_per_s=10))
    meter = meters.open("10.0.0.1", 0.0)
    assert meter is not None
    assert meter.charge([b""] * 20, 0.0) == pytest.approx(1.0)
    meter.close(0.0)
    again = meters.open("10.0.0.1", 0.5)
    assert again is not None
    assert again.client is meter.client
    again.close(3.0)
    assert len(meters) == 0


def test_the_number_of_remembered_addresses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_meters, "METERS_MAX", 10)
    meters = ClientMeters(ClientLimits(requests_per_s=1))
    for number in range(50):
        meter = meters.open(f"10.0.0.{number}", 0.0)
        assert meter is not None
        meter.charge([b""] * 100, 0.0)
        meter.close(0.0)
    assert len(meters) <= 10


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("?", "?"),
    ],
)
def test_an_ipv6_client_is_its_network(source: str, key: str) -> None:
    assert client_key(source) == key
