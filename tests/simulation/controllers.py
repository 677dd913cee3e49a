"""Simulated controllers on a simulated etcd, with brokers that replicate and acknowledge; faults between all of them.

Controllers, leadership, store and rules are the product's. Etcd is one linearizable table with leases: a request to it
may be slow, lost, or carried out while its response is lost.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar
from unittest import mock

import msgspec
from aetcd import transactions

from skyroute.controller import rules
from skyroute.controller import server as controller_server
from skyroute.controller.config import ControllerConfig
from skyroute.controller.errors import StoreUnavailableError
from skyroute.controller.etcd_client import TIMEOUT_S
from skyroute.controller.etcd_leadership import EtcdLeadership
from skyroute.controller.etcd_store import EtcdStore, _Value
from skyroute.controller.events import Cause, GroupEvent, MasterElected
from skyroute.controller.rules import Election, Outcome
from skyroute.controller.server import ControllerServer
from skyroute.controller.state import GroupState
from skyroute.controller.store import StoredGroup
from skyroute.remoting.client import Channel, connect
from skyroute.remoting.dispatch import Dispatcher, Peer
from skyroute.remoting.errors import RemotingError
from skyroute.remoting.server import Server
from skyroute.remoting.tls import ServerTls
from skyroute.remoting.tls_settings import TlsSettings
from skyroute.wire.command import Request, Response
from tests.simulation.cluster import Machine, World
from tests.simulation.scenario import Report, scratch
from tests.simulation.seams import simulated
from tests.support.epoch_history import Seen, violations

T = TypeVar("T")
Patch = AbstractContextManager[Any]

ETCD: Final = "10.3.0.1"
CONTROLLER_PORT: Final = 9878
BROKER_PORT: Final = 10911
GROUPS: Final = ("a", "b")
REPLICAS: Final = 3
CALL_S: Final = 2.0
STEP_S: Final = 1.0
REPLICATE: Final = 99_001
"""Request code of the simulated replication."""
LEASE_S: Final = 5


@dataclass(frozen=True, slots=True)
class ControllerPlan:
    """The size of one run, and how often something goes wrong."""

    run_s: float = 900.0
    settle_s: float = 60.0
    fault_gap_s: float = 15.0
    slow_share: float = 0.02
    """Requests to etcd that take up to `slow_s`, longer than a lease."""
    slow_s: float = 12.0
    lost_share: float = 0.02
    """Requests to etcd whose response is lost."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A write that a master acknowledged: all of its sync state set have it."""

    group: str
    epoch: int
    master: int
    at: float


@dataclass
class ControllerHistory:
    """What brokers were told, what was stored and decided, and what was acknowledged."""

    seen: list[Seen] = field(default_factory=list)
    stored: list[Seen] = field(default_factory=list)
    elections: list[Seen] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)


def an_epoch_is_given_once(history: ControllerHistory) -> Iterator[str]:
    """No epoch of a group has two masters, is decided by two controllers, or comes after a larger one."""
    yield from violations(history.seen, stored=history.stored, elections=history.elections)


def one_master_acknowledges_in_an_epoch(history: ControllerHistory) -> Iterator[str]:
    """No two masters acknowledge in one epoch."""
    masters: defaultdict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    for each in history.acknowledged:
        masters[each.group, each.epoch].setdefault(each.master, each.at)
    for (group, epoch), by_master in sorted(masters.items()):
        if len(by_master) > 1:
            yield f"masters {sorted(by_master)} of {group} both acknowledged in epoch {epoch}"


INVARIANTS: Final[dict[str, Callable[[ControllerHistory], Iterator[str]]]] = {
    "an epoch is given once": an_epoch_is_given_once,
    "no two masters acknowledge in one epoch": one_master_acknowledges_in_an_epoch,
}


# Etcd


class Entry(msgspec.Struct):
    """A key with its value, as `aetcd` gives it."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int | None = None


class Lease(msgspec.Struct):
    id: int
    ttl: int
    ends: float


class SimEtcd:
    """The table of an etcd cluster. Each method is carried out at once."""

    def __init__(self, world: World, history: ControllerHistory) -> None:
        self._world = world
        self._history = history
        self._revision = 1
        self._entries: dict[bytes, Entry] = {}
        self._leases: dict[int, Lease] = {}
        self.is_up = True

    def _expire(self) -> None:
        now = self._world.loop.time()
        for lease in [each for each in self._leases.values() if each.ends <= now]:
            self._end(lease.id)

    def _end(self, number: int) -> None:
        self._leases.pop(number, None)
        for key in [key for key, entry in self._entries.items() if entry.lease == number]:
            del self._entries[key]

    async def get(self, key: bytes) -> Entry | None:
        self._expire()
        return self._entries.get(key)

    async def get_prefix(self, prefix: bytes) -> list[Entry]:
        self._expire()
        return [entry for key, entry in sorted(self._entries.items()) if key.startswith(prefix)]

    async def lease(self, ttl: int) -> Lease:
        number = len(self._leases) + self._revision * 1000
        self._leases[number] = lease = Lease(number, ttl, self._world.loop.time() + ttl)
        return lease

    async def refresh_lease(self, number: int) -> Any:
        self._expire()
        lease = self._leases.get(number)
        if lease is None:
            return None
        lease.ends = self._world.loop.time() + lease.ttl
        return mock.Mock(TTL=lease.ttl)

    async def revoke_lease(self, number: int) -> None:
        self._end(number)

    async def transaction(self, **lists: list[Any]) -> tuple[bool, list[Any]]:
        self._expire()
        is_met = all(map(self._is_met, lists["compare"]))
        return is_met, [self._carry_out(each) for each in lists["success" if is_met else "failure"]]

    def _is_met(self, compare: Any) -> bool:
        entry = self._entries.get(compare.key)
        name = "create_revision" if isinstance(compare, transactions.Create) else "mod_revision"
        return bool((0 if entry is None else getattr(entry, name)) == compare.value)

    def _carry_out(self, operation: Any) -> Any:
        if isinstance(operation, transactions.Get):
            entry = self._entries.get(operation.key)
            return [] if entry is None else [(entry.value, entry)]
        return self.put(operation.key, operation.value, operation.lease)

    def put(self, key: bytes, value: bytes, lease: int | None = None) -> Any:
        self._revision += 1
        old = self._entries.get(key)
        created = self._revision if old is None else old.create_revision
        self._entries[key] = Entry(key, value, created, self._revision, lease)
        if b"/groups/" in key:
            state = msgspec.json.decode(value, type=_Value).group
            self._history.stored.append(Seen("etcd", state.broker_name, state.master_epoch, state.master))
        return mock.Mock(response_put=mock.Mock(header=mock.Mock(revision=self._revision)))


class SimEtcdClient:
    """Calls etcd from one machine, over a network that delays and loses."""

    def __init__(self, machine: Machine, etcd: SimEtcd, plan: ControllerPlan, rng: random.Random) -> None:
        self._machine = machine
        self._etcd = etcd
        self._plan = plan
        self._rng = rng

    async def call(self, operation: Callable[[Any], Awaitable[T]]) -> T:
        network, here = self._machine.world.network, self._machine.ip
        slow_s = self._rng.uniform(0.0, self._plan.slow_s) if self._rng.random() < self._plan.slow_share else 0.0
        await asyncio.sleep(network.delay(here, ETCD) + slow_s)
        if (here, ETCD) in network.blocked or not self._etcd.is_up:
            await asyncio.sleep(TIMEOUT_S)
            raise StoreUnavailableError("etcd does not respond")
        result = await operation(self._etcd)
        if self._rng.random() < self._plan.lost_share:
            result = await operation(self._etcd)  # the client repeats a request without a response at the next member
        await asyncio.sleep(network.delay(ETCD, here))
        if (ETCD, here) in network.blocked or self._rng.random() < self._plan.lost_share:
            raise StoreUnavailableError("the response was lost")
        return result

    async def close(self) -> None:
        """Do nothing: there is no connection."""


# Controllers and brokers


class ControllerNode:
    """A controller that can be killed and started again."""

    def __init__(self, cluster: ControllerCluster, number: int) -> None:
        self.name = f"n{number}"
        self.machine = Machine(cluster.world, f"10.1.0.{number + 1}")
        self.address = f"{self.machine.ip}:{CONTROLLER_PORT}"
        self._cluster = cluster
        self.server: ControllerServer | None = None

    async def start(self) -> None:
        cluster, machine = self._cluster, self.machine
        rng = random.Random(f"etcd {self.name} {cluster.world.seed}")
        client = SimEtcdClient(machine, cluster.etcd, cluster.plan, rng)
        config = ControllerConfig(
            bind_address=machine.ip,
            self_id=self.name,
            peers=";".join(f"{node.name}-{node.address}" for node in cluster.controllers),
            store_path=str(machine.folder),
            settings_file=str(machine.folder / "controller.properties"),
            etcd_endpoints=f"{ETCD}:2379",
            etcd_lease_s=LEASE_S,
            settle_s=3.0,
            scan_interval_s=2.0,
            master_scan_interval_s=2.0,
        )
        parts = (client, EtcdStore(client, "/simulated"))  # type: ignore[arg-type]  # has what the store calls
        with mock.patch.object(controller_server, "_etcd", return_value=parts):
            self.server = ControllerServer(config, clock=machine.clock, record=self._record)
        await machine.spawn(self.server.start())

    def _record(self, events: Collection[GroupEvent]) -> None:
        for event in events:
            if isinstance(event, MasterElected):
                seen = Seen(self.name, event.broker_name, event.master_epoch, event.master)
                self._cluster.history.elections.append(seen)

    async def kill(self) -> None:
        server, self.server = self.server, None
        if server is None:
            return
        self.machine.world.network.kill_process(self.machine.ip)
        await self.machine.spawn(_kill_controller(server))


async def _kill_controller(server: ControllerServer) -> None:
    """End a controller as a crash does: its lease stays until it ends."""
    server._stopping = True
    if server._server is not None:
        server._server.abort()
    await server._background.end()
    for election in server._elections.values():
        election.cancel()
    if server._notifier is not None:
        await server._notifier.stop()


class ReplicaNode:
    """A broker in controller mode. As master it acknowledges what all of its sync state set have."""

    def __init__(self, cluster: ControllerCluster, group: str, number: int) -> None:
        self.group = group
        self.machine = Machine(cluster.world, f"10.2.{ord(group)}.{number + 1}")
        self.address = f"{self.machine.ip}:{BROKER_PORT}"
        self.id: int | None = None
        self.epoch = 0
        self.master: int | None = None
        self.sync_set: tuple[int, ...] = ()
        self.sync_set_epoch = 0
        self.offset = 0
        self._is_registered = False
        self._cluster = cluster
        self._channels: dict[str, Channel] = {}
        self._server: Server | None = None
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self) -> None:
        await self.machine.spawn(self._listen())
        self._tasks = [self.machine.spawn(work) for work in (self._run(), self._write())]

    async def _listen(self) -> None:
        dispatcher = Dispatcher({1008: self._on_notice, REPLICATE: self._on_replicate})
        tls = ServerTls(TlsSettings())
        server = Server(dispatcher, tls=tls, clock=self.machine.clock, on_disconnect=lambda _: None)
        await server.bind(self.machine.ip, BROKER_PORT)
        await server.serve()
        self._server = server

    async def kill(self) -> None:
        """End the process: what it knew of masters is gone, its id and epoch are on disk."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.machine.world.network.kill_process(self.machine.ip)
        if self._server is not None:
            self._server.abort()
        self._channels.clear()
        self._is_registered, self.master, self._server = False, None, None

    # What others send

    def _on_notice(self, request: Request, _peer: Peer) -> Response:
        self._note("a notice", request.fields, request.body)
        return Response()

    def _on_replicate(self, request: Request, _peer: Peer) -> Response:
        epoch = int(request.fields["epoch"])
        if epoch < self.epoch:
            return Response.error("an old epoch")
        self.offset = max(self.offset, int(request.fields["offset"]))
        return Response()

    # What it sends

    async def _channel(self, address: str) -> Channel:
        channel = self._channels.get(address)
        if channel is None or channel.closed:
            channel = self._channels[address] = await connect(address, timeout_s=CALL_S)
        return channel

    async def _call(self, address: str, code: int, fields: dict[str, str], body: bytes = b"") -> Response:
        return await (await self._channel(address)).call(Request(code, fields, body=body), CALL_S)

    async def _run(self) -> None:
        while True:
            leader = ""
            for node in self._cluster.controllers:
                with suppress(RemotingError):
                    await self._beat(node.address)
                    found = (await self._call(node.address, 1005, {})).fields or {}
                    leader = found.get("controllerLeaderAddress", "") or leader
            if leader:
                with suppress(RemotingError):
                    await self._follow(leader)
            await asyncio.sleep(STEP_S)

    async def _beat(self, address: str) -> None:
        if self.id is None:
            return
        fields = {
            **{"clusterName": "C", "brokerName": self.group, "brokerId": str(self.id), "brokerAddr": self.address},
            **{"epoch": str(self.epoch), "maxOffset": str(self.offset), "heartbeatTimeoutMills": "4000"},
        }
        (await self._channel(address)).send_oneway(Request(904, fields))

    async def _follow(self, leader: str) -> None:
        group = {"clusterName": "C", "brokerName": self.group}
        if self.id is None:
            number = ((await self._call(leader, 1012, group)).fields or {}).get("nextBrokerId")
            code = {"appliedBrokerId": str(number), "registerCheckCode": f"{self.address};1"}
            if number is None or (await self._call(leader, 1013, group | code)).code:
                return
            self.id = int(number)
            self._cluster.addresses[self.group, self.id] = self.address
        own = {"brokerId": str(self.id), "brokerAddress": self.address, "invokeTime": "1"}
        if not self._is_registered:
            self._is_registered = (await self._call(leader, 1003, group | own)).code == 0
        info = await self._call(leader, 1004, {"brokerName": self.group})
        if info.code == 0:
            self._note(leader, info.fields or {}, info.body)
        if self.master is None:
            elected = await self._call(leader, 1002, group | own | {"designateElect": "false"})
            if elected.code in (0, 2011):
                self._note(leader, elected.fields or {}, elected.body)
        elif self.master == self.id:
            await self._change_sync_set(leader)

    def _note(self, source: str, fields: Any, body: bytes | Any) -> None:
        epoch = int(fields.get("masterEpoch", "0"))
        if epoch < self.epoch:
            return
        master = fields.get("masterBrokerId")
        sync = msgspec.json.decode(bytes(body)) if body else {}
        self.epoch, self.master = epoch, None if master is None else int(master)
        self.sync_set = tuple(sorted(sync.get("syncStateSet", ())))
        self.sync_set_epoch = int(sync.get("syncStateSetEpoch", fields.get("syncStateSetEpoch", "0")))
        self._cluster.history.seen.append(Seen(f"{source} told {self.id}", self.group, epoch, self.master))

    async def _change_sync_set(self, leader: str) -> None:
        """Remove replicas that do not answer from the sync state set, and add those that do."""
        epoch = self.epoch
        members = [self.id]
        for group, broker_id in sorted(self._cluster.addresses):
            if group == self.group and broker_id != self.id and await self._replicate(broker_id, epoch):
                members.append(broker_id)
        if self.epoch != epoch or self.id is None or tuple(sorted(filter(None, members))) == self.sync_set:
            return
        fields = {"brokerName": self.group, "masterBrokerId": str(self.id), "masterEpoch": str(epoch)}
        body = {"syncStateSet": sorted(filter(None, members)), "syncStateSetEpoch": self.sync_set_epoch}
        await self._call(leader, 1001, fields, msgspec.json.encode(body))

    async def _replicate(self, broker_id: int, epoch: int) -> bool:
        address = self._cluster.addresses.get((self.group, broker_id))
        if address is None:
            return False
        try:
            fields = {"epoch": str(epoch), "offset": str(self.offset)}
            return (await self._call(address, REPLICATE, fields)).code == 0
        except RemotingError:
            return False

    async def _write(self) -> None:
        while True:
            await asyncio.sleep(STEP_S / 2)
            epoch, members = self.epoch, self.sync_set
            if self.id is None or self.master != self.id or self.id not in members:
                continue
            self.offset += 1
            others = [await self._replicate(each, epoch) for each in members if each != self.id]
            if all(others) and (self.epoch, self.master) == (epoch, self.id):
                now = self.machine.world.now
                self._cluster.history.acknowledged.append(Acknowledged(self.group, epoch, self.id, now))


# A run


class ControllerCluster:
    """Three controllers, two groups of three brokers, and faults."""

    def __init__(self, world: World, plan: ControllerPlan) -> None:
        self.world = world
        self.plan = plan
        self.history = ControllerHistory()
        self.etcd = SimEtcd(world, self.history)
        self.addresses: dict[tuple[str, int], str] = {}
        self.controllers: list[ControllerNode] = []
        self.controllers += [ControllerNode(self, number) for number in range(3)]
        self.replicas = [ReplicaNode(self, group, number) for group in GROUPS for number in range(REPLICAS)]

    async def run(self) -> None:
        for controller in self.controllers:
            await controller.start()
        for replica in self.replicas:
            await replica.start()
        await asyncio.sleep(20.0)
        rng, end = self.world.rng, self.world.now + self.plan.run_s
        while self.world.now < end:
            await asyncio.sleep(rng.expovariate(1 / self.plan.fault_gap_s))
            await rng.choice(self._faults())()
        self.world.network.heal()
        await asyncio.sleep(self.plan.settle_s)
        for replica in self.replicas:
            await replica.kill()
        for controller in self.controllers:
            await controller.kill()

    def _faults(self) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
        return (self._kill_master, self._kill_controller, self._cut_some, self._cut_leader_off_etcd, self._stop_etcd)

    async def _kill_master(self) -> None:
        masters = [each for each in self.replicas if each.id is not None and each.master == each.id]
        victim = self.world.rng.choice(masters or self.replicas)
        self.world.note(f"kill broker {victim.group}[{victim.id}]")
        await victim.kill()
        await asyncio.sleep(self.world.rng.uniform(0.5, 20.0))
        await victim.start()

    async def _kill_controller(self) -> None:
        leaders = [each for each in self.controllers if self._leads(each)]
        victim = self.world.rng.choice(leaders or self.controllers)
        self.world.note(f"kill controller {victim.name}")
        await victim.kill()
        await asyncio.sleep(self.world.rng.uniform(0.5, 15.0))
        await victim.start()

    @staticmethod
    def _leads(node: ControllerNode) -> bool:
        leadership = None if node.server is None else node.server._leadership
        return isinstance(leadership, EtcdLeadership) and leadership.is_leader

    async def _cut_some(self) -> None:
        machines = [each.machine.ip for each in self.controllers] + [each.machine.ip for each in self.replicas]
        everything = [ETCD, *machines]
        ones = [ip for ip in everything if self.world.rng.random() < 0.4]
        others = [ip for ip in everything if ip not in ones]
        self.world.note(f"partition {ones}")
        self.world.network.partition(ones, others, both_ways=self.world.rng.random() < 0.7)
        await asyncio.sleep(self.world.rng.uniform(2.0, 25.0))
        self.world.network.heal()

    async def _cut_leader_off_etcd(self) -> None:
        leaders = [each.machine.ip for each in self.controllers if self._leads(each)]
        self.world.note(f"cut {leaders} off etcd")
        self.world.network.partition(leaders, [ETCD])
        await asyncio.sleep(self.world.rng.uniform(2.0, 15.0))
        self.world.network.heal()

    async def _stop_etcd(self) -> None:
        self.world.note("stop etcd")
        self.etcd.is_up = False
        await asyncio.sleep(self.world.rng.uniform(1.0, 15.0))
        self.etcd.is_up = True


@dataclass(frozen=True, slots=True)
class ControllerReport(Report):
    """The result of one run."""

    elections: int = 0


def run_controllers(seed: int, plan: ControllerPlan | None = None) -> ControllerReport:
    """Run one seed, and judge its history."""
    with scratch() as folder:
        world = World(seed, folder)
        with simulated(world.loop, world.threads, seed):
            cluster = ControllerCluster(world, plan or ControllerPlan())
            asyncio.set_event_loop(world.loop)
            try:
                world.loop.run_until_complete(cluster.run())
            finally:
                world.threads.end()
                asyncio.set_event_loop(None)
                world.loop.close()
    history = cluster.history
    found = {name: list(check(history)) for name, check in INVARIANTS.items()}
    return ControllerReport(
        seed,
        world.now,
        world.trace_hash,
        world.network.packets,
        sends=len(history.acknowledged),
        acknowledged=len(history.acknowledged),
        deliveries=0,
        steps=world.log,
        violations={name: each for name, each in found.items() if each},
        elections=len(history.elections),
    )


# Planted bugs


def decide_by_old_state() -> Patch:
    """A controller that leads again decides by what it knew before, and stores it without comparing."""
    lead = EtcdStore.lead

    async def lead_again(self: EtcdStore, fence: int) -> None:
        known = self._groups
        await lead(self, fence)
        self._groups = self._groups | known

    async def put(self: EtcdStore, state: GroupState, _revision: int) -> bool:
        key = self._prefix + state.broker_name.encode()
        value = msgspec.json.encode(_Value(1, state))
        _, responses = await self._client.call(
            lambda client: client.transaction(compare=[], success=[transactions.Put(key, value)], failure=[])
        )
        self._groups[state.broker_name] = StoredGroup(state, responses[0].response_put.header.revision)
        return True

    return mock.patch.multiple(EtcdStore, _put=put, lead=lead_again)


def elect_without_a_new_epoch() -> Patch:
    """Another master gets the epoch of the last one."""
    elected = rules._elected

    def elect_in_old_epoch(group: GroupState, broker_id: int, cause: Cause, *, is_unclean: bool) -> Outcome[Election]:
        if group.master_epoch:
            group = replace(group, master_epoch=group.master_epoch - 1)
        return elected(group, broker_id, cause, is_unclean=is_unclean)

    return mock.patch.object(rules, "_elected", elect_in_old_epoch)


PLANTED: Final[dict[str, Callable[[], Patch]]] = {
    "an epoch is given once": decide_by_old_state,
    "no two masters acknowledge in one epoch": elect_without_a_new_epoch,
}
"""A bug for each invariant, which its checker must find."""
