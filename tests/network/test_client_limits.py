"""Limits for each client address and each user, and warnings of unprotected servers."""

from __future__ import annotations

import logging
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from skyroute.access.errors import SettingsError
from skyroute.access.gate import Reason
from skyroute.broker.config import BrokerConfig
from skyroute.enforcement.exposure import check_exposure
from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.server import NameServer
from skyroute.remoting.tls_settings import TlsMode, TlsSettings
from tests.network.cluster import topics
from tests.support.connections import AsyncConnection, connection_to
from tests.support.raw import ClosedError
from tests.support.servers import own_files, running
from tests.support.signing import ALICE, ROOT, create_user
from tests.support.waiting import eventually


async def is_served(line: AsyncConnection) -> bool:
    try:
        return (await line.call(206)).code == 0
    except (ClosedError, ConnectionError):
        return False


async def test_an_address_has_at_most_so_many_connections(tmp_path: Path) -> None:
    async with (
        running(tmp_path, address_connections_max=2) as here,
        connection_to(here.address) as first,
        connection_to(here.address) as second,
    ):
        assert await is_served(first)
        assert await is_served(second)
        async with connection_to(here.address) as third:
            assert not await is_served(third)
        assert here.remoting.address_refused == 1
        await first.close()
        await eventually(lambda: here.connections == 1)
        async with connection_to(here.address) as third:
            assert await is_served(third)


async def test_connections_without_a_request_do_not_shut_others_out(tmp_path: Path) -> None:
    async with running(tmp_path, address_handshakes_max=3) as here:
        host, _, port = here.address.rpartition(":")
        silent = [socket.create_connection((host, int(port))) for _ in range(5)]
        try:
            await eventually(lambda: here.remoting.address_refused == 2)
            silent.pop(0).close()
            await eventually(lambda: here.connections == 2)
            async with connection_to(here.address) as line:
                assert await is_served(line)
                async with connection_to(here.address) as other:
                    assert await is_served(other)
        finally:
            for each in silent:
                each.close()


async def test_a_greedy_address_is_slowed_down_and_others_are_not(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"listen_port": 0, "bind_address": "127.0.0.1", **own_files(tmp_path)}
    server = NameServer(NameServerConfig(**settings, address_requests_per_s=100))
    await server.start()
    try:
        async with (
            connection_to(server.address) as greedy,
            connection_to(server.address) as same_address,
            connection_to(server.address, source="127.0.0.2") as other,
        ):
            assert all([await is_served(greedy) for _ in range(100)])  # the allowance of one second
            sent = [await greedy.send(206) for _ in range(50)]
            answers = [await greedy.answer(opaque) for opaque in sent]
            assert [answer.code for answer in answers] == [0] * 50  # nothing is lost
            began = time.monotonic()
            assert await is_served(other)
            assert time.monotonic() - began < 0.2
            assert await is_served(same_address)
            assert time.monotonic() - began > 0.2
    finally:
        await server.stop()


async def test_exempt_addresses_have_no_limits(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"address_connections_max": 1, "limit_exempt_addresses": "127.0.0.0/8"}
    async with (
        running(tmp_path, **limits) as here,
        connection_to(here.address) as first,
        connection_to(here.address) as second,
    ):
        assert await is_served(first)
        assert await is_served(second)


async def test_a_user_beyond_its_rate_is_told_to_try_later(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"authentication_enabled": True, "init_user": ROOT.json, "user_requests_per_s": 3}
    async with running(tmp_path, **settings) as here, connection_to(here.address) as line:
        codes = [(await line.call(ROOT.call(319))).code for _ in range(6)]
        assert codes == [0, 0, 0, 0, 2, 2]
        refused = await line.call(ROOT.call(319))
        assert refused.remark is not None
        assert "userRequestsPerSecond=3" in refused.remark
        assert await topics(line) == []  # readers have no user
        here.clock.advance(1)
        assert (await line.call(ROOT.call(319))).code == 0


async def test_the_fields_of_a_request_count_for_the_bytes_of_a_user(tmp_path: Path) -> None:
    """The properties of a message are in its header."""
    settings: dict[str, Any] = {"authentication_enabled": True, "init_user": ROOT.json, "user_bytes_per_s": 1_000}
    async with running(tmp_path, **settings) as here, connection_to(here.address) as line:
        codes = [(await line.call(ROOT.call(319, long="x" * 1_000))).code for _ in range(3)]
        assert codes == [0, 2, 2]


async def test_a_user_has_at_most_so_many_connections(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        **{"authentication_enabled": True, "authenticate_readers": True, "init_user": ROOT.json},
        "user_connections_max": 2,
    }
    async with (
        running(tmp_path, **settings) as here,
        connection_to(here.address) as first,
        connection_to(here.address) as second,
        connection_to(here.address) as third,
    ):
        route = ROOT.call(206)
        assert [(await line.call(route)).code for line in (first, second, first, third, third)] == [0, 0, 0, 2, 2]
        refused = await third.call(route)
        assert refused.remark is not None
        assert "User:root is limited to userConnectionsMax=2" in refused.remark
        assert here.server.enforcer.counts[Reason.USER_CONNECTIONS] == 3
        await first.close()
        await eventually(lambda: here.connections == 2)
        assert (await third.call(route)).code == 0
        assert (await third.call(create_user(ALICE))).code == 0
        assert (await third.call(ALICE.call(206))).code == 0  # now it is a connection of alice
        async with connection_to(here.address) as fourth:
            assert (await fourth.call(route)).code == 0


async def test_cached_routes_count_for_the_rate_of_a_user(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        **{"authentication_enabled": True, "authenticate_readers": True, "init_user": ROOT.json},
        "user_requests_per_s": 3,
    }
    async with running(tmp_path, **settings) as here, connection_to(here.address) as line:
        assert [(await line.call(ROOT.call(206))).code for _ in range(6)] == [0, 0, 0, 0, 2, 2]


# Before anyone configures anything


def config(**settings: object) -> NameServerConfig:
    return NameServerConfig(**{"bind_address": "0.0.0.0", **settings})  # type: ignore[arg-type]


CERTIFICATE = TlsSettings(mode=TlsMode.ENFORCING, test_mode=False)


@pytest.mark.parametrize(
    ("settings", "without"),
    [
        ({}, "authentication,TLS"),
        ({"authentication_enabled": True}, "TLS"),
        ({"tls": CERTIFICATE}, "authentication"),
        ({"acl_enabled": True, "tls": TlsSettings(mode=TlsMode.ENFORCING)}, "a certificate"),
    ],
)
def test_a_server_without_protection_is_reported_in_one_line(
    settings: dict[str, object], without: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    check_exposure(config(**settings), "name server")
    (message,) = caplog.messages
    assert f"without={without} advice=" in message
    with pytest.raises(SettingsError, match="secure=true, and the name server would accept"):
        check_exposure(config(**settings, secure=True), "name server")


@pytest.mark.parametrize(
    "settings",
    [
        {"bind_address": "127.0.0.1"},
        {"bind_address": "::1"},
        {"bind_address": "localhost"},
        {"authentication_enabled": True, "tls": CERTIFICATE},
    ],
)
def test_a_protected_server_starts_without_a_word(
    settings: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    check_exposure(config(**settings, secure=True), "name server")
    assert caplog.messages == []


PROTECTED: dict[str, object] = {"authentication_enabled": True, "tls": CERTIFICATE}


@pytest.mark.parametrize("bind_address", ["0.0.0.0", "127.0.0.1"])
def test_metrics_pages_need_no_user_so_they_are_reported_as_well(
    bind_address: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {**PROTECTED, "bind_address": bind_address, "metrics_port": 5557}
    check_exposure(config(**settings, secure=True), "name server")
    assert caplog.messages == []
    check_exposure(config(**settings, metrics_host="0.0.0.0"), "name server")
    (message,) = caplog.messages
    assert "bind=0.0.0.0:5557 without=authentication of metrics pages advice=metricsHost=127.0.0.1;" in message
    with pytest.raises(
        SettingsError, match=r"on 0\.0\.0\.0:5557 without authentication of metrics pages: set metricsHost"
    ):
        check_exposure(config(**settings, metrics_host="0.0.0.0", secure=True), "name server")


def test_a_secure_broker_replicates_to_this_machine_only_since_that_port_has_no_tls() -> None:
    broker = BrokerConfig(bind_address="0.0.0.0", secure=True, **PROTECTED)  # type: ignore[arg-type]
    check_exposure(broker, "broker", replicates=True)
    broker.broker_sources = "127.0.0.1, ::1"
    check_exposure(broker, "broker", replicates=True)
    broker.broker_sources = "127.0.0.1, 10.0.0.0/8"
    with pytest.raises(SettingsError, match="on the replication port without TLS of replication: set brokerSource"):
        check_exposure(broker, "broker", replicates=True)


async def test_a_secure_server_does_not_start_unprotected(tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        async with running(tmp_path, bind_address="0.0.0.0", secure=True):
            pass
