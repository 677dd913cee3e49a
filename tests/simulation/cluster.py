"""Simulated machines, and the servers and clients on them."""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import logging
import random
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from skyroute.broker.broker import Broker
from skyroute.broker.config import BrokerConfig
from skyroute.errors import SkyrouteError
from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.server import NameServer
from tests.simulation.disk import SimDisk
from tests.simulation.loop import HOST, SimClock, SimLoop
from tests.simulation.network import SimNetwork
from tests.simulation.threads import SimThreading

log = logging.getLogger(__name__)

NAME_SERVER_PORT: Final = 9876
BROKER_PORT: Final = 10911


class World:
    """One simulation: loop, network, threads, trace."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.folder = folder
        self.loop = SimLoop(seed)
        self.rng = random.Random(f"scenario {seed}")
        self._hash = hashlib.sha256()
        self.network = SimNetwork(self.loop, random.Random(f"network {seed}"), self.trace)
        self.loop.network = self.network
        self.threads = SimThreading(self.loop)
        self.trace_lines: list[str] | None = None
        """All of the trace, to find where two runs differ; None: only its hash is kept."""
        self.log: list[str] = []
        """Faults and other steps of the scenario, for people."""

    def trace(self, line: str) -> None:
        """Add an event to the hash that two runs of one seed must share."""
        self._hash.update(line.encode())
        if self.trace_lines is not None:
            self.trace_lines.append(line)

    @property
    def trace_hash(self) -> str:
        return self._hash.hexdigest()

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self.loop.time() - 1000

    def note(self, text: str) -> None:
        """Note a step of the scenario."""
        line = f"{self.now:10.3f} {text}"
        self.log.append(line)
        self.trace(line)
        log.info("simulation %s", line)


class Machine:
    """A machine with an address, a clock and a disk. Code started with `run` is on it."""

    def __init__(self, world: World, ip: str) -> None:
        self.world = world
        self.ip = ip
        self.folder = world.folder / ip
        self.folder.mkdir(parents=True)
        self.clock = SimClock(world.loop)
        self.disk = SimDisk(self.folder, random.Random(f"disk {ip} {world.seed}"), world.threads.sleep)
        self._context = contextvars.copy_context()
        self._context.run(HOST.set, ip)
        self.is_up = True

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self.world.loop.create_task(work, context=self._context.copy())


class NameServerNode:
    """A name server that can be killed and started again."""

    def __init__(self, world: World, ip: str, **settings: Any) -> None:
        self.machine = Machine(world, ip)
        self._settings = settings
        self.server: NameServer | None = None
        self.lives = 0

    @property
    def address(self) -> str:
        return f"{self.machine.ip}:{NAME_SERVER_PORT}"

    @property
    def ip(self) -> str:
        return self.machine.ip

    @property
    def journal_folder(self) -> Path:
        return self.machine.folder / "memory" / "journal"

    async def start(self) -> None:
        folder = self.machine.folder
        config = NameServerConfig(
            **{
                "listen_port": NAME_SERVER_PORT,
                "bind_address": self.machine.ip,
                "kv_config_path": str(folder / "kvConfig.json"),
                "settings_file": str(folder / "namesrv.properties"),
                "memory_path": str(folder / "memory"),
                **self._settings,
            }
        )
        server = NameServer(config, clock=self.machine.clock, disk=self.machine.disk)
        await self.machine.spawn(server.start())
        self.server = server
        self.lives += 1

    async def stop(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            await self.machine.spawn(server.stop())

    async def kill(self, *, power: bool) -> None:
        """Kill the process, or switch the machine off."""
        server, self.server = self.server, None
        if server is None:
            return
        network = self.machine.world.network
        (network.switch_off if power else network.kill_process)(self.machine.ip)
        self.machine.disk.die()
        self.machine.world.threads.kill(self.machine.ip)
        await self.machine.spawn(_kill_name_server(server))
        if power:
            self.machine.disk.crash()

    async def restart(self) -> None:
        self.machine.disk.revive()
        self.machine.world.network.switch_on(self.machine.ip)
        await self.start()


async def _kill_name_server(server: NameServer) -> None:
    """End a name server as a crash does: nothing more is written."""
    server._stopping = True
    if server._server is not None:
        server._server.abort()
    await server._background.end()
    publisher = server._publisher
    persistence, publisher.persistence = publisher.persistence, None
    if persistence is not None:
        persistence.folder.release()
    if publisher.notifier is not None:
        await publisher.notifier.stop()


class BrokerNode:
    """A broker that can be killed and started again."""

    def __init__(self, world: World, ip: str, name: str, name_servers: str, **settings: Any) -> None:
        self.machine = Machine(world, ip)
        self.name = name
        self._name_servers = name_servers
        self._settings = settings
        self.broker: Broker | None = None
        self.lives = 0

    @property
    def ip(self) -> str:
        return self.machine.ip

    @property
    def address(self) -> str:
        return f"{self.machine.ip}:{BROKER_PORT}"

    async def start(self) -> None:
        config = BrokerConfig(
            **{
                "listen_port": BROKER_PORT,
                "bind_address": self.machine.ip,
                "advertised_host": self.machine.ip,
                "broker_name": self.name,
                "name_server_list": self._name_servers,
                "store_path": str(self.machine.folder / "store"),
                "commit_log_file_bytes": 32 * 1024,
                "consume_queue_file_bytes": 20 * 50,
                "index_slots": 100,
                "index_entries": 1000,
                "index_in_own_process": False,
                "default_topic_queues": 4,
                "flush_interval_s": 1.0,
                "offset_save_interval_s": 8.0,
                "forced_deletion_enabled": False,  # a full disk would expire what consumers have not read yet
                **self._settings,
            }
        )
        broker = Broker(config, clock=self.machine.clock, disk=self.machine.disk)
        try:
            await self.machine.spawn(broker.start())
        except SkyrouteError as error:
            self.machine.world.note(f"{self.name} does not start: {error}")
            raise
        self.broker = broker
        self.lives += 1

    def change(self, **settings: Any) -> None:
        """Change settings for the next start."""
        self._settings.update(settings)

    async def stop(self) -> None:
        broker, self.broker = self.broker, None
        if broker is not None:
            await self.machine.spawn(broker.stop())

    async def kill(self, *, power: bool) -> None:
        """Kill the process, or switch the machine off."""
        broker, self.broker = self.broker, None
        if broker is None:
            return
        network = self.machine.world.network
        (network.switch_off if power else network.kill_process)(self.machine.ip)
        self.machine.disk.die()
        with suppress(SkyrouteError):
            await self.machine.spawn(broker.kill())
        if power:
            self.machine.disk.crash()

    async def restart(self) -> None:
        self.machine.disk.revive()
        self.machine.world.network.switch_on(self.machine.ip)
        await self.start()
