"""What pytest finds by itself once skyroute is installed. It imports next to nothing until a test asks for it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from skyroute.testing.clusters import Cluster


@pytest.fixture
def rocketmq() -> "Iterator[Cluster]":
    """A name server and a broker for this test alone: `rocketmq.name_server_address` is where clients begin."""
    from skyroute.testing.clusters import cluster  # noqa: PLC0415 - most runs of pytest have no use for it

    with cluster(in_memory=True) as started:
        yield started
