"""Invalid arguments of methods raise a SkyrouteError that names the argument."""

from __future__ import annotations

import asyncio
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
from skyroute.wire.calls.access import AclBody
from skyroute.wire.calls.groups import GroupConfig
from skyroute.wire.codes import RequestCode
from tests.support.fake_broker import FakeCluster, fake_cluster

pytestmark = pytest.mark.usefixtures("nothing_lost")

NOWHERE = "127.0.0.1:1"
NAN = float("nan")
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - that is the value
QUEUE = QueueRef("T", "broker-a", 0)
INVALID_VALUES: list[Any] = [
    *(None, True, -1, 1.5, NAN, float("inf"), 10**30, "", b"x", [], [None], {}, {1: 2}, object(), print, NAIVE),
    *(QueueRef(5, None, "x"), QueueRef("T", "broker-a", -1)),  # type: ignore[arg-type]  # invalid on purpose
]


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(topics={"T": 2}) as running:
        yield running


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda p: p.send("text"), "message is 'text': expected a skyroute.Message"),
        (lambda p: p.send(None), "message is None: expected a skyroute.Message"),
        (lambda p: p.send(Message("T", b"x"), timeout_s=-1), "timeout_s is .*: expected seconds"),
        (lambda p: p.send(Message("T", b"x"), timeout_s=NAN), "timeout_s is .*: expected seconds"),
        (lambda p: p.send(Message("T", b"x"), timeout_s="3"), "timeout_s is .*: expected seconds"),
        (lambda p: p.send(Message("T", b"x"), queue=0), "queue is .*: expected a skyroute.QueueRef"),
        (
            lambda p: p.send(Message("T", b"x"), queue=QueueRef("T", "broker-a", True)),
            r"queue is QueueRef\(.*: expected QueueRef\(topic",
        ),
        (lambda p: p.send(Message("T", b"x"), select=0), "select is .*: expected a function"),
        (lambda p: p.send_oneway(b"x"), "message is .*: expected a skyroute.Message"),
        (lambda p: p.send_oneway(Message("T", b"x"), select="first"), "select is .*: expected a function"),
        (lambda p: p.send_batch(5), "messages is .*: expected several skyroute.Message"),
        (lambda p: p.send_batch("text"), "messages is .*: expected several skyroute.Message"),
        (lambda p: p.send_batch(Message("T", b"x")), "messages is .*: expected several skyroute.Message"),
        (lambda p: p.send_batch([Message("T", b"x"), "y"]), "each of messages is 'y': expected a skyroute.Message"),
        (lambda p: p.send_batch([Message("T", b"x")], timeout_s=-0.5), "timeout_s is .*: expected seconds"),
        (lambda p: p.send_in_transaction("x", print), "message is .*: expected a skyroute.Message"),
        (lambda p: p.send_in_transaction(Message("T", b"x"), "commit"), "execute is .*: expected a function"),
        (lambda p: p.request(5), "message is .*: expected a skyroute.Message"),
        (lambda p: p.request(Message("T", b"x"), timeout_s=NAN), "timeout_s is .*: expected seconds"),
        (lambda p: p.reply("x", b"y"), "to is .*: expected a skyroute.StoredMessage"),
        (lambda p: p.recall("T", 5), "recall_handle is .*: expected text"),
        (lambda p: p.recall("T", "handle", broker_name=5), "broker_name is .*: expected text"),
    ],
)
async def test_a_producer_names_the_argument(cluster: FakeCluster, call: Any, text: str) -> None:
    async with Producer("g", cluster.address, check=lambda _: TransactionOutcome.COMMIT) as producer:
        with pytest.raises(ArgumentError, match=text):
            await call(producer)
    sends = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
    assert [command for code in sends for command in cluster.seen(code)] == []


async def test_an_empty_batch_is_refused(cluster: FakeCluster) -> None:
    async with Producer("g", cluster.address) as producer:
        with pytest.raises(InvalidMessageError, match="at least one message"):
            await producer.send_batch([])
        topics: list[Any] = [5, None, [], "a b"]
        for topic in topics:
            with pytest.raises(InvalidNameError):
                await producer.queues(topic)


async def test_an_execute_without_an_outcome_leaves_the_transaction_to_the_check(cluster: FakeCluster) -> None:
    async with Producer("g", cluster.address, check=lambda _: TransactionOutcome.COMMIT) as producer:
        with pytest.raises(ArgumentError, match=r"execute returned True: expected a skyroute.TransactionOutcome"):
            await producer.send_in_transaction(Message("T", b"x"), lambda _message, _sent: True)  # type: ignore[arg-type, return-value]
        (end,) = await cluster.until_seen(RequestCode.END_TRANSACTION)
    assert end.fields["commitOrRollback"] == "0"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: c.poll(-1), "timeout_s is .*: expected seconds, from 0"),
        (lambda c: c.poll("1"), "timeout_s is .*: expected seconds, from 0"),
        (lambda c: c.poll(NAN), "timeout_s is .*: expected seconds, from 0"),
        (lambda c: c.poll(0, 0), "messages_max is .*: expected a whole number"),
        (lambda c: c.poll(0, 1.5), "messages_max is .*: expected a whole number"),
        (lambda c: c.seek(QUEUE, -1), "offset is .*: expected a whole number"),
        (lambda c: c.seek(QUEUE, "begin"), "offset is .*: expected a whole number"),
        (lambda c: c.seek("T", 0), "queue is .*: expected a skyroute.QueueRef"),
        (lambda c: c.seek_to_begin(0), "queue is .*: expected a skyroute.QueueRef"),
        (lambda c: c.seek_to_end(None), "queue is .*: expected a skyroute.QueueRef"),
        (lambda c: c.seek_to_time(QUEUE, NAIVE), "when is .*, without a time zone: write datetime"),
        (lambda c: c.seek_to_time(QUEUE, 1_758_275_140_000), "when is .*: expected a datetime with a time zone"),
        (lambda c: c.position(5), "queue is .*: expected a skyroute.QueueRef"),
        (lambda c: c.committed(5), "queue is .*: expected a skyroute.QueueRef"),
        (lambda c: c.commit([QUEUE]), "offsets is .*: expected a mapping"),
        (lambda c: c.commit({QUEUE: "5"}), "offsets is .*: expected a whole number"),
        (lambda c: c.commit({QUEUE: -1}), "offsets is .*: expected a whole number"),
        (lambda c: c.commit({"T": 5}), "each key of offsets is .*: expected a skyroute.QueueRef"),
        (lambda c: c.pause("T"), "queue is .*: expected a skyroute.QueueRef"),
        (lambda c: c.resume([QUEUE]), "queue is .*: expected a skyroute.QueueRef"),
        (lambda c: c.assign(QUEUE), "queues is .*: expected several skyroute.QueueRef"),
        (lambda c: c.assign("T"), "queues is .*: expected several skyroute.QueueRef"),
        (lambda c: c.assign([("T", "broker-a", 0)]), "each of queues is .*: expected a skyroute.QueueRef"),
        (lambda c: c.assign([QUEUE], 5), "expression is .*: expected tags"),
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
        with pytest.raises(InvalidNameError, match="the name of a topic must be text, not 5"):
            consumer.subscribe(5)  # type: ignore[arg-type]  # invalid on purpose
        with pytest.raises(ArgumentError, match=r"expression is .*: expected tags"):
            consumer.subscribe("T", ["A"])  # type: ignore[arg-type]  # invalid on purpose
        with pytest.raises(TagExpressionError):
            consumer.subscribe("T", "||")
        with pytest.raises(ArgumentError, match=r"handler is .*: expected a function"):
            consumer.subscribe("T", "*", "handle")  # type: ignore[arg-type]  # invalid on purpose
        for timeout_s in (-1, NAN, "1", None):
            with pytest.raises(ArgumentError, match=r"timeout_s is .*: expected seconds"):
                await consumer.stop(timeout_s)  # type: ignore[arg-type]  # invalid on purpose


async def test_an_address_is_text() -> None:
    async with Session(NOWHERE) as session:
        with pytest.raises(ArgumentError, match="address is 9876: expected 'host:port'"):
            await session.call(9876, None)  # type: ignore[arg-type]  # invalid on purpose


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
        "acls": [AclBody("User:u")],
        "actions": ["Pub"],
        "address": NOWHERE,
        "begin": 0,
        "body": b"x",
        "broker": NOWHERE,
        "broker_name": "broker-a",
        "broker_names": ["broker-a"],
        "client_id": "me",
        "client_ids": ["me"],
        "cluster": "C",
        "config": GroupConfig("g"),
        "controllers": NOWHERE,
        "destination": "g2",
        "end": 1,
        "execute": lambda _message, _sent: TransactionOutcome.COMMIT,
        "group": "g",
        "key": "k",
        "message": message,
        "message_id": "1",
        "messages": [Message("T", b"x")],
        "name": "u",
        "namespace": "N",
        "offset": 0,
        "password": "secret",
        "permission": 6,
        "queue": QUEUE,
        "queues": [QUEUE],
        "recall_handle": "h",
        "resources": ["Topic:T"],
        "settings": {"name": "value"},
        "source": "g",
        "to": message,
        "topic": "T",
        "value": "v",
        "when": datetime.now(UTC),
        "when_ms": 0,
    }


async def pass_invalid_values(thing: Any, kind: Any, fine: dict[str, Any]) -> int:
    """Call every method with every invalid value, and return how many calls a SkyrouteError refused."""
    refused = 0
    for name, method in calls_of(kind):
        parameters = list(inspect.signature(method).parameters.values())[1:]
        wanted = {p.name: fine[p.name] for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL}
        if name == "put_order_config":
            wanted["config"] = "broker-a:4"
        for parameter in parameters:
            for value in INVALID_VALUES:
                try:
                    if parameter.kind is parameter.VAR_POSITIONAL:
                        outcome = getattr(thing, name)(value)
                    else:
                        outcome = getattr(thing, name)(**(wanted | {parameter.name: value}))
                    if inspect.isasyncgen(outcome):
                        _ = [each async for each in outcome]
                    elif inspect.isawaitable(outcome):
                        await outcome
                except SkyrouteError:
                    refused += 1
    return refused


# No server listens at NOWHERE: a call with accepted arguments fails at once.


async def test_invalid_values_make_the_admin_raise_only_skyroute_errors() -> None:
    async with Admin(NOWHERE) as admin:
        assert await pass_invalid_values(admin, Admin, fine_values(await stored())) > 0
    async with Admin(NOWHERE, namespace="tenant") as admin:
        assert await pass_invalid_values(admin, Admin, fine_values(await stored())) > 0


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


async def test_invalid_values_make_a_producer_raise_only_skyroute_errors() -> None:
    async with Producer("g", NOWHERE, check=lambda _: TransactionOutcome.COMMIT) as producer:
        fine = fine_values(await stored()) | {"message": Message("T", b"x")}
        assert await pass_invalid_values(producer, Producer, fine) > 0


async def test_invalid_values_make_a_consumer_raise_only_skyroute_errors(cluster: FakeCluster) -> None:
    consumer = Consumer("g", cluster.address)
    assert await pass_invalid_values(consumer, Consumer, fine_values(await stored())) > 0


async def test_invalid_values_make_a_pull_consumer_raise_only_skyroute_errors(cluster: FakeCluster) -> None:
    async with PullConsumer("g", cluster.address) as consumer:
        consumer.assign([QUEUE])
        fine = fine_values(await stored())
        names = {name for name, _ in calls_of(PullConsumer)}
        assert {"poll", "seek", "commit"} <= names
        assert await asyncio.wait_for(pass_invalid_values(_Quick(consumer), PullConsumer, fine), 30.0) > 0


class _Quick:
    """A consumer whose polls return at once by default."""

    def __init__(self, consumer: PullConsumer) -> None:
        self._consumer = consumer

    def __getattr__(self, name: str) -> Any:
        if name == "poll":
            return lambda timeout_s=0, messages_max=None: self._consumer.poll(
                0 if timeout_s in (True, 1.5) else timeout_s, messages_max
            )
        return getattr(self._consumer, name)


async def test_the_blocking_classes_raise_the_same_errors(cluster: FakeCluster) -> None:
    def script() -> None:
        with pytest.raises(ArgumentError, match="compression_level"):
            blocking.Producer("g", cluster.address, compression_level=99)
        with blocking.Producer("g", cluster.address) as producer, pytest.raises(ArgumentError, match="message is"):
            producer.send("text")  # type: ignore[arg-type]  # invalid on purpose
        with blocking.PullConsumer("g", cluster.address) as consumer, pytest.raises(ArgumentError, match="timeout_s"):
            consumer.poll(-1)
        with blocking.Admin(cluster.address) as admin:
            with pytest.raises(ArgumentError, match=r"topic is .*: expected text"):
                admin.route(5)  # type: ignore[arg-type]  # invalid on purpose
            with pytest.raises(ArgumentError, match=r"begin is .*: expected a whole number"):
                admin.read(QUEUE, "0", 1)  # type: ignore[arg-type]  # invalid on purpose
        with pytest.raises(ArgumentError, match="timeout_s"):
            blocking.Consumer("g", cluster.address).stop(-1)

    await asyncio.wait_for(asyncio.to_thread(script), 20.0)
