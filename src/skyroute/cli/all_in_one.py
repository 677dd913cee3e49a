"""`skyroute up`: name server, broker and web console in one process; with replicas, a group of broker processes."""

import asyncio
import logging
import os
import sys
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from skyroute.broker.advertised_address import outward_ip
from skyroute.broker.broker import Broker
from skyroute.broker.config import BrokerConfig
from skyroute.cli.broker import advertise_option_settings
from skyroute.cli.console import missing_extra
from skyroute.cli.logs import LogSettings
from skyroute.cli.server_process import RunnableServer, print_line, run, server_command
from skyroute.errors import SkyrouteError
from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.server import NameServer
from skyroute.remoting.address import join_address
from skyroute.remoting.errors import BindError
from skyroute.settings.config import ServerConfig
from skyroute.settings.errors import ConfigError

if TYPE_CHECKING:
    from skyroute.console.server import Console
    from skyroute.controller.events import GroupEvent
    from skyroute.controller.server import ControllerServer

log = logging.getLogger(__name__)

_ALL_ADDRESSES: Final = ("0.0.0.0", "::", "*")

PORT_DISTANCE: Final = 10
"""Distance between the ports of two brokers. Each listens on its port, on the one above and two below."""
LISTEN_MS: Final = 3_000
"""How long the controller listens before it replaces a master: all brokers start with it and heartbeat each second."""

_REPLICATED: Final = {"allAckInSyncStateSet": "true"}
"""Settings of replicated brokers that -D may change."""
_CONTROLLED: Final = {"enableControllerMode": "true", "brokerId": "-1", "brokerRole": "SLAVE"}
"""Settings of replicated brokers that -D cannot change."""


class _BrokerInProcess:
    """A broker that registers with a name server in this process, whose port is known once it listens."""

    def __init__(self, broker: Broker, name_server: NameServer) -> None:
        self._broker = broker
        self._name_server = name_server

    async def start(self) -> None:
        self._broker.config.name_server_list = local_address(self._name_server)
        await self._broker.start()

    async def stop(self) -> None:
        await self._broker.stop()


class _ConsoleInProcess:
    """The console of the cluster in this process. Starts in the background; prints its URL, or why it did not start."""

    def __init__(
        self, name_server: NameServer, host: str, port: int, folder: Path, controller: "ControllerServer | None" = None
    ) -> None:
        self._name_server = name_server
        self._controller = controller
        self._settings = host, port, folder
        self._console: Console | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._begin())

    async def _begin(self) -> None:
        missing = missing_extra()
        if missing is not None:
            print_line(f"No console   {missing}")
            return
        try:
            # Importing its packages takes longer than starting the cluster.
            console = await asyncio.to_thread(self._make)
            await console.start()
        except BindError:
            address = join_address(*self._settings[:2])
            print_line(f"No console   cannot listen on {address}: choose another --console-port (0: any free port)")
        except SkyrouteError as error:
            print_line(f"No console   {error}")
        except Exception:  # the cluster runs without it
            log.exception("console failed to start")
        else:
            self._console = console
            print_line(f"Console      {console.url}")

    def _make(self) -> "Console":
        from skyroute.console.config import ConsoleConfig
        from skyroute.console.server import Console

        address, memory = local_address(self._name_server), self._name_server.config.persistence
        host, port, folder = self._settings
        journals = {address: memory.path} if memory is not None else {}
        controllers = None if self._controller is None else local_address(self._controller)
        return Console(
            ConsoleConfig(
                name_servers=address, host=host, port=port, folder=folder, journals=journals, controllers=controllers
            )
        )

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._console is not None:
            await self._console.stop()


def local_address(server: "NameServer | ControllerServer") -> str:
    """Return the address at which this process reaches its own name server or controller."""
    host, _, port = server.address.rpartition(":")
    return f"127.0.0.1:{port}" if host.strip("[]") in _ALL_ADDRESSES else server.address


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of `skyroute up`."""

    folder: Path
    port: int
    ns_port: int
    controller_port: int
    bind: str
    console_port: int | None
    """None: no console."""
    replicas: int
    advertise: str | None
    settings: dict[str, str]
    """Settings of the brokers, from -D."""
    metrics_port: int | None
    logs: LogSettings


def run_cluster(options: UpOptions) -> None:
    """Run a name server, brokers and, with a port for it, a console until a signal."""
    with server_command("up", options.logs):
        print_line(f"Data folder: {options.folder}")
        name_server = NameServer(_name_server_config(options))
        try:
            if options.replicas == 1:
                _run_one_broker(options, name_server)
            else:
                _run_group(options, name_server)
        except BindError as error:
            print(
                f"skyroute up: {error}\n"
                "Stop the `skyroute up` that already runs, or choose other ports (0: any free one): --ns-port, --port, "
                "--controller-port, --metrics-port.",
                file=sys.stderr,
            )
            sys.exit(1)


def _name_server_config(options: UpOptions) -> NameServerConfig:
    folder = options.folder / "namesrv"
    shared = {key: value for key, value in options.settings.items() if key == "metricsHost"}
    return NameServerConfig.load(
        options=shared
        | {
            "metricsPort": str(options.metrics_port or 0),
            "listenPort": str(options.ns_port),
            "bindAddress": options.bind,
            "kvConfigPath": str(folder / "kvConfig.json"),
            "configStorePath": str(folder / "namesrv.properties"),
            # With port 0, a name server records nothing unless memoryPath is set.
            "memoryPath": "" if options.ns_port else str(folder / "memory"),
        }
    )


def _broker_settings(options: UpOptions, number: int) -> dict[str, str]:
    """Return the settings of a broker; 1 is the first one."""
    given = {"brokerName": "broker-a"} | options.settings | advertise_option_settings(options.advertise)
    if options.bind in _ALL_ADDRESSES:
        given.setdefault("brokerIP1", outward_ip())
    port = options.port + (number - 1) * PORT_DISTANCE if options.port else 0
    given |= {"listenPort": str(port), "bindAddress": options.bind}
    given["storePathRootDir"] = str(_store_folder(options, number))
    if options.metrics_port:
        given["metricsPort"] = str(options.metrics_port + number)
    return given


def _store_folder(options: UpOptions, number: int) -> Path:
    return options.folder / ("store" if number == 1 else f"store-{number}")


def _consoles(
    options: UpOptions, name_server: NameServer, controller: "ControllerServer | None" = None
) -> list[RunnableServer]:
    if options.console_port is None:
        return []
    host = "0.0.0.0" if options.bind == "*" else options.bind
    return [_ConsoleInProcess(name_server, host, options.console_port, options.folder / "console", controller)]


def _run_one_broker(options: UpOptions, name_server: NameServer) -> None:
    if _store_folder(options, 2).exists():
        raise ConfigError(
            f"{options.folder} has the data of a replicated group, and one broker may lack the newest messages: "
            "run `skyroute up --replicas 3`, or choose another --data"
        )
    config = BrokerConfig.load(options=_broker_settings(options, 1))
    broker = Broker(config)
    servers: list[RunnableServer] = [
        name_server,
        _BrokerInProcess(broker, name_server),
        *_consoles(options, name_server),
    ]

    def print_addresses() -> None:
        print_line(f"Name server  {local_address(name_server)}")
        print_line(f"Broker       {broker.address}  ({config.broker_name})")
        _print_metrics(name_server.config, config)
        _print_first_steps(name_server)

    run("cluster", [name_server.config, config], servers, print_addresses)


def _run_group(options: UpOptions, name_server: NameServer) -> None:
    from skyroute.cli.controller_journal import record_in
    from skyroute.cli.replica_group import ReplicaGroup
    from skyroute.controller.config import EmbeddedControllerConfig
    from skyroute.controller.server import ControllerServer

    shared = {key: value for key, value in options.settings.items() if key == "metricsHost"}
    config = EmbeddedControllerConfig.load(
        options=shared
        | {
            "controllerListenPort": str(options.controller_port),
            "controllerMetricsPort": str(options.metrics_port + options.replicas + 1 if options.metrics_port else 0),
            "bindAddress": options.bind,
            "controllerStorePath": str(options.folder / "controller"),
            "configStorePath": str(options.folder / "controller" / "controller.properties"),
            "listenBeforeElectionMillis": str(LISTEN_MS),
        }
    )
    numbers = range(1, options.replicas + 1)
    # Only known once the controller listens.
    unknown = {"controllerAddr": "127.0.0.1:1"}
    settings = [_REPLICATED | _broker_settings(options, number) | _CONTROLLED for number in numbers]
    for each in settings:
        BrokerConfig.load(options=each | unknown)  # reports a wrong setting before a process starts

    def record(events: "Collection[GroupEvent]") -> None:
        record_in(name_server, events)
        group.print_changes(events)

    controller = ControllerServer(config, record=record, find_enforcer=lambda: name_server.enforcer)
    group = ReplicaGroup(
        settings,
        name_server,
        controller,
        lambda: {"namesrvAddr": local_address(name_server), "controllerAddr": local_address(controller)},
        options.logs,
    )

    def print_addresses() -> None:
        print_line(f"Name server  {local_address(name_server)}")
        print_line(f"Controller   {local_address(controller)}")
        master = group.master
        for each in group.brokers:
            role = "master" if each is master else "slave"
            print_line(f"Broker       {each.address}  ({settings[0]['brokerName']}, {role}, process {each.pid})")
        _print_metrics(name_server.config, config)
        _print_first_steps(name_server)
        if master is not None:
            print_line(f"  kill -9 {master.pid}    # another broker becomes master; this one is started again")

    servers: list[RunnableServer] = [name_server, controller, group, *_consoles(options, name_server, controller)]
    run("cluster", [name_server.config, config], servers, print_addresses)


def _print_metrics(*configs: ServerConfig) -> None:
    for config in configs:
        if config.metrics_address is not None:
            print_line(f"Metrics      http://{join_address(*config.metrics_address)}/metrics")


def _print_first_steps(name_server: NameServer) -> None:
    address = local_address(name_server)
    flag = "" if os.environ.get("NAMESRV_ADDR") == address else f" -n {address}"
    print_line("Ready; ctrl-C stops it. To try it, in another terminal:")
    print_line(f'  skyroute admin sendMessage{flag} -t Hello -p "My first message"')
    print_line(f"  skyroute admin printMsg{flag} -t Hello")
