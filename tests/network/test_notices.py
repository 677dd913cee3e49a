"""Notices to brokers of a new smallest id in their group."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.network.cluster import register
from tests.network.notices import at, contents, full_queue, gained, listening_brokers, lost
from tests.support.connections import AsyncConnection, connection_to, listening_broker
from tests.support.servers import Running, running
from tests.support.waiting import eventually


@pytest.fixture
async def nameserver(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, notify_min_broker_id=True, connect_timeout_s=1.0) as here:
        yield here


async def test_the_other_brokers_are_notified_of_a_new_smallest_id(line: AsyncConnection) -> None:
    async with listening_brokers(3) as (first, second, third):
        slave, other, master = at(first.address, 1), at(second.address, 2), at(third.address, 0)
        await register(line, other, slave, master)
        assert contents(await second.receive()) == gained(slave)
        assert contents(await second.receive()) == gained(master)
        assert contents(await first.receive()) == gained(master)
        # A new broker gets no notice about itself; its first notice is about another that left.
        await line.call(master.unregistration)
        assert contents(await first.receive()) == lost(master, slave)
        assert third.is_drained


@pytest.mark.parametrize("end", ["goodbye", "connection", "lease"])
async def test_the_remaining_brokers_are_notified_when_the_smallest_leaves(
    nameserver: Running, line: AsyncConnection, end: str
) -> None:
    async with listening_brokers(2) as (first, second), connection_to(nameserver.address) as masters:
        master, slave, other = at("127.0.0.1:1", 0), at(first.address, 1), at(second.address, 2)
        await register(masters, master.but(heartbeat_ms=10_000))
        await register(line, slave, other)
        if end == "goodbye":
            await masters.call(master.unregistration)
        elif end == "connection":
            await masters.close()
        else:
            nameserver.pass_time(15)
        assert contents(await first.receive()) == lost(master, slave)
        assert contents(await second.receive()) == lost(master, slave)


async def test_a_broker_is_notified_of_changes_in_their_order(line: AsyncConnection) -> None:
    async with listening_broker() as slaves:
        slave, master = at(slaves.address, 1), at("127.0.0.1:1", 0)
        await register(line, slave)
        expected = []
        for _ in range(20):
            await line.send_oneway(master.request)
            await line.send_oneway(master.unregistration)
            expected += [gained(master), lost(master, slave)]
        assert [contents(await slaves.receive()) for _ in expected] == expected


async def test_the_other_brokers_are_notified_of_a_role_switch(line: AsyncConnection) -> None:
    async with listening_brokers(2) as (first, second):
        one, two = at(first.address, 1), at(second.address, 2)
        await register(line, one, two)
        await register(line, at(second.address, 0))
        assert contents(await first.receive()) == gained(at(second.address, 0))


async def test_groups_without_acting_masters_are_not_notified(line: AsyncConnection) -> None:
    async with listening_broker() as slaves:
        quiet = at(slaves.address, 1, acting=False)
        await register(line, quiet, at("127.0.0.1:1", 0, acting=False))
        await line.call(at("127.0.0.1:1", 0).unregistration)
        # The same broker hears of its other group, and of nothing before that.
        loud = at(slaves.address, 1, broker="broker-b").but(cluster="Elsewhere")
        master = at("127.0.0.1:2", 0, broker="broker-b").but(cluster="Elsewhere")
        await register(line, loud, master)
        assert contents(await slaves.receive()) == gained(master)
        assert slaves.is_drained


async def test_no_notice_is_sent_unless_the_setting_is_on(line: AsyncConnection) -> None:
    async with listening_broker() as slaves:
        slave, master = at(slaves.address, 1), at("127.0.0.1:1", 0)
        await line.call(318, body=b"notifyMinBrokerIdChanged=false")
        await register(line, slave, master)
        await line.call(318, body=b"notifyMinBrokerIdChanged=true")
        await line.call(master.unregistration)
        assert contents(await slaves.receive()) == lost(master, slave)
        assert slaves.is_drained


NONSENSE = [
    "nonsense",
    ":10911",
    "127.0.0.1:",
    "127.0.0.1:ten",
    "127.0.0.1:-1",
    "127.0.0.1:65536",
    "127.0.0.1:99999999999999999999",
    "127.0.0.1:²",
    "[::1:10911",
    "..:10911",
    f"{'a' * 70}.example:10911",
    f"{'a' * 300}:10911",
    "ü" * 100 + ":10911",
]


async def test_a_notice_to_a_nonsensical_address_is_dropped_in_one_line(
    line: AsyncConnection, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening_broker() as good:
        others = [at(address, 10 + number) for number, address in enumerate(NONSENSE)]
        slave, master = at(good.address, 5), at("127.0.0.1:1", 0)
        await register(line, *others, slave, master)
        assert contents(await good.receive()) == gained(master)

        async def all_lost() -> bool:
            said = [record.getMessage() for record in caplog.records if "notice" in record.getMessage()]
            return all(any(f"broker={address} " in text for text in said) for address in NONSENSE)

        await eventually(all_lost)
        await line.call(master.unregistration)
        assert contents(await good.receive()) == lost(master, slave)
        assert not [record for record in caplog.records if record.exc_info]


async def test_a_broker_that_is_down_does_not_delay_notices_to_others(
    line: AsyncConnection, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening_broker() as away:
        pass
    async with listening_broker() as here:
        master = at("127.0.0.1:1", 0)
        await register(line, at(here.address, 3), at(away.address, 2), master)
        assert contents(await here.receive()) == gained(at(away.address, 2))
        assert contents(await here.receive()) == gained(master)

        async def complained() -> bool:
            return f"notice lost broker={away.address}" in caplog.text

        await eventually(complained)


async def test_a_broker_that_takes_no_connection_does_not_delay_others(tmp_path: Path) -> None:
    patient = running(tmp_path, notify_min_broker_id=True, connect_timeout_s=600.0)
    async with (
        patient as nameserver,
        connection_to(nameserver.address) as line,
        listening_broker() as here,
        full_queue() as hanging,
    ):
        master, slave, stuck = at("127.0.0.1:1", 0), at(here.address, 3), at(hanging, 2)
        await register(line, slave, stuck, master)
        assert contents(await here.receive()) == gained(stuck)
        assert contents(await here.receive()) == gained(master)
        await line.call(master.unregistration)
        assert contents(await here.receive()) == lost(master, stuck)


async def test_a_broker_that_closed_its_connection_is_connected_again(line: AsyncConnection) -> None:
    async with listening_broker() as slaves:
        slave, master = at(slaves.address, 1), at("127.0.0.1:1", 0)
        await register(line, slave, master)
        assert contents(await slaves.receive()) == gained(master)
        slaves.hang_up()

        async def hears_again() -> bool:
            await line.call(master.unregistration)
            await register(line, master)
            return not slaves.is_drained

        await eventually(hears_again)


async def test_a_server_that_stops_leaves_no_connection_to_brokers_open(
    nameserver: Running, line: AsyncConnection
) -> None:
    async with listening_broker() as slaves:
        master = at("127.0.0.1:1", 0)
        await register(line, at(slaves.address, 1), master)
        await slaves.receive()
        await nameserver.server.stop()
        await slaves.until_disconnected()
        assert slaves.is_drained
