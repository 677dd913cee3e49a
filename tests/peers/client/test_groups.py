"""A consumer group with members in Java and Python, and brokers that restart under load."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

from skyroute import Message, Producer, SkyrouteError
from tests.peers.client.java_client import JavaClients, Place
from tests.peers.client.python_client import consuming
from tests.support.apache import ApacheBroker, PeerProcess
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[3]
QUEUES = 8
SEND_INTERVAL_S = 0.02


class Member(PeerProcess):
    """Our consumer, as a process that can be killed."""

    ready_mark = "serving"

    def __init__(self, name: str, home: Path, place: Place, group: str, topic: str) -> None:
        super().__init__(name, home, port=1)  # it does not listen
        self._arguments = (place.name_servers, group, topic)

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.peers.client.member", *self._arguments]

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "PYTHONPATH": str(ROOT)}

    @property
    def received(self) -> set[bytes]:
        return {line.removeprefix("got ").encode() for line in self.output().splitlines() if line.startswith("got ")}

    async def await_owned(self, count: int) -> None:
        async def has_as_many() -> bool:
            said = [line for line in self.output().splitlines() if line.startswith("owns ")]
            return bool(said) and said[-1] == f"owns {count}"

        await eventually(has_as_many, what=f"{self.name} owns {count} queues")


async def test_java_and_python_members_share_queues_and_take_over_from_killed_members(
    java: JavaClients, place: Place, lib: Path, java_classes: Path, tmp_path: Path
) -> None:
    topic, group = await java.create_topic(place, "Shared", queues=QUEUES), "shared"
    sent: set[bytes] = set()

    async def send(producer: Producer, what: str) -> None:
        bodies = [f"{what} {number}".encode() for number in range(40)]
        await asyncio.gather(*(producer.send(Message(topic, body)) for body in bodies))
        sent.update(bodies)

    python = Member("Python's member", tmp_path / "python", place, group, topic)
    with JavaClients("Java's member", tmp_path / "java", lib, java_classes) as mortal, python:
        async with (
            Producer("shared-producers", **place.python) as producer,
            mortal.consumer(place, group, topic) as jim,
        ):
            await asyncio.gather(python.await_owned(QUEUES // 2), jim.await_owned(QUEUES // 2))
            await send(producer, "shared")

            async def all_arrived() -> bool:
                return sent <= python.received | {each.body for each in jim.received}

            await eventually(all_arrived, what="everything arrives at one or the other")
            assert python.received
            assert jim.received

            await send(producer, "while Python dies")
            python.kill()
            await jim.await_owned(QUEUES)
            await send(producer, "without Python")
            await eventually(all_arrived, what="Java takes over")

            python.start()
            await asyncio.gather(python.await_owned(QUEUES // 2), jim.await_owned(QUEUES // 2))
            await send(producer, "while Java dies")
            mortal.kill()
            await python.await_owned(QUEUES)
            await send(producer, "without Java")
            await eventually(all_arrived, what="Python takes over")


async def test_nothing_acknowledged_is_lost_while_brokers_are_restarted(
    java: JavaClients, pair: Place, first_broker: ApacheBroker, second_broker: ApacheBroker
) -> None:
    topic = await java.create_topic(pair, "Restarted")
    acknowledged: dict[bytes, str] = {}
    failures: list[SkyrouteError] = []
    stopping = asyncio.Event()

    async def send_on(producer: Producer, number: int) -> None:
        step = 0
        while not stopping.is_set():
            body = f"{number}-{step}".encode()
            try:
                result = await producer.send(Message(topic, body))
                acknowledged[body] = result.queue.broker_name
            except SkyrouteError as error:
                failures.append(error)
            step += 1
            with suppress(TimeoutError):  # a steady load that leaves processor time for a JVM to start
                async with asyncio.timeout(SEND_INTERVAL_S):
                    await stopping.wait()

    async def more_from(broker: ApacheBroker) -> None:
        """Wait until a broker has acknowledged something new."""
        known = sum(name == broker.broker_name for name in acknowledged.values())

        def has_more() -> bool:
            return sum(name == broker.broker_name for name in acknowledged.values()) > known + 20

        await eventually(has_more, f"{broker.broker_name} takes messages", timeout_s=60)

    async def restart(broker: ApacheBroker, other: ApacheBroker) -> None:
        await more_from(broker)
        if broker is first_broker:
            await asyncio.to_thread(broker.stop)
        else:
            broker.kill()
        await more_from(other)  # one broker is enough
        await asyncio.to_thread(broker.start)
        await more_from(broker)

    async with (
        consuming(pair, "restarted-python", topic) as inbox,
        java.consumer(pair, "restarted-java", topic) as java_inbox,
        Producer("restarted-producers", route_poll_interval_s=1.0, **pair.python) as producer,
    ):
        async with asyncio.TaskGroup() as senders:
            for number in range(4):
                senders.create_task(send_on(producer, number))
            try:
                await restart(first_broker, second_broker)
                await restart(second_broker, first_broker)
            finally:
                stopping.set()
        assert len(failures) < 100, failures[-3:]  # another broker was there all the time
        received = await inbox.take_bodies(acknowledged, timeout_s=60)
        assert acknowledged.keys() <= {each.body for each in received}
        received_by_java = await java_inbox.take_bodies(acknowledged, timeout_s=60)
        assert acknowledged.keys() <= {each.body for each in received_by_java}
