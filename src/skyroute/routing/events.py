"""Events of the route table: values for the log, the journal and notifications.

A public format: every event has its broker group, its cause, and the state before and after. An event is emitted only
for a real change. Applying the events of a table in order to an empty one gives the same table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from skyroute.routing.registration import DataVersion
from skyroute.routing.topology import QueueSettings, StaticMapping


class Cause(StrEnum):
    """Why a route changed."""

    REGISTERED = "registered"
    """By a broker's registration."""
    UNREGISTERED = "unregistered"
    """A broker sent UNREGISTER_BROKER, as on shutdown."""
    CONNECTION_CLOSED = "connection_closed"
    LEASE_EXPIRED = "lease_expired"
    NOT_CONFIRMED = "not_confirmed"
    """The broker was restored after a restart and sent nothing before its lease expired."""
    ADDRESS_REPLACED = "address_replaced"
    """Another address registered under the same id, or the same address under another name."""
    TOPIC_REGISTERED = "topic_registered"
    """By REGISTER_TOPIC_IN_NAMESRV: one topic, outside a registration."""
    TOPIC_DELETED = "topic_deleted"
    WRITES_FORBIDDEN = "writes_forbidden"
    WRITES_RESTORED = "writes_restored"
    GROUP_GONE = "group_gone"
    """The last broker of the group left."""
    RESTORED = "restored"
    """From the snapshot, at the start of the name server."""
    HEARTBEAT = "heartbeat"
    """By a heartbeat or another request without topics."""
    MASS_EXPIRY = "mass_expiry"
    """More leases expired at once than `massExpiryPercent` allows."""


@dataclass(frozen=True, slots=True)
class BrokerJoined:
    """A broker was added."""

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
    """A broker was removed, with its filter servers."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    cause: Cause
    version: DataVersion
    unused_connections: tuple[int, ...]
    """Connections that it registered on, and no other broker did; if the lease expired, the caller may close them."""


@dataclass(frozen=True, slots=True)
class BrokerChanged:
    """A registered broker has another id, replication address or table version."""

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
    """A restored broker sent its first request since the restart. No route changes."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    version: DataVersion
    connection: int
    cause: Cause


@dataclass(frozen=True, slots=True)
class LeaseHeld:
    """A broker's expired lease was extended once. No route changes."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    version: DataVersion
    lease_s: float
    cause: Cause = Cause.MASS_EXPIRY


@dataclass(frozen=True, slots=True)
class GroupChanged:
    """Cluster, zone or acting master flag of a broker group changed. A new group had no cluster (None).

    A group moves to another cluster with its brokers, topics and mappings.
    """

    broker_name: str
    cluster_before: str | None
    cluster_after: str | None
    """None: the group was removed."""
    acting_master_before: bool
    acting_master_after: bool
    zone_before: str | None
    zone_after: str | None
    cause: Cause


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """Queues of one broker group changed. Settings are as registered; `WritesChanged` has operators' changes."""

    cluster: str
    broker_name: str
    cause: Cause
    version: DataVersion | None
    """Version of the registered table; None for other causes."""
    added: Mapping[str, QueueSettings]
    changed: Mapping[str, tuple[QueueSettings, QueueSettings]]
    """Topic to its settings before and after."""
    removed: Mapping[str, QueueSettings]


@dataclass(frozen=True, slots=True)
class WritesChanged:
    """An operator forbade writes to topics of a group, or they were restored.

    Only topics that their broker registered as writable are named. A group with an acting master is read-only while it
    has no master; that follows from its members and is not an event. A topic whose settings change, or that is removed,
    is no longer forbidden.
    """

    cluster: str
    broker_name: str
    cause: Cause
    forbidden: frozenset[str]
    """Topics that became read-only."""
    restored: frozenset[str]
    """Topics that are writable again."""


@dataclass(frozen=True, slots=True)
class MappingsChanged:
    """A broker group's mappings of static topics changed."""

    cluster: str
    broker_name: str
    cause: Cause
    changed: Mapping[str, tuple[StaticMapping | None, StaticMapping | None]]
    """Topic to its mapping before and after."""


@dataclass(frozen=True, slots=True)
class FilterServersChanged:
    """The filter servers of one broker changed."""

    cluster: str
    broker_name: str
    address: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    cause: Cause


@dataclass(frozen=True, slots=True)
class SmallestIdChanged:
    """The smallest broker id of a group changed. Its brokers may be notified."""

    cluster: str
    broker_name: str
    cause: Cause
    acting_master: bool
    smallest_id: int
    smallest_address: str
    others: tuple[str, ...]
    """Addresses of the group's other brokers."""
    offline_address: str | None
    """Address of the broker that had the smallest id and left."""
    ha_address: str | None
    """The replication address of a new broker with the smallest id."""


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


@dataclass(frozen=True, slots=True)
class RegistrationOutcome:
    """Events of a registration, and the fields of its response."""

    events: tuple[RouteEvent, ...] = ()
    superseded: bool = False
    """A broker of a newer epoch has this id: nothing was changed, and the response has no fields."""
    overtaken: bool = False
    """A newer registration was applied before: only the lease was renewed."""
    master_address: str | None = None
    master_ha_address: str | None = None
    """Set for a slave whose master is alive."""
