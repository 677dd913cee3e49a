"""Brokers in controller mode without messages: they heartbeat to all controllers and follow the leading one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from tests.support.connections import AsyncConnection, connection_to
from tests.support.epoch_history import Seen
from tests.support.raw import ClosedError, Command

STEP_S = 0.2
"""Time between two heartbeats, and two looks at the group."""
CALL_S = 4.0
"""How long a controller may take to respond."""
_FAILED = (OSError, ClosedError, TimeoutError)


class _Connections:
    """Connections to controllers, opened when needed."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[AsyncConnection, Any]] = {}

    async def get(self, address: str) -> AsyncConnection:
        if address not in self._open:
            context = connection_to(address)
            self._open[address] = (await context.__aenter__(), context)
        return self._open[address][0]

    async def hang_up(self, address: str) -> None:
        found = self._open.pop(address, None)
        if found is not None:
            found[0].abort()
            with contextlib.suppress(*_FAILED):
                await found[1].__aexit__(None, None, None)


class SimulatedReplica:
    """One broker. All that it is told about masters goes to `seen`."""

    def __init__(self, group: str, address: str, controllers: Sequence[str], seen: list[Seen]) -> None:
        self.group = group
        self.address = address
        self.id: int | None = None
        self.offset = 0
        self._controllers = tuple(controllers)
        self._seen = seen
        self._calling = _Connections()
        self._beating = _Connections()
        self._tasks: list[asyncio.Task[None]] = []
        self._registered = False
        self.master: int | None = None
        self.epoch = 0
        self.sync_set: tuple[int, ...] = ()

    def start(self) -> None:
        # As in a broker, a controller that does not respond delays no heartbeat to another one.
        work = (self._run(), *map(self._beat, self._controllers))
        self._tasks = [asyncio.get_running_loop().create_task(each) for each in work]

    async def stop(self) -> None:
        """End at once, as a killed process does."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connections in (self._beating, self._calling):
            for address in self._controllers:
                await connections.hang_up(address)
        self._registered = False

    async def _run(self) -> None:
        while True:
            leader = await self._find_leader()
            if leader is not None:
                await self._guarded(leader, self._follow(leader))
            await asyncio.sleep(STEP_S)

    async def _guarded(self, address: str, work: Any) -> Any:
        try:
            async with asyncio.timeout(CALL_S):
                return await work
        except _FAILED:
            await self._calling.hang_up(address)
            return None

    async def _call(self, address: str, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        return await (await self._calling.get(address)).call(code, fields, body)

    async def _beat(self, address: str) -> None:
        while True:
            if self.id is not None:
                try:
                    await self._beat_once(address)
                except _FAILED:
                    await self._beating.hang_up(address)
            await asyncio.sleep(STEP_S)

    async def _beat_once(self, address: str) -> None:
        fields = {
            "clusterName": "C",
            "brokerName": self.group,
            "brokerId": str(self.id),
            "brokerAddr": self.address,
            "epoch": str(self.epoch),
            "maxOffset": str(self.offset),
            "confirmOffset": "0",
            "heartbeatTimeoutMills": "3000",
        }
        await (await self._beating.get(address)).send_oneway(904, fields)

    async def _find_leader(self) -> str | None:
        for address in self._controllers:
            answer = await self._guarded(address, self._call(address, 1005, {}))
            if answer is not None and answer.fields.get("controllerLeaderAddress"):
                return str(answer.fields["controllerLeaderAddress"])
        return None

    async def _follow(self, leader: str) -> None:
        group = {"clusterName": "C", "brokerName": self.group}
        if self.id is None:
            asked = await self._call(leader, 1012, group)
            if asked.code:
                return
            number = asked.fields["nextBrokerId"]
            code = {"appliedBrokerId": number, "registerCheckCode": f"{self.address};1"}
            if (await self._call(leader, 1013, group | code)).code:
                return
            self.id = int(number)
        own = {"brokerId": str(self.id), "brokerAddress": self.address, "invokeTime": "1"}
        if not self._registered:
            self._registered = (await self._call(leader, 1003, group | own)).code == 0
        info = await self._call(leader, 1004, {"brokerName": self.group})
        if info.code:
            return
        self._note(leader, info)
        if self.master is None:
            elected = await self._call(leader, 1002, group | own | {"designateElect": "false"})
            if elected.code in (0, 2011):
                self._note(leader, elected)
        elif self.master == self.id:
            await self._widen_set(leader, info)

    def _note(self, leader: str, answer: Command) -> None:
        master = answer.fields.get("masterBrokerId")
        self.master = None if master is None else int(master)
        self.epoch = int(answer.fields["masterEpoch"])
        self.sync_set = tuple(sorted(answer.value["syncStateSet"]))
        self._seen.append(Seen(f"{leader} told {self.group}[{self.id}]", self.group, self.epoch, self.master))

    async def _widen_set(self, leader: str, info: Command) -> None:
        states = await self._call(leader, 1006, {}, f'["{self.group}"]'.encode())
        if states.code or self.group not in states.value["replicasInfoTable"]:
            return
        table = states.value["replicasInfoTable"][self.group]
        replicas = (*table["inSyncReplicas"], *table["notInSyncReplicas"])
        alive = sorted(each["brokerId"] for each in replicas if each["alive"])
        if self.id in alive and tuple(alive) != self.sync_set:
            fields = {"brokerName": self.group, "masterBrokerId": str(self.id), "masterEpoch": str(self.epoch)}
            epoch = info.value["syncStateSetEpoch"]
            await self._call(leader, 1001, fields, f'{{"syncStateSet":{alive},"syncStateSetEpoch":{epoch}}}'.encode())
