"""Requests of a broker to name servers and other brokers."""

import asyncio

import pytest

from skyroute.broker.cluster import peer_brokers
from skyroute.broker.cluster.topic_routes import TopicRoutes
from tests.network.broker.clusters import Cluster
from tests.support.clock import ManualClock


async def test_a_name_server_that_does_not_respond_is_asked_last(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_brokers, "CALL_S", 0.3)
    asked = 0

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        while await reader.read(65_536):
            asked += 1
        writer.close()

    await cluster.add_topic("T", 3)
    async with await asyncio.start_server(read, "127.0.0.1", 0) as silent:
        address = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        clock = ManualClock()
        peers = peer_brokers.PeerBrokers((address, cluster.name_server_address), clock.monotonic)
        routes = TopicRoutes(peers, clock.monotonic)
        for _ in range(3):
            route = await routes.find("T")
            assert route is not None
            assert [queues.settings.read_queues for queues in route.queues] == [3]
            clock.advance(60)
        assert asked == 1
        await peers.stop()
