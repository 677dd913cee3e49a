"""The console's lists follow the name server's watch: no poll happens in these tests after the first."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from skyroute import Consumer, Message, Producer
from skyroute.client.admin import Admin
from skyroute.client.session.session import Session
from skyroute.console.cluster_data import monitor as monitor_module
from skyroute.console.cluster_data.monitor import ClusterMonitor
from skyroute.console.cluster_data.route_changes import NoWatchError, RouteChanges
from skyroute.testing import Cluster, cluster
from skyroute.wire.codes import RequestCode
from tests.support.fake_broker import fake_cluster

NEVER_S = 3600.0
TIMEOUT_S = 10.0
"""For a busy machine; a change takes some tens of milliseconds, and at most a second after another change."""


@pytest.fixture
async def real_cluster() -> AsyncIterator[Cluster]:
    async with cluster(brokers=2, name_servers=2) as started:
        yield started


@asynccontextmanager
async def monitoring(real_cluster: Cluster) -> AsyncIterator[ClusterMonitor]:
    """A monitor that polls only at its start."""
    async with Admin(real_cluster.name_server_addresses) as admin:
        monitor = ClusterMonitor(admin, poll_interval_s=NEVER_S, inventory_poll_s=NEVER_S)
        await monitor.start()
        try:
            await until(monitor, lambda: monitor.inventory.at_s > 0)
            yield monitor
        finally:
            await monitor.stop()


async def until(monitor: ClusterMonitor, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await monitor.changed()


async def test_the_topic_of_a_first_message_is_listed_without_a_poll(real_cluster: Cluster) -> None:
    async with (
        monitoring(real_cluster) as monitor,
        Producer("shop", real_cluster.name_server_address) as producer,
        Admin(real_cluster.name_server_address) as admin,
    ):
        assert "Orders" not in monitor.inventory.topics
        sent = await producer.send(Message("Orders", b"one"))
        await until(monitor, lambda: "Orders" in monitor.inventory.topics)
        broker = sent.queue.broker_name
        config = await admin.topic_config("Orders", monitor.snapshot.masters[broker])
        assert monitor.inventory.topics["Orders"][broker] == config
        assert any("Orders" in server.topics for server in monitor.snapshot.name_servers)
        assert list(monitor.inventory.topics) == sorted(monitor.inventory.topics)


async def test_a_deleted_topic_leaves_the_list_without_a_poll(real_cluster: Cluster) -> None:
    async with monitoring(real_cluster) as monitor, Admin(real_cluster.name_server_address) as admin:
        await admin.create_topic("Orders", cluster="DefaultCluster", attributes={"message.type": "FIFO"})
        await until(monitor, lambda: len(monitor.inventory.topics.get("Orders", ())) == 2)
        assert monitor.inventory.topics["Orders"]["broker-0"].attributes == {"message.type": "FIFO"}
        await admin.delete_topic("Orders", "DefaultCluster")
        await until(monitor, lambda: "Orders" not in monitor.inventory.topics)
        assert not any("Orders" in server.topics for server in monitor.snapshot.name_servers)


async def test_the_group_of_a_first_consumer_is_listed_without_a_poll(real_cluster: Cluster) -> None:
    async with monitoring(real_cluster) as monitor, Admin(real_cluster.name_server_address) as admin:
        await admin.create_topic("Orders", cluster="DefaultCluster")  # consumers connect to the brokers of their topics
        before = set(monitor.inventory.groups)
        consumer = Consumer("mailing", real_cluster.name_server_address)
        consumer.subscribe("Orders", "*", lambda _: None)
        async with consumer:
            await until(monitor, lambda: "mailing" in monitor.inventory.groups)
        assert set(monitor.inventory.groups) == before | {"mailing"}


async def test_too_many_changes_are_read_as_one_inventory(
    real_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor_module, "CONFIG_REQUESTS_MAX", 0)
    async with monitoring(real_cluster) as monitor, Admin(real_cluster.name_server_address) as admin:
        first = monitor.inventory.at_s
        await admin.create_topic("Orders", cluster="DefaultCluster")
        await until(monitor, lambda: "Orders" in monitor.inventory.topics)
        assert monitor.inventory.at_s > first


async def test_a_name_server_without_watches_is_asked_once_until_it_was_away() -> None:
    async with fake_cluster() as apache, Session(apache.address) as session:
        changes = RouteChanges(session)
        for name_servers in ([apache.address], [apache.address], []):
            with pytest.raises(NoWatchError):
                await changes.wait(name_servers)
        assert len(apache.seen(RequestCode.WATCH_ROUTES)) == 1
        with pytest.raises(NoWatchError):
            await changes.wait([apache.address])
        assert len(apache.seen(RequestCode.WATCH_ROUTES)) == 2
