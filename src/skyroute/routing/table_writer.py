"""Writes to the route table. They are decided already: nothing here refuses a change."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from skyroute.routing import event_builders
from skyroute.routing.events import (
    BrokerLeft,
    Cause,
    FilterServersChanged,
    MappingsChanged,
    RegistrationOutcome,
    RouteEvent,
    TopicsChanged,
)
from skyroute.routing.group_state import GroupMember, GroupState, QueueDelta
from skyroute.routing.leases import NO_CONNECTION
from skyroute.routing.memory_estimate import MEMBER_BYTES, server_bytes
from skyroute.routing.registration import DataVersion, Registration
from skyroute.routing.registration_check import RegistrationCheck
from skyroute.routing.snapshot import GroupSnapshot
from skyroute.routing.table_view import RouteTableView
from skyroute.routing.topology import QueueSettings

TOPICS_A_STEP: Final = 5_000
"""Topics that are compared, listed or removed in one step: a few milliseconds. A change of more takes several."""
LEAVING_COST: Final = 100
"""Cost of removing one broker, or one group from a topic, with its events, as a number of topics."""


class RouteTableWriter(RouteTableView):
    """Applies changes to groups, leases, the topic index and their counts, and returns the events.

    Events come in an order in which a mirror can apply them: first the brokers that must leave, then the group, its
    brokers, its topics, forbidden writes, mappings and filter servers, and last the smallest broker id.
    """

    def __init__(self, lease_s: float, topics_a_step: int) -> None:
        super().__init__()
        self._lease_s = lease_s
        self._topics_a_step = topics_a_step

    def _restore_group(self, saved: GroupSnapshot, now: float, lease_s: float) -> Iterator[RouteEvent]:
        group, cause = GroupState(saved.name, saved.cluster), Cause.RESTORED
        yield from event_builders.group_placed(
            group, saved.cluster, saved.zone, acting_master=saved.acting_master, is_new=True, cause=cause
        )
        group.zone, group.acting_master = saved.zone, saved.acting_master
        self._groups[group.name] = group
        self._clusters.setdefault(group.cluster, {})[group.name] = None
        for before in saved.members:
            left_s = lease_s if before.left_s is None else before.left_s
            member = GroupMember(
                group=group,
                broker_id=before.broker_id,
                address=before.address,
                ha_address=before.ha_address,
                version=before.version,
                lease_s=before.lease_s,
                expires_at=now + min(lease_s, before.lease_s, left_s),
                connection=NO_CONNECTION,
                knows_acting=before.knows_acting,
                filter_servers=before.filter_servers,
                confirmed=False,
                restored=True,
            )
            group.members[member.broker_id] = member
            self._leases.add(member)
            self._registration_bytes += MEMBER_BYTES + server_bytes(member.filter_servers)
            yield event_builders.broker_joined(member, cause)
        mappings = {topic: (None, mapping) for topic, mapping in saved.mappings.items()}
        yield from self._apply(group, QueueDelta(added=saved.queues, mappings=mappings), cause)
        group.forbidden = set(saved.forbidden)
        yield from event_builders.writes_changed(group, cause, forbidden=saved.forbidden)
        for member in group.by_id():
            if member.filter_servers:
                yield FilterServersChanged(
                    group.cluster, group.name, member.address, (), after=member.filter_servers, cause=cause
                )

    def _confirm(self, member: GroupMember, cause: Cause, *, connection: int) -> list[RouteEvent]:
        """Mark a restored broker as confirmed: its first request since the restart came on this connection."""
        if member.confirmed:
            return []
        self._leases.change_connection(member, connection)
        member.confirmed = True
        return [event_builders.broker_confirmed(member, cause)]

    def _admit(
        self,
        check: RegistrationCheck,
        delta: QueueDelta,
        *,
        connection: int,
        now: float,
        ticket: int,
        queues: dict[str, QueueSettings] | None,
    ) -> RegistrationOutcome:
        """Apply a registration that passed every check.

        `queues` are the group's queues afterwards, if they were prepared.
        """
        registration, table, group, member = check.registration, check.table, check.group, check.known
        smallest_before, version = group.smallest, check.version_after
        if member is not None:
            # First, so that brokers removed below see which connections are still in use.
            self._leases.change_connection(member, connection)
        elsewhere = [] if check.elsewhere is None else [check.elsewhere]
        events = self._leave(elsewhere, Cause.ADDRESS_REPLACED, keep_connection=connection)
        events += [self._remove(gone, Cause.ADDRESS_REPLACED, keep_connection=connection) for gone in check.displaced]
        events += self._place(group, registration)
        if check.replaced is not None:
            events.append(self._remove(check.replaced, Cause.ADDRESS_REPLACED, keep_connection=connection))
        if member is None:
            member = self._join(group, registration, version, connection=connection, now=now)
            events.append(event_builders.broker_joined(member))
        else:
            events += self._refresh(member, registration, version, connection=connection, now=now)
        member.ticket = ticket
        member.restored = member.restored and check.is_single_topic
        # While a broker is restored its version is not recorded: the same body must be decoded again.
        member.fingerprint = None if member.restored else registration.fingerprint
        events += self._apply(group, delta, Cause.REGISTERED, table.version, queues)
        if table.filter_servers is not None and table.filter_servers != member.filter_servers:
            event = FilterServersChanged(
                cluster=group.cluster,
                broker_name=group.name,
                address=member.address,
                before=member.filter_servers,
                after=table.filter_servers,
                cause=Cause.REGISTERED,
            )
            events.append(event)
            self._registration_bytes += server_bytes(table.filter_servers) - server_bytes(member.filter_servers)
            member.filter_servers = table.filter_servers
        events += event_builders.smallest_changed(group, smallest_before, Cause.REGISTERED, registrant=member)
        return outcome_of(member, events)

    def _place(self, group: GroupState, registration: Registration) -> Sequence[RouteEvent]:
        """Set the cluster, zone and acting master flag of a group to those of its last registration."""
        cluster, zone, acting_master = registration.cluster, registration.zone, registration.acting_master is True
        is_new = group.name not in self._groups
        events = event_builders.group_placed(group, cluster, zone, acting_master=acting_master, is_new=is_new)
        group.zone, group.acting_master = zone, acting_master
        if is_new:
            self._groups[group.name] = group
            self._clusters.setdefault(cluster, {})[group.name] = None
        elif group.cluster != cluster:
            self._move(group, cluster)
        return events

    def _move(self, group: GroupState, cluster: str) -> None:
        for member in group.members.values():
            self._leases.remove(member)
        self._leave_cluster(group)
        group.cluster = cluster
        group.forget_fingerprints()
        self._clusters.setdefault(cluster, {})[group.name] = None
        for member in group.members.values():
            self._leases.add(member)

    def _join(
        self, group: GroupState, registration: Registration, version: DataVersion, *, connection: int, now: float
    ) -> GroupMember:
        lease_s = self._lease_s if registration.lease_s is None else registration.lease_s
        member = GroupMember(
            group=group,
            broker_id=registration.broker_id,
            address=registration.address,
            ha_address=registration.ha_address,
            version=version,
            lease_s=lease_s,
            expires_at=now + lease_s,
            connection=connection,
            knows_acting=registration.acting_master is not None,
        )
        group.forget_fingerprints()
        group.members[member.broker_id] = member
        self._leases.add(member)
        self._registration_bytes += MEMBER_BYTES
        return member

    def _refresh(
        self, member: GroupMember, registration: Registration, version: DataVersion, *, connection: int, now: float
    ) -> list[RouteEvent]:
        """Renew the lease of a known broker, perhaps with another id or on another connection."""
        group, before = member.group, (member.broker_id, member.ha_address, member.version)
        after = (registration.broker_id, registration.ha_address, version)
        self._leases.change_connection(member, connection)
        member.lease_s = self._lease_s if registration.lease_s is None else registration.lease_s
        member.renew(now)
        member.knows_acting = registration.acting_master is not None
        events = self._confirm(member, Cause.REGISTERED, connection=connection)
        if before == after:
            return events
        if before[0] != after[0]:
            group.forget_fingerprints()
            del group.members[before[0]]
            group.members[after[0]] = member
        member.broker_id, member.ha_address, member.version = after
        return [*events, event_builders.broker_changed(member, before, after)]

    def _first(self, members: Iterable[GroupMember]) -> list[GroupMember]:
        """Return those of many brokers that leave in one step, the largest ids first as in `_leave`."""
        first, left = [], self._topics_a_step
        for member in sorted(members, key=_descending):
            first.append(member)
            left -= LEAVING_COST + len(member.group.queues) + len(member.group.members)
            if left <= 0:
                break
        return first

    def _leave(
        self, members: Iterable[GroupMember], cause: Cause, *, keep_connection: int | None = None
    ) -> list[RouteEvent]:
        """Remove brokers, and groups that have none left.

        The largest ids leave first: of brokers that leave together, only the last can change the smallest id.
        """
        events: list[RouteEvent] = []
        for member in sorted(members, key=_descending):
            group, smallest_before = member.group, member.group.smallest
            is_unconfirmed = cause is Cause.LEASE_EXPIRED and not member.confirmed
            its_cause = Cause.NOT_CONFIRMED if is_unconfirmed else cause
            events.append(self._remove(member, its_cause, keep_connection=keep_connection))
            if not group.members:
                events += self._dissolve(group)
            events += event_builders.smallest_changed(group, smallest_before, its_cause)
        return events

    def _remove(self, member: GroupMember, cause: Cause, *, keep_connection: int | None) -> BrokerLeft:
        """Remove one broker from its group, which may then be empty.

        `keep_connection` is about to be used by another broker: the event does not report it as unused.
        """
        group = member.group
        self._leases.remove(member)
        self._registration_bytes -= MEMBER_BYTES + server_bytes(member.filter_servers)
        del group.members[member.broker_id]
        group.forget_fingerprints()
        unused = tuple(
            connection
            for connection in member.connections
            if connection not in (keep_connection, NO_CONNECTION) and not self._leases.on_connection(connection)
        )
        return event_builders.broker_left(member, cause, unused_connections=unused)

    def _dissolve(self, group: GroupState) -> list[RouteEvent]:
        events = self._apply(group, group.compare_empty(), Cause.GROUP_GONE, queues={})
        del self._groups[group.name]
        self._leave_cluster(group)
        return [*events, event_builders.group_gone(group)]

    def _leave_cluster(self, group: GroupState) -> None:
        names = self._clusters[group.cluster]
        del names[group.name]
        if not names:
            del self._clusters[group.cluster]

    def _apply(
        self,
        group: GroupState,
        delta: QueueDelta,
        cause: Cause,
        version: DataVersion | None = None,
        queues: dict[str, QueueSettings] | None = None,
    ) -> list[RouteEvent]:
        """Apply a change of a group's topics. `queues` replace those of the group, if they were prepared."""
        self._registration_bytes += delta.growth_bytes
        events: list[RouteEvent] = []
        if delta.added or delta.changed or delta.removed:
            if queues is None:
                self._edit(group, delta)
            else:
                group.queues = queues
            if group.forbidden:
                group.forbidden -= delta.changed.keys()
                group.forbidden -= delta.removed.keys()
            if delta.removed:
                self._unlist(delta.removed, group.name)
            self._topic_entries += delta.growth
            group.queue_bytes += delta.queue_growth_bytes
            added, changed, removed = delta.added, delta.changed, delta.removed
            events.append(TopicsChanged(group.cluster, group.name, cause, version, added, changed, removed))
        group.forbidden.difference_update(delta.restored)
        events += event_builders.writes_changed(group, cause, restored=delta.restored)
        if delta.mappings:
            for topic, (_, mapping) in delta.mappings.items():
                if mapping is None:
                    del group.mappings[topic]
                else:
                    group.mappings[topic] = mapping
            events.append(MappingsChanged(group.cluster, group.name, cause, delta.mappings))
        return events

    def _edit(self, group: GroupState, delta: QueueDelta) -> None:
        """Apply changed topics one by one."""
        # Each registration has its own copies of names and settings: keep one object of each.
        names, alike = self._index.own(delta.added.keys()), dict[QueueSettings, QueueSettings]()
        settings = delta.added.values()
        group.queues.update(zip(names, map(alike.setdefault, settings, settings), strict=True))
        group.queues.update((topic, after) for topic, (_, after) in delta.changed.items())
        for topic in delta.removed:
            del group.queues[topic]
        self._index.add(names, group.name)
        for preparation in self._preparations.get(group.name, ()):
            preparation.edited.update(delta.added, delta.changed, delta.removed)

    def _unlist(self, topics: Collection[str], broker_name: str) -> None:
        """Remove a group from topics that it no longer serves; from many, in steps by `sweep`."""
        if len(topics) <= self._topics_a_step:
            self._remove_from_index(topics, broker_name)
        else:
            self._unswept.append((broker_name, list(topics)))

    def _remove_from_index(self, topics: Collection[str], broker_name: str) -> None:
        """Remove a group from topics that it neither serves nor is about to serve."""
        needed = [self.topics_of(broker_name), *(each.added for each in self._preparations.get(broker_name, ()))]
        self._index.remove([topic for topic in topics if not any(topic in each for each in needed)], broker_name)


def _descending(member: GroupMember) -> int:
    return -member.broker_id


def outcome_of(member: GroupMember, events: list[RouteEvent]) -> RegistrationOutcome:
    """Return the events of a broker's registration, and for a slave its master's addresses."""
    master = member.group.master
    if master is None or master is member:
        return RegistrationOutcome(tuple(events))
    return RegistrationOutcome(tuple(events), master_address=master.address, master_ha_address=master.ha_address)
