"""A snapshot of the route table: what is kept over a restart of the name server.

Without expiry times, connections and fingerprints: a restored broker has to confirm that it is alive, and its next
registration is decoded.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from skyroute.routing.errors import InvalidSnapshotError
from skyroute.routing.group_state import GroupMember, GroupState
from skyroute.routing.memory_estimate import MEMBER_BYTES, mapping_bytes, server_bytes, topic_bytes
from skyroute.routing.registration import DataVersion
from skyroute.routing.topology import QueueSettings, StaticMapping


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """One broker of a group."""

    broker_id: int
    address: str
    ha_address: str | None
    version: DataVersion
    lease_s: float
    knows_acting: bool
    filter_servers: tuple[str, ...] = ()
    left_s: float | None = None
    """Rest of its lease if it is unconfirmed: several restarts in a row must not extend a lease each time."""


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """One broker group and its topics."""

    name: str
    cluster: str
    acting_master: bool
    zone: str | None
    members: tuple[MemberSnapshot, ...]
    queues: Mapping[str, QueueSettings]
    forbidden: frozenset[str]
    mappings: Mapping[str, StaticMapping]


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """All broker groups at one instant."""

    groups: tuple[GroupSnapshot, ...] = ()

    @property
    def broker_count(self) -> int:
        return sum(len(group.members) for group in self.groups)

    @property
    def topic_entry_count(self) -> int:
        return sum(len(group.queues) for group in self.groups)

    @property
    def registration_bytes(self) -> int:
        """Approximate memory of it in a table, in bytes."""
        return sum(
            topic_bytes(group.queues)
            + sum(map(mapping_bytes, group.mappings.values()))
            + sum(MEMBER_BYTES + server_bytes(member.filter_servers) for member in group.members)
            for group in self.groups
        )

    def check(self) -> None:
        """Check what is true of every route table.

        Raises:
            InvalidSnapshotError: The snapshot contradicts itself.
        """
        names = {group.name for group in self.groups}
        ids = {(group.name, member.broker_id) for group in self.groups for member in group.members}
        keys = {(group.cluster, member.address) for group in self.groups for member in group.members}
        if len(names) != len(self.groups):
            raise InvalidSnapshotError("two broker groups have the same name")
        if not len(ids) == len(keys) == self.broker_count:
            raise InvalidSnapshotError("two brokers have the same id or address")
        for group in self.groups:
            if not group.members:
                raise InvalidSnapshotError(f"broker group {group.name} has no broker")
            if not group.forbidden | group.mappings.keys() <= group.queues.keys():
                raise InvalidSnapshotError(
                    f"broker group {group.name} has forbidden writes or mappings of topics that it does not serve"
                )


def snapshot_of(groups: Iterable[GroupState], now: float) -> TableSnapshot:
    """Return a snapshot of these groups; the copy takes milliseconds for hundreds of thousands of topics."""
    return TableSnapshot(tuple(_snapshot_of_group(group, now) for group in groups))


def _snapshot_of_group(group: GroupState, now: float) -> GroupSnapshot:
    return GroupSnapshot(
        name=group.name,
        cluster=group.cluster,
        acting_master=group.acting_master,
        zone=group.zone,
        members=tuple(_snapshot_of_member(member, now) for member in group.by_id()),
        queues=dict(group.queues),
        forbidden=frozenset(group.forbidden),
        mappings=dict(group.mappings),
    )


def _snapshot_of_member(member: GroupMember, now: float) -> MemberSnapshot:
    return MemberSnapshot(
        broker_id=member.broker_id,
        address=member.address,
        ha_address=member.ha_address,
        version=member.version,
        lease_s=member.lease_s,
        knows_acting=member.knows_acting,
        filter_servers=member.filter_servers,
        left_s=None if member.confirmed else member.expires_at - now,
    )
