"""Is this tree as fast as an older commit?

Run from the repository's root: `python -m benchmarks.commits COMMIT [COMMIT ...]`. It runs name server, broker and
client of every commit and of this tree as real processes, puts the same load on them in turns, and prints one table per
commit. "Per processor second" is messages or routes divided by the processor time of the measured process: it varies
less than throughput on a machine with other work.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.figures import Figure, Target, table
from benchmarks.load.programs import Brokers, load_broker, read_routes
from benchmarks.machine import await_idle_children, cpu_s_of_all, resident_mb
from tests.support.apache import SkyrouteNameServer
from tests.support.our_broker import SkyrouteBroker
from tests.support.raw import RawConnection
from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).parents[1]
HERE: Final = "this tree"
QUEUES: Final = 8
BODY: Final = 1024
BATCH: Final = 100
BACKLOG: Final = 200_000
TOPICS: Final = 100
ALLOWED: Final = 0.97
"""The smallest ratio that counts as equally fast."""
MEMORY_ROW: Final = "routes, memory"
MEMORY_ALLOWED: Final = 1.03
"""The largest ratio that counts as equally large."""
CREATE_TOPIC, MAX_OFFSET, BROKERS = 17, 30, 106
CONFIG: Final = {"mappedFileSizeCommitLog": str(1 << 30)}

ROWS: Final = (
    "sends 1 x 1",
    "sends 64 x 1",
    "sends 16 x 16",
    "batches of 100",
    "pulls of 32",
    "pulls of 1,000",
    "routes 64 x 1",
    "routes 16 x 16",
    "routes 256 x 4",
    MEMORY_ROW,
    "client sends",
)


@dataclass(frozen=True, slots=True)
class Sample:
    """What one round gave: per second, and per second of processor time of the measured process."""

    per_s: float
    per_cpu_s: float


class Code:
    """The sources of one commit, or of this tree, and its running servers."""

    def __init__(self, name: str, sources: Path, scratch: Path) -> None:
        self.name = name
        self._sources = sources
        self._scratch = scratch / name.replace(" ", "-")

    @contextmanager
    def running(self) -> Iterator[Servers]:
        os.environ["PYTHONPATH"] = str(self._sources / "src")
        with SkyrouteNameServer("name-server", self._scratch / "ns") as name_server:
            broker = SkyrouteBroker("broker", self._scratch / "broker", [name_server.address], config=CONFIG)
            with broker:
                with RawConnection(name_server.address) as line:
                    wait_until(
                        lambda: broker.address in line.call(BROKERS).text, timeout_s=40, what="the broker is registered"
                    )
                yield Servers(self._sources, name_server, broker)


@dataclass(frozen=True, slots=True)
class Servers:
    """Name server and broker of one commit."""

    sources: Path
    name_server: SkyrouteNameServer
    broker: SkyrouteBroker

    def create_topic(self, topic: str) -> None:
        queues = {"readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES), "perm": "6"}
        other = {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        with RawConnection(self.broker.address) as line:
            line.call(CREATE_TOPIC, {"topic": topic, **queues, **other})

    def stored(self, topic: str) -> int:
        with RawConnection(self.broker.address) as line:
            replies = [line.call(MAX_OFFSET, {"topic": topic, "queueId": str(number)}) for number in range(QUEUES)]
        return sum(int(reply.fields["offset"]) for reply in replies)


Measurement = Callable[[Servers, float], Sample]


def _of(pid: int, load: Callable[[], tuple[float, float]]) -> Sample:
    """`load` returns how much per second, and for how many seconds."""
    before = cpu_s_of_all(pid)
    per_s, seconds = load()
    await_idle_children(pid)
    used_s = cpu_s_of_all(pid) - before
    return Sample(per_s, per_s * seconds / max(used_s, 0.01))


def _load_broker(what: str, topic: str, *words: int) -> Measurement:
    def measure(servers: Servers, seconds: float) -> Sample:
        def load() -> tuple[float, float]:
            done = load_broker(servers.broker.port, what, topic, QUEUES, seconds, *words)
            return done.per_s, done.seconds

        return _of(servers.broker.pid, load)

    return measure


def _read_routes(connections: int, depth: int) -> Measurement:
    def measure(servers: Servers, seconds: float) -> Sample:
        port = servers.name_server.port

        def load() -> tuple[float, float]:
            reads = read_routes(port, connections, depth, seconds=seconds, topics=("T", TOPICS))
            return reads.per_s, seconds

        with Brokers(port, clusters=1, brokers=2, topics=TOPICS) as brokers:  # not for long, since leases end
            brokers.register()
            return _of(servers.name_server.pid, load)

    return measure


def _memory(servers: Servers, _seconds: float) -> Sample:
    """MB of the name server, after the rows above."""
    found = resident_mb(servers.name_server.pid)
    return Sample(found, found)


def _client_sends(servers: Servers, seconds: float) -> Sample:
    """Sends of 1 KB by the client of that commit, 16 in flight, to the broker of that commit."""
    program = servers.sources / "benchmarks" / "load" / "our_client.py"
    words = ["send", "--name-servers", servers.name_server.address, "--topic", "Client", "--in-flight", "16"]
    environment = {**os.environ, "PYTHONPATH": f"{servers.sources / 'src'}:{servers.sources}"}
    with subprocess.Popen(
        [sys.executable, str(program), *words], stdout=subprocess.DEVNULL, env=environment
    ) as process:
        try:
            empty = servers.stored("Client")
            wait_until(lambda: servers.stored("Client") > empty + 1000, timeout_s=20, what="the client sends")
            before, used, began = servers.stored("Client"), cpu_s_of_all(process.pid), time.monotonic()
            time.sleep(seconds)  # the load runs by itself
            done = servers.stored("Client") - before
            return Sample(done / (time.monotonic() - began), done / (cpu_s_of_all(process.pid) - used))
        finally:
            process.kill()


MEASUREMENTS: Final[Mapping[str, Measurement]] = dict(
    zip(
        ROWS,
        (
            _load_broker("send", "Sends", 1, 1, BODY),
            _load_broker("send", "Sends", 64, 1, BODY),
            _load_broker("send", "Sends", 16, 16, BODY),
            _load_broker("batch", "Batches", 8, 1, BODY, BATCH),
            _load_broker("pull", "Backlog", 32),
            _load_broker("pull", "Backlog", 1000),
            _read_routes(64, 1),
            _read_routes(16, 16),
            _read_routes(256, 4),
            _memory,
            _client_sends,
        ),
        strict=True,
    )
)


def _sources_of(commit: str, folder: Path) -> Path:
    archive = subprocess.run(
        ["git", "archive", commit, "src", "benchmarks"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def _prepare(servers: Servers, rows: Sequence[str]) -> None:
    for topic in ("Sends", "Batches", "Client", "Backlog"):
        servers.create_topic(topic)
    if any(row.startswith("pulls") for row in rows):
        load_broker(servers.broker.port, "fill", "Backlog", QUEUES, BACKLOG, 8, 1, BODY, BATCH)
        wait_until(lambda: servers.stored("Backlog") >= BACKLOG, timeout_s=60, what="the backlog can be read")


def _measure(
    codes: Sequence[Code], rows: Sequence[str], rounds: int, seconds: float
) -> dict[str, dict[str, list[Sample]]]:
    samples: dict[str, dict[str, list[Sample]]] = {row: defaultdict(list) for row in rows}
    with ExitStack() as stack:
        servers = {code.name: stack.enter_context(code.running()) for code in codes}
        for each in servers.values():
            _prepare(each, rows)
        for row in rows:
            for turn in range(-1, rounds):  # the first one warms up
                for name in random.sample(list(servers), len(servers)):
                    sample = MEASUREMENTS[row](servers[name], seconds)
                    if turn >= 0:
                        samples[row][name].append(sample)
            for figure in (each for code in codes[:-1] for each in _figures({row: samples[row]}, code.name)):
                print(f"{row}, {figure.what}: {figure.ratio:.3f}", file=sys.stderr, flush=True)
    return samples


def _figures(samples: Mapping[str, Mapping[str, list[Sample]]], before: str) -> Iterator[Figure]:
    target = (Target("ratio at least", ALLOWED),)
    for row, of in samples.items():
        old, new = of[before], of[HERE]
        if row == MEMORY_ROW:
            most = (Target("ratio at most", MEMORY_ALLOWED),)
            yield Figure(row, "MB", "", tuple(s.per_s for s in old), tuple(s.per_s for s in new), most)
            continue
        yield Figure(row, "per second", "", tuple(s.per_s for s in old), tuple(s.per_s for s in new), target)
        yield Figure(
            "", "per processor second", "", tuple(s.per_cpu_s for s in old), tuple(s.per_cpu_s for s in new), target
        )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("commits", nargs="+", metavar="COMMIT")
    parser.add_argument("--only", help="rows whose names begin so, separated by commas, for example sends,routes")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0)
    return parser.parse_args()


def main() -> None:
    arguments = _arguments()
    starts = tuple((arguments.only or "").split(","))
    rows = [row for row in ROWS if row.startswith(starts)]
    with tempfile.TemporaryDirectory(prefix="commits-") as folder:
        scratch = Path(folder)
        codes = [Code(commit, _sources_of(commit, scratch / f"src-{commit}"), scratch) for commit in arguments.commits]
        codes.append(Code(HERE, ROOT, scratch))
        samples = _measure(codes, rows, arguments.rounds, arguments.seconds)
    for commit in arguments.commits:
        print(f"\n{table(_figures(samples, commit), (commit, HERE))}")


if __name__ == "__main__":
    main()
