"""A name server, our controller and brokers of one group in controller mode, in the test's event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skyroute.broker.broker import Broker
from skyroute.broker.config import BrokerConfig
from skyroute.broker.replication.controller_mode import ControllerMode
from skyroute.broker.roles import Roles
from skyroute.controller.config import ControllerConfig
from skyroute.controller.server import ControllerServer
from tests.support.disks import NoSyncDisk
from tests.support.servers import Running, running
from tests.support.waiting import eventually


@dataclass
class ReplicaGroup:
    """The brokers of one group, by number; a broker that starts again has its old store and port."""

    name_server: Running
    controller: ControllerServer
    folder: Path
    brokers: dict[int, Broker] = field(default_factory=dict)
    ports: dict[int, tuple[int, int]] = field(default_factory=dict)

    async def start(self, number: int, **settings: Any) -> Broker:
        values: dict[str, Any] = {
            "broker_name": "broker-a",
            "broker_id": -1,
            "broker_role": "SLAVE",
            "controller_mode_enabled": True,
            "controller_list": self.controller.address,
            "all_ack_in_sync_set": True,
            "advertised_host": "127.0.0.1",
            "bind_address": "127.0.0.1",
            "listen_port": self.ports.get(number, (0, 0))[0],
            "ha_port": self.ports.get(number, (0, 0))[1],
            "name_server_list": self.name_server.address,
            "store_path": str(self.folder / f"store-{number}"),
            "settings_file": str(self.folder / f"broker-{number}.properties"),
            "commit_log_file_bytes": 1 << 18,
            "index_slots": 1000,
            "index_entries": 4000,
            "role_check_interval_s": 0.5,
            "sync_set_check_interval_s": 0.5,
            "ha_heartbeat_s": 1.5,
        }
        broker = Broker(BrokerConfig(**(values | settings)), disk=NoSyncDisk())
        await broker.start()
        self.brokers[number] = broker
        self.ports[number] = broker.config.listen_port, self.mode(number).sender.port
        await eventually(lambda: self.mode(number).master_id is not None, f"broker {number} has a role")
        return broker

    async def stop(self, number: int) -> None:
        await self.brokers.pop(number).stop()

    async def kill(self, number: int) -> None:
        await self.brokers.pop(number).kill()

    async def restart_controller(self) -> None:
        """Start a stopped controller on another port, which listens before it replaces a master."""
        self.controller = ControllerServer(controller_config(self.folder, settle_s=3600.0))
        await self.controller.start()

    def roles(self, number: int) -> Roles:
        roles = self.brokers[number].components.roles
        assert roles is not None
        return roles

    def mode(self, number: int) -> ControllerMode:
        return self.roles(number).mode

    @property
    def master(self) -> int | None:
        """The number of the broker that serves as master; None while there is none."""
        return next((number for number in self.brokers if self.roles(number).is_master), None)

    def log_end(self, number: int) -> int:
        return self.brokers[number].components.store.max_position

    def log_bytes(self, number: int) -> bytes:
        folder = self.folder / f"store-{number}" / "commitlog"
        return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))[: self.log_end(number)]

    async def in_sync(self, *numbers: int) -> None:
        """Wait until exactly these brokers are in the sync state set, and have the same log."""

        def is_so() -> bool:
            master = self.master
            state = None if master is None else self.mode(master).state
            ids = {self.mode(number).broker_id for number in numbers}
            ends = {self.log_end(number) for number in numbers}
            return state is not None and state.members == ids and not state.asked and len(ends) == 1

        await eventually(is_so, f"brokers {numbers} are in sync")


def controller_config(folder: Path, *, settle_s: float = 0.0, notifies: bool = True) -> ControllerConfig:
    return ControllerConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        settings_file=str(folder / "controller.properties"),
        store_path=str(folder / "controller"),
        settle_s=settle_s,
        notifies_brokers=notifies,
        scan_interval_s=0.5,
        master_scan_interval_s=0.5,
    )


@asynccontextmanager
async def replica_group(
    folder: Path, brokers: int = 0, *, notifies: bool = True, **settings: Any
) -> AsyncIterator[ReplicaGroup]:
    async with running(folder) as name_server:
        controller = ControllerServer(controller_config(folder, notifies=notifies))
        await controller.start()
        group = ReplicaGroup(name_server, controller, folder)
        try:
            for number in range(1, brokers + 1):
                await group.start(number, **settings)
            if brokers:
                await group.in_sync(*range(1, brokers + 1))
            yield group
        finally:
            for number in list(group.brokers):
                await group.stop(number)
            await group.controller.stop()
