"""A name server and any number of brokers, in the test's event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skyroute.broker.broker import Broker
from skyroute.broker.config import BrokerConfig
from skyroute.client.admin import Admin
from skyroute.client.consuming.consumer import Consumer
from skyroute.client.consuming.subscription import StartPosition
from skyroute.client.producing.producer import Producer
from skyroute.client.session.session import Session
from skyroute.clock import Clock, SystemClock
from skyroute.files.disk import Disk
from skyroute.message.message import Message
from skyroute.wire.calls.topics import TopicConfig
from tests.network.client.consumers import HURRIED
from tests.support.clock import ManualClock
from tests.support.connections import AsyncConnection, connection_to
from tests.support.disks import NoSyncDisk, bodies
from tests.support.raw import Form
from tests.support.servers import Running, running


@dataclass
class Cluster:
    """A name server and its brokers. Closes everything that a test opens through it."""

    name_server: Running
    folder: Path
    clock: ManualClock = field(default_factory=ManualClock)
    brokers: list[Broker] = field(default_factory=list)
    """Running brokers, the newest last."""
    _ends: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def broker(self) -> Broker:
        """The newest broker."""
        return self.brokers[-1]

    @property
    def name_server_address(self) -> str:
        return self.name_server.address

    # ------------------------------------------------------------------------------------------------------- brokers

    def config(self, name: str = "broker-a", **settings: Any) -> BrokerConfig:
        """Settings with small files; brokers of one name share a folder."""
        values: dict[str, Any] = {
            "broker_name": name,
            "advertised_host": "127.0.0.1",
            "bind_address": "127.0.0.1",
            "listen_port": 0,
            "name_server_list": self.name_server.address,
            "store_path": str(self.folder / name),
            "settings_file": str(self.folder / f"{name}.properties"),
            "commit_log_file_bytes": 1 << 23,
            "consume_queue_file_bytes": 20 * 1000,
            "index_slots": 1000,
            "index_entries": 4000,
        }
        return BrokerConfig(**(values | settings))

    async def start(
        self, name: str = "broker-a", *, clock: Clock | None = None, disk: Disk | None = None, **settings: Any
    ) -> Broker:
        """Start a broker, by default with the cluster's own clock."""
        broker = Broker(self.config(name, **settings), clock=clock or self.clock, disk=disk or NoSyncDisk())
        await broker.start()
        self.brokers.append(broker)
        return broker

    async def start_live(self, **settings: Any) -> Broker:
        """Start a broker with the system clock."""
        return await self.start(clock=SystemClock(), **settings)

    async def stop(self, broker: Broker | None = None) -> None:
        broker = broker or self.broker
        self.brokers.remove(broker)
        await broker.stop()

    async def kill(self, broker: Broker | None = None) -> None:
        broker = broker or self.broker
        self.brokers.remove(broker)
        await broker.kill()

    async def add_topic(self, name: str = "T", queues: int = 1, **more: Any) -> None:
        """Create a topic on the newest broker, and register it."""
        topic = TopicConfig(name, queues, queues, **more)
        self.broker.components.topics.put(topic)
        await self.broker.components.topics.table_file.save()
        await self.broker.components.registrar.announce([topic])

    def has_route(self, topic: str) -> bool:
        return topic in self.name_server.server.table.topics

    def stored(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        """The message bodies of a queue."""
        return bodies(self.broker.components.store, topic, queue_id)

    # ------------------------------------------------------------------------------------------------------- clients

    async def line(self, *, form: Form = "json", address: str = "", **options: Any) -> AsyncConnection:
        """A connection to the newest broker, for raw commands."""
        return await self._ends.enter_async_context(connection_to(address or self.broker.address, form=form, **options))

    async def session(self) -> Session:
        return await self._ends.enter_async_context(Session(self.name_server.address, heartbeat_interval_s=1000))

    async def admin(self) -> Admin:
        return await self._ends.enter_async_context(Admin(self.name_server.address))

    def consumer(self, group: str = "g", **settings: Any) -> Consumer:
        """A consumer that starts at the oldest message and polls at short intervals."""
        return Consumer(group, self.name_server.address, start=StartPosition.FIRST, intervals=HURRIED, **settings)

    def producer(self) -> Producer:
        return Producer("p", self.name_server.address)

    async def send(self, *messages: Message) -> None:
        async with self.producer() as producer:
            for message in messages:
                await producer.send(message)

    async def close(self) -> None:
        await self._ends.aclose()
        while self.brokers:
            await self.stop()


@asynccontextmanager
async def cluster_in(folder: Path) -> AsyncIterator[Cluster]:
    """A cluster without brokers."""
    async with running(folder) as name_server:
        cluster = Cluster(name_server, folder)
        try:
            yield cluster
        finally:
            await cluster.close()
