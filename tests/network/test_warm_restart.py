"""A name server that starts again: what it answers at once, whom it goes on believing, and what it has recorded."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from skyroute.nameserver.errors import FolderInUseError
from skyroute.nameserver.journal.reader import read_records
from skyroute.nameserver.journal.schema import Kind, Record
from skyroute.remoting.errors import BindError
from skyroute.wire.codes import ResponseCode
from tests.network.cluster import MASTER, OTHER, SLAVE, addresses, register
from tests.support.connections import AsyncConnection, connection_to
from tests.support.raw import Registration, Request
from tests.support.servers import Running, running

HERE_A = {"broker-a": {"0": "10.0.0.1:10911"}}


def remembering(folder: Path, **settings: Any) -> AbstractAsyncContextManager[Running]:
    return running(folder, memory_path=str(folder / "memory"), **settings)


async def live(folder: Path, *registrations: Registration, **settings: Any) -> None:
    """A server's life in which these brokers register, stopped in order."""
    async with remembering(folder, **settings) as here, connection_to(here.address) as line:
        await register(line, *registrations)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def records(folder: Path) -> list[Record]:
    return list(read_records(folder / "memory" / "journal"))


async def test_restored_routes_are_served_at_once_and_counted_until_confirmed(tmp_path: Path) -> None:
    await live(tmp_path, MASTER)
    async with (
        remembering(tmp_path) as here,
        connection_to(here.address) as line,
        connection_to(here.address) as broker,
    ):
        routes = here.server._routes
        for count in (1, 2, 3):
            assert await addresses(line) == HERE_A
            assert routes.unconfirmed_answers == count
        await register(broker, MASTER)
        for _ in range(3):
            assert await addresses(line) == HERE_A
        assert routes.unconfirmed_answers == 3


async def test_a_restored_route_has_the_same_bytes(tmp_path: Path) -> None:
    question = Request(105, {"topic": "TopicA"})
    async with remembering(tmp_path) as here, connection_to(here.address) as line:
        await register(line, MASTER, SLAVE)
        before = (await line.call(question)).body
    async with remembering(tmp_path) as here, connection_to(here.address) as line:
        assert (await line.call(question)).body == before


async def test_a_restored_broker_that_does_not_return_is_evicted_after_its_short_lease(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await live(tmp_path, MASTER, OTHER)
    async with remembering(tmp_path) as here, connection_to(here.address) as line:
        here.pass_time(30)
        await register(line, OTHER)
        assert set(await addresses(line)) == {"broker-a", "broker-b"}
        here.pass_time(20)
        assert set(await addresses(line)) == {"broker-b"}
    assert "broker left cluster=DefaultCluster broker=broker-a id=0 address=10.0.0.1:10911 cause=not_confirmed" in (
        caplog.text
    )
    assert "warm restart over unconfirmed_answers=1" in caplog.text
    assert [record.broker for record in records(tmp_path) if record.cause == "not_confirmed"] == ["broker-a"]


@pytest.mark.parametrize("sign", [Request(904, MASTER.identity), Request(322, MASTER.identity)], ids=["904", "322"])
async def test_a_heartbeat_confirms_a_broker_and_sets_its_connection(tmp_path: Path, sign: Request) -> None:
    await live(tmp_path, MASTER)
    async with remembering(tmp_path) as here, connection_to(here.address) as line:
        async with connection_to(here.address) as broker:
            assert (await broker.call(sign)).code == ResponseCode.SUCCESS
            here.pass_time(60, sweeps=False)
            assert await addresses(line) == HERE_A
        await _until_gone(line)


async def _until_gone(line: AsyncConnection) -> None:
    while await addresses(line):
        pass


async def test_warm_restart_enable_false_starts_empty(tmp_path: Path) -> None:
    await live(tmp_path, MASTER)
    async with remembering(tmp_path, warm_restart_enabled=False) as here, connection_to(here.address) as line:
        assert await addresses(line) == {}


async def test_a_server_on_a_free_port_persists_only_with_memory_path(tmp_path: Path) -> None:
    async with running(tmp_path) as here, connection_to(here.address) as line:
        await register(line, MASTER)
    assert files(tmp_path) == []


async def test_need_wait_for_service_applies_only_to_topics_unknown_before(tmp_path: Path) -> None:
    await live(tmp_path, MASTER)
    async with remembering(tmp_path, wait_for_brokers=True) as here, connection_to(here.address) as line:
        assert await addresses(line) == HERE_A
        assert (await line.call(105, {"topic": "TopicC"})).remark == "name server not ready"
        here.pass_time(45)
        assert (await line.call(105, {"topic": "TopicC"})).code == ResponseCode.TOPIC_NOT_EXIST


async def test_two_servers_do_not_share_a_folder(tmp_path: Path) -> None:
    async with remembering(tmp_path):
        with pytest.raises(FolderInUseError, match="give each its own memoryPath"):
            async with remembering(tmp_path):
                pass
    async with remembering(tmp_path):
        pass


async def test_a_taken_port_leaves_the_folder_free_and_nothing_in_the_journal(tmp_path: Path) -> None:
    async with running(tmp_path / "other") as other:
        port = other.remoting.port
        with pytest.raises(BindError, match=str(port)):
            async with remembering(tmp_path, listen_port=port):
                pass
    async with remembering(tmp_path) as here:
        address = here.address
    assert [record.kind for record in records(tmp_path)] == [Kind.SERVER_STARTED, Kind.SERVER_STOPPED]
    assert records(tmp_path)[0].address == address


async def test_a_folder_in_use_leaves_the_port_free(tmp_path: Path) -> None:
    async with running(tmp_path / "other") as other:
        port = other.remoting.port
    async with remembering(tmp_path):
        with pytest.raises(FolderInUseError):
            async with remembering(tmp_path, listen_port=port):
                pass
        async with running(tmp_path / "other", listen_port=port):
            pass


async def test_operator_changes_are_recorded_with_their_address(tmp_path: Path) -> None:
    async with remembering(tmp_path) as here, connection_to(here.address) as line:
        await register(line, MASTER)
        await line.call(100, {"namespace": "n", "key": "k", "value": "1"})
        await line.call(100, {"namespace": "n", "key": "k", "value": "1"})
        await line.call(102, {"namespace": "n", "key": "k"})
        await line.call(Request(318, body=b"enableTopicList=false"))
        await line.call(205, {"brokerName": "broker-a"})
        await line.call(216, {"topic": "TopicA"})
    told = [record for record in records(tmp_path) if record.kind in ("kv_changed", "settings_changed")]
    assert [(r.kind, r.before and r.before.value, r.after and r.after.value) for r in told] == [
        ("kv_changed", None, "1"),
        ("kv_changed", "1", None),
        ("settings_changed", None, None),
    ]
    assert told[2].settings == {"enableTopicList": ("true", "false")}
    assert all(record.peer and record.peer.startswith("127.0.0.1:") for record in told)
    causes = [record.cause for record in records(tmp_path) if record.broker and record.cause != "registered"]
    assert causes == ["writes_forbidden", "topic_deleted"]


async def test_brokers_that_fall_silent_together_are_held_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with remembering(tmp_path, mass_expiry_share=0.5) as here, connection_to(here.address) as line:
        await register(line, MASTER, OTHER)
        here.pass_time(125, sweeps=False)
        async with connection_to(here.address) as other:
            assert set(await addresses(other)) == {"broker-a", "broker-b"}
            assert "mass expiry held, leases extended once brokers=2" in caplog.text
            here.pass_time(125, sweeps=False)
            assert await addresses(other) == {}
    assert [record.kind for record in records(tmp_path)].count(Kind.LEASE_HELD) == 2


async def test_no_lease_is_extended_by_default(nameserver: Running, line: AsyncConnection) -> None:
    async with connection_to(nameserver.address) as broker:
        await register(broker, MASTER, OTHER)
        nameserver.pass_time(125, sweeps=False)
        assert await addresses(line) == {}
