"""`skyroute nameserver`: the flags of Java's mqnamesrv, and the life of the process around the server."""

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from skyroute.errors import SkyrouteError
from skyroute.nameserver.config import SERVER_MAX_CONNECTIONS, NameServerConfig
from skyroute.nameserver.server import NameServer
from skyroute.settings.errors import FileWriteError
from skyroute.settings.files import ensure_replaceable

log = logging.getLogger(__name__)

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_OTHER_FILES = 64
"""Open files that are no connections of peers: log, sockets we open ourselves, files being replaced."""


def _as_pairs(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key.strip() or not equals:
            raise click.BadParameter(f"{value!r} is not of the form KEY=VALUE")
        pairs[key.strip()] = text
    return pairs


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option(
    "-n",
    "--namesrvAddr",
    "upstream",
    metavar="HOST:PORT;...",
    envvar="NAMESRV_ADDR",
    default="",
    help="Name servers to ask for routes that are not known here, where clusterTest is set. "
    "Defaults to the variable NAMESRV_ADDR.",
)
@click.option("-c", "--configFile", "config_file", metavar="FILE", help="Properties file with settings.")
@click.option("-p", "--printConfigItem", "print_config", is_flag=True, help="Print all effective settings and exit.")
@click.option(
    "-D",
    "options",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_as_pairs,
    help="One setting; it wins over the file. May be given many times.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="info",
    show_default=True,
    help="The least serious log lines to write to stderr.",
)
def nameserver(
    upstream: str, config_file: str | None, options: dict[str, str], log_level: str, *, print_config: bool
) -> None:
    """Run a name server for brokers and clients of RocketMQ.

    It takes the flags and the properties file of mqnamesrv, and stops on SIGTERM and SIGINT.
    """
    logging.basicConfig(
        stream=sys.stderr, level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s - %(message)s"
    )
    try:
        config = NameServerConfig.load(config_file, options=options, environment=os.environ)
        if config_file is not None:
            _tell(f"load config properties file OK, {config_file}")
        if print_config:
            _tell(config.render_all().rstrip("\n"))
            return
        _run(config, tuple(address.strip() for address in upstream.split(";") if address.strip()))
    except SkyrouteError as error:
        print(f"skyroute nameserver: {error}", file=sys.stderr)
        sys.exit(1)


def _run(config: NameServerConfig, upstream: tuple[str, ...]) -> None:
    try:
        ensure_replaceable(Path(config.config_store_path))
    except FileWriteError as error:
        # A settings file that is mounted read-only is common; only updates from afar need to write it.
        log.warning("settings cannot be updated while running cause=%s", error)
    _fit_open_files(config)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(NameServer(config, upstream=upstream), config.serialize_type))


async def _serve(server: NameServer, serialize_type: str) -> None:
    stop_asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask_to_stop(number: signal.Signals) -> None:
        log.info("name server stopping signal=%s", number.name)
        stop_asked.set()
        for each in _STOP_SIGNALS:
            # Whoever asks a second time does not want to wait for what is still under way.
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)

    loop.set_exception_handler(_complain_now_and_then())
    for each in _STOP_SIGNALS:
        loop.add_signal_handler(each, ask_to_stop, each)
    await server.start()
    try:
        # What start-up made lives as long as the process: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        _tell(f"The Name Server boot success. serializeType={serialize_type}, address {server.address}")
        await stop_asked.wait()
    finally:
        await server.stop()
    log.info("name server stopped")


def _complain_now_and_then() -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Let the loop report its own trouble once a second: out of open files, it does so for every one it misses."""
    silent_until = 0.0

    def complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal silent_until
        if loop.time() < silent_until:
            return
        silent_until = loop.time() + 1.0
        error = context.get("exception")
        if isinstance(error, OSError):
            log.error("%s reason=%s", context.get("message"), error)
        else:
            log.error("%s", context.get("message"), exc_info=error)

    return complain


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if os.environ.get("SKYROUTE_LOOP") == "asyncio":
        return None
    try:
        import uvloop  # noqa: PLC0415 - an optional part, and not for everybody who prints help
    except ImportError:
        return None
    return uvloop.new_event_loop


def _fit_open_files(config: NameServerConfig) -> None:
    """Take as many open files as we may, and no more connections than that leaves room for."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # the usual soft limit of 1024 is far below what a name server holds
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = max(1, soft - _OTHER_FILES)
    if soft != resource.RLIM_INFINITY and config.server_max_connections > room:
        level = logging.DEBUG if config.server_max_connections == SERVER_MAX_CONNECTIONS else logging.WARNING
        log.log(level, "serverMaxConnections lowered to=%d reason=the limit of open files is %d", room, soft)
        config.server_max_connections = room


def _tell(line: str) -> None:
    try:
        print(line, flush=True)
    except BrokenPipeError:
        # Whoever started us closed the other end, which is no reason not to serve, nor to fail at the last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
