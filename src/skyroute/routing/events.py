"""What a change of the route table reports.

These are values for log, journal and notification, and a format that others build on: every event says which broker
group it concerns, why it happened, and what was there before and is there now. An event is emitted only for a real
change; applying the events of a table in order to an empty one gives the same table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from skyroute.routing.registration import DataVersion
from skyroute.routing.topology import QueueSettings, StaticMapping


class Cause(StrEnum):
    """Why a route changed."""

    REGISTERED = "registered"
    """A broker's own word, by registration."""
    UNREGISTERED = "unregistered"
    """A broker said goodbye."""
    CONNECTION_CLOSED = "connection_closed"
    LEASE_EXPIRED = "lease_expired"
    NOT_CONFIRMED = "not_confirmed"
    """Restored after a restart, and not heard from since."""
    ADDRESS_REPLACED = "address_replaced"
    """Another address registered under the same id, or the same address under another name."""
    TOPIC_REGISTERED = "topic_registered"
    """A single topic was announced outside a registration."""
    TOPIC_DELETED = "topic_deleted"
    WRITES_FORBIDDEN = "writes_forbidden"
    WRITES_RESTORED = "writes_restored"
    GROUP_GONE = "group_gone"
    """The last broker of the group left."""
    RESTORED = "restored"
    """Known from before a restart of the name server."""
    HEARTBEAT = "heartbeat"
    """A broker's sign of life that says nothing of what it serves."""
    MASS_EXPIRY = "mass_expiry"
    """More leases would have ended at once than the operator finds credible."""


@dataclass(frozen=True, slots=True)
class BrokerJoined:
    """A broker is in the table that was not there before."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str | None
    version: DataVersion
    lease_s: float
    connection: int
    cause: Cause = Cause.REGISTERED


@dataclass(frozen=True, slots=True)
class BrokerLeft:
    """A broker is gone from the table, and the filter servers beside it."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    cause: Cause
    version: DataVersion
    connection: int
    """Who held the lease; when it expired, the caller may close that connection."""
    connection_is_unused: bool
    """No other broker is left that speaks through the same connection."""


@dataclass(frozen=True, slots=True)
class BrokerChanged:
    """A broker stayed and is known by another id, replication address or table version."""

    cluster: str
    broker_name: str
    address: str
    id_before: int
    id_after: int
    ha_address_before: str | None
    ha_address_after: str | None
    version_before: DataVersion
    version_after: DataVersion
    cause: Cause = Cause.REGISTERED


@dataclass(frozen=True, slots=True)
class BrokerConfirmed:
    """A broker that was restored after a restart has been heard from. No route is another one by it."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    version: DataVersion
    connection: int
    cause: Cause


@dataclass(frozen=True, slots=True)
class LeaseHeld:
    """A broker's lease ran out, and it is believed once more for as long. No route is another one by it."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    version: DataVersion
    lease_s: float
    cause: Cause = Cause.MASS_EXPIRY


@dataclass(frozen=True, slots=True)
class GroupChanged:
    """What holds for a whole broker group changed. A new group starts from no cluster (None).

    Its brokers, topics and mappings move with a group to another cluster.
    """

    broker_name: str
    cluster_before: str | None
    cluster_after: str | None
    """None: the group is gone."""
    acting_master_before: bool
    acting_master_after: bool
    zone_before: str | None
    zone_after: str | None
    cause: Cause


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """Queues of one broker group changed. Settings are as the broker gave them; see `WritesChanged` for the rest."""

    cluster: str
    broker_name: str
    cause: Cause
    version: DataVersion | None
    """The version of the table that brought it, where one did."""
    added: Mapping[str, QueueSettings]
    changed: Mapping[str, tuple[QueueSettings, QueueSettings]]
    """Topic to its settings before and after."""
    removed: Mapping[str, QueueSettings]


@dataclass(frozen=True, slots=True)
class WritesChanged:
    """An operator took write permission from topics of a group, or it came back.

    Only topics that their broker lets clients write are named, for the others nothing changes. That a group with an
    acting master cannot be written while it has no master is not told here: it follows from who is in the group. A
    topic whose settings change, or that is removed, is no longer forbidden.
    """

    cluster: str
    broker_name: str
    cause: Cause
    forbidden: frozenset[str]
    """Topics that lost it now."""
    restored: frozenset[str]
    """Topics that have it again."""


@dataclass(frozen=True, slots=True)
class MappingsChanged:
    """A broker group's parts of static topics changed."""

    cluster: str
    broker_name: str
    cause: Cause
    changed: Mapping[str, tuple[StaticMapping | None, StaticMapping | None]]
    """Topic to its mapping before and after."""


@dataclass(frozen=True, slots=True)
class FilterServersChanged:
    """The filter servers beside one broker changed."""

    cluster: str
    broker_name: str
    address: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    cause: Cause


@dataclass(frozen=True, slots=True)
class SmallestIdChanged:
    """Another broker now has the smallest id of its group. The others of the group may want to hear of it."""

    cluster: str
    broker_name: str
    cause: Cause
    acting_master: bool
    smallest_id: int
    smallest_address: str
    others: tuple[str, ...]
    """Addresses of the group's other brokers."""
    offline_address: str | None
    """The broker that had the smallest id and left."""
    ha_address: str | None
    """The replication address of a newcomer."""


RouteEvent = (
    BrokerJoined
    | BrokerLeft
    | BrokerChanged
    | BrokerConfirmed
    | LeaseHeld
    | GroupChanged
    | TopicsChanged
    | WritesChanged
    | MappingsChanged
    | FilterServersChanged
    | SmallestIdChanged
)
