"""The state of groups in a real etcd: compare-and-swap, fencing, leases, and an etcd that fails."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from skyroute.clock import SystemClock
from skyroute.controller.config import ControllerConfig
from skyroute.controller.errors import (
    DamagedStateError,
    Refusal,
    RequestRefusedError,
    StoreConflictError,
    StoreUnavailableError,
)
from skyroute.controller.etcd_client import EtcdClient
from skyroute.controller.etcd_leadership import EtcdLeadership
from skyroute.controller.etcd_store import EtcdStore
from skyroute.controller.events import Cause, GroupEvent, IdGranted
from skyroute.controller.groups import Groups
from skyroute.controller.rules import Outcome
from skyroute.controller.server import ControllerServer
from skyroute.controller.state import GroupState, Replica
from tests.support.apache import PeerUnavailableError
from tests.support.connections import AsyncConnection, connection_to
from tests.support.cut_proxy import CutProxy
from tests.support.etcd import EtcdCluster, EtcdMember, etcd_program
from tests.support.waiting import eventually

T = TypeVar("T")

SMALL_QUOTA = 2 * 1024 * 1024
GROUP = {"clusterName": "C", "brokerName": "a"}


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMember]:
    try:
        etcd_program()
    except PeerUnavailableError as error:
        if os.environ.get("SKYROUTE_NO_SKIP") == "1":
            pytest.fail(f"these tests must run (SKYROUTE_NO_SKIP=1), but: {error}")
        pytest.skip(str(error))
    with EtcdCluster(tmp_path_factory.mktemp("etcd"), size=1) as cluster:
        yield cluster.members[0]


def state(master: int | None = None, epoch: int = 0, name: str = "a") -> GroupState:
    return GroupState("C", name, replicas={1: Replica("h:1", "h:1;1")}, master=master, master_epoch=epoch, next_id=2)


class Contender:
    """A controller without sockets for brokers."""

    def __init__(self, address: str, prefix: str, name: str, lease_s: int = 2) -> None:
        self.client = EtcdClient([address])
        self.store = EtcdStore(self.client, prefix)
        self.gained = 0
        self.leadership = EtcdLeadership(
            group="g",
            self_id=name,
            address=f"{name}:1",
            peers={name: f"{name}:1"},
            store=self.store,
            client=self.client,
            clock=SystemClock(),
            lease_s=lease_s,
            on_gained=self._gain,
        )
        self._task: asyncio.Task[None] | None = None

    def _gain(self) -> None:
        self.gained += 1

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self.leadership.run())

    async def freeze(self) -> None:
        """Renew the lease no more, as a process that stands still."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def stop(self) -> None:
        await self.freeze()
        await self.leadership.resign()
        await self.store.close()


@asynccontextmanager
async def contenders(member: EtcdMember, count: int = 1) -> AsyncIterator[list[Contender]]:
    prefix = f"/test/{uuid4().hex}"
    here = [Contender(member.address, prefix, f"n{number}") for number in range(count)]
    here[0].start()
    await eventually(lambda: here[0].leadership.is_leader)
    for each in here[1:]:
        each.start()
        await eventually(lambda: each.leadership.leader_id == "n0")  # noqa: B023 - awaited in the loop
    try:
        yield here
    finally:
        for each in here:
            await each.stop()


async def test_a_change_is_stored_if_the_group_is_as_it_was_read(member: EtcdMember) -> None:
    async with contenders(member) as (one,):
        await one.store.replace(state(), 0)
        stored = one.store.find("a")
        assert stored is not None
        assert stored.state == state()
        with pytest.raises(StoreConflictError):
            await one.store.replace(state(1, 1), 0)
        await one.store.replace(state(1, 1), stored.revision)
        with pytest.raises(StoreConflictError):
            await one.store.replace(state(1, 2), stored.revision)
        await one.store.lead(one.store._fence or 0)
        read = one.store.find("a")
        assert read is not None
        assert (read.state, read.revision > stored.revision) == (state(1, 1), True)


async def test_only_one_of_two_changes_at_once_is_stored(member: EtcdMember) -> None:
    async with contenders(member) as (one,):
        outcomes = await asyncio.gather(
            *(one.store.replace(state(1, epoch), 0) for epoch in (1, 2)), return_exceptions=True
        )
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType", "StoreConflictError"]


async def test_a_leader_that_lost_its_key_cannot_write(member: EtcdMember) -> None:
    async with contenders(member, 2) as (one, two):
        await one.store.replace(state(), 0)
        stored = one.store.find("a")
        assert stored is not None
        await one.freeze()
        await eventually(lambda: two.leadership.is_leader)
        assert not one.leadership.is_leader
        assert (two.gained, two.store.find("a")) == (1, stored)
        with pytest.raises(RequestRefusedError) as refused:
            await one.store.replace(state(1, 1), stored.revision)
        assert refused.value.refusal is Refusal.NOT_LEADER
        await two.store.replace(state(1, 1), stored.revision)


async def test_a_leader_stops_before_its_lease_ends_and_leads_again_later(member: EtcdMember) -> None:
    async with contenders(member, 2) as (one, two):
        await one.freeze()
        await eventually(lambda: not one.leadership.is_leader)
        assert not two.leadership.is_leader  # etcd still has the key of the first
        await eventually(lambda: two.leadership.is_leader)
        one.start()
        await eventually(lambda: one.leadership.leader_id == "n1")
        await two.stop()  # a leader that stops hands over at once
        await eventually(lambda: one.leadership.is_leader, timeout_s=1.5)


async def test_a_change_whose_response_was_lost_counts(member: EtcdMember) -> None:
    async with contenders(member) as (one,):
        await one.store.replace(state(), 0)
        before = one.store.find("a")
        assert before is not None
        await one.store.replace(state(1, 1), before.revision)
        one.store._groups["a"] = before  # as if the response had been lost
        await one.store.replace(state(1, 1), before.revision)
        after = one.store.find("a")
        assert after is not None
        assert (after.state, after.revision > before.revision) == (state(1, 1), True)


class LateClient(EtcdClient):
    """Gives up the next request: etcd carries it out before, never, or when the test says."""

    async def call(self, operation: Callable[[Any], Awaitable[T]]) -> T:
        if self.late is None:
            return await super().call(operation)
        carry_out, self.late, self.held = self.late, None, operation
        if carry_out:
            await super().call(operation)
        raise StoreUnavailableError("etcd does not respond")

    late: bool | None = None
    held: Callable[[Any], Awaitable[Any]] | None = None


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_change_that_was_given_up_is_published_if_it_is_stored(member: EtcdMember, is_stored: bool) -> None:
    async with contenders(member) as (one,):
        client = LateClient([member.address])
        one.store._client = client
        published: list[GroupEvent] = []
        groups = Groups(one.store, lambda events, group: published.extend(events))
        await one.store.replace(state(), 0)
        event = IdGranted("C", "a", Cause.BROKER, 1, "h:1")
        client.late = is_stored
        with pytest.raises(StoreUnavailableError):
            await groups.change("a", lambda group: Outcome(state(1, 1), None, (event,)))
        assert (published, groups.unsure) == ([], ("a",))
        await groups.settle("a")
        assert (published, groups.find("a")) == (([event], state(1, 1)) if is_stored else ([], state()))
        assert client.held is not None
        await client.call(client.held)  # etcd carries it out only now: it must not count any more
        await one.store.lead(one.store._fence or 0)
        assert groups.find("a") == (state(1, 1) if is_stored else state())
        await client.close()


async def test_a_damaged_value_keeps_a_controller_from_leading(
    member: EtcdMember, caplog: pytest.LogCaptureFixture
) -> None:
    async with contenders(member) as (one,):
        await one.client.call(lambda client: client.put(one.store._prefix + b"bad", b"{"))
        with pytest.raises(DamagedStateError, match="is damaged"):
            await one.store.lead(1)


async def test_an_unreachable_etcd_is_reported_and_tried_again(
    member: EtcdMember, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = ControllerConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        settings_file=str(tmp_path / "controller.properties"),
        store_path=str(tmp_path),
        etcd_endpoints="127.0.0.1:1",
    )
    server = ControllerServer(config)
    await server.start()
    try:
        await eventually(lambda: "etcd failed" in caplog.text)
        async with connection_to(server.address) as line:
            metadata = (await line.call(1005)).fields
            assert (metadata["isLeader"], metadata["controllerLeaderAddress"]) == ("false", "")
            answer = await line.call(1012, GROUP)
            assert (answer.code, "the leader is unknown" in (answer.remark or "")) == (2007, True)
    finally:
        await server.stop()
    assert "not replicated" not in caplog.text


async def test_a_dead_member_is_skipped(member: EtcdMember) -> None:
    client = EtcdClient(["127.0.0.1:1", member.address])
    try:
        assert await client.call(lambda etcd: etcd.get(b"/nothing")) is None
        assert member.address in repr(client)
    finally:
        await client.close()


async def fill(client: EtcdClient) -> None:
    """Write until etcd refuses: it counts what it has written, some 100 ms later."""
    for number in range(200):
        await client.call(lambda etcd: etcd.put(b"/fill/%d" % number, bytes(512 * 1024)))  # noqa: B023 - awaited here


async def test_a_full_etcd_refuses_changes_and_keeps_what_it_has(member: EtcdMember, tmp_path: Path) -> None:
    with EtcdCluster(tmp_path, size=1, quota_bytes=SMALL_QUOTA) as cluster:
        async with contenders(cluster.members[0]) as (one,):
            await one.store.replace(state(), 0)
            before = one.store.find("a")
            assert before is not None
            with pytest.raises(StoreUnavailableError, match="space exceeded"):
                await fill(one.client)
            with pytest.raises(StoreUnavailableError, match="mvcc: database space exceeded"):
                await one.store.replace(state(1, 1), before.revision)
            assert one.store.find("a") == before
            assert one.leadership.is_leader


async def test_a_slow_etcd_has_a_clear_answer_and_no_half_change(member: EtcdMember, tmp_path: Path) -> None:
    with CutProxy(member.address) as proxy:
        config = ControllerConfig(
            listen_port=0,
            bind_address="127.0.0.1",
            settings_file=str(tmp_path / "controller.properties"),
            store_path=str(tmp_path),
            etcd_endpoints=proxy.address,
            etcd_prefix=f"/test/{uuid4().hex}",
            etcd_lease_s=60,
        )
        server = ControllerServer(config)
        await server.start()
        try:
            async with connection_to(server.address) as line:
                await eventually(lambda: _leads(server))
                apply = GROUP | {"appliedBrokerId": "1", "registerCheckCode": "h:1;1"}
                assert (await line.call(1013, apply)).code == 0
                before = server.groups.find("a")
                proxy.cut()
                again = GROUP | {"appliedBrokerId": "2", "registerCheckCode": "h:2;2"}
                answer = await line.call(1013, again)
                assert answer.code == 1
                assert "etcd does not respond" in (answer.remark or "")
                assert server.groups.find("a") == before
                # The transaction was held on its way: it may be carried out now, after its answer.
                proxy.heal()
                await eventually(lambda: _succeeds(line, again))
                after = server.groups.find("a")
                assert after is not None
                assert (sorted(after.replicas), after.next_id) == ([1, 2], 3)
                stored = EtcdStore(EtcdClient([member.address]), f"{config.etcd_prefix}/{config.group}")
                await stored.lead(0)
                assert stored.find("a") == server.groups.all()["a"]
                await stored.close()
        finally:
            await server.stop()


async def test_a_lease_that_ends_during_a_write_leaves_one_state(member: EtcdMember, tmp_path: Path) -> None:
    """The write of the old leader reaches etcd after the successor has changed the same group."""
    prefix = f"/test/{uuid4().hex}"
    with CutProxy(member.address) as proxy:
        servers = [
            ControllerServer(
                ControllerConfig(
                    listen_port=0,
                    bind_address="127.0.0.1",
                    settings_file=str(tmp_path / f"controller-{number}.properties"),
                    store_path=str(tmp_path / str(number)),
                    etcd_endpoints=endpoint,
                    etcd_prefix=prefix,
                    etcd_lease_s=2,
                )
            )
            for number, endpoint in enumerate((proxy.address, member.address))
        ]
        old, new = servers
        try:
            await old.start()
            await eventually(lambda: _leads(old))
            await new.start()
            async with connection_to(old.address) as to_old, connection_to(new.address) as to_new:
                assert (
                    await to_old.call(1013, GROUP | {"appliedBrokerId": "1", "registerCheckCode": "h:1;1"})
                ).code == 0
                proxy.cut()
                late = asyncio.create_task(
                    to_old.call(1013, GROUP | {"appliedBrokerId": "2", "registerCheckCode": "old:2;2"})
                )
                await eventually(lambda: _leads(new))
                assert not _leads(old)
                granted = await to_new.call(1013, GROUP | {"appliedBrokerId": "2", "registerCheckCode": "new:2;2"})
                assert granted.code == 0
                assert (await late).code in (1, 2007)
                proxy.heal()
                await eventually(lambda: _knows(old, new))
                assert (await to_old.call(1004, {"brokerName": "a"})).code == 2007
                stored = EtcdStore(EtcdClient([member.address]), f"{prefix}/{old.config.group}")
                await stored.lead(0)
                assert stored.find("a") == new.groups.all()["a"]
                assert stored.groups()["a"].state.replicas[2].address == "new:2"
                await stored.close()
        finally:
            for server in servers:
                await server.stop()


def _knows(server: ControllerServer, leader: ControllerServer) -> bool:
    return server.failover is not None and server.failover.leadership.leader_address == leader.address


def _leads(server: ControllerServer) -> bool:
    return server.failover is not None and server.failover.leadership.is_leader


async def _succeeds(line: AsyncConnection, application: dict[str, str]) -> bool:
    return (await line.call(1013, application)).code == 0
