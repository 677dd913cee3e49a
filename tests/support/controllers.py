"""A controller in this process, and brokers that speak to it over loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skyroute.controller.config import ControllerConfig
from skyroute.controller.failover import Failover
from skyroute.controller.server import ControllerServer, Record
from skyroute.controller.store import GroupStore
from tests.support.clock import ManualClock
from tests.support.connections import AsyncConnection, ListeningBroker, connection_to, listening_broker
from tests.support.raw import Command, Request
from tests.support.signing import Key
from tests.support.waiting import eventually

GROUP = {"clusterName": "C", "brokerName": "a"}


@dataclass
class RunningController:
    server: ControllerServer
    clock: ManualClock

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def failover(self) -> Failover:
        assert self.server.failover is not None
        return self.server.failover

    def settle(self) -> None:
        """Let the listening time pass, with no scan late."""
        for _ in range(2):
            self.failover.scan(self.clock.advance(5.0))

    def offset(self, broker_id: int) -> int | None:
        """The offset in the last heartbeat of a living replica."""
        found = self.server.heartbeats.live("C", "a", self.clock.monotonic()).progress.get(broker_id)
        return None if found is None else found.max_offset

    def connections(self) -> int:
        """Number of open connections."""
        assert self.server._server is not None
        return self.server._server.connection_count

    def master(self) -> int | None:
        group = self.server.groups.find("a")
        return None if group is None else group.master


@asynccontextmanager
async def running(
    folder: Path, record: Record | None = None, *, store: GroupStore | None = None, **settings: Any
) -> AsyncIterator[RunningController]:
    values: dict[str, Any] = {
        "listen_port": 0,
        "bind_address": "127.0.0.1",
        "settings_file": str(folder / "controller.properties"),
        "store_path": str(folder),
    }
    clock = ManualClock()
    server = ControllerServer(ControllerConfig(**(values | settings)), clock=clock, record=record, store=store)
    await server.start()
    try:
        yield RunningController(server, clock)
    finally:
        await server.stop()


class FakeReplica:
    """A broker in controller mode: one connection to the controller, and an address for notices."""

    def __init__(self, line: AsyncConnection, listener: ListeningBroker, key: Key | None = None) -> None:
        self.line = line
        self.listener = listener
        self.id = 0
        self._key = key

    async def _call(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        return await self.line.call(self._signed(Request(code, fields, body)))

    def _signed(self, request: Request) -> Request:
        return request if self._key is None else self._key.sign(request)

    async def apply(self) -> None:
        answer = await self._call(1012, GROUP)
        self.id = int(answer.fields["nextBrokerId"])
        fields = {"appliedBrokerId": str(self.id), "registerCheckCode": f"{self.listener.address};1758275140000"}
        assert (await self._call(1013, GROUP | fields)).code == 0

    async def register(self) -> Command:
        fields = {"brokerId": str(self.id), "brokerAddress": self.listener.address, "invokeTime": "1"}
        return await self._call(1003, GROUP | fields)

    async def beat(self, epoch: int = 1, offset: int = 100) -> None:
        fields = {
            "brokerId": str(self.id),
            "brokerAddr": self.listener.address,
            "epoch": str(epoch),
            "maxOffset": str(offset),
            "confirmOffset": "0",
            "heartbeatTimeoutMills": "10000",
            "electionPriority": "2147483647",
        }
        await self.line.send_oneway(904, dict(self._signed(Request(904, GROUP | fields)).fields))

    async def elect(self, **fields: str) -> Command:
        asked = {"brokerId": str(self.id), "designateElect": "false", "invokeTime": "1"}
        return await self._call(1002, GROUP | asked | fields)

    async def change_set(self, members: list[int], epoch: int, set_epoch: int) -> Command:
        fields = {"brokerName": "a", "masterBrokerId": str(self.id), "masterEpoch": str(epoch), "invokeTime": "1"}
        body = f'{{"syncStateSet":{members},"syncStateSetEpoch":{set_epoch}}}'.encode()
        return await self._call(1001, fields, body)


@asynccontextmanager
async def replica(controller: RunningController, key: Key | None = None) -> AsyncIterator[FakeReplica]:
    async with connection_to(controller.address) as line, listening_broker() as listener:
        here = FakeReplica(line, listener, key)
        await here.apply()
        assert (await here.register()).code == 0
        yield here


@asynccontextmanager
async def pair_in_sync(
    controller: RunningController, key: Key | None = None
) -> AsyncIterator[tuple[FakeReplica, FakeReplica]]:
    """A master and a slave that are both in the sync state set; they sign if there is a key."""
    async with replica(controller, key) as first, replica(controller, key) as second:
        assert (await first.elect()).code == 0
        for each in (first, second):
            await each.beat()
        await eventually(lambda: is_alive(controller, second.id))
        assert (await first.change_set([1, 2], 1, 1)).code == 0
        controller.settle()
        for each in (first, second):
            await each.beat(offset=200)
            await eventually(lambda: controller.offset(each.id) == 200)  # noqa: B023 - awaited in the loop
        yield first, second


async def is_alive(controller: RunningController, broker_id: int) -> bool:
    return broker_id in controller.server.heartbeats.live("C", "a", controller.clock.monotonic())
