"""The pytest plugin. pytest loads it when skyroute is installed; servers are imported when a test uses the fixture."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from skyroute.testing.clusters import Cluster


@pytest.fixture
def rocketmq() -> "Iterator[Cluster]":
    """A name server and a broker for one test; clients connect to `rocketmq.name_server_address`."""
    from skyroute.testing.clusters import cluster  # noqa: PLC0415 - most pytest runs need no server

    with cluster(in_memory=True) as started:
        yield started
