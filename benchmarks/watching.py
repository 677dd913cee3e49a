"""How soon do watchers of routes hear of a change, and what do they cost? Rows 5 and 6 of `benchmarks.memory`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import quantiles

from benchmarks.machine import resident_mb
from tests.support.raw import DataVersion, RawConnection, Registration, Topic

CHANGES = 10
FIRST_QUEUES = 100
TOPICS = 100


class Crowd:
    """Watchers in a process of their own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, queues: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{queues}\n")
        self._process.stdin.flush()

    def hear(self) -> list[float]:
        assert self._process.stdout is not None
        times: list[float] = json.loads(self._process.stdout.readline())
        return times


@contextmanager
def crowd(address: str, count: int, kind: str, topics: list[str]) -> Iterator[Crowd]:
    """Let `count` sessions or connections watch topics, distributed evenly."""
    command = [sys.executable, "-m", "benchmarks.load.watchers", address, str(count), kind, ",".join(topics)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield Crowd(process)
        finally:
            process.stdin.close()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def names() -> list[str]:
    return [f"topic-{number:03}" for number in range(TOPICS)]


def registration(edition: int, changed: set[str]) -> Registration:
    """A broker whose changed topics have one queue per edition."""
    topics = [Topic(name, read=FIRST_QUEUES + edition if name in changed else 8) for name in names()]
    return Registration("c", "broker-a", "10.0.0.1:10911", topics, data_version=DataVersion(edition))


def latencies_ms(address: str, *, sessions: int, lines: int) -> list[float]:
    """Have all watch one topic, change it again and again, and return how long each session took to hear of it."""
    found: list[float] = []
    watched = names()[0]
    with RawConnection(address, timeout_s=60.0) as line, ExitStack() as stack:
        line.call(registration(1, {watched}).request)
        of_sessions = stack.enter_context(crowd(address, sessions, "sessions", [watched]))
        of_lines = stack.enter_context(crowd(address, lines, "lines", [watched])) if lines else None
        for edition in range(2, 2 + CHANGES):
            time.sleep(0.5)  # all wait again
            for each in (of_sessions, of_lines):
                if each is not None:
                    each.ask(FIRST_QUEUES + edition)
            began = time.monotonic()
            line.call(registration(edition, {watched}).request)
            found += [(heard - began) * 1000 for heard in of_sessions.hear()]
            if of_lines is not None:
                of_lines.hear()
    return found


def p99(values: list[float]) -> float:
    return quantiles(values, n=100)[98]


def watchers_mb(address: str, pid: int, count: int) -> float:
    """Return how much more memory a name server has while many connections watch a topic each."""
    with RawConnection(address, timeout_s=60.0) as line:
        line.call(registration(1, set()).request)
        before_mb = resident_mb(pid)
        with crowd(address, count, "lines", names()):
            return resident_mb(pid) - before_mb
