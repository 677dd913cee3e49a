"""A whole cluster inside a test.

    from skyroute.testing import cluster

    with cluster() as c:
        ...  # anything that speaks RocketMQ's protocol, pointed at c.name_server_address

With pytest there is nothing to import: a test that takes an argument `rocketmq` is given a cluster of its own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skyroute.testing.clusters import Cluster as Cluster
    from skyroute.testing.clusters import cluster as cluster

__all__ = ["Cluster", "cluster"]


def __getattr__(name: str) -> Any:
    # pytest imports this package in every run, also where no test asks for a cluster.
    if name not in __all__:
        raise AttributeError(f"module 'skyroute.testing' has no attribute {name!r}")
    return getattr(import_module("skyroute.testing.clusters"), name)
