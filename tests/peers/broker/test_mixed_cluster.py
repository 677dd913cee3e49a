"""One cluster of an Apache broker and one of ours, with topics over both; found by our name server, and by Apache's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers.broker.conftest import TARGET
from tests.peers.client.conftest import SETTINGS
from tests.peers.client.java_client import JavaClients, PeerClients, Place
from tests.peers.client.python_client import consuming
from tests.peers.client.test_consuming import test_ordered_messages_come_in_order_though_some_fail_at_first
from tests.peers.client.test_groups import test_nothing_acknowledged_is_lost_while_brokers_are_restarted
from tests.peers.client.test_sending import (
    test_messages_with_one_sharding_key_keep_their_order_and_share_java_s_queue,
)
from tests.support.apache import ApacheBroker, ApacheNameServer, NameServerProcess, SkyrouteNameServer

__all__ = [
    "test_messages_with_one_sharding_key_keep_their_order_and_share_java_s_queue",
    "test_nothing_acknowledged_is_lost_while_brokers_are_restarted",
    "test_ordered_messages_come_in_order_though_some_fail_at_first",
]

QUEUES = 8


@pytest.fixture(scope="module")
def name_server(lib: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServerProcess]:
    with SkyrouteNameServer("our name server", tmp_path_factory.mktemp("ns")) as server:
        yield server


@pytest.fixture(scope="module")
def other_name_server(lib: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServerProcess]:
    with ApacheNameServer("Apache's name server", tmp_path_factory.mktemp("other-ns")) as server:
        yield server


@pytest.fixture(scope="module")
def first_broker(
    name_server: NameServerProcess, other_name_server: NameServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheBroker]:
    """Ours."""
    home, servers = tmp_path_factory.mktemp("ours"), [name_server.address, other_name_server.address]
    with TARGET("ours", home, servers, cluster="Mixed", config=SETTINGS) as broker:
        yield broker


@pytest.fixture(scope="module")
def second_broker(
    name_server: NameServerProcess, other_name_server: NameServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheBroker]:
    """Apache's."""
    home, servers = tmp_path_factory.mktemp("apache"), [name_server.address, other_name_server.address]
    with ApacheBroker("apache", home, servers, cluster="Mixed", config=SETTINGS) as broker:
        yield broker


@pytest.fixture(scope="module")
def pair(name_server: NameServerProcess, first_broker: ApacheBroker, second_broker: ApacheBroker) -> Place:
    return Place.at(name_server.address, first_broker.address, second_broker.address)


@pytest.mark.parametrize("finder", ["skyroute", "apache"])
async def test_clients_of_all_languages_use_both_brokers(
    java: JavaClients,
    go: PeerClients,
    node: PeerClients,
    pair: Place,
    other_name_server: NameServerProcess,
    finder: str,
) -> None:
    """Found by the name server of either kind."""
    place = pair if finder == "skyroute" else Place.at(other_name_server.address, *pair.brokers)
    topic, group = await java.create_topic(place, f"MixedBy-{finder}", queues=QUEUES), f"mixed-by-{finder}"
    async with (
        java.consumer(place, f"{group}-java", topic) as by_java,
        go.consumer(place, f"{group}-go", topic) as by_go,
        node.consumer(place, f"{group}-node", topic) as by_node,
        consuming(place, f"{group}-python", topic) as by_python,
        java.producer(place, group) as java_producer,
        go.producer(place, group) as go_producer,
        node.producer(place, group) as node_producer,
    ):
        brokers: set[str] = set()
        bodies: set[bytes] = set()
        for number in range(3 * QUEUES):
            for who, producer in {"java": java_producer, "go": go_producer, "node": node_producer}.items():
                body = f"{who} {number}".encode()
                brokers.add((await producer.send(topic, body, tag="any")).broker)
                bodies.add(body)
        assert brokers == {"ours", "apache"}
        for consumer in (by_java, by_go, by_node):
            assert {each.body for each in await consumer.take_bodies(bodies)} == bodies
        assert {each.body for each in await by_python.take_bodies(bodies)} == bodies
        # Every queue of either broker was used, and counted as if there were one kind of broker only.
        used = {(each.broker_name, each.queue_id) for each in by_python.received}
        assert {broker for broker, _ in used} == {"ours", "apache"}
        offsets = sorted((each.broker_name, each.queue_id, each.queue_offset) for each in by_python.received)
        for broker, queue in used:
            mine = [offset for name, number, offset in offsets if (name, number) == (broker, queue)]
            assert sorted(set(mine)) == list(range(len(set(mine))))
