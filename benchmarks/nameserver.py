"""How does our name server compare with Apache's, on this machine, in this minute?

Run from the repository's root: `python -m benchmarks.nameserver`. It starts both servers as real processes on loopback,
puts the same load on them in turns, and prints one table. `README.md` says how to read it.
"""

from __future__ import annotations

import argparse
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median

from benchmarks.comparison import SIDES, Bench, Quantity, Side, Taken, common_options, compare_and_report
from benchmarks.figures import Figure, Target
from benchmarks.load.programs import Brokers, Change, Limit, LoadError, Reads, build, read_routes
from benchmarks.machine import Bystanders, cpu_s_of_all, resident_mb
from tests.support.apache import (
    LARGE_HEAP,
    ApacheNameServer,
    NameServerProcess,
    PeerFailedError,
    SkyrouteNameServer,
    fetch_jars,
)

START_TIMEOUT_S = 60.0
ROWS = tuple(map(str, range(1, 11)))
FEW_TOPICS = ("T", 100)
MANY_TOPICS = ("c0T", 10_000)


@dataclass(frozen=True, slots=True)
class Server:
    """A running name server."""

    port: int
    pid: int
    first_answer_s: float
    """From just before its program was started to its first answer."""


@dataclass(slots=True)
class NameServerBench(Bench):
    """A run that starts name servers."""

    compact: bool = False
    """Registration bodies without blanks, as from Java."""
    _servers: int = 0

    @contextmanager
    def running(self, side: Side, java_options: Sequence[str] = LARGE_HEAP) -> Iterator[Server]:
        """A fresh server, from its first answer until it is killed."""
        self._servers += 1
        home = self.scratch / f"{side}-{self._servers}"
        peer: NameServerProcess
        if side == "apache":
            peer = ApacheNameServer(side, home, java_options=java_options)
        else:
            peer = SkyrouteNameServer(side, home)
        peer.prepare()
        command = peer.command()
        with peer.log.open("wb") as log:
            start = time.monotonic()
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=home, env=peer.environment()
            )
        try:
            _await_answer(peer, process, start + START_TIMEOUT_S)
            yield Server(peer.port, process.pid, time.monotonic() - start)
        except LoadError as error:
            raise LoadError(f"{error}\n{side} ended its log with:\n{peer.tail(5)}") from error
        finally:
            process.kill()
            process.wait()

    @contextmanager
    def pair(self, java_options: Sequence[str] = LARGE_HEAP) -> Iterator[dict[Side, Server]]:
        with ExitStack() as stack:
            yield {side: stack.enter_context(self.running(side, java_options)) for side in SIDES}

    def warm_ups(self) -> Iterator[tuple[Side, float]]:
        """How many seconds of load each side gets first: the JVM compiles what it runs often, ours has no such need."""
        self.say(f"warming up Apache's for {self.warm_up_s:g} s")
        yield "apache", self.warm_up_s
        yield "ours", 1.0

    def few_brokers(self, server: Server) -> Brokers:
        """2 brokers x 100 topics, in a cluster of their own."""
        return Brokers(server.port, clusters=1, brokers=2, topics=100, compact=self.compact, first_cluster=4)

    def many_brokers(self, server: Server) -> Brokers:
        """32 brokers x 10,000 topics: four clusters of eight, and the same topics on every broker of a cluster."""
        return Brokers(server.port, clusters=4, brokers=8, topics=10_000, compact=self.compact)

    def sized_brokers(self, server: Server, topics: int) -> Brokers:
        """2 brokers with as many topics as wanted: T0, T1, ..."""
        return Brokers(server.port, clusters=1, brokers=2, topics=topics, compact=True)


def _await_answer(peer: NameServerProcess, process: subprocess.Popen[bytes], deadline: float) -> None:
    """Knock until a request is answered: the route of a topic that does not exist."""
    header = b'{"code":105,"extFields":{"topic":"none"},"flag":0,"language":"JAVA","opaque":1,"version":495}'
    request = struct.pack(">ii", 4 + len(header), len(header)) + header
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise PeerFailedError(f"{peer.name} ended with status {process.returncode}:\n{peer.tail()}")
        try:
            with socket.create_connection(("127.0.0.1", peer.port), timeout=10) as connection:
                connection.sendall(request)
                if b"none" in connection.recv(4096):
                    return
        except ConnectionError:
            time.sleep(0.001)
    raise PeerFailedError(f"{peer.name} did not answer within {START_TIMEOUT_S:g} s:\n{peer.tail()}")


# ------------------------------------------------------------------------------------------------------ rows 1, 2, 3


@dataclass(frozen=True, slots=True)
class Clients:
    """How many clients ask at once, how many questions each has open, and what is hoped of the answers."""

    row: str
    connections: int
    depth: int
    rate: Target
    tail: tuple[Target, ...] = ()


CLIENTS = (
    Clients("1", 64, 1, Target("ratio at least", 1.7), (Target("ratio at most", 0.7),)),
    Clients("2", 16, 16, Target("ratio at least", 2.5)),
    Clients("3", 256, 4, Target("ratio at least", 1.8)),
)


def measure_reads(bench: NameServerBench) -> None:
    """How many routes a second, and how long does one take, for clients that wait for each answer?"""
    bench.say("rows 1 to 3: starting both servers with 2 brokers x 100 topics")
    with bench.pair() as servers, ExitStack() as stack:
        few = {side: stack.enter_context(bench.few_brokers(server)) for side, server in servers.items()}
        for brokers in few.values():
            brokers.register()
        for side, warm_up_s in bench.warm_ups():
            for clients in CLIENTS:
                _read(servers[side], clients, warm_up_s / len(CLIENTS))
        for clients in CLIENTS:
            if clients.row in bench.only:
                _compare_reads(bench, clients, servers, few)


def _compare_reads(
    bench: NameServerBench, clients: Clients, servers: dict[Side, Server], few: dict[Side, Brokers]
) -> None:
    sizes: list[int] = []

    def measure(side: Side) -> Taken:
        few[side].renew()
        with Bystanders(server.pid for server in servers.values()) as bystanders:
            reads = _read(servers[side], clients, bench.seconds)
        sizes.append(reads.body_bytes)
        return Taken((reads.per_s, reads.p99_us / 1000), _describe(reads), bystanders.share)

    shape = f"{clients.connections} connections x {clients.depth}"
    rate = Quantity(f"routes read, {shape}", "a second", (clients.rate,))
    bench.compare(clients.row, measure, rate, Quantity("  99th percentile", "ms", clients.tail))
    with Limit(max(sizes)) as limit:
        rates = [_read(limit, clients, min(1.0, bench.seconds)).per_s for _ in range(3)]
    bench.figures.append(Figure(clients.row, "  what loopback allows at most", "a second", (), tuple(rates)))


def _read(server: Server | Limit, clients: Clients, seconds: float) -> Reads:
    return read_routes(server.port, clients.connections, clients.depth, seconds=seconds, topics=FEW_TOPICS)


def _describe(reads: Reads) -> str:
    return f"{reads.per_s:,.0f} a second, p50 {reads.p50_us / 1000:.2f} ms, p99 {reads.p99_us / 1000:.2f} ms"


# --------------------------------------------------------------------------------------------------------- rows 4, 7


def measure_registering(bench: NameServerBench) -> None:
    """How soon does a fresh server know a large fleet, and what does that cost in memory?"""

    def measure(side: Side) -> Taken:
        with bench.running(side) as server, bench.many_brokers(server) as fleet:
            with Bystanders((server.pid, fleet.pid)) as bystanders:
                done = fleet.register()
            memory_mb = resident_mb(server.pid)
            words = f"registered in {done.total_s:.2f} s, the slowest in {done.max_ms:.0f} ms; {memory_mb:.0f} MB"
            return Taken((done.total_s, memory_mb), words, bystanders.share)

    bench.say("row 4: starting fresh servers for 32 brokers x 10,000 topics")
    bench.compare(
        "4",
        measure,
        Quantity("32 brokers x 10,000 topics register", "s", (Target("ratio at most", 1.2),)),
        Quantity("  resident memory after it", "MB", (Target("ratio at most", 0.15), Target("ours at most", 220))),
    )


def measure_starting(bench: NameServerBench) -> None:
    """How soon does a fresh server answer, and what does it weigh then?"""

    def measure(side: Side) -> Taken:
        with Bystanders() as bystanders, bench.running(side) as server:
            memory_mb = resident_mb(server.pid)
        words = f"first answer after {server.first_answer_s:.3f} s; {memory_mb:.0f} MB"
        return Taken((server.first_answer_s, memory_mb), words, bystanders.share)

    bench.compare(
        "7",
        measure,
        Quantity("from start to the first answer", "s", (Target("ratio at most", 0.2),)),
        Quantity("  resident memory then", "MB", (Target("ours at most", 60),)),
    )


# --------------------------------------------------------------------------------------------------------- rows 5, 6


@dataclass(frozen=True, slots=True)
class Unrest:
    """One form of row 5: what changes, and which topics are read meanwhile."""

    row: str
    what: str
    change: Change
    topics: tuple[str, int]


UNRESTS = (
    Unrest("5", "new versions; read: 10,000 of their topics", "version", MANY_TOPICS),
    Unrest("5q", "new queue counts; read: 10,000 of their topics", "queues", MANY_TOPICS),
    Unrest("5s", "new versions; read: 100 topics of others", "version", FEW_TOPICS),
)


def measure_large_fleet(bench: NameServerBench) -> None:
    """With 32 brokers x 10,000 topics: how are reads served while all re-register, and how fast are heartbeats?"""
    bench.say("rows 5 and 6: starting both servers with 32 brokers x 10,000 topics")
    with bench.pair() as servers, ExitStack() as stack:
        fleets = {side: stack.enter_context(bench.many_brokers(server)) for side, server in servers.items()}
        few = {side: stack.enter_context(bench.few_brokers(server)) for side, server in servers.items()}
        for brokers in (*fleets.values(), *few.values()):
            brokers.register()
        pids = [server.pid for server in servers.values()]
        pids += [brokers.pid for brokers in (*fleets.values(), *few.values())]
        for side, warm_up_s in bench.warm_ups():
            _read_in_unrest(servers[side], fleets[side], UNRESTS[0], warm_up_s)

        def measure_unrest(unrest: Unrest, side: Side) -> Taken:
            few[side].renew()
            with Bystanders(pids) as bystanders:
                reads, registered_per_s = _read_in_unrest(servers[side], fleets[side], unrest, bench.seconds)
            words = f"{_describe(reads)}, max {reads.max_us / 1000:.0f} ms; {registered_per_s:.1f} registrations"
            return Taken((reads.per_s, reads.p99_us / 1000, registered_per_s), words, bystanders.share)

        def measure_heartbeats(side: Side) -> Taken:
            with Bystanders(pids) as bystanders:
                done = fleets[side].beat("same", bench.seconds)
            words = f"{done.per_s:.1f} a second, median {done.median_ms:.2f} ms, max {done.max_ms:.0f} ms"
            return Taken((done.per_s,), words, bystanders.share)

        for unrest in UNRESTS if bench.wants("5") else ():
            bench.compare(
                unrest.row,
                partial(measure_unrest, unrest),
                Quantity(unrest.what, "a second", (Target("ratio at least", 1.0),)),
                Quantity("  99th percentile", "ms", (Target("ratio at most", 1.0),)),
                Quantity("  registrations meanwhile", "a second"),
            )
        if bench.wants("6"):
            heartbeats = Quantity("unchanged heartbeats, 32 x 10,000", "a second", (Target("ratio at least", 2.0),))
            fleets["apache"].beat("same", bench.warm_up_s / 2)
            bench.compare("6", measure_heartbeats, heartbeats)


def _read_in_unrest(
    server: Server, fleet: Brokers, unrest: Unrest, seconds: float, clients: tuple[int, int] = (64, 1)
) -> tuple[Reads, float]:
    fleet.start_beating(unrest.change, seconds + 30)
    try:
        reads = read_routes(server.port, *clients, seconds=seconds, topics=unrest.topics)
    finally:
        registered = fleet.stop_beating()
    return reads, registered.per_s


# -------------------------------------------------------------------------------------------------------------- main


# ------------------------------------------------------------------------------------------------------ rows 8, 9, 10

SIZES = (100, 10_000, 60_000, 300_000)
READ, READ_A_CPU_S = "routes read, {:,} topics", "  a processor second, {:,} topics"
FLAT = (10_000, 300_000)
"""Our rates at these two sizes are compared with each other."""
COLD_SIZES = (60_000, 100_000)
CHANGING = 10_000
LONG_FRAMES = (*LARGE_HEAP, "-Dcom.rocketmq.remoting.frameMaxLength=268435456")
"""A registration of 100,000 topics is longer than the 16 MiB that Apache's accepts as it comes."""
FEW_CLIENTS = Clients("8", 16, 16, Target("ratio at least", 2.0))


def measure_sizes(bench: NameServerBench) -> None:
    """How many routes a second with few and many topics, all of them asked for before, and what does a topic weigh?"""
    for topics in SIZES:
        _compare_at_size(bench, topics)
    target = (Target("ours at least", 0.7),)
    for what in (READ, READ_A_CPU_S):
        small, large = (_ours(bench, what.format(topics)) for topics in FLAT)
        name = f"{what.format(FLAT[1])} to {FLAT[0]:,}"
        bench.figures.append(Figure("8", name, "ratio", (), (large / small,), target))


def _compare_at_size(bench: NameServerBench, topics: int) -> None:
    bench.say(f"row 8: starting both servers with 2 brokers x {topics:,} topics")
    with bench.pair(LONG_FRAMES) as servers, ExitStack() as stack:
        empty_mb = {side: resident_mb(server.pid) for side, server in servers.items()}
        fleets = {side: stack.enter_context(bench.sized_brokers(server, topics)) for side, server in servers.items()}
        for fleet in fleets.values():
            fleet.register()
        for side, warm_up_s in bench.warm_ups():
            _read_sized(servers[side], topics, 60, once=True)  # a warm-up alone does not get to the last of many topics
            _read_sized(servers[side], topics, warm_up_s)

        def measure(side: Side) -> Taken:
            fleets[side].renew()
            pid = servers[side].pid
            with Bystanders([server.pid for server in servers.values()]) as bystanders:
                used_s = cpu_s_of_all(pid)
                reads = _read_sized(servers[side], topics, bench.seconds)
                used_s = cpu_s_of_all(pid) - used_s
            each = (resident_mb(pid) - empty_mb[side]) * 1_000_000 / topics
            a_cpu_s = reads.right / used_s
            words = f"{_describe(reads)}; {a_cpu_s:,.0f} a processor second; {each:,.0f} bytes a topic"
            return Taken((reads.per_s, a_cpu_s, each), words, bystanders.share)

        targets = (FEW_CLIENTS.rate,) if topics in SIZES[:3] else ()
        quantities = [
            Quantity(READ.format(topics), "a second", targets),
            Quantity(READ_A_CPU_S.format(topics), "routes"),
        ]
        if topics == SIZES[-1]:
            quantities.append(Quantity("  resident memory for each topic", "bytes"))
        bench.compare("8", measure, *quantities)


def _read_sized(server: Server, topics: int, seconds: float, *, once: bool = False) -> Reads:
    clients = FEW_CLIENTS
    names = ("T", topics)
    return read_routes(server.port, clients.connections, clients.depth, seconds=seconds, topics=names, once=once)


def _ours(bench: NameServerBench, what: str) -> float:
    return median(next(figure.ours for figure in bench.figures if figure.what == what))


def measure_first_questions(bench: NameServerBench) -> None:
    """How many routes a second when every topic is asked for once, and for the first time?"""

    def measure(topics: int, side: Side) -> Taken:
        with bench.running(side, LONG_FRAMES) as server, bench.sized_brokers(server, topics) as fleet:
            fleet.register()
            if side == "apache":  # the JVM has to compile what it runs; Apache's keeps no answers
                _read_sized(server, topics, bench.warm_up_s)
            with Bystanders((server.pid,)) as bystanders:
                reads = _read_sized(server, topics, 60, once=True)
        return Taken((reads.per_s,), _describe(reads), bystanders.share)

    for topics in COLD_SIZES:
        bench.say(f"row 9: starting fresh servers for 2 brokers x {topics:,} topics")
        first = Quantity(f"first questions, {topics:,} topics", "a second", (Target("ratio at least", 1.2),))
        bench.compare("9", partial(measure, topics), first)


def measure_changing(bench: NameServerBench) -> None:
    """How are routes served while the brokers that serve them change them without pause?"""
    bench.say(f"row 10: starting both servers with 2 brokers x {CHANGING:,} topics")
    unrest = Unrest("10", "routes read while they change", "queues", ("T", CHANGING))
    with bench.pair() as servers, ExitStack() as stack:
        fleets = {side: stack.enter_context(bench.sized_brokers(server, CHANGING)) for side, server in servers.items()}
        for fleet in fleets.values():
            fleet.register()
        for side, warm_up_s in bench.warm_ups():
            _read_sized(servers[side], CHANGING, warm_up_s)
        pids = [*(server.pid for server in servers.values()), *(fleet.pid for fleet in fleets.values())]

        def measure(side: Side) -> Taken:
            clients = (FEW_CLIENTS.connections, FEW_CLIENTS.depth)
            with Bystanders(pids) as bystanders:
                reads, registered_per_s = _read_in_unrest(servers[side], fleets[side], unrest, bench.seconds, clients)
            words = f"{_describe(reads)}; {registered_per_s:.1f} registrations"
            return Taken((reads.per_s, registered_per_s), words, bystanders.share)

        rate = Quantity(unrest.what, "a second", (Target("ratio at least", 1.2),))
        bench.compare("10", measure, rate, Quantity("  registrations meanwhile", "a second"))


def _run(bench: NameServerBench) -> None:
    fetch_jars()
    for program in ("nsload", "nsreg", "nslimit"):
        build(program)
    if bench.wants("1", "2", "3"):
        measure_reads(bench)
    if bench.wants("4"):
        measure_registering(bench)
    if bench.wants("5", "6"):
        measure_large_fleet(bench)
    if bench.wants("7"):
        measure_starting(bench)
    if bench.wants("8"):
        measure_sizes(bench)
    if bench.wants("9"):
        measure_first_questions(bench)
    if bench.wants("10"):
        measure_changing(bench)


def _rounds(text: str) -> int:
    if int(text) < 3:
        raise argparse.ArgumentTypeError("a median needs three rounds or more")
    return int(text)


def _arguments() -> argparse.Namespace:
    parser = common_options("nameserver", __doc__, ROWS, seconds=4.0, warm_up_s=12.0, rounds=_rounds)
    parser.add_argument("--quick", action="store_true", help="1 s a measurement, 4 s of warm-up: a first impression")
    parser.add_argument("--compact", action="store_true", help="registration bodies without blanks, as from Java")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.seconds, arguments.warm_up = 1.0, 4.0
    return arguments


def main() -> int:
    arguments = _arguments()
    title = "Apache RocketMQ 5.5.0 (2 GB heap, warmed up except in rows 4 and 7) and ours"
    return compare_and_report(arguments, _run, title, start=partial(NameServerBench, compact=arguments.compact))


if __name__ == "__main__":
    sys.exit(main())
