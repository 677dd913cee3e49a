"""What does a name server's memory cost, and what does it buy?

Run from the repository's root: `python -m benchmarks.memory`. Two of our name servers run side by side, one with all of
`SWITCHES` on and one with all of them off; the same load is put on both in turns. `README.md` says how to read it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final, Literal

from benchmarks.figures import Figure, Target, table
from benchmarks.load.programs import Brokers, build, read_routes
from benchmarks.machine import Bystanders, cpu_s
from benchmarks.watching import latencies_ms, p99, watchers_mb
from skyroute.clock import SystemClock
from skyroute.nameserver.journal.recorder import Journal, JournalLimits
from skyroute.nameserver.server_events import Change, ServerStarted, ServerStopped
from skyroute.routing.events import BrokerChanged, BrokerJoined, BrokerLeft, Cause, TopicsChanged
from skyroute.routing.registration import DataVersion
from skyroute.routing.topology import QueueSettings
from tests.support.apache import SkyrouteNameServer
from tests.support.raw import RawConnection

SWITCHES: Final = {"journal": "journalEnable", "warm restart": "warmRestartEnable", "watch": "watchEnable"}
"""What is switched on together, and the setting that does it."""

NOISY: Final = 0.10
"""A round is noisy if more than this share of the machine went to processes that take no part."""
FEW_TOPICS: Final = ("T", 100)
EVENTS: Final = 1_000_000
WATCHERS: Final = 1_000
SESSIONS: Final = 20
"""Of them whole clients, whose callbacks are timed; the others do the same on the wire, and need less processor."""
MANY_WATCHERS: Final = 10_000
WARM_TOPIC: Final = "c0T0"

Side = Literal["off", "on"]
SIDES: Final[tuple[Side, Side]] = ("off", "on")


@dataclass(frozen=True, slots=True)
class Round:
    """What both sides did, one right after the other."""

    rates: Mapping[Side, float]
    cpu_us: Mapping[Side, float]
    """Processor time of the server for one of what is counted."""
    noise: float

    def __str__(self) -> str:
        noise = f" (others took {self.noise:.0%} of the machine)" if self.noise > NOISY else ""
        return ", ".join(f"{side} {self.rates[side]:,.1f} a second" for side in SIDES) + noise


@dataclass(slots=True)
class Bench:
    """One run: its length, and what it has found so far."""

    rounds: int
    seconds: float
    only: frozenset[str]
    scratch: Path
    figures: list[Figure] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)
    load_pids: list[int] = field(default_factory=list)
    """Processes that belong to the measurement."""
    _began: float = field(default_factory=time.monotonic)
    _servers: int = 0

    def say(self, line: str) -> None:
        print(f"[{time.monotonic() - self._began:4.0f} s] {line}", flush=True)

    def server(self, side: Side) -> SkyrouteNameServer:
        self._servers += 1
        switched = dict.fromkeys(SWITCHES.values(), "true" if side == "on" else "false")
        return SkyrouteNameServer(f"memory {side}", self.scratch / f"{side}-{self._servers}", config=switched)

    @contextmanager
    def pair(self) -> Iterator[dict[Side, SkyrouteNameServer]]:
        with ExitStack() as stack:
            yield {side: stack.enter_context(self.server(side)) for side in SIDES}
            self.load_pids.clear()

    def compare(
        self, row: str, what: str, target: Target, pids: Mapping[Side, int], measure: Callable[[Side], float]
    ) -> None:
        """Measure both sides round by round, neither always first, and keep the quietest rounds."""
        taken: list[Round] = []
        while len(taken) < self.rounds or (
            len(taken) < 2 * self.rounds and sum(each.noise <= NOISY for each in taken) < self.rounds
        ):
            taken.append(self._round(pids, measure, SIDES if len(taken) % 2 == 0 else (SIDES[1], SIDES[0])))
            self.say(f"row {row} round {len(taken)}: {taken[-1]}")
        kept = sorted(taken, key=lambda each: each.noise)[: self.rounds]
        self.noise += [each.noise for each in kept]
        for quantity, unit, targets, values in (
            (what, "a second", (target,), [each.rates for each in kept]),
            ("  processor time of one", "us", (), [each.cpu_us for each in kept]),
        ):
            off, on = (tuple(each[side] for each in values) for side in SIDES)
            figure = Figure(row, quantity, unit, off, on, targets)
            self.figures.append(figure)
            self.say(f"row {row}: {quantity.strip()}: on / off = {figure.ratio or 0:.3f}")

    def _round(self, pids: Mapping[Side, int], measure: Callable[[Side], float], order: tuple[Side, ...]) -> Round:
        rates: dict[Side, float] = {}
        cpu_us: dict[Side, float] = {}
        noise = 0.0
        for side in order:
            used_s, began = cpu_s(pids[side]), time.monotonic()
            with Bystanders((*pids.values(), *self.load_pids)) as bystanders:
                rates[side] = measure(side)
            count = rates[side] * (time.monotonic() - began)
            cpu_us[side] = (cpu_s(pids[side]) - used_s) / count * 1e6
            noise = max(noise, bystanders.share)
        return Round(rates, cpu_us, noise)

    def note(self, row: str, what: str, unit: str, values: list[float], target: Target) -> None:
        self.figures.append(Figure(row, what, unit, (), tuple(values), (target,)))


def measure_reads(bench: Bench) -> None:
    """Row 1: what do route reads cost, with everything switched on?"""
    with bench.pair() as servers, ExitStack() as stack:
        few = {
            side: stack.enter_context(Brokers(server.port, clusters=1, brokers=2, topics=100, first_cluster=4))
            for side, server in servers.items()
        }
        for brokers in few.values():
            brokers.register()
            bench.load_pids.append(brokers.pid)

        def measure(side: Side) -> float:
            few[side].renew()
            return read_routes(servers[side].port, 64, 1, seconds=bench.seconds, topics=FEW_TOPICS).per_s

        for side in SIDES:
            measure(side)
        bench.compare("1", "routes read, 64 connections x 1", Target("ratio at least", 0.95), _pids(servers), measure)


def measure_registrations(bench: Bench) -> None:
    """Row 2: what do registrations of 10,000 topics cost, with a new edition in each, and with new queue counts?"""
    with bench.pair() as servers, ExitStack() as stack:
        fleets = {side: stack.enter_context(_fleet(server)) for side, server in servers.items()}
        for fleet in fleets.values():
            fleet.register()
            bench.load_pids.append(fleet.pid)
        bound, pids = Target("ratio at least", 0.90), _pids(servers)
        bench.compare(
            "2",
            "registrations, new editions",
            bound,
            pids,
            lambda side: fleets[side].beat("version", bench.seconds).per_s,
        )
        bench.compare(
            "2q",
            "registrations, new queue counts",
            bound,
            pids,
            lambda side: fleets[side].beat("queues", bench.seconds).per_s,
        )


def measure_restart(bench: Bench) -> None:
    """Row 3: how soon after a kill and a start does a server answer for one of 32 x 10,000 topics?"""
    took: list[float] = []
    with bench.server("on") as server, _fleet(server) as fleet:
        fleet.register()
        snapshot = server.home / f"memory-{server.port}" / "routes.snapshot"
        _await(lambda: snapshot.exists() and snapshot.read_bytes().count(b"\n") == 33, "a snapshot of the whole fleet")
        for number in range(bench.rounds):
            server.kill()
            began = time.monotonic()
            server.start()
            with RawConnection(server.address) as line:
                assert line.call(105, {"topic": WARM_TOPIC}).code == 0
            took.append(time.monotonic() - began)
            bench.say(f"row 3 round {number + 1}: first warm answer after {took[-1]:.2f} s")
    bench.note("3", "restart to the first warm answer", "s", took, Target("ours at most", 2.0))


def write_journal(folder: Path, events: int, limits: JournalLimits) -> None:
    """Write a journal of `events` changes, as a name server does."""
    journal = Journal.open(folder, server_id="0123456789abcdef", limits=limits, clock=SystemClock())
    journal.append([ServerStarted("127.0.0.1:9876", 0, 0)])
    for number in range(0, events, 4):
        journal.append(_a_brokers_life(number))
        while number % 100_000 == 0 and not journal.caught_up:
            time.sleep(0.01)
    journal.append([ServerStopped()])
    journal.close()
    assert journal.lost == 0


def measure_journal(bench: Bench) -> None:
    """Row 4: how large is a journal of a million events, and how long does `verify` take?"""
    folder = bench.scratch / "journal"
    bench.say(f"row 4: writing {EVENTS:,} events")
    write_journal(folder, EVENTS, JournalLimits())
    size_mb = sum(path.stat().st_size for path in folder.glob("*.jsonl")) / 1e6
    bench.note("4", "a million events", "MB", [size_mb], Target("ours at most", 400))
    began = time.monotonic()
    command = [sys.executable, "-m", "skyroute", "journal", "verify", "--path", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    took = time.monotonic() - began
    assert done.returncode == 0, done.stdout
    bench.say(f"row 4: {size_mb:.0f} MB, verified in {took:.1f} s")
    bench.note("4", "  read back by `journal verify`", "s", [took], Target("ours at most", 20))


def measure_watch_latency(bench: Bench) -> None:
    """Row 5: how long from a change to the client's callback, with 1,000 watchers of the topic?"""
    taken: list[tuple[float, float]] = []
    while len(taken) < bench.rounds or (
        len(taken) < 2 * bench.rounds and sum(noise <= NOISY for noise, _ in taken) < bench.rounds
    ):
        with bench.server("on") as server, Bystanders((server.pid,)) as bystanders:
            found = latencies_ms(server.address, sessions=SESSIONS, lines=WATCHERS - SESSIONS)
        taken.append((bystanders.share, p99(found)))
        bench.say(
            f"row 5 round {len(taken)}: median {median(found):.1f} ms, p99 {p99(found):.1f} ms"
            f" (others took {bystanders.share:.0%} of the machine)"
        )
    kept = sorted(taken)[: bench.rounds]
    bench.noise += [noise for noise, _ in kept]
    worst = [late_ms for _, late_ms in kept]
    bench.note("5", "change to callback, 1,000 watchers, p99", "ms", worst, Target("ours at most", 100))


def measure_watch_memory(bench: Bench) -> None:
    """Row 6: what do 10,000 watchers weigh, with their connections?"""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with bench.server("on") as server:
        used_mb = watchers_mb(server.address, server.pid, MANY_WATCHERS)
    bench.say(f"row 6: {used_mb:.0f} MB")
    bench.note("6", "10,000 watchers on as many connections", "MB", [used_mb], Target("ours at most", 100))


def _a_brokers_life(number: int) -> list[Change]:
    cluster, name, address = "DefaultCluster", f"broker-{number % 32}", f"10.0.0.{number % 32}:10911"
    version = DataVersion(0, 1_758_275_140_000 + number, number)
    return [
        BrokerJoined(cluster, name, 0, address, address, version, 120.0, number),
        BrokerChanged(cluster, name, address, 0, 0, address, address, version, version),
        TopicsChanged(
            cluster,
            name,
            Cause.REGISTERED,
            version,
            {f"a-topic-of-usual-length-{number}": QueueSettings(8, 8, 6)},
            {},
            {},
        ),
        BrokerLeft(cluster, name, 0, address, Cause.CONNECTION_CLOSED, version, unused_connections=(number,)),
    ]


def _pids(servers: Mapping[Side, SkyrouteNameServer]) -> dict[Side, int]:
    return {side: server.pid for side, server in servers.items()}


def _fleet(server: SkyrouteNameServer) -> Brokers:
    return Brokers(server.port, clusters=4, brokers=8, topics=10_000)


def _await(probe: Callable[[], bool], what: str, timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not probe():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.1)


ROWS: Final = {
    "1": measure_reads,
    "2": measure_registrations,
    "3": measure_restart,
    "4": measure_journal,
    "5": measure_watch_latency,
    "6": measure_watch_memory,
}


def _rows(text: str) -> frozenset[str]:
    rows = frozenset(part.strip() for part in text.split(","))
    if unknown := rows - ROWS.keys():
        raise argparse.ArgumentTypeError(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    return rows


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each figure (5)")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one measurement (4)")
    parser.add_argument("--only", type=_rows, default=frozenset(ROWS), metavar="ROWS", help="such as 1,2")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round of every figure there")
    parser.add_argument("--strict", action="store_true", help="exit with status 1 if a target is not met")
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    for program in ("nsload", "nsreg"):
        build(program)
    with tempfile.TemporaryDirectory(prefix="skyroute-bench-") as scratch:
        bench = Bench(arguments.rounds, arguments.seconds, arguments.only, Path(scratch))
        for row, measure in ROWS.items():
            if row in bench.only:
                measure(bench)
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"\n{machine}; switched: {', '.join(SWITCHES)}\n")
    print(table(bench.figures, ("off", "on")))
    if bench.noise:
        print(f"\nOthers took up to {max(bench.noise):.0%} of the machine while rows 1, 2 and 5 were measured.")
    if arguments.json:
        report = {"machine": machine, "noise": bench.noise, "figures": [figure.as_json() for figure in bench.figures]}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    missed = [figure for figure in bench.figures if figure.is_met is False]
    return 1 if arguments.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
