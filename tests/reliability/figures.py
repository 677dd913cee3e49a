"""The figures of `docs/reliability.md`, each a function that returns outcomes: `python -m tests.reliability`."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import struct
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from tests.reliability.faults import SteadySender
from tests.reliability.outcome import Outcome, Usage, mean, percentile_ms
from tests.reliability.workload import Workload
from tests.simulation.scenario import Plan, run
from tests.support.apache import SkyrouteNameServer
from tests.support.connections import AsyncConnection, connection_to
from tests.support.our_broker import SkyrouteBroker
from tests.support.raw import DataVersion, Registration, Request, Topic, encode, split_address
from tests.support.waiting import eventually

CLUSTERS: Final = 106
ROUTE: Final = 105
MAX_OFFSET: Final = 30


@asynccontextmanager
async def our_cluster(folder: Path, **settings: str) -> AsyncIterator[tuple[SkyrouteNameServer, SkyrouteBroker]]:
    """Start our name server and broker as processes."""
    name_server = SkyrouteNameServer("nameserver", folder / "nameserver")
    with name_server:
        broker = SkyrouteBroker("broker-a", folder / "broker", [name_server.address], config=settings)
        await asyncio.to_thread(broker.start)
        try:
            yield name_server, broker
        finally:
            broker.kill()


# ----------------------------------------------------------------------------------------------------------- kill -9


async def kills(folder: Path, seconds: float) -> list[Outcome]:
    """Kill a SYNC_FLUSH broker every 5 s under load; then the same with a lost page cache, simulated."""
    count = 0
    async with our_cluster(folder, flushDiskType="SYNC_FLUSH") as (name_server, broker):
        workload = Workload(name_server.address, rate_per_s=200)
        await workload.create_topics()
        async with workload.running():
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                await asyncio.sleep(5.0)
                broker.kill()
                count += 1
                await asyncio.to_thread(broker.start)
    found = workload.violations()
    outcomes = [
        Outcome("kill -9 of the broker", count, unit="times"),
        Outcome("messages acknowledged", workload.acknowledged),
        Outcome("sends with an error, which may be stored", len(workload.failed)),
        *_judged("", found),
    ]
    plan = Plan(
        load_s=max(60.0, seconds),
        gap_s=0.5,
        faults=("lose_power",),
        fault_gap_s=5.0,
        sync_flush=True,
        handler_failures=0.0,
    )
    for seed in range(1, 4):
        report = await asyncio.to_thread(run, seed, plan)
        outcomes.append(Outcome(f"page cache lost, seed {seed}: messages acknowledged", report.acknowledged))
        outcomes.append(
            Outcome(f"page cache lost, seed {seed}: violations", sum(map(len, report.violations.values())), at_most=0)
        )
    return outcomes


def _judged(prefix: str, found: dict[str, list[str]]) -> Iterator[Outcome]:
    for name in ("no acknowledged message lost", "ordered consumption ordered"):
        yield Outcome(f"{prefix}violations of {name!r}", len(found.get(name, ())), at_most=0)
    others = [text for texts in found.values() for text in texts]
    yield Outcome(f"{prefix}violations of any invariant", len(others), at_most=0)
    for text in others[:5]:
        yield Outcome(f"{prefix}violation", text)


# ----------------------------------------------------------------------------------------------- name server restarts


async def restarts(folder: Path, seconds: float) -> list[Outcome]:
    """Restart the only name server again and again under 1,000 sends a second of Java's client and ours."""
    async with our_cluster(folder) as (name_server, _):
        workload = Workload(name_server.address, rate_per_s=500)
        await workload.create_topics()
        sender = SteadySender(folder / "java", name_server.address, 500, seconds)
        count = 0
        with sender:
            began = time.monotonic()
            async with workload.running():
                while time.monotonic() - began < seconds:
                    await asyncio.sleep(5.0)
                    if count % 2:
                        name_server.kill()
                        await asyncio.to_thread(name_server.start)
                    else:
                        await asyncio.to_thread(name_server.restart)
                    count += 1
                sends, took_s = len(workload.history.sends), time.monotonic() - began
                await asyncio.to_thread(sender.wait, timeout_s=120.0)
                sender.add_to(workload)
    told = sender.told
    java_sends = len(told["acknowledged"]) + len(told["failed"])
    return [
        Outcome("restarts of the name server, every second one a kill -9", count),
        Outcome("our client: sends per second", sends / took_s, at_least=475),
        Outcome("our client: failed sends", len(workload.failed), at_most=0),
        *(Outcome("our client: error", text) for text in workload.failed[:3]),
        Outcome("Java: sends per second", java_sends / seconds, at_least=475),
        Outcome("Java: failed sends", len(told["failed"]), at_most=0),
        *(Outcome("Java: error", text) for text in told["errors"][:3]),
        *_judged("", workload.violations()),
    ]


# --------------------------------------------------------------------------------------------------- many connections


class _Asker(asyncio.Protocol):
    """A connection that sends prepared requests, and measures the responses."""

    def __init__(self, times_s: list[float]) -> None:
        self.transport: asyncio.Transport | None = None
        self.is_lost = False
        self.asked_at: deque[float] = deque()
        """When each request without a response was sent."""
        self._times_s = times_s
        self._bytes = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def ask(self, frame: bytes) -> None:
        assert self.transport is not None
        self.asked_at.append(time.perf_counter())
        self.transport.write(frame)

    def data_received(self, data: bytes) -> None:
        self._bytes += data
        while len(self._bytes) >= 4 and len(self._bytes) >= (end := 4 + struct.unpack_from(">I", self._bytes)[0]):
            self._times_s.append(time.perf_counter() - self.asked_at.popleft())
            self._bytes = self._bytes[end:]

    def connection_lost(self, _: Exception | None) -> None:
        self.is_lost = True


async def connections(folder: Path, seconds: float, *, count: int = 10_000, rate_per_s: int = 2_000) -> list[Outcome]:
    """Open many connections to the name server and send route requests over them in turn."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    name_server = SkyrouteNameServer("nameserver", folder / "nameserver")
    with name_server:
        async with connection_to(name_server.address) as broker:
            await broker.call(_registration(1, topics=100).request)
            return await _ask_all(name_server, broker, seconds, count, rate_per_s)


async def _ask_all(
    name_server: SkyrouteNameServer, broker: AsyncConnection, seconds: float, count: int, rate_per_s: int
) -> list[Outcome]:
    loop, times_s, askers = asyncio.get_running_loop(), list[float](), list[_Asker]()
    host, port = split_address(name_server.address)
    for number in range(count):
        _, asker = await loop.create_connection(lambda: _Asker(times_s), host, port)
        askers.append(asker)
        if number % 100 == 0:
            await asyncio.sleep(0)
    frames = [encode(Request(ROUTE, {"topic": f"Topic-1-{number}"}), 1) for number in range(100)]
    began, sent, rss_mb, minute = time.monotonic(), 0, list[tuple[float, float]](), 0.0
    renewed = began
    while (now := time.monotonic()) - began < seconds:
        while sent < (now - began) * rate_per_s:
            asker = askers[sent % count]
            asker.ask(frames[sent % len(frames)])
            sent += 1
        if now - minute > 1.0:
            minute = now
            rss_mb.append((now - began, Usage.of(name_server.pid).rss_mb))
            if now > renewed + 30.0:
                renewed = now
                await broker.call(_registration(1, topics=100).request)  # the lease
        await asyncio.sleep(0.002)
    await asyncio.sleep(2.0)
    phase_s = min(60.0, seconds / 5)
    second = mean([each for at, each in rss_mb if phase_s <= at < 2 * phase_s])
    last = mean([each for at, each in rss_mb if at >= seconds - phase_s])
    lost = sum(asker.is_lost for asker in askers)
    for asker in askers:
        assert asker.transport is not None
        asker.transport.abort()
    return [
        Outcome("connections", count),
        Outcome("requests", sent),
        Outcome("requests per second", sent / seconds, at_least=rate_per_s * 0.99),
        Outcome("lost connections", lost, at_most=0),
        Outcome("requests without a response", sent - len(times_s), at_most=0),
        Outcome(f"memory in the second {phase_s:.0f} s", second, unit="MB"),
        Outcome(f"memory in the last {phase_s:.0f} s, relative to that", last / second, at_most=1.05),
        Outcome("p50", percentile_ms(times_s, 50), unit="ms"),
        Outcome("p99", percentile_ms(times_s, 99), at_most=50, unit="ms"),
    ]


# ------------------------------------------------------------------------------------------------------- registrations


def _registration(number: int, *, topics: int, version: int = 1) -> Registration:
    return Registration(
        "DefaultCluster",
        f"broker-{number}",
        f"10.1.{number // 250}.{number % 250 + 1}:10911",
        [Topic(f"Topic-{number}-{each}") for each in range(topics)],
        data_version=DataVersion(version),
    )


async def registrations(folder: Path, _: float, *, count: int = 300, heartbeat_s: float = 30.0) -> list[Outcome]:
    """Register 300 brokers in one second, cut all connections, and let each register again at its next heartbeat."""
    name_server = SkyrouteNameServer("nameserver", folder / "nameserver")
    with name_server:
        must, may = set[str](), set[str]()
        wrong: list[str] = []
        samples = 0
        over = asyncio.Event()

        async def sample() -> None:
            nonlocal samples
            async with connection_to(name_server.address) as line:
                while not over.is_set():
                    before = set(must)
                    listed = set(json.loads(_quoted((await line.call(CLUSTERS)).text))["brokerAddrTable"])
                    samples += 1
                    missing, stale = (before & must) - listed, listed - may
                    if missing or stale:
                        wrong.append(f"missing {sorted(missing)[:3]} stale {sorted(stale)[:3]}")
                    await asyncio.sleep(0.01)

        async def register(number: int, spread_s: float, stack: AsyncExitStack) -> AsyncConnection:
            await asyncio.sleep(random.Random(number).random() * spread_s)
            line = await stack.enter_async_context(connection_to(name_server.address))
            name = f"broker-{number}"
            may.add(name)
            answer = await line.call(_registration(number, topics=50).request)
            assert answer.code == 0, answer
            must.add(name)
            return line

        sampling = asyncio.create_task(sample())
        took_s, back_s, gone_s = 0.0, 0.0, 0.0
        for is_again in (False, True):
            async with AsyncExitStack() as stack:
                began = time.monotonic()

                spread_s = heartbeat_s if is_again else 0.9
                lines = await asyncio.gather(*(register(number, spread_s, stack) for number in range(count)))
                took_s, back_s = (took_s, time.monotonic() - began) if is_again else (time.monotonic() - began, 0.0)
                await asyncio.sleep(0.5)
                must.clear()
                cut = time.monotonic()
                for line in lines:
                    line.abort()
                await eventually(lambda: _is_empty(name_server.address), "all are removed")
                gone_s = time.monotonic() - cut
                may.clear()
                await asyncio.sleep(0.2)
        over.set()
        await sampling
    return [
        Outcome("brokers", count),
        Outcome("all registered after", took_s, at_most=1.5, unit="s"),
        Outcome("all removed after the cut", gone_s, at_most=1.0, unit="s"),
        Outcome("all back after", back_s, at_most=heartbeat_s + 1, unit="s"),
        Outcome("samples of the routes", samples),
        Outcome("wrong samples", len(wrong), at_most=0),
        *(Outcome("wrong", text) for text in wrong[:3]),
    ]


def _quoted(text: str) -> str:
    """Quote the numbers that fastjson writes as keys."""
    out, at = [], 0
    for at, char in enumerate(text):
        if char.isdigit() and text[at - 1] in "{," and text[at + 1 : at + 2] == ":":
            out.append(f'"{char}"')
        else:
            out.append(char)
    return "".join(out)


async def _is_empty(address: str) -> bool:
    async with connection_to(address) as line:
        return not (json.loads(_quoted((await line.call(CLUSTERS)).text))["brokerAddrTable"])
