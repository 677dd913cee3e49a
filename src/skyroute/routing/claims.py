"""Whom a registration meets in the table, and what the rules make of it. Nothing here writes."""

from collections.abc import Mapping
from dataclasses import dataclass

from skyroute.routing.errors import NameTakenError, PartialFirstRegistrationError
from skyroute.routing.groups import Group, Member, QueueDelta
from skyroute.routing.held_bytes import server_bytes
from skyroute.routing.leases import Leases
from skyroute.routing.registration import DataVersion, Registration, TopicTable
from skyroute.routing.topology import MASTER_ID, BrokerKey


@dataclass(frozen=True, slots=True)
class Claim:
    """A broker's claim to an id in a group, held against who is there."""

    registration: Registration
    table: TopicTable
    group: Group
    """The group of its name; empty and not yet in the table, if the name is new."""
    own: Member | None
    """The same address in that group, whatever its id."""
    rival: Member | None
    """Another address that holds the id."""
    stray: Member | None
    """The same broker in another group."""
    displaced: tuple[Member, ...]
    """Members that cannot follow the group into its new cluster, where another group has a broker at their address."""
    moves: bool
    """The group is in another cluster so far."""

    @property
    def is_first(self) -> bool:
        """Nobody has this id yet."""
        return self.registration.broker_id not in self.group.members

    @property
    def is_newcomer(self) -> bool:
        """The table will hold one broker more."""
        return self.own is None and self.rival is None and self.stray is None

    @property
    def is_superseded(self) -> bool:
        """A master of a newer epoch has the id. Outside controller mode every epoch is 0, and a newcomer wins."""
        return self.rival is not None and self.rival.version.state_version > self.table.version.state_version

    @property
    def is_partial(self) -> bool:
        """A single topic, as brokers announce a new one. Taken from a broker whose table we have."""
        return len(self.table.topics) + len(self.table.left_out) == 1

    @property
    def edition(self) -> DataVersion:
        """The edition that will be known whole.

        A restored broker may have made others while we were away, of which we have not heard: one topic of its newest
        edition does not make that edition known.
        """
        own = self.own
        return own.version if own is not None and own.restored and self.is_partial else self.table.version

    @property
    def server_growth_bytes(self) -> int:
        """Approximate growth of the table by its filter servers, in bytes."""
        servers = self.table.filter_servers
        if servers is None:
            return 0
        return server_bytes(servers) - (0 if self.own is None else server_bytes(self.own.filter_servers))

    def refuse_partial(self) -> None:
        """Refuse a single topic from a broker that is not there.

        Raises:
            PartialFirstRegistrationError: It must send its whole table first.
        """
        if self.is_first and self.is_partial:
            broker = self.registration
            raise PartialFirstRegistrationError(
                f"{broker.address} is not registered as {broker.broker_name}[{broker.broker_id}] and sent a single"
                " topic; it must send its whole table first"
            )

    def is_overtaken(self, holder: int) -> bool:
        """A later registration of the same broker came first: through a later holder, or of a later edition.

        Holders are numbered in the order of their arrival. What an older one delivers now was sent earlier and delayed
        by the network. If it took the broker back, the broker would leave when the older one ends.

        A slave copies its master's editions, and a broker may start again from an older file: there a smaller number
        can be news.
        """
        own, new = self.own, self.table.version
        if own is None or self.moves or own.holder < holder:
            return False
        if own.holder > holder:
            return own.broker_id == self.registration.broker_id
        if own.broker_id != MASTER_ID or self.registration.broker_id != MASTER_ID:
            return False
        old = own.version
        same_epoch = new.state_version == old.state_version
        return same_epoch and new.counter < old.counter and new.timestamp_ms <= old.timestamp_ms

    def is_late(self, ticket: int) -> bool:
        """A registration that came later was applied first."""
        own, rival, stray = self.own, self.rival, self.stray
        return (
            (own is not None and own.ticket > ticket)
            or (rival is not None and rival.ticket > ticket)
            or (stray is not None and stray.ticket > ticket)
        )

    @property
    def is_whole(self) -> bool:
        """The broker's topics replace what is known; otherwise they only fill what is missing."""
        known = None if self.own is None or self.moves else self.own.version
        return self.is_first or known != self.table.version

    def compare_topics(self, *, delete_missing: bool) -> QueueDelta:
        """What the broker's topics change: nothing, if it is not the one that speaks for its group."""
        if not self.speaks_for_group:
            return QueueDelta()
        return self.group.compare(self.table, whole=self.is_whole, delete_missing=delete_missing)

    @property
    def speaks_for_group(self) -> bool:
        """The master does, or else the smallest slave; but not the slaves of brokers before 5.0."""
        broker_id = self.registration.broker_id
        if broker_id == MASTER_ID:
            return True
        gone = (self.own, *self.displaced)
        others = (member.broker_id for member in self.group.members.values() if member not in gone)
        return self.registration.acting_master is not None and all(broker_id <= other for other in others)


def find_claim(groups: Mapping[str, Group], leases: Leases, registration: Registration, table: TopicTable) -> Claim:
    """Find whom a registration meets.

    Raises:
        NameTakenError: A broker of another cluster lives by this name and id.
    """
    cluster, address = registration.key
    group = groups.get(registration.broker_name) or Group(registration.broker_name, cluster)
    own, rival = group.member_at(address), group.members.get(registration.broker_id)
    if rival is own:
        rival = None
    moves = group.cluster != cluster
    if moves and rival is not None:
        raise NameTakenError(
            f"{group.name}[{rival.broker_id}] is taken by {rival.address} of cluster {group.cluster}, so {address}"
            f" of cluster {cluster} cannot have it; broker names must be unique across clusters"
        )
    stray = leases.find(registration.key)
    if stray is own:
        stray = None
    followers = [member for member in group.members.values() if member is not own] if moves else []
    displaced = tuple(member for member in followers if BrokerKey(cluster, member.address) in leases)
    return Claim(registration, table, group, own, rival, stray, displaced, moves)
