"""Name servers and brokers in the test process, on free ports of loopback."""

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from skyroute.broker.broker import Broker
from skyroute.broker.config import BrokerConfig
from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.server import NameServer
from skyroute.remoting.loops import LoopThread

CALL_TIMEOUT_S: Final = 30.0
"""How long a server may take to start or stop."""
_LOOPBACK: Final = "127.0.0.1"
_MEMORY_FOLDER: Final = Path("/dev/shm")
_SMALL_FILES: Final = {
    "mapped_file_size_commit_log": 16 * 1024 * 1024,
    "mapped_file_size_consume_queue": 20 * 2_000,
    "max_hash_slot_num": 5_000,
    "max_index_num": 20_000,
}
"""Small files, so that a broker starts fast."""


class _TestBroker:
    """A broker that can be paused, killed and restarted."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.address = ""
        self.thread = LoopThread(config.broker_name)
        self._broker: Broker | None = None

    @property
    def is_running(self) -> bool:
        return self._broker is not None

    def start(self) -> None:
        broker = Broker(self.config)
        self.thread.call(broker.start(), CALL_TIMEOUT_S)
        self._broker, self.address = broker, broker.address

    def stop(self) -> None:
        self.thread.resume()
        if (broker := self._take()) is not None:
            self.thread.call(broker.stop(), CALL_TIMEOUT_S)

    def kill(self) -> None:
        self.thread.resume()
        if (broker := self._take()) is not None:
            self.thread.call(broker.kill(), CALL_TIMEOUT_S)

    def _take(self) -> Broker | None:
        broker, self._broker = self._broker, None
        return broker


class Cluster:
    """Name servers and brokers that run during a `with` block; `cluster` creates it.

    Each broker has its own thread and event loop: a paused broker does not block the others.
    """

    def __init__(self, *, brokers: int, name_servers: int, in_memory: bool, settings: dict[str, Any]) -> None:
        if brokers < 0 or name_servers < 1:
            raise ValueError(f"{brokers} brokers, {name_servers} name servers: expected 0 or more, and 1 or more")
        self._counts = brokers, name_servers
        self._in_memory = in_memory
        self._settings = settings
        self._folder: Path | None = None
        self._name_server_thread: LoopThread | None = None
        self._name_servers: list[NameServer] = []
        self._brokers: list[_TestBroker] = []

    def __repr__(self) -> str:
        state = self.name_server_address if self._name_servers else "not started"
        return f"<Cluster {state} brokers={len(self._brokers)}>"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._stop)

    # Addresses

    @property
    def name_server_address(self) -> str:
        """The name servers as clients take them: `host:port`, separated by `;`."""
        return ";".join(self.name_server_addresses)

    @property
    def name_server_addresses(self) -> Sequence[str]:
        """The address of each name server."""
        return [server.address for server in self._name_servers]

    @property
    def broker_addresses(self) -> Sequence[str]:
        """The address of each broker; the first is `broker-0`."""
        return [broker.address for broker in self._brokers]

    @property
    def folder(self) -> Path:
        """The folder of all files; deleted at the end."""
        assert self._folder is not None, "the cluster is not started"
        return self._folder

    # Faults

    def pause_broker(self, index: int = 0) -> None:
        """Pause a broker: its connections stay open, and it sends no response."""
        self._brokers[index].thread.pause()

    def resume_broker(self, index: int = 0) -> None:
        """Resume a paused broker."""
        self._brokers[index].thread.resume()

    def kill_broker(self, index: int = 0) -> None:
        """Kill a broker as `kill -9` does: it does not unregister, and writes nothing more."""
        self._brokers[index].kill()

    def stop_broker(self, index: int = 0) -> None:
        """Stop a broker: it unregisters and flushes its files."""
        self._brokers[index].stop()

    def restart_broker(self, index: int = 0) -> None:
        """Start a broker again with its address and files; stop it first if it runs."""
        self._brokers[index].stop()
        self._brokers[index].start()

    # Start and stop

    def _start(self) -> None:
        brokers, name_servers = self._counts
        parent = _MEMORY_FOLDER if self._in_memory and _MEMORY_FOLDER.is_dir() else None
        self._folder = Path(tempfile.mkdtemp(prefix="skyroute-", dir=parent))
        self._name_server_thread = LoopThread("name servers")
        for number in range(name_servers):
            server = NameServer(_name_server_config(self._folder / f"namesrv-{number}"))
            self._name_server_thread.call(server.start(), CALL_TIMEOUT_S)
            self._name_servers.append(server)
        for number in range(brokers):
            values: dict[str, Any] = {
                **_SMALL_FILES,
                "broker_name": f"broker-{number}",
                "bind_address": _LOOPBACK,
                "listen_port": 0,
                "store_path_root_dir": str(self._folder / f"broker-{number}"),
                **self._settings,
                "namesrv_addr": self.name_server_address,
            }
            broker = _TestBroker(BrokerConfig(**values))
            self._brokers.append(broker)
            broker.start()

    def _stop(self) -> None:
        for broker in self._brokers:
            broker.stop()
            broker.thread.close()
        thread, self._name_server_thread = self._name_server_thread, None
        if thread is not None:
            for server in self._name_servers:
                thread.call(server.stop(), CALL_TIMEOUT_S)
            thread.close()
        self._brokers.clear()
        self._name_servers.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _name_server_config(folder: Path) -> NameServerConfig:
    return NameServerConfig(
        bind_address=_LOOPBACK,
        listen_port=0,
        kv_config_path=str(folder / "kvConfig.json"),
        config_store_path=str(folder / "namesrv.properties"),
    )


def cluster(*, brokers: int = 1, name_servers: int = 1, in_memory: bool = False, **settings: Any) -> Cluster:
    """Return a cluster for a `with` or `async with` block.

    Args:
        brokers: Number of brokers.
        name_servers: Number of name servers; every broker registers with all of them.
        in_memory: Keep files in memory (`/dev/shm`), if the system has it.
        settings: Fields of `BrokerConfig` for all brokers, such as `auto_create_topic_enable=False`.

    Examples:
        >>> from skyroute import Message
        >>> from skyroute.blocking import Producer
        >>> from skyroute.testing import cluster
        >>> with cluster() as c, Producer("billing", c.name_server_address) as producer:
        ...     producer.send(Message("Orders", b"one")).status.name
        'OK'
    """
    return Cluster(brokers=brokers, name_servers=name_servers, in_memory=in_memory, settings=settings)
