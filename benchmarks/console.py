"""Response times of the console: its start, its pages for a large cluster, and `skyroute --help`.

Run from the repository's root: `python -m benchmarks.console`. The cluster is real but idle: one name server, and 100
brokers in a few processes, each with the same 10,000 topics and 1,000 groups. Pages are requested over loopback after
the console has read the cluster, while it continues to poll. The figure is the time to the last byte. `README.md` says
how to read it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import httpx

from benchmarks.figures import Figure, Target, table
from skyroute.broker.broker import Broker
from skyroute.broker.config import BrokerConfig
from skyroute.remoting.loops import loop_factory
from tests.support.apache import free_port
from tests.support.process import server_process
from tests.support.waiting import wait_until

SKYROUTE: Final = (sys.executable, "-m", "skyroute")
START_S_MAX: Final = 1.0
PAGE_S_MAX: Final = 0.2
HELP_S_MAX: Final = 0.15
PROCESSES: Final = 4
GROUPS: Final = 1_000
READ_S_MAX: Final = 600.0
PAGES: Final = {
    "/": "overview",
    "/cluster": "brokers",
    "/topics": "first page of topics",
    "/topics?q=Topic-07&page=3": "topics found by a search",
    "/groups": "first page of groups",
}


def fill(folder: Path, topics: int) -> None:
    """Write the topics and groups that a broker reads at its start."""
    (folder / "config").mkdir(parents=True)
    queues = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicFilterType": "SINGLE_TAG"}
    names = [f"Topic-{number:05}" for number in range(topics)]
    table = {"topicConfigTable": {name: {"topicName": name, **queues} for name in names}}
    (folder / "config" / "topics.json").write_text(json.dumps(table))
    groups = {f"group-{number:04}": {"groupName": f"group-{number:04}"} for number in range(GROUPS)}
    (folder / "config" / "subscriptionGroup.json").write_text(json.dumps({"subscriptionGroupTable": groups}))


def run_brokers(root: Path, numbers: list[int], topics: int, name_server: str, parent: Connection) -> None:
    """Run some brokers until the other end of the pipe is closed."""

    async def serve() -> None:
        brokers = []
        for number in numbers:
            folder = root / f"broker-{number:03}"
            fill(folder, topics)
            config = BrokerConfig(
                broker_name=folder.name,
                bind_address="127.0.0.1",
                listen_port=0,
                name_server_list=name_server,
                store_path=str(folder),
                commit_log_file_bytes=1024 * 1024,
                consume_queue_file_bytes=20 * 1000,
            )
            brokers.append(Broker(config))
            await brokers[-1].start()
        parent.send("ready")
        await asyncio.to_thread(parent.poll, None)
        for broker in brokers:
            await broker.kill()

    logging.disable(logging.WARNING)  # a hundred brokers on one machine log late heartbeats
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve())


@contextmanager
def cluster(root: Path, brokers: int, topics: int) -> Iterator[str]:
    """Run a name server and its brokers; yield the name server's address."""
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        server = stack.enter_context(server_process(root / "ns"))
        pipes = []
        for first in range(PROCESSES):
            ours, theirs = spawn.Pipe()
            numbers = list(range(first, brokers, PROCESSES))
            process = spawn.Process(target=run_brokers, args=(root, numbers, topics, server.address, theirs))
            process.start()
            theirs.close()
            stack.callback(process.join)
            stack.callback(ours.close)
            pipes.append(ours)
        for pipe in pipes:
            pipe.recv()
        yield server.address


@contextmanager
def console(name_server: str, folder: Path) -> Iterator[tuple[httpx.Client, float]]:
    """Start a console; yield an HTTP client, and the time from the command to the first page."""
    port = free_port()
    arguments = ("console", "-n", name_server, "--port", str(port), "--data", str(folder))
    began = time.perf_counter()
    with (
        subprocess.Popen([*SKYROUTE, *arguments], stdout=subprocess.DEVNULL) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        try:

            def first_page() -> bool:
                try:
                    return client.get("/").status_code == 200
                except httpx.TransportError:
                    return False

            wait_until(first_page, "the console responds")
            yield client, time.perf_counter() - began
        finally:
            process.terminate()


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def figure(row: str, what: str, seconds: list[float], bound: float | None) -> Figure:
    targets = () if bound is None else (Target("ours at most", bound * 1000),)
    return Figure(row, what, "ms", (), tuple(1000 * each for each in seconds), targets)


def measure(root: Path, rounds: int, brokers: int, topics: int) -> Iterator[Figure]:
    helps = [
        timed(lambda: subprocess.run([*SKYROUTE, "--help"], stdout=subprocess.DEVNULL, check=True))
        for _ in range(rounds)
    ]
    yield figure("1", "skyroute --help", helps, HELP_S_MAX)
    with server_process(root / "alone") as server:
        starts = []
        for _ in range(rounds):
            with console(server.address, root / "console") as (_, took_s):
                starts.append(took_s)
    yield figure("2", "start of the console", starts, START_S_MAX)
    with cluster(root, brokers, topics) as address, console(address, root / "console") as (client, took_s):
        size = f"{brokers} brokers x {topics:,} topics"
        yield figure("3", f"start, {size}", [took_s], None)
        last = f"Topic-{topics - 1:05}"
        wait_until(
            lambda: last in client.get("/topics", params={"q": last}).text.partition("<table")[2],
            "all topics are listed",
            timeout_s=READ_S_MAX,
        )
        for number, (path, what) in enumerate(PAGES.items(), 4):
            answers = [timed(partial(client.get, path)) for _ in range(rounds * 4)]
            yield figure(str(number), f"{what}, {size}", answers, PAGE_S_MAX)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.console", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--rounds", type=int, default=7, help="rounds of each figure; pages are requested four times as often (7)"
    )
    parser.add_argument("--brokers", type=int, default=100, help="number of brokers (100)")
    parser.add_argument("--topics", type=int, default=10_000, help="topics of each broker (10000)")
    parser.add_argument("--strict", action="store_true", help="exit with status 1 if a target is not met")
    arguments = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory(prefix="skyroute-bench-") as scratch:
        for found in measure(Path(scratch), arguments.rounds, arguments.brokers, arguments.topics):
            figures.append(found)
            print(f"{found.what}: {', '.join(f'{value:.0f}' for value in found.ours)} ms", file=sys.stderr)
    print(table(figures, ("", "ours")))
    return 1 if arguments.strict and any(found.is_met is False for found in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
