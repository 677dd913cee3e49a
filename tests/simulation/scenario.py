"""A cluster under load with faults: two name servers, two brokers, producers, push, ordered and pull consumers."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from skyroute import (
    Admin,
    Consumer,
    Intervals,
    Message,
    Producer,
    PullConsumer,
    QueueRef,
    SkyrouteError,
    StartPosition,
    StoredMessage,
    TransactionOutcome,
)
from skyroute.nameserver.journal.reader import read_records
from skyroute.nameserver.journal.replay import Replay
from skyroute.remoting.client import Channel, connect
from skyroute.remoting.errors import RemotingError
from skyroute.routing.group_state import GroupState
from skyroute.routing.snapshot import GroupSnapshot, snapshot_of
from skyroute.wire.calls.watch import Bookmark, WatchQuery, decode_watch_answer, encode_watch
from tests.simulation.checkers import check
from tests.simulation.cluster import BrokerNode, Machine, NameServerNode, World
from tests.simulation.history import (
    Delivery,
    Ending,
    History,
    JournalSample,
    Outcome,
    RegistrationSample,
    RouteSample,
    Send,
    WatchStep,
)
from tests.simulation.loop import HOST
from tests.simulation.network import Latency
from tests.simulation.seams import simulated

ORDERS: Final = "Orders"
LEDGER: Final = "Ledger"
SETTLE_S: Final = 240.0
"""Time without faults and sends at the end: longer than a lease, a lock and the longest retry."""
SAMPLE_S: Final = 5.0
JOURNAL_SAMPLES: Final = 5
"""Every so many samples, the journals are replayed too."""
INTERVALS: Final = Intervals(commit_s=8.0)
"""With fewer commits: most have nothing new to say."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of one run."""

    load_s: float = 3_600.0 - SETTLE_S
    gap_s: float = 12.0
    """Mean time between two bursts of one producer."""
    burst: int = 6
    fault_gap_s: float = 100.0
    """Mean time between two faults; 0: no faults."""
    transactions: float = 0.05
    """The share of messages that are sent in a transaction."""
    handler_failures: float = 0.01
    """The share of handler calls that fail."""
    faults: tuple[str, ...] = (
        *(
            "kill_broker",
            "kill_broker",
            "kill_twice",
            "kill_name_server",
            "partition",
            "partition",
            "reset_connections",
            "half_open",
        ),
        *(
            "slow_network",
            "slow_reader",
            "slow_disk",
            "fill_disk",
            "fail_sync",
            "replace_application",
            "replace_application",
        ),
        "step_clock",
    )
    """Methods of `Scenario`, each with an underscore; one that is listed twice is chosen twice as often."""
    faults_at_once: int = 2
    """How many faults may last at the same time."""
    sync_flush: bool | None = None
    """Whether sends wait for the disk, so that no power failure loses them; None: the seed decides."""
    loses_names: bool | None = None
    """Whether a power failure may lose the name of a file whose folder was not synced; None: the seed decides."""
    settle_s: float = SETTLE_S


HANDLER_FAILURE: Final = "this handler fails, in this simulation"


class Node(Protocol):
    """What has a machine."""

    machine: Machine


N = TypeVar("N", bound=Node)


class Application:
    """A client on a machine of its own, which can be switched off and replaced."""

    def __init__(self, scenario: Scenario, ip: str, name: str, make: Callable[[Application], Awaitable[Any]]) -> None:
        self.scenario = scenario
        self.machine = Machine(scenario.world, ip)
        self.name = name
        self.lives = 0
        self.rng = random.Random(f"{name} {scenario.world.seed}")
        self._make = make
        self.client: Any = None
        self.tasks: list[asyncio.Task[Any]] = []

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that put a client on this machine."""
        return {
            "name_servers": self.scenario.name_server_list,
            "client_ip": self.machine.ip,
            "clock": self.machine.clock,
            "instance_name": f"{self.name}-{self.lives}",
        }

    async def start(self) -> None:
        self.lives += 1
        self.client = await self.machine.spawn(_as_coroutine(self._make(self)))

    def spawn(self, work: Any) -> None:
        self.tasks.append(self.machine.spawn(work))

    async def kill(self) -> None:
        """Switch the machine off: nothing that the client does to stop reaches anybody."""
        network = self.scenario.world.network
        network.switch_off(self.machine.ip)
        await self.stop()

    async def restart(self) -> None:
        self.scenario.world.network.switch_on(self.machine.ip)
        await self.start()

    async def stop(self) -> None:
        client, self.client = self.client, None
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if client is not None:
            with suppress(SkyrouteError):
                await self.machine.spawn(client.stop())


async def _as_coroutine(work: Awaitable[Any]) -> Any:
    return await work


@dataclass(eq=False)
class Scenario:
    """One run: builds the cluster, sends, breaks things, and records the history."""

    world: World
    plan: Plan
    history: History = field(default_factory=History)

    def __post_init__(self) -> None:
        world, rng = self.world, self.world.rng
        self.name_servers = [NameServerNode(world, f"10.0.0.{number}") for number in (1, 2)]
        self.name_server_list = ";".join(each.address for each in self.name_servers)
        chooses_sync = rng.random() < 0.7
        self.survives_power_failure = chooses_sync if self.plan.sync_flush is None else self.plan.sync_flush
        settings = {"flush_disk_type": "SYNC_FLUSH" if self.survives_power_failure else "ASYNC_FLUSH"}
        self.brokers = [
            BrokerNode(world, f"10.0.1.{number}", f"broker-{number}", self.name_server_list, **settings)
            for number in (1, 2)
        ]
        self._servers: list[Node] = [*self.name_servers, *self.brokers]
        chooses_names = rng.random() < 0.4
        for node in self._servers:
            node.machine.disk.faults.loses_names = (
                chooses_names if self.plan.loses_names is None else self.plan.loses_names
            )
        self.applications = [
            Application(self, "10.0.2.1", "producer-1", self._make_producer),
            Application(self, "10.0.2.2", "producer-2", self._make_producer),
            Application(self, "10.0.3.1", "push-1", self._make_push),
            Application(self, "10.0.3.2", "push-2", self._make_push),
            Application(self, "10.0.3.3", "ordered-1", self._make_ordered),
            Application(self, "10.0.3.4", "ordered-2", self._make_ordered),
            Application(self, "10.0.3.5", "pull-1", self._make_pull),
            Application(self, "10.0.3.6", "pull-2", self._make_pull),
        ]
        self._watcher = Machine(world, "10.0.4.1")
        self._is_sending = True
        self._is_over = asyncio.Event()
        """No further fault begins."""
        self._busy: set[str] = set()
        """Machines with a fault."""
        self._link_since: dict[tuple[str, str], tuple[bool, float, int]] = {}
        self.history.topics = {"push": ORDERS, "pull": ORDERS, "ordered": LEDGER}
        self.history.ordered_groups = {"ordered"}

    # The run

    async def run(self) -> None:
        world = self.world
        for name_server in self.name_servers:
            await name_server.start()
        for broker in self.brokers:
            await broker.start()
        await self._watcher.spawn(self._create_topics())
        for application in self.applications:
            await application.start()
        background = [self._watcher.spawn(self._watch(each)) for each in self.name_servers]
        background.append(world.loop.create_task(self._sample_for_ever()))
        number_of_faults = self.plan.faults_at_once if self.plan.fault_gap_s else 0
        faults = [world.loop.create_task(self._break_things()) for _ in range(number_of_faults)]
        await asyncio.sleep(self.plan.load_s)
        self._is_over.set()
        await asyncio.gather(*faults)  # each ends what it has begun
        world.note("the load ends")
        self._is_sending = False
        await self._repair()
        await asyncio.sleep(self.plan.settle_s)
        await self._record_end()
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        world.note("all stop")
        for application in self.applications:
            await application.stop()
        for broker in self.brokers:
            await broker.stop()
        for name_server in self.name_servers:
            await name_server.stop()

    async def _create_topics(self) -> None:
        admin = Admin(self.name_server_list, client_ip=self._watcher.ip, clock=self._watcher.clock)
        async with admin:
            for topic in (ORDERS, LEDGER):
                await admin.create_topic(topic, read_queues=4, write_queues=4)
        await asyncio.sleep(1.0)

    # Producers

    async def _make_producer(self, application: Application) -> Producer:
        producer = Producer("producers", check=self._check, **application.arguments())
        await producer.start()
        application.spawn(self._produce(application, producer))
        return producer

    async def _produce(self, application: Application, producer: Producer) -> None:
        rng, plan, number = application.rng, self.plan, 0
        prefix = f"{application.name}.{application.lives}"
        while True:
            await asyncio.sleep(rng.expovariate(1 / plan.gap_s))
            if not self._is_sending:
                return
            for _ in range(rng.randint(1, plan.burst)):
                number += 1
                body = f"{prefix}.{number}"
                chance = rng.random()
                if rng.random() < plan.transactions:
                    ending = rng.choice((Ending.COMMIT, Ending.ROLLBACK))
                    await self._send_in_transaction(producer, body, ending, knows=rng.random() < 0.7)
                elif chance < 0.5:
                    await self._send(producer, Message(ORDERS, body.encode()), body)
                elif chance < 0.9:
                    key = f"key-{rng.randrange(4)}"
                    await self._send(producer, Message(LEDGER, body.encode(), sharding_key=key), body)
                else:
                    delay_s = rng.choice((1.0, 5.0, 10.0))
                    level = {1.0: 1, 5.0: 2, 10.0: 3}[delay_s]
                    message = Message(ORDERS, body.encode(), delay_level=level)
                    await self._send(producer, message, body, delay_s=delay_s)

    async def _send(self, producer: Producer, message: Message, body: str, *, delay_s: float = 0.0) -> None:
        now = self.world.now
        send = self.history.sends[body] = Send(body, message.topic, now, not_before=now + delay_s if delay_s else 0.0)
        try:
            result = await producer.send(message)
        except SkyrouteError as error:
            self.world.trace(f"send {body} {type(error).__name__}")
        else:
            send.outcome = Outcome.ACKNOWLEDGED if result.ok else Outcome.UNSAFE
            send.queue, send.offset = _name(result.queue), result.queue_offset
            self.world.trace(f"sent {body} {send.queue} {send.offset}")

    async def _send_in_transaction(self, producer: Producer, body: str, ending: Ending, *, knows: bool) -> None:
        send = self.history.sends[body] = Send(body, ORDERS, self.world.now, ending=ending)

        async def execute(_: Message, __: object) -> TransactionOutcome:
            await asyncio.sleep(0.01)
            return _outcome(ending) if knows else TransactionOutcome.UNKNOWN

        with suppress(SkyrouteError):
            result = await producer.send_in_transaction(Message(ORDERS, body.encode()), execute)
            if result.sent.ok:
                send.outcome = Outcome.ACKNOWLEDGED

    async def _check(self, message: StoredMessage) -> TransactionOutcome:
        send = self.history.sends.get(message.body.decode())
        return TransactionOutcome.ROLLBACK if send is None or send.ending is None else _outcome(send.ending)

    # Consumers

    async def _make_push(self, application: Application) -> Consumer:
        consumer = Consumer(
            "push", start=StartPosition.FIRST, concurrency=4, intervals=INTERVALS, **application.arguments()
        )
        consumer.subscribe(ORDERS, handler=self._handler("push", application))
        await self._start(consumer)
        return consumer

    async def _make_ordered(self, application: Application) -> Consumer:
        consumer = Consumer(
            "ordered", ordered=True, start=StartPosition.FIRST, intervals=INTERVALS, **application.arguments()
        )
        consumer.subscribe(LEDGER, handler=self._handler("ordered", application))
        await self._start(consumer)
        return consumer

    async def _start(self, consumer: Consumer | PullConsumer) -> None:
        """Start a consumer, as applications do: try again until a name server responds."""
        while True:
            try:
                await consumer.start()
            except SkyrouteError as error:
                self.world.trace(f"start {type(error).__name__}")
                await asyncio.sleep(1.0)
            else:
                return

    def _handler(self, group: str, application: Application) -> Callable[[StoredMessage], Awaitable[None]]:
        async def handle(message: StoredMessage) -> None:
            delivery = self._deliver(group, application, message)
            await asyncio.sleep(application.rng.uniform(0.001, 0.05))
            if application.rng.random() < self.plan.handler_failures:
                self.history.had_faults = True
                raise ValueError(HANDLER_FAILURE)
            delivery.is_consumed = True

        return handle

    def _deliver(self, group: str, application: Application, message: StoredMessage) -> Delivery:
        queue = f"{message.topic}@{message.queue.broker_name}:{message.queue_id}"
        delivery = Delivery(
            self.world.now,
            group,
            f"{application.name}-{application.lives}",
            message.body.decode(),
            message.topic,
            queue,
            message.queue_offset,
        )
        self.history.deliveries.append(delivery)
        self.world.trace(f"{group} {delivery.consumer} {delivery.body} {delivery.queue} {delivery.offset}")
        return delivery

    async def _make_pull(self, application: Application) -> PullConsumer:
        consumer = PullConsumer("pull", start=StartPosition.FIRST, intervals=INTERVALS, **application.arguments())
        consumer.subscribe(ORDERS)
        await self._start(consumer)
        application.spawn(self._poll(application, consumer))
        return consumer

    async def _poll(self, application: Application, consumer: PullConsumer) -> None:
        while True:
            try:
                messages = await consumer.poll(timeout_s=20.0)
            except SkyrouteError:
                await asyncio.sleep(1.0)
                continue
            for message in messages:
                self._deliver("pull", application, message).is_consumed = True

    # Faults

    async def _break_things(self) -> None:
        rng = self.world.rng
        gap_s = self.plan.fault_gap_s * self.plan.faults_at_once
        while not self._is_over.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(rng.expovariate(1 / gap_s)):
                    await self._is_over.wait()
                return
            self.history.had_faults = True
            fault: Callable[[], Awaitable[None]] = getattr(self, f"_{rng.choice(self.plan.faults)}")
            await fault()

    @contextmanager
    def _one_of(self, nodes: Sequence[N]) -> Iterator[N | None]:
        """Choose a machine without a fault; None if all have one."""
        free = [node for node in nodes if node.machine.ip not in self._busy]
        if not free:
            yield None
            return
        chosen = self.world.rng.choice(free)
        self._busy.add(chosen.machine.ip)
        try:
            yield chosen
        finally:
            self._busy.discard(chosen.machine.ip)

    def _pause(self) -> float:
        return self.world.rng.choice((0.05, 1.0, 10.0, 40.0, 150.0)) * self.world.rng.uniform(0.5, 1.5)

    def _chooses_power(self) -> bool:
        return self.survives_power_failure and self.world.rng.random() < 0.6

    async def _kill_broker(self) -> None:
        with self._one_of(self.brokers) as broker:
            if broker is None:
                return
            power, pause_s = self._chooses_power(), self._pause()
            self.world.note(f"{broker.name} {'loses power' if power else 'is killed'} for {pause_s:.2f} s")
            await broker.kill(power=power)
            self._flip_bit(broker, "store/index/*")
            await asyncio.sleep(pause_s)
            await broker.restart()
            self.world.note(f"{broker.name} is back, {broker.machine.disk.lost_sectors} sectors lost so far")

    async def _lose_power(self) -> None:
        with self._one_of(self.brokers) as broker:
            if broker is None or not self.survives_power_failure:
                return
            pause_s = self._pause()
            self.world.note(f"{broker.name} loses power for {pause_s:.2f} s")
            await broker.kill(power=True)
            await asyncio.sleep(pause_s)
            await broker.restart()

    async def _kill_twice(self) -> None:
        """Kill a broker, and let its machine lose power soon after the restart."""
        with self._one_of(self.brokers) as broker:
            if broker is None or not self.survives_power_failure:
                return
            pause_s = self.world.rng.uniform(0.5, 15.0)
            self.world.note(f"{broker.name} is killed, and loses power {pause_s:.2f} s after its restart")
            await broker.kill(power=False)
            await broker.restart()
            await asyncio.sleep(pause_s)
            await broker.kill(power=True)
            await broker.restart()
            self.world.note(f"{broker.name} is back, {broker.machine.disk.lost_sectors} sectors lost so far")

    async def _kill_name_server(self) -> None:
        with self._one_of(self.name_servers) as name_server:
            if name_server is None:
                return
            power, pause_s, ip = self.world.rng.random() < 0.5, self._pause(), name_server.ip
            self.world.note(f"name server {ip} {'loses power' if power else 'is killed'} for {pause_s:.2f} s")
            await name_server.kill(power=power)
            self._flip_bit(name_server, "memory/routes.snapshot")
            await asyncio.sleep(pause_s)
            await name_server.restart()
            self.world.note(f"name server {ip} is back")

    def _flip_bit(self, node: Node, pattern: str) -> None:
        """Damage a file of a stopped server, at times: one whose content can be built again."""
        if self.world.rng.random() < 0.2:
            path = node.machine.disk.flip_bit(pattern)
            if path is not None:
                self.world.note(f"a bit of {path.relative_to(self.world.folder)} flips")

    async def _partition(self) -> None:
        rng, pause_s = self.world.rng, self._pause()
        machines = [each.ip for each in self.name_servers] + [each.ip for each in self.brokers]
        machines += [each.machine.ip for each in self.applications]
        rng.shuffle(machines)
        at = rng.randint(1, len(machines) - 1)
        both_ways = rng.random() < 0.8
        self.world.note(f"partition of {' '.join(machines[:at])} for {pause_s:.2f} s both_ways={both_ways}")
        self.world.network.partition(machines[:at], machines[at:], both_ways=both_ways)
        await asyncio.sleep(pause_s)
        self.world.network.heal()
        self.world.note("partition heals")

    async def _reset_connections(self) -> None:
        count = self.world.network.reset_some(self.world.rng.choice((0.2, 0.5, 1.0)))
        self._link_since.clear()  # a name server drops a broker whose connection ends, until it registers again
        self.world.note(f"{count} connections are reset")

    async def _half_open(self) -> None:
        count = self.world.network.half_open_some(self.world.rng.choice((0.2, 0.5, 1.0)))
        self._link_since.clear()
        self.world.note(f"{count} connections end at one side only")

    async def _slow_network(self) -> None:
        rng, pause_s = self.world.rng, self._pause()
        one, other = rng.choice(self.brokers).ip, rng.choice(self.applications).machine.ip
        self.world.note(f"slow link {one} {other} for {pause_s:.2f} s")
        self.world.network.slow_links[frozenset((one, other))] = Latency(0.05, 1.5, 0.05, 5.0)
        await asyncio.sleep(pause_s)
        self.world.network.slow_links.pop(frozenset((one, other)), None)

    async def _slow_reader(self) -> None:
        ip, pause_s = self.world.rng.choice(self.applications).machine.ip, self._pause()
        self.world.note(f"{ip} reads nothing for {pause_s:.2f} s")
        self.world.network.stop_reading(ip)
        await asyncio.sleep(pause_s)
        self.world.network.read_again(ip)

    async def _slow_disk(self) -> None:
        node, pause_s = self.world.rng.choice(self._servers), self._pause()
        self.world.note(f"slow disk of {node.machine.ip} for {pause_s:.2f} s")
        node.machine.disk.faults.slow_share = 0.2
        await asyncio.sleep(pause_s)
        node.machine.disk.faults.slow_share = 0.0

    async def _fill_disk(self) -> None:
        with self._one_of(self._servers) as node:  # a broker does not start on a full disk
            if node is None:
                return
            pause_s = self._pause()
            self.world.note(f"full disk of {node.machine.ip} for {pause_s:.2f} s")
            node.machine.disk.faults.is_full = True
            await asyncio.sleep(pause_s)
            node.machine.disk.faults.is_full = False

    async def _fail_sync(self) -> None:
        """Let a sync fail. The broker then refuses messages until its operator restarts it."""
        with self._one_of(self.brokers) as broker:
            if broker is None:
                return
            faults = broker.machine.disk.faults
            faults.fails_sync_of = self.world.rng.choice(("", "commitlog", "consumequeue"))
            self.world.note(f"a sync of {broker.name} fails, of {faults.fails_sync_of or 'any file'}")
            faults.fails_next_sync = True
            await asyncio.sleep(30.0)
            faults.fails_next_sync = False
            await broker.kill(power=self._chooses_power())
            await broker.restart()
            self.world.note(f"{broker.name} was restarted")

    async def _replace_application(self) -> None:
        with self._one_of(self.applications) as application:
            if application is None:
                return
            pause_s = self._pause()
            self.world.note(f"{application.name} is switched off for {pause_s:.2f} s")
            await application.kill()
            await asyncio.sleep(pause_s)
            await application.restart()
            self.world.note(f"{application.name} is back")

    async def _step_clock(self) -> None:
        # Only of name servers: a broker measures delays by its wall clock, and may deliver early after a step.
        rng = self.world.rng
        name_server, step_s = rng.choice(self.name_servers), rng.choice((-3600.0, -5.0, 0.5, 5.0, 600.0))
        self.world.note(f"the clock of {name_server.ip} steps by {step_s} s")
        name_server.machine.clock.step_s += step_s

    async def _repair(self) -> None:
        """End all faults."""
        network = self.world.network
        network.heal()
        network.slow_links.clear()
        for machine in list(network.stalled):
            network.read_again(machine)
        for node in self._servers:
            faults = node.machine.disk.faults
            faults.slow_share, faults.is_full, faults.fails_next_sync = 0.0, False, False
        for broker in self.brokers:
            components = None if broker.broker is None else broker.broker._components
            if components is None or components.flushing.has_stopped:
                await broker.kill(power=False)
                await broker.restart()
        for name_server in self.name_servers:
            if name_server.server is None:
                await name_server.restart()
        for application in self.applications:
            if application.client is None:
                await application.restart()
        for machine in list(network.down):
            network.switch_on(machine)

    # Samples

    async def _sample_for_ever(self) -> None:
        for number in count(1):
            await asyncio.sleep(SAMPLE_S)
            self.world.network.give_up()
            self._sample_routes()
            self._sample_registrations()
            if number % JOURNAL_SAMPLES == 0:
                for name_server in self.name_servers:
                    self._sample_journal(name_server)

    def _sample_registrations(self) -> None:
        for broker in self.brokers:
            components = None if broker.broker is None else broker.broker._components
            if components is None:
                continue
            for known in components.registrar._name_servers:
                server = next(each.server for each in self.name_servers if each.address == known.address)
                channel = known.channel
                if server is None or not known.has_us or channel is None or channel.closed:
                    continue
                peer = channel._transport.peer  # type: ignore[attr-defined]
                if not peer.is_closing():
                    listed = broker.name in server.table._groups
                    sample = RegistrationSample(self.world.now, known.address, broker.name, listed)
                    self.history.registration_samples.append(sample)

    def _sample_routes(self) -> None:
        now, network = self.world.now, self.world.network
        for name_server in self.name_servers:
            for broker in self.brokers:
                directions = {(name_server.ip, broker.ip), (broker.ip, name_server.ip)}
                is_connected = (
                    broker.broker is not None and name_server.server is not None and not network.blocked & directions
                )
                key, lives = (name_server.ip, broker.name), name_server.lives * 1000 + broker.lives
                before = self._link_since.get(key)
                if before is None or before[0] != is_connected or before[2] != lives:
                    self._link_since[key] = before = (is_connected, now, lives)
                if name_server.server is None:
                    continue
                listed = broker.name in name_server.server.table._groups
                sample = RouteSample(now, name_server.ip, broker.name, listed, is_connected, now - before[1])
                self.history.route_samples.append(sample)

    async def _watch(self, name_server: NameServerNode) -> None:
        """Watch the routes of one name server, and record its responses."""
        bookmark: Bookmark | None = None
        channel: Channel | None = None
        while True:
            try:
                if channel is None or channel.closed:
                    channel = await connect(name_server.address, timeout_s=5.0)
                query = WatchQuery(None, bookmark, 20_000)
                answer = decode_watch_answer(await channel.call(encode_watch(query), timeout_s=25.0))
            except RemotingError:
                await asyncio.sleep(2.0)
                continue
            after = bookmark.revision if bookmark is not None and bookmark.life == answer.now.life else None
            changes = tuple(change.revision for change in answer.changes)
            self.history.watch_steps.append(
                WatchStep(name_server.ip, answer.now.life, after, answer.now.revision, changes)
            )
            self.world.trace(f"watch {name_server.ip} {answer.now.revision} {changes}")
            bookmark = answer.now

    # The end

    def violations(self) -> dict[str, list[str]]:
        """Judge the history."""
        return check(self.history)

    async def _record_end(self) -> None:
        history = self.history
        for group, topic in history.topics.items():
            history.owners[group] = {
                application.name: frozenset(
                    _name(queue) for queue in application.client.assignment if queue.topic == topic
                )
                for application in self.applications
                if application.name.startswith(f"{group}-")
            }
        for topic in (ORDERS, LEDGER):
            history.queues[topic] = frozenset(
                f"{topic}@{broker.name}:{number}" for broker in self.brokers for number in range(4)
            )

    def _sample_journal(self, name_server: NameServerNode) -> None:
        """Compare the journal with the table, unless changes wait to be written."""
        server = name_server.server
        persistence = None if server is None else server._publisher.persistence
        if server is None or persistence is None or persistence.journal is None or not persistence.journal.caught_up:
            return
        replay = Replay()
        for record in read_records(name_server.journal_folder):
            replay.apply(record)
        table, replayed = recorded(server.table._groups.values()), recorded(replay.groups.values())
        self.history.journal_samples.append(JournalSample(self.world.now, name_server.ip, table, replayed))


def recorded(groups: Iterable[GroupState]) -> Mapping[str, GroupSnapshot]:
    """Return what a journal records of broker groups: all but leases and who knows of acting masters."""
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


def _name(queue: QueueRef) -> str:
    return f"{queue.topic}@{queue.broker_name}:{queue.queue_id}"


def _outcome(ending: Ending) -> TransactionOutcome:
    return TransactionOutcome.COMMIT if ending is Ending.COMMIT else TransactionOutcome.ROLLBACK


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one run."""

    seed: int
    simulated_s: float
    trace_hash: str
    packets: int
    sends: int
    acknowledged: int
    deliveries: int
    steps: list[str]
    violations: dict[str, list[str]]


class _Tracebacks(logging.Handler):
    """Collects exceptions that the product logs as errors, because nothing else handles them."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and str(error) != HANDLER_FAILURE:
            self._world.loop.failures.append(
                f"{self._world.now:.3f} s, {HOST.get()}: {record.name}: {record.getMessage()}: {error!r}"
            )


@contextmanager
def _tracebacks_of(world: World) -> Iterator[None]:
    product, handler = logging.getLogger("skyroute"), _Tracebacks(world)
    level = product.level
    product.setLevel(min(product.getEffectiveLevel(), logging.ERROR))
    product.addHandler(handler)
    try:
        yield
    finally:
        product.removeHandler(handler)
        product.setLevel(level)


@contextmanager
def scratch() -> Iterator[Path]:
    """Give a folder in memory, if there is one: the disk is simulated, and need not be waited for."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="simulation-", dir=memory if memory.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(
    seed: int, plan: Plan | None = None, trace: Path | None = None, scenario_of: type[Scenario] = Scenario
) -> Report:
    """Run one seed, and judge its history. Write the trace to a file, if one is given."""
    with scratch() as folder:
        world = World(seed, folder)
        world.trace_lines = None if trace is None else []
        with simulated(world.loop, world.threads, seed), _tracebacks_of(world):
            scenario = scenario_of(world, plan or Plan())
            asyncio.set_event_loop(world.loop)
            try:
                world.loop.run_until_complete(scenario.run())
                gc.collect()  # reports exceptions of tasks for which nothing waits
                scenario.history.failures = list(world.loop.failures)
            finally:
                world.threads.end()
                asyncio.set_event_loop(None)
                world.loop.close()
        if trace is not None and world.trace_lines is not None:
            trace.write_text("\n".join(world.trace_lines))
        history = scenario.history
        return Report(
            seed,
            world.now,
            world.trace_hash,
            world.network.packets,
            len(history.sends),
            sum(send.outcome is Outcome.ACKNOWLEDGED for send in history.sends.values()),
            len(history.deliveries),
            world.log,
            scenario.violations(),
        )
