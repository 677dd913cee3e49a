"""A name server in the test's process, on a free port of loopback, with a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.server import NameServer
from skyroute.remoting.server import Server
from tests.support.clock import ManualClock

LOOPS: Final[Mapping[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
"""What a `pytest_asyncio_loop_factories` hook returns, so that every test runs on both loops."""

SWEEP_S: Final = 1.0


@dataclass(slots=True)
class Running:
    """A started name server and its clock."""

    server: NameServer
    clock: ManualClock
    scanned_at: float

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def remoting(self) -> Server:
        """The server of the remoting layer."""
        assert self.server._server is not None
        return self.server._server

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self.remoting._connections)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of unfinished frames."""
        return self.remoting._context.buffered.total

    @property
    def unsent_bytes(self) -> int:
        """Bytes of responses that slow clients have not read, as last counted."""
        return self.remoting._context.unsent.total

    def scan(self) -> None:
        """Run the lease scan now."""
        self.scanned_at = self.clock.monotonic()
        assert self.server._lease_scan is not None
        self.server._lease_scan.scan(self.scanned_at)

    def sweep(self) -> None:
        """Run the scan for idle connections now."""
        self.remoting.sweep(self.clock.monotonic())

    def pass_time(self, seconds: float, *, scans: bool = True, sweeps: bool = True) -> None:
        """Advance the clock with an idle scan every second and a lease scan every interval, as a server does."""
        until = self.clock.monotonic() + seconds
        while (left := until - self.clock.monotonic()) > 0:
            now = self.clock.advance(min(SWEEP_S, left))
            if sweeps:
                self.sweep()
            if scans and now - self.scanned_at >= self.server.config.scan_interval_s:
                self.scan()


def own_files(folder: Path) -> dict[str, Any]:
    """Settings of a server that keeps its files in `folder`."""
    return {
        "kv_config_path": str(folder / "kvConfig.json"),
        "settings_file": str(folder / "namesrv.properties"),
    }


@asynccontextmanager
async def running(
    folder: Path, *, clock: ManualClock | None = None, upstream: Sequence[str] = (), **settings: Any
) -> AsyncIterator[Running]:
    """Start a name server that keeps its files in `folder`; `settings` are fields of `NameServerConfig`.

    It stops at the end, if the test has not stopped it already.
    """
    clock = clock or ManualClock()
    values: dict[str, Any] = {"listen_port": 0, "bind_address": "127.0.0.1", **own_files(folder)}
    server = NameServer(NameServerConfig(**(values | settings)), upstream=upstream, clock=clock)
    await server.start()
    try:
        yield Running(server, clock, scanned_at=clock.monotonic())
    finally:
        await server.stop()
