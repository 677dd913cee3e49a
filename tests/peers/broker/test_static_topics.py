"""Static topics made and moved by the real mqadmin, between two brokers of ours, and between ours and Apache's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from skyroute import Message, Producer, StoredMessage
from tests.peers.broker.conftest import TARGET
from tests.peers.client.conftest import SETTINGS
from tests.peers.client.java_client import JavaClients, JavaError, JavaProducer, Place, Received
from tests.peers.client.python_client import consuming
from tests.peers.test_mqadmin import MqAdmin
from tests.support.apache import ApacheBroker, SkyrouteNameServer
from tests.support.our_broker import SkyrouteBroker

NOT_LEADER = 501
QUEUES = 4
ROUTE_S = 60.0
"""Java's clients read a route again after thirty seconds."""


@dataclass(frozen=True)
class Brokers:
    """A cluster of two brokers, `left` and `right`, and mqadmin."""

    place: Place
    cluster: str
    admin: MqAdmin

    def run(self, command: str, *words: str) -> str:
        said = self.admin.run(command, *words, "-n", self.place.name_servers)
        assert "Exception" not in said, said
        return said

    def create(self, topic: str) -> None:
        self.run("updateStaticTopic", "-t", topic, "-qn", str(QUEUES), "-c", self.cluster)

    def move(self, topic: str, *brokers: str) -> None:
        self.run("remappingStaticTopic", "-t", topic, "-b", ",".join(brokers))


@pytest.fixture(scope="module", params=["ours", "mixed"])
def brokers(
    request: pytest.FixtureRequest, lib: Path, java_classes: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Brokers]:
    kinds: Sequence[type[ApacheBroker]] = [TARGET, SkyrouteBroker if request.param == "ours" else ApacheBroker]
    cluster = f"Static-{request.param}"
    home = tmp_path_factory.mktemp("static")
    with SkyrouteNameServer("our name server", home / "ns") as server:
        left, right = (
            kind(name, home / name, [server.address], cluster=cluster, config=SETTINGS)
            for name, kind in zip(("left", "right"), kinds, strict=True)
        )
        with left, right:
            (home / "mqadmin").mkdir()
            admin = MqAdmin(lib, java_classes, home / "mqadmin", f"-Djava.io.tmpdir={home}")
            try:
                admin.run("clusterList", "-n", server.address)  # it also prints how logging was set up
                yield Brokers(Place.at(server.address, left.address, right.address), cluster, admin)
            finally:
                admin.close()


async def send(producer: JavaProducer, topic: str, numbers: range) -> list[bytes]:
    """Send messages of four keys, each key in order; a queue that moves is tried until the route is known."""
    bodies = []
    for number in numbers:
        body = f"{number % QUEUES} {number}".encode()
        async with asyncio.timeout(ROUTE_S):
            while True:
                try:
                    await producer.send(topic, body, order_key=str(number % QUEUES))
                    break
                except JavaError as error:
                    if error.code != NOT_LEADER:
                        raise
                    await asyncio.sleep(1)
        bodies.append(body)
    return bodies


def in_order(received: Sequence[Received | StoredMessage]) -> bool:
    """Whether the offsets of each queue have the messages of each key in the order in which they were sent, once."""
    by_key: dict[bytes, list[int]] = {}
    for each in sorted(received, key=lambda each: (each.queue_id, each.queue_offset)):
        key, number = each.body.split()
        by_key.setdefault(key, []).append(int(number))
    return all(numbers == sorted(set(numbers)) for numbers in by_key.values())


async def test_a_static_topic_moves_between_brokers_without_loss_or_disorder(
    brokers: Brokers, java: JavaClients
) -> None:
    topic = "Moved"
    brokers.create(topic)
    async with (
        java.producer(brokers.place, "static-producer") as producer,
        java.consumer(brokers.place, "static-java", topic) as consumer,
        consuming(brokers.place, "static-python", topic) as ours,
        Producer("static-ours", **brokers.place.python) as our_producer,
    ):
        bodies = await send(producer, topic, range(40))
        received = await consumer.take_bodies(bodies)
        for turn, target in enumerate((["right"], ["left"], ["left", "right"]), 1):
            brokers.move(topic, *target)
            bodies += await send(producer, topic, range(40 * turn, 40 * (turn + 1)))
            for number in range(QUEUES):
                body = f"ours-{number} {turn}".encode()
                await our_producer.send(Message(topic, body, sharding_key=str(number)))
                bodies.append(body)
            received = await consumer.take_bodies(bodies, timeout_s=ROUTE_S)
        assert in_order(received)
        assert len(received) == len(bodies)
        ours_received = await ours.take_bodies(bodies, timeout_s=ROUTE_S)
        assert in_order(ours_received)
        assert len(ours_received) == len(bodies)
        assert {each.broker_name for each in ours_received} == {"__syslo__global__"}
    said = brokers.run("topicStatus", "-t", topic)
    assert "__syslo__global__" in said
    said = brokers.run("consumerProgress", "-g", "static-java", "-t", topic)
    assert "__syslo__global__" in said


async def test_a_new_group_reads_a_moved_topic_from_its_start(brokers: Brokers, java: JavaClients) -> None:
    topic = "ReadLater"
    brokers.create(topic)
    async with java.producer(brokers.place, "late-producer") as producer:
        bodies = await send(producer, topic, range(40))
        brokers.move(topic, "right")
        bodies += await send(producer, topic, range(40, 80))
    async with java.consumer(brokers.place, "static-late", topic) as consumer:
        received = await consumer.take_bodies(bodies, timeout_s=ROUTE_S)
    assert in_order(received)
    assert len(received) == len(bodies)
