"""State of one broker group: its members, their leases, its topics.

Only `RouteTable` and a replay of the journal write these records; readers get values made from them. The methods of a
group look up and compare. They never write: a registration is checked before anything changes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from skyroute.routing.memory_estimate import mapping_bytes, topic_bytes
from skyroute.routing.registration import DataVersion, TopicTable
from skyroute.routing.topology import MASTER_ID, BrokerGroup, BrokerKey, Permission, QueueSettings, StaticMapping

# A plain number, because `&` on an IntFlag builds an object, and a registration may carry ten thousand topics.
_WRITE: Final = int(Permission.WRITE)

UNKNOWN: Final = 1 << 63
"""Marks a growth that is not computed yet; larger than any table."""


@dataclass(slots=True, eq=False)
class GroupMember:
    """One broker of a group, and its lease."""

    group: "GroupState"
    broker_id: int
    address: str
    ha_address: str | None
    version: DataVersion
    lease_s: float
    expires_at: float
    connection: int
    """The newest connection that it registered on."""
    knows_acting: bool
    """Its registrations have the acting master flag, true or false; those of brokers before 5.0 do not."""
    fingerprint: bytes | None = None
    filter_servers: tuple[str, ...] = ()
    confirmed: bool = True
    """False for a restored broker until its first request."""
    restored: bool = False
    """Its topics are from a snapshot, and it has not sent its whole table since."""
    ticket: int = 0
    """Arrival number of its last registration."""
    older_connection: int | None = None
    """An older connection that it registered on last. The broker is removed when both are closed."""
    held: bool = False
    """Its lease expired and was extended by the mass expiry guard."""

    @property
    def connections(self) -> tuple[int, ...]:
        """The connections that keep it registered."""
        return (self.connection,) if self.older_connection is None else (self.connection, self.older_connection)

    @property
    def key(self) -> BrokerKey:
        return BrokerKey(self.group.cluster, self.address)

    def renew(self, now: float) -> None:
        """Start the lease again."""
        self.expires_at = now + self.lease_s
        self.held = False


@dataclass(frozen=True, slots=True)
class QueueDelta:
    """A change of a group's queues and mappings."""

    added: Mapping[str, QueueSettings] = field(default_factory=dict)
    changed: Mapping[str, tuple[QueueSettings, QueueSettings]] = field(default_factory=dict)
    removed: Mapping[str, QueueSettings] = field(default_factory=dict)
    restored: frozenset[str] = frozenset()
    """Topics that an operator had made read-only and that become writable again."""
    mappings: Mapping[str, tuple[StaticMapping | None, StaticMapping | None]] = field(default_factory=dict)
    queue_growth_bytes: int = UNKNOWN
    """Approximate growth of the table by queues, in bytes. Computed from all names if it is not given."""
    growth_bytes: int = field(init=False)
    """Approximate growth of the table, in bytes."""

    def __post_init__(self) -> None:
        if self.queue_growth_bytes == UNKNOWN:
            object.__setattr__(self, "queue_growth_bytes", topic_bytes(self.added) - topic_bytes(self.removed))
        mapped = sum(mapping_bytes(after) - mapping_bytes(before) for before, after in self.mappings.values())
        object.__setattr__(self, "growth_bytes", self.queue_growth_bytes + mapped)

    @property
    def growth(self) -> int:
        return len(self.added) - len(self.removed)


@dataclass(slots=True, eq=False)
class GroupState:
    """A broker group: its members and the topics they serve."""

    name: str
    cluster: str
    acting_master: bool = False
    zone: str | None = None
    members: dict[int, GroupMember] = field(default_factory=dict)
    queues: dict[str, QueueSettings] = field(default_factory=dict)
    """As registered; `settings` is what clients may use."""
    forbidden: set[str] = field(default_factory=set)
    """Writable topics to which an operator forbade writes."""
    mappings: dict[str, StaticMapping] = field(default_factory=dict)
    """Only for topics that are in `queues`."""
    queue_bytes: int = 0
    """Approximate memory of `queues`, by `memory_estimate`."""

    @property
    def smallest(self) -> tuple[int, str] | None:
        """The smallest id and its address."""
        if not self.members:
            return None
        broker_id = min(self.members)
        return broker_id, self.members[broker_id].address

    @property
    def master(self) -> GroupMember | None:
        return self.members.get(MASTER_ID)

    def by_id(self) -> Iterator[GroupMember]:
        return (self.members[broker_id] for broker_id in sorted(self.members))

    def member_at(self, address: str) -> GroupMember | None:
        return next((member for member in self.members.values() if member.address == address), None)

    def settings(self, topic: str) -> QueueSettings | None:
        """The queues of a topic with the permission in force now.

        Write permission is computed and not stored: when the master returns, or the operator restores writes, it is
        again what the broker registered.
        """
        settings = self.queues.get(topic)
        if settings is not None and (topic in self.forbidden or (self.acting_master and MASTER_ID not in self.members)):
            return settings.read_only()
        return settings

    def writable(self) -> set[str]:
        """Topics that are registered as writable."""
        return {topic for topic, settings in self.queues.items() if settings.permission & _WRITE}

    def to_value(self) -> BrokerGroup:
        addresses = {member.broker_id: member.address for member in self.by_id()}
        return BrokerGroup(self.name, self.cluster, addresses, acting_master=self.acting_master, zone=self.zone)

    def forget_fingerprints(self) -> None:
        for member in self.members.values():
            member.fingerprint = None

    def compare(self, table: TopicTable, *, whole: bool, delete_missing: bool) -> QueueDelta:
        """Return what a broker's table would change.

        Args:
            table: What the broker sent.
            whole: It replaces known topics; otherwise it only adds missing ones, so that a repeated registration does
                not restore writes that an operator forbade.
            delete_missing: Remove topics that are not in the table.
        """
        queues, topics = self.queues, table.topics
        added, changed, removed = topics, {}, {}
        if queues and whole:
            different = {topic: after for topic, after in topics.items() if queues.get(topic) != after}
            added = {topic: after for topic, after in different.items() if topic not in queues}
            changed = {topic: (queues[topic], after) for topic, after in different.items() if topic in queues}
        elif queues:
            added = {topic: after for topic, after in topics.items() if topic not in queues}
        if delete_missing and not table.mappings:
            removed = {topic: before for topic, before in queues.items() if topic not in topics}
        restored, mappings = self.restored_by(table, whole=whole), self.remapped_by(table, removed, whole=whole)
        return QueueDelta(added, changed, removed, restored, mappings)

    def restored_by(self, table: TopicTable, *, whole: bool) -> frozenset[str]:
        """Topics that an operator had made read-only and that a broker's table makes writable again."""
        if not whole or not self.forbidden:
            return frozenset()
        named = self.forbidden & table.topics.keys()
        return frozenset(topic for topic in named if table.topics[topic].permission & _WRITE)

    def remapped_by(
        self, table: TopicTable, removed: Mapping[str, QueueSettings], *, whole: bool
    ) -> dict[str, tuple[StaticMapping | None, StaticMapping | None]]:
        """Mappings that change with a broker's table, and with the topics that it removes."""
        if not self.mappings and not table.mappings:
            return {}
        return self._compare_mappings(table, whole=whole) | self._mappings_gone(removed)

    def compare_one(self, topic: str, settings: QueueSettings) -> QueueDelta:
        """Return what registering one topic would change. It restores forbidden writes, as a new version does."""
        before = self.queues.get(topic)
        return QueueDelta(
            added={topic: settings} if before is None else {},
            changed={topic: (before, settings)} if before is not None and before != settings else {},
            restored=frozenset({topic} & self.forbidden if settings.permission & _WRITE else ()),
        )

    def compare_without(self, topics: Mapping[str, QueueSettings]) -> QueueDelta:
        """Return what deleting these topics, which the group has, would change."""
        return QueueDelta(removed=topics, mappings=self._mappings_gone(topics))

    def compare_empty(self) -> QueueDelta:
        """Return what deleting all topics would change."""
        gone = {topic: (mapping, None) for topic, mapping in self.mappings.items()}
        return QueueDelta(removed=self.queues, mappings=gone, queue_growth_bytes=-self.queue_bytes)

    def _compare_mappings(
        self, table: TopicTable, *, whole: bool
    ) -> dict[str, tuple[StaticMapping | None, StaticMapping | None]]:
        known = self.mappings
        return {
            topic: (known.get(topic), mapping)
            for topic, mapping in table.mappings.items()
            if (topic not in known or (whole and known[topic] != mapping))
            and (topic in self.queues or topic in table.topics)
        }

    def _mappings_gone(
        self, topics: Mapping[str, QueueSettings]
    ) -> dict[str, tuple[StaticMapping | None, StaticMapping | None]]:
        return {topic: (self.mappings[topic], None) for topic in self.mappings.keys() & topics.keys()}
