"""Our consumer reads from a slave while the master is away, and its offsets are right when the master is back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from skyroute import Admin, Consumer, Message, Producer, QueueRef, StartPosition, StoredMessage
from skyroute.client.consuming.intervals import Intervals
from tests.support.apache import ApacheBroker, SkyrouteNameServer
from tests.support.our_broker import SkyrouteBroker
from tests.support.raw import RawConnection
from tests.support.waiting import eventually

TOPIC, GROUP, QUEUES = "ReadFromSlave", "slave-readers", 2
START_S = 240.0
WAIT_S = 90.0
"""A slave copies topics and offsets every few seconds, on a busy machine later."""
SETTINGS = {"slaveReadEnable": "true", "flushConsumerOffsetInterval": "1000"}
RUNTIME_INFO, QUERY_OFFSET = 28, 14


class Pair:
    """A master and its slave, and their name server."""

    def __init__(self, kind: type[ApacheBroker], folder: Path, stack: ExitStack) -> None:
        self.names = stack.enter_context(SkyrouteNameServer("name server", folder / "names"))
        self.master, self.slave = (
            kind("pair", folder / str(number), [self.names.address], broker_id=number, config=SETTINGS)
            for number in (0, 1)
        )
        for broker in (self.master, self.slave):
            broker._start_timeout_s = START_S
            stack.callback(broker.kill)
            broker.start()

    def is_copied(self) -> bool:
        """Whether the slave has the master's whole log."""
        ends = []
        for broker in (self.master, self.slave):
            with RawConnection(broker.address) as line:
                ends.append(line.call(RUNTIME_INFO).value["table"]["commitLogMaxOffset"])
        return bool(ends[0] == ends[1])

    def committed(self, broker: ApacheBroker) -> int:
        """The sum of the group's offsets at a broker."""
        total = 0
        with RawConnection(broker.address) as line:
            for queue_id in range(QUEUES):
                names = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id), "setZeroIfNotFound": "false"}
                total += int(line.call(QUERY_OFFSET, names).fields.get("offset", "0"))
        return total


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(SkyrouteBroker, tmp_path_factory.mktemp("slaves"), stack)


async def send(pair: Pair, bodies: list[bytes]) -> None:
    async with Producer("slave-writers", pair.names.address, retries=5) as producer:
        for number, body in enumerate(bodies):
            await producer.send(Message(TOPIC, body), queue=QueueRef(TOPIC, "pair", number % QUEUES))


def consumer_of(pair: Pair, received: list[bytes]) -> Consumer:
    async def handle(message: StoredMessage) -> None:
        received.append(message.body)

    consumer = Consumer(
        GROUP,
        pair.names.address,
        start=StartPosition.FIRST,
        intervals=Intervals(commit_s=1.0),
        route_poll_interval_s=1.0,
    )
    consumer.subscribe(TOPIC, handler=handle)
    return consumer


async def test_a_consumer_goes_on_from_the_slave_and_its_offsets_return_to_the_master(pair: Pair) -> None:
    async with Admin(pair.names.address) as admin:
        await admin.create_topic(TOPIC, read_queues=QUEUES, write_queues=QUEUES)
    before, while_away, after = ([b"%s %d" % (name, number) for number in range(20)] for name in (b"a", b"b", b"c"))
    received: list[bytes] = []
    await send(pair, before)
    async with consumer_of(pair, received):
        await eventually(lambda: set(received) == set(before), timeout_s=WAIT_S)
        await eventually(lambda: pair.committed(pair.master) == len(before), timeout_s=WAIT_S)
    await send(pair, while_away)
    await eventually(pair.is_copied, timeout_s=WAIT_S)
    await eventually(lambda: pair.committed(pair.slave) == len(before), timeout_s=WAIT_S)
    pair.master.kill()
    received.clear()
    async with consumer_of(pair, received):
        await eventually(lambda: set(received) == set(while_away), timeout_s=WAIT_S)
        await asyncio.to_thread(pair.master.start)
        await eventually(lambda: pair.committed(pair.master) == len(before + while_away), timeout_s=WAIT_S)
        await send(pair, after)
        await eventually(lambda: set(received) == set(while_away + after), timeout_s=WAIT_S)
    assert sorted(received) == sorted(while_away + after)
