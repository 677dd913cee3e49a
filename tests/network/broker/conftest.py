"""Brokers for tests: real ones, on loopback, in the test's own loop."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.network.broker.clusters import Cluster, cluster_in
from tests.support.connections import AsyncConnection


@pytest.fixture
async def empty_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A name server; the test starts the brokers, with the settings, the clock and the disk that it wants."""
    async with cluster_in(tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def cluster(empty_cluster: Cluster) -> Cluster:
    """A name server and one broker whose clock only the test moves."""
    await empty_cluster.start()
    return empty_cluster


@pytest.fixture
async def line(cluster: Cluster) -> AsyncConnection:
    """A connection to that broker."""
    return await cluster.line()
