"""How does our client compare with Apache's own, on this machine, in this minute?

Run from the repository's root: `python -m benchmarks.client`. It starts one Apache name server and one Apache broker,
lets Apache's benchmark programs and our client work on them in turns, and prints one table. `README.md` says how to
read it.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.comparison import SIDES, Bench, Quantity, Side, Taken, common_options, compare_and_report
from benchmarks.figures import Figure, Target
from benchmarks.machine import Bystanders, resident_mb
from tests.support.apache import (
    LARGE_HEAP,
    ApacheBroker,
    ApacheNameServer,
    PeerFailedError,
    fetch_jars,
    java,
)
from tests.support.raw import RawConnection
from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).parents[1]
TOPIC: Final = "BenchmarkMessages"
"""Not Apache's own name for it, which every broker has already, with a thousand queues."""
QUEUES: Final = 4
SIZE: Final = 1024
IN_FLIGHT: Final = 16
SETTLE_S: Final = 4.0
"""From waking a sender to measuring it: what it had in flight when it was stopped may have timed out meanwhile."""
BACKLOG: Final = 1_000_000
"""Messages that are there to be consumed: enough to keep a warm JVM busy for some fifteen seconds."""
FILL_TIMEOUT_S: Final = 180.0
WINDOW: Final = 9
"""Seconds over which Apache's consumer takes its mean; ours is read in the same way."""
CREATE_TOPIC, MAX_OFFSET, BROKERS = 17, 30, 106

# As Apache's script starts its benchmarks, without the flags that JDK 17 no longer knows.
BENCHMARK_HEAP: Final = ("-server", "-Xms1g", "-Xmx1g", "-Xmn256m")

PYPI: Final = "rocketmq==0.4.4"


class Load:
    """A client under load: a process that goes on until it is killed, and can be held in between."""

    def __init__(self, home: Path, command: Sequence[str]) -> None:
        home.mkdir(parents=True)
        self.log = home / "output.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)}
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def check(self) -> None:
        """Raises PeerFailedError if it has ended."""
        if (status := self._process.poll()) is not None:
            raise PeerFailedError(f"{self._process.args!r:.200} ended with status {status}:\n{self.tail()}")

    def tail(self) -> str:
        return "\n".join(self.lines()[-10:])

    def lines(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()

    def counts(self) -> list[int]:
        """What it had done by each second, as our programs print it."""
        return [int(line.split()[1]) for line in self.lines() if re.fullmatch(r"[\d.]+ \d+ \d+", line)]

    def hold(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def wake(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Cluster:
    """One name server and one broker, and the clients that are put on them."""

    def __init__(self, scratch: Path, name_server: ApacheNameServer, broker: ApacheBroker) -> None:
        self.name_server, self.broker = name_server, broker
        self._scratch = scratch
        self._started = 0
        self._line = RawConnection(broker.address)
        with RawConnection(name_server.address) as line:
            wait_until(lambda: broker.address in line.call(BROKERS).text, timeout_s=40, what="the broker is registered")
        queues = {"readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES), "perm": "6"}
        other = {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        self._line.call(CREATE_TOPIC, {"topic": TOPIC, **queues, **other})

    def stored(self) -> int:
        """How many messages the topic holds, as the broker counts them."""
        replies = (self._line.call(MAX_OFFSET, {"topic": TOPIC, "queueId": str(number)}) for number in range(QUEUES))
        return sum(int(reply.fields["offset"]) for reply in replies)

    def apache(self, program: str, *arguments: str) -> Load:
        home = self._home()
        main = f"org.apache.rocketmq.example.benchmark.{program}"
        words = (main, "-n", self.name_server.address, "-t", TOPIC, "-ri", "1000", *arguments)
        return Load(home, java(fetch_jars(), home, *words, options=BENCHMARK_HEAP))

    def python(self, interpreter: str, program: str, do: str, *arguments: str) -> Load:
        path = str(ROOT / "benchmarks" / "load" / f"{program}.py")
        words = (path, do, "--name-servers", self.name_server.address, "--topic", TOPIC, *arguments)
        return Load(self._home(), [interpreter, *words])

    def sender(self, side: Side) -> Load:
        if side == "apache":
            return self.apache("Producer", "-s", str(SIZE), "-w", str(IN_FLIGHT))
        return self.python(sys.executable, "our_client", "send", "--size", str(SIZE), "--in-flight", str(IN_FLIGHT))

    def consumer(self, side: Side) -> Load:
        group = f"{side}-{self._started}"
        if side == "apache":
            return self.apache("Consumer", "-g", group, "-p", "false")
        return self.python(sys.executable, "our_client", "consume", "--group", group)

    def _home(self) -> Path:
        self._started += 1
        return self._scratch / f"client-{self._started}"


@contextmanager
def running_cluster(scratch: Path) -> Iterator[Cluster]:
    # Apache's own size of a commit-log file: with the tests' small ones, making files is a good part of the work.
    config = {"mappedFileSizeCommitLog": str(1 << 30)}
    with ApacheNameServer("name server", scratch / "ns") as name_server:
        servers = [name_server.address]
        with ApacheBroker("broker", scratch / "broker", servers, config=config, java_options=LARGE_HEAP) as broker:
            yield Cluster(scratch, name_server, broker)


# -------------------------------------------------------------------------------------------------------- rows 1, 2


def measure_sending(bench: Bench, cluster: Cluster) -> None:
    """How many messages a second, with sixteen on their way at any time?"""
    with ExitStack() as stack:
        senders: dict[Side, Load] = {}
        for side in SIDES:
            warm_up_s = bench.warm_up_s if side == "apache" else min(bench.warm_up_s, 5.0)
            bench.say(f"row 1: warming up the sender of {side} for {warm_up_s:g} s")
            senders[side] = cluster.sender(side)
            stack.callback(senders[side].kill)
            time.sleep(warm_up_s)
            senders[side].check()
            senders[side].hold()

        def measure(side: Side) -> Taken:
            sender = senders[side]
            sender.wake()
            time.sleep(SETTLE_S)
            with Bystanders((cluster.broker.pid, cluster.name_server.pid, sender.pid)) as bystanders:
                rate = _rate(cluster, bench.seconds)
            memory_mb = resident_mb(sender.pid)
            sender.check()
            sender.hold()
            return Taken((rate, memory_mb), f"{rate:,.0f} a second; {memory_mb:.0f} MB", bystanders.share)

        bench.compare(
            "1",
            measure,
            Quantity(
                f"messages of {SIZE} bytes sent, {IN_FLIGHT} in flight", "a second", (Target("ratio at least", 1.0),)
            ),
            Quantity("  resident memory", "MB", (Target("ratio at most", 0.25),)),
        )
        if bench.wants("2"):
            _fill(bench, cluster, senders)


def _fill(bench: Bench, cluster: Cluster, senders: dict[Side, Load]) -> None:
    """Let both go on until there is enough to consume."""
    bench.say(f"row 2: {cluster.stored():,} messages are there; {BACKLOG:,} are wanted")
    for sender in senders.values():
        sender.wake()
    wait_until(lambda: cluster.stored() >= BACKLOG, timeout_s=FILL_TIMEOUT_S, what="a backlog")


def _rate(cluster: Cluster, seconds: float) -> float:
    before, began = cluster.stored(), time.monotonic()
    time.sleep(seconds)
    after, ended = cluster.stored(), time.monotonic()
    return (after - before) / (ended - began)


def measure_consuming(bench: Bench, cluster: Cluster) -> None:
    """How fast is a backlog worked off? Each time by a new group, from the first message on."""
    backlog = cluster.stored()
    bench.say(f"row 2: a backlog of {backlog:,} messages")

    def measure(side: Side) -> Taken:
        consumer = cluster.consumer(side)
        try:
            with Bystanders((cluster.broker.pid, cluster.name_server.pid, consumer.pid)) as bystanders:
                memory_mb = _watch(consumer, backlog)
            rate = _best_rate(side, consumer)
        finally:
            consumer.kill()
        return Taken((rate, memory_mb), f"{rate:,.0f} a second; {memory_mb:.0f} MB", bystanders.share)

    bench.compare(
        "2",
        measure,
        Quantity("messages of a backlog consumed", "a second", (Target("ratio at least", 0.5),)),
        Quantity("  resident memory", "MB", (Target("ratio at most", 0.25),)),
    )


def _watch(consumer: Load, backlog: int) -> float:
    """Wait for a consumer to be done, or to have worked for long enough; gives its largest memory."""
    deadline, memory_mb = time.monotonic() + 30.0, 0.0
    while time.monotonic() < deadline:
        time.sleep(1.0)
        consumer.check()
        memory_mb = max(memory_mb, resident_mb(consumer.pid))
        if (counts := consumer.counts()) and counts[-1] >= backlog:
            break
        rates = _apache_rates(consumer)
        if rates and rates[-1] < max(rates) / 2:  # its backlog is used up
            break
    return memory_mb


def _best_rate(side: Side, consumer: Load) -> float:
    """The mean over the best nine seconds: a JVM is slow at first, and everybody is idle in the end."""
    if side == "apache":
        rates: list[float] = [float(rate) for rate in _apache_rates(consumer)]
    else:
        counts = [0, *consumer.counts()]
        width = min(WINDOW, len(counts) - 1)
        rates = [(late - early) / width for early, late in zip(counts, counts[width:], strict=False)]
    if not rates:
        raise PeerFailedError(f"the consumer of {side} said nothing:\n{consumer.tail()}")
    return max(rates)


def _apache_rates(consumer: Load) -> list[int]:
    return [int(found[1]) for line in consumer.lines() if (found := re.search(r"Consume TPS: (\d+)", line))]


# -------------------------------------------------------------------------------------------------- rows 3, 4: short


def measure_importing(bench: Bench) -> None:
    """How long until a script has our producer and consumer at hand, beyond the start of the interpreter?"""
    codes = ("pass", "import skyroute", "import skyroute; skyroute.Producer, skyroute.Consumer")
    took: dict[str, list[float]] = {code: [] for code in codes}
    environment = _as_installed(bench)
    for _ in range(11):
        for code, times in took.items():
            began = time.monotonic()
            subprocess.run([sys.executable, "-c", code], check=True, env=environment)
            times.append((time.monotonic() - began) * 1000)
    bare, package, whole = (median(times) for times in took.values())
    bench.say(
        f"row 3: the interpreter alone starts in {bare:.0f} ms, with skyroute {package:.0f}, with all {whole:.0f}"
    )
    limit = (Target("ours at most", 150),)
    bench.figures.append(Figure("3", "import skyroute", "ms", (), (package - bare,), limit))
    bench.figures.append(
        Figure("3", "… and its Producer and Consumer, asyncio included", "ms", (), (whole - bare,), limit)
    )


def _as_installed(bench: Bench) -> dict[str, str]:
    """The environment of a program whose packages were compiled when they were installed, as installers do it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(bench.scratch / "bytecode")
    code = "import skyroute.cli.admin.topic_commands, skyroute; skyroute.Producer, skyroute.Consumer"
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    return environment


def measure_admin(bench: Bench, cluster: Cluster) -> None:
    """How long does one command of an operator take?"""
    home = bench.scratch / "mqadmin"
    home.mkdir()
    words = ("topicList", "-n", cluster.name_server.address)
    commands: dict[Side, list[str]] = {
        "apache": java(fetch_jars(), home, "org.apache.rocketmq.tools.command.MQAdminStartup", *words, options=()),
        "ours": [sys.executable, "-m", "skyroute", "admin", *words],
    }

    environment = _as_installed(bench)

    def measure(side: Side) -> Taken:
        with Bystanders((cluster.broker.pid, cluster.name_server.pid)) as bystanders:
            began = time.monotonic()
            command = commands[side]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
            took_s = time.monotonic() - began
        if done.returncode != 0 or TOPIC not in done.stdout:
            raise PeerFailedError(f"{commands[side][-4:]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return Taken((took_s,), f"{took_s:.2f} s", bystanders.share)

    bench.compare("4", measure, Quantity("admin topicList, start to end", "s", (Target("ratio at most", 0.1),)))


# --------------------------------------------------------------------------------------------------- PyPI's rocketmq


def measure_pypi(bench: Bench, cluster: Cluster) -> list[str]:
    """The package that Python had before, once, in the same run: what it reached, or why it did not."""
    try:
        interpreter = _pypi_interpreter()
    except subprocess.CalledProcessError as error:
        return [f"PyPI's {PYPI} does not install here: {error.stderr[-300:].strip()}"]
    said: list[str] = []
    for do in ("send", "consume"):
        backlog = cluster.stored()
        load = cluster.python(interpreter, "pypi_client", do, "--group", f"pypi-{backlog}")
        try:
            if do == "send":
                time.sleep(SETTLE_S)
                rate = _rate(cluster, bench.seconds)
                memory_mb = resident_mb(load.pid)
                load.check()
            else:
                memory_mb = _watch(load, backlog)
                rate = _best_rate("ours", load)
            said.append(f"PyPI's {PYPI} {do}s {rate:,.0f} a second; {memory_mb:.0f} MB")
        except PeerFailedError as error:
            said.append(f"PyPI's {PYPI} does not {do} here: {error}")
        finally:
            load.kill()
        bench.say(said[-1])
    return said


def _pypi_interpreter() -> str:
    """The interpreter of a virtual environment with that package alone, made the first time."""
    home = ROOT / ".cache" / "pypi-rocketmq"
    interpreter = home / "bin" / "python"
    mark = home / ".ready"
    if not mark.exists():
        venv.create(home, clear=True, with_pip=True)
        command = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PYPI]
        subprocess.run(command, check=True, capture_output=True, text=True)
        mark.touch()
    return str(interpreter)


# -------------------------------------------------------------------------------------------------------------- main


def _run(bench: Bench) -> list[str]:
    fetch_jars()
    said: list[str] = []
    if bench.wants("3"):
        measure_importing(bench)
    if bench.wants("1", "2", "4", "pypi"):
        with running_cluster(bench.scratch) as cluster:
            if bench.wants("4"):
                measure_admin(bench, cluster)
            if bench.wants("1", "2"):
                measure_sending(bench, cluster)
            if bench.wants("2"):
                measure_consuming(bench, cluster)
            if bench.wants("pypi"):
                said = measure_pypi(bench, cluster)
    return said


ROWS: Final = ("1", "2", "3", "4", "pypi")


def _arguments() -> argparse.Namespace:
    parser = common_options("client", __doc__, ROWS, seconds=8.0, warm_up_s=30.0)
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    title = "Apache's Java client 5.5.0 and ours on one Apache broker of 5.5.0"
    return compare_and_report(arguments, _run, title, start=Bench)


if __name__ == "__main__":
    sys.exit(main())
