"""Broker groups of a master and a slave in the simulated cluster, four invariants about them, and planted bugs."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final
from unittest import mock

from skyroute import Producer
from skyroute.broker.acting.returning_master import ReturningMaster
from skyroute.broker.delivery.flush_wait import Flushed
from skyroute.broker.replication import metadata_sync
from skyroute.broker.replication.acknowledgement import Acknowledgement
from skyroute.broker.store.message_store import MessageStore
from skyroute.message.record import decode_record
from skyroute.wire.calls.topics import TopicConfig
from tests.simulation.cluster import BrokerNode, NameServerNode
from tests.simulation.history import Outcome
from tests.simulation.planted import PlantedBug
from tests.simulation.scenario import Application, Plan, Scenario

PREFIX: Final = "a slave's log is a prefix of its master's"
SURVIVES: Final = "nothing acknowledged is lost with the master"
ONCE: Final = "no delayed message is stored twice"
HAS_TOPIC: Final = "a slave has the topics of the second before its master dies"

FAILING: Final = Plan(
    load_s=600.0,
    gap_s=3.0,
    fault_gap_s=45.0,
    faults=(
        *("kill_broker", "kill_after_topic", "kill_slave", "cut_pair", "slow_pair"),
        *("reset_connections", "half_open", "kill_name_server"),
    ),
    faults_at_once=1,
    transactions=0.0,
    handler_failures=0.0,
    sync_flush=True,
    settle_s=120.0,
)
"""Masters, slaves and the network between them fail; everything comes back."""

KILLS: Final = replace(FAILING, fault_gap_s=15.0, faults=("kill_after_topic",))
"""Masters are killed, each a second after it got a topic."""

LOST: Final = replace(FAILING, load_s=300.0, fault_gap_s=30.0, faults=("cut_pair", "kill_slave", "lose_master"))
"""A master is lost with its disk, and its slave is made master."""

ACTING: Final = replace(FAILING, load_s=600.0, fault_gap_s=40.0, faults=("switch_off_master",))
"""Masters are switched off and return, and their slaves act meanwhile."""


@dataclass(eq=False)
class ReplicaScenario(Scenario):
    """Two groups of a `SYNC_MASTER` and a slave. A send is acknowledged when both have it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        world = self.world
        acting = {"acting_master_enabled": True, "notify_min_broker_id": True}
        self.name_servers = [NameServerNode(world, f"10.0.7.{number}", **acting) for number in (1, 2)]
        self.name_server_list = ";".join(each.address for each in self.name_servers)
        common: dict[str, Any] = {
            "flush_disk_type": "SYNC_FLUSH",
            "acting_master_enabled": True,
            "ha_silence_s": 15.0,
            "ha_flow_control": False,
        }
        master = {**common, "broker_role": "SYNC_MASTER", "in_sync_replicas": 2}
        slave = {**common, "broker_role": "SLAVE", "broker_id": 1}
        names = self.name_server_list
        self.brokers = [BrokerNode(world, f"10.0.8.{at}", f"broker-{at}", names, **master) for at in (1, 2)]
        self.slaves = [BrokerNode(world, f"10.0.9.{at}", f"broker-{at}", names, **slave) for at in (1, 2)]
        self._servers = [*self.name_servers, *self.brokers, *self.slaves]
        self._promoted = {**common, "broker_role": "ASYNC_MASTER", "broker_id": 0}
        self._differing: list[str] = []
        self._missing: list[str] = []
        """Topics that a slave does not have when its master dies."""
        self._delivered_alone: set[str] = set()
        self._stored: set[str] = set()
        """Bodies of all messages that the brokers have at the end."""
        self.compared = 0
        """Comparisons of a slave's log with its master's that found records."""

    async def run(self) -> None:
        for slave in self.slaves:
            await slave.start()
        try:
            await super().run()
        finally:
            for slave in self.slaves:
                await slave.stop()

    async def _make_producer(self, application: Application) -> Producer:
        # A send that is repeated by its producer may be stored twice, and that is no fault.
        producer = Producer("producers", retries=0, **application.arguments())
        await producer.start()
        application.spawn(self._produce(application, producer))
        return producer

    # Faults

    async def _kill_slave(self) -> None:
        with self._one_of(self.slaves) as slave:
            if slave is None:
                return
            pause_s = self._pause()
            self.world.note(f"the slave of {slave.name} is killed for {pause_s:.2f} s")
            await slave.kill(power=False)
            await asyncio.sleep(pause_s)
            await slave.restart()

    async def _kill_after_topic(self) -> None:
        """Create a topic without messages on a master, and kill it a second later."""
        with self._one_of(self.brokers) as master:
            if master is None:
                return
            slave = self.slaves[self.brokers.index(master)]
            if master.broker is None or slave.broker is None or slave is master:
                return
            sync = slave.broker.components.metadata_sync
            copies_tables = sync is not None and self.world.loop.time() - sync.synced_at < 2.0
            topic = f"Topic-{self.world.now:.0f}"
            master.broker.components.topics.put(TopicConfig(topic, 1, 1))
            await asyncio.sleep(1.0)
            pause_s = self._pause()
            self.world.note(f"{master.name} is killed for {pause_s:.2f} s, a second after it got a topic")
            await master.kill(power=False)
            if copies_tables and _lacks(slave, topic):
                self._missing.append(f"{self.world.now:.0f} s: the slave of {master.name} has no {topic}")
            await asyncio.sleep(pause_s)
            await master.restart()

    async def _cut_pair(self) -> None:
        at, pause_s = self.world.rng.randrange(2), self._pause()
        pair = [self.brokers[at].ip], [self.slaves[at].ip]
        self.world.note(f"broker-{at + 1} and its slave are cut apart for {pause_s:.2f} s")
        self.world.network.partition(*pair, both_ways=self.world.rng.random() < 0.7)
        await asyncio.sleep(pause_s)
        self.world.network.heal()

    async def _slow_pair(self) -> None:
        at, pause_s, network = self.world.rng.randrange(2), self._pause(), self.world.network
        link = frozenset((self.brokers[at].ip, self.slaves[at].ip))
        self.world.note(f"slow link between broker-{at + 1} and its slave for {pause_s:.2f} s")
        network.slow_links[link] = replace(network.latency, most_s=1.5, spike_share=0.05, spike_s=5.0)
        await asyncio.sleep(pause_s)
        network.slow_links.pop(link, None)

    async def _switch_off_master(self) -> None:
        """Switch off a master when it is idle, so that no message is on its way, long enough for its slave to act."""
        with self._one_of(self.brokers) as master:
            if master is None:
                return
            await self._until_in_step()
            pause_s = self.world.rng.uniform(20.0, 150.0)
            self.world.note(f"{master.name} is switched off for {pause_s:.2f} s")
            self._note_delivered_alone(master, self.slaves[self.brokers.index(master)])
            await master.kill(power=self.world.rng.random() < 0.5)
            await asyncio.sleep(pause_s)
            await master.restart()
            self.world.note(f"{master.name} is back")
            await asyncio.sleep(60.0)

    def _note_delivered_alone(self, master: BrokerNode, slave: BrokerNode) -> None:
        """Note messages that a master has and its slave has not: the slave delivers them again, if they were due."""
        store, copy = _store(master), _store(slave)
        if store is not None and copy is not None:
            self._delivered_alone.update(_bodies(store, copy.max_position))

    async def _lose_master(self) -> None:
        """Lose a master with its disk. Its operator makes the slave master."""
        at = self.world.rng.randrange(2)
        master, slave = self.brokers[at], self.slaves[at]
        if master is slave:
            return
        # Meanwhile no send may be acknowledged.
        self.world.network.partition([master.ip], [slave.ip])
        await asyncio.sleep(self.world.rng.choice((0.0, 2.0, 20.0)))
        self.world.note(f"{master.name} is lost with its disk")
        await master.kill(power=True)
        self.world.network.heal()
        await asyncio.sleep(self.world.rng.uniform(1.0, 40.0))
        await slave.stop()
        slave.change(**self._promoted)
        await slave.start()
        self.brokers[at] = slave
        self.world.note(f"its slave is {master.name} now")

    async def _until_in_step(self) -> None:
        """Wait until slaves have all of their masters' logs."""
        while any(  # noqa: ASYNC110 - virtual time, and the product has no event for it
            pair[0].broker is not None and pair[1].broker is not None and _end(pair[0]) != _end(pair[1])
            for pair in zip(self.brokers, self.slaves, strict=True)
        ):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)

    # Samples

    async def _repair(self) -> None:
        await super()._repair()
        for slave in self.slaves:
            if slave.broker is None:
                await slave.restart()

    def _sample_routes(self) -> None:
        """Compare the logs. Routes are not judged: a group stays in them as long as its master or its slave lives."""
        for master, slave in zip(self.brokers, self.slaves, strict=True):
            ours, theirs = _store(slave), _store(master)
            if ours is None or theirs is None or ours is theirs:
                continue
            start, end = max(ours.min_position, theirs.min_position), ours.max_position
            if end > theirs.max_position:
                found = f"the slave of {master.name} ends at {end}, its master at {theirs.max_position}"
                self._differing.append(f"{self.world.now:.0f} s: {found}")
            elif (position := _first_difference(ours, theirs, start, end)) is not None:
                self._differing.append(f"{self.world.now:.0f} s: {master.name} and its slave differ at {position}")
            self.compared += end > start

    async def _record_end(self) -> None:
        await super()._record_end()
        stores = filter(None, map(_store, self.brokers))
        self._stored = {body for store in stores for body in _bodies(store)}

    def violations(self) -> dict[str, list[str]]:
        found = super().violations()
        if self._differing:
            found[PREFIX] = self._differing
        if self._missing:
            found[HAS_TOPIC] = self._missing
        if self.plan.faults == LOST.faults:
            # A consumer may have got a message that no slave had: its offset is behind what is stored there later.
            found.pop("no acknowledged message lost", None)
        sends = self.history.sends.values()
        lost = [each.body for each in sends if each.outcome is Outcome.ACKNOWLEDGED and each.body not in self._stored]
        if lost:
            found[SURVIVES] = lost
        stored: dict[str, set[tuple[str, int]]] = defaultdict(set)
        for each in self.history.deliveries:
            if self.history.sends[each.body].not_before and each.body not in self._delivered_alone:
                stored[each.body].add((each.queue, each.offset))
        twice = [f"{body} is at {sorted(places)}" for body, places in stored.items() if len(places) > 1]
        if twice and self.plan.faults == ACTING.faults:  # after a crash, a master may repeat what it had just delivered
            found[ONCE] = twice
        return found


def _lacks(node: BrokerNode, topic: str) -> bool:
    """Return whether a running broker does not have a topic."""
    return node.broker is not None and node.broker.components.topics.get(topic) is None


def _store(node: BrokerNode) -> MessageStore | None:
    components = None if node.broker is None else node.broker._components
    return None if components is None else components.store


def _end(node: BrokerNode) -> int:
    store = _store(node)
    return -1 if store is None else store.max_position


def _bodies(store: MessageStore, position: int = 0) -> Iterator[str]:
    """Give the bodies of the messages of a log, from the position of a record on."""
    position, file_bytes = max(position, store.min_position), store.settings.log_segment_bytes
    while position < store.max_position:
        record = store.record_at(position)
        if record is None:  # the rest of a file
            position += file_bytes - position % file_bytes
        else:
            yield decode_record(record).body.decode("utf-8", "replace")
            position += len(record)


def _read(store: MessageStore, position: int, end: int) -> bytes:
    found = store.log_range(position, end - position)
    return b"" if found is None else os.pread(found[0], found[2], found[1])


def _first_difference(one: MessageStore, other: MessageStore, position: int, end: int) -> int | None:
    """Return the first position in a range at which two logs differ."""
    while position < end:
        ours, theirs = _read(one, position, end), _read(other, position, end)
        size = min(len(ours), len(theirs))
        if not size or ours[:size] != theirs[:size]:
            return position + next((at for at in range(size) if ours[at] != theirs[at]), 0)
        position += size
    return None


def _change_replicated_bytes() -> AbstractContextManager[Any]:
    append_raw, calls = MessageStore.append_raw, count(1)

    def change_some(self: MessageStore, position: int, data: bytes) -> None:
        append_raw(self, position, data if next(calls) % 20 else data[:-1] + bytes([data[-1] ^ 1]))

    return mock.patch.object(MessageStore, "append_raw", change_some)


def _wait_for_no_slave() -> AbstractContextManager[Any]:
    return mock.patch.object(Acknowledgement, "wait_for", lambda _, __, then: then(Flushed.DONE))


def _forget_what_the_slave_delivered() -> AbstractContextManager[Any]:
    async def take_over_nothing(_: ReturningMaster) -> bool:
        return False

    return mock.patch.object(ReturningMaster, "take_over", take_over_nothing)


def _copy_tables_seldom() -> AbstractContextManager[Any]:
    return mock.patch.object(metadata_sync, "TICK_S", 1.5)


PLANTED: Final = (
    PlantedBug("change replicated bytes", PREFIX, FAILING, _change_replicated_bytes, ReplicaScenario),
    PlantedBug("copy tables every 1.5 s", HAS_TOPIC, KILLS, _copy_tables_seldom, ReplicaScenario),
    PlantedBug("wait for no slave", SURVIVES, LOST, _wait_for_no_slave, ReplicaScenario),
    PlantedBug("forget what the slave delivered", ONCE, ACTING, _forget_what_the_slave_delivered, ReplicaScenario),
)
