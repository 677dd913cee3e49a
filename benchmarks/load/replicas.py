"""Many brokers in controller mode without messages: `python -m benchmarks.load.replicas ADDRESS GROUPS REPLICAS`.

Commands come on standard input, one a line; each is answered by one line of JSON:

- `join`: every group gets ids, a master, and a sync state set of all replicas; heartbeats begin.
- `kill N`: closes the connections of N masters at once; the answer has the seconds until each new master was notified.

Every broker has a connection to the controller and an address of its own, on which it hears notices.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from dataclasses import dataclass, field
from typing import Final

import uvloop

from tests.support.connections import AsyncConnection
from tests.support.raw import Request, decode, encode
from tests.support.waiting import eventually

BEAT_S: Final = 1.0
JOINS_AT_ONCE: Final = 50
NOTICE_S_MAX: Final = 60.0
ROLE_CHANGED: Final = 1008


@dataclass(slots=True)
class LoadReplica:
    """One broker."""

    group: str
    address: str
    line: AsyncConnection
    writer: asyncio.StreamWriter
    id: int = 0
    is_alive: bool = True
    beat: bytes = b""

    def prepare_beat(self, epoch: int) -> None:
        fields = {
            "clusterName": "C",
            "brokerName": self.group,
            "brokerId": str(self.id),
            "brokerAddr": self.address,
            "epoch": str(epoch),
            "maxOffset": "1000",
            "confirmOffset": "1000",
            "heartbeatTimeoutMills": "10000",
            "electionPriority": "2147483647",
        }
        self.beat = encode(Request(904, fields, b""), 1, form="json", flag=2)


@dataclass(slots=True)
class Load:
    """All brokers."""

    controller: tuple[str, int]
    groups: dict[str, list[LoadReplica]] = field(default_factory=dict)
    port: int = 0
    notified: dict[str, asyncio.Future[float]] = field(default_factory=dict)
    """When the new master of a group was notified, by broker name."""
    owner: dict[str, str] = field(default_factory=dict)
    """Broker name by address."""
    beats: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        server = await asyncio.start_server(self._hear, "0.0.0.0", 0, backlog=4096)
        self.port = server.sockets[0].getsockname()[1]

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (length,) = struct.unpack(">I", await reader.readexactly(4))
                notice = decode(await reader.readexactly(length))
                if notice.code == ROLE_CHANGED:
                    self._note(notice.fields["masterAddress"], writer.get_extra_info("sockname")[0])
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _note(self, master: str, heard_at: str) -> None:
        waiting = self.notified.get(self.owner.get(master, ""))
        if waiting is not None and not waiting.done() and master.startswith(f"{heard_at}:"):
            waiting.set_result(time.monotonic())

    async def join(self, count: int, replicas: int) -> None:
        slots = asyncio.Semaphore(JOINS_AT_ONCE)

        async def join_one(number: int) -> None:
            async with slots:
                await self._join_group(number, replicas)

        # While others join, too: on a busy machine that takes longer than a heartbeat is valid.
        self.beats = asyncio.create_task(self._beat())
        await asyncio.gather(*map(join_one, range(count)))

    async def _join_group(self, number: int, replicas: int) -> None:
        name = f"group-{number:04}"
        members = self.groups[name] = []
        for replica in range(replicas):
            host = f"127.{1 + replica}.{number // 250}.{1 + number % 250}"
            reader, writer = await asyncio.open_connection(*self.controller)
            each = LoadReplica(name, f"{host}:{self.port}", AsyncConnection(reader, writer), writer)
            self.owner[each.address] = name
            fields = {"clusterName": "C", "brokerName": name}
            each.id = int((await each.line.call(1012, fields)).fields["nextBrokerId"])
            code = {"appliedBrokerId": str(each.id), "registerCheckCode": f"{each.address};1"}
            assert (await each.line.call(1013, fields | code)).code == 0
            own = {"brokerId": str(each.id), "brokerAddress": each.address, "invokeTime": "1"}
            assert (await each.line.call(1003, fields | own)).code == 0
            each.prepare_beat(1)
            each.writer.write(each.beat)
            members.append(each)
        first = members[0]
        own = {"brokerId": str(first.id), "designateElect": "false", "invokeTime": "1"}
        elected = await first.line.call(1002, {"clusterName": "C", "brokerName": name} | own)
        assert elected.code == 0, elected
        fields = {
            "brokerName": name,
            "masterBrokerId": str(first.id),
            "masterEpoch": elected.fields["masterEpoch"],
            "invokeTime": "1",
        }
        ids = [each.id for each in members]
        body = json.dumps({"syncStateSet": ids, "syncStateSetEpoch": int(elected.fields["syncStateSetEpoch"])})
        # The heartbeats of the others may still be on their way.
        await eventually(lambda: _is_accepted(first, fields, body.encode()))

    async def _beat(self) -> None:
        slices = 20
        while True:
            everyone = [each for members in self.groups.values() for each in members]
            for part in range(slices):
                began = time.monotonic()
                for each in everyone[part::slices]:
                    if each.is_alive:
                        each.writer.write(each.beat)
                await asyncio.sleep(max(0.0, BEAT_S / slices - (time.monotonic() - began)))

    async def kill(self, count: int) -> list[float]:
        chosen = [members for members in self.groups.values() if members[0].is_alive][:count]
        loop = asyncio.get_running_loop()
        self.notified = {members[0].group: loop.create_future() for members in chosen}
        began = time.monotonic()
        for members in chosen:
            members[0].is_alive = False
            members[0].writer.transport.abort()
        await asyncio.wait(self.notified.values(), timeout=NOTICE_S_MAX)
        return [each.result() - began if each.done() else NOTICE_S_MAX for each in self.notified.values()]


async def _is_accepted(master: LoadReplica, fields: dict[str, str], body: bytes) -> bool:
    return (await master.line.call(1001, fields, body)).code == 0


async def main(address: str, groups: int, replicas: int) -> None:
    host, _, port = address.rpartition(":")
    load = Load((host, int(port)))
    await load.listen()
    while True:
        words = (await asyncio.to_thread(sys.stdin.readline)).split()
        if not words:
            return
        answer: object = None
        if words[0] == "join":
            await load.join(groups, replicas)
        elif words[0] == "kill":
            answer = await load.kill(int(words[1]))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
