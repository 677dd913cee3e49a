"""Request-reply between Java and Python in both directions."""

from __future__ import annotations

import asyncio

import pytest

from skyroute import Consumer, Message, Producer, StoredMessage
from skyroute.client.errors import RequestTimeoutError
from tests.peers.client.java_client import JavaClients, Place


async def test_java_replies_to_our_requests(java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "AskedByPython")
    async with (
        java.consumer(place, "java-replies", topic, is_replying=True) as replier,
        Producer("python-asks", **place.python) as producer,
    ):
        await replier.await_owned(4)
        questions = [f"question {number}" for number in range(10)]
        replies = await asyncio.gather(
            *(producer.request(Message(topic, question.encode()), timeout_s=10) for question in questions)
        )
        assert [reply.body.decode() for reply in replies] == [f"reply to {question}" for question in questions]


async def test_we_reply_to_java_s_requests(java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "AskedByJava")
    async with Producer("python-replies", **place.python) as producer, java.producer(place, "java-asks") as asking:
        consumer = Consumer("python-replies", session=producer.session)

        @consumer.on(topic)
        async def reply(message: StoredMessage) -> None:
            await producer.reply(message, b"python's reply to " + message.body)

        async with consumer:
            # Whoever asks first must be known to the brokers, which the Java client sees to on its own.
            replies = await asyncio.gather(*(asking.request(topic, b"question %d" % number) for number in range(10)))
    assert [each.body for each in replies] == [b"python's reply to question %d" % number for number in range(10)]


async def test_a_request_without_a_reply_times_out(java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "AskedInVain")
    async with Producer("python-asks", **place.python) as producer:
        with pytest.raises(RequestTimeoutError):
            await producer.request(Message(topic, b"anybody?"), timeout_s=1.0)
