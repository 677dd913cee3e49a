"""Brokers with access control, 4.x brokers, and namespaces."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace

import pytest

from skyroute import Message, Producer, SkyrouteError
from skyroute.client.errors import BrokerRefusedError, NoPermissionError
from skyroute.remoting.errors import RemotingError
from skyroute.wire.codes import ResponseCode
from tests.peers.client.conftest import DELAY_LEVEL, USER
from tests.peers.client.java_client import JavaClients, JavaError, Place, message
from tests.peers.client.python_client import consuming


async def test_with_acl_and_tls_both_languages_exchange_messages(java: JavaClients, guarded: Place) -> None:
    mine = await java.create_topic(guarded, "GuardedMine")
    others = await java.create_topic(guarded, "OthersOwn")
    await java.create_user(guarded, *USER, prefix="Guarded")
    user = guarded.as_user(*USER)
    async with (
        Producer("Guarded-python", **user.python) as producer,
        java.producer(user, "Guarded-java") as java_producer,
        consuming(user, "Guarded-python-in", mine, failures=1) as inbox,
        java.consumer(user, "Guarded-java-in", mine) as java_inbox,
    ):
        await inbox.await_owned(4)
        await producer.send(Message(mine, "von Python: grün".encode(), keys="k", properties={"p": "v"}))
        await producer.send_batch([Message(mine, b"batch %d" % number) for number in range(3)])
        await java_producer.send(mine, b"from Java")
        bodies = {"von Python: grün".encode(), b"from Java", *(b"batch %d" % number for number in range(3))}
        assert {each.body for each in await java_inbox.take_bodies(bodies)} == bodies
        await inbox.take(2 * len(bodies))  # each fails once: going back to the broker is signed as well

        with pytest.raises(NoPermissionError):
            await producer.send(Message(others, b"not mine"))
        with pytest.raises(JavaError) as refused:
            await java_producer.send(others, b"not mine")
        assert refused.value.code == ResponseCode.NO_PERMISSION


async def test_a_wrong_or_missing_signature_is_refused(java: JavaClients, guarded: Place) -> None:
    topic = await java.create_topic(guarded, "GuardedFromStrangers")
    nobody = {key: value for key, value in guarded.python.items() if key != "credentials"}
    for stranger in (
        guarded.as_user("operator", "a wrong secret").python,
        guarded.as_user("nobody", "x").python,
        nobody,
    ):
        async with Producer("Guarded-strangers", retries=0, **stranger) as producer:
            with pytest.raises(NoPermissionError):
                await producer.send(Message(topic, b"?"))


async def test_tls_that_does_not_fit_is_a_typed_error(java: JavaClients, guarded: Place) -> None:
    topic = await java.create_topic(guarded, "GuardedFromPlainTalk")
    plain = {**guarded.python, "tls": False}
    strict = {**guarded.python, "tls": ssl.create_default_context()}  # it knows nothing of the test's authority
    for options, error in ((plain, RemotingError), (strict, SkyrouteError)):
        async with Producer("Guarded-odd", retries=0, **options) as producer:
            with pytest.raises(error):
                await producer.send(Message(topic, b"?"), timeout_s=5)


async def test_a_4_x_broker_registers(java: JavaClients, older: Place) -> None:
    topic = await java.create_topic(older, "OlderTopic")
    async with (
        Producer("older-python", **older.python) as producer,
        java.producer(older, "older-java") as java_producer,
        consuming(older, "older-python-in", topic, failures=1) as inbox,
        consuming(older, "older-python-ordered", {topic: "a"}, ordered=True, suspend_s=0.1) as ordered,
        java.consumer(older, "older-java-in", {topic: "a || b"}) as java_inbox,
    ):
        await inbox.await_owned(4)
        await ordered.await_owned(4)
        for number in range(5):
            await producer.send(Message(topic, b"ordered %d" % number, tag="a", sharding_key="key"))
        await producer.send_batch([Message(topic, b"batch %d" % number, tag="b") for number in range(5)])
        await producer.send(Message(topic, b"delayed", tag="b", delay_level=DELAY_LEVEL))
        await producer.send(Message(topic, b"all work and no play " * 1000, tag="b"))
        await java_producer.send(topic, b"from Java", tag="b")
        await java_producer.send_batch([message(topic, b"java batch %d" % number, tag="b") for number in range(5)])
        bodies = {b"delayed", b"from Java", b"all work and no play " * 1000}
        bodies |= {b"%s %d" % (what, number) for what in (b"ordered", b"batch", b"java batch") for number in range(5)}
        received, _ = await asyncio.gather(java_inbox.take_bodies(bodies), inbox.take(2 * len(bodies)))
        assert len(received) == len(bodies)
        assert [each.body for each in await ordered.take(5)] == [b"ordered %d" % number for number in range(5)]
    stranger = {**older.python, "credentials": replace(older.python["credentials"], secret_key="wrong")}
    async with Producer("older-stranger", retries=0, **stranger) as producer:
        with pytest.raises(BrokerRefusedError):
            await producer.send(Message(topic, b"?"))


async def test_tenants_with_namespaces_do_not_see_each_other(java: JavaClients, place: Place) -> None:
    for tenant in ("red", "blue"):
        await java.create_topic(place, f"{tenant}%Spaced")
    red, blue = place.with_namespace("red"), place.with_namespace("blue")
    async with (
        consuming(red, "spaced-python", "Spaced", failures=1) as inbox,
        java.consumer(red, "spaced-java", "Spaced") as java_inbox,
        consuming(blue, "spaced-python", "Spaced") as other,
        Producer("spaced", **red.python) as producer,
        java.producer(red, "spaced-java") as java_producer,
        Producer("spaced", **blue.python) as other_producer,
    ):
        await inbox.await_owned(4)
        await producer.send(Message("Spaced", b"from Python"))
        await java_producer.send("Spaced", b"from Java")
        await other_producer.send(Message("Spaced", b"from another"))
        by_java = await java_inbox.take(2)
        received = await inbox.take(4)
        assert {(each.topic, each.body) for each in by_java} == {("Spaced", b"from Python"), ("Spaced", b"from Java")}
        assert {(each.topic, each.body) for each in received} == {("Spaced", b"from Python"), ("Spaced", b"from Java")}
        assert [each.body for each in await other.take(1)] == [b"from another"]
    assert (len(inbox.received), len(java_inbox.received), len(other.received)) == (4, 2, 1)
