"""The route table: every change of a route.

`RouteTable` is the one owner of which broker groups serve which topics. It reads no clock and has one writer. Each
method first decides, and may refuse, then writes everything, then returns the events. A refusal leaves no trace.
`discovery` reads the table for clients.

A change of many topics is also applied at once: a group's queues are replaced by a dictionary that `prepare` built in
steps. Only the index of topics is written in steps, before and after. It may list a group that does not serve a topic
yet, or no longer; `serving` leaves such a group out.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from skyroute.routing import event_builders
from skyroute.routing.errors import TableFullError
from skyroute.routing.events import Cause, RegistrationOutcome, RouteEvent
from skyroute.routing.memory_estimate import MEMBER_BYTES
from skyroute.routing.preparation import Preparation
from skyroute.routing.registration import Registration
from skyroute.routing.registration_check import RegistrationCheck, check_registration
from skyroute.routing.snapshot import TableSnapshot
from skyroute.routing.table_writer import LEAVING_COST, TOPICS_A_STEP, RouteTableWriter, outcome_of
from skyroute.routing.topology import BrokerKey, QueueSettings

LEASE_S: Final = 120.0
"""Lease of a broker that does not name its own."""
BROKERS_MAX: Final = 20_000
TOPIC_ENTRIES_MAX: Final = 10_000_000
"""Bound on pairs of a broker group and a topic it serves."""
REGISTRATION_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Maximum memory of all registrations by `memory_estimate`: 4.8 million pairs with names of 30 characters."""


class RouteTable(RouteTableWriter):
    """Which brokers are registered, which topics they serve, and when their leases expire.

    A broker is one address within a cluster and one id within a group, both ways. A group is identified by its name
    alone: no request tells two groups of one name apart.
    """

    def __init__(
        self,
        *,
        lease_s: float = LEASE_S,
        brokers_max: int = BROKERS_MAX,
        topic_entries_max: int = TOPIC_ENTRIES_MAX,
        registration_bytes_max: int = REGISTRATION_BYTES_MAX,
        topics_a_step: int = TOPICS_A_STEP,
    ) -> None:
        super().__init__(lease_s, topics_a_step)
        self._brokers_max = brokers_max
        self._topic_entries_max = topic_entries_max
        self._registration_bytes_max = registration_bytes_max
        self._tickets = 0

    def remembers(self, registration: Registration) -> bool:
        """Whether a registration's body is the last one applied for its broker, and need not be decoded.

        Called by the registration handler before it decodes. False for a slave that begins or ceases to support acting
        masters: its topics may become those of the group.
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
        """Decode the next registration of every broker. Called when a setting changes what bodies mean."""
        for group in self._groups.values():
            group.forget_fingerprints()

    def take_ticket(self) -> int:
        """Return the arrival number of a registration, larger than all before."""
        self._tickets += 1
        return self._tickets

    def is_long(self, broker_name: str, topics: int, *, delete_missing_topics: bool) -> bool:
        """Whether a registration of this many topics takes several steps."""
        return topics > self._topics_a_step or (
            delete_missing_topics and len(self.topics_of(broker_name)) > self._topics_a_step
        )

    def prepare(
        self, registration: Registration, *, delete_missing_topics: bool = False
    ) -> Generator[None, None, Preparation | None]:
        """Do most of the work of a long registration, in steps. Routes do not change.

        Pass the result to `register` or to `discard`. The table may change between the steps.

        Raises:
            RegistrationRefusedError: A rule refuses it; nothing was changed.
        """
        name, table = registration.broker_name, registration.table
        while table is not None and self.is_long(name, len(table.topics), delete_missing_topics=delete_missing_topics):
            check = check_registration(self._groups, self._leases, registration, table)
            if not check.defines_topics:
                return None
            preparation = Preparation(
                check, self._groups.get(name), self._index.own, delete_missing=delete_missing_topics
            )
            self._preparations.setdefault(name, []).append(preparation)
            try:
                yield from self._fill(preparation)
                if self._fits(preparation, check_registration(self._groups, self._leases, registration, table)):
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
            for part in _parts(list(preparation.queues), self._topics_a_step):
                preparation.compare_missing(part)
                yield
        for part in _parts(topics, self._topics_a_step):
            preparation.compare(part)
            yield
        self._check_room(brokers=0, topic_entries=preparation.growth, registration_bytes=preparation.growth_bytes)
        for part in _parts(list(preparation.added), self._topics_a_step):
            self._index.add(part, name)
            yield
        edited = preparation.edited
        while len(edited) > self._topics_a_step:
            part = list(islice(edited, self._topics_a_step))
            edited.difference_update(part)
            self._index.add(preparation.compare_again(part), name)
            yield
        self._index.add(preparation.compare_again(edited), name)
        edited.clear()

    def _fits(self, preparation: Preparation, check: RegistrationCheck) -> bool:
        return preparation.fits(check, self._groups.get(preparation.broker_name))

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
        connection: int,
        now: float,
        delete_missing_topics: bool = False,
        preparation: Preparation | None = None,
        ticket: int | None = None,
    ) -> RegistrationOutcome:
        """Register a broker and its topics, and renew its lease.

        Args:
            registration: Without a table only if `remembers` returned true.
            connection: Number of the connection it came on, larger than those of older connections. The broker is
                removed when that connection closes, unless it has registered on another one since.
            now: Monotonic seconds.
            delete_missing_topics: Remove topics that are not in the registration, unless the broker has static topics.
            preparation: Result of `prepare`, without other changes since.
            ticket: From `take_ticket`, if the registration did not arrive just now.

        Raises:
            RegistrationRefusedError: A rule refuses it; nothing was changed.
            ValueError: There is no table and the body is not remembered.
        """
        ticket = self.take_ticket() if ticket is None else ticket
        table = registration.table
        if table is None:
            return self._register_unchanged(registration, connection=connection, now=now, ticket=ticket)
        try:
            check = check_registration(self._groups, self._leases, registration, table)
            if check.is_superseded:
                return RegistrationOutcome(superseded=True)
            check.refuse_partial()
            if check.is_late(ticket) or check.is_overtaken(connection):
                if check.known is not None:
                    check.known.renew(now)
                return RegistrationOutcome(overtaken=True)
            queues = None
            if preparation is not None and self._fits(preparation, check) and not preparation.edited:
                delta, queues = preparation.delta(check.group), preparation.queues
            else:
                delta = check.compare_topics(delete_missing=delete_missing_topics)
            self._check_room(
                brokers=int(check.is_new_broker),
                topic_entries=delta.growth,
                registration_bytes=delta.growth_bytes
                + MEMBER_BYTES * check.is_new_broker
                + check.filter_server_growth_bytes,
            )
            outcome = self._admit(check, delta, connection=connection, now=now, ticket=ticket, queues=queues)
            if preparation is not None:
                preparation.is_applied = queues is not None
            return outcome
        finally:
            if preparation is not None:
                self.discard(preparation)

    def register_topic(self, topic: str, settings: Mapping[str, QueueSettings]) -> tuple[RouteEvent, ...]:
        """Register one topic outside a registration, by broker name. Ignored if any of the names is unknown.

        Raises:
            TableFullError: The table has no room for it; nothing was changed.
        """
        if not settings.keys() <= self._groups.keys():
            return ()
        deltas = {name: self._groups[name].compare_one(topic, one) for name, one in settings.items()}
        self._check_room(
            brokers=0,
            topic_entries=sum(delta.growth for delta in deltas.values()),
            registration_bytes=sum(delta.growth_bytes for delta in deltas.values()),
        )
        events: list[RouteEvent] = []
        for name, delta in deltas.items():
            self._groups[name].forget_fingerprints()
            events += self._apply(self._groups[name], delta, Cause.TOPIC_REGISTERED)
        return tuple(events)

    def renew(self, key: BrokerKey, *, connection: int, now: float) -> tuple[RouteEvent, ...] | None:
        """Renew a broker's lease. None: the broker is not registered.

        `connection` is used only for a restored broker, which has none yet.
        """
        member = self._leases.find(key)
        if member is None:
            return None
        member.renew(now)
        return tuple(self._confirm(member, Cause.HEARTBEAT, connection=connection))

    def restore(self, snapshot: TableSnapshot, *, lease_s: float, now: float) -> tuple[RouteEvent, ...]:
        """Fill an empty table from a snapshot.

        The brokers have no connection until they send something, and leases of at most `lease_s`.

        Raises:
            InvalidSnapshotError: It contradicts itself; nothing was changed.
            TableFullError: The table has no room for it; nothing was changed.
        """
        assert not self._groups, "only an empty table is restored"
        snapshot.check()
        self._check_room(
            brokers=snapshot.broker_count,
            topic_entries=snapshot.topic_entry_count,
            registration_bytes=snapshot.registration_bytes,
        )
        return tuple(event for saved in snapshot.groups for event in self._restore_group(saved, now, lease_s))

    def unregister(self, cluster: str, address: str, broker_name: str, broker_id: int) -> tuple[RouteEvent, ...]:
        """Remove a broker if all arguments match: a late request must not remove a newer registration."""
        member = self._leases.find(BrokerKey(cluster, address))
        if member is None or member.group.name != broker_name or member.broker_id != broker_id:
            return ()
        return tuple(self._leave([member], Cause.UNREGISTERED))

    def drop_connection(self, connection: int) -> tuple[RouteEvent, ...]:
        """Remove the brokers that registered on this connection and on no other open one, or the first of many.

        The next call removes more, until there are no events.
        """
        return tuple(self._leave(self._first(self._leases.close_connection(connection)), Cause.CONNECTION_CLOSED))

    def evict_expired(self, now: float) -> tuple[RouteEvent, ...]:
        """Evict the brokers whose leases have expired, or the first of many, as `drop_connection` does."""
        return tuple(self._leave(self._first(self._leases.expired(now)), Cause.LEASE_EXPIRED))

    def hold_expired(self, now: float, *, share_max: float) -> tuple[RouteEvent, ...]:
        """Extend expired leases once, if they are more than this share of all leases.

        Many brokers seldom fail together: a stall of this process or of the network is more likely. A broker is held
        again only after it has sent something. Restored brokers that have sent nothing since the restart are not held.
        """
        expired = self._leases.expired(now)
        if len(expired) <= share_max * len(self._leases):
            return ()
        held = [member for member in expired if member.confirmed and not member.held]
        for member in held:
            member.renew(now)
            member.held = True
        return tuple(map(event_builders.lease_held, held))

    def delete_topic(self, topic: str, cluster: str | None = None) -> tuple[RouteEvent, ...]:
        """Delete a topic, in one cluster or everywhere: from all its groups, or from the first of many.

        The next call deletes it from more, until there are no events. A broker that still has it adds it again when it
        registers.
        """
        groups = (self._groups[name] for name in self.serving(topic))
        within = (group for group in groups if cluster is None or group.cluster == cluster)
        events: list[RouteEvent] = []
        for group in list(islice(within, max(1, self._topics_a_step // LEAVING_COST))):
            group.forget_fingerprints()
            delta = group.compare_without({topic: group.queues[topic]})
            events += self._apply(group, delta, Cause.TOPIC_DELETED)
        return tuple(events)

    def sweep(self) -> Generator[None, None, None]:
        """Remove from the index, in steps, entries that large changes have left in it."""
        while self._unswept:
            name, topics = self._unswept[0]
            self._remove_from_index(topics[-self._topics_a_step :], name)
            del topics[-self._topics_a_step :]  # the names are freed in steps, too
            if not topics:
                self._unswept.popleft()
            yield

    def forbid_writes(self, broker_name: str) -> tuple[int, tuple[RouteEvent, ...]]:
        """Make a group's topics read-only until its broker sends a new version. Returns its number of topics."""
        group = self._groups.get(broker_name)
        if group is None:
            return 0, ()
        forbidden = frozenset(group.writable() - group.forbidden)
        group.forbidden |= forbidden
        return len(group.queues), tuple(
            event_builders.writes_changed(group, Cause.WRITES_FORBIDDEN, forbidden=forbidden)
        )

    def restore_writes(self, broker_name: str) -> tuple[int, tuple[RouteEvent, ...]]:
        """Restore the permissions that a group's broker registered. Returns its number of topics."""
        group = self._groups.get(broker_name)
        if group is None:
            return 0, ()
        restored = frozenset(group.forbidden)
        group.forbidden.clear()
        return len(group.queues), tuple(event_builders.writes_changed(group, Cause.WRITES_RESTORED, restored=restored))

    def _check_room(self, *, brokers: int, topic_entries: int, registration_bytes: int) -> None:
        if brokers > 0 and len(self._leases) + brokers > self._brokers_max:
            raise TableFullError(f"the table is full: it has {len(self._leases)} brokers (brokersMax)")
        if topic_entries > 0 and self._topic_entries + topic_entries > self._topic_entries_max:
            raise TableFullError(
                f"the table is full: {self._topic_entries} topic entries and {topic_entries} new ones are more than"
                f" {self._topic_entries_max} (topicEntriesMax)"
            )
        if registration_bytes > 0 and self._registration_bytes + registration_bytes > self._registration_bytes_max:
            raise TableFullError(
                f"the table is full: {self._registration_bytes} bytes of registrations and {registration_bytes}"
                f" new ones are more than {self._registration_bytes_max} (registrationBytesMax)"
            )

    def _register_unchanged(
        self, registration: Registration, *, connection: int, now: float, ticket: int
    ) -> RegistrationOutcome:
        member = self._leases.find(registration.key)
        if member is None or not self.remembers(registration):
            raise ValueError(
                f"no table and no remembered body for {registration.broker_name}[{registration.broker_id}] "
                f"at {registration.key}"
            )
        if member.ticket > ticket:
            member.renew(now)
            return RegistrationOutcome(overtaken=True)
        member.ticket = ticket
        events = [
            *self._place(member.group, registration),
            *self._refresh(member, registration, member.version, connection=connection, now=now),
        ]
        return outcome_of(member, events)


def _parts(topics: Iterable[str], size: int) -> Iterator[list[str]]:
    rest = iter(topics)
    while part := list(islice(rest, size)):
        yield part
