"""What documents, examples and the demonstration promise is run as a reader would run it, on a cluster of ours."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyroute import Message
from skyroute.blocking import Producer
from skyroute.testing import Cluster, cluster
from tests.support.shown import PRINTED, ROOT, programs, programs_for, runs_for_ever

TIMEOUT_S = 60
DEMO_S = 180
"""With Spark, which takes its time on a busy machine."""


@pytest.fixture(scope="module")
def shown_on() -> Iterator[Cluster]:
    with cluster(in_memory=True) as started:
        yield started


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(folder), "PYTHONUNBUFFERED": "1"}


def run(folder: Path, *words: str | Path, timeout_s: float = TIMEOUT_S) -> list[str]:
    """The lines that a Python process prints, which must end well; a warning is allowed, for a machine may be busy."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search(r"\b(Traceback|ERROR)\b", done.stderr), done.stderr
    return done.stdout.splitlines()


def test_the_demonstration_runs_a_cluster_from_start_to_stop(tmp_path: Path) -> None:
    told = [line.partition(" s  ")[2] for line in run(tmp_path, ROOT / "examples" / "demo.py", timeout_s=DEMO_S)]
    story = [
        r"name-server-\d serves at 127\.0\.0\.1:\d+ \(process \d+\)",
        r"name-server-\d serves at 127\.0\.0\.1:\d+ \(process \d+\)",
        r"broker-[ab] serves at 127\.0\.0\.1:\d+ \(process \d+\)",
        r"broker-[ab] serves at 127\.0\.0\.1:\d+ \(process \d+\)",
        r"route of Orders: broker-a x4 \| broker-b x4",
        r"broker-b is paused: .*",
        r"… lease expired, evicted after \d+\.\d s\. route of Orders: broker-a x4",
        r"broker-b is resumed and registers again\. route of Orders: broker-a x4 \| broker-b x4",
        r"tag filter: 10 orders sent .*; the consumer of tag paid received 5",
        r"ordered: 5 orders, each received as placed → paid → brewed → served",
        r"(delayed: .*|retry: .*|transactions: .*; 2 received)",
        r"(delayed: .*|retry: .*|transactions: .*; 2 received)",
        r"(delayed: .*|retry: .*|transactions: .*; 2 received)",
        r"batch: 100 messages .*; pull consumer: 100 read from the first offset",
        r"request-reply: the answer to everything",
        r"broadcast: 5 messages received by each of 2 consumers",
        r"SQL92 filter: .* received 7, 8 and 10 kg",
        r"\d+ messages sent, sending continues; kill -9 broker-b …",
        r"… connection closed, evicted after \d+ ms\. route of Orders: broker-a x4",
        r"\d+ messages sent, all new ones to broker-a; broker-b restarts …",
        r"broker-b serves at 127\.0\.0\.1:\d+ \(process \d+\)",
        r"… broker-b receives messages again\. route of Orders: broker-a x4 \| broker-b x4",
        r"acknowledged (\d+) \(broker-a \d+, broker-b \d+\), consumed \1, lost 0; .*",
        r"Spark starts and reads the topic Orders …",
        r"… SELECT tags, count\(\*\): counted \d+, open 5, paid 5",
        *[r"(broker-[ab]|name-server-[12]) stopped with exit code 0"] * 4,
        r"Spark computes the availability of each broker .*",
        r"broker +name server +up +down  outages: causes",
        *[r"broker-a  \w+ +\d+\.\d s +0\.0 s  0: unregistered"] * 2,
        *[r"broker-b  \w+ +\d+\.\d s +\d+\.\d s  2: connection_closed, lease_expired, unregistered"] * 2,
    ]
    for promised, line in zip(story, told, strict=False):
        assert re.fullmatch(promised, line), "\n".join(told)
    assert len(told) == len(story)
    assert len(set(told)) == len(told)  # each line came once, in any order


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_its_docstring_shows(name: str, shown_on: Cluster, tmp_path: Path) -> None:
    lines = run(tmp_path, ROOT / "examples" / name, shown_on.name_server_address)
    assert re.fullmatch(PRINTED[name], "".join(f"{line}\n" for line in lines)), lines


def test_every_example_is_run() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == {*PRINTED, "__init__.py", "demo.py"}


def test_the_programs_in_the_documents_run_as_printed(shown_on: Cluster, tmp_path: Path) -> None:
    shown = programs_for(shown_on.name_server_address)
    assert len(shown) == 3
    ending = [program for program in shown if not runs_for_ever(program)]
    for program in ending:
        (tmp_path / "program.py").write_text(program)
        for line in run(tmp_path, tmp_path / "program.py"):
            assert re.match(r"((sent|received) )?[0-9A-F]{32}", line), line
    for program in shown:
        if runs_for_ever(program):
            (tmp_path / "serving.py").write_text(program)
            assert re.fullmatch(r"[0-9A-F]{32} b'one coffee'\n", first_line_of(tmp_path / "serving.py", shown_on))


def first_line_of(program: Path, where: Cluster) -> str:
    """What a program prints first that consumes for ever, which must end when it is interrupted.

    It joins a group that may have consumed all that was sent before, so orders go on until it speaks.
    """
    process = subprocess.Popen(
        [sys.executable, program],
        cwd=program.parent,
        env=environment(program.parent),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        with Producer("shop", where.name_server_address) as producer:
            deadline = time.monotonic() + TIMEOUT_S
            while not select.select([process.stdout], [], [], 0.2)[0]:
                assert time.monotonic() < deadline, "it printed nothing"
                producer.send(Message("Orders", b"one coffee", tag="paid"))
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    return line


def test_servers_in_a_program_run_as_printed(tmp_path: Path) -> None:
    [program] = [program for program in programs("docs/broker.md") if "NameServer" in program]
    (tmp_path / "program.py").write_text(program)
    assert run(tmp_path, tmp_path / "program.py") == ["stored by broker-a OK"]


def test_the_tests_in_the_documents_pass(tmp_path: Path) -> None:
    tests = [
        program for name in ("README.md", "docs/testing.md") for program in programs(name) if "def test_" in program
    ]
    assert len(tests) == 5
    for number, text in enumerate(tests):
        (tmp_path / f"test_shown_{number}.py").write_text(text)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    lines = run(tmp_path, "-m", "pytest", "-q", "-p", "skyroute.testing.plugin", "-p", "no:cacheprovider", tmp_path)
    assert re.fullmatch(r"6 passed in .*", lines[-1]), lines
