"""Whatever an application passes to a call by mistake is told by that very call, as an error of ours."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from skyroute import (
    Admin,
    Consumer,
    Message,
    Producer,
    PullConsumer,
    QueueRef,
    Session,
    SkyrouteError,
    TransactionOutcome,
    blocking,
)
from skyroute.client.errors import ArgumentError
from skyroute.message.errors import InvalidMessageError, InvalidNameError, TagExpressionError
from skyroute.message.message import StoredMessage
from skyroute.message.record import decode_record
from skyroute.wire.calls.groups import GroupConfig
from tests.support.fake_broker import FakeCluster, fake_cluster

pytestmark = pytest.mark.usefixtures("nothing_lost")

NOWHERE = "127.0.0.1:1"
NAN = float("nan")
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - that is the slip
QUEUE = QueueRef("T", "broker-a", 0)
SLIPS: list[Any] = [
    *(None, True, -1, 1.5, NAN, float("inf"), 10**30, "", b"x", [], [None], {}, {1: 2}, object(), print, NAIVE),
    *(QueueRef(5, None, "x"), QueueRef("T", "broker-a", -1)),  # type: ignore[arg-type]  # those are slips
]


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(topics={"T": 2}) as running:
        yield running


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda p: p.send("text"), "message is a skyroute.Message: 'text' is none"),
        (lambda p: p.send(None), "message is a skyroute.Message: None is none"),
        (lambda p: p.send(Message("T", b"x"), timeout_s=-1), "timeout_s is a time"),
        (lambda p: p.send(Message("T", b"x"), timeout_s=NAN), "timeout_s is a time"),
        (lambda p: p.send(Message("T", b"x"), timeout_s="3"), "timeout_s is a time"),
        (lambda p: p.send(Message("T", b"x"), queue=0), "queue is a skyroute.QueueRef"),
        (lambda p: p.send(Message("T", b"x"), queue=QueueRef("T", "broker-a", True)), "queue is a QueueRef"),
        (lambda p: p.send(Message("T", b"x"), select=0), "select is a function"),
        (lambda p: p.send_oneway(b"x"), "message is a skyroute.Message"),
        (lambda p: p.send_oneway(Message("T", b"x"), select="first"), "select is a function"),
        (lambda p: p.send_batch(5), "messages is several skyroute.Message"),
        (lambda p: p.send_batch("text"), "messages is several skyroute.Message"),
        (lambda p: p.send_batch(Message("T", b"x")), "messages is several skyroute.Message"),
        (lambda p: p.send_batch([Message("T", b"x"), "y"]), "each of messages is a skyroute.Message: 'y'"),
        (lambda p: p.send_batch([Message("T", b"x")], timeout_s=-0.5), "timeout_s is a time"),
        (lambda p: p.send_in_transaction("x", print), "message is a skyroute.Message"),
        (lambda p: p.send_in_transaction(Message("T", b"x"), "commit"), "execute is a function"),
        (lambda p: p.request(5), "message is a skyroute.Message"),
        (lambda p: p.request(Message("T", b"x"), timeout_s=NAN), "timeout_s is a time"),
        (lambda p: p.reply("x", b"y"), "to is a skyroute.StoredMessage"),
        (lambda p: p.recall("T", 5), "recall_handle is text"),
        (lambda p: p.recall("T", "handle", broker_name=5), "broker_name is text"),
    ],
)
async def test_a_producer_names_the_argument(cluster: FakeCluster, call: Any, text: str) -> None:
    async with Producer("g", cluster.address, check=lambda _: TransactionOutcome.COMMIT) as producer:
        with pytest.raises(ArgumentError, match=text):
            await call(producer)
    assert [command for code in (310, 320, 325) for command in cluster.seen(code)] == []


async def test_a_batch_of_nothing_is_refused(cluster: FakeCluster) -> None:
    async with Producer("g", cluster.address) as producer:
        with pytest.raises(InvalidMessageError, match="at least one message"):
            await producer.send_batch([])
        topics: list[Any] = [5, None, [], "a b"]
        for topic in topics:
            with pytest.raises(InvalidNameError):
                await producer.queues(topic)


async def test_a_transaction_ends_with_an_outcome_or_the_broker_asks(cluster: FakeCluster) -> None:
    async with Producer("g", cluster.address, check=lambda _: TransactionOutcome.COMMIT) as producer:
        with pytest.raises(ArgumentError, match=r"execute is a function that returns a .*: it returned True"):
            await producer.send_in_transaction(Message("T", b"x"), lambda _message, _sent: True)  # type: ignore[arg-type, return-value]
        (end,) = await cluster.until_seen(37)
    assert end.fields["commitOrRollback"] == "0"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: c.poll(-1), "timeout_s is a time in seconds, from 0"),
        (lambda c: c.poll("1"), "timeout_s is a time in seconds, from 0"),
        (lambda c: c.poll(NAN), "timeout_s is a time in seconds, from 0"),
        (lambda c: c.poll(0, 0), "max_messages is a whole number"),
        (lambda c: c.poll(0, 1.5), "max_messages is a whole number"),
        (lambda c: c.seek(QUEUE, -1), "offset is a whole number"),
        (lambda c: c.seek(QUEUE, "begin"), "offset is a whole number"),
        (lambda c: c.seek("T", 0), "queue is a skyroute.QueueRef"),
        (lambda c: c.seek_to_begin(0), "queue is a skyroute.QueueRef"),
        (lambda c: c.seek_to_end(None), "queue is a skyroute.QueueRef"),
        (lambda c: c.seek_to_time(QUEUE, NAIVE), "when is a datetime with a time zone"),
        (lambda c: c.seek_to_time(QUEUE, 1_758_275_140_000), "when is a datetime with a time zone"),
        (lambda c: c.position(5), "queue is a skyroute.QueueRef"),
        (lambda c: c.committed(5), "queue is a skyroute.QueueRef"),
        (lambda c: c.commit([QUEUE]), "offsets is a mapping"),
        (lambda c: c.commit({QUEUE: "5"}), "offsets is of whole numbers"),
        (lambda c: c.commit({QUEUE: -1}), "offsets is of whole numbers"),
        (lambda c: c.commit({"T": 5}), "each key of offsets is a skyroute.QueueRef"),
        (lambda c: c.pause("T"), "queue is a skyroute.QueueRef"),
        (lambda c: c.resume([QUEUE]), "queue is a skyroute.QueueRef"),
        (lambda c: c.assign(QUEUE), "queues is several skyroute.QueueRef"),
        (lambda c: c.assign("T"), "queues is several skyroute.QueueRef"),
        (lambda c: c.assign([("T", "broker-a", 0)]), "each of queues is a skyroute.QueueRef"),
        (lambda c: c.assign([QUEUE], 5), "expression is of tags"),
    ],
)
async def test_a_pull_consumer_names_the_argument(cluster: FakeCluster, call: Any, text: str) -> None:
    async with PullConsumer("g", cluster.address) as consumer:
        consumer.assign([QUEUE])
        with pytest.raises(ArgumentError, match=text):
            await call(consumer)
        assert consumer.assignment == {QUEUE}


async def test_a_consumer_names_the_argument(cluster: FakeCluster) -> None:
    async with Consumer("g", cluster.address) as consumer:
        with pytest.raises(InvalidNameError, match="the name of a topic is text, not 5"):
            consumer.subscribe(5)  # type: ignore[arg-type]  # that is the slip
        with pytest.raises(ArgumentError, match="expression is of tags"):
            consumer.subscribe("T", ["A"])  # type: ignore[arg-type]  # that is the slip
        with pytest.raises(TagExpressionError):
            consumer.subscribe("T", "||")
        with pytest.raises(ArgumentError, match="handler is a function"):
            consumer.subscribe("T", "*", "handle")  # type: ignore[arg-type]  # that is the slip
        for timeout_s in (-1, NAN, "1", None):
            with pytest.raises(ArgumentError, match="timeout_s is a time"):
                await consumer.stop(timeout_s)  # type: ignore[arg-type]  # that is the slip


async def test_an_address_is_text() -> None:
    async with Session(NOWHERE) as session:
        with pytest.raises(ArgumentError, match="address is 'host:port': 9876 is not"):
            await session.call(9876, None)  # type: ignore[arg-type]  # that is the slip


async def stored() -> StoredMessage:
    async with fake_cluster(topics={"T": 1}) as cluster:
        cluster.put(cluster.queue("T"), b"x")
        (record,) = cluster.stored(cluster.queue("T"))
        return decode_record(record.data).replace(broker_name="broker-a")


def calls_of(kind: Any) -> list[tuple[str, Any]]:
    return [
        (name, method)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name not in {"start", "stop", "run", "producer_groups", "consumer_data"}
    ]


def fine_values(message: StoredMessage) -> dict[str, Any]:
    return {
        "address": NOWHERE,
        "begin": 0,
        "body": b"x",
        "broker": NOWHERE,
        "broker_name": "broker-a",
        "client_id": "me",
        "client_ids": ["me"],
        "cluster": "C",
        "config": GroupConfig("g"),
        "destination": "g2",
        "end": 1,
        "execute": lambda _message, _sent: TransactionOutcome.COMMIT,
        "group": "g",
        "key": "k",
        "message": message,
        "message_id": "1",
        "messages": [Message("T", b"x")],
        "namespace": "N",
        "offset": 0,
        "permission": 6,
        "queue": QUEUE,
        "queues": [QUEUE],
        "recall_handle": "h",
        "settings": {"name": "value"},
        "source": "g",
        "to": message,
        "topic": "T",
        "value": "v",
        "when": datetime.now(UTC),
        "when_ms": 0,
    }


async def give_slips(thing: Any, kind: Any, fine: dict[str, Any]) -> None:
    for name, method in calls_of(kind):
        parameters = list(inspect.signature(method).parameters.values())[1:]
        wanted = {p.name: fine[p.name] for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL}
        if name == "put_order_config":
            wanted["config"] = "broker-a:4"
        for parameter in parameters:
            for slip in SLIPS:
                with contextlib.suppress(SkyrouteError):
                    if parameter.kind is parameter.VAR_POSITIONAL:
                        outcome = getattr(thing, name)(slip)
                    else:
                        outcome = getattr(thing, name)(**(wanted | {parameter.name: slip}))
                    if inspect.isasyncgen(outcome):
                        _ = [each async for each in outcome]
                    elif inspect.isawaitable(outcome):
                        await outcome


# Where nobody listens, every call that lets its arguments pass fails at once.


async def test_no_slip_makes_the_admin_raise_anything_but_our_own() -> None:
    async with Admin(NOWHERE) as admin:
        await give_slips(admin, Admin, fine_values(await stored()))
    async with Admin(NOWHERE, namespace="tenant") as admin:
        await give_slips(admin, Admin, fine_values(await stored()))


async def test_every_admin_argument_is_checked_before_a_request_is_sent() -> None:
    fine = fine_values(await stored())
    async with Admin(NOWHERE) as admin:
        for name, method in calls_of(Admin):
            parameters = list(inspect.signature(method).parameters.values())[1:]
            wanted = {p.name: fine[p.name] for p in parameters if p.default is p.empty}
            if name == "put_order_config":
                wanted["config"] = "broker-a:4"
            for parameter in parameters:
                with pytest.raises(ArgumentError, match=parameter.name):
                    await getattr(admin, name)(**(wanted | {parameter.name: object()}))


async def test_no_slip_makes_a_producer_raise_anything_but_our_own() -> None:
    async with Producer("g", NOWHERE, check=lambda _: TransactionOutcome.COMMIT) as producer:
        await give_slips(producer, Producer, fine_values(await stored()) | {"message": Message("T", b"x")})


async def test_no_slip_makes_a_consumer_raise_anything_but_our_own(cluster: FakeCluster) -> None:
    consumer = Consumer("g", cluster.address)
    await give_slips(consumer, Consumer, fine_values(await stored()))


async def test_no_slip_makes_a_pull_consumer_raise_anything_but_our_own(cluster: FakeCluster) -> None:
    async with PullConsumer("g", cluster.address) as consumer:
        consumer.assign([QUEUE])
        fine = fine_values(await stored())
        names = {name for name, _ in calls_of(PullConsumer)}
        assert {"poll", "seek", "commit"} <= names
        await asyncio.wait_for(give_slips(_Quick(consumer), PullConsumer, fine), 30.0)


class _Quick:
    """A consumer whose polls do not wait unless they are told how long."""

    def __init__(self, consumer: PullConsumer) -> None:
        self._consumer = consumer

    def __getattr__(self, name: str) -> Any:
        if name == "poll":
            return lambda timeout_s=0, max_messages=None: self._consumer.poll(
                0 if timeout_s in (True, 1.5) else timeout_s, max_messages
            )
        return getattr(self._consumer, name)


async def test_the_blocking_faces_raise_the_same(cluster: FakeCluster) -> None:
    def script() -> None:
        with pytest.raises(ArgumentError, match="compression_level"):
            blocking.Producer("g", cluster.address, compression_level=99)
        with blocking.Producer("g", cluster.address) as producer, pytest.raises(ArgumentError, match="message is"):
            producer.send("text")  # type: ignore[arg-type]  # that is the slip
        with blocking.PullConsumer("g", cluster.address) as consumer, pytest.raises(ArgumentError, match="timeout_s"):
            consumer.poll(-1)
        with blocking.Admin(cluster.address) as admin:
            with pytest.raises(ArgumentError, match="topic is text"):
                admin.route(5)  # type: ignore[arg-type]  # that is the slip
            with pytest.raises(ArgumentError, match="begin is a whole number"):
                admin.read(QUEUE, "0", 1)  # type: ignore[arg-type]  # that is the slip
        with pytest.raises(ArgumentError, match="timeout_s"):
            blocking.Consumer("g", cluster.address).stop(-1)

    await asyncio.wait_for(asyncio.to_thread(script), 20.0)
