"""Compares the Spark source with Spark's Kafka source, and measures jobs over a journal.

Run from the repository's root: `python -m benchmarks.pipeline`. A Kafka broker and ours run as real processes beside
two Spark sessions, one for each. The same rows go through both in turns. `README.md` explains the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.figures import Figure, Target, table
from benchmarks.load.kafka import SPARK, KafkaBroker, source_jars, spark_python
from benchmarks.load.programs import load_broker
from benchmarks.memory import write_journal
from skyroute.blocking import Admin
from skyroute.nameserver.journal.recorder import JournalLimits
from skyroute.pipeline.jvm import provide_java
from tests.support.apache import PeerFailedError, PeerUnavailableError, SkyrouteNameServer
from tests.support.our_broker import SkyrouteBroker

ROOT: Final = Path(__file__).parents[1]
QUEUES: Final = 8
SIZES: Final = {"a": (2_000_000, 100), "b": (500_000, 1024)}
"""Number of messages and bytes of each, by the letter in the names of figures."""
FEW_ROWS: Final = 80
BATCH_TOPIC: Final = "Whole"
TOPICS: Final = ("Written", BATCH_TOPIC, "Few", *(f"Bodies-{size}" for _, size in SIZES.values()))
FOUR_COLUMNS: Final = "topic,queue_id,queue_offset,body"
EVENTS: Final = (500_000, 1_000_000, 5_000_000)
JOURNAL_BYTES_MAX: Final = 16 << 30

TO_PARQUET: Final = 1.2
"""The ratio to Kafka's source that reads and streams to Parquet must reach."""

TUNED: Final = {
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
}
"""Options that make Spark's Kafka source several times faster than its defaults."""

RECORDED: Final = {
    **{"1a": 389_000.0, "1b": 138_000.0, "2a": 310_000.0, "2b": 92_000.0, "3a": 306_000.0, "3b": 82_000.0},
    **{"4a": 599_000.0, "4b": 108_000.0, "5": 2.4},
}
"""Recorded figures of Spark's Kafka source on two cores (rows/s; row 5: s), shown if Kafka is not available."""

RECORDED_KAFKA: Final = "Kafka, recorded"
KAFKA_TUNED: Final = "Kafka tuned"
NO_IO: Final = "a Python source without I/O"
SAME_COLUMNS: Final = "the same with our eight columns"
OF_NO_IO: Final = {"a": 0.6, "b": 0.8}
"""The ratio to a Python source without I/O that a read must reach."""
HISTORY_S_MAX: Final = 90.0
"""Longest time of the route history over 5 M events."""

Options = dict[str, str]
Sides = dict[str, Callable[[], float]]
"""The measurements of a figure, by side; they run in turns."""


class Driver:
    """A process with a Spark session that runs one command at a time."""

    def __init__(self, python: Path, source: str, scratch: Path, jars: Sequence[Path] = ()) -> None:
        arguments = ["--source", source, "--scratch", str(scratch), "--jars", ",".join(map(str, jars))]
        self.options: Options = {}
        """Options of every read and write."""
        self._log = (scratch.parent / f"{source}.log").open("wb")
        self._process = subprocess.Popen(
            [str(python), str(ROOT / "benchmarks" / "load" / "spark_driver.py"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={
                **os.environ,
                "PYSPARK_PYTHON": str(python),
                "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
            },
        )
        self.version = str(self._result()["version"])

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def time(self, command: str, options: Mapping[str, str] | None = None, **arguments: object) -> float:
        """Run a command and return its seconds."""
        return float(self.run(command, options, **arguments)["seconds"])

    def run(self, command: str, options: Mapping[str, str] | None = None, **arguments: object) -> dict[str, Any]:
        """Run a command and return its seconds and value."""
        assert self._process.stdin is not None
        if options is not None:
            arguments["options"] = {**self.options, **options}
        self._process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._result()

    def _result(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerFailedError(f"the Spark session ended:\n{Path(self._log.name).read_text()[-4000:]}")
        result: dict[str, Any] = json.loads(line)
        return result

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            assert pipe is not None
            pipe.close()


@dataclass(slots=True)
class Bench:
    """One run of the benchmark, with the figures so far."""

    rounds: int
    only: frozenset[str]
    scratch: Path
    ours: Driver
    our_port: int
    kafka: Driver | None
    figures: list[Figure] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)
    _outputs: int = 0

    def log(self, line: str) -> None:
        print(f"[{time.monotonic() - self._began:4.0f} s] {line}", flush=True)

    def output(self) -> str:
        """Return a new path for output."""
        self._outputs += 1
        return str(self.scratch / f"output-{self._outputs}")

    def compare(
        self, row: str, what: str, unit: str, sides: Sides, *targets: Target, others: Mapping[str, Target] | None = None
    ) -> None:
        """Measure all sides in each round, after a warm-up round; the order alternates.

        The last side is compared with each of the others. `targets` apply to the comparison with the first, and
        `others` to those with other sides.
        """
        values: dict[str, list[float]] = {side: [] for side in sides}
        for number in range(self.rounds + 1):
            for side in list(sides)[:: 1 if number % 2 else -1]:
                value = sides[side]()
                if number:
                    values[side].append(value)
                self.log(f"row {row} {'round ' + str(number) if number else 'warm-up'} {side}: {value:,.2f} {unit}")
        *compared, last = sides
        for at, other in enumerate(compared):
            note = " (theirs: recorded)" if other == RECORDED_KAFKA else ""
            label = f"{what}{note}" if at == 0 else f"  against {other}"
            mine, theirs = tuple(values[last]), tuple(values[other])
            wanted = (others or {}).get(other)
            hoped = targets if at == 0 else () if wanted is None else (wanted,)
            self.figures.append(Figure(row, label, unit, theirs, mine, hoped))

    def with_kafka(self, row: str, work: Callable[[Driver], float], ours: Callable[[], float]) -> Sides:
        """Return Kafka's side of a figure, measured or recorded, and ours."""
        if (kafka := self.kafka) is None:
            return {RECORDED_KAFKA: lambda: RECORDED[row], "ours": ours}
        return {"Kafka": lambda: work(kafka), "ours": ours}


# ------------------------------------------------------------------------------------------------- rows 1 to 3: reading


def fill(bench: Bench, letter: str) -> None:
    """Write the messages that are read to both brokers."""
    rows, size = SIZES[letter]
    topic = _topic(letter)
    load_broker(bench.our_port, "fill", topic, QUEUES, rows, 8, 1, size, 100)
    if bench.kafka is not None and bench.only & {f"{row}{letter}" for row in "123"}:
        bench.kafka.time("write", {"topic": topic}, rows=rows, size=size, key="key")  # ours have keys, too
    bench.log(f"wrote {rows:,} rows of {size} bytes to {topic}")


def _topic(letter: str) -> str:
    return f"Bodies-{SIZES[letter][1]}"


def measure_reads(bench: Bench, letter: str) -> None:
    """Rows 1a and 1b: read all messages and sum the lengths of the bodies."""
    rows, size = SIZES[letter]

    def read(driver: Driver, options: Options) -> float:
        result = driver.run("read", options)
        if result["value"] != rows * size:
            raise PeerFailedError(f"read {result['value']:,} bytes (expected {rows * size:,})")
        return rows / float(result["seconds"])

    theirs, topic = _subscribed(letter), {"topic": _topic(letter)}
    sides = bench.with_kafka(f"1{letter}", lambda kafka: read(kafka, theirs), lambda: read(bench.ours, topic))
    ours = sides.pop("ours")
    if (kafka := bench.kafka) is not None:
        sides[KAFKA_TUNED] = lambda: read(kafka, {**theirs, **TUNED})
    for side, columns in ((NO_IO, "body"), (SAME_COLUMNS, "all")):
        sides[side] = partial(
            lambda chosen: rows / bench.ours.time("limit", rows=rows, size=size, columns=chosen), columns
        )
    sides["ours"] = ours
    others = {KAFKA_TUNED: Target("ratio at least", 1.0), NO_IO: Target("ratio at least", OF_NO_IO[letter])}
    what, target = f"batch read, {_amount(letter)}", Target("ratio at least", 1.0)
    bench.compare(f"1{letter}", what, "rows/s", sides, target, others=others)


def measure_parquet(bench: Bench, letter: str) -> None:
    """Rows 2a and 2b: read all messages and write them as Parquet."""
    _compare_parquet(bench, f"2{letter}", "batch read to Parquet", "read_to_parquet", letter)


def measure_streams(bench: Bench, letter: str) -> None:
    """Rows 3a and 3b: stream all messages to Parquet."""
    _compare_parquet(bench, f"3{letter}", "stream, AvailableNow to Parquet", "stream_to_parquet", letter)


def _compare_parquet(bench: Bench, row: str, what: str, command: str, letter: str) -> None:
    rows = SIZES[letter][0]
    ours = {"topic": _topic(letter), "startingOffsets": "earliest"}
    sides = bench.with_kafka(
        row,
        lambda kafka: rows / kafka.time(command, _subscribed(letter), out=bench.output()),
        lambda: rows / bench.ours.time(command, ours, out=bench.output()),
    )
    bench.compare(row, f"{what}, {_amount(letter)}", "rows/s", sides, Target("ratio at least", TO_PARQUET))


def _subscribed(letter: str) -> Options:
    return {"subscribe": _topic(letter), "startingOffsets": "earliest"}


def _amount(letter: str) -> str:
    rows, size = SIZES[letter]
    return f"{rows / 1e6:g} M x {size} B"


# ------------------------------------------------------------------------------------------------ ----- rows 4 to 7


def measure_writes(bench: Bench, letter: str) -> None:
    """Rows 4a and 4b: write rows, to an ordinary topic and to a batch topic."""
    rows, size = SIZES[letter]

    def write(driver: Driver, topic: str) -> float:
        return rows / driver.time("write", {"topic": topic}, rows=rows, size=size)

    for what, topic in (("an ordinary topic", "Written"), ("a batch topic", BATCH_TOPIC)):
        sides = bench.with_kafka(f"4{letter}", lambda kafka: write(kafka, "Written"), partial(write, bench.ours, topic))
        label, target = f"batch write to {what}, {_amount(letter)}", Target("ratio at least", 1.0)
        bench.compare(f"4{letter}", label, "rows/s", sides, target)


def measure_fixed_cost(bench: Bench) -> None:
    """Row 5: read few rows."""
    load_broker(bench.our_port, "fill", "Few", QUEUES, FEW_ROWS, 1, 1, 100, FEW_ROWS // QUEUES)
    if bench.kafka is not None:
        bench.kafka.time("write", {"topic": "Few"}, rows=FEW_ROWS, size=100)
    theirs = {"subscribe": "Few", "startingOffsets": "earliest"}
    sides = bench.with_kafka(
        "5", lambda kafka: kafka.time("read", theirs), lambda: bench.ours.time("read", {"topic": "Few"})
    )
    what = f"fixed cost: read {FEW_ROWS} rows of {QUEUES} queues"
    bench.compare("5", what, "s", sides, Target("ratio at most", 0.6))


def measure_chosen_columns(bench: Bench) -> None:
    """Row 6: the gain from reading only some columns."""
    rows = SIZES["a"][0]
    options = {"topic": _topic("a"), "columns": "*"}
    sides: Sides = {
        "all columns": lambda: rows / bench.ours.time("read", options),
        "four columns": lambda: rows / bench.ours.time("read", {**options, "columns": FOUR_COLUMNS}),
    }
    what = f"columns {FOUR_COLUMNS}, {_amount('a')}, against all"
    bench.compare("6", what, "rows/s", sides, Target("ratio at least", 1.3))


def measure_history(bench: Bench) -> None:
    """Row 7: whether the time of a job grows linearly with the journal."""
    rates: list[float] = []
    for events in EVENTS:
        folder = bench.scratch / f"journal-{events}"
        write_journal(folder, events, JournalLimits(total_bytes=JOURNAL_BYTES_MAX))
        if not rates:
            bench.ours.time("route_history", journal=str(folder))  # warm-up of the JVM
        took = [bench.ours.time("route_history", journal=str(folder)) for _ in range(max(1, bench.rounds - 1))]
        bench.log(f"row 7: {events:,} events in {', '.join(f'{each:.1f}' for each in took)} s")
        rates.append(events / median(took))
        targets = (Target("ours at most", HISTORY_S_MAX),) if events == EVENTS[-1] else ()
        bench.figures.append(
            Figure("7", f"route history over {events / 1e6:g} M events", "s", (), tuple(took), targets)
        )
    what = "  events a second at 5 M, against 1 M"
    bench.figures.append(Figure("7", what, "events/s", (rates[1],), (rates[2],), (Target("ratio at least", 0.7),)))


ROWS: Final = ("1a", "1b", "2a", "2b", "3a", "3b", "4a", "4b", "5", "6", "7")


def _run(bench: Bench) -> None:
    for letter in SIZES:
        if bench.only & ({f"{row}{letter}" for row in "123"} | ({"6"} if letter == "a" else set())):
            fill(bench, letter)
        for row, measure in (
            ("1", measure_reads),
            ("2", measure_parquet),
            ("3", measure_streams),
            ("4", measure_writes),
        ):
            if f"{row}{letter}" in bench.only:
                measure(bench, letter)
    for row, measure_row in (
        ("5", measure_fixed_cost),
        ("6", measure_chosen_columns),
        ("7", measure_history),
    ):
        if row in bench.only:
            measure_row(bench)


# -------------------------------------------------------------------------------------------------------------- main


@contextmanager
def started(
    only: frozenset[str], rounds: int, *, with_kafka: bool, newest: bool = False, servers: str = sys.executable
) -> Iterator[Bench]:
    """Start both brokers and both Spark sessions.

    Our session has the Spark of Kafka's source, or the newest that we support. `servers` is the Python of our broker.
    """
    provide_java()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skyroute-bench-")))
        kafka: Driver | None = None
        python = Path(sys.executable)
        if with_kafka and only - {"6", "7"}:
            try:
                python, jars = spark_python(), source_jars()
                broker = stack.enter_context(KafkaBroker(scratch / "kafka"))
            except PeerUnavailableError as error:
                print(f"Kafka is not available, using recorded figures: {error}", file=sys.stderr)
            else:
                for topic in TOPICS:
                    broker.create_topic(topic, QUEUES)
                kafka = Driver(python, "kafka", _folder(scratch / "spark-kafka"), jars)
                stack.callback(kafka.close)
                kafka.options = {"kafka.bootstrap.servers": broker.address}
        server = stack.enter_context(SkyrouteNameServer("name server", scratch / "name-server"))
        # Apache's default size of a commit log file: with the small files of tests, creating files dominates.
        config = {"mappedFileSizeCommitLog": str(1 << 30)}
        made = SkyrouteBroker("ours", scratch / "broker", [server.address], config=config)
        made.python = servers
        our_broker = stack.enter_context(made)
        with Admin(server.address) as admin:
            for topic in TOPICS:
                attributes = {"queue.type": "BatchCQ"} if topic == BATCH_TOPIC else None
                admin.create_topic(topic, read_queues=QUEUES, write_queues=QUEUES, attributes=attributes)
        ours = Driver(Path(sys.executable) if newest else python, "rocketmq", _folder(scratch / "spark-ours"))
        stack.callback(ours.close)
        ours.options = {"nameServer": server.address}
        yield Bench(rounds, only, scratch, ours, our_broker.port, kafka)


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def _rows(text: str) -> frozenset[str]:
    """Return row names; `1` means 1a and 1b."""
    wanted = [part.strip() for part in text.split(",")]
    if unknown := [part for part in wanted if not any(row.startswith(part) for row in ROWS)]:
        raise argparse.ArgumentTypeError(f"unknown rows {', '.join(unknown)} (expected some of {', '.join(ROWS)})")
    return frozenset(row for row in ROWS if row.startswith(tuple(wanted)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each figure, after a warm-up (3)")
    parser.add_argument(
        "--only", type=_rows, default=frozenset(ROWS), metavar="ROWS", help="rows to measure, such as 1,3a,5"
    )
    parser.add_argument("--without-kafka", action="store_true", help="measure ours alone")
    parser.add_argument(
        "--newest", action="store_true", help=f"run ours on the newest Spark, not on {SPARK} as Kafka's"
    )
    parser.add_argument(
        "--servers",
        default=sys.executable,
        metavar="PYTHON",
        help="the Python that runs our broker, such as a compiled one",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    parser.add_argument("--strict", action="store_true", help="exit with status 1 if a target is not met")
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    try:
        with started(
            arguments.only,
            arguments.rounds,
            with_kafka=not arguments.without_kafka,
            newest=arguments.newest,
            servers=arguments.servers,
        ) as bench:
            versions = f"Spark {bench.ours.version} with ours"
            if bench.kafka is not None:
                versions += f", Spark {SPARK} with its Kafka source"
            _run(bench)
    except (PeerFailedError, PeerUnavailableError, TimeoutError) as error:
        print(f"benchmark stopped: {error}", file=sys.stderr)
        return 2
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"\n{versions}; local[2], {QUEUES} queues or partitions, brokers on the same {machine}")
    print(f"medians of {bench.rounds} rounds; ratio = ours / theirs, round by round\n")
    print(table(sorted(bench.figures, key=lambda figure: figure.row), ("theirs", "ours")))
    if arguments.json is not None:
        report = {"machine": machine, "versions": versions, "rounds": bench.rounds}
        arguments.json.write_text(
            json.dumps({**report, "figures": [figure.as_json() for figure in bench.figures]}, indent=2) + "\n"
        )
    missed = [figure for figure in bench.figures if figure.is_met is False]
    return 1 if arguments.strict and missed else 0


if __name__ == "__main__":
    sys.exit(main())
