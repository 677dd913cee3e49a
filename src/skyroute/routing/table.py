"""Every change of a route.

`RouteTable` is the one owner of who serves which topic. It reads no clock, and it has one writer; each method first
decides, and may refuse, then writes everything, then returns what happened as events. A refusal leaves no trace.
How the table is read for clients is in `discovery`.

A change of many topics is also applied at once: a group's queues are replaced by a dictionary that `prepare` built in
steps. Only the index of topics is written in steps, before and after. It may list a group that does not serve a topic
yet, or no longer; `serving` leaves such a group out.
"""

from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, KeysView, Mapping, Sequence
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
from skyroute.routing.preparation import Preparation
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
TOPICS_A_STEP: Final = 5_000
"""Topics that are compared, listed or removed in one step: a few milliseconds. A change of more takes several."""


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
        self._preparations: dict[str, list[Preparation]] = {}
        """Group name to the registrations that are being prepared."""
        self._unswept: deque[tuple[str, list[str]]] = deque()
        """Group names with topics that the index may list for them by mistake."""
        self._tickets = 0
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
        """Every topic, as a live view. While `is_swept` is false, it may have topics that no group serves."""
        return self._index.topics

    @property
    def topic_edits(self) -> int:
        """Number of writes to `topics`."""
        return self._index.edits

    @property
    def is_swept(self) -> bool:
        """Whether the index lists only groups that serve the topic. `sweep` has it so, unless a `prepare` goes on."""
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
        if self._unswept or self._preparations:  # as `is_swept`, which would take longer
            return tuple(name for name in names if topic in self.topics_of(name))
        return names

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

    def take_ticket(self) -> int:
        """Return a number for a registration that has just arrived, larger than all before."""
        self._tickets += 1
        return self._tickets

    def is_long(self, broker_name: str, topics: int, *, delete_missing_topics: bool) -> bool:
        """Whether a registration of this many topics takes several steps."""
        return topics > TOPICS_A_STEP or (delete_missing_topics and len(self.topics_of(broker_name)) > TOPICS_A_STEP)

    def prepare(
        self, registration: Registration, *, delete_missing_topics: bool = False
    ) -> Generator[None, None, Preparation | None]:
        """Do most of the work of a long registration, in steps. What clients are told does not change.

        Pass the result to `register` or to `discard`. The table may change between the steps.

        Raises:
            RegistrationRefusedError: One of the rules is against it; nothing was changed.
        """
        name, table = registration.broker_name, registration.table
        while table is not None and self.is_long(name, len(table.topics), delete_missing_topics=delete_missing_topics):
            claim = find_claim(self._groups, self._leases, registration, table)
            if not claim.speaks_for_group:
                return None
            preparation = Preparation(claim, self._groups.get(name), delete_missing=delete_missing_topics)
            self._preparations.setdefault(name, []).append(preparation)
            try:
                yield from self._fill(preparation)
                if self._fits(preparation, find_claim(self._groups, self._leases, registration, table)):
                    return preparation
            except BaseException:
                self.discard(preparation)
                raise
            self.discard(preparation)
        return None

    def _fill(self, preparation: Preparation) -> Generator[None, None, None]:
        name, topics = preparation.broker_name, preparation.table.topics
        yield
        if preparation.removes_missing:
            for part in _parts(list(preparation.queues)):
                preparation.compare_missing(part)
                yield
        for part in _parts(topics):
            preparation.compare(part)
            yield
        self._check_room(brokers=0, topic_entries=preparation.growth, held_bytes=preparation.growth_bytes)
        for part in _parts(list(preparation.added)):
            self._index.add(part, name)
            yield
        edited = preparation.edited
        while len(edited) > TOPICS_A_STEP:
            part = list(islice(edited, TOPICS_A_STEP))
            edited.difference_update(part)
            self._index.add(preparation.compare_again(part), name)
            yield
        self._index.add(preparation.compare_again(edited), name)
        edited.clear()

    def _fits(self, preparation: Preparation, claim: Claim) -> bool:
        return preparation.fits(claim, self._groups.get(preparation.broker_name))

    def discard(self, preparation: Preparation) -> None:
        """End a preparation, applied or not."""
        name = preparation.broker_name
        self._preparations[name].remove(preparation)
        if not self._preparations[name]:
            del self._preparations[name]
        if not preparation.is_applied:
            self._unlist(preparation.added, name)

    def register(
        self,
        registration: Registration,
        *,
        holder: int,
        now: float,
        delete_missing_topics: bool = False,
        preparation: Preparation | None = None,
        ticket: int | None = None,
    ) -> RegistrationOutcome:
        """Take a broker's word that it is there and what it serves.

        Args:
            registration: What it says. Without a table, `remembers` must have said that its body is known.
            holder: Who speaks for it; the broker leaves with its holder. Later ones have higher numbers.
            now: Monotonic seconds.
            delete_missing_topics: A topic the broker no longer names is gone, unless the broker has static topics.
            preparation: Result of `prepare`, without other changes since.
            ticket: From `take_ticket`, if the registration did not arrive just now.

        Raises:
            RegistrationRefusedError: One of the rules is against it; nothing was changed.
            ValueError: There is no table and the body is not remembered.
        """
        ticket = self.take_ticket() if ticket is None else ticket
        table = registration.table
        if table is None:
            return self._register_unchanged(registration, holder=holder, now=now, ticket=ticket)
        try:
            claim = find_claim(self._groups, self._leases, registration, table)
            if claim.is_superseded:
                return RegistrationOutcome(superseded=True)
            claim.refuse_partial()
            if claim.is_late(ticket) or claim.is_overtaken(holder):
                if claim.own is not None:
                    claim.own.renew(now)
                return RegistrationOutcome(overtaken=True)
            queues = None
            if preparation is not None and self._fits(preparation, claim) and not preparation.edited:
                delta, queues = preparation.delta(claim.group), preparation.queues
            else:
                delta = claim.compare_topics(delete_missing=delete_missing_topics)
            self._check_room(
                brokers=int(claim.is_newcomer),
                topic_entries=delta.growth,
                held_bytes=delta.growth_bytes + MEMBER_BYTES * claim.is_newcomer + claim.server_growth_bytes,
            )
            outcome = self._admit(claim, delta, holder=holder, now=now, ticket=ticket, queues=queues)
            if preparation is not None:
                preparation.is_applied = queues is not None
            return outcome
        finally:
            if preparation is not None:
                self.discard(preparation)

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
        for name in self.serving(topic):
            group = self._groups[name]
            if cluster is None or group.cluster == cluster:
                group.forget_fingerprints()
                delta = group.compare_without({topic: group.queues[topic]})
                events += self._apply(group, delta, Cause.TOPIC_DELETED)
        return tuple(events)

    def sweep(self) -> Generator[None, None, None]:
        """Remove from the index, in steps, what large changes have left in it."""
        while self._unswept:
            name, topics = self._unswept[0]
            self._strike(topics[-TOPICS_A_STEP:], name)
            del topics[-TOPICS_A_STEP:]  # the names are freed in steps, too
            if not topics:
                self._unswept.popleft()
            yield

    def _unlist(self, topics: Collection[str], broker_name: str) -> None:
        """Remove a group from topics that it no longer serves: from many later, by `sweep`."""
        if len(topics) <= TOPICS_A_STEP:
            self._strike(topics, broker_name)
        else:
            self._unswept.append((broker_name, list(topics)))

    def _strike(self, topics: Collection[str], broker_name: str) -> None:
        """Remove a group from those topics that it neither serves nor is about to serve."""
        needed = [self.topics_of(broker_name), *(each.added for each in self._preparations.get(broker_name, ()))]
        self._index.remove([topic for topic in topics if not any(topic in each for each in needed)], broker_name)

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

    def _register_unchanged(
        self, registration: Registration, *, holder: int, now: float, ticket: int
    ) -> RegistrationOutcome:
        member = self._leases.find(registration.key)
        if member is None or not self.remembers(registration):
            raise ValueError(
                f"no table and no remembered body for {registration.broker_name}[{registration.broker_id}] "
                f"at {registration.key}"
            )
        if member.ticket > ticket or member.holder > holder:
            member.renew(now)
            return RegistrationOutcome(overtaken=True)
        member.ticket = ticket
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

    def _admit(
        self,
        claim: Claim,
        delta: QueueDelta,
        *,
        holder: int,
        now: float,
        ticket: int,
        queues: dict[str, QueueSettings] | None,
    ) -> RegistrationOutcome:
        """Write a claim that has passed every rule: nothing from here on refuses.

        `queues` are those of the group afterwards, if they were prepared.
        """
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
        member.ticket = ticket
        member.restored = member.restored and claim.is_partial
        # Of one that may still have more to say, no edition was taken: the same words would be news again.
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
        events = self._apply(group, group.compare_empty(), Cause.GROUP_GONE, queues={})
        del self._groups[group.name]
        self._leave_cluster(group)
        return [*events, reports.group_gone(group)]

    def _leave_cluster(self, group: Group) -> None:
        names = self._clusters[group.cluster]
        del names[group.name]
        if not names:
            del self._clusters[group.cluster]

    def _apply(
        self,
        group: Group,
        delta: QueueDelta,
        cause: Cause,
        version: DataVersion | None = None,
        queues: dict[str, QueueSettings] | None = None,
    ) -> list[RouteEvent]:
        """Write what changed of a group's topics. `queues` replace those of the group, if they were prepared."""
        self._held_bytes += delta.growth_bytes
        events: list[RouteEvent] = []
        if delta.added or delta.changed or delta.removed:
            if queues is None:
                self._edit(group, delta)
            else:
                group.queues = queues
                group.replacements += 1
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
        events += reports.writes_changed(group, cause, restored=delta.restored)
        if delta.mappings:
            for topic, (_, mapping) in delta.mappings.items():
                if mapping is None:
                    del group.mappings[topic]
                else:
                    group.mappings[topic] = mapping
            events.append(MappingsChanged(group.cluster, group.name, cause, delta.mappings))
        return events

    def _edit(self, group: Group, delta: QueueDelta) -> None:
        """Write changed topics one by one."""
        # Every group has its own copy of every name, and most settings are alike: keep one object of each.
        names, alike = list(map(intern, delta.added)), dict[QueueSettings, QueueSettings]()
        settings = delta.added.values()
        group.queues.update(zip(names, map(alike.setdefault, settings, settings), strict=True))
        group.queues.update((topic, after) for topic, (_, after) in delta.changed.items())
        for topic in delta.removed:
            del group.queues[topic]
        self._index.add(names, group.name)
        for preparation in self._preparations.get(group.name, ()):
            preparation.edited.update(delta.added, delta.changed, delta.removed)


def _parts(topics: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(topics)
    while part := list(islice(rest, TOPICS_A_STEP)):
        yield part


def _outcome(member: Member, events: list[RouteEvent]) -> RegistrationOutcome:
    master = member.group.master
    if master is None or master is member:
        return RegistrationOutcome(tuple(events))
    return RegistrationOutcome(tuple(events), master_address=master.address, master_ha_address=master.ha_address)
