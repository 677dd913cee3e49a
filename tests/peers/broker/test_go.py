"""Apache's Go client at our broker: alone, and together with Java's and ours."""

from __future__ import annotations

import asyncio
import time

from skyroute import Message, Producer
from tests.peers.client.conftest import DELAY_LEVEL, DELAY_S
from tests.peers.client.java_client import JavaClients, PeerClients, Place, message
from tests.peers.client.python_client import consuming
from tests.support.waiting import eventually

LATE_S = 3.0


async def test_messages_from_go_reach_all_clients(go: PeerClients, java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "GoPlain")
    async with (
        go.consumer(place, "go-push", topic) as pushed,
        go.consumer(place, "go-tags", {topic: "red || blue"}) as by_tag,
        go.consumer(place, "go-sql", {topic: "size > 5 AND colour = 'red'"}, is_sql=True) as by_sql,
        java.consumer(place, "go-to-java", topic) as by_java,
        consuming(place, "go-to-python", topic) as by_python,
        go.producer(place, "go-producers") as producer,
    ):
        properties = {"size": "7", "colour": "red", "note": "grün 绿"}
        sent = await producer.send(topic, b"sync", tag="red", keys=["k1", "k2"], properties=properties)
        assert sent.status == "SEND_OK"
        assert (await producer.send(topic, b"async", tag="blue", is_async=True)).status == "SEND_OK"
        await producer.send(topic, b"one-way", tag="green", oneway=True)
        large = b"all work and no play " * 1000
        await producer.send(topic, large, tag="green")
        await producer.send_batch([message(topic, b"batch %d" % number, tag="green") for number in range(10)])
        everybody = {b"sync", b"async", b"one-way", large, *(b"batch %d" % number for number in range(10))}
        for consumer in (pushed, by_java):
            got = {each.body: each for each in await consumer.take_bodies(everybody)}
            assert set(got) == everybody
            first = got[b"sync"]
            assert (first.message_id, first.queue_id, first.queue_offset) == (
                sent.message_id,
                sent.queue_id,
                sent.queue_offset,
            )
            assert (first.tag, first.keys) == ("red", ("k1", "k2"))
            assert first.properties | properties == first.properties
        mine = {each.body: each for each in await by_python.take_bodies(everybody)}
        assert set(mine) == everybody
        assert (mine[b"sync"].message_id, mine[b"sync"].user_properties) == (sent.message_id, properties)
        assert {each.body for each in await by_tag.take(2)} == {b"sync", b"async"}
        assert [each.body for each in await by_sql.take(1)] == [b"sync"]
        assert (len(by_tag.received), len(by_sql.received)) == (2, 1)


async def test_a_pull_consumer_of_go_gets_what_others_send(go: PeerClients, java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "GoPulls")
    async with (
        go.consumer(place, "go-pull", topic, kind="pullConsumer") as pulled,
        java.producer(place) as java_producer,
        Producer("python-to-go", **place.python) as python_producer,
    ):
        for number in range(10):
            await java_producer.send(topic, b"java %d" % number)
            await python_producer.send(Message(topic, b"python %d" % number))
        everybody = {b"%s %d" % (who, number) for who in (b"java", b"python") for number in range(10)}
        assert {each.body for each in await pulled.take_bodies(everybody)} == everybody


async def test_ordered_messages_keep_their_order(go: PeerClients, java: JavaClients, pair: Place) -> None:
    topic = await java.create_topic(pair, "GoOrdered")
    keys = [f"order-{number}" for number in range(6)]
    async with (
        go.producer(pair, "go-ordered") as producer,
        go.consumer(pair, "go-ordered", topic, is_orderly=True) as consumer,
        java.consumer(pair, "go-ordered-java", topic, is_orderly=True) as by_java,
    ):
        # When Go first hears of a topic it orders the queues, and then once more: what is sent between goes elsewhere.
        await producer.send(topic, b"alone")
        for step in range(5):
            await asyncio.gather(*(producer.send(topic, f"{key} {step}".encode(), order_key=key) for key in keys))
        for received in (await consumer.take(1 + 5 * len(keys)), await by_java.take(1 + 5 * len(keys))):
            for key in keys:
                steps = [each.body.decode() for each in received if each.body.startswith(f"{key} ".encode())]
                assert steps == [f"{key} {step}" for step in range(5)]


async def test_delayed_failed_and_broadcast_messages(go: PeerClients, java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "GoLate")
    # Go asks for routes every thirty seconds: a topic of retries that its own heartbeat makes, it would find late.
    async with consuming(place, "go-late", topic), consuming(place, "go-never", topic):
        pass
    async with (
        go.consumer(place, "go-late", topic, failures=1) as consumer,
        go.consumer(place, "go-never", topic, failures=99, reconsume_times_max=1) as never,
        go.consumer(place, "go-all", topic, is_broadcast=True) as one,
        go.consumer(place, "go-all", topic, is_broadcast=True) as other,
        go.producer(place, "go-late") as producer,
    ):
        began = time.time()
        await producer.send(topic, b"now")
        await producer.send(topic, b"level", delay_level=DELAY_LEVEL)
        due_s = {b"now": 0.0, b"level": DELAY_S}
        for received in (await one.take(2), await other.take(2)):
            arrived_s = {each.body: each.stored_ms / 1000 - began for each in received}
            assert set(arrived_s) == set(due_s)
            for body, delay_s in due_s.items():
                assert delay_s - 0.2 <= arrived_s[body] <= delay_s + LATE_S
        for each in (consumer, never):
            tries = sorted((got.body, got.reconsume_times) for got in await each.take(4))
            assert tries == sorted((body, attempt) for body in due_s for attempt in (0, 1))
        async with consuming(place, "go-dead", "%DLQ%go-never") as dead:
            assert {each.body for each in await dead.take(2)} == set(due_s)


async def test_transactions_are_committed_rolled_back_and_asked_about(
    go: PeerClients, java: JavaClients, place: Place
) -> None:
    topic = await java.create_topic(place, "GoTransactions")
    scripts = {
        b"committed": ("commit", "rollback"),
        b"rolled back": ("rollback", "commit"),
        b"asked once": ("unknown", "commit"),
        b"asked in vain": ("unknown", "rollback"),
    }
    async with (
        go.consumer(place, "go-transactions", topic) as consumer,
        go.producer(place, "go-transactions", transactional=True) as producer,
    ):
        for body, (outcome, checks) in scripts.items():
            await producer.send(topic, body, properties={"outcome": outcome, "checks": checks})
        wanted = {b"committed", b"asked once"}
        received = await consumer.take_bodies(wanted)
        assert {each.body for each in await producer.checks(2)} == {b"asked once", b"asked in vain"}
        assert {each.body for each in received} == wanted


async def test_requests_and_replies(go: PeerClients, java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "GoAsks")
    async with java.consumer(place, "replies-to-go", topic, is_replying=True) as replier:
        await replier.await_owned(4)
        # Go tells brokers of itself a second after its start, if it knows any by then, and again thirty seconds later.
        async with go.producer(place, "go-asks") as asking:
            assert (await asking.request(topic, b"a question")).body == b"reply to a question"
    topic = await java.create_topic(place, "GoReplies")
    async with (
        go.consumer(place, "go-replies", topic, is_replying=True),
        Producer("python-asks-go", **place.python) as producer,
    ):
        reply = await producer.request(Message(topic, b"another"), timeout_s=20)
        assert reply.body == b"reply to another"


async def test_a_group_of_three_languages_shares_the_work(go: PeerClients, java: JavaClients, place: Place) -> None:
    topic, group = await java.create_topic(place, "GoShares", queues=9), "go-shares"
    async with (
        go.consumer(place, group, topic) as by_go,
        java.consumer(place, group, topic) as by_java,
        consuming(place, group, topic) as by_python,
        Producer("python-shares", **place.python) as producer,
    ):
        await by_java.await_owned(3)
        await by_python.await_owned(3)
        sent: set[bytes] = set()

        def arrived() -> set[bytes]:
            by_others = {each.body for each in (*by_go.received, *by_java.received)}
            return by_others | {each.body for each in by_python.received}

        async with asyncio.timeout(60):
            while not (by_go.received and by_java.received and by_python.received):
                body = b"%d" % len(sent)
                await producer.send(Message(topic, body))
                sent.add(body)
                await eventually(lambda: sent <= arrived(), "the message is consumed")
        assert arrived() == sent
