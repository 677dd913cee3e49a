"""The figures of `docs/reliability.md`, each a function that returns outcomes: `python -m tests.reliability`."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import struct
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from tests.reliability.faults import SteadySender
from tests.reliability.outcome import Outcome, Usage, mean, percentile_ms
from tests.reliability.workload import ORDERS, Workload
from tests.simulation.scenario import Plan, run
from tests.support.apache import PeerProcess, SkyrouteNameServer, free_port
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


class _OurController(PeerProcess):
    """Our controller alone."""

    def command(self) -> list[str]:
        settings = {
            "controllerDLegerGroup": "g",
            "controllerDLegerPeers": f"n0-{self.address}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": str(self.home / "store"),
            "bindAddress": "127.0.0.1",
        }
        options = [word for key, value in settings.items() for word in ("-D", f"{key}={value}")]
        return [sys.executable, "-m", "skyroute", "controller", *options]


class _OurConsole(PeerProcess):
    """Our console."""

    ready_mark = "http://"

    def __init__(self, home: Path, name_servers: str) -> None:
        super().__init__("console", home)
        self._name_servers = name_servers

    def command(self) -> list[str]:
        options = ("-n", self._name_servers, "--port", str(self.port), "--data", str(self.home))
        return [sys.executable, "-m", "skyroute", "console", *options]


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


# ------------------------------------------------------------------------------------------------------------ malformed


VALUES: Final = (
    *(
        "",
        " ",
        "-1",
        "0",
        "2147483648",
        "9" * 30,
        "1e5",
        "NaN",
        "null",
        "true",
        "{}",
        "[]",
        "../../x",
        "%RETRY%",
        "é漢",
    ),
    *("x" * 300, "a\x00b", "\x01\x02\x01", "*", "a;b,c", "127.0.0.1:99999", '"', "\\"),
)
FIELDS: Final = {
    **{"topic": ORDERS, "queueId": "0", "consumerGroup": "g", "group": "g", "clientID": "c", "offset": "1"},
    **{"brokerName": "broker-x", "brokerAddr": "1.1.1.1:1", "clusterName": "c", "brokerId": "0", "queueOffset": "0"},
    **{"maxMsgNums": "1", "sysFlag": "0", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "1"},
    **{"producerGroup": "p", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "bornTimestamp": "1"},
    **{"flag": "0", "properties": "a\x01b\x02", "reconsumeTimes": "0", "namespace": "n", "key": "k", "value": "v"},
}
CODES: Final = (
    *(10, 11, 12, 14, 15, 29, 30, 31, 32, 34, 35, 36, 37, 38, 41, 100, 101, 103, 104, 105, 106, 206, 217),
    *(310, 322, 351, 361, 901, 904, 1003, 1004, 1012, 1013, 3001, 0, -1, 9_999),
)
"""Requests of all servers, without those that delete topics, change settings or wait."""
KEPT: Final = frozenset({"sysFlag", "suspendTimeoutMillis"})
"""Fields that could make a request wait."""
POOL: Final = 4_000
CHUNK: Final = 200
ATTACKERS: Final = 4


def _bad_frame(rng: random.Random) -> bytes:
    """Return a request with wrong values in a header that can be decoded: the server reads what follows it."""
    fields = dict(FIELDS)
    for name in rng.sample(sorted(FIELDS.keys() - KEPT), rng.randrange(1, 5)):
        if rng.random() < 0.4:
            del fields[name]
        else:
            fields[name] = rng.choice(VALUES)
    body = rng.choice((b"", b"{", b"[]", b'{"a":[1,{"b":"c"}]}', rng.randbytes(40), b"\x00" * 64, b"{" * 200))
    request = Request(rng.choice(CODES), fields, body)
    return encode(request, rng.randrange(1 << 31), form=rng.choice(("json", "binary")), flag=rng.choice((0, 0, 0, 2)))


def _fatal_frame(rng: random.Random) -> bytes:
    """Return bytes that end a connection: a damaged header, or a wrong length."""
    frame = bytearray(_bad_frame(rng))
    for _ in range(rng.randrange(1, 30)):
        frame[rng.randrange(4, len(frame))] = rng.randrange(256)
    if rng.random() < 0.3:
        struct.pack_into(">I", frame, 0, rng.randrange(1 << 32))
    return bytes(frame)


def _bad_frames(rng: random.Random, pool: list[bytes]) -> bytes:
    for _ in range(CHUNK // 20):
        pool[rng.randrange(len(pool))] = _bad_frame(rng)
    return b"".join((*rng.choices(pool, k=CHUNK - 1), _fatal_frame(rng)))


def _good_frames() -> list[bytes]:
    codes = (ROUTE, MAX_OFFSET, CLUSTERS)
    return [encode(Request(code, {"topic": ORDERS, "queueId": "0"}), number) for number, code in enumerate(codes)]


async def malformed(folder: Path, seconds: float, *, frames: int = 5_000_000) -> list[Outcome]:
    """Send damaged frames to the ports of name server, broker and controller, and damaged requests to HTTP ports."""
    async with AsyncExitStack() as stack:
        metrics = f"127.0.0.1:{free_port()}"
        name_server, broker = await stack.enter_async_context(
            our_cluster(folder, metricsPort=metrics.rpartition(":")[2])
        )
        controller = stack.enter_context(_OurController("controller", folder / "controller"))
        console = stack.enter_context(_OurConsole(folder / "console", name_server.address))
        workload = Workload(name_server.address)
        await workload.create_topics()
        outcomes: list[Outcome] = []
        shares = {name_server: 0.42, broker: 0.42, controller: 0.16}
        total, rng = 0, random.Random(7)
        for server, share in shares.items():
            ask = _well_behaved(server, name_server, broker)
            calm_s = await _measure(server.address, ask, min(10.0, seconds / 10), rng)
            await _attack(server.address, ask, rng, int(frames * share / 10))  # what tables may hold is filled
            before = Usage.of(server.pid)
            goal, sent, answered, times_s = int(frames * share), 0, 0, list[float]()
            while sent < goal:
                part, got, times = await _attack(server.address, ask, rng, min(goal - sent, 200_000))
                sent += part
                answered += got
                times_s += times
                if not server.is_running:
                    break
            await asyncio.sleep(2.0)
            after = Usage.of(server.pid) if server.is_running else Usage(0, 0, 0)
            total += sent
            name = server.name
            calm_ms, attacked_ms = percentile_ms(calm_s, 99), percentile_ms(times_s, 99)
            outcomes += [
                Outcome(f"{name}: malformed frames", sent),
                Outcome(f"{name}: of these with a response", answered),
                Outcome(f"{name}: crashes and hangs", int(not server.is_running) + _hangs(times_s), at_most=0),
                Outcome(f"{name}: memory after, relative to before", after.rss_mb / before.rss_mb, at_most=1.2),
                Outcome(f"{name}: p99 of a well-behaved client beside valid requests", calm_ms, unit="ms"),
                Outcome(f"{name}: p99 during the attack", attacked_ms, at_most=2 * calm_ms, unit="ms"),
            ]
        for name, address, owner in (("metrics port", metrics, broker), ("console", console.address, console)):
            sent = await _attack_http(address, rng, max(1_000, int(frames * 0.002)))
            total += sent
            outcomes.append(Outcome(f"{name}: malformed requests", sent))
            outcomes.append(Outcome(f"{name}: crashes", int(not owner.is_running), at_most=0))
        outcomes.append(Outcome("malformed frames and requests in all", total, at_least=frames))
    return outcomes


Ask = Callable[[AsyncConnection], Awaitable[None]]


def _well_behaved(server: PeerProcess, name_server: PeerProcess, broker: PeerProcess) -> Ask:
    requests = {
        id(name_server): Request(ROUTE, {"topic": ORDERS}),
        id(broker): Request(MAX_OFFSET, {"topic": ORDERS, "queueId": "0"}),
    }
    request = requests.get(id(server), Request(1005, {}))

    async def ask(line: AsyncConnection) -> None:
        answer = await line.call(request)
        assert answer.code == 0, answer

    return ask


def _hangs(times_s: list[float]) -> int:
    return sum(each > 5.0 for each in times_s)


async def _ask_on(address: str, ask: Ask, times_s: list[float]) -> None:
    async with connection_to(address) as line:
        while True:
            began = time.perf_counter()
            await ask(line)
            times_s.append(time.perf_counter() - began)
            await asyncio.sleep(0.01)


async def _measure(address: str, ask: Ask, seconds: float, rng: random.Random) -> list[float]:
    """Return the times of a well-behaved client while others send valid requests."""
    times_s: list[float] = []
    good = _good_frames()
    asking = asyncio.create_task(_ask_on(address, ask, times_s))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.gather(*(_send_frames(address, b"".join(rng.choices(good, k=CHUNK))) for _ in range(ATTACKERS)))
    await _end(asking)
    return times_s


async def _attack(address: str, ask: Ask, rng: random.Random, count: int) -> tuple[int, int, list[float]]:
    """Send malformed frames; return how many were sent and answered, and the times of a well-behaved client."""
    times_s: list[float] = []
    pool = [_bad_frame(rng) for _ in range(POOL)]
    asking = asyncio.create_task(_ask_on(address, ask, times_s))
    sent = answered = 0
    while sent < count:
        chunks = (_bad_frames(rng, pool) for _ in range(ATTACKERS))
        answered += sum(await asyncio.gather(*(_send_frames(address, chunk) for chunk in chunks)))
        sent += ATTACKERS * CHUNK
    await _end(asking)
    return sent, answered, times_s


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _send_frames(address: str, data: bytes) -> int:
    """Send frames on a new connection, and return how many come back until the server closes it."""
    host, port = split_address(address)
    received = bytearray()
    with suppress(OSError, TimeoutError):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            async with asyncio.timeout(5.0):
                writer.write(data)
                writer.write_eof()
                while piece := await reader.read(1 << 20):
                    received += piece
        finally:
            writer.transport.abort()
    at = count = 0
    while at + 4 <= len(received):
        at += 4 + int.from_bytes(received[at : at + 4], "big")
        count += 1
    return count


async def _attack_http(address: str, rng: random.Random, count: int, *, at_once: int = 50) -> int:
    host, port = split_address(address)
    good = b"GET /metrics?a=b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nCookie: a=b\r\n\r\nabc"

    async def send() -> None:
        data = bytearray(good)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with suppress(OSError, TimeoutError):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                async with asyncio.timeout(0.1):
                    writer.write(bytes(data))
                    await reader.read(65_536)
            finally:
                writer.transport.abort()

    for _ in range(count // at_once):
        await asyncio.gather(*(send() for _ in range(at_once)))
    return count // at_once * at_once
