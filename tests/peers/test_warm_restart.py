"""The only name server is killed and starts again, and Apache's clients that start with it notice nothing.

Apache's own answers "No route info of this topic" in the same case, until its brokers have registered again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from skyroute.nameserver.journal.reader import read_records
from skyroute.nameserver.journal.schema import Kind, Record
from tests.peers.client.java_client import JavaClients, Place
from tests.support.apache import ApacheBroker, NameServerProcess, SkyrouteNameServer
from tests.support.waiting import wait_until

TOPICS = [f"WarmTopic{number}" for number in range(8)]
SENDS = 5


async def test_clients_that_start_in_the_first_second_find_every_route_and_lose_no_send(
    lib: Path, java_classes: Path, tmp_path: Path, ours_is_apache: bool
) -> None:
    if ours_is_apache:
        pytest.skip("a second Apache stands in our place, and it forgets")
    name_server = SkyrouteNameServer("the only name server", tmp_path / "ns")
    rare = {"registerNameServerPeriod": "30000"}  # the default
    broker = ApacheBroker("warm-broker", tmp_path / "broker", [name_server.address], config=rare)
    with name_server, broker, JavaClients("Java's clients", tmp_path / "java", lib, java_classes) as java:
        place = Place.at(name_server.address, broker.address)
        for topic in TOPICS:
            await java.create_topic(place, topic)
        await_snapshot(name_server)

        name_server.kill()
        name_server.start()
        # From here on every answer is one of the routes that were kept: the broker speaks every 30 seconds.
        async with (
            java.producer(place) as producer,
            java.consumer(place, "warm-consumers", dict.fromkeys(TOPICS, "*")) as consumer,
        ):
            bodies = [f"{topic} {number}".encode() for number in range(SENDS) for topic in TOPICS]
            for body in bodies:
                sent = await producer.send(body.split()[0].decode(), body)
                assert sent.status == "SEND_OK"
            await consumer.take_bodies(bodies)

        started = [record for record in journal(name_server) if record.kind == Kind.SERVER_STARTED]
        assert [record.restored_brokers for record in started] == [0, 1]
        # The broker registers again, is confirmed and stays.
        wait_until(lambda: is_confirmed(name_server), timeout_s=60, what="the broker is confirmed")
        assert name_server.stop() == 0
    assert not [record for record in journal(name_server) if record.cause == "not_confirmed"]


def await_snapshot(server: NameServerProcess) -> None:
    snapshot = memory(server) / "routes.snapshot"

    def is_written() -> bool:
        return snapshot.exists() and all(topic.encode() in snapshot.read_bytes() for topic in TOPICS)

    wait_until(is_written, what="a snapshot with every topic")


def is_confirmed(server: NameServerProcess) -> bool:
    return any(record.kind == Kind.BROKER_CONFIRMED for record in journal(server))


def journal(server: NameServerProcess) -> list[Record]:
    return list(read_records(memory(server) / "journal"))


def memory(server: NameServerProcess) -> Path:
    return server.home / f"memory-{server.port}"
