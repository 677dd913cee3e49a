"""Admin calls about topics and clusters: paging, the default cluster, and calls to many servers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest

from skyroute.client.admin import Admin
from skyroute.client.admin.base import (
    CONCURRENT_CALLS_MAX,
    PAGING_RESTARTS_MAX,
    SomeFailedError,
    UnknownClusterError,
    call_all,
    call_each,
)
from skyroute.client.errors import ClientError, ServerFailedError
from skyroute.client.session.session import Session
from skyroute.errors import SkyrouteError
from skyroute.wire.calls.groups import GroupConfig
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import RequestCode
from tests.support.fake_broker import BROKER, CLUSTER, NAME_SERVER, FakeCluster, Peer, Reply, fake_cluster
from tests.support.raw import Command


def tell_clusters(cluster: FakeCluster, *names: str) -> None:
    """Have the name server return clusters that all have the same brokers."""
    brokers = {
        server.name: {"brokerName": server.name, "cluster": CLUSTER, "brokerAddrs": {0: server.address}}
        for server in cluster.brokers
    }
    info = {"brokerAddrTable": brokers, "clusterAddrTable": {name: list(brokers) for name in names}}
    reply = Reply(body=json.dumps(info).encode())
    cluster.on(RequestCode.GET_BROKER_CLUSTER_INFO, lambda _command, _peer: reply, broker=NAME_SERVER)


class PagedTable:
    """A broker's table of topics or groups, returned in pages as Apache's brokers do."""

    def __init__(self, count: int, page: int, kind: str = "topic") -> None:
        self.names = [f"T{number:02}" for number in range(count)]
        self.version = 1
        self.starts: list[int] = []
        self._page = page
        self._kind = kind
        self._table, self._name = {
            "topic": ("topicConfigTable", "topicName"),
            "group": ("subscriptionGroupTable", "groupName"),
        }[kind]

    def __call__(self, command: Command, _peer: Peer) -> Reply:
        start = int(command.fields[f"{self._kind}Seq"])
        if command.fields["dataVersion"] and json.loads(command.fields["dataVersion"])["counter"] != self.version:
            start = 0
        self.starts.append(start)
        table = {name: {self._name: name} for name in self.names[start : start + self._page]}
        body = {self._table: table, "dataVersion": {"counter": self.version, "stateVersion": 0, "timestamp": 5}}
        self.after_page()
        total = {f"total{self._kind.title()}Num": str(len(self.names))}
        return Reply(fields=total, body=json.dumps(body).encode())

    def after_page(self) -> None:
        pass


async def topic_configs(table: PagedTable) -> dict[str, TopicConfig]:
    async with fake_cluster() as cluster, Admin(cluster.address) as admin:
        cluster.on(RequestCode.GET_ALL_TOPIC_CONFIG, table, broker=BROKER)
        return await admin.topic_configs(cluster.broker().address)


async def group_configs(table: PagedTable) -> dict[str, GroupConfig]:
    async with fake_cluster() as cluster, Admin(cluster.address) as admin:
        cluster.on(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, table, broker=BROKER)
        return await admin.group_configs(cluster.broker().address)


async def test_topics_are_read_page_by_page() -> None:
    table = PagedTable(count=7, page=3)
    found = await topic_configs(table)
    assert list(found) == table.names
    assert found["T00"].name == "T00"
    assert table.starts == [0, 3, 6]


async def test_groups_are_read_page_by_page() -> None:
    table = PagedTable(count=7, page=3, kind="group")
    found = await group_configs(table)
    assert list(found) == table.names
    assert found["T00"] == GroupConfig("T00")
    assert table.starts == [0, 3, 6]


async def test_a_table_that_changes_between_pages_is_read_from_the_start_again() -> None:
    class Changing(PagedTable):
        def after_page(self) -> None:
            if self.starts == [0, 3]:
                self.names = ["A", *self.names[1:]]
                self.version += 1

    table = Changing(count=7, page=3)
    assert list(await topic_configs(table)) == table.names
    assert table.starts == [0, 3, 0, 3, 6]


async def test_paging_ends_when_a_broker_has_fewer_entries_than_its_total() -> None:
    class Short(PagedTable):
        def __call__(self, command: Command, peer: Peer) -> Reply:
            return Reply(fields={"totalTopicNum": "99"}, body=super().__call__(command, peer).body)

    assert len(await topic_configs(Short(count=4, page=3))) == 4


@pytest.mark.parametrize(("kind", "read"), [("topic", topic_configs), ("group", group_configs)])
async def test_paging_gives_up_on_a_table_that_changes_with_every_page(
    kind: str, read: Callable[[PagedTable], Awaitable[object]]
) -> None:
    class Restless(PagedTable):
        def after_page(self) -> None:
            self.version += 1

    table = Restless(count=7, page=3, kind=kind)
    with pytest.raises(ClientError, match=r"changed 11 times while it was read; try again later"):
        await read(table)
    assert len(table.starts) == PAGING_RESTARTS_MAX + 2


async def test_paging_ends_when_a_broker_repeats_its_first_page() -> None:
    class Deaf(PagedTable):
        def __call__(self, command: Command, peer: Peer) -> Reply:
            command.fields["topicSeq"] = "0"
            return super().__call__(command, peer)

    assert len(await topic_configs(Deaf(count=7, page=3))) == 3


async def test_a_new_topic_goes_to_the_only_cluster() -> None:
    async with fake_cluster(brokers=("a", "b")) as cluster, Admin(cluster.address) as admin:
        tell_clusters(cluster, CLUSTER)
        cluster.on(RequestCode.UPDATE_AND_CREATE_TOPIC, lambda _command, _peer: Reply())
        assert await admin.create_topic("New") == [server.address for server in cluster.brokers]


@pytest.mark.parametrize(("names", "known"), [((), "no cluster"), (("East", "West"), "East, West")])
async def test_create_topic_needs_a_cluster_unless_there_is_exactly_one(names: tuple[str, ...], known: str) -> None:
    async with fake_cluster() as cluster, Admin(cluster.address) as admin:
        tell_clusters(cluster, *names)
        with pytest.raises(UnknownClusterError, match=f"say which cluster; the name servers know {known}"):
            await admin.create_topic("New")
        assert not cluster.seen(RequestCode.UPDATE_AND_CREATE_TOPIC)


async def test_a_broker_and_a_cluster_together_are_refused() -> None:
    async with fake_cluster() as cluster, Admin(cluster.address) as admin:
        with pytest.raises(ClientError, match="either a broker"):
            await admin.create_topic("New", broker=cluster.broker().address, cluster=CLUSTER)


async def test_a_shared_session_is_not_stopped() -> None:
    async with fake_cluster({"T": 1}) as cluster, Session(cluster.address) as session:
        async with Admin(session=session) as admin:
            assert (await admin.route("T")).queues
        assert (await session.routes.refresh("T")).queues


async def test_calls_to_many_report_each_failure() -> None:
    async def call(name: str) -> str:
        if name in "bd":
            raise ServerFailedError(1, "no", name)
        return name.upper()

    assert await call_each("ac", call) == ({"a": "A", "c": "C"}, {})
    results, failures = await call_each("abc", call)
    assert (results, list(failures)) == ({"a": "A", "c": "C"}, ["b"])
    with pytest.raises(ServerFailedError):
        await call_each("b", call)
    with pytest.raises(SomeFailedError, match="2 of 2 failed: b: "):
        await call_each("bd", call)
    with pytest.raises(SomeFailedError, match="1 of 3 failed: b: ") as raised:
        await call_all("abc", call)
    assert raised.value.done == ("a", "c")
    assert isinstance(raised.value.failures["b"], SkyrouteError)


async def test_calls_to_many_are_bounded_in_number() -> None:
    busy = most = 0

    async def call(_name: str) -> None:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await admin.route("T")
        busy -= 1

    async with fake_cluster({"T": 1}) as cluster, Admin(cluster.address) as admin:
        await call_all(map(str, range(3 * CONCURRENT_CALLS_MAX)), call)
    assert most == CONCURRENT_CALLS_MAX
