"""Name server, broker and web console in one process, for `skyroute up`."""

import asyncio
import logging
import os
import sys
from contextlib import suppress
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

if TYPE_CHECKING:
    from skyroute.console.server import Console

log = logging.getLogger(__name__)

_ALL_ADDRESSES: Final = ("0.0.0.0", "::", "*")


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

    def __init__(self, name_server: NameServer, host: str, port: int, folder: Path) -> None:
        self._name_server = name_server
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
        from skyroute.console.config import ConsoleConfig  # noqa: PLC0415 - an extra
        from skyroute.console.server import Console  # noqa: PLC0415 - an extra

        address, memory = local_address(self._name_server), self._name_server.config.persistence
        host, port, folder = self._settings
        journals = {address: memory.path} if memory is not None else {}
        return Console(ConsoleConfig(name_servers=address, host=host, port=port, folder=folder, journals=journals))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._console is not None:
            await self._console.stop()


def local_address(name_server: NameServer) -> str:
    """Return the address at which this process reaches its own name server."""
    host, _, port = name_server.address.rpartition(":")
    return f"127.0.0.1:{port}" if host.strip("[]") in _ALL_ADDRESSES else name_server.address


def run_cluster(
    folder: Path,
    port: int,
    ns_port: int,
    bind: str,
    console_port: int | None,
    advertise: str | None,
    options: dict[str, str],
    metrics_port: int | None,
    log_settings: LogSettings,
) -> None:
    """Run a name server, a broker and, with a port for it, a console until a signal."""
    with server_command("up", log_settings):
        print_line(f"Data folder: {folder}")
        given = {"brokerName": "broker-a"} | options | advertise_option_settings(advertise)
        if bind in _ALL_ADDRESSES:
            given.setdefault("brokerIP1", outward_ip())
        given |= {"listenPort": str(port), "bindAddress": bind, "storePathRootDir": str(folder / "store")}
        if metrics_port:
            given["metricsPort"] = str(metrics_port + 1)
        config = BrokerConfig.load(options=given)
        ns_config = NameServerConfig.load(
            options={
                "metricsPort": str(metrics_port or 0),
                "metricsHost": config.metrics_host,
                "listenPort": str(ns_port),
                "bindAddress": bind,
                "kvConfigPath": str(folder / "namesrv" / "kvConfig.json"),
                "configStorePath": str(folder / "namesrv" / "namesrv.properties"),
                # With port 0, a name server records nothing unless memoryPath is set.
                "memoryPath": "" if ns_port else str(folder / "namesrv" / "memory"),
            }
        )
        name_server, broker = NameServer(ns_config), Broker(config)
        servers: list[RunnableServer] = [name_server, _BrokerInProcess(broker, name_server)]
        if console_port is not None:
            host = "0.0.0.0" if bind == "*" else bind
            servers.append(_ConsoleInProcess(name_server, host, console_port, folder / "console"))
        try:
            run("cluster", [ns_config, config], servers, lambda: _print_addresses(name_server, broker))
        except BindError as error:
            print(
                f"skyroute up: {error}\n"
                "Perhaps it already runs; or choose other ports: --ns-port, --port (0: any free port), --metrics-port.",
                file=sys.stderr,
            )
            sys.exit(1)


def _print_addresses(name_server: NameServer, broker: Broker) -> None:
    address = local_address(name_server)
    flag = "" if os.environ.get("NAMESRV_ADDR") == address else f" -n {address}"
    print_line(f"Name server  {address}")
    print_line(f"Broker       {broker.address}  ({broker.config.broker_name})")
    for config in (name_server.config, broker.config):
        if config.metrics_address is not None:
            print_line(f"Metrics      http://{join_address(*config.metrics_address)}/metrics")
    print_line("Ready; ctrl-C stops it. To try it, in another terminal:")
    print_line(f'  skyroute admin sendMessage{flag} -t Hello -p "My first message"')
    print_line(f"  skyroute admin printMsg{flag} -t Hello")
