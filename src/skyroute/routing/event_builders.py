"""Builds the events of the route table. Functions that return a list return an empty one if nothing changed."""

from skyroute.routing.events import (
    BrokerChanged,
    BrokerConfirmed,
    BrokerJoined,
    BrokerLeft,
    Cause,
    GroupChanged,
    LeaseHeld,
    SmallestIdChanged,
    WritesChanged,
)
from skyroute.routing.group_state import GroupMember, GroupState
from skyroute.routing.registration import DataVersion

MemberFields = tuple[int, str | None, DataVersion]
"""Fields of a registered broker that may change: id, replication address, version of its topic table."""


def broker_joined(member: GroupMember, cause: Cause = Cause.REGISTERED) -> BrokerJoined:
    """A broker was added to its group."""
    return BrokerJoined(
        cluster=member.group.cluster,
        broker_name=member.group.name,
        broker_id=member.broker_id,
        address=member.address,
        ha_address=member.ha_address,
        version=member.version,
        lease_s=member.lease_s,
        connection=member.connection,
        cause=cause,
    )


def broker_confirmed(member: GroupMember, cause: Cause) -> BrokerConfirmed:
    """A restored broker sent its first request since the restart."""
    return BrokerConfirmed(
        cluster=member.group.cluster,
        broker_name=member.group.name,
        broker_id=member.broker_id,
        address=member.address,
        version=member.version,
        connection=member.connection,
        cause=cause,
    )


def lease_held(member: GroupMember) -> LeaseHeld:
    """A broker's expired lease was extended."""
    return LeaseHeld(
        cluster=member.group.cluster,
        broker_name=member.group.name,
        broker_id=member.broker_id,
        address=member.address,
        version=member.version,
        lease_s=member.lease_s,
    )


def broker_left(member: GroupMember, cause: Cause, *, unused_connections: tuple[int, ...]) -> BrokerLeft:
    """A broker was removed from its group."""
    return BrokerLeft(
        cluster=member.group.cluster,
        broker_name=member.group.name,
        broker_id=member.broker_id,
        address=member.address,
        cause=cause,
        version=member.version,
        unused_connections=unused_connections,
    )


def broker_changed(member: GroupMember, before: MemberFields, after: MemberFields) -> BrokerChanged:
    """A registered broker has another id, replication address or version."""
    return BrokerChanged(
        cluster=member.group.cluster,
        broker_name=member.group.name,
        address=member.address,
        id_before=before[0],
        id_after=after[0],
        ha_address_before=before[1],
        ha_address_after=after[1],
        version_before=before[2],
        version_after=after[2],
    )


def group_placed(
    group: GroupState,
    cluster: str,
    zone: str | None,
    *,
    acting_master: bool,
    is_new: bool,
    cause: Cause = Cause.REGISTERED,
) -> list[GroupChanged]:
    """A registration changes its group. Call it before the change is written."""
    if not is_new and (group.cluster, group.zone, group.acting_master) == (cluster, zone, acting_master):
        return []
    return [
        GroupChanged(
            broker_name=group.name,
            cluster_before=None if is_new else group.cluster,
            cluster_after=cluster,
            acting_master_before=group.acting_master,
            acting_master_after=acting_master,
            zone_before=group.zone,
            zone_after=zone,
            cause=cause,
        )
    ]


def group_gone(group: GroupState) -> GroupChanged:
    """The last broker of a group left."""
    return GroupChanged(
        broker_name=group.name,
        cluster_before=group.cluster,
        cluster_after=None,
        acting_master_before=group.acting_master,
        acting_master_after=False,
        zone_before=group.zone,
        zone_after=None,
        cause=Cause.GROUP_GONE,
    )


def writes_changed(
    group: GroupState, cause: Cause, *, forbidden: frozenset[str] = frozenset(), restored: frozenset[str] = frozenset()
) -> list[WritesChanged]:
    """An operator forbade or restored writes."""
    if not forbidden and not restored:
        return []
    return [WritesChanged(group.cluster, group.name, cause, forbidden=forbidden, restored=restored)]


def smallest_changed(
    group: GroupState, before: tuple[int, str] | None, cause: Cause, registrant: GroupMember | None = None
) -> list[SmallestIdChanged]:
    """The smallest broker id of a group changed, and another broker needs the notice.

    A broker that registers knows its own id; a broker that stays does not know that it now has the smallest.
    """
    after = group.smallest
    if before is None or after is None or before[0] == after[0]:
        return []
    others = tuple(member.address for member in group.by_id() if member.broker_id != after[0])
    if registrant is not None and not others:
        return []
    return [
        SmallestIdChanged(
            cluster=group.cluster,
            broker_name=group.name,
            cause=cause,
            acting_master=group.acting_master,
            smallest_id=after[0],
            smallest_address=after[1],
            others=others,
            offline_address=before[1] if group.member_at(before[1]) is None else None,
            ha_address=registrant.ha_address if registrant is not None and registrant.broker_id == after[0] else None,
        )
    ]
