"""Leases of brokers, their renewal and expiry."""

from __future__ import annotations

import pytest

from skyroute.nameserver.housekeeping import LATE_SCANS_MAX
from skyroute.wire.codes import ResponseCode
from tests.network.cluster import CLUSTER, MASTER, OTHER, SLAVE, addresses, register, topics
from tests.support.connections import AsyncConnection, connection_to
from tests.support.raw import Request
from tests.support.servers import Running
from tests.support.waiting import eventually

HERE = {"clusterName": CLUSTER, "brokerAddr": "10.0.0.1:10911", "brokerName": "broker-a", "brokerId": "0"}
HERE_A = {"broker-a": {"0": "10.0.0.1:10911"}}
SHORT = MASTER.but(heartbeat_ms=10_000)


async def test_a_lease_that_runs_out_ends_the_broker_and_its_connection(
    nameserver: Running, line: AsyncConnection
) -> None:
    async with connection_to(nameserver.address) as broker:
        await register(broker, MASTER)
        nameserver.pass_time(120, sweeps=False)
        assert await addresses(line) == HERE_A
        nameserver.pass_time(5, sweeps=False)
        assert await addresses(line) == {}
        await broker.until_closed()
    assert await topics(line) == []


async def test_a_broker_may_name_a_shorter_lease(nameserver: Running, line: AsyncConnection) -> None:
    await register(line, OTHER)
    async with connection_to(nameserver.address) as broker:
        await register(broker, SHORT)
        nameserver.pass_time(10)
        assert set(await addresses(line)) == {"broker-a", "broker-b"}
        nameserver.pass_time(5)
        assert set(await addresses(line)) == {"broker-b"}
        await broker.until_closed()


@pytest.mark.parametrize(
    "sign",
    [
        SHORT.request,
        Request(904, HERE),
        Request(322, HERE, b'{"counter":1,"stateVersion":0,"timestamp":1758275140000}'),
        Request(322, HERE, b'{"counter":99,"stateVersion":0,"timestamp":1}'),
        Request(322, HERE),
    ],
    ids=["103", "904", "322-same", "322-other", "322-none"],
)
@pytest.mark.parametrize("one_way", [False, True])
async def test_every_kind_of_heartbeat_renews_a_lease(
    nameserver: Running, line: AsyncConnection, sign: Request, one_way: bool
) -> None:
    await register(line, SHORT)
    for _ in range(4):
        nameserver.pass_time(8)
        if one_way:
            await line.send_oneway(sign)
        else:
            assert (await line.call(sign)).code == ResponseCode.SUCCESS
        assert await addresses(line) == HERE_A
    assert line.strays == []


async def test_other_requests_of_the_same_connection_do_not_renew_a_lease(
    nameserver: Running, line: AsyncConnection
) -> None:
    async with connection_to(nameserver.address) as broker:
        await register(broker, SHORT)
        for _ in range(3):
            assert await addresses(broker) == HERE_A
            nameserver.pass_time(5)
        await broker.until_closed()
    assert await addresses(line) == {}


async def test_a_heartbeat_of_an_unknown_broker_has_no_effect(line: AsyncConnection) -> None:
    assert (await line.call(904, HERE)).code == ResponseCode.SUCCESS
    assert (await line.call(322, HERE)).fields == {"changed": "true"}
    assert await addresses(line) == {}


async def test_a_heartbeat_may_come_over_another_connection(nameserver: Running, line: AsyncConnection) -> None:
    async with connection_to(nameserver.address) as broker:
        await register(broker, SHORT)
        for _ in range(4):
            nameserver.pass_time(8)
            await line.send_oneway(904, HERE)
            assert await addresses(line) == HERE_A
    await eventually(lambda: nameserver.connections == 1)
    assert await addresses(line) == {}  # it was registered over the other one


async def test_an_expired_broker_does_not_disconnect_the_others_of_its_container(
    nameserver: Running, line: AsyncConnection
) -> None:
    await register(line, SHORT, OTHER)
    for _ in range(4):
        nameserver.pass_time(8)
        await line.send_oneway(904, OTHER.identity)
    assert await addresses(line) == {"broker-b": {"0": "10.0.0.3:10911"}}
    assert line.strays == []


async def test_the_connection_of_a_container_closes_when_its_last_broker_expires(nameserver: Running) -> None:
    async with connection_to(nameserver.address) as container:
        await register(container, SHORT, OTHER.but(heartbeat_ms=20_000))
        nameserver.pass_time(15)
        assert nameserver.connections == 1
        nameserver.pass_time(10)
        await container.until_closed()


async def test_a_broker_that_moved_to_another_connection_is_not_cut_off_by_the_old_one(nameserver: Running) -> None:
    async with connection_to(nameserver.address) as old, connection_to(nameserver.address) as new:
        await register(old, SHORT)
        await register(new, SHORT)
        nameserver.pass_time(15)
        await new.until_closed()
        assert await addresses(old) == {}


# A scan that comes late


async def test_a_late_scan_evicts_no_broker_before_pending_heartbeats_are_read(
    nameserver: Running, line: AsyncConnection, caplog: pytest.LogCaptureFixture
) -> None:
    async with connection_to(nameserver.address) as silent:
        await register(line, SHORT)
        await register(silent, OTHER.but(heartbeat_ms=10_000))
        nameserver.clock.advance(300)
        nameserver.scan()
        assert "lease scan late" in caplog.text
        assert set(await addresses(line)) == {"broker-a", "broker-b"}
        await line.call(904, HERE)
        nameserver.pass_time(5, sweeps=False)
        assert await addresses(line) == HERE_A
        await silent.until_closed()


async def test_a_scan_that_is_a_little_late_does_its_work(nameserver: Running, line: AsyncConnection) -> None:
    async with connection_to(nameserver.address) as broker:
        await register(broker, SHORT)
        for _ in range(3):
            nameserver.clock.advance(5.9)
            nameserver.scan()
        assert await addresses(line) == {}


async def test_late_scans_in_a_row_do_not_postpone_eviction_for_ever(
    nameserver: Running, line: AsyncConnection
) -> None:
    async with connection_to(nameserver.address) as broker:
        await register(broker, SHORT)
        for _ in range(LATE_SCANS_MAX):
            nameserver.clock.advance(300)
            nameserver.scan()
            assert await addresses(line) == HERE_A
        nameserver.clock.advance(300)
        nameserver.scan()
        assert await addresses(line) == {}
        nameserver.clock.advance(300)
        await register(line, SHORT)
        nameserver.scan()
        assert await addresses(line) == HERE_A


async def test_expired_slave_leaves_its_master_alone(nameserver: Running, line: AsyncConnection) -> None:
    async with connection_to(nameserver.address) as slave:
        await register(line, MASTER)
        await register(slave, SLAVE.but(heartbeat_ms=3_000))
        nameserver.pass_time(10)
        await slave.until_closed()
        assert await addresses(line) == HERE_A
