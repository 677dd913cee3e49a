"""The immutable values of a route."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Final, NamedTuple

MASTER_ID: Final = 0
"""The broker id of a group's master; every larger id is a slave."""
QUEUES_MAX: Final = 65_536
"""The most queues of a topic on one broker group. Clients list every queue, so counts are checked."""
ROUTE_QUEUES_MAX: Final = 262_144
"""The most queues of a topic on all broker groups together."""
ROUTE_FILTER_SERVERS_MAX: Final = 10_000
"""The most filter servers of all brokers in one route."""


class Permission(IntFlag):
    """What clients may do with a queue. Unknown bits from brokers are kept."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8


class TopicFlag(IntFlag):
    """Flags of a topic that only the lists of unit topics use."""

    UNIT = 1
    UNIT_SUBSCRIPTION = 2


class QueueSettings(NamedTuple):
    """The queues of one topic on one broker group.

    A named tuple, not a dataclass: a heartbeat compares ten thousand of them.
    """

    read_queues: int
    write_queues: int
    permission: int
    sys_flag: int = 0

    def is_within_bounds(self) -> bool:
        """Whether both queue counts are from 0 to `QUEUES_MAX`."""
        return 0 <= self.read_queues <= QUEUES_MAX and 0 <= self.write_queues <= QUEUES_MAX

    def read_only(self) -> "QueueSettings":
        # As int: the complement of an IntFlag may lack unknown bits.
        return self._replace(permission=self.permission & ~int(Permission.WRITE))


class BrokerKey(NamedTuple):
    """One broker process: an address within a cluster."""

    cluster: str
    address: str


@dataclass(frozen=True, slots=True)
class StaticMapping:
    """A static topic's logical queues on one broker group, mapped to physical queues."""

    topic: str
    broker_name: str
    total_queues: int
    epoch: int
    scope: str = "__global__"
    dirty: bool = False
    current_ids: Mapping[int, int] = field(default_factory=dict)
    """Logical queue id to physical queue id."""


@dataclass(frozen=True, slots=True)
class BrokerGroup:
    """Brokers of one name: a master and its slaves, by broker id."""

    name: str
    cluster: str
    addresses: Mapping[int, str]
    acting_master: bool = False
    """The slave with the smallest id may act for a missing master."""
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class BrokerQueues:
    """The queues of one topic on one broker group, as clients may use them now."""

    broker_name: str
    settings: QueueSettings


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Everything a client needs to reach a topic."""

    groups: tuple[BrokerGroup, ...]
    queues: tuple[BrokerQueues, ...]
    filter_servers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Broker address to its filter servers."""
    mappings: Mapping[str, StaticMapping] = field(default_factory=dict)
    """Broker name to its mapping of a static topic."""
    order_config: str | None = None

    @property
    def is_within_bounds(self) -> bool:
        """Whether a client could use its static queues and filter servers, which brokers may name without end."""
        mapped = sum(len(mapping.current_ids) for mapping in self.mappings.values())
        servers = sum(map(len, self.filter_servers.values()))
        return mapped <= ROUTE_QUEUES_MAX and servers <= ROUTE_FILTER_SERVERS_MAX


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All broker groups and clusters at one instant."""

    groups: tuple[BrokerGroup, ...]
    clusters: Mapping[str, tuple[str, ...]]
    """Cluster name to the names of its groups."""
