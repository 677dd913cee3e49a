"""A name server and one broker with a manual clock, which can be killed and restarted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skyroute.broker.broker import Broker
from skyroute.broker.config import BrokerConfig
from skyroute.client.consuming.consumer import Consumer
from skyroute.client.consuming.subscription import StartPosition
from skyroute.message.message import StoredMessage
from skyroute.wire.calls.topics import TopicConfig
from tests.network.client.consumers import HURRIED
from tests.support.clock import ManualClock
from tests.support.disks import read_all
from tests.support.servers import Running, running


@dataclass
class OneBroker:
    name_server: Running
    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)
    clock: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.broker = self._broker()

    def _broker(self) -> Broker:
        values: dict[str, Any] = {
            "broker_name": "broker-a",
            "advertised_host": "127.0.0.1",
            "bind_address": "127.0.0.1",
            "listen_port": 0,
            "name_server_list": self.name_server.address,
            "store_path": str(self.folder / "store"),
            "settings_file": str(self.folder / "broker.properties"),
            "commit_log_file_bytes": 1 << 22,
            "index_slots": 1000,
            "index_entries": 4000,
        }
        return Broker(BrokerConfig(**(values | self.settings)), clock=self.clock)

    async def start(self) -> None:
        await self.broker.start()
        topic = TopicConfig("Orders", 1, 1)
        self.broker.components.topics.put(topic)
        await self.broker.components.topics.table_file.save()
        await self.broker.components.registrar.announce([topic])

    async def restart(self, *, by_force: bool = False) -> None:
        """Stop or kill the broker, and start another with its store and port."""
        port = self.broker.config.listen_port
        await (self.broker.kill() if by_force else self.broker.stop())
        self.broker = self._broker()
        self.broker.config.listen_port = port
        await self.start()

    @property
    def address(self) -> str:
        return self.broker.address

    def consumer(self, group: str = "g", **settings: Any) -> Consumer:
        return Consumer(group, self.name_server.address, start=StartPosition.FIRST, intervals=HURRIED, **settings)

    def stored(self, topic: str = "Orders") -> list[StoredMessage]:
        return read_all(self.broker.components.store, topic)


@asynccontextmanager
async def one_broker(folder: Path, **settings: Any) -> AsyncIterator[OneBroker]:
    async with running(folder) as name_server:
        place = OneBroker(name_server, folder, settings)
        await place.start()
        try:
            yield place
        finally:
            await place.broker.stop()
