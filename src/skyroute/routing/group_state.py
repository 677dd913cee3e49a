"""What the table keeps of one broker group, and what a broker's word would change in it.

Records for whoever keeps a table, `RouteTable` or a replay of the journal: they write them, and everyone else is given
values made from them. The methods of a group answer and compare; they never write, so that a registration can be
weighed before anything is invalidated.
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
"""More bytes than any table grows by."""


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
    knows_acting: bool
    """The broker says whether slaves may act for a master, yes or no; brokers before 5.0 do not."""
    fingerprint: bytes | None = None
    filter_servers: tuple[str, ...] = ()
    confirmed: bool = True
    """It was heard from in this table's life; a restored one has yet to be."""
    restored: bool = False
    """Its topics are from before a restart, and it has not sent its whole table since."""
    ticket: int = 0
    """Of its last registration; a later registration has a larger one."""
    held: bool = False
    """Its lease ran out once already and was lengthened."""

    @property
    def key(self) -> BrokerKey:
        return BrokerKey(self.group.cluster, self.address)

    def renew(self, now: float) -> None:
        """Believe it for another lease."""
        self.expires_at = now + self.lease_s
        self.held = False


@dataclass(frozen=True, slots=True)
class QueueDelta:
    """What would change in a group's queues and mappings."""

    added: Mapping[str, QueueSettings] = field(default_factory=dict)
    changed: Mapping[str, tuple[QueueSettings, QueueSettings]] = field(default_factory=dict)
    removed: Mapping[str, QueueSettings] = field(default_factory=dict)
    restored: frozenset[str] = frozenset()
    """Topics that an operator had made read-only and that may be written again."""
    mappings: Mapping[str, tuple[StaticMapping | None, StaticMapping | None]] = field(default_factory=dict)
    queue_growth_bytes: int = UNKNOWN
    """Approximate growth of the table by queues, in bytes. If it is not given, every name is read."""
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
    """Brokers of one name, and what they serve together."""

    name: str
    cluster: str
    acting_master: bool = False
    zone: str | None = None
    members: dict[int, GroupMember] = field(default_factory=dict)
    queues: dict[str, QueueSettings] = field(default_factory=dict)
    """As the brokers gave them; `settings` is what clients may use."""
    forbidden: set[str] = field(default_factory=set)
    """Topics that brokers would let clients write, and an operator does not."""
    mappings: dict[str, StaticMapping] = field(default_factory=dict)
    """Only for topics that are in `queues`."""
    queue_bytes: int = 0
    """Approximate memory of `queues`, by `registration_bytes`."""
    replacements: int = 0
    """How often `queues` was replaced by another dictionary."""

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
        """What clients may do with a topic now.

        Write permission is worked out here and not stored: it comes back by itself with the master or the operator's
        word, and to exactly what the broker had registered.
        """
        settings = self.queues.get(topic)
        if settings is not None and (topic in self.forbidden or (self.acting_master and MASTER_ID not in self.members)):
            return settings.read_only()
        return settings

    def writable(self) -> set[str]:
        """Topics whose brokers let clients write."""
        return {topic for topic, settings in self.queues.items() if settings.permission & _WRITE}

    def to_value(self) -> BrokerGroup:
        addresses = {member.broker_id: member.address for member in self.by_id()}
        return BrokerGroup(self.name, self.cluster, addresses, acting_master=self.acting_master, zone=self.zone)

    def forget_fingerprints(self) -> None:
        for member in self.members.values():
            member.fingerprint = None

    def compare(self, table: TopicTable, *, whole: bool, delete_missing: bool) -> QueueDelta:
        """What recording a broker's table would change.

        Args:
            table: What the broker sent.
            whole: Its word replaces what is known; otherwise it only fills what is missing, so that a heartbeat does
                not undo an operator's ban on writes.
            delete_missing: Topics it does not name are gone.
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
        """What announcing one topic would change. It lifts an operator's ban, as any new word on a topic does."""
        before = self.queues.get(topic)
        return QueueDelta(
            added={topic: settings} if before is None else {},
            changed={topic: (before, settings)} if before is not None and before != settings else {},
            restored=frozenset({topic} & self.forbidden if settings.permission & _WRITE else ()),
        )

    def compare_without(self, topics: Mapping[str, QueueSettings]) -> QueueDelta:
        """What deleting these topics, all of which the group has, would change."""
        return QueueDelta(removed=topics, mappings=self._mappings_gone(topics))

    def compare_empty(self) -> QueueDelta:
        """What deleting all topics would change."""
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
        named = self.mappings.keys() & topics.keys() if self.mappings else ()
        return {topic: (self.mappings[topic], None) for topic in named}
