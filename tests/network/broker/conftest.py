"""Real brokers on loopback, in the test's event loop."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.network.broker.clusters import Cluster, cluster_in
from tests.support.connections import AsyncConnection


@pytest.fixture
async def empty_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A name server without brokers; the test starts them with its own settings, clock and disk."""
    async with cluster_in(tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def cluster(empty_cluster: Cluster) -> Cluster:
    """A name server and one broker with a manual clock."""
    await empty_cluster.start()
    return empty_cluster


@pytest.fixture
async def line(cluster: Cluster) -> AsyncConnection:
    """A raw connection to the broker."""
    return await cluster.line()
