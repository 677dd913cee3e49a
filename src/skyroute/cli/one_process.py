"""A whole cluster in one process: what `skyroute up` runs."""

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
from skyroute.cli.serve import RunnableServer, process, run, tell
from skyroute.errors import SkyrouteError
from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.server import NameServer
from skyroute.remoting.address import join_address
from skyroute.remoting.errors import BindError

if TYPE_CHECKING:
    from skyroute.console.server import Console

log = logging.getLogger(__name__)

_EVERYWHERE: Final = ("0.0.0.0", "::", "*")


class _BrokerBeside:
    """The broker of a name server in the same process, whose port may not be known before that one listens."""

    def __init__(self, broker: Broker, name_server: NameServer) -> None:
        self._broker = broker
        self._name_server = name_server

    async def start(self) -> None:
        self._broker.config.name_server_list = local_address(self._name_server)
        await self._broker.start()

    async def stop(self) -> None:
        await self._broker.stop()


class _ConsoleBeside:
    """The console of a cluster in the same process. It comes when the cluster is ready, or says why it does not."""

    def __init__(self, name_server: NameServer, host: str, port: int, folder: Path) -> None:
        self._name_server = name_server
        self._place = host, port, folder
        self._console: Console | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._begin())

    async def _begin(self) -> None:
        missing = missing_extra()
        if missing is not None:
            tell(f"No console   {missing}")
            return
        try:
            # Its packages take longer to import than the cluster takes to start.
            console = await asyncio.to_thread(self._make)
            await console.start()
        except BindError:
            address = join_address(*self._place[:2])
            tell(f"No console   {address} is not to be had: choose another port with --console-port, where 0 takes any")
        except SkyrouteError as error:
            tell(f"No console   {error}")
        except Exception:  # whatever it is, the cluster is there
            log.exception("no console")
        else:
            self._console = console
            tell(f"Console      {console.url}")

    def _make(self) -> "Console":
        from skyroute.console.config import ConsoleConfig  # noqa: PLC0415 - an extra
        from skyroute.console.server import Console  # noqa: PLC0415 - an extra

        address, memory = local_address(self._name_server), self._name_server.config.memory
        host, port, folder = self._place
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
    """Where this process reaches a name server of its own."""
    host, _, port = name_server.address.rpartition(":")
    return f"127.0.0.1:{port}" if host.strip("[]") in _EVERYWHERE else name_server.address


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
    """Run a name server, a broker and a console until a signal comes; without a port, no console."""
    with process("up", log_settings):
        tell(f"Keeping everything in {folder}")
        given = {"brokerName": "broker-a"} | options | advertise_option_settings(advertise)
        if bind in _EVERYWHERE:
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
                # A server that takes any port keeps nothing, unless it is told where.
                "memoryPath": "" if ns_port else str(folder / "namesrv" / "memory"),
            }
        )
        name_server, broker = NameServer(ns_config), Broker(config)
        services: list[RunnableServer] = [name_server, _BrokerBeside(broker, name_server)]
        if console_port is not None:
            host = "0.0.0.0" if bind == "*" else bind
            services.append(_ConsoleBeside(name_server, host, console_port, folder / "console"))
        try:
            run(
                "cluster",
                [ns_config, config],
                services,
                lambda: _greet(name_server, broker),
            )
        except BindError as error:
            print(
                f"skyroute up: {error}\n"
                "Perhaps it is up already. Or choose other ports with --ns-port and --port, where 0 takes any that is "
                "free, and --metrics-port.",
                file=sys.stderr,
            )
            sys.exit(1)


def _greet(name_server: NameServer, broker: Broker) -> None:
    address = local_address(name_server)
    flag = "" if os.environ.get("NAMESRV_ADDR") == address else f" -n {address}"
    tell(f"Name server  {address}")
    tell(f"Broker       {broker.address}  ({broker.config.broker_name})")
    for config in (name_server.config, broker.config):
        if config.metrics_address is not None:
            tell(f"Metrics      http://{join_address(*config.metrics_address)}/metrics")
    tell("Ready; ctrl-C stops it. To try it, in another terminal:")
    tell(f'  skyroute admin sendMessage{flag} -t Hello -p "My first message"')
    tell(f"  skyroute admin printMsg{flag} -t Hello")
