"""What a registration meets in the route table, and what the rules say about it. Nothing here writes."""

from collections.abc import Mapping
from dataclasses import dataclass

from skyroute.routing.errors import NameTakenError, PartialFirstRegistrationError
from skyroute.routing.group_state import GroupMember, GroupState, QueueDelta
from skyroute.routing.leases import Leases
from skyroute.routing.memory_estimate import server_bytes
from skyroute.routing.registration import DataVersion, Registration, TopicTable
from skyroute.routing.topology import MASTER_ID, BrokerKey


@dataclass(frozen=True, slots=True)
class RegistrationCheck:
    """A registration beside the registered brokers that it concerns."""

    registration: Registration
    table: TopicTable
    group: GroupState
    """The broker group of this name; if the name is new, an empty one that is not in the table yet."""
    known: GroupMember | None
    """The member of the group with the same address, whatever its id."""
    replaced: GroupMember | None
    """The member with the same id and another address."""
    elsewhere: GroupMember | None
    """The same broker in another group."""
    displaced: tuple[GroupMember, ...]
    """Members that cannot follow the group into its new cluster: another group has a broker at their address."""
    changes_cluster: bool

    @property
    def is_new_id(self) -> bool:
        """No member of the group has this id."""
        return self.registration.broker_id not in self.group.members

    @property
    def is_new_broker(self) -> bool:
        """The registration adds one broker to the table."""
        return self.known is None and self.replaced is None and self.elsewhere is None

    @property
    def is_superseded(self) -> bool:
        """A master of a newer epoch has the id. Outside controller mode every epoch is 0, and the new broker wins."""
        return self.replaced is not None and self.replaced.version.state_version > self.table.version.state_version

    @property
    def is_single_topic(self) -> bool:
        """The registration announces one new topic. Accepted if the broker's other topics are known."""
        return len(self.table.topics) + len(self.table.left_out) == 1

    @property
    def version_after(self) -> DataVersion:
        """The version to record for the broker.

        After a restart of the name server, a restored broker may have newer topics that are unknown here. One topic of
        its newest version does not make that version known.
        """
        known = self.known
        return known.version if known is not None and known.restored and self.is_single_topic else self.table.version

    @property
    def filter_server_growth_bytes(self) -> int:
        """Approximate growth of the table by filter servers, in bytes."""
        servers = self.table.filter_servers
        if servers is None:
            return 0
        return server_bytes(servers) - (0 if self.known is None else server_bytes(self.known.filter_servers))

    def refuse_partial(self) -> None:
        """Refuse a single topic from a broker that is not registered.

        Raises:
            PartialFirstRegistrationError: The broker must send all its topics first.
        """
        if self.is_new_id and self.is_single_topic:
            broker = self.registration
            raise PartialFirstRegistrationError(
                f"{broker.address} is not registered as {broker.broker_name}[{broker.broker_id}] and sent a single"
                " topic; it must send its whole table first"
            )

    def is_overtaken(self, connection: int) -> bool:
        """A later version of the same broker's table arrived first, on this connection or on a newer one.

        Connections are numbered as they arrive. A registration on an older one may have been delayed by the network.

        Versions are not compared on a new connection: a broker may restart from an older file, and there a smaller
        counter can be newer. Nor for slaves on one connection: they copy their master's version.
        """
        known, new = self.known, self.table.version
        if known is None or self.changes_cluster or known.connection < connection:
            return False
        if known.broker_id != self.registration.broker_id:
            return False
        if known.connection == connection and known.broker_id != MASTER_ID:
            return False
        old = known.version
        same_epoch = new.state_version == old.state_version
        return same_epoch and new.counter < old.counter and new.timestamp_ms <= old.timestamp_ms

    def is_late(self, ticket: int) -> bool:
        """A registration that arrived later was applied first."""
        met = (self.known, self.replaced, self.elsewhere)
        return any(member is not None and member.ticket > ticket for member in met)

    @property
    def replaces_topics(self) -> bool:
        """The broker's topics replace the known ones; otherwise they only add missing ones."""
        version = None if self.known is None or self.changes_cluster else self.known.version
        return self.is_new_id or version != self.table.version

    def compare_topics(self, *, delete_missing: bool) -> QueueDelta:
        """Return what the registration changes in the topics of its group."""
        if not self.defines_topics:
            return QueueDelta()
        return self.group.compare(self.table, whole=self.replaces_topics, delete_missing=delete_missing)

    @property
    def defines_topics(self) -> bool:
        """The group serves the topics of this broker: its master, else the slave with the smallest id from 5.0 on."""
        broker_id = self.registration.broker_id
        if broker_id == MASTER_ID:
            return True
        gone = (self.known, *self.displaced)
        others = (member.broker_id for member in self.group.members.values() if member not in gone)
        return self.registration.acting_master is not None and all(broker_id <= other for other in others)


def check_registration(
    groups: Mapping[str, GroupState], leases: Leases, registration: Registration, table: TopicTable
) -> RegistrationCheck:
    """Find the registered brokers that a registration concerns.

    Raises:
        NameTakenError: A live broker of another cluster has this name and id.
    """
    cluster, address = registration.key
    group = groups.get(registration.broker_name) or GroupState(registration.broker_name, cluster)
    known, replaced = group.member_at(address), group.members.get(registration.broker_id)
    if replaced is known:
        replaced = None
    changes_cluster = group.cluster != cluster
    if changes_cluster and replaced is not None:
        raise NameTakenError(
            f"{group.name}[{replaced.broker_id}] is taken by {replaced.address} of cluster {group.cluster}, so"
            f" {address} of cluster {cluster} cannot have it; broker names must be unique across clusters"
        )
    elsewhere = leases.find(registration.key)
    if elsewhere is known:
        elsewhere = None
    followers = [member for member in group.members.values() if member is not known] if changes_cluster else []
    displaced = tuple(member for member in followers if BrokerKey(cluster, member.address) in leases)
    return RegistrationCheck(registration, table, group, known, replaced, elsewhere, displaced, changes_cluster)
