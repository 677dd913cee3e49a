"""Apache's examples in Java and ours in Python run unchanged against our broker.

Apache's read the address of the name server from NAMESRV_ADDR. Examples that never end are stopped after the expected
output. Not run: `rpc` and `simple.OnewayProducer`, which need a name server on port 9876; `simple.PopConsumer` and
`lmq`, whose features our broker lacks; `openmessaging` and `OpenTracing…`, which are examples of other libraries.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.peers.client.java_client import JavaClients, Place
from tests.peers.client.python_client import consuming
from tests.peers.client.test_examples import test_an_example_prints_the_expected_output
from tests.peers.client.test_transactions import test_the_transaction_example_prints_the_expected_output
from tests.support.apache import SMALL_HEAP
from tests.support.apache import java as java_command
from tests.support.waiting import eventually

__all__ = ["test_an_example_prints_the_expected_output", "test_the_transaction_example_prints_the_expected_output"]

TIMEOUT_S = 60.0
# Without it, a consumer waits up to twenty seconds for its first rebalance.
OPTIONS = (*SMALL_HEAP, "-Drocketmq.client.rebalance.waitInterval=1000")


@dataclass(frozen=True, slots=True)
class Shown:
    """A program, what it prints, and how many times."""

    name: str
    mark: str
    count: int
    ends: bool = False


def ends(name: str, mark: str, count: int) -> Shown:
    """Return a program that ends without a signal."""
    return Shown(name, mark, count, ends=True)


SENT = r"sendStatus=SEND_OK"
GOT = r"MessageExt \["
GOT_LATE = r"Receive message\["

# Programs that run side by side. No two of them may be in one group: some share a group's name, and nothing else.
SHOWS: dict[str, tuple[Shown, ...]] = {
    "TopicTest": (
        ends("quickstart.Producer", SENT, 1000),
        Shown("quickstart.Consumer", GOT, 1000),
        Shown("broadcast.PushConsumer", GOT, 1000),
    ),
    "TopicTest again": (
        ends("simple.Producer", SENT, 128),
        Shown("ordermessage.Consumer", GOT, 100),
        Shown("simple.LitePullConsumerSubscribe", GOT, 1),
    ),
    "TopicTest at last": (
        ends("tracemessage.TraceProducer", SENT, 128),
        Shown("tracemessage.TracePushConsumer", GOT, 1128),
        Shown("simple.LitePullConsumerAssign", GOT, 1),
    ),
    "TopicTestjjj": (ends("ordermessage.Producer", SENT, 100),),
    "Jodie_topic_1023": (ends("simple.AsyncProducer", r" OK ", 100),),
    "BatchTest": (Shown("batch.SimpleBatchProducer", SENT, 1), Shown("batch.SplitBatchProducer", SENT, 6)),
    "SqlFilterTest": (ends("filter.SqlFilterProducer", SENT, 10), Shown("filter.SqlFilterConsumer", GOT, 3)),
    "TagFilterTest": (ends("filter.TagFilterProducer", SENT, 60), Shown("filter.TagFilterConsumer", GOT, 40)),
    "TestTopic": (
        ends("schedule.ScheduledMessageProducer", SENT, 100),
        Shown("schedule.ScheduledMessageConsumer", GOT_LATE, 100),
    ),
    "TimerTopic": (
        ends("schedule.TimerMessageProducer", SENT, 10),
        Shown("schedule.TimerMessageConsumer", GOT_LATE, 10),
    ),
}


@pytest.mark.parametrize("topic", SHOWS)
async def test_an_example_of_apaches_prints_the_expected_output(
    topic: str, java: JavaClients, place: Place, lib: Path, tmp_path: Path
) -> None:
    await java.create_topic(place, topic.split(maxsplit=1)[0])
    async with AsyncExitStack() as stack:
        running = [await stack.enter_async_context(_running(shown, place, lib, tmp_path)) for shown in SHOWS[topic]]
        for process in running:
            await process.check_output()


async def test_apaches_transaction_example_receives_checks(
    java: JavaClients, place: Place, lib: Path, tmp_path: Path
) -> None:
    """It sends ten half messages without an outcome, and commits every third one when it is checked."""
    topic = await java.create_topic(place, "TopicTest1234")
    shown = Shown("transaction.TransactionProducer", SENT, 10)
    async with consuming(place, "reads-example", topic) as inbox, _running(shown, place, lib, tmp_path) as process:
        await process.check_output()
        assert {each.body for each in await inbox.take(3)} == {b"Hello RocketMQ %d" % number for number in (1, 4, 7)}


class _Running:
    def __init__(self, shown: Shown, process: asyncio.subprocess.Process, log: Path) -> None:
        self._shown, self._process, self._log = shown, process, log

    async def check_output(self) -> None:
        """Check that it prints the expected output, and ends if expected."""

        async def has_printed() -> bool:
            assert self._process.returncode in (None, 0), self._output()[-3000:]
            return len(re.findall(self._shown.mark, self._output())) >= self._shown.count

        try:
            await eventually(has_printed, timeout_s=TIMEOUT_S)
            if self._shown.ends:
                async with asyncio.timeout(TIMEOUT_S):
                    assert await self._process.wait() == 0
        except TimeoutError:
            seen = len(re.findall(self._shown.mark, self._output()))
            pytest.fail(f"{self._shown} printed the mark {seen} times; its last output:\n{self._output()[-3000:]}")

    def _output(self) -> str:
        return self._log.read_text(errors="replace")


@asynccontextmanager
async def _running(shown: Shown, place: Place, lib: Path, folder: Path) -> AsyncIterator[_Running]:
    home = folder / shown.name
    home.mkdir()
    log = home / "output.log"
    command = java_command(lib, home, f"org.apache.rocketmq.example.{shown.name}", options=OPTIONS)
    with log.open("wb") as sink:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=sink, stderr=sink, cwd=home, env={**os.environ, "NAMESRV_ADDR": place.name_servers}
        )
    try:
        yield _Running(shown, process, log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
