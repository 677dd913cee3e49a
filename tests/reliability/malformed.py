"""Malformed frames and requests on every port of every server: crashes, hangs, memory, and the waits of other clients.

Attackers are a process of their own: what they compute must not count as a wait of the well-behaved client.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import struct
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from skyroute.cli.server_process import HEAP_KEPT_BYTES
from tests.reliability.figures import CLUSTERS, MAX_OFFSET, ROUTE, our_cluster
from tests.reliability.outcome import Outcome, Usage, percentile_ms
from tests.reliability.workload import ORDERS, Workload
from tests.support.apache import PeerProcess, free_port
from tests.support.connections import connection_to
from tests.support.raw import Form, Request, encode, split_address

CONTROLLER_METADATA: Final = 1005

VALUES: Final = (
    *("", " ", "-1", "0", "2147483648", "9" * 30, "1e5", "NaN", "null", "true", "{}", "[]", "../../x", "%RETRY%"),
    *("é漢", "x" * 300, "a\x00b", "\x01\x02\x01", "*", "a;b,c", "127.0.0.1:99999", '"', "\\"),
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
POOL: Final = 10_000
CHUNK: Final = 200
FRESH: Final = 10
"""Frames of a chunk that replace older ones of the pool."""
ATTACKERS: Final = 4
HANG_S: Final = 5.0
KEPT_MB: Final = HEAP_KEPT_BYTES / 1_000_000
"""A server keeps so much freed memory."""
ONEWAY: Final = 2


# ------------------------------------------------------------------------------------------------------------- inputs


def _bad_frame(rng: random.Random) -> tuple[bytes, bool]:
    """Return a request with wrong values in a header that can be decoded, and whether it gets a response."""
    fields = dict(FIELDS)
    for name in rng.sample(sorted(FIELDS.keys() - KEPT), rng.randrange(1, 5)):
        if rng.random() < 0.4:
            del fields[name]
        else:
            fields[name] = rng.choice(VALUES)
    body = rng.choice((b"", b"{", b"[]", b'{"a":[1,{"b":"c"}]}', rng.randbytes(40), b"\x00" * 64, b"{" * 200))
    request, flag = Request(rng.choice(CODES), fields, body), rng.choice((0, 0, 0, ONEWAY))
    forms: tuple[Form, ...] = ("json", "binary")
    return encode(request, rng.randrange(1 << 31), form=rng.choice(forms), flag=flag), flag != ONEWAY


def _fatal_frame(rng: random.Random) -> bytes:
    """Return bytes that end a connection: a damaged header, or a wrong length."""
    frame = bytearray(_bad_frame(rng)[0])
    for _ in range(rng.randrange(1, 30)):
        frame[rng.randrange(4, len(frame))] = rng.randrange(256)
    if rng.random() < 0.3:
        struct.pack_into(">I", frame, 0, rng.randrange(1 << 32))
    return bytes(frame)


class BadFrames:
    """Chunks of malformed frames. The last frame of each ends its connection."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._pool = [_bad_frame(rng) for _ in range(POOL)]

    def chunk(self) -> tuple[bytes, int, int]:
        """Return the bytes, the number of frames, and how many of them get a response."""
        rng, pool = self._rng, self._pool
        for _ in range(FRESH):
            pool[rng.randrange(POOL)] = _bad_frame(rng)
        chosen = rng.choices(pool, k=CHUNK - 1)
        data = b"".join([frame for frame, _ in chosen]) + _fatal_frame(rng)
        return data, CHUNK, sum(has_response for _, has_response in chosen)


class GoodFrames:
    """Chunks of valid requests, for comparison."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        codes = (ROUTE, MAX_OFFSET, CLUSTERS)
        self._frames = [encode(Request(each, {"topic": ORDERS, "queueId": "0"}), each) for each in codes]

    def chunk(self) -> tuple[bytes, int, int]:
        return b"".join(self._rng.choices(self._frames, k=CHUNK)), CHUNK, CHUNK


class BadReports:
    """Bytes for the port of slaves: reports of Apache's protocols, wrong, cut and mixed with anything."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def chunk(self) -> tuple[bytes, int, int]:
        rng = self._rng
        numbers = (0, 1, -1, 1 << 62, -(1 << 63), rng.randrange(1 << 40))
        parts = [
            rng.choice((struct.pack(">q", rng.choice(numbers)), struct.pack(">iiqq", rng.randrange(8), 1, 0, 0)))
            for _ in range(CHUNK // 10)
        ]
        parts.insert(rng.randrange(len(parts)), rng.randbytes(rng.randrange(1, 30)))
        return b"".join(parts), len(parts), 0


class BadPages:
    """Damaged HTTP requests."""

    _GOOD: Final = b"GET /metrics?a=b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nCookie: a=b\r\n\r\nabc"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def chunk(self) -> tuple[bytes, int, int]:
        rng, data = self._rng, bytearray(self._GOOD)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data), 1, 0


Inputs = BadFrames | GoodFrames | BadReports | BadPages
INPUTS: Final[dict[str, Callable[[random.Random], Inputs]]] = {
    "bad": BadFrames,
    "good": GoodFrames,
    "reports": BadReports,
    "pages": BadPages,
}


# ---------------------------------------------------------------------------------------------------------- attackers


@dataclass(slots=True)
class Attacked:
    """What attackers sent, and what came back."""

    sent: int = 0
    expected: int = 0
    answered: int = 0
    hangs: int = 0
    """Connections that the server neither closed nor served within `HANG_S`."""


@lru_cache
def _inputs(kind: str) -> Inputs:
    return INPUTS[kind](random.Random(f"malformed {kind}"))


def attack(address: str, kind: str, count: int, seconds: float, at_once: int) -> Attacked:
    """Send input of a kind until so much is sent or the time is over. Runs in a process of the attackers."""
    return asyncio.run(_attack(address, kind, count, seconds, at_once))


async def _attack(address: str, kind: str, count: int, seconds: float, at_once: int) -> Attacked:
    inputs, done, end = _inputs(kind), Attacked(), time.monotonic() + seconds

    async def send() -> None:
        while done.sent < count and time.monotonic() < end:
            data, frames, expected = inputs.chunk()
            done.sent += frames
            done.expected += expected
            received, is_hung = await _exchange(address, data)
            done.hangs += is_hung
            done.answered += _count_frames(received) if expected else bool(received)

    await asyncio.gather(*(send() for _ in range(at_once)))
    return done


async def _exchange(address: str, data: bytes) -> tuple[bytearray, bool]:
    """Send bytes and the end; return what the server sends until it closes, and whether it never does."""
    host, port = split_address(address)
    received = bytearray()
    try:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            async with asyncio.timeout(HANG_S):
                writer.write(data)
                writer.write_eof()
                while piece := await reader.read(1 << 20):
                    received += piece
        finally:
            writer.transport.abort()
    except TimeoutError:
        return received, True
    except OSError:
        pass
    return received, False


def _count_frames(received: bytearray) -> int:
    at = count = 0
    while at + 4 <= len(received):
        at += 4 + int.from_bytes(received[at : at + 4], "big")
        count += 1
    return count


# ------------------------------------------------------------------------------------------------------------ the run


class _OurController(PeerProcess):
    """Our controller alone."""

    def __init__(self, home: Path, metrics_port: int) -> None:
        super().__init__("controller", home)
        self._metrics_port = metrics_port

    def command(self) -> list[str]:
        settings = {
            "controllerDLegerGroup": "g",
            "controllerDLegerPeers": f"n0-{self.address}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": str(self.home / "store"),
            "controllerMetricsPort": str(self._metrics_port),
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


@dataclass(frozen=True, slots=True)
class _Port:
    """A port under attack."""

    name: str
    server: PeerProcess
    address: str
    kind: str
    share: float
    """Of all frames."""
    ask: tuple[str, Request] | None
    """Where a well-behaved client sends which request; None: its waits are not measured."""


async def malformed(folder: Path, seconds: float, *, frames: int = 5_000_000) -> list[Outcome]:
    """Send malformed frames to the ports of name server, broker and controller, and bytes to their other ports."""
    async with AsyncExitStack() as stack:
        metrics, controller_metrics, ha = (f"127.0.0.1:{free_port()}" for _ in range(3))
        settings = {"metricsPort": metrics.rpartition(":")[2], "haListenPort": ha.rpartition(":")[2]}
        name_server, broker = await stack.enter_async_context(our_cluster(folder, **settings))
        controller = _OurController(folder / "controller", int(controller_metrics.rpartition(":")[2]))
        stack.enter_context(controller)
        console = stack.enter_context(_OurConsole(folder / "console", name_server.address))
        await Workload(name_server.address).create_topics()
        route = name_server.address, Request(ROUTE, {"topic": ORDERS})
        offset = broker.address, Request(MAX_OFFSET, {"topic": ORDERS, "queueId": "0"})
        metadata = controller.address, Request(CONTROLLER_METADATA, {})
        ports = (
            _Port("name server", name_server, name_server.address, "bad", 0.4, route),
            _Port("broker", broker, broker.address, "bad", 0.4, offset),
            _Port("controller", controller, controller.address, "bad", 0.17, metadata),
            _Port("broker's port for slaves", broker, ha, "reports", 0.03, offset),
            _Port("broker's metrics", broker, metrics, "pages", 0.002, offset),
            _Port("controller's metrics", controller, controller_metrics, "pages", 0.002, metadata),
            _Port("console", console, console.address, "pages", 0.002, None),
        )
        context = multiprocessing.get_context("spawn")
        attackers = stack.enter_context(ProcessPoolExecutor(1, mp_context=context))
        outcomes: list[Outcome] = []
        total = 0
        for port in ports:
            part, sent = await _measure(port, attackers, int(frames * port.share), seconds)
            outcomes += part
            total += sent
            if not port.server.is_running:
                break
    outcomes.append(Outcome("malformed frames and requests in all", total, at_least=frames))
    return outcomes


async def _measure(port: _Port, attackers: Executor, count: int, seconds: float) -> tuple[list[Outcome], int]:
    at_once = ATTACKERS if port.kind == "bad" else 10
    outcomes: list[Outcome] = []
    calm_s: list[float] = []
    if port.ask is not None:
        # On a port of another protocol there are no valid requests: these go to the port of the well-behaved client.
        began = time.monotonic()
        await _beside(attackers, port.ask, calm_s, port.ask[0], "good", 1 << 60, seconds / 10, ATTACKERS)
        assert time.monotonic() - began < seconds, "valid requests take too long"
    # Tables fill up to their bounds meanwhile, and the allocator gets its arenas.
    done = await _beside(attackers, port.ask, [], port.address, port.kind, count // 2, 1e9, at_once)
    before, times_s, began = Usage.of(port.server.pid), list[float](), time.monotonic()
    attacked = await _beside(attackers, port.ask, times_s, port.address, port.kind, count - done.sent, 1e9, at_once)
    took_s = time.monotonic() - began
    await asyncio.sleep(2.0)
    is_running = port.server.is_running
    after = Usage.of(port.server.pid) if is_running else Usage(0, 0, 0)
    sent, hangs = done.sent + attacked.sent, done.hangs + attacked.hangs + sum(each > HANG_S for each in times_s)
    outcomes += [
        Outcome(f"{port.name}: malformed", sent),
        Outcome(f"{port.name}: malformed per second", attacked.sent / took_s),
        Outcome(f"{port.name}: crashes", int(not is_running), at_most=0),
        Outcome(f"{port.name}: hangs", hangs, at_most=0),
        Outcome(f"{port.name}: memory after half of them, without mapped files", before.own_mb, unit="MB"),
        Outcome(f"{port.name}: memory at the end", after.own_mb, at_most=1.05 * before.own_mb + KEPT_MB, unit="MB"),
        Outcome(f"{port.name}: more mapped files, of stored messages", _mapped_mb(before, after), unit="MB"),
    ]
    if attacked.expected:
        # A frame that ends its connection also ends requests that wait, such as those of a controller for its disk.
        share = (done.answered + attacked.answered) / (done.expected + attacked.expected)
        outcomes.append(Outcome(f"{port.name}: responses, of those expected", share, at_least=0.95))
    if calm_s:
        calm_ms = percentile_ms(calm_s, 99)
        outcomes += [
            Outcome(f"{port.name}: p99 of a well-behaved client beside valid requests", calm_ms, unit="ms"),
            Outcome(f"{port.name}: p99 during the attack", percentile_ms(times_s, 99), at_most=2 * calm_ms, unit="ms"),
        ]
    return outcomes, sent


def _mapped_mb(before: Usage, after: Usage) -> float:
    """Return the growth of mapped files."""
    return (after.rss_mb - after.own_mb) - (before.rss_mb - before.own_mb)


async def _beside(
    attackers: Executor,
    ask: tuple[str, Request] | None,
    times_s: list[float],
    address: str,
    kind: str,
    count: int,
    seconds: float,
    at_once: int,
) -> Attacked:
    """Attack, and measure a well-behaved client meanwhile."""
    attacking = asyncio.get_running_loop().run_in_executor(attackers, attack, address, kind, count, seconds, at_once)
    if ask is None:
        return await attacking
    asking = asyncio.create_task(_ask_on(*ask, times_s))
    done, _ = await asyncio.wait((attacking, asking), return_when=asyncio.FIRST_COMPLETED)
    if asking in done:
        await asking  # raises
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking
    return await attacking


async def _ask_on(address: str, request: Request, times_s: list[float]) -> None:
    async with connection_to(address) as line:
        while True:
            began = time.perf_counter()
            answer = await line.call(request)
            assert answer.code == 0, answer
            times_s.append(time.perf_counter() - began)
            await asyncio.sleep(0.01)
