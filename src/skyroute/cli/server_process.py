"""Runs servers in this process until a signal, and reports errors in one line."""

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
from skyroute.remoting.free_memory import keep_freed_memory
from skyroute.remoting.loops import loop_factory
from skyroute.settings.config import SERVER_MAX_CONNECTIONS, ServerConfig
from skyroute.settings.open_files import open_files_max, open_files_shared

log = logging.getLogger(__name__)

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

GC_THRESHOLD: Final = 10_000
"""New objects before the garbage collector runs; messages in flight alone are some thousands."""

HEAP_KEPT_BYTES: Final = 8 << 20
"""Freed memory that a server keeps, for the next requests. Batches take some times 256 KiB."""
HEAP_BLOCK_BYTES: Final = 4 << 20
"""Size from which on a block is returned to the system when it is freed."""

SWITCH_S: Final = 0.0005
"""How long a thread that computes may keep the event loop from going on after each system call; 5 ms by default."""


class RunnableServer(Protocol):
    """A server that can be started and stopped in a running event loop."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@contextmanager
def server_command(command: str, log_settings: LogSettings) -> Iterator[None]:
    """Start logging; print an error of the block in one line and exit with code 1."""
    try:
        start_logging(log_settings)
        yield
    except SkyrouteError as error:
        print(f"skyroute {command}: {error}", file=sys.stderr)
        sys.exit(1)


def run(
    what: str, configs: Sequence[ServerConfig], servers: Sequence[RunnableServer], on_ready: Callable[[], None]
) -> None:
    """Start servers in order, call `on_ready`, and stop them in reverse order on SIGTERM or SIGINT."""
    for config in configs:
        try:
            ensure_replaceable(config.settings_path)
        except FileWriteError as error:
            # A settings file is often mounted read-only. Only updates by an admin tool write it.
            log.warning("settings cannot be updated while running reason=%s", error)
    keep_freed_memory(HEAP_KEPT_BYTES, HEAP_BLOCK_BYTES)
    sys.setswitchinterval(SWITCH_S)
    _raise_open_files_limit(configs)
    for config in configs:
        config.log_settings()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(what, servers, on_ready))


async def _serve(what: str, servers: Sequence[RunnableServer], on_ready: Callable[[], None]) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop_once(number: signal.Signals) -> None:
        log.info("%s stopping signal=%s", what, number.name)
        stopping.set()
        for each in _STOP_SIGNALS:
            # A second signal ends the process at once.
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)

    loop.set_exception_handler(_log_loop_errors())
    for each in _STOP_SIGNALS:
        loop.add_signal_handler(each, stop_once, each)
    started: list[RunnableServer] = []
    try:
        for server in servers:
            await server.start()
            started.append(server)
        # Objects made during start-up live as long as the process: exclude them from garbage collection.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        on_ready()
        await stopping.wait()
    finally:
        for server in reversed(started):
            await server.stop()
    log.info("%s stopped", what)


def _log_loop_errors() -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Return an exception handler that logs once a second: without free file descriptors, asyncio calls it often."""
    quiet_until = 0.0

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal quiet_until
        error, message = context.get("exception"), str(context.get("message"))
        if isinstance(error, ValueError) and "_start_serving" in message:
            return  # without free file descriptors, asyncio listens again a second later, even on a closed server
        if loop.time() < quiet_until:
            return
        quiet_until = loop.time() + 1.0
        if isinstance(error, OSError):
            log.error("%s reason=%s", message, error)
        else:
            log.error("%s", message, exc_info=error)

    return handle


def _raise_open_files_limit(configs: Sequence[ServerConfig]) -> None:
    """Raise the limit of open files to the maximum, and lower `serverMaxConnections` to what it allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # the usual soft limit of 1024 is too low for a server
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    room = max(1, (open_files_shared() - sum(config.files_held for config in configs)) // max(1, len(configs)))
    for config in configs:
        if config.connections_max > room:
            level = logging.DEBUG if config.connections_max == SERVER_MAX_CONNECTIONS else logging.WARNING
            log.log(level, "serverMaxConnections lowered to=%d open_files_limit=%d", room, open_files_max())
            config.connections_max = room


def print_line(line: str) -> None:
    """Print a line to standard output; a closed pipe does not end the server."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        # The reader closed the pipe. Redirect, so that the flush at exit does not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
