"""A small cluster's life, told as it happens: two name servers, four brokers, one of which falls silent.

Everything is real: the name servers are processes started by the `skyroute` command, and every line below was learnt
over RocketMQ's own protocol. Run it with `make demo`.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from skyroute.remoting.client import Channel, connect
from skyroute.routing.registration import DataVersion, Registration, TopicTable
from skyroute.routing.topology import QueueSettings, TopicRoute
from skyroute.wire.calls.registration import Goodbye, encode_goodbye, encode_registration
from skyroute.wire.calls.route import decode_route, encode_route_query
from skyroute.wire.command import Request

LEASE_S = 2.0
HEARTBEAT_S = 0.5
STARTED_AT = time.monotonic()


def tell(text: str) -> None:
    print(f"{time.monotonic() - STARTED_AT:6.2f} s  {text}", flush=True)


class NameServerProcess:
    """`skyroute nameserver` on a free port."""

    def __init__(self, folder: Path) -> None:
        settings = {
            "listenPort": "0",
            "bindAddress": "127.0.0.1",
            "kvConfigPath": str(folder / "kvConfig.json"),
            "configStorePath": str(folder / "namesrv.properties"),
            "scanNotActiveBrokerInterval": "250",
        }
        command = [sys.executable, "-m", "skyroute", "nameserver", "--log-level", "warning"]
        command += [part for key, value in settings.items() for part in ("-D", f"{key}={value}")]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if "boot success" not in line:
            raise SystemExit("the name server did not start; its message is above")
        self.address = line.rsplit(" ", 1)[1]
        tell(f"name server ready at {self.address} (process {self.process.pid})")

    def stop(self) -> None:
        self.process.terminate()
        tell(f"name server at {self.address} stopped with exit code {self.process.wait(timeout=10)}")


class DemoBroker:
    """Registers with every name server, as a broker does, and keeps its word alive by heartbeats."""

    def __init__(self, name: str, broker_id: int, port: int, topics: dict[str, int]) -> None:
        queues = {topic: QueueSettings(count, count, 6) for topic, count in topics.items()}
        self.registration = Registration(
            cluster="demo",
            broker_name=name,
            broker_id=broker_id,
            address=f"127.0.0.1:{port}",
            ha_address=f"127.0.0.1:{port + 1}",
            acting_master=False,
            lease_s=LEASE_S,
            table=TopicTable(DataVersion(0, int(time.time() * 1000), 1), queues, {}, ()),
        )
        self._channels: list[Channel] = []
        self._beats: asyncio.Task[None] | None = None

    async def register(self, name_servers: list[str]) -> None:
        self._channels = [await connect(address) for address in name_servers]
        master = None
        for channel in self._channels:
            answer = await channel.call(encode_registration(self.registration))
            assert answer.code == 0, answer.remark
            master = (answer.fields or {}).get("masterAddr")
        role = "master" if self.registration.broker_id == 0 else "slave "
        told = f", told that its master is {master}" if master else ""
        tell(f"broker {self.registration.broker_name} {role} registered from {self.registration.address}{told}")
        self._beats = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            for channel in self._channels:
                await channel.call(encode_registration(self.registration))

    def fall_silent(self) -> None:
        """Stop the heartbeats and keep the connections open: as a hanging machine does."""
        assert self._beats is not None
        self._beats.cancel()

    async def say_goodbye(self) -> None:
        self.fall_silent()
        own = self.registration
        goodbye = Goodbye(own.cluster, own.broker_name, own.broker_id, own.address)
        for channel in self._channels:
            await channel.call(encode_goodbye(goodbye))

    def vanish(self) -> None:
        """Cut the connections: as a killed process does."""
        self.fall_silent()
        for channel in self._channels:
            channel.close()


def show(topic: str, route: TopicRoute | None) -> str:
    if route is None:
        return f"route of {topic}: none"
    groups = {group.name: group for group in route.groups}
    parts = []
    for queues in route.queues:
        group = groups[queues.broker_name]
        addresses = ", ".join(f"{broker_id}={address}" for broker_id, address in group.addresses.items())
        parts.append(f"{group.name} x{queues.settings.read_queues} ({addresses})")
    return f"route of {topic}: " + " | ".join(parts)


async def ask(channel: Channel, topic: str) -> TopicRoute | None:
    answer = await channel.call(encode_route_query(topic))
    return decode_route(answer.body) if answer.code == 0 else None


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 10.0) -> float:
    """Ask again and again; return how long it took."""
    began = time.monotonic()
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110 - it happens in another process, which tells nobody
            await asyncio.sleep(0.02)
    return time.monotonic() - began


async def story(name_servers: list[str]) -> None:
    asker = await connect(name_servers[1])
    orders = {"orders": 8, "payments": 4}
    brokers = [
        DemoBroker("broker-a", 0, 10911, orders),
        DemoBroker("broker-a", 1, 10921, orders),
        DemoBroker("broker-b", 0, 10931, orders),
        DemoBroker("broker-c", 0, 10941, {"orders": 8, "audit": 2}),
    ]
    tell(show("orders", await ask(asker, "orders")))
    for broker in brokers:
        await broker.register(name_servers)
    for topic in ("orders", "payments", "audit"):
        tell(show(topic, await ask(asker, topic)))

    async def gone(broker_name: str) -> bool:
        route = await ask(asker, "orders")
        return route is None or broker_name not in {group.name for group in route.groups}

    tell(f"broker-b falls silent, its connection stays open; its lease is {LEASE_S:g} s …")
    brokers[2].fall_silent()
    waited_s = await until(lambda: gone("broker-b"))
    tell(f"… evicted after {waited_s:.2f} s. {show('orders', await ask(asker, 'orders'))}")

    tell("broker-c is cut off, as by kill -9 …")
    brokers[3].vanish()
    waited_s = await until(lambda: gone("broker-c"))
    tell(f"… evicted after {waited_s * 1000:.0f} ms. {show('audit', await ask(asker, 'audit'))}")

    tell("broker-b comes back")
    await brokers[2].register(name_servers)
    tell(show("orders", await ask(asker, "orders")))

    tell("everybody says goodbye")
    for broker in brokers[:3]:
        await broker.say_goodbye()
        broker.vanish()
    tell(show("orders", await ask(asker, "orders")))

    burst = 20_000
    began = time.monotonic()
    await brokers[0].register(name_servers)
    for _ in range(burst // 100):
        await asyncio.gather(*(asker.call(encode_route_query("orders")) for _ in range(100)))
    tell(f"{burst} more questions answered in {time.monotonic() - began:.2f} s, asked by one Python client")
    answer = await asker.call(Request(9999))
    tell(f"a question nobody understands is answered politely: code {answer.code},{answer.remark}")
    brokers[0].vanish()
    asker.close()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="skyroute-demo-") as folder:
        servers: list[NameServerProcess] = []
        try:
            for name in ("one", "two"):
                (Path(folder) / name).mkdir()
                servers.append(NameServerProcess(Path(folder) / name))
            asyncio.run(story([server.address for server in servers]))
        finally:
            for server in servers:
                server.stop()


if __name__ == "__main__":
    main()
