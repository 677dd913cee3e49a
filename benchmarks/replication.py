"""How does a master with one slave compare, ours with Apache's, on this machine, on this disk, in this minute?

Run from the repository's root: `python -m benchmarks.replication`. It starts a master and a slave of each make as real
processes on loopback, puts the same load on both pairs in turns, and prints one table. `README.md` says how to read it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.broker import BATCH_SENDERS, BODY, CONFIG, QUEUES, Broker, Senders, name_servers, running
from benchmarks.comparison import SIDES, Bench, Quantity, Side, Taken, common_options, compare_and_report
from benchmarks.figures import Target
from benchmarks.load.programs import LoadError, Messages, build, load_broker
from benchmarks.machine import Bystanders, await_idle_children, resident_mb
from tests.support.apache import (
    SMALL_HEAP,
    ApacheBroker,
    NameServerProcess,
    fetch_jars,
)
from tests.support.our_broker import SkyrouteBroker
from tests.support.raw import RawConnection
from tests.support.waiting import wait_until

RUNTIME_INFO: Final = 28
MEMORY_MB: Final = 120.0
"""Resident memory of our slave."""
CAUGHT_UP_S: Final = 120.0
LONG_S: Final = 1_800.0

# A held pair must not lose its connection, so silence is allowed for long.
PAIR: Final = {**CONFIG, "haHousekeepingInterval": "3600000"}
ASYNC: Final = {**PAIR, "brokerRole": "ASYNC_MASTER"}
SYNC: Final = {**PAIR, "brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}
SHAPES: Final = (Senders("a", 64, 1, 1.0), Senders("b", 16, 16, 1.0))


@dataclass(slots=True)
class Replicated:
    """A master and its slave."""

    master: Broker
    slave: ApacheBroker

    @property
    def pids(self) -> tuple[int, int]:
        return self.master.pid, self.slave.pid

    def end_of_slave(self) -> int:
        """The end of the slave's log, as it says; -1 while it starts."""
        try:
            with RawConnection(self.slave.address) as line:
                answer = line.call(RUNTIME_INFO)
        except (OSError, EOFError):
            return -1
        return int(json.loads(answer.body)["table"]["commitLogMaxOffset"]) if answer.code == 0 else -1

    def await_caught_up(self, timeout_s: float = CAUGHT_UP_S) -> None:
        end = self.master.log_bytes()
        wait_until(lambda: self.end_of_slave() >= end, timeout_s=timeout_s, what="the slave has the whole log")

    def hold(self) -> None:
        self.await_caught_up()
        for pid in self.pids:
            os.kill(pid, signal.SIGSTOP)
            await_idle_children(pid)

    def wake(self) -> None:
        for pid in self.pids:
            os.kill(pid, signal.SIGCONT)


def _slave(side: Side, home: Path, server: NameServerProcess) -> ApacheBroker:
    kind = ApacheBroker if side == "apache" else SkyrouteBroker
    return kind(
        side, home, [server.address], broker_id=1, config=PAIR | {"brokerRole": "SLAVE"}, java_options=SMALL_HEAP
    )


@contextmanager
def replicated(
    bench: Bench, side: Side, server: NameServerProcess, config: Mapping[str, str], topic: str
) -> Iterator[Replicated]:
    """A master with its slave, which follows."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{side}-", dir=bench.scratch)))
        # The first message is accepted before there is a slave, whatever the master waits for.
        master = stack.enter_context(running(bench, side, server, config=config, home=home / "master"))
        slave = _slave(side, home / "slave", server)
        stack.callback(slave.kill)
        slave.start()
        pair = Replicated(master, slave)
        pair.await_caught_up()
        master.create_topic(topic)
        yield pair


def _describe(done: Messages) -> str:
    return f"{done.per_s:,.0f} a second, p50 {done.p50_us / 1000:.2f} ms, p99 {done.p99_us / 1000:.2f} ms"


def _send(pair: Replicated, topic: str, senders: Senders, seconds: float) -> Messages:
    return load_broker(pair.master.port, "send", topic, QUEUES, seconds, senders.connections, senders.depth, BODY)


def compare_sends(
    bench: Bench, servers: Mapping[Side, NameServerProcess], row: str, config: Mapping[str, str], note: str
) -> None:
    """How many sends a second does a master with one slave accept?"""
    topic = "Sends"
    with ExitStack() as stack:
        pairs: dict[Side, Replicated] = {}
        for side in SIDES:
            pair = pairs[side] = stack.enter_context(replicated(bench, side, servers[side], config, topic))
            seconds = bench.warm_up_s if side == "apache" else 1.0
            bench.say(f"warming up the pair of {side} for {seconds:g} s")
            for senders in SHAPES:
                with suppress(LoadError):  # a JVM that has compiled nothing yet refuses much of what it is sent
                    _send(pair, topic, senders, seconds / len(SHAPES))
            pair.hold()
        pids = [pid for pair in pairs.values() for pid in pair.pids]
        for senders in SHAPES:

            def measure(side: Side, senders: Senders = senders) -> Taken:
                pair = pairs[side]
                pair.wake()
                pair.await_caught_up()
                with Bystanders(pids) as bystanders:
                    done = _send(pair, topic, senders, bench.seconds)
                pair.hold()
                return Taken((done.per_s, done.p99_us / 1000), _describe(done), bystanders.share)

            shape = f"{senders.connections} x {senders.depth}"
            bench.compare(
                row + senders.row,
                measure,
                Quantity(f"sends, {note}, {shape}", "a second", (Target("ratio at least", senders.rate),)),
                Quantity("  99th percentile", "ms"),
            )


def compare_catch_up(bench: Bench, servers: Mapping[Side, NameServerProcess], gigabytes: float) -> None:
    """How fast does a slave that was away copy what it lacks, and what does it weigh then?"""
    topic, missing = "Missing", int(gigabytes * 1e9)
    rounds = itertools.count()

    def measure(side: Side) -> Taken:
        with replicated(bench, side, servers[side], ASYNC, topic) as pair:
            pair.master.fill(topic, 1_000, BODY)
            pair.await_caught_up()
            pair.slave.stop()
            start = pair.master.log_bytes()
            more = f"More-{next(rounds)}"
            pair.master.create_topic(more)
            load_broker(pair.master.port, "fill", more, QUEUES, missing // BODY, *BATCH_SENDERS, BODY, 100)
            end = pair.master.log_bytes()
            with Bystanders(()) as bystanders:
                pair.slave.spawn()
                # From the first new byte: how soon a slave connects is not how fast it copies.
                wait_until(lambda: pair.end_of_slave() > start, timeout_s=CAUGHT_UP_S, what="the slave copies")
                began, first = time.monotonic(), pair.end_of_slave()
                if first >= end:
                    raise LoadError(f"the slave had {gigabytes:g} GB before it could be watched: set more --gigabytes")
                wait_until(lambda: pair.end_of_slave() >= end, timeout_s=LONG_S, what="the slave has everything")
                seconds = max(time.monotonic() - began, 1e-3)
            memory_mb = resident_mb(pair.slave.pid)
        mb_per_s = (end - first) / 1e6 / seconds
        words = f"{(end - first) / 1e6:,.0f} MB at {mb_per_s:,.0f} MB/s, slave {memory_mb:.0f} MB"
        return Taken((mb_per_s, memory_mb), words, bystanders.share)

    bench.compare(
        "3",
        measure,
        Quantity(f"catch-up of {gigabytes:g} GB", "MB/s", (Target("ratio at least", 1.0),)),
        Quantity("  resident memory of the slave", "MB", (Target("ours at most", MEMORY_MB),)),
    )


ROWS: Final = ("1", "2", "3")


def _run(bench: Bench, gigabytes: float) -> None:
    fetch_jars()
    build("brload")
    with name_servers(bench) as servers:
        if bench.wants("1"):
            compare_sends(bench, servers, "1", ASYNC, "ASYNC_MASTER")
        if bench.wants("2"):
            compare_sends(bench, servers, "2", SYNC, "SYNC_MASTER, inSyncReplicas=2")
        if bench.wants("3"):
            compare_catch_up(bench, servers, gigabytes)


def _arguments() -> argparse.Namespace:
    parser = common_options("replication", __doc__, ROWS, seconds=6.0, warm_up_s=30.0)
    parser.add_argument("--gigabytes", type=float, default=5.0, help="that a slave has to catch up (5)")
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    title = f"master and slave of Apache's 5.5.0 and of ours, {QUEUES} queues, bodies of {BODY} bytes"
    return compare_and_report(arguments, partial(_run, gigabytes=arguments.gigabytes), title, start=Bench)


if __name__ == "__main__":
    sys.exit(main())
