"""`skyroute top` with real clusters: --once, JSON, and the live screen."""

import json
import os
import pty
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from skyroute import Message, StartPosition, StoredMessage
from skyroute.blocking import Admin, Consumer, Producer
from skyroute.cli.cluster_sample import Sampler, Topic
from skyroute.cli.main import main
from skyroute.client.errors import NoRouteError
from skyroute.testing import Cluster, cluster
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def busy() -> Iterator[Cluster]:
    """Two brokers; a group has read 3 messages of a topic and then stopped; 30 more were sent."""
    with cluster(brokers=2) as started:
        address, read = started.name_server_address, threading.Semaphore(0)

        def handle(_message: StoredMessage) -> None:
            read.release()

        # One queue per broker, so that the group has an offset in both.
        with Admin(address) as admin:
            admin.create_topic("Orders", cluster="DefaultCluster", read_queues=1, write_queues=1)
            wait_until(lambda: len(admin.route("Orders").groups) == 2, "both brokers have registered the topic")
        with Producer("top", address) as producer:
            for _ in range(3):
                producer.send(Message("Orders", b"old"))
            with Consumer("billing", address, start=StartPosition.FIRST) as consumer:
                consumer.subscribe("Orders", handler=handle)
                assert all(read.acquire(timeout=20) for _ in range(3))
            for _ in range(30):
                producer.send(Message("Orders", b"new"))
            producer.send(Message("Bills", b"one"))
        yield started


def run_once(address: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["top", "-n", address, "--once", "--json"])
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_json_has_brokers_topics_and_groups(busy: Cluster) -> None:
    found = run_once(busy.name_server_address)
    assert [(each["broker"], each["broker_id"], each["failure"]) for each in found["brokers"]] == [
        ("broker-0", 0, None),
        ("broker-1", 0, None),
    ]
    assert sum(each["in_today"] for each in found["brokers"]) == 34
    busiest = [each["name"] for each in found["topics"]][:2]
    assert busiest == ["Orders", "Bills"]
    assert found["topics"][0]["in_day"] == 33
    assert found["topics_read"] == found["topics_total"]
    (group,) = found["groups"]
    assert (group["name"], group["lag"], group["worst_topic"]) == ("billing", 30, "Orders")


def test_once_prints_one_screen_without_a_terminal(busy: Cluster) -> None:
    result = CliRunner().invoke(main, ["top", "-n", busy.name_server_address, "--once"])
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert any(line[:3] == ["billing", "Orders", "30"] for line in lines)
    assert any(line[:2] == ["broker-1/0", busy.broker_addresses[1]] for line in lines)


def test_a_paused_broker_has_a_failure_and_the_others_are_read() -> None:
    with cluster(brokers=2) as own, Producer("top", own.name_server_address) as producer:
        for _ in range(16):
            producer.send(Message("Orders", b"one"))
        own.pause_broker(1)
        found = run_once(own.name_server_address)
    assert [each["failure"] is None for each in found["brokers"]] == [True, False]
    (orders,) = (each for each in found["topics"] if each["name"] == "Orders")
    assert orders["in_day"] == found["brokers"][0]["in_today"] > 0


def read_until(terminal: int, text: bytes) -> bytes:
    """Return what a terminal shows up to the given text, which must appear within 200 reads."""
    seen = b""
    for _ in range(200):
        seen += os.read(terminal, 65536)
        if text in seen:
            return seen
    raise AssertionError(f"{text!r} did not appear: {seen[-2000:]!r}")


def test_the_live_screen_updates_until_q_is_pressed(busy: Cluster) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "skyroute", "top", "-n", busy.name_server_address, "-i", "0.5"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, env=os.environ | {"TERM": "xterm"}) as started:
        os.close(theirs)
        seen = read_until(ours, b"billing")
        os.write(ours, b"s")
        read_until(ours, b"s sorts by load")
        os.write(ours, b"q")
        with pytest.raises(OSError, match="Input/output error"):  # the process has closed the terminal
            read_until(ours, b"never printed")
        assert started.wait(10) == 0
    os.close(ours)
    assert b"Brokers: 2, 0 not responding" in seen


def test_invalid_options_are_refused(busy: Cluster) -> None:
    runner, there = CliRunner(), ["top", "-n", busy.name_server_address]
    assert "--json needs --once" in runner.invoke(main, [*there, "--json"]).stderr
    assert "Standard output is not a terminal" in runner.invoke(main, there).stderr
    failed = runner.invoke(main, ["top", "-n", "127.0.0.1:1", "--once"])
    assert (failed.exit_code, failed.stderr.startswith("Error: no name server")) == (1, True)


def test_a_missing_package_is_named_with_how_to_install_it(busy: Cluster) -> None:
    script = "import sys; sys.modules['rich'] = None; from skyroute.cli.main import main; main()"
    command = [sys.executable, "-c", script, "top", "-n", busy.name_server_address, "--once"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr.strip()) == (
        1,
        "Error: top needs a package that is not installed: pip install 'skyroute[top]'",
    )
    assert subprocess.run([*command, "--json"], capture_output=True, check=False).returncode == 0


async def test_all_rows_are_read_in_rotation_and_the_largest_in_every_round() -> None:
    """With 100 topics and 10 per round, all are read after 20 rounds, and the 5 busiest in each."""
    rates = {f"topic-{number:03}": random.Random(number).random() for number in range(100)}
    rates |= {f"topic-{number:03}": 1_000.0 + number for number in (7, 42, 55, 71, 99)}
    read: list[str] = []

    async def read_topic(name: str) -> Topic:
        read.append(name)
        if name == "topic-003":
            raise NoRouteError("deleted")
        return Topic(name, rates[name], 0)

    sampler = Sampler(read_topic, 10)
    sampler.update_names(sorted(rates))
    for _ in range(20):
        await sampler.round()
    assert sampler.is_complete
    assert [row.name for row in sampler.rows()[:5]] == ["topic-099", "topic-071", "topic-055", "topic-042", "topic-007"]
    read.clear()
    await sampler.round()
    assert len(read) == 10
    assert {"topic-007", "topic-042", "topic-055", "topic-071", "topic-099"} < set(read)
    sampler.update_names(["topic-000", "topic-001"])
    assert [row.name for row in sampler.rows(by_name=True)] == ["topic-000", "topic-001"]
