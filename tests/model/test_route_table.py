"""`RouteTable` against a slow and obvious model, and against a mirror fed by its events.

The model keeps flat tables, works on a copy, and looks at everything on every call. After every step:

1. Both agree on every answer: routes, with and without acting masters and zones, clusters, members, editions.
2. The table is consistent: a broker is one address in a cluster, one id in a group and is listed under its connection;
   no group, cluster, connection or topic is empty; a topic is listed under exactly the groups that have queues of it;
   writes are forbidden only to writable topics, and only served topics have mappings.
3. A mirror that saw nothing but the events holds the same groups, brokers, topics, bans, mappings and filter servers,
   and so does a replay of what the journal has of them.
4. Every event tells of a change, and no step that changed the mirror's part of the table was silent.
5. The smallest id is reported if and only if a group had brokers before and after, the smallest id is another one, and,
   where it was a registration, there is another broker to tell.
6. A body that the table remembers is no news: taking it again would change no topic, ban, mapping or filter server.
7. A refused or superseded registration changes nothing at all.
8. Of the brokers that leave one connection in one step, only the last may call it idle, if no broker is left.
9. A table that is written to a snapshot at any moment, and restored from it, is the same one to all who ask, and its
   events build the same mirror from nothing. Its brokers are unconfirmed until they are heard from, and go with a cause
   of their own if they are not; a single topic of a newer edition does not make that edition known.
10. All of this holds at every step of a registration that is prepared, and of a sweep, whatever happens in between.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from skyroute.nameserver.journal.records import Numbered, encode
from skyroute.nameserver.journal.replay import Replay
from skyroute.nameserver.journal.schema import record_decoder
from skyroute.nameserver.server_events import ServerStarted
from skyroute.nameserver.snapshot_file import decode_snapshot, encode_snapshot
from skyroute.remoting.stepwise import run_through
from skyroute.routing import discovery
from skyroute.routing.errors import NameTakenError, PartialFirstRegistrationError, RegistrationRefusedError
from skyroute.routing.events import (
    BrokerChanged,
    BrokerConfirmed,
    BrokerJoined,
    BrokerLeft,
    Cause,
    FilterServersChanged,
    GroupChanged,
    LeaseHeld,
    MappingsChanged,
    RegistrationOutcome,
    RouteEvent,
    SmallestIdChanged,
    TopicsChanged,
    WritesChanged,
)
from skyroute.routing.group_state import GroupState
from skyroute.routing.leases import NO_CONNECTION
from skyroute.routing.preparation import Preparation
from skyroute.routing.registration import DataVersion, Registration, TopicTable
from skyroute.routing.snapshot import GroupSnapshot, snapshot_of
from skyroute.routing.table import RouteTable
from skyroute.routing.table_writer import TOPICS_A_STEP
from skyroute.routing.topology import BrokerKey, QueueSettings, StaticMapping

CLUSTERS, NAMES, IDS = ("c1", "c2"), ("a", "b"), (0, 1, 2)
ADDRESSES, TOPICS, ZONES = ("w:1", "x:1", "y:1", "z:1"), ("T1", "T2", "T3", "T4"), (None, "z1", "Z1", "z2")
CONNECTIONS = (1, 2)
RESTORED_LEASE_S = 45.0
REFUSALS = {"name taken": NameTakenError, "partial": PartialFirstRegistrationError}
WRITE = 2

# Uneven on purpose: a group of three lives only if most brokers want to be in it.
clusters, names, ids = st.sampled_from(("c1", "c1", "c1", "c2")), st.sampled_from(("a", "a", "b")), st.sampled_from(IDS)
addresses, topics, connections = st.sampled_from(ADDRESSES), st.sampled_from(TOPICS), st.sampled_from(CONNECTIONS)
queue_settings = st.builds(QueueSettings, st.just(4), st.sampled_from((4, 8)), st.sampled_from((4, 6, 70)))
versions = st.builds(DataVersion, st.sampled_from((0, 0, 0, 1)), st.integers(1, 3), st.integers(1, 3))
mappings = st.dictionaries(
    topics, st.builds(StaticMapping, st.just("any"), names, st.just(2), st.integers(1, 2)), max_size=2
)
topic_tables = st.builds(
    TopicTable,
    version=versions,
    topics=st.dictionaries(topics, queue_settings, max_size=4),
    mappings=st.one_of(st.just({}), mappings),
    filter_servers=st.sampled_from((None, (), ("f:1",))),
)
registrations = st.builds(
    Registration,
    cluster=clusters,
    broker_name=names,
    broker_id=ids,
    address=addresses,
    ha_address=st.sampled_from((None, "ha:1")),
    zone=st.sampled_from(ZONES),
    acting_master=st.sampled_from((None, False, True, True)),
    lease_s=st.sampled_from((None, 5.0)),
    table=topic_tables,
)


@dataclass
class Broker:
    name: str
    broker_id: int
    cluster: str
    address: str
    ha_address: str | None
    version: DataVersion
    lease_s: float
    expires_at: float
    connection: int
    filter_servers: tuple[str, ...] = ()
    older: int | None = None
    """An older connection that it registered on later."""
    confirmed: bool = True
    restored: bool = False
    held: bool = False

    def renew(self, now: float, connection: int) -> None:
        self.expires_at, self.held = now + self.lease_s, False
        if not self.confirmed:
            self.confirmed, self.connection = True, connection


@dataclass
class Model:
    """The rules, with everything in flat tables."""

    brokers: list[Broker] = field(default_factory=list)
    groups: dict[str, tuple[str, bool, str | None]] = field(default_factory=dict)
    """Name to cluster, acting master, zone."""
    queues: dict[tuple[str, str], QueueSettings] = field(default_factory=dict)
    """Name and topic."""
    forbidden: set[tuple[str, str]] = field(default_factory=set)
    mappings: dict[tuple[str, str], StaticMapping] = field(default_factory=dict)

    def members(self, name: str) -> dict[int, Broker]:
        return {broker.broker_id: broker for broker in self.brokers if broker.name == name}

    def smallest(self) -> dict[str, int]:
        return {name: min(self.members(name)) for name in self.groups}

    def topics(self) -> set[str]:
        return {topic for _, topic in self.queues}

    def find(self, cluster: str, address: str) -> Broker | None:
        return next((b for b in self.brokers if (b.cluster, b.address) == (cluster, address)), None)

    def effective(self, name: str, topic: str) -> QueueSettings:
        given = self.queues[name, topic]
        headless = self.groups[name][1] and 0 not in self.members(name)
        if (name, topic) in self.forbidden or headless:
            return given._replace(permission=given.permission & ~WRITE)
        return given

    def forget_topic(self, name: str, topic: str) -> None:
        del self.queues[name, topic]
        self.forbidden.discard((name, topic))
        self.mappings.pop((name, topic), None)

    def drop(self, gone: list[Broker]) -> None:
        self.brokers = [broker for broker in self.brokers if broker not in gone]
        self.sweep()

    def sweep(self) -> None:
        for name in [name for name in self.groups if not self.members(name)]:
            del self.groups[name]
        for name, topic in [key for key in self.queues if key[0] not in self.groups]:
            self.forget_topic(name, topic)

    def register(
        self, said: Registration, table: TopicTable, connection: int, now: float, *, delete_missing: bool
    ) -> str:
        """What becomes of a registration; anything but "taken" leaves the model as it was."""
        name, broker_id = said.broker_name, said.broker_id
        members = self.members(name)
        holder_of_id = members.get(broker_id)
        known = self.find(said.cluster, said.address)
        if known is not None and known.name != name:
            known = None
        if holder_of_id is not None and holder_of_id.address != said.address:
            if holder_of_id.cluster != said.cluster:
                return "name taken"
            if holder_of_id.version.state_version > table.version.state_version:
                return "superseded"
        if holder_of_id is None and len(table.topics) == 1:
            return "partial"
        compares = known is not None and (
            known.connection > connection or (known.connection == connection and broker_id == 0)
        )
        if known is not None and compares and known.broker_id == broker_id:
            old, new = known.version, table.version
            if old[0] == new[0] and new.counter < old.counter and new.timestamp_ms <= old.timestamp_ms:
                known.renew(now, connection)
                return "overtaken"
        first = holder_of_id is None
        differs = known is None or known.version != table.version
        own = next((broker for broker in members.values() if broker.address == said.address), None)
        kept_filters = () if own is None else own.filter_servers
        still_restored = own is not None and own.restored and len(table.topics) == 1
        version = own.version if own is not None and still_restored else table.version
        newest, older = connection, None
        if own is not None and own.connection >= connection:
            newest = own.connection
            older = own.older if own.connection == connection else connection
        # Conflicting brokers leave: the same broker elsewhere, the former broker of the id, the broker's old id, and
        # members that would follow into a cluster where another group has their address.
        moving = name in self.groups and self.groups[name][0] != said.cluster
        gone = [
            broker
            for broker in self.brokers
            if (broker.cluster, broker.address) == (said.cluster, said.address)
            or (broker.name == name and (broker.broker_id == broker_id or broker.address == said.address))
            or (moving and broker.name == name and self.find(said.cluster, broker.address) is not None)
        ]
        self.brokers = [broker for broker in self.brokers if broker not in gone]
        for broker in self.brokers:
            if broker.name == name:
                broker.cluster = said.cluster
        lease_s = 120.0 if said.lease_s is None else said.lease_s
        filters = kept_filters if table.filter_servers is None else table.filter_servers
        self.brokers.append(
            Broker(
                name, broker_id, said.cluster, said.address, said.ha_address,
                version, lease_s, now + lease_s, newest, filters, older, restored=still_restored,
            )
        )  # fmt: skip
        self.groups[name] = (said.cluster, said.acting_master is True, said.zone)
        self.sweep()
        if broker_id == 0 or (said.acting_master is not None and broker_id == min(self.members(name))):
            self.record(name, table, whole=first or differs, delete_missing=delete_missing)
        return "taken"

    def record(self, name: str, table: TopicTable, *, whole: bool, delete_missing: bool) -> None:
        if delete_missing and not table.mappings:
            for topic in TOPICS:
                if (name, topic) in self.queues and topic not in table.topics:
                    self.forget_topic(name, topic)
        for topic, given in table.topics.items():
            if whole or (name, topic) not in self.queues:
                self.queues[name, topic] = given
                self.forbidden.discard((name, topic))
        for topic, mapping in table.mappings.items():
            if (whole or (name, topic) not in self.mappings) and (name, topic) in self.queues:
                self.mappings[name, topic] = mapping


@dataclass
class Mirror:
    """What can be known from events alone."""

    groups: dict[str, tuple[str, bool, str | None]] = field(default_factory=dict)
    brokers: dict[tuple[str, int], tuple[str, str | None, DataVersion]] = field(default_factory=dict)
    queues: dict[tuple[str, str], QueueSettings] = field(default_factory=dict)
    forbidden: set[tuple[str, str]] = field(default_factory=set)
    mappings: dict[tuple[str, str], StaticMapping] = field(default_factory=dict)
    filter_servers: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)

    def apply(self, event: RouteEvent) -> None:
        match event:
            case GroupChanged():
                self._apply_group(event)
            case BrokerJoined() | BrokerLeft() | BrokerChanged():
                self._apply_broker(event)
            case TopicsChanged():
                self._apply_topics(event)
            case WritesChanged():
                self._apply_writes(event)
            case MappingsChanged():
                self._apply_mappings(event)
            case FilterServersChanged():
                assert event.before != event.after
                assert self.filter_servers.pop((event.broker_name, event.address), ()) == event.before
                if event.after:
                    self.filter_servers[event.broker_name, event.address] = event.after
            case SmallestIdChanged():
                self._check_smallest(event)
            case BrokerConfirmed() | LeaseHeld():
                known = self.brokers[event.broker_name, event.broker_id]
                assert (known[0], known[2]) == (event.address, event.version)
        if not isinstance(event, GroupChanged):
            assert self.groups[event.broker_name][0] == event.cluster

    def _apply_group(self, event: GroupChanged) -> None:
        name = event.broker_name
        before = (event.cluster_before, event.acting_master_before, event.zone_before)
        after = (event.cluster_after, event.acting_master_after, event.zone_after)
        assert before != after
        assert self.groups.get(name, (None, False, None)) == before
        if event.cluster_after is None:
            del self.groups[name]
        else:
            self.groups[name] = (event.cluster_after, event.acting_master_after, event.zone_after)

    def _apply_broker(self, event: BrokerJoined | BrokerLeft | BrokerChanged) -> None:
        name = event.broker_name
        match event:
            case BrokerJoined():
                assert (name, event.broker_id) not in self.brokers
                self.brokers[name, event.broker_id] = (event.address, event.ha_address, event.version)
            case BrokerLeft():
                address, _, version = self.brokers.pop((name, event.broker_id))
                assert (address, version) == (event.address, event.version)
                self.filter_servers.pop((name, address), None)
            case BrokerChanged():
                before = (event.address, event.ha_address_before, event.version_before)
                after = (event.address, event.ha_address_after, event.version_after)
                assert (event.id_before, *before) != (event.id_after, *after)
                assert self.brokers.pop((name, event.id_before)) == before
                assert (name, event.id_after) not in self.brokers
                self.brokers[name, event.id_after] = after

    def _apply_topics(self, event: TopicsChanged) -> None:
        name = event.broker_name
        assert event.added or event.changed or event.removed
        for topic, given in event.added.items():
            assert (name, topic) not in self.queues
            self.queues[name, topic] = given
        for topic, (before, after) in event.changed.items():
            assert before != after
            assert self.queues[name, topic] == before
            self.queues[name, topic] = after
        for topic, given in event.removed.items():
            assert self.queues.pop((name, topic)) == given
        self.forbidden -= {(name, topic) for topic in {*event.changed, *event.removed}}

    def _apply_writes(self, event: WritesChanged) -> None:
        forbidden = {(event.broker_name, topic) for topic in event.forbidden}
        assert forbidden or event.restored
        assert not forbidden & self.forbidden
        self.forbidden |= forbidden
        self.forbidden -= {(event.broker_name, topic) for topic in event.restored}

    def _apply_mappings(self, event: MappingsChanged) -> None:
        assert event.changed
        for topic, (before, after) in event.changed.items():
            assert before != after
            assert self.mappings.pop((event.broker_name, topic), None) == before
            if after is not None:
                self.mappings[event.broker_name, topic] = after

    def _check_smallest(self, event: SmallestIdChanged) -> None:
        by_id = {
            broker_id: self.brokers[name, broker_id][0] for name, broker_id in self.brokers if name == event.broker_name
        }
        smallest = min(by_id)
        assert (event.smallest_id, event.smallest_address) == (smallest, by_id[smallest])
        assert event.others == tuple(by_id[broker_id] for broker_id in sorted(by_id) if broker_id != smallest)


def mirror_of(model: Model) -> Mirror:
    return Mirror(
        groups=model.groups,
        brokers={(b.name, b.broker_id): (b.address, b.ha_address, b.version) for b in model.brokers},
        queues=model.queues,
        forbidden={(name, topic) for name, topic in model.forbidden},
        mappings=model.mappings,
        filter_servers={(b.name, b.address): b.filter_servers for b in model.brokers if b.filter_servers},
    )


def connections_of(model: Model) -> dict[tuple[str, int], set[int]]:
    """The connections that each broker is registered on."""
    return {
        (broker.name, broker.broker_id): {each for each in (broker.connection, broker.older) if each is not None}
        for broker in model.brokers
    }


def told(groups: Iterable[GroupState]) -> dict[str, GroupSnapshot]:
    """Groups as a journal has them: without leases and acting master support."""
    return {
        group.name: replace(
            group,
            members=tuple(
                replace(member, lease_s=0.0, knows_acting=False, left_s=None if member.left_s is None else 0.0)
                for member in group.members
            ),
        )
        for group in snapshot_of(groups, 0.0).groups
    }


def until_done(change: Callable[[], tuple[RouteEvent, ...]]) -> tuple[RouteEvent, ...]:
    """Repeat a change that is made in steps, and return all events."""
    events: tuple[RouteEvent, ...] = ()
    while more := change():
        events += more
    return events


class RouteTableMachine(RuleBasedStateMachine):
    topics_a_step = TOPICS_A_STEP

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable(topics_a_step=self.topics_a_step)
        self.model = Model()
        self.mirror = Mirror()
        self.replay = Replay()
        self.now = 0.0
        self.delete_missing = False
        self.bodies: dict[bytes, TopicTable] = {}
        self.last_word: dict[BrokerKey, Registration] = {}
        self.connections: dict[tuple[str, int], set[int]] = {}
        """Of each broker, by name and id, after the last step."""

    # Steps

    @initialize(said=st.lists(registrations, max_size=4), connection=connections)
    def start_with_some_brokers(self, said: list[Registration], connection: int) -> None:
        for one in said:
            self.register(one, connection)

    @rule(said=registrations, connection=connections)
    def register(self, said: Registration, connection: int) -> None:
        assert said.table is not None
        fingerprint = repr(said.table).encode()
        self.bodies[fingerprint] = said.table
        self.hear(replace(said, fingerprint=fingerprint), connection)

    @precondition(lambda self: self.model.brokers)
    @rule(data=st.data(), table=topic_tables, connection=connections)
    def register_known_broker_again(self, data: st.DataObject, table: TopicTable, connection: int) -> None:
        """With one topic or all, in a new version or the same, perhaps in another role or cluster."""
        broker = data.draw(st.sampled_from(self.model.brokers))
        said = self.last_word[BrokerKey(broker.cluster, broker.address)]
        change = data.draw(st.sampled_from(("edition", "content", "id", "id", "cluster", "flags")))
        if change == "content":
            table = replace(table, version=broker.version)
        self.register(
            replace(
                said,
                table=table,
                broker_id=data.draw(ids) if change == "id" else broker.broker_id,
                cluster=data.draw(clusters) if change == "cluster" else broker.cluster,
                acting_master=data.draw(st.sampled_from((None, False, True)))
                if change == "flags"
                else said.acting_master,
            ),
            connection if change == "id" or not broker.confirmed else broker.connection,
        )

    @precondition(lambda self: self.model.brokers)
    @rule(data=st.data(), connection=connections, acting_master=st.booleans(), zone=st.sampled_from(ZONES))
    def repeat_the_last_word(
        self, data: st.DataObject, connection: int, zone: str | None, *, acting_master: bool
    ) -> None:
        """The broker keeps sending the acting master flag; its value may change."""
        broker = data.draw(st.sampled_from(self.model.brokers))
        said = self.last_word[BrokerKey(broker.cluster, broker.address)]
        if said.acting_master is not None:
            said = replace(said, acting_master=acting_master)
        said = replace(said, zone=zone)
        assert said.fingerprint is not None
        if self.table.remembers(said):
            said = replace(said, table=None)
        self.hear(said, connection)

    def hear(self, said: Registration, connection: int) -> None:
        assert said.fingerprint is not None
        body = self.bodies[said.fingerprint] if said.table is None else said.table
        before, smallest_before = deepcopy(self.model), self.model.smallest()
        fate = self.model.register(said, body, connection, self.now, delete_missing=self.delete_missing)
        if fate in REFUSALS:
            assert self.model == before
            with pytest.raises(REFUSALS[fate]):
                self.tell(said, connection)
            return
        outcome = self.tell(said, connection)
        assert outcome.superseded == (fate == "superseded")
        if fate != "taken":
            assert outcome.events == ()
            return
        self.last_word[said.key] = replace(said, table=body)
        for broker in self.model.members(said.broker_name).values():
            # Those that moved along with their group speak from their new cluster next time.
            moved = self.last_word.get(BrokerKey(before.groups.get(broker.name, ("",))[0], broker.address))
            if broker.address != said.address and moved is not None:
                self.last_word[BrokerKey(broker.cluster, broker.address)] = replace(moved, cluster=broker.cluster)
        master = self.model.members(said.broker_name).get(0) if said.broker_id != 0 else None
        assert outcome.master_address == (master and master.address)
        assert outcome.master_ha_address == (master and master.ha_address)
        self.see(outcome.events, smallest_before, registrant=said.broker_name)

    def tell(self, said: Registration, connection: int) -> RegistrationOutcome:
        return self.table.register(said, connection=connection, now=self.now, delete_missing_topics=self.delete_missing)

    @precondition(lambda self: self.model.brokers)
    @rule(data=st.data(), connection=connections)
    def heartbeat(self, data: st.DataObject, connection: int) -> None:
        broker = data.draw(st.sampled_from(self.model.brokers))
        self.heartbeat_of_anyone(broker.cluster, broker.address, connection)

    @rule(cluster=clusters, address=addresses, connection=connections)
    def heartbeat_of_anyone(self, cluster: str, address: str, connection: int) -> None:
        broker = self.model.find(cluster, address)
        events = self.table.renew(BrokerKey(cluster, address), connection=connection, now=self.now)
        assert (events is None) == (broker is None)
        if broker is not None and events is not None:
            assert len(events) == (not broker.confirmed)
            broker.renew(self.now, connection)
            self.see(events, self.model.smallest())

    @rule()
    def restart(self) -> None:
        """Registrations are restored; connections and expiry times are not."""
        content = b"".join(encode_snapshot(self.table.snapshot(self.now), server_id="model", sequence=0, wall_ms=0))
        self.table, self.mirror = RouteTable(topics_a_step=self.topics_a_step), Mirror()
        events = self.table.restore(decode_snapshot(content)[1], lease_s=RESTORED_LEASE_S, now=self.now)
        assert {event.cause for event in events} <= {Cause.RESTORED}
        self.replay.apply(record_decoder.decode(encode(Numbered(0, 0, 0, ServerStarted("", 0, 0)), "model")))
        for broker in self.model.brokers:
            left_s = RESTORED_LEASE_S if broker.confirmed else broker.expires_at - self.now
            broker.expires_at = self.now + min(RESTORED_LEASE_S, broker.lease_s, left_s)
            broker.confirmed, broker.restored, broker.held = False, True, False
            broker.connection, broker.older = NO_CONNECTION, None
        self.see(events, {})

    @rule(share_max=st.sampled_from((0.0, 0.5, 1.0)))
    def hold_expired(self, share_max: float) -> None:
        gone = [broker for broker in self.model.brokers if broker.expires_at < self.now]
        spared = [broker for broker in gone if broker.confirmed and not broker.held]
        if len(gone) <= share_max * len(self.model.brokers):
            spared = []
        for broker in spared:
            broker.expires_at, broker.held = self.now + broker.lease_s, True
        events = self.table.hold_expired(self.now, share_max=share_max)
        assert all(isinstance(event, LeaseHeld) for event in events)
        assert sorted(event.broker_name for event in events) == sorted(broker.name for broker in spared)
        self.see(events, self.model.smallest())

    @rule(connection=connections)
    def close_connection(self, connection: int) -> None:
        gone = []
        for broker in self.model.brokers:
            if connection in (broker.connection, broker.older):
                if broker.older is None:
                    gone.append(broker)
                elif broker.connection == connection:
                    broker.connection = broker.older
                broker.older = None
        self.lose(gone, until_done(lambda: self.table.drop_connection(connection)))
        assert not self.table.has_brokers_on(connection)

    @rule(seconds=st.sampled_from((1.0, 4.0, 5.0, 60.0)))
    def expire(self, seconds: float) -> None:
        self.now += seconds
        gone = [broker for broker in self.model.brokers if broker.expires_at < self.now]
        events = until_done(lambda: self.table.evict_expired(self.now))
        left = [event for event in events if isinstance(event, BrokerLeft)]
        never_heard = {(e.broker_name, e.broker_id) for e in left if e.cause is Cause.NOT_CONFIRMED}
        assert never_heard == {(broker.name, broker.broker_id) for broker in gone if not broker.confirmed}
        self.lose(gone, events)

    @rule(seconds=st.sampled_from((4.0, 60.0)))
    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.model.brokers)
    @rule(data=st.data(), broker_id=ids, name=names)
    def unregister(self, data: st.DataObject, broker_id: int, name: str) -> None:
        broker = data.draw(st.sampled_from(self.model.brokers))
        if data.draw(st.booleans()):
            broker_id, name = broker.broker_id, broker.name
        matches = (broker.broker_id, broker.name) == (broker_id, name)
        events = self.table.unregister(broker.cluster, broker.address, name, broker_id)
        self.lose([broker] if matches else [], events)

    def lose(self, gone: list[Broker], events: tuple[RouteEvent, ...]) -> None:
        smallest_before = self.model.smallest()
        self.model.drop(gone)
        left = [event for event in events if isinstance(event, BrokerLeft)]
        assert {(event.broker_name, event.broker_id) for event in left} == {(b.name, b.broker_id) for b in gone}
        self.see(events, smallest_before)

    @rule(topic=topics, cluster=st.one_of(st.none(), clusters))
    def delete_topic(self, topic: str, cluster: str | None) -> None:
        for name, (its_cluster, _, _) in self.model.groups.items():
            if cluster in (None, its_cluster) and (name, topic) in self.model.queues:
                self.model.forget_topic(name, topic)
        self.see(until_done(lambda: self.table.delete_topic(topic, cluster)), self.model.smallest())

    @rule(topic=topics, given=st.dictionaries(names, queue_settings, max_size=2))
    def register_topic(self, topic: str, given: Mapping[str, QueueSettings]) -> None:
        if all(name in self.model.groups for name in given):
            for name, one in given.items():
                self.model.queues[name, topic] = one
                self.model.forbidden.discard((name, topic))
        self.see(self.table.register_topic(topic, given), self.model.smallest())

    @rule(name=names)
    def forbid_writes(self, name: str) -> None:
        count, events = self.table.forbid_writes(name)
        served = {key for key in self.model.queues if key[0] == name}
        self.model.forbidden |= {key for key in served if self.model.queues[key].permission & WRITE}
        assert count == len(served)
        self.see(events, self.model.smallest())

    @rule(name=names)
    def restore_writes(self, name: str) -> None:
        count, events = self.table.restore_writes(name)
        self.model.forbidden = {key for key in self.model.forbidden if key[0] != name}
        assert count == sum(key[0] == name for key in self.model.queues)
        self.see(events, self.model.smallest())

    @rule()
    def change_a_setting(self) -> None:
        self.delete_missing = not self.delete_missing
        self.table.forget_fingerprints()

    def see(self, events: tuple[RouteEvent, ...], before: dict[str, int], registrant: str | None = None) -> None:
        for event in events:
            self.mirror.apply(event)
            self.replay.apply(record_decoder.decode(encode(Numbered(0, 0, 0, event), "model")))
        left = [event for event in events if isinstance(event, BrokerLeft)]
        before_step, self.connections = self.connections, connections_of(self.model)
        theirs = {each for event in left for each in before_step[event.broker_name, event.broker_id]}
        reported = [connection for event in left for connection in event.unused_connections]
        assert sorted(reported) == sorted(theirs.difference(*self.connections.values(), {NO_CONNECTION}))
        expected = {
            name: smallest
            for name, smallest in self.model.smallest().items()
            if name in before and before[name] != smallest and (name != registrant or len(self.model.members(name)) > 1)
        }
        told = [(event.broker_name, event.smallest_id) for event in events if isinstance(event, SmallestIdChanged)]
        assert sorted(told) == sorted(expected.items())

    # What always holds

    @invariant()
    def the_mirror_is_the_table(self) -> None:
        assert self.mirror == mirror_of(self.model)

    @invariant()
    def no_byte_is_counted_twice_or_forgotten(self) -> None:
        assert self.table.stats(0.0).registration_bytes == self.table.snapshot(0.0).registration_bytes

    @invariant()
    def a_replay_is_the_table(self) -> None:
        assert told(self.replay.groups.values()) == told(self.table._groups.values())

    @invariant()
    def remembered_bodies_are_no_news(self) -> None:
        for broker in self.model.brokers:
            said = self.last_word[BrokerKey(broker.cluster, broker.address)]
            assert said.table is not None
            assert said.fingerprint is not None
            if self.table.remembers(said):
                told_again = deepcopy(self.model)
                told_again.register(said, said.table, broker.connection, self.now, delete_missing=self.delete_missing)
                told_again.groups = self.model.groups
                assert mirror_of(told_again) == mirror_of(self.model)

    @invariant()
    def lists_agree(self) -> None:
        view = discovery.cluster_view(self.table)
        assert {
            group.name: (group.cluster, group.acting_master, group.zone) for group in view.groups
        } == self.model.groups
        in_clusters = {cluster: set(group_names) for cluster, group_names in view.clusters.items()}
        held = {cluster for cluster, _, _ in self.model.groups.values()}
        assert in_clusters == {c: {n for n, group in self.model.groups.items() if group[0] == c} for c in held}
        assert set(discovery.served_topics(self.table, list(self.table.topics))) == self.model.topics()
        for name in NAMES:
            members = self.model.members(name)
            expected = [(broker_id, members[broker_id].address) for broker_id in sorted(members)]
            assert list(discovery.member_addresses(self.table, name).items()) == expected
        for cluster in CLUSTERS:
            served = {topic for name, topic in self.model.queues if self.model.groups[name][0] == cluster}
            assert set(discovery.topics_of_cluster(self.table, cluster)) == served
            for address in ADDRESSES:
                broker = self.model.find(cluster, address)
                assert self.table.version_of(BrokerKey(cluster, address)) == (broker and broker.version)

    @invariant()
    def routes_agree(self) -> None:
        for topic in TOPICS:
            for acting_master, zone in ((False, None), (True, None), (True, "z1")):
                self.route_agrees(topic, zone, acting_master=acting_master)

    def route_agrees(self, topic: str, zone: str | None, *, acting_master: bool) -> None:
        route = discovery.find_route(self.table, topic, acting_master=acting_master, zone=zone)
        serving = {name for name, served in self.model.queues if served == topic}
        assert (route is None) == (not serving)
        if route is None:
            return
        shown: dict[str, dict[int, str]] = {}
        for name in serving:
            by_id = {broker_id: broker.address for broker_id, broker in self.model.members(name).items()}
            if acting_master and self.model.groups[name][1] and 0 not in by_id:
                by_id[0] = by_id.pop(min(by_id))
            its_zone = self.model.groups[name][2] or ""
            if zone is None or 0 not in by_id or its_zone.lower() == zone.lower():
                shown[name] = by_id
        assert {group.name: dict(group.addresses) for group in route.groups} == shown
        assert {queues.broker_name: queues.settings for queues in route.queues} == {
            name: self.model.effective(name, topic) for name in shown
        }
        filters = {b.address: b.filter_servers for b in self.model.brokers if b.name in shown and b.filter_servers}
        assert set(route.filter_servers) == set(filters)
        mapped = {mapping.broker_name for (_, served), mapping in self.model.mappings.items() if served == topic}
        assert set(route.mappings) == mapped

    @invariant()
    def the_books_agree(self) -> None:
        table = self.table
        members = list(table._leases)
        assert sorted((b.cluster, b.address) for b in self.model.brokers) == sorted(member.key for member in members)
        for member in members:
            assert table._leases.find(member.key) is member
            assert table._groups[member.group.name].members[member.broker_id] is member
            assert member in list(table._leases.on_connection(member.connection))
            broker = self.model.find(*member.key)
            assert broker is not None
            assert (broker.connection, broker.older) == (member.connection, member.older_connection)
            assert broker.expires_at == member.expires_at
            assert broker.confirmed == member.confirmed == (member.connection != NO_CONNECTION)
        assert sum(len(group.members) for group in table._groups.values()) == len(members)
        linked = len(members) + sum(member.older_connection is not None for member in members)
        assert sum(len(held) for held in table._leases._by_connection.values()) == linked
        assert all(table._leases._by_connection.values())
        assert all(table._clusters.values())
        for name, group in table._groups.items():
            assert group.members
            assert name in table._clusters[group.cluster]
            assert group.forbidden <= group.writable()
            assert group.mappings.keys() <= group.queues.keys()
            assert {topic for topic in table.topics if name in table.serving(topic)} == group.queues.keys()
            assert table.is_unconfirmed(name) == any(not b.confirmed for b in self.model.members(name).values())
        assert table.unconfirmed_count == sum(not broker.confirmed for broker in self.model.brokers)
        assert not table.is_swept or all(table.serving(topic) for topic in table.topics)
        assert table._topic_entries == sum(len(group.queues) for group in table._groups.values())


class Begun(NamedTuple):
    """A registration whose preparation goes on while other things happen."""

    said: Registration
    connection: int
    steps: Generator[None, None, Preparation | None]


class InStepsMachine(RouteTableMachine):
    """The same with one topic a step, and with registrations that are prepared while other things happen."""

    topics_a_step = 1

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[Begun] = []
        self.prepared: Preparation | None = None

    def teardown(self) -> None:
        self.abandon_all()
        super().teardown()

    def tell(self, said: Registration, connection: int) -> RegistrationOutcome:
        prepared, self.prepared = self.prepared, None
        if prepared is None:
            prepared = run_through(self.table.prepare(said, delete_missing_topics=self.delete_missing))
        return self.table.register(
            said, connection=connection, now=self.now, delete_missing_topics=self.delete_missing, preparation=prepared
        )

    @rule(
        said=registrations,
        connection=connections,
        meanwhile=st.lists(st.tuples(st.integers(1, 4), topics, queue_settings, st.integers(0, 4)), max_size=4),
        other=registrations,
    )
    def register_while_its_group_changes(
        self,
        said: Registration,
        connection: int,
        meanwhile: list[tuple[int, str, QueueSettings, int]],
        other: Registration,
    ) -> None:
        self.begin(said, connection)
        one = self.begun[-1]
        for steps, topic, given, what in meanwhile:
            self.advance(one, steps)
            match what:
                case 0 | 1:
                    self.delete_topic(topic, None)
                case 2:
                    self.register_topic(topic, {said.broker_name: given})
                case 3:
                    self.close_connection(connection)
                case _:
                    self.register(replace(other, broker_name=said.broker_name), 3 - connection)
            self.check_all()
        self.advance(one, 100)

    def check_all(self) -> None:
        self.the_mirror_is_the_table()
        self.a_replay_is_the_table()
        self.lists_agree()
        self.routes_agree()
        self.the_books_agree()

    @precondition(lambda self: len(self.begun) < 3)
    @rule(said=registrations, connection=connections)
    def begin(self, said: Registration, connection: int) -> None:
        assert said.table is not None
        said = replace(said, fingerprint=repr(said.table).encode())
        steps = self.table.prepare(said, delete_missing_topics=self.delete_missing)
        self.begun.append(Begun(said, connection, steps))

    @precondition(lambda self: self.begun)
    @rule(data=st.data(), count=st.integers(1, 5))
    def go_on(self, data: st.DataObject, count: int) -> None:
        self.advance(data.draw(st.sampled_from(self.begun)), count)

    def advance(self, one: Begun, count: int) -> None:
        """Do some steps of a preparation; the registration is applied with the last."""
        if one not in self.begun:
            return
        try:
            for _ in range(count):
                next(one.steps)
        except StopIteration as end:
            self.prepared = end.value
        except RegistrationRefusedError:
            pass  # it is refused again
        else:
            return
        self.begun.remove(one)
        assert one.said.table is not None
        assert one.said.fingerprint is not None
        self.bodies[one.said.fingerprint] = one.said.table
        self.hear(one.said, one.connection)

    @precondition(lambda self: self.begun)
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.begun))
        self.begun.remove(one)
        one.steps.close()

    @rule()
    def sweep_a_step(self) -> None:
        next(self.table.sweep(), None)

    @rule()
    def sweep_all(self) -> None:
        run_through(self.table.sweep())
        assert self.table.is_swept or self.begun

    @rule()
    def restart(self) -> None:
        self.abandon_all()
        super().restart()

    @rule()
    def change_a_setting(self) -> None:
        self.abandon_all()
        super().change_a_setting()

    def abandon_all(self) -> None:
        while self.begun:
            self.begun.pop().steps.close()


TestInSteps = InStepsMachine.TestCase
TestInSteps.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, print_blob=True)

TestRouteTable = RouteTableMachine.TestCase
TestRouteTable.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, print_blob=True)
