"""Rules of the controller: state of a group, a request and the living replicas give the new state and the response.

Functions are pure. A refused request raises `RequestRefusedError` and changes nothing.

What Apache's controller does and these rules do not:

- It increases the next id by one per grant, whatever id was granted, and grants every free id. Here only the next id is
  granted, so an id never belongs to two brokers, not even after its first owner was removed.
- It forgets the epochs of a group whose replicas were all removed. A new group of that name then repeats them. Here
  they go on.
- It removes a replica and leaves it recorded as master. Here the group loses its master, with a new epoch.
- It removes the whole group if living brokers may be removed, whatever ids were named.
- It elects any number that asks first, registered or not.
- A failed election before the first master uses up epoch 0, and no broker can become master any more.
- It clears the master again and again, with a new epoch each time, while no candidate is alive.
- It subtracts offsets as 32-bit numbers, so that replicas more than 2 GiB apart are ordered wrongly, and forgets one
  of two replicas with equal progress.
- It keeps the largest offset that a broker ever reported. Here the last heartbeat counts, also after a truncation.
- It lets two brokers register with one id, for instance with copies of a store folder: both may then be master.
- It elects before it has heard from the brokers, if a broker asks right after the controller started.

As in Apache's, only the master changes the sync state set. A controller that removed a silent replica would
leave no candidate if the network between the two is at fault.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from skyroute.controller.election import choose_master
from skyroute.controller.errors import Refusal, RequestRefusedError
from skyroute.controller.events import (
    AddressChanged,
    Cause,
    GroupEvent,
    IdGranted,
    MasterElected,
    MasterLost,
    ReplicasRemoved,
    SyncSetChanged,
)
from skyroute.controller.state import EPOCH_MAX, FIRST_ID, REPLICAS_MAX, GroupState, LiveReplicas, Replica

A = TypeVar("A")

_NOT_SETTLED: Final = "the controller has listened to heartbeats for too short a time; ask again in a few seconds"


@dataclass(frozen=True, slots=True)
class Outcome(Generic[A]):
    """What a request leads to."""

    group: GroupState | None
    """The state afterwards; the same object if nothing changed."""
    answer: A
    events: tuple[GroupEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncState:
    """The sync state set and its epoch."""

    members: frozenset[int]
    epoch: int


@dataclass(frozen=True, slots=True)
class MasterInfo:
    """Who is master, with the epochs."""

    broker_id: int | None
    address: str | None
    master_epoch: int
    sync_set_epoch: int


@dataclass(frozen=True, slots=True)
class GroupView:
    """Master and sync state set of a group, as a response has them."""

    master: MasterInfo | None
    sync: SyncState


@dataclass(frozen=True, slots=True)
class Election:
    """The result of an election."""

    master: MasterInfo | None
    """None: the group has no master now."""
    sync: SyncState
    is_new: bool
    """False: the current master stays, or there is none."""
    members: Mapping[int, str]
    """Addresses of all replicas by id."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica, as tools show it."""

    broker_id: int
    address: str
    is_alive: bool
    is_in_sync: bool


# Broker ids


def next_broker_id(group: GroupState | None) -> int:
    """Return the id to apply for."""
    return FIRST_ID if group is None else group.next_id


def grant_id(
    group: GroupState | None, cluster: str, broker_name: str, broker_id: int, check_code: str
) -> Outcome[None]:
    """Grant an id to the broker with this check code. A repeated application is granted again.

    Raises:
        RequestRefusedError: the id belongs to another broker or is not the next one.
    """
    group = group or GroupState(cluster, broker_name)
    if group.is_empty:
        group_cluster = cluster  # a group without replicas may return in another cluster
    elif group.cluster == cluster:
        group_cluster = group.cluster
    else:
        raise RequestRefusedError(
            Refusal.ID_REFUSED, f"broker group {broker_name} belongs to cluster {group.cluster}, not to {cluster}"
        )
    owner = group.replicas.get(broker_id)
    if owner is not None and owner.check_code == check_code:
        return Outcome(group, None)
    if owner is not None or broker_id != group.next_id:
        raise RequestRefusedError(
            Refusal.ID_REFUSED,
            f"broker id {broker_id} of {broker_name} is not free (expected the next id, {group.next_id})",
        )
    if len(group.replicas) >= REPLICAS_MAX:
        raise RequestRefusedError(Refusal.ID_REFUSED, f"{broker_name} has {REPLICAS_MAX} replicas, the maximum")
    address = check_code.partition(";")[0]
    replicas = {**group.replicas, broker_id: Replica(address, check_code)}
    changed = replace(group, cluster=group_cluster, replicas=replicas, next_id=broker_id + 1)
    return Outcome(changed, None, (IdGranted(group_cluster, broker_name, Cause.BROKER, broker_id, address),))


def register(
    group: GroupState | None,
    cluster: str,
    broker_name: str,
    broker_id: int,
    address: str,
    alive: LiveReplicas,
    *,
    is_at_another: bool = False,
) -> Outcome[GroupView]:
    """Return the living master and the sync state set, and store a changed address.

    `is_at_another` says that the id is alive on another connection than the one that asks.

    Raises:
        RequestRefusedError: the broker has no id in this group, or the id is alive at another address.
    """
    group = _registered(group, broker_name, broker_id)
    if group.cluster != cluster:
        raise RequestRefusedError(
            Refusal.NOT_REGISTERED, f"broker group {broker_name} belongs to cluster {group.cluster}, not to {cluster}"
        )
    events: tuple[GroupEvent, ...] = ()
    known = group.replicas[broker_id]
    if known.address != address and is_at_another:
        raise RequestRefusedError(
            Refusal.ID_REFUSED,
            f"broker id {broker_id} of {broker_name} is alive at {known.address}: two brokers must not have copies of "
            "one store folder; empty the folder of one of them",
        )
    if known.address != address:
        events = (AddressChanged(cluster, broker_name, Cause.BROKER, broker_id, known.address, address),)
        group = replace(group, replicas={**group.replicas, broker_id: replace(known, address=address)})
    is_master_alive = group.master is not None and not alive.is_dead(group.master)
    return Outcome(group, GroupView(master_of(group) if is_master_alive else None, sync_state(group)), events)


# Masters


def elect(
    group: GroupState | None,
    broker_name: str,
    asker: int | None,
    alive: LiveReplicas,
    *,
    designate: bool = False,
    allow_unclean: bool = False,
    cause: Cause = Cause.BROKER,
) -> Outcome[Election]:
    """Elect a master if the current one is dead or another one is designated.

    `asker` is None if the controller itself asks: then the group loses a dead master without a successor.

    Raises:
        RequestRefusedError: the asker is unknown, no replica can be master, or it is too early to tell.
    """
    if asker is not None or group is None or group.is_empty:
        group = _registered(group, broker_name, asker)
    if not group.had_master and asker is not None:
        # Apache's broker asks before its first heartbeat, so the first election asks for no sign of life.
        return _elected(group, asker, cause, is_unclean=False)
    if not alive.is_settled and not group.sync_set <= alive.progress.keys():
        if group.master is not None and not (designate and asker != group.master):
            return Outcome(group, _unchanged(group))
        raise RequestRefusedError(Refusal.ELECTION_FAILED, f"no election for {broker_name}: {_NOT_SETTLED}")
    choice = choose_master(group, alive, designated=asker if designate else None, allow_unclean=allow_unclean)
    if choice is not None and choice.broker_id == group.master:
        return Outcome(group, _unchanged(group))
    if choice is not None:
        return _elected(group, choice.broker_id, cause, is_unclean=choice.is_unclean)
    if asker is not None:
        raise RequestRefusedError(
            Refusal.ELECTION_FAILED,
            f"no replica of {broker_name} can be master: "
            f"in sync {sorted(group.sync_set)}, alive {sorted(alive.progress)}",
        )
    if group.master is None:
        return Outcome(group, _unchanged(group))
    changed = _without_master(group)
    lost = MasterLost(group.cluster, broker_name, cause, group.master, changed.master_epoch)
    return Outcome(changed, _unchanged(changed), (lost,))


def _registered(group: GroupState | None, broker_name: str, broker_id: int | None) -> GroupState:
    if group is None or group.is_empty:
        raise RequestRefusedError(Refusal.NOT_REGISTERED, f"broker group {broker_name} is not registered")
    if broker_id is not None and broker_id not in group.replicas:
        raise RequestRefusedError(Refusal.NOT_REGISTERED, f"broker id {broker_id} of {broker_name} is not registered")
    return group


def _elected(group: GroupState, broker_id: int, cause: Cause, *, is_unclean: bool) -> Outcome[Election]:
    changed = replace(
        group,
        master=broker_id,
        master_epoch=_next_epoch(group.master_epoch),
        sync_set=frozenset({broker_id}),
        sync_set_epoch=_next_epoch(group.sync_set_epoch),
        had_master=True,
    )
    event = MasterElected(
        *(group.cluster, group.broker_name, cause, broker_id, group.replicas[broker_id].address),
        master_epoch=changed.master_epoch,
        sync_set_epoch=changed.sync_set_epoch,
        previous=group.master,
        is_unclean=is_unclean,
    )
    return Outcome(changed, replace(_unchanged(changed), is_new=True), (event,))


def _unchanged(group: GroupState) -> Election:
    members = {broker_id: replica.address for broker_id, replica in group.replicas.items()}
    return Election(
        None if group.master is None else master_of(group), sync_state(group), is_new=False, members=members
    )


def _without_master(group: GroupState) -> GroupState:
    """Return the group without a master. The new epoch makes brokers give up the old one."""
    return replace(group, master=None, master_epoch=_next_epoch(group.master_epoch))


def _next_epoch(epoch: int) -> int:
    if epoch >= EPOCH_MAX:
        raise RequestRefusedError(Refusal.ELECTION_FAILED, f"epoch {epoch} is the last one")
    return epoch + 1


def needs_election(group: GroupState, alive: LiveReplicas) -> bool:
    """Return whether the group has a dead master, or none although a candidate is alive."""
    if not alive.is_settled or not group.had_master:
        return False
    if group.master is not None:
        return alive.is_dead(group.master)
    return bool(alive.among(group.sync_set))


# Sync state set


def change_sync_set(
    group: GroupState | None,
    broker_name: str,
    asker: int,
    master_epoch: int,
    wanted: SyncState,
    alive: LiveReplicas,
) -> Outcome[SyncState]:
    """Store a new sync state set of the current master. `wanted.epoch` is the epoch of the set that it replaces.

    Raises:
        RequestRefusedError: the asker is not the master of this epoch, or a member is unknown or not alive.
    """
    if group is None or group.is_empty:
        raise RequestRefusedError(Refusal.SYNC_SET_REFUSED, f"broker group {broker_name} is not registered")
    if wanted.members == group.sync_set:
        raise RequestRefusedError(
            Refusal.SYNC_SET_REFUSED, f"the sync state set of {broker_name} is {sorted(group.sync_set)} already"
        )
    _check_master(group, asker, master_epoch, wanted.epoch)
    _check_members(group, wanted.members, alive)
    changed = replace(group, sync_set=wanted.members, sync_set_epoch=_next_epoch(group.sync_set_epoch))
    event = SyncSetChanged(
        *(group.cluster, broker_name, Cause.BROKER, group.sync_set, changed.sync_set, changed.sync_set_epoch)
    )
    return Outcome(changed, sync_state(changed), (event,))


def _check_master(group: GroupState, asker: int, master_epoch: int, sync_set_epoch: int) -> None:
    name = group.broker_name
    if asker != group.master:
        raise RequestRefusedError(Refusal.NOT_MASTER, f"the master of {name} is {group.master}, not {asker}")
    if master_epoch != group.master_epoch:
        raise RequestRefusedError(
            Refusal.STALE_MASTER_EPOCH, f"the master epoch of {name} is {group.master_epoch}, not {master_epoch}"
        )
    if sync_set_epoch != group.sync_set_epoch:
        raise RequestRefusedError(
            Refusal.STALE_SYNC_SET_EPOCH,
            f"the sync state set epoch of {name} is {group.sync_set_epoch}, not {sync_set_epoch}",
        )


def _check_members(group: GroupState, members: Set[int], alive: LiveReplicas) -> None:
    for broker_id in sorted(members):
        if broker_id not in group.replicas:
            raise RequestRefusedError(
                Refusal.UNKNOWN_REPLICA, f"broker id {broker_id} of {group.broker_name} is not registered"
            )
        if broker_id not in alive and broker_id != group.master:  # the master is alive: it asks
            raise RequestRefusedError(
                Refusal.REPLICA_NOT_ALIVE, f"broker id {broker_id} of {group.broker_name} is not alive"
            )
    if group.master not in members:
        raise RequestRefusedError(
            Refusal.SYNC_SET_REFUSED,
            f"the sync state set of {group.broker_name} must contain its master, {group.master}",
        )


# Reading and removing


def view(group: GroupState | None, broker_name: str) -> GroupView:
    """Return master and sync state set. Without a master, the view still has the master epoch.

    Raises:
        RequestRefusedError: the group is unknown.
    """
    if group is None or group.is_empty:
        raise RequestRefusedError(Refusal.UNKNOWN_GROUP, f"broker group {broker_name} is not registered")
    return GroupView(master_of(group), sync_state(group))


def replicas_of(group: GroupState, alive: LiveReplicas) -> tuple[ReplicaView, ...]:
    """Return all replicas of a group in the order of their ids."""
    return tuple(
        ReplicaView(broker_id, replica.address, broker_id in alive, broker_id in group.sync_set)
        for broker_id, replica in sorted(group.replicas.items())
    )


def remove_replicas(
    group: GroupState | None,
    broker_name: str,
    broker_ids: Set[int] | None,
    alive: LiveReplicas,
    *,
    allow_living: bool = False,
) -> Outcome[None]:
    """Remove replicas; all of them with None. Ids and epochs of the group are not used again.

    Raises:
        RequestRefusedError: the group is unknown, or a replica is or may be alive and `allow_living` is false.
    """
    if group is None or group.is_empty:
        raise RequestRefusedError(Refusal.CLEANUP_REFUSED, f"broker group {broker_name} is not registered")
    removed = frozenset(group.replicas if broker_ids is None else group.replicas.keys() & broker_ids)
    living = sorted(broker_id for broker_id in removed if not alive.is_dead(broker_id))
    if living and not allow_living:
        raise RequestRefusedError(Refusal.CLEANUP_REFUSED, f"brokers {living} of {broker_name} are alive")
    if not removed:
        return Outcome(group, None)
    kept = {broker_id: replica for broker_id, replica in group.replicas.items() if broker_id not in removed}
    changed = group if group.master not in removed else _without_master(group)
    if group.sync_set & removed:
        changed = replace(changed, sync_set=group.sync_set - removed, sync_set_epoch=_next_epoch(group.sync_set_epoch))
    changed = replace(changed, replicas=kept, had_master=group.had_master and bool(kept))
    events: list[GroupEvent] = [
        ReplicasRemoved(group.cluster, broker_name, Cause.OPERATOR, removed, is_whole_group=not kept)
    ]
    if group.master is not None and changed.master is None:
        events.append(MasterLost(group.cluster, broker_name, Cause.OPERATOR, group.master, changed.master_epoch))
    return Outcome(changed, None, tuple(events))


def master_of(group: GroupState) -> MasterInfo:
    """Return the master and the epochs; its id and address are None if there is no master."""
    return MasterInfo(group.master, group.address_of(group.master), group.master_epoch, group.sync_set_epoch)


def sync_state(group: GroupState) -> SyncState:
    """Return the sync state set and its epoch."""
    return SyncState(group.sync_set, group.sync_set_epoch)
