"""The read side of the route table: brokers, broker groups, clusters and topics as they are now."""

from collections import deque
from collections.abc import KeysView, Mapping
from types import MappingProxyType
from typing import NamedTuple

from skyroute.routing.group_state import GroupState
from skyroute.routing.leases import Leases
from skyroute.routing.preparation import Preparation
from skyroute.routing.registration import DataVersion
from skyroute.routing.snapshot import TableSnapshot, snapshot_of
from skyroute.routing.topic_index import TopicIndex
from skyroute.routing.topology import BrokerGroup, BrokerKey, QueueSettings, StaticMapping


class TableStats(NamedTuple):
    """Sizes of a route table, for metrics."""

    clusters: int
    groups: int
    brokers: int
    unconfirmed: int
    """Brokers restored after a restart that have not sent anything since."""
    held: int
    """Brokers whose expired leases were extended by the mass expiry guard."""
    topics: int
    topic_entries: int
    registration_bytes: int
    """Approximate memory of all registrations, bounded by `registrationBytesMax`."""
    lease_age_max_s: float
    """Time since the least recent renewal of a lease."""
    lease_left_min_s: float
    """Time until the first lease expires."""


class RouteTableView:
    """What is in the route table. Methods return values or live views; nothing here writes."""

    def __init__(self) -> None:
        self._groups: dict[str, GroupState] = {}
        self._clusters: dict[str, dict[str, None]] = {}
        self._leases = Leases()
        self._index = TopicIndex()
        self._preparations: dict[str, list[Preparation]] = {}
        """Group name to the registrations that are being prepared."""
        self._unswept: deque[tuple[str, list[str]]] = deque()
        """Group names with topics under which the index may still list them."""
        self._topic_entries = 0
        self._registration_bytes = 0

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} clusters={len(self._clusters)} groups={len(self._groups)}"
            f" brokers={len(self._leases)} connections={self._leases.connection_count} topics={len(self._index)}"
            f" topic_entries={self._topic_entries}>"
        )

    @property
    def topics(self) -> KeysView[str]:
        """Every topic, as a live view. While `is_swept` is false, it may have topics that no group serves."""
        return self._index.topics

    @property
    def topic_edits(self) -> int:
        """Number of writes to `topics`."""
        return self._index.edits

    @property
    def is_swept(self) -> bool:
        """Whether the index lists only groups that serve the topic: no `sweep` is due and no `prepare` is running."""
        return not self._unswept and not self._preparations

    @property
    def groups(self) -> tuple[BrokerGroup, ...]:
        return tuple(group.to_value() for group in self._groups.values())

    @property
    def clusters(self) -> dict[str, tuple[str, ...]]:
        """Cluster name to the names of its groups."""
        return {cluster: tuple(names) for cluster, names in self._clusters.items()}

    @property
    def group_names(self) -> KeysView[str]:
        """The name of every group, as a live view."""
        return self._groups.keys()

    @property
    def cluster_names(self) -> KeysView[str]:
        """The name of every cluster, as a live view."""
        return self._clusters.keys()

    def groups_of(self, cluster: str) -> KeysView[str]:
        """Names of the groups in one cluster, as a live view."""
        return self._clusters.get(cluster, {}).keys()

    def group(self, broker_name: str) -> BrokerGroup | None:
        group = self._groups.get(broker_name)
        return None if group is None else group.to_value()

    def serving(self, topic: str) -> tuple[str, ...]:
        """Names of the groups that serve a topic, in the order in which they began to."""
        names = self._index.serving(topic)
        if self._unswept or self._preparations:  # `is_swept`, inlined for speed
            return tuple(name for name in names if topic in self.topics_of(name))
        return names

    def own_name(self, topic: str) -> str:
        """Return the table's own object of a topic's name, for another table that keeps it no longer than this one."""
        return self._index.own_name(topic)

    def topics_of(self, broker_name: str) -> KeysView[str]:
        """Every topic of a group, as a live view."""
        return self.queues_of(broker_name).keys()

    def queues_of(self, broker_name: str) -> Mapping[str, QueueSettings]:
        """Topic to its settings as registered, as a live view; `settings` is what clients may use."""
        group = self._groups.get(broker_name)
        return MappingProxyType({} if group is None else group.queues)

    def settings(self, broker_name: str, topic: str) -> QueueSettings | None:
        """The queues of a topic on one group, with the permission in force now."""
        group = self._groups.get(broker_name)
        return None if group is None else group.settings(topic)

    def registered(self, topic: str) -> tuple[tuple[str, ...], tuple[QueueSettings, ...], list[StaticMapping]]:
        """Names of the groups that serve a topic, its queues on each of them, and its mappings if it is static.

        The queues are as registered, without writes that an operator forbade, whether or not a group has a master now.
        """
        names = self.serving(topic)
        queues: list[QueueSettings] = []
        mappings: list[StaticMapping] = []
        for name in names:
            group = self._groups[name]
            settings = group.queues[topic]
            queues.append(settings.read_only() if topic in group.forbidden else settings)
            if topic in group.mappings:
                mappings.append(group.mappings[topic])
        return names, tuple(queues), mappings

    def mapping(self, broker_name: str, topic: str) -> StaticMapping | None:
        group = self._groups.get(broker_name)
        return None if group is None else group.mappings.get(topic)

    def filter_servers(self, broker_name: str) -> dict[str, tuple[str, ...]]:
        """Broker address to its filter servers, for brokers with any."""
        group = self._groups.get(broker_name)
        members = () if group is None else group.by_id()
        return {member.address: member.filter_servers for member in members if member.filter_servers}

    def has_brokers_on(self, connection: int) -> bool:
        """Whether brokers have registered on a connection."""
        return bool(self._leases.on_connection(connection))

    @property
    def unconfirmed_count(self) -> int:
        """Number of brokers restored after a restart that have not sent anything since."""
        return self._leases.unconfirmed_count

    def is_unconfirmed(self, broker_name: str) -> bool:
        """Whether a group has a restored broker that has not sent anything since."""
        group = self._groups.get(broker_name)
        return group is not None and not all(member.confirmed for member in group.members.values())

    def stats(self, now: float) -> TableStats:
        """Count everything. Reads every lease: meant for metrics, not for every request."""
        age_s = left_s = 0.0
        held = 0
        for at, member in enumerate(self._leases):
            remaining_s = member.expires_at - now
            age_s = max(age_s, member.lease_s - remaining_s)
            left_s = min(left_s, remaining_s) if at else remaining_s
            held += member.held
        return TableStats(
            clusters=len(self._clusters),
            groups=len(self._groups),
            brokers=len(self._leases),
            unconfirmed=self.unconfirmed_count,
            held=held,
            topics=len(self._index),
            topic_entries=self._topic_entries,
            registration_bytes=self._registration_bytes,
            lease_age_max_s=age_s,
            lease_left_min_s=left_s,
        )

    def snapshot(self, now: float) -> TableSnapshot:
        """Return everything that is kept over a restart."""
        return snapshot_of(self._groups.values(), now)

    def version_of(self, key: BrokerKey) -> DataVersion | None:
        """The version of a broker's topic table that is known here."""
        member = self._leases.find(key)
        return None if member is None else member.version
