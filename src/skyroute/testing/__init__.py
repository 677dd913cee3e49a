"""A RocketMQ cluster in a test: name server and broker in the test process.

    from skyroute.testing import cluster

    with cluster() as c:
        ...  # connect any RocketMQ client to c.name_server_address

With pytest, use the fixture `rocketmq`: it starts a cluster per test and needs no import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skyroute.testing.clusters import Cluster as Cluster
    from skyroute.testing.clusters import cluster as cluster

__all__ = ["Cluster", "cluster"]


def __getattr__(name: str) -> Any:
    # pytest imports this package in every run, even without a test that uses a cluster.
    if name not in __all__:
        raise AttributeError(f"module 'skyroute.testing' has no attribute {name!r}")
    return getattr(import_module("skyroute.testing.clusters"), name)
