"""How does our broker compare with Apache's, on this machine, on this disk, in this minute?

Run from the repository's root: `python -m benchmarks.broker`. It starts both brokers as real processes on loopback,
puts the same load on them in turns, and prints one table. `README.md` says how to read it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.comparison import SIDES, Bench, Quantity, Side, Taken, common_options, compare_and_report
from benchmarks.figures import Figure, Target
from benchmarks.load.programs import LoadError, Messages, build, load_broker
from benchmarks.machine import Bystanders, await_idle_children, private_mb, resident_mb
from tests.support.apache import (
    LARGE_HEAP,
    ApacheBroker,
    NameServerProcess,
    PeerFailedError,
    SkyrouteNameServer,
    fetch_jars,
)
from tests.support.our_broker import SkyrouteBroker
from tests.support.raw import RawConnection
from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).parents[1]
QUEUES: Final = 8
BODY: Final = 1024
BATCH: Final = 100
BATCH_SENDERS: Final = (8, 1)
"""Connections and depth, where whole batches are sent."""
BACKLOG: Final = 1_000_000
RATE: Final = 1000
"""Messages a second while latency is measured."""
LONG_LOG: Final = 5_000_000
SMALL_BODY: Final = 100
"""Bytes of a body in the row of restarts: what counts there is how many records there are."""
START_TIMEOUT_S: Final = 180.0
CREATE_TOPIC, RUNTIME_INFO, MAX_OFFSET, BROKERS = 17, 28, 30, 106
POP_BACKLOG: Final = 300_000
POP_CONNECTIONS: Final = 16

# Apache's own size of a commit-log file, for both: with the tests' small ones, making files is much of the work.
CONFIG: Final = {"mappedFileSizeCommitLog": str(1 << 30)}
SYNC: Final = {**CONFIG, "flushDiskType": "SYNC_FLUSH"}

Pair = Mapping[Side, "Broker"]


@dataclass(frozen=True, slots=True)
class Broker:
    """A running broker with a name server of its own, so that no route leads to the other."""

    process: subprocess.Popen[bytes]
    port: int
    name_server: NameServerProcess
    first_accepted_s: float
    """From just before its program was started to its first accepted message."""

    @property
    def pid(self) -> int:
        return self.process.pid

    def hold(self) -> None:
        """Have it take no part until `wake`, nor the process that writes its index, which may be a moment behind."""
        os.kill(self.pid, signal.SIGSTOP)
        await_idle_children(self.pid)

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def create_topic(self, topic: str) -> None:
        queues = {"readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES), "perm": "6"}
        other = {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        with RawConnection(f"127.0.0.1:{self.port}") as line:
            reply = line.call(CREATE_TOPIC, {"topic": topic, **queues, **other})
        if reply.code != 0:
            raise PeerFailedError(f"topic {topic} was not made: {reply}")

    def stored(self, topic: str) -> int:
        """How many messages a topic has had, as the broker says."""
        with RawConnection(f"127.0.0.1:{self.port}") as line:
            replies = [line.call(MAX_OFFSET, {"topic": topic, "queueId": str(number)}) for number in range(QUEUES)]
        return sum(int(reply.fields["offset"]) for reply in replies)

    def log_bytes(self) -> int:
        """The end of its log, as it says."""
        with RawConnection(f"127.0.0.1:{self.port}") as line:
            return int(json.loads(line.call(RUNTIME_INFO).body)["table"]["commitLogMaxOffset"])

    def pop(self, name: str, topic: str, seconds: float) -> dict[str, float]:
        """Pop and acknowledge the messages of a topic, for at most `seconds`."""
        program = str(ROOT / "benchmarks" / "load" / "pop_load.py")
        words = (self.port, name, topic, POP_BACKLOG, POP_CONNECTIONS, seconds)
        command = [sys.executable, program, *map(str, words)]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
        if said.returncode:
            raise LoadError(said.stderr[-2000:])
        done: dict[str, float] = json.loads(said.stdout)
        return done

    def fill(self, topic: str, count: int, body_bytes: int) -> Messages:
        """Send `count` messages in batches."""
        self.create_topic(topic)
        done = load_broker(self.port, "fill", topic, QUEUES, count, *BATCH_SENDERS, body_bytes, BATCH)
        # A broker may know a message's place in its queue a moment after it has accepted it.
        wait_until(lambda: self.stored(topic) >= count, timeout_s=120, what=f"{count:,} messages can be read")
        return done


@contextmanager
def running(
    bench: Bench, side: Side, name_server: NameServerProcess, *, config: Mapping[str, str] = CONFIG, home: Path
) -> Iterator[Broker]:
    """A broker on a folder that may hold messages already, from its first accepted message until it is killed."""
    peer: ApacheBroker
    if side == "apache":
        peer = ApacheBroker(side, home, [name_server.address], config=config, java_options=LARGE_HEAP)
    else:
        peer = SkyrouteBroker(side, home, [name_server.address], config=config)
    peer.prepare()
    command = peer.command()
    with peer.log.open("wb") as log:
        began = time.monotonic()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=home, env=peer.environment()
        )
    try:
        _await_accepted(peer, process, began + START_TIMEOUT_S)
        yield Broker(process, peer.port, name_server, time.monotonic() - began)
    except LoadError as error:
        raise LoadError(f"{error}\n{side} ended its log with:\n{peer.tail(5)}") from error
    finally:
        process.kill()
        process.wait()


def _await_accepted(peer: ApacheBroker, process: subprocess.Popen[bytes], deadline: float) -> None:
    """Knock until a message is accepted."""
    fields = {"a": "knock", "b": "Knock", "c": "TBW102", "d": "8", "e": "0", "f": "0", "g": "0", "h": "0", "i": ""}
    header = json.dumps(
        {"code": 310, "extFields": fields | {"j": "0", "k": "false", "m": "false"}, "flag": 0, "language": "JAVA"}
        | {"opaque": 1, "version": 475, "serializeTypeCurrentRPC": "JSON"}
    ).encode()
    body = b"knock"
    request = struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body
    said = b""
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise PeerFailedError(f"{peer.name} ended with status {process.returncode}:\n{peer.tail()}")
        try:
            with socket.create_connection(("127.0.0.1", peer.port), timeout=10) as connection:
                connection.sendall(request)
                said = connection.recv(4096)
                if b'"msgId"' in said:
                    return
        except OSError:
            time.sleep(0.001)
    raise PeerFailedError(f"{peer.name} accepted nothing within {START_TIMEOUT_S:g} s: {said!r}\n{peer.tail()}")


@contextmanager
def name_servers(bench: Bench) -> Iterator[Mapping[Side, NameServerProcess]]:
    """One for each side, both ours: they have next to nothing to do."""
    with ExitStack() as stack:
        homes = {side: Path(tempfile.mkdtemp(prefix=f"ns-{side}-", dir=bench.scratch)) for side in SIDES}
        yield {side: stack.enter_context(SkyrouteNameServer(side, home)) for side, home in homes.items()}


@contextmanager
def pair(bench: Bench, servers: Mapping[Side, NameServerProcess], config: Mapping[str, str] = CONFIG) -> Iterator[Pair]:
    """Both brokers, on fresh folders that are gone afterwards; each is held while the other works."""
    with ExitStack() as stack:
        brokers: dict[Side, Broker] = {}
        for side in SIDES:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{side}-", dir=bench.scratch)))
            brokers[side] = stack.enter_context(running(bench, side, servers[side], config=config, home=home))
        for broker in brokers.values():
            broker.hold()
        yield brokers


@contextmanager
def awake(brokers: Pair, side: Side) -> Iterator[Broker]:
    broker = brokers[side]
    broker.wake()
    try:
        yield broker
    finally:
        broker.hold()


# ------------------------------------------------------------------------------------------------- rows 1, 2: sending


@dataclass(frozen=True, slots=True)
class Senders:
    row: str
    connections: int
    depth: int
    rate: float
    """What is hoped of the messages a second, as a ratio."""


SENDERS: Final = (Senders("1a", 1, 1, 1.2), Senders("1b", 64, 1, 1.0), Senders("1c", 16, 16, 1.0))


def warm_up(bench: Bench, brokers: Pair, topic: str) -> None:
    """Load before the first round: the JVM compiles what it runs often, ours has no such need."""
    for side in SIDES:
        seconds = bench.warm_up_s if side == "apache" else 1.0
        bench.say(f"warming up the broker of {side} for {seconds:g} s")
        with awake(brokers, side) as broker:
            broker.create_topic(topic)
            for senders in SENDERS:
                with suppress(LoadError):  # a JVM that has compiled nothing yet refuses much of what it is sent
                    _send(broker, topic, senders, seconds / len(SENDERS))


def _send(broker: Broker, topic: str, senders: Senders, seconds: float) -> Messages:
    return load_broker(broker.port, "send", topic, QUEUES, seconds, senders.connections, senders.depth, BODY)


def compare_sends(bench: Bench, brokers: Pair, topic: str, senders: Senders, note: str = "") -> None:
    def measure(side: Side) -> Taken:
        with awake(brokers, side) as broker, Bystanders(each.pid for each in brokers.values()) as bystanders:
            done = _send(broker, topic, senders, bench.seconds)
        return Taken((done.per_s, done.p99_us / 1000), _describe(done), bystanders.share)

    shape = f"{senders.connections} x {senders.depth}"
    bench.compare(
        senders.row,
        measure,
        Quantity(f"sends{note}, {shape}", "a second", (Target("ratio at least", senders.rate),)),
        Quantity("  99th percentile", "ms", () if note else (Target("ratio at most", 1.0),)),
    )


def measure_batches(bench: Bench, brokers: Pair) -> None:
    """How many messages a second, when they come a hundred at a time?"""
    topic = "Batches"
    for side in SIDES:
        with awake(brokers, side) as broker:
            broker.create_topic(topic)
            with suppress(LoadError):
                load_broker(broker.port, "batch", topic, QUEUES, 3.0, *BATCH_SENDERS, BODY, BATCH)

    def measure(side: Side) -> Taken:
        with awake(brokers, side) as broker, Bystanders(each.pid for each in brokers.values()) as bystanders:
            done = load_broker(broker.port, "batch", topic, QUEUES, bench.seconds, *BATCH_SENDERS, BODY, BATCH)
        return Taken((done.per_s, done.p99_us / 1000), _describe(done), bystanders.share)

    bench.compare(
        "2",
        measure,
        Quantity(f"messages in batches of {BATCH}, 8 x 1", "a second", (Target("ratio at least", 1.0),)),
        Quantity("  99th percentile", "ms"),
    )


def _describe(done: Messages) -> str:
    return f"{done.per_s:,.0f} a second, p50 {done.p50_us / 1000:.2f} ms, p99 {done.p99_us / 1000:.2f} ms"


# ---------------------------------------------------------------------------------------------------- row 3: pulling


def measure_pulls(bench: Bench, brokers: Pair) -> None:
    """How fast is a backlog read, every queue by one consumer that asks again when it was answered?"""
    topic = "Backlog"
    for side in SIDES:
        with awake(brokers, side) as broker:
            done = broker.fill(topic, BACKLOG, BODY)
            bench.say(f"row 3: {side} took a backlog of {BACKLOG:,} in {done.seconds:.1f} s")
            load_broker(broker.port, "pull", topic, QUEUES, 4.0, 32)  # once through much of it: for the compiler
    for row, count, hoped in (("3a", 32, 1.0), ("3b", 1000, 2.0)):

        def measure(side: Side, count: int = count) -> Taken:
            with awake(brokers, side) as broker, Bystanders(each.pid for each in brokers.values()) as bystanders:
                done = load_broker(broker.port, "pull", topic, QUEUES, bench.seconds, count)
            words = f"{_describe(done)}, {done.messages / max(done.answers, 1):.0f} an answer"
            return Taken((done.per_s, done.p99_us / 1000), words, bystanders.share)

        bench.compare(
            row,
            measure,
            Quantity(f"messages pulled, {count} at a time", "a second", (Target("ratio at least", hoped),)),
            Quantity("  99th percentile of a pull", "ms"),
        )


# -------------------------------------------------------------------------------------------------------- row 8: POP


def measure_pops(bench: Bench, brokers: Pair) -> None:
    """How fast are messages popped and acknowledged, 32 at a time, and what does it add to the log?"""
    rounds = itertools.count(1)

    def measure(side: Side) -> Taken:
        topic = f"Pops-{next(rounds)}"
        with awake(brokers, side) as broker:
            broker.fill(topic, POP_BACKLOG, BODY)
            before = broker.log_bytes()
            with Bystanders(each.pid for each in brokers.values()) as bystanders:
                done = broker.pop(side, topic, bench.seconds)
            written = broker.log_bytes() - before
        per_s, p99_ms = done["messages"] / done["seconds"], done["p99_us"] / 1000
        bytes_each = written / max(done["messages"], 1)
        words = f"{per_s:,.0f} a second, p99 {p99_ms:.2f} ms, {bytes_each:.0f} bytes of log each"
        return Taken((per_s, p99_ms, bytes_each), words, bystanders.share)

    bench.compare(
        "8",
        measure,
        Quantity(
            "messages popped and acknowledged, 32 at a time, 16 x 1", "a second", (Target("ratio at least", 1.0),)
        ),
        Quantity("  99th percentile of a pop", "ms", (Target("ratio at most", 1.0),)),
        Quantity("  bytes of log per popped message", "bytes", (Target("ratio at most", 0.5),)),
    )


# ---------------------------------------------------------------------------------------------------- row 4: latency


def measure_latency(bench: Bench, brokers: Pair) -> None:
    """How old is a message when our push consumer handles it?"""
    rounds = itertools.count(1)

    def measure(side: Side) -> Taken:
        # A group that is new to a young topic begins with its first message, so each round has a topic of its own.
        topic = f"Latency-{next(rounds)}"
        with awake(brokers, side) as broker, ExitStack() as stack:
            broker.create_topic(topic)
            with RawConnection(broker.name_server.address) as line:
                address = f"127.0.0.1:{broker.port}"
                wait_until(lambda: address in line.call(BROKERS).text, timeout_s=60, what="the broker is registered")
            consumer = stack.enter_context(_stopwatch(broker, topic))
            with Bystanders((*(each.pid for each in brokers.values()), consumer.pid)) as bystanders:
                load_broker(broker.port, "pace", topic, QUEUES, bench.seconds + 1, RATE, BODY)
            said, _ = consumer.communicate(timeout=30)
            told = json.loads(said)
        if told["messages"] < bench.seconds * RATE:
            raise LoadError(f"only {told['messages']} messages were consumed")
        p50, p99 = told["p50_us"] / 1000, told["p99_us"] / 1000
        words = f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, at most {told['max_us'] / 1000:.1f} ms"
        return Taken((p99, p50), words, bystanders.share)

    bench.compare(
        "4",
        measure,
        Quantity(f"from send to handler at {RATE:,} a second, 99th percentile", "ms", (Target("ratio at most", 1.0),)),
        Quantity("  median", "ms"),
    )


@contextmanager
def _stopwatch(broker: Broker, topic: str) -> Iterator[subprocess.Popen[str]]:
    words = ["--name-servers", broker.name_server.address, "--topic", topic, "--group", f"latency-{time.time_ns()}"]
    command = [sys.executable, str(ROOT / "benchmarks" / "load" / "our_latency.py"), *words]
    command += ["--queues", str(QUEUES), "--skip", str(RATE)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise LoadError("the consumer that measures latency did not start")
            yield process
        finally:
            process.kill()


# ------------------------------------------------------------------------------------------------ rows 6, 7: starting


def measure_starts(bench: Bench, servers: Mapping[Side, NameServerProcess]) -> None:
    """How soon does a fresh broker accept a message, and what does it weigh then?"""

    def measure(side: Side) -> Taken:
        with tempfile.TemporaryDirectory(prefix=f"{side}-", dir=bench.scratch) as home:
            with Bystanders() as bystanders, running(bench, side, servers[side], home=Path(home)) as broker:
                memory_mb = resident_mb(broker.pid)
            words = f"first message after {broker.first_accepted_s:.3f} s; {memory_mb:.0f} MB"
            return Taken((broker.first_accepted_s, memory_mb), words, bystanders.share)

    bench.compare(
        "6",
        measure,
        Quantity("from start to the first accepted message", "s", (Target("ratio at most", 0.2),)),
        Quantity("  resident memory then", "MB", (Target("ours at most", 90),)),
    )
    weights: dict[Side, tuple[float, float]] = {}
    for side in SIDES:
        with (
            tempfile.TemporaryDirectory(prefix=f"{side}-", dir=bench.scratch) as home,
            running(bench, side, servers[side], home=Path(home)) as broker,
        ):
            broker.fill("Weight", BACKLOG, BODY)
            weights[side] = (resident_mb(broker.pid), private_mb(broker.pid))
        bench.say(
            "row 6: {} after {:,} messages: {:.0f} MB, {:.0f} of them its own".format(side, BACKLOG, *weights[side])
        )
    for at, (what, targets) in enumerate(
        {"  resident memory after 1 M messages": (Target("ours at most", 250),), "    without mapped files": ()}.items()
    ):
        bench.figures.append(Figure("6", what, "MB", (weights["apache"][at],), (weights["ours"][at],), targets))


def measure_restarts(bench: Bench, servers: Mapping[Side, NameServerProcess]) -> None:
    """How soon does a broker that was killed accept messages again, with a long log behind it?"""
    with tempfile.TemporaryDirectory(prefix="killed-", dir=bench.scratch) as folder:
        killed = {side: Path(folder) / side for side in SIDES}
        for side, home in killed.items():
            with running(bench, side, servers[side], home=home) as broker:
                done = broker.fill("Long", LONG_LOG, SMALL_BODY)
                bench.say(f"row 7: {side} took {LONG_LOG:,} messages in {done.seconds:.1f} s, and is killed")

        def measure(side: Side) -> Taken:
            home = Path(folder) / "again"
            subprocess.run(["cp", "-a", "--sparse=always", str(killed[side]), str(home)], check=True)
            try:
                with Bystanders() as bystanders, running(bench, side, servers[side], home=home) as broker:
                    if broker.stored("Long") != LONG_LOG:
                        raise LoadError(f"{side} has {broker.stored('Long'):,} of {LONG_LOG:,} messages")
                    memory_mb = resident_mb(broker.pid)
            finally:
                shutil.rmtree(home)
            words = f"first message after {broker.first_accepted_s:.3f} s; {memory_mb:.0f} MB"
            return Taken((broker.first_accepted_s,), words, bystanders.share)

        bench.compare(
            "7",
            measure,
            Quantity(
                f"restart after kill -9 with {LONG_LOG // 1_000_000} M messages of {SMALL_BODY} bytes",
                "s",
                (Target("ratio at most", 1.0),),
            ),
        )


# -------------------------------------------------------------------------------------------------------------- main


ROWS: Final = ("1a", "1b", "1c", "2", "3a", "3b", "4", "5", "6", "7", "8")


def _run(bench: Bench) -> None:
    fetch_jars()
    build("brload")
    with name_servers(bench) as servers:
        if bench.wants("6"):
            measure_starts(bench, servers)
        if bench.wants("1a", "1b", "1c", "2", "3a", "3b", "4", "8"):
            with pair(bench, servers) as brokers:
                warm_up(bench, brokers, "Sends")
                for senders in SENDERS:
                    if bench.wants(senders.row):
                        compare_sends(bench, brokers, "Sends", senders)
                if bench.wants("2"):
                    measure_batches(bench, brokers)
                if bench.wants("4"):
                    measure_latency(bench, brokers)
                if bench.wants("3a", "3b"):
                    measure_pulls(bench, brokers)
                if bench.wants("8"):
                    measure_pops(bench, brokers)
        if bench.wants("5"):
            with pair(bench, servers, SYNC) as brokers:
                warm_up(bench, brokers, "Safe")
                compare_sends(bench, brokers, "Safe", Senders("5", 64, 1, 1.0), " with SYNC_FLUSH")
        if bench.wants("7"):
            measure_restarts(bench, servers)


def _arguments() -> argparse.Namespace:
    parser = common_options("broker", __doc__, ROWS, seconds=6.0, warm_up_s=30.0)
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    title = f"Apache's broker 5.5.0 and ours, {QUEUES} queues, bodies of {BODY} bytes"
    return compare_and_report(arguments, _run, title, start=Bench)


if __name__ == "__main__":
    sys.exit(main())
