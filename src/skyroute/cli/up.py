"""`skyroute up`: a whole cluster in one process, to try things and to develop with."""

import asyncio
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from skyroute.broker.advertised import outward_ip
from skyroute.broker.broker import Broker
from skyroute.broker.config import BrokerConfig
from skyroute.cli.broker import advertise_option_settings
from skyroute.cli.console import missing_extra
from skyroute.cli.flags import CONTEXT, metrics_option, settings_option
from skyroute.cli.help import examples
from skyroute.cli.logs import LogSettings, log_options
from skyroute.cli.serve import Service, process, run, tell
from skyroute.errors import SkyrouteError
from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.server import NameServer
from skyroute.remoting.connection import join_address
from skyroute.remoting.errors import BindError

if TYPE_CHECKING:
    from skyroute.console.server import Console

log = logging.getLogger(__name__)

DATA: Final = "skyroute-data"
_EVERYWHERE: Final = ("0.0.0.0", "::", "*")


class _BrokerBeside:
    """The broker of a name server in the same process, whose port may not be known before that one listens."""

    def __init__(self, broker: Broker, name_server: NameServer) -> None:
        self._broker = broker
        self._name_server = name_server

    async def start(self) -> None:
        self._broker.config.namesrv_addr = local_address(self._name_server)
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


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "skyroute up",
        "skyroute up --data /tmp/try --port 0 --ns-port 0",
        "skyroute up --bind 0.0.0.0 --metrics-port 9901 -D flushDiskType=SYNC_FLUSH",
    ),
)
@click.option(
    "--data",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    default=DATA,
    show_default=True,
    help="Where messages, topics and offsets are kept. They are there again the next time.",
)
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=10911,
    show_default=True,
    help="The broker's port; 0 for any that is free.",
)
@click.option(
    "--ns-port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=9876,
    show_default=True,
    help="The name server's port; 0 for any that is free.",
)
@click.option(
    "--bind",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Where to listen: 0.0.0.0 lets other machines in.",
)
@click.option(
    "--console-port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=8088,
    show_default=True,
    help="The web console's port; 0 for any that is free.",
)
@click.option("--no-console", is_flag=True, help="Do without the web console.")
@click.option("--advertise", metavar="HOST[:PORT]", help="The address of the broker that clients are told.")
@settings_option
@metrics_option
@log_options("warning")
def up(
    data: Path,
    port: int,
    ns_port: int,
    bind: str,
    console_port: int,
    advertise: str | None,
    options: dict[str, str],
    metrics_port: int | None,
    log_settings: LogSettings,
    *,
    no_console: bool,
) -> None:
    """Run a name server, a broker and a web console in one process.

    Settings given with -D are the broker's. It stops on ctrl-C. With --metrics-port PORT the name server's metrics are
    there, and the broker's at the next port.
    """
    with process("up", log_settings):
        folder = data.absolute()
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
        services: list[Service] = [name_server, _BrokerBeside(broker, name_server)]
        if not no_console:
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
