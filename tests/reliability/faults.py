"""Clusters of real processes with a fault proxy between every pair, and faults of one process."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import resource
import signal
import struct
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.reliability.fault_proxy import FAULTS, NO_FAULT, FaultProxy, fault_proxy
from tests.reliability.outcome import Usage
from tests.reliability.workload import ORDERS, Workload
from tests.simulation.history import Outcome, Send
from tests.support.apache import (
    ApacheBroker,
    NameServerProcess,
    PeerProcess,
    SkyrouteNameServer,
    compile_java,
    fetch_jars,
    java,
)
from tests.support.our_broker import SkyrouteBroker

SENDER: Final = Path(__file__).parent / "SteadySender.java"
INNER: Final = "127.0.0.2"
"""Where a broker listens; clients find it at 127.0.0.1, which is the proxy."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """One name server, one broker, and the proxies between them and their clients."""

    name_server: NameServerProcess
    broker: ApacheBroker
    proxies: dict[str, FaultProxy]

    @property
    def address(self) -> str:
        """Where clients find the name server."""
        return self.proxies["client to name server"].address


@asynccontextmanager
async def cluster(
    folder: Path,
    *,
    name_server: type[NameServerProcess] = SkyrouteNameServer,
    broker: type[ApacheBroker] = SkyrouteBroker,
    store: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> AsyncIterator[Cluster]:
    """Start a cluster. `store` is the folder of the broker's files."""
    async with AsyncExitStack() as stack:
        routes = name_server("nameserver", folder / "nameserver")
        await asyncio.to_thread(routes.start)
        stack.callback(routes.kill)
        proxies = {
            "client to name server": await stack.enter_async_context(fault_proxy(routes.address)),
            "broker to name server": await stack.enter_async_context(fault_proxy(routes.address)),
        }
        config = {"flushDiskType": "SYNC_FLUSH", "bindAddress": INNER, **(settings or {})}
        if store is not None:
            config |= {"storePathRootDir": str(store), "storePathCommitLog": str(store / "commitlog")}
        messages = broker("broker-a", folder / "broker", [proxies["broker to name server"].address], config=config)
        proxies["client to broker"] = await stack.enter_async_context(
            fault_proxy(f"{INNER}:{messages.port}", messages.port)
        )
        await asyncio.to_thread(messages.start)
        stack.callback(messages.kill)
        yield Cluster(routes, messages, proxies)


async def break_every_link(proxies: dict[str, FaultProxy], fault_s: float) -> None:
    """Apply every fault to every link, one at a time."""
    for proxy in proxies.values():
        for name in (*FAULTS, "reset"):
            if name == "reset":
                proxy.reset()
            else:
                proxy.fault = FAULTS[name]
            await asyncio.sleep(fault_s)
            proxy.fault = NO_FAULT
            await asyncio.sleep(fault_s / 2)


# -------------------------------------------------------------------------------------------------------- Java's client


class SteadySender(PeerProcess):
    """A Java producer that sends at a rate for a time, and prints at its end which sends were acknowledged."""

    ready_mark = "started"

    def __init__(self, home: Path, name_servers: str, rate_per_s: float, seconds: float) -> None:
        super().__init__("SteadySender", home)
        self._arguments = (name_servers, ORDERS, str(rate_per_s), str(seconds))

    def command(self) -> list[str]:
        classes = compile_java([SENDER], fetch_jars(), self.home / "classes")
        return java(fetch_jars(), self.home, "SteadySender", *self._arguments, classes=classes)

    @property
    def told(self) -> dict[str, list[str]]:
        """Return the bodies of acknowledged and of failed sends, and the texts of errors."""
        line = next(line for line in self.output().splitlines() if line.startswith('{"acknowledged"'))
        found: dict[str, list[str]] = json.loads(line)
        return found

    def add_to(self, workload: Workload) -> None:
        """Add what Java knows of its sends to a history."""
        told = self.told
        for bodies, outcome in ((told["acknowledged"], Outcome.ACKNOWLEDGED), (told["failed"], Outcome.UNKNOWN)):
            for body in bodies:
                workload.history.sends[body] = Send(body, ORDERS, 0.0, outcome)


# ------------------------------------------------------------------------------------------------- faults of a process


@contextmanager
def suspended(pid: int) -> Iterator[None]:
    """Stop a process with SIGSTOP for the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def without_descriptors(pid: int) -> Iterator[None]:
    """Leave a process no free file descriptor for the block."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (Usage.of(pid).files, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mount a tmpfs of this size.

    Raises:
        PermissionError: This user may not mount.
    """
    folder.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PermissionError(f"tmpfs cannot be mounted at {folder}: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class SteppedClock:
    """The wall clock of our processes that start with its environment: the machine's, and a step."""

    _SITE: Final = """
import mmap, os, struct, time
with open(os.environ["SKYROUTE_TEST_CLOCK"], "rb") as file:
    _step = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
_time = time.time
time.time = lambda: _time() + struct.unpack("<d", _step[:])[0]
time.time_ns = lambda: int(time.time() * 1e9)
"""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "sitecustomize.py").write_text(self._SITE)
        path = folder / "step"
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._step = mmap.mmap(file.fileno(), 8)
        paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment = {"PYTHONPATH": os.pathsep.join(paths), "SKYROUTE_TEST_CLOCK": str(path)}

    def step(self, seconds: float) -> None:
        """Set the step from the machine's clock."""
        self._step[:] = struct.pack("<d", seconds)
