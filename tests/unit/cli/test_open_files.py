"""Servers with a low limit of open files work, and log no traceback."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path

import pytest

from skyroute import Message, Producer
from skyroute.wire.codes import ResponseCode
from tests.network.broker.calls import found_bodies, pull
from tests.support.connections import connection_to

LIMIT = 64
TOPICS = 100
MESSAGES = 3
TIMEOUT_S = 60


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if "ROCKETMQ" not in name and name != "NAMESRV_ADDR"}
    return {**kept, "HOME": str(tmp_path / "home")}


@contextmanager
def up(folder: Path, environment: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Run a name server and a broker in one process; yield their addresses."""
    command = [
        *("sh", "-c", f'ulimit -n {LIMIT} && exec "$@"', "sh", sys.executable, "-m", "skyroute", "up", "--no-console"),
        *("--ns-port", "0", "--port", "0", "--data", str(folder / "data"), "-D", "defaultTopicQueueNums=2"),
        *("-D", "mappedFileSizeCommitLog=65536", "-D", "mappedFileSizeConsumeQueue=4000", "-D", "maxMessageSize=4096"),
    ]
    with (
        (folder / "errors").open("a") as errors,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            said = {}
            while "Broker" not in said:
                line = process.stdout.readline()
                assert line, (folder / "errors").read_text()
                said[line.split()[0]] = line
            yield said["Name"].split()[2], said["Broker"].split()[1]
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()


async def send_to_many(name_server: str) -> None:
    async with Producer("p", name_server) as producer:
        for number in range(MESSAGES):
            for topic in range(TOPICS):
                await producer.send(Message(f"T{topic}", b"%d" % number * 300, keys=["k"]))


async def count_all(broker: str) -> int:
    async with connection_to(broker) as line:
        found = 0
        for topic, queue_id in product(range(TOPICS), range(2)):
            offset = 0
            while (reply := await line.call(pull(f"T{topic}", offset, queue_id=queue_id))).code == ResponseCode.SUCCESS:
                offset += len(found_bodies(reply))
            found += offset
    return found


def test_a_hundred_topics_are_stored_read_and_recovered(environment: dict[str, str], tmp_path: Path) -> None:
    with up(tmp_path, environment) as (name_server, broker):
        asyncio.run(send_to_many(name_server))
        assert asyncio.run(count_all(broker)) == TOPICS * MESSAGES
    with up(tmp_path, environment) as (_, broker):
        assert asyncio.run(count_all(broker)) == TOPICS * MESSAGES
    errors = (tmp_path / "errors").read_text()
    assert "Traceback" not in errors
    assert "open files" not in errors


def test_connections_beyond_the_limit_of_open_files_are_closed(environment: dict[str, str], tmp_path: Path) -> None:
    with up(tmp_path, environment) as (name_server, broker), ExitStack() as ends:
        for _ in range(LIMIT):
            for address in (name_server, broker):
                host, port = address.rsplit(":", 1)
                ends.enter_context(socket.create_connection((host, int(port))))
        ends.close()
        asyncio.run(send_to_many(name_server))
        assert asyncio.run(count_all(broker)) == TOPICS * MESSAGES
    errors = (tmp_path / "errors").read_text()
    assert "Traceback" not in errors
    assert "Too many open files" not in errors
