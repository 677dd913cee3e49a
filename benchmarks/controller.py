"""How does our controller compare with Apache's (DLedger)?

Run from the repository's root: `python -m benchmarks.controller`. Both controllers run side by side as real processes.
Row 1 kills the master of a pair of Apache's brokers under load, on each side in turns, and of a pair of ours. Row 2 has
a thousand groups of simulated brokers that only send heartbeats. `README.md` says how to read it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from benchmarks.figures import Figure, Target, table
from benchmarks.machine import cpu_s, resident_mb
from skyroute import Message, SendStatus
from skyroute.blocking import Producer
from skyroute.errors import SkyrouteError
from tests.support.apache import ApacheBroker, PeerProcess, SkyrouteNameServer
from tests.support.controlled_brokers import ApacheController, SkyrouteController, broker
from tests.support.our_broker import SkyrouteBroker
from tests.support.raw import RawConnection
from tests.support.waiting import wait_until

Side = Literal["apache", "ours"]
SIDES: Final[tuple[Side, ...]] = ("apache", "ours")
JOIN_S: Final = 120.0
KILLS: Final = 10
GROUPS: Final = 1_000
REPLICAS: Final = 3
MASTERS_KILLED: Final = 100
LISTEN_S: Final = 12.0
"""Our controller listens for ten seconds before it replaces a master."""
MEASURED_S: Final = 20.0
PAUSE_RATIO_MAX: Final = 0.7
CPU_PERCENT_MAX: Final = 25.0
ELECTION_P99_S_MAX: Final = 1.0
MEMORY_MB_MAX: Final = 120.0


def controller(side: Side, home: Path) -> PeerProcess:
    return SkyrouteController("ours", home) if side == "ours" else ApacheController("apache", home)


# ------------------------------------------------------------------------------------------------------ row 1: a pair


class Sends(threading.Thread):
    """Sends one message after the other while it is on, and notes when each was begun and acknowledged."""

    def __init__(self, name_server: str) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[tuple[float, float]] = []
        self.on = threading.Event()
        self.over = threading.Event()
        self._name_server = name_server

    def run(self) -> None:
        with Producer("load", name_servers=self._name_server, retries=0) as producer:
            while not self.over.is_set():
                self.on.wait()
                began = time.monotonic()
                try:
                    is_safe = producer.send(Message("Failover", b"x" * 100), timeout_s=1.0).status is SendStatus.OK
                except SkyrouteError:
                    is_safe = False
                if not is_safe:
                    self.over.wait(0.005)
                else:
                    self.acknowledged.append((began, time.monotonic()))

    def first_after(self, moment: float) -> float | None:
        """When the first message was acknowledged whose send began after a moment."""
        return min((end for began, end in self.acknowledged[-1000:] if began >= moment), default=None)


@dataclass
class Pair:
    """Two brokers of one group, with their controller and name server."""

    controller: PeerProcess
    brokers: list[ApacheBroker]
    sends: Sends
    pauses_s: list[float] = field(default_factory=list)

    def group(self) -> tuple[int | None, list[int]]:
        with RawConnection(self.controller.address) as line:
            answer = line.call(1004, {"brokerName": "pair"})
            master = answer.fields.get("masterBrokerId")
            return int(master) if master else None, sorted(answer.value["syncStateSet"]) if answer.body else []

    def until_in_sync(self) -> None:
        wait_until(lambda: self.group()[1] == [1, 2], "both brokers are in sync", timeout_s=JOIN_S)

    def kill_master(self) -> None:
        """Measure the time from the death of the master to the first acknowledged send after it.

        The other pairs rest meanwhile: their load would take the processor from brokers that change their role.
        """
        self.until_in_sync()
        self.sends.on.set()
        count = len(self.sends.acknowledged)
        wait_until(lambda: len(self.sends.acknowledged) > count + 50, "the load runs", timeout_s=JOIN_S)
        master = self.group()[0]
        assert master is not None
        victim = self.brokers[master - 1]
        victim.kill()
        killed = time.monotonic()
        wait_until(lambda: self.sends.first_after(killed), "a send is accepted", timeout_s=JOIN_S)
        self.pauses_s.append((self.sends.first_after(killed) or killed) - killed)
        self.sends.on.clear()
        victim.start()


@contextmanager
def pair(side: Side, kind: type[ApacheBroker], folder: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        server = stack.enter_context(SkyrouteNameServer("name server", folder / "ns"))
        decides = stack.enter_context(controller(side, folder / "controller"))
        brokers: list[ApacheBroker] = []
        for number in (1, 2):
            brokers.append(
                stack.enter_context(broker(folder / str(number), server.address, decides.address, kind=kind))
            )
        sends = Sends(server.address)
        here = Pair(decides, brokers, sends)
        here.until_in_sync()
        sends.start()
        stack.callback(sends.join)
        stack.callback(sends.on.set)
        stack.callback(sends.over.set)
        yield here


def measure_pauses(folder: Path, kills: int) -> list[Figure]:
    kinds: dict[str, tuple[Side, type[ApacheBroker]]] = {
        "apache": ("apache", ApacheBroker),
        "ours": ("ours", ApacheBroker),
        "all ours": ("ours", SkyrouteBroker),
    }
    with ExitStack() as stack:
        pairs = {name: stack.enter_context(pair(*kind, folder / name)) for name, kind in kinds.items()}
        time.sleep(LISTEN_S)
        for number in range(kills):
            for name in kinds if number % 2 else reversed(kinds):
                for each in pairs.values():
                    each.until_in_sync()  # a broker that starts would take the processor from the others
                pairs[name].kill_master()
                print(f"kill {number + 1} {name}: {pairs[name].pauses_s[-1]:.3f} s", file=sys.stderr, flush=True)
        pauses = {name: tuple(pairs[name].pauses_s) for name in kinds}
    what, target = "kill -9 of the master to the first send", (Target("ratio at most", PAUSE_RATIO_MAX),)
    return [
        Figure("1", f"{what}, Apache's brokers on both", "s", pauses["apache"], pauses["ours"], target),
        Figure("1", f"{what}, brokers of ours on ours", "s", pauses["apache"], pauses["all ours"], target),
    ]


# ----------------------------------------------------------------------------------------------------- row 2: a fleet


class Fleet:
    """Simulated brokers in a process of their own."""

    def __init__(self, address: str) -> None:
        command = [sys.executable, "-m", "benchmarks.load.replicas", address, str(GROUPS), str(REPLICAS)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, command: str) -> list[float]:
        sink, source = self._process.stdin, self._process.stdout
        assert sink is not None
        assert source is not None
        sink.write(f"{command}\n")
        sink.flush()
        answer = source.readline()
        if not answer:
            raise RuntimeError(f"the load ended while it was asked to {command}")
        found: list[float] | None = json.loads(answer)
        return found or []

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def measure_fleet(folder: Path) -> list[Figure]:
    values: dict[str, dict[Side, float]] = {"cpu": {}, "p99": {}, "memory": {}}
    for side in SIDES:
        with controller(side, folder / f"fleet-{side}") as decides:
            fleet = Fleet(decides.address)
            try:
                fleet.ask("join")
                time.sleep(LISTEN_S)
                before = cpu_s(decides.pid)
                time.sleep(MEASURED_S)
                values["cpu"][side] = (cpu_s(decides.pid) - before) / MEASURED_S * 100
                elections = sorted(fleet.ask(f"kill {MASTERS_KILLED}"))
                values["p99"][side] = elections[int(len(elections) * 0.99) - 1]
                values["memory"][side] = resident_mb(decides.pid)
            finally:
                fleet.close()

    def figure(what: str, unit: str, key: str, bound: float) -> Figure:
        apache, ours = values[key]["apache"], values[key]["ours"]
        return Figure("2", what, unit, (apache,), (ours,), (Target("ours at most", bound),))

    brokers = f"{GROUPS:,} groups x {REPLICAS}"
    return [
        figure(f"{brokers}, a heartbeat a second: processor", "% of a core", "cpu", CPU_PERCENT_MAX),
        figure(f"{MASTERS_KILLED} masters die at once: 99th percentile to the notice", "s", "p99", ELECTION_P99_S_MAX),
        figure(f"{brokers}: memory", "MB", "memory", MEMORY_MB_MAX),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.controller", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="1,2", help="rows, separated by commas (1,2)")
    parser.add_argument("--kills", type=int, default=KILLS, help=f"kills of a master on each side ({KILLS})")
    parser.add_argument("--strict", action="store_true", help="exit with status 1 if a target is not met")
    arguments = parser.parse_args()
    rows = arguments.only.split(",")
    with tempfile.TemporaryDirectory(prefix="skyroute-bench-") as scratch:
        figures = measure_pauses(Path(scratch), arguments.kills) if "1" in rows else []
        figures += measure_fleet(Path(scratch)) if "2" in rows else []
    print(table(figures))
    return 1 if arguments.strict and any(figure.is_met is False for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
