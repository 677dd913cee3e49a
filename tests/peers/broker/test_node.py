"""Node's ali-ons at our broker: it signs every request, and writes numbers and booleans where Java writes words."""

from __future__ import annotations

import time

from skyroute import Message, Producer
from tests.peers.client.conftest import DELAY_LEVEL, DELAY_S
from tests.peers.client.java_client import JavaClients, PeerClients, Place
from tests.peers.client.python_client import consuming

LATE_S = 3.0


async def test_messages_from_node_reach_all_clients(node: PeerClients, java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "NodePlain")
    async with (
        node.consumer(place, "node-push", topic) as pushed,
        node.consumer(place, "node-tags", {topic: "red || blue"}) as by_tag,
        node.consumer(place, "node-sql", {topic: "size > 5 AND colour = 'red'"}, is_sql=True) as by_sql,
        java.consumer(place, "node-to-java", topic) as by_java,
        consuming(place, "node-to-python", topic) as by_python,
        node.producer(place, "node-producers") as producer,
    ):
        properties = {"size": "7", "colour": "red", "note": "grün 绿"}
        sent = await producer.send(topic, b"one", tag="red", keys=["k1", "k2"], properties=properties)
        assert sent.status == "SEND_OK"
        await producer.send(topic, b"two", tag="blue")
        await producer.send(topic, b"three", tag="green")
        large = b"all work and no play " * 1000  # it compresses what is longer than four kilobytes
        await producer.send(topic, large, tag="green")
        everybody = {b"one", b"two", b"three", large}
        for consumer in (pushed, by_java):
            got = {each.body: each for each in await consumer.take_bodies(everybody)}
            assert set(got) == everybody
            first = got[b"one"]
            assert (first.queue_id, first.queue_offset) == (sent.queue_id, sent.queue_offset)
            assert (first.tag, first.keys) == ("red", ("k1", "k2"))
            assert first.properties | properties == first.properties
        mine = {each.body: each for each in await by_python.take_bodies(everybody)}
        assert set(mine) == everybody
        assert mine[b"one"].offset_id == sent.message_id  # it makes no ids of its own
        assert {each.body for each in await by_tag.take(2)} == {b"one", b"two"}
        assert [each.body for each in await by_sql.take(1)] == [b"one"]
        assert (len(by_tag.received), len(by_sql.received)) == (2, 1)


async def test_node_gets_what_others_send_again_if_it_fails(node: PeerClients, java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "NodeLate")
    async with (
        node.consumer(place, "node-late", topic, failures=1) as consumer,
        node.consumer(place, "node-all", topic, is_broadcast=True) as one,
        node.consumer(place, "node-all", topic, is_broadcast=True) as other,
        java.producer(place) as java_producer,
        Producer("python-to-node", **place.python) as python_producer,
        node.producer(place, "node-late") as producer,
    ):
        began = time.time()
        await java_producer.send(topic, b"from java")
        await python_producer.send(Message(topic, b"from python"))
        await producer.send(topic, b"from node", delay_level=DELAY_LEVEL)
        due_s = {b"from java": 0.0, b"from python": 0.0, b"from node": DELAY_S}
        for received in (await one.take(3), await other.take(3)):
            arrived_s = {each.body: each.stored_ms / 1000 - began for each in received}
            assert set(arrived_s) == set(due_s)
            for body, delay_s in due_s.items():
                assert delay_s - 0.2 <= arrived_s[body] <= delay_s + LATE_S
        tries = sorted((got.body, got.reconsume_times) for got in await consumer.take(6))
        assert tries == sorted((body, attempt) for body in due_s for attempt in (0, 1))
