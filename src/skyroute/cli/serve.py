"""The life of a process around the servers it runs."""

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol

from skyroute.cli.logs import LogSettings, start_logging
from skyroute.errors import SkyrouteError
from skyroute.files.errors import FileWriteError
from skyroute.files.replace import ensure_replaceable
from skyroute.remoting.loops import loop_factory
from skyroute.settings.config import SERVER_MAX_CONNECTIONS, ServerConfig
from skyroute.settings.open_files import open_files_max, open_files_shared

log = logging.getLogger(__name__)

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

COLLECTED_AFTER: Final = 10_000
"""How many objects there are to be more before Python looks for cycles; messages under way alone are some thousands."""


class RunnableServer(Protocol):
    """What can be started and stopped in a running loop."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@contextmanager
def process(command: str, log_settings: LogSettings) -> Iterator[None]:
    """Log as it is wanted, and end with one clear line and exit code 1 if something cannot be done."""
    try:
        start_logging(log_settings)
        yield
    except SkyrouteError as error:
        print(f"skyroute {command}: {error}", file=sys.stderr)
        sys.exit(1)


def run(
    what: str, configs: Sequence[ServerConfig], services: Sequence[RunnableServer], on_ready: Callable[[], None]
) -> None:
    """Start services one after the other, call `on_ready`, and stop them, the last one first, when a signal asks to."""
    for config in configs:
        try:
            ensure_replaceable(config.settings_path)
        except FileWriteError as error:
            # A settings file that is mounted read-only is common; only updates from afar need to write it.
            log.warning("settings cannot be updated while running cause=%s", error)
    _fit_open_files(configs)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(what, services, on_ready))


async def _serve(what: str, services: Sequence[RunnableServer], on_ready: Callable[[], None]) -> None:
    stop_asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def ask_to_stop(number: signal.Signals) -> None:
        log.info("%s stopping signal=%s", what, number.name)
        stop_asked.set()
        for each in _STOP_SIGNALS:
            # Whoever asks a second time does not want to wait for what is still under way.
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)

    loop.set_exception_handler(_complain_now_and_then())
    for each in _STOP_SIGNALS:
        loop.add_signal_handler(each, ask_to_stop, each)
    started: list[RunnableServer] = []
    try:
        for service in services:
            await service.start()
            started.append(service)
        # What start-up made lives as long as the process: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(COLLECTED_AFTER)
        on_ready()
        await stop_asked.wait()
    finally:
        for service in reversed(started):
            await service.stop()
    log.info("%s stopped", what)


def _complain_now_and_then() -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Let the loop report its own trouble once a second: out of open files, it does so for every one it misses."""
    silent_until = 0.0

    def complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal silent_until
        error, message = context.get("exception"), str(context.get("message"))
        if isinstance(error, ValueError) and "_start_serving" in message:
            return  # asyncio, once out of files, listens again a second later, also where we have stopped meanwhile
        if loop.time() < silent_until:
            return
        silent_until = loop.time() + 1.0
        if isinstance(error, OSError):
            log.error("%s reason=%s", message, error)
        else:
            log.error("%s", message, exc_info=error)

    return complain


def _fit_open_files(configs: Sequence[ServerConfig]) -> None:
    """Take as many open files as we may, and no more connections than that leaves room for."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # the usual soft limit of 1024 is far below what a server holds
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    room = max(1, (open_files_shared() - sum(config.files_held for config in configs)) // max(1, len(configs)))
    for config in configs:
        if config.server_max_connections > room:
            level = logging.DEBUG if config.server_max_connections == SERVER_MAX_CONNECTIONS else logging.WARNING
            log.log(
                level, "serverMaxConnections lowered to=%d reason=the limit of open files is %d", room, open_files_max()
            )
            config.server_max_connections = room


def tell(line: str) -> None:
    """Write a line to whoever started us."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        # Whoever started us closed the other end, which is no reason not to serve, nor to fail at the last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
