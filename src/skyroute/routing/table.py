"""Every change of a route.

`RouteTable` is the one owner of who serves which topic. It reads no clock, and it has one writer; each method first
decides, and may refuse, then writes everything, then returns what happened as events. A refusal leaves no trace.
How the table is read for clients is in `discovery`.
"""

from collections.abc import Generator, Iterable, Iterator, KeysView, Mapping, Sequence
from itertools import islice
from sys import intern
from types import MappingProxyType
from typing import Final, NamedTuple

from skyroute.routing import reports
from skyroute.routing.claims import Claim, find_claim
from skyroute.routing.errors import TableFullError
from skyroute.routing.events import BrokerLeft, Cause, FilterServersChanged, MappingsChanged, RouteEvent, TopicsChanged
from skyroute.routing.groups import Group, Member, QueueDelta
from skyroute.routing.held_bytes import MEMBER_BYTES, server_bytes
from skyroute.routing.image import GroupImage, TableImage, image_of
from skyroute.routing.leases import NOBODY, Leases
from skyroute.routing.registration import DataVersion, Registration, RegistrationOutcome
from skyroute.routing.topic_index import TopicIndex
from skyroute.routing.topology import BrokerGroup, BrokerKey, QueueSettings, StaticMapping

LEASE_S: Final = 120.0
"""How long a broker is believed that names no time of its own."""
BROKERS_MAX: Final = 20_000
TOPIC_ENTRIES_MAX: Final = 10_000_000
"""Bound on pairs of a broker group and a topic it serves."""
REGISTRATION_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Maximum memory of all registrations by `held_bytes`: 4.8 million pairs with names of 30 characters."""
COMPARED_A_STEP: Final = 10_000
"""Topics of a long registration that are compared in one step: a few milliseconds."""


class Census(NamedTuple):
    """How much there is in a table."""

    clusters: int
    groups: int
    brokers: int
    unconfirmed: int
    """Brokers that were restored after a restart and have not been heard from yet."""
    held: int
    """Brokers whose leases have run out and were lengthened."""
    topics: int
    topic_entries: int
    held_bytes: int
    """Approximate memory of all registrations, bounded by `registrationBytesMax`."""
    age_s: float
    """How long ago the lease was renewed that was not for the longest time."""
    left_s: float
    """How long the lease still runs that ends first."""


class Comparison(NamedTuple):
    """Topics of a registration that differ from its group as of the time of the comparison."""

    group: Group
    edits: int
    """`edits` of the group before the comparison."""
    differing: Mapping[str, QueueSettings]

    @property
    def holds(self) -> bool:
        """Whether the group is unchanged since."""
        return self.group.edits == self.edits


class RouteTable:
    """Which brokers there are, what they serve, and until when we believe them.

    A broker is one address within a cluster and one id within a group, both ways. Groups are known by name alone, as
    nothing on the wire could tell two groups of one name apart.

    Events come in an order in which a mirror can apply them: first what follows from brokers that must leave before
    the group can take its new shape, then the group, the brokers in it, its topics, write bans, mappings and filter
    servers, and last who has the smallest id.
    """

    def __init__(
        self,
        *,
        lease_s: float = LEASE_S,
        brokers_max: int = BROKERS_MAX,
        topic_entries_max: int = TOPIC_ENTRIES_MAX,
        registration_bytes_max: int = REGISTRATION_BYTES_MAX,
    ) -> None:
        self._lease_s = lease_s
        self._brokers_max = brokers_max
        self._topic_entries_max = topic_entries_max
        self._registration_bytes_max = registration_bytes_max
        self._groups: dict[str, Group] = {}
        self._clusters: dict[str, dict[str, None]] = {}
        self._leases = Leases()
        self._index = TopicIndex()
        self._topic_entries = 0
        self._held_bytes = 0

    def __repr__(self) -> str:
        return (
            f"<RouteTable clusters={len(self._clusters)} groups={len(self._groups)} brokers={len(self._leases)}"
            f" holders={self._leases.holder_count} topics={len(self._index)} topic_entries={self._topic_entries}>"
        )

    # What is there.

    @property
    def topics(self) -> KeysView[str]:
        """Every topic, as a live view."""
        return self._index.topics

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
        return self._index.serving(topic)

    def topics_of(self, broker_name: str) -> KeysView[str]:
        """Every topic a group serves, as a live view: all that a change of the group or its brokers concerns."""
        return self.queues_of(broker_name).keys()

    def queues_of(self, broker_name: str) -> Mapping[str, QueueSettings]:
        """Topic to its settings as the brokers gave them, as a live view; `settings` is what clients may use."""
        group = self._groups.get(broker_name)
        return MappingProxyType({} if group is None else group.queues)

    def settings(self, broker_name: str, topic: str) -> QueueSettings | None:
        """The queues of a topic on one group, with the permission that holds now."""
        group = self._groups.get(broker_name)
        return None if group is None else group.settings(topic)

    def registered(self, names: Iterable[str], topic: str) -> tuple[QueueSettings, ...]:
        """The queues of a topic on groups that serve it, whatever brokers are online.

        An operator's ban is in it; that a group has no master at present is not.
        """
        queues: list[QueueSettings] = []
        for name in names:
            group = self._groups[name]
            settings = group.queues[topic]
            queues.append(settings.read_only() if topic in group.forbidden else settings)
        return tuple(queues)

    def mapping(self, broker_name: str, topic: str) -> StaticMapping | None:
        group = self._groups.get(broker_name)
        return None if group is None else group.mappings.get(topic)

    def filter_servers(self, broker_name: str) -> dict[str, tuple[str, ...]]:
        """Broker address to the filter servers beside it, where there are any."""
        group = self._groups.get(broker_name)
        members = () if group is None else group.by_id()
        return {member.address: member.filter_servers for member in members if member.filter_servers}

    @property
    def unconfirmed_count(self) -> int:
        """How many brokers were restored after a restart and have not been heard from yet."""
        return self._leases.unconfirmed_count

    def census(self, now: float) -> Census:
        """Count what is there. Every lease is looked at: it is for those who watch, and not for every request."""
        age_s = left_s = 0.0
        held = 0
        for at, member in enumerate(self._leases):
            remaining_s = member.expires_at - now
            age_s = max(age_s, member.lease_s - remaining_s)
            left_s = min(left_s, remaining_s) if at else remaining_s
            held += member.held
        return Census(
            clusters=len(self._clusters),
            groups=len(self._groups),
            brokers=len(self._leases),
            unconfirmed=self.unconfirmed_count,
            held=held,
            topics=len(self._index),
            topic_entries=self._topic_entries,
            held_bytes=self._held_bytes,
            age_s=age_s,
            left_s=left_s,
        )

    def is_unconfirmed(self, broker_name: str) -> bool:
        """Whether a group has a broker that was restored and has not been heard from yet."""
        group = self._groups.get(broker_name)
        return group is not None and not all(member.confirmed for member in group.members.values())

    def image(self, now: float) -> TableImage:
        """All that is kept over a restart, as a value."""
        return image_of(self._groups.values(), now)

    def version_of(self, key: BrokerKey) -> DataVersion | None:
        """The edition of a broker's topic table that is known here."""
        member = self._leases.find(key)
        return None if member is None else member.version

    def remembers(self, registration: Registration) -> bool:
        """Whether the body of a registration need not be decoded, because it cannot change anything.

        Called by the registration handler before it decodes. A slave that begins to know of acting masters, or no
        longer does, may be the one whose topics count from now on: then they are wanted.
        """
        member = self._leases.find(registration.key)
        return (
            member is not None
            and member.fingerprint is not None
            and member.fingerprint == registration.fingerprint
            and member.broker_id == registration.broker_id
            and member.group.name == registration.broker_name
            and member.knows_acting == (registration.acting_master is not None)
        )

    def forget_fingerprints(self) -> None:
        """Have every next body decoded. Called when a setting changes what bodies mean."""
        for member in self._leases:
            member.fingerprint = None

    # Brokers and topics come.

    def compare_in_steps(self, registration: Registration) -> Generator[None, None, Comparison | None]:
        """Compare a long registration with its group, which is most of the work of `register`. Nothing is written.

        Pass the result to `register`. The table may change between the steps.
        """
        group, table = self._groups.get(registration.broker_name), registration.table
        if group is None or table is None or len(table.topics) <= COMPARED_A_STEP:
            return None
        edits, topics = group.edits, iter(table.topics.items())
        differing: dict[str, QueueSettings] = {}
        while part := list(islice(topics, COMPARED_A_STEP)):
            differing |= group.differing(part)
            yield
        return Comparison(group, edits, differing)

    def register(
        self,
        registration: Registration,
        *,
        holder: int,
        now: float,
        delete_missing_topics: bool = False,
        comparison: Comparison | None = None,
    ) -> RegistrationOutcome:
        """Take a broker's word that it is there and what it serves.

        Args:
            registration: What it says. Without a table, `remembers` must have said that its body is known.
            holder: Who speaks for it; the broker leaves with its holder.
            now: Monotonic seconds.
            delete_missing_topics: A topic the broker no longer names is gone, unless the broker has static topics.
            comparison: Result of `compare_in_steps`; ignored if the group has changed since.

        Raises:
            RegistrationRefusedError: One of the rules is against it; nothing was changed.
            ValueError: There is no table and the body is not remembered.
        """
        table = registration.table
        if table is None:
            return self._register_unchanged(registration, holder=holder, now=now)
        claim = find_claim(self._groups, self._leases, registration, table)
        if claim.is_superseded:
            return RegistrationOutcome(superseded=True)
        claim.refuse_partial()
        if claim.own is not None and claim.is_overtaken(holder):
            claim.own.renew(now)
            return RegistrationOutcome(overtaken=True)
        is_known = comparison is not None and comparison.group is claim.group and comparison.holds
        differing = comparison.differing if comparison is not None and is_known else None
        delta = claim.compare_topics(delete_missing=delete_missing_topics, differing=differing)
        self._check_room(
            brokers=int(claim.is_newcomer),
            topic_entries=delta.growth,
            held_bytes=delta.growth_bytes + MEMBER_BYTES * claim.is_newcomer + claim.server_growth_bytes,
        )
        return self._admit(claim, delta, holder=holder, now=now)

    def register_topic(self, topic: str, settings: Mapping[str, QueueSettings]) -> tuple[RouteEvent, ...]:
        """Announce one topic outside a registration, by broker name. One unknown name makes it all void.

        Raises:
            TableFullError: The table has no room for it; nothing was changed.
        """
        if not settings.keys() <= self._groups.keys():
            return ()
        deltas = {name: self._groups[name].compare_one(topic, one) for name, one in settings.items()}
        self._check_room(
            brokers=0,
            topic_entries=sum(delta.growth for delta in deltas.values()),
            held_bytes=sum(delta.growth_bytes for delta in deltas.values()),
        )
        events: list[RouteEvent] = []
        for name, delta in deltas.items():
            self._groups[name].forget_fingerprints()
            events += self._apply(self._groups[name], delta, Cause.TOPIC_REGISTERED)
        return tuple(events)

    def renew(self, key: BrokerKey, *, holder: int, now: float) -> tuple[RouteEvent, ...] | None:
        """Believe a broker for another lease. None: it is not known here.

        `holder` counts only for a restored broker, which speaks through nobody yet.
        """
        member = self._leases.find(key)
        if member is None:
            return None
        member.renew(now)
        return () if member.confirmed else tuple(self._confirm(member, Cause.HEARTBEAT, holder=holder))

    def restore(self, image: TableImage, *, lease_s: float, now: float) -> tuple[RouteEvent, ...]:
        """Fill an empty table with what was known before a restart.

        Nobody speaks for these brokers until they are heard from, and they are believed for `lease_s` at most.

        Raises:
            ImageError: It is not the image of a table; nothing was changed.
            TableFullError: The table has no room for it; nothing was changed.
        """
        assert not self._groups, "only an empty table is restored"
        image.check()
        self._check_room(brokers=image.broker_count, topic_entries=image.topic_entry_count, held_bytes=image.held_bytes)
        return tuple(event for saved in image.groups for event in self._restore_group(saved, now, lease_s))

    # Brokers and topics go.

    def unregister(self, cluster: str, address: str, broker_name: str, broker_id: int) -> tuple[RouteEvent, ...]:
        """Take a broker's goodbye, if it is registered exactly so: a late one must not end a newer registration."""
        member = self._leases.find(BrokerKey(cluster, address))
        if member is None or member.group.name != broker_name or member.broker_id != broker_id:
            return ()
        return tuple(self._leave([member], Cause.UNREGISTERED))

    def drop_holder(self, holder: int) -> tuple[RouteEvent, ...]:
        """Let every broker go that speaks through this holder."""
        return tuple(self._leave(self._leases.held_by(holder), Cause.CONNECTION_CLOSED))

    def evict_expired(self, now: float) -> tuple[RouteEvent, ...]:
        """Let every broker go whose lease has run out."""
        return tuple(self._leave(self._leases.expired(now), Cause.LEASE_EXPIRED))

    def hold_expired(self, now: float, *, share_max: float) -> tuple[RouteEvent, ...]:
        """Believe brokers whose leases have run out once more, if they are more than this share of all.

        So many do not fall silent by themselves; it is more likely that we, or the line to all of them, stood still.
        A broker is held once, and again only after it was heard from. One that was restored after a restart and not
        heard from since is not held: it has been believed without a word for long enough.
        """
        expired = self._leases.expired(now)
        if len(expired) <= share_max * len(self._leases):
            return ()
        held = [member for member in expired if member.confirmed and not member.held]
        for member in held:
            member.renew(now)
            member.held = True
        return tuple(map(reports.lease_held, held))

    def delete_topic(self, topic: str, cluster: str | None = None) -> tuple[RouteEvent, ...]:
        """Forget a topic, in one cluster or everywhere. A broker that still has it brings it back by registering."""
        events: list[RouteEvent] = []
        for name in self._index.serving(topic):
            group = self._groups[name]
            if cluster is None or group.cluster == cluster:
                group.forget_fingerprints()
                delta = group.compare_without({topic: group.queues[topic]})
                events += self._apply(group, delta, Cause.TOPIC_DELETED)
        return tuple(events)

    # An operator's word.

    def forbid_writes(self, broker_name: str) -> tuple[int, tuple[RouteEvent, ...]]:
        """Make a group's topics read-only until its broker sends a new edition. Returns how many topics it has."""
        group = self._groups.get(broker_name)
        if group is None:
            return 0, ()
        forbidden = frozenset(group.writable() - group.forbidden)
        group.forbidden |= forbidden
        return len(group.queues), tuple(reports.writes_changed(group, Cause.WRITES_FORBIDDEN, forbidden=forbidden))

    def restore_writes(self, broker_name: str) -> tuple[int, tuple[RouteEvent, ...]]:
        """Give a group's topics back the permission its broker registered. Returns how many topics it has."""
        group = self._groups.get(broker_name)
        if group is None:
            return 0, ()
        restored = frozenset(group.forbidden)
        group.forbidden.clear()
        return len(group.queues), tuple(reports.writes_changed(group, Cause.WRITES_RESTORED, restored=restored))

    # How it is done.

    def _check_room(self, *, brokers: int, topic_entries: int, held_bytes: int) -> None:
        if brokers > 0 and len(self._leases) + brokers > self._brokers_max:
            raise TableFullError(f"the table is full: it holds {len(self._leases)} brokers (brokersMax)")
        if topic_entries > 0 and self._topic_entries + topic_entries > self._topic_entries_max:
            raise TableFullError(
                f"the table is full: {self._topic_entries} topic entries and {topic_entries} new ones are more than"
                f" {self._topic_entries_max} (topicEntriesMax)"
            )
        if held_bytes > 0 and self._held_bytes + held_bytes > self._registration_bytes_max:
            raise TableFullError(
                f"the table is full: {self._held_bytes} bytes of registrations and {held_bytes} new ones are more than"
                f" {self._registration_bytes_max} (registrationBytesMax)"
            )

    def _register_unchanged(self, registration: Registration, *, holder: int, now: float) -> RegistrationOutcome:
        member = self._leases.find(registration.key)
        if member is None or not self.remembers(registration):
            raise ValueError(
                f"no table and no remembered body for {registration.broker_name}[{registration.broker_id}] "
                f"at {registration.key}"
            )
        events = [
            *self._place(member.group, registration),
            *self._refresh(member, registration, member.version, holder=holder, now=now),
        ]
        return _outcome(member, events)

    def _restore_group(self, saved: GroupImage, now: float, lease_s: float) -> Iterator[RouteEvent]:
        group, cause = Group(saved.name, saved.cluster), Cause.RESTORED
        yield from reports.group_placed(
            group, saved.cluster, saved.zone, acting_master=saved.acting_master, is_new=True, cause=cause
        )
        group.zone, group.acting_master = saved.zone, saved.acting_master
        self._groups[group.name] = group
        self._clusters.setdefault(group.cluster, {})[group.name] = None
        for known in saved.members:
            left_s = lease_s if known.left_s is None else known.left_s
            member = Member(
                group=group,
                broker_id=known.broker_id,
                address=known.address,
                ha_address=known.ha_address,
                version=known.version,
                lease_s=known.lease_s,
                expires_at=now + min(lease_s, known.lease_s, left_s),
                holder=NOBODY,
                knows_acting=known.knows_acting,
                filter_servers=known.filter_servers,
                confirmed=False,
                restored=True,
            )
            group.members[member.broker_id] = member
            self._leases.add(member)
            self._held_bytes += MEMBER_BYTES + server_bytes(member.filter_servers)
            yield reports.broker_joined(member, cause)
        mappings = {topic: (None, mapping) for topic, mapping in saved.mappings.items()}
        yield from self._apply(group, QueueDelta(added=saved.queues, mappings=mappings), cause)
        group.forbidden = set(saved.forbidden)
        yield from reports.writes_changed(group, cause, forbidden=saved.forbidden)
        for member in group.by_id():
            if member.filter_servers:
                yield FilterServersChanged(
                    group.cluster, group.name, member.address, (), after=member.filter_servers, cause=cause
                )

    def _confirm(self, member: Member, cause: Cause, *, holder: int) -> list[RouteEvent]:
        """Take note that a broker was heard from, through this holder, if it was not since a restart."""
        if member.confirmed:
            return []
        self._leases.hand_over(member, holder)
        member.confirmed = True
        return [reports.broker_confirmed(member, cause)]

    def _admit(self, claim: Claim, delta: QueueDelta, *, holder: int, now: float) -> RegistrationOutcome:
        """Write a claim that has passed every rule: nothing from here on refuses."""
        registration, table, group, member = claim.registration, claim.table, claim.group, claim.own
        smallest_before, edition = group.smallest, claim.edition
        events: list[RouteEvent] = []
        if member is not None:
            # First of all, so that those who leave know whether their holder still speaks for anyone.
            self._leases.hand_over(member, holder)
        if claim.stray is not None:
            events += self._leave([claim.stray], Cause.ADDRESS_REPLACED, joining=holder)
        events += [self._remove(gone, Cause.ADDRESS_REPLACED, joining=holder) for gone in claim.displaced]
        events += self._place(group, registration)
        if claim.rival is not None:
            events.append(self._remove(claim.rival, Cause.ADDRESS_REPLACED, joining=holder))
        if member is None:
            member = self._join(group, registration, edition, holder=holder, now=now)
            events.append(reports.broker_joined(member))
        else:
            events += self._refresh(member, registration, edition, holder=holder, now=now)
        member.restored = member.restored and claim.is_partial
        # Of one that may still have more to say, no edition was taken: the same words would be news again.
        member.fingerprint = None if member.restored else registration.fingerprint
        events += self._apply(group, delta, Cause.REGISTERED, table.version)
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
            self._held_bytes += server_bytes(table.filter_servers) - server_bytes(member.filter_servers)
            member.filter_servers = table.filter_servers
        events += reports.smallest_changed(group, smallest_before, Cause.REGISTERED, registrant=member)
        return _outcome(member, events)

    def _place(self, group: Group, registration: Registration) -> Sequence[RouteEvent]:
        """Put a group where its last registrant says it is."""
        cluster, zone, acting_master = registration.cluster, registration.zone, registration.acting_master is True
        is_new = group.name not in self._groups
        events = reports.group_placed(group, cluster, zone, acting_master=acting_master, is_new=is_new)
        group.zone, group.acting_master = zone, acting_master
        if is_new:
            self._groups[group.name] = group
            self._clusters.setdefault(cluster, {})[group.name] = None
        elif group.cluster != cluster:
            self._move(group, cluster)
        return events

    def _move(self, group: Group, cluster: str) -> None:
        for member in group.members.values():
            self._leases.remove(member)
        self._leave_cluster(group)
        group.cluster = cluster
        group.forget_fingerprints()
        self._clusters.setdefault(cluster, {})[group.name] = None
        for member in group.members.values():
            self._leases.add(member)

    def _join(
        self, group: Group, registration: Registration, version: DataVersion, *, holder: int, now: float
    ) -> Member:
        lease_s = self._lease_s if registration.lease_s is None else registration.lease_s
        member = Member(
            group=group,
            broker_id=registration.broker_id,
            address=registration.address,
            ha_address=registration.ha_address,
            version=version,
            lease_s=lease_s,
            expires_at=now + lease_s,
            holder=holder,
            knows_acting=registration.acting_master is not None,
        )
        group.forget_fingerprints()
        group.members[member.broker_id] = member
        self._leases.add(member)
        self._held_bytes += MEMBER_BYTES
        return member

    def _refresh(
        self, member: Member, registration: Registration, version: DataVersion, *, holder: int, now: float
    ) -> list[RouteEvent]:
        """Renew the lease of a broker that is still there, perhaps by another id or through another holder."""
        group, before = member.group, (member.broker_id, member.ha_address, member.version)
        after = (registration.broker_id, registration.ha_address, version)
        self._leases.hand_over(member, holder)
        member.lease_s = self._lease_s if registration.lease_s is None else registration.lease_s
        member.renew(now)
        member.knows_acting = registration.acting_master is not None
        events = self._confirm(member, Cause.REGISTERED, holder=holder)
        if before == after:
            return events
        if before[0] != after[0]:
            group.forget_fingerprints()
            del group.members[before[0]]
            group.members[after[0]] = member
        member.broker_id, member.ha_address, member.version = after
        return [*events, reports.broker_changed(member, before, after)]

    def _leave(self, members: Iterable[Member], cause: Cause, *, joining: int | None = None) -> list[RouteEvent]:
        """Let brokers go, with all that follows for their groups.

        The largest ids go first, so that of brokers that leave together only the last to go can change who is smallest.
        """
        events: list[RouteEvent] = []
        for member in sorted(members, key=lambda member: -member.broker_id):
            group, smallest_before = member.group, member.group.smallest
            never_heard = cause is Cause.LEASE_EXPIRED and not member.confirmed
            its_cause = Cause.NOT_CONFIRMED if never_heard else cause
            events.append(self._remove(member, its_cause, joining=joining))
            if not group.members:
                events += self._dissolve(group)
            events += reports.smallest_changed(group, smallest_before, its_cause)
        return events

    def _remove(self, member: Member, cause: Cause, *, joining: int | None) -> BrokerLeft:
        """Take one broker out of its group, which may be left empty.

        `joining` is the holder that is about to speak for a broker, and so is not idle.
        """
        group = member.group
        self._leases.remove(member)
        self._held_bytes -= MEMBER_BYTES + server_bytes(member.filter_servers)
        del group.members[member.broker_id]
        group.forget_fingerprints()
        is_idle = member.holder != joining and not self._leases.held_by(member.holder)
        return reports.broker_left(member, cause, holder_is_idle=is_idle)

    def _dissolve(self, group: Group) -> list[RouteEvent]:
        delta = group.compare_without(group.queues)
        group.queues = {}
        events = self._apply(group, delta, Cause.GROUP_GONE)
        del self._groups[group.name]
        self._leave_cluster(group)
        return [*events, reports.group_gone(group)]

    def _leave_cluster(self, group: Group) -> None:
        names = self._clusters[group.cluster]
        del names[group.name]
        if not names:
            del self._clusters[group.cluster]

    def _apply(
        self, group: Group, delta: QueueDelta, cause: Cause, version: DataVersion | None = None
    ) -> list[RouteEvent]:
        """Write what changed of a group's topics."""
        self._held_bytes += delta.growth_bytes
        events: list[RouteEvent] = []
        if delta.added or delta.changed or delta.removed:
            # Every group has its own copy of every name, and most settings are alike: keep one object of each.
            names, alike = list(map(intern, delta.added)), dict[QueueSettings, QueueSettings]()
            settings = delta.added.values()
            group.edits += 1
            group.queues.update(zip(names, map(alike.setdefault, settings, settings), strict=True))
            group.queues.update((topic, after) for topic, (_, after) in delta.changed.items())
            for topic in delta.removed:
                group.queues.pop(topic, None)
            group.forbidden.difference_update(delta.changed, delta.removed)
            self._index.add(names, group.name)
            self._index.remove(delta.removed, group.name)
            self._topic_entries += delta.growth
            added, changed, removed = delta.added, delta.changed, delta.removed
            events.append(TopicsChanged(group.cluster, group.name, cause, version, added, changed, removed))
        group.forbidden.difference_update(delta.restored)
        events += reports.writes_changed(group, cause, restored=delta.restored)
        if delta.mappings:
            for topic, (_, mapping) in delta.mappings.items():
                if mapping is None:
                    del group.mappings[topic]
                else:
                    group.mappings[topic] = mapping
            events.append(MappingsChanged(group.cluster, group.name, cause, delta.mappings))
        return events


def _outcome(member: Member, events: list[RouteEvent]) -> RegistrationOutcome:
    master = member.group.master
    if master is None or master is member:
        return RegistrationOutcome(tuple(events))
    return RegistrationOutcome(tuple(events), master_address=master.address, master_ha_address=master.ha_address)
