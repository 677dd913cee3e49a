"""Java's, Go's and our consumers go on from a slave while its master is down, and then at the master."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest

from skyroute import Message, Producer, QueueRef
from skyroute.wire.codes import RequestCode
from tests.peers.client.java_client import JavaClients, PeerClients, Place
from tests.peers.client.python_client import consuming
from tests.support.apache import ApacheBroker, NameServerProcess
from tests.support.our_broker import SkyrouteBroker
from tests.support.raw import RawConnection
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

WAIT_S = 120.0
"""Java's and Go's clients ask for routes every 30 s."""
SETTINGS = {"slaveReadEnable": "true", "flushConsumerOffsetInterval": "1000"}
GROUPS = ("from-slave-java", "from-slave-go", "from-slave-python")
QUERY_OFFSET, MAX_OFFSET = 14, 30


async def test_consumers_go_on_from_the_slave_in_order(
    java: JavaClients, go: PeerClients, name_server: NameServerProcess, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        master, slave = (
            stack.enter_context(
                SkyrouteBroker(
                    "followed", tmp_path / str(number), [name_server.address], broker_id=number, config=SETTINGS
                )
            )
            for number in (0, 1)
        )
        place = Place.at(name_server.address, master.address)
        topic = await java.create_topic(place, "FromSlave", queues=1)

        async def send(bodies: list[bytes]) -> None:
            async with Producer("slave-writers", retries=5, **place.python) as producer:
                for body in bodies:
                    await producer.send(Message(topic, body), queue=QueueRef(topic, "followed", 0))

        def number_of(broker: SkyrouteBroker, code: int, **fields: str) -> int:
            with RawConnection(broker.address) as line:
                return int(line.call(code, {"topic": topic, "queueId": "0", **fields}).fields.get("offset", "-1"))

        first, second, third = ([b"%s %02d" % (name, n) for n in range(20)] for name in (b"first", b"second", b"third"))
        await send(first)
        async with AsyncExitStack() as consumers:
            # Go's client cannot start without the master: it asks no one else for its first offset.
            inboxes: list[Any] = [
                await consumers.enter_async_context(java.consumer(place, GROUPS[0], topic)),
                await consumers.enter_async_context(go.consumer(place, GROUPS[1], topic)),
            ]
            for inbox in inboxes:
                await inbox.take_bodies(first, timeout_s=WAIT_S)
            for client in (java, go):
                os.kill(client.pid, signal.SIGSTOP)
            try:
                await send(second)
                await eventually(lambda: number_of(slave, MAX_OFFSET) == 40, "the slave has them", timeout_s=WAIT_S)
                master.kill()
            finally:
                for client in (java, go):
                    os.kill(client.pid, signal.SIGCONT)
            inboxes.append(await consumers.enter_async_context(consuming(place, GROUPS[2], topic)))
            for inbox in inboxes:
                await inbox.take_bodies(first + second, timeout_s=WAIT_S)
            await asyncio.to_thread(master.start)
            await send(third)
            for inbox in inboxes:
                await inbox.take_bodies(first + second + third, timeout_s=WAIT_S)
                assert {each.body: each.queue_offset for each in inbox.received} == dict(
                    zip(first + second + third, range(60), strict=True)
                )
            await eventually(
                lambda: [number_of(master, QUERY_OFFSET, consumerGroup=group) for group in GROUPS] == [60, 60, 60],
                "all commit to the master",
                timeout_s=WAIT_S,
            )


@pytest.mark.usefixtures("lib")
async def test_our_consumers_go_on_from_an_apache_slave_under_our_name_server(
    name_server: NameServerProcess, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        config = SETTINGS | {"mappedFileSizeCommitLog": str(1 << 20)}
        master, slave = (
            ApacheBroker("apaches", tmp_path / str(number), [name_server.address], broker_id=number, config=config)
            for number in (0, 1)
        )
        for broker in (master, slave):
            broker._start_timeout_s = WAIT_S
            stack.callback(broker.kill)
        await asyncio.gather(asyncio.to_thread(master.start), asyncio.to_thread(slave.start))
        place = Place.at(name_server.address, master.address)
        topic, queue = "FromApachesSlave", QueueRef("FromApachesSlave", "apaches", 0)
        create = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        with RawConnection(master.address) as line:
            more = {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
            assert line.call(RequestCode.UPDATE_AND_CREATE_TOPIC, create | more).code == 0

        async def send(bodies: list[bytes]) -> None:
            async with Producer("slave-writers", retries=20, **place.python) as producer:
                for body in bodies:
                    await producer.send(Message(topic, body), queue=queue)

        def slave_has_them() -> bool:
            with RawConnection(slave.address) as line:
                end = line.call(MAX_OFFSET, {"topic": topic, "queueId": "0"}).fields.get("offset")
                return end == "20" and topic in line.call(RequestCode.GET_ALL_TOPIC_CONFIG).text

        first, second = ([b"%s %02d" % (name, n) for n in range(20)] for name in (b"first", b"second"))
        await send(first)
        async with AsyncExitStack() as consumers:
            inboxes = [await consumers.enter_async_context(consuming(place, "before", topic))]
            await inboxes[0].take_bodies(first, timeout_s=WAIT_S)
            await eventually(slave_has_them, "the slave has messages and topic", timeout_s=WAIT_S)
            master.kill()
            inboxes.append(await consumers.enter_async_context(consuming(place, "during", topic)))
            await inboxes[1].take_bodies(first, timeout_s=WAIT_S)
            await asyncio.to_thread(master.start)
            await send(second)
            for inbox in inboxes:
                await inbox.take_bodies(first + second, timeout_s=WAIT_S)
