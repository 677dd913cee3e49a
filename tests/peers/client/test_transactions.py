"""Transactions, ended by the producer, or by its answer to the broker's question. Java answers for us, and we for Java.

These tests come last: once it has ended a transaction, a thread of Apache's broker never rests again.
"""

from __future__ import annotations

import asyncio

from skyroute import Message, Producer, StoredMessage, TransactionOutcome
from tests.peers.client.java_client import JavaClients, Place
from tests.peers.client.programs import ROOT, run


async def test_transactions_are_committed_rolled_back_and_asked_about(java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "SentInTransaction")
    asked: list[str] = []

    async def check(message: StoredMessage) -> TransactionOutcome:
        asked.append(message.body.decode())
        if message.body == b"asked in vain":
            return TransactionOutcome.ROLLBACK
        return TransactionOutcome.COMMIT if asked.count("asked twice") > 1 else TransactionOutcome.UNKNOWN

    async with (
        java.consumer(place, "sent-transactions", topic) as consumer,
        Producer("python-transactions", check=check, **place.python) as producer,
    ):
        for body, outcome in {
            b"rolled back": TransactionOutcome.ROLLBACK,
            b"committed": TransactionOutcome.COMMIT,
            b"asked twice": TransactionOutcome.UNKNOWN,
            b"asked in vain": TransactionOutcome.UNKNOWN,
        }.items():
            result = await producer.send_in_transaction(Message(topic, body), lambda *_, outcome=outcome: outcome)
            assert result.outcome is outcome
        received = await consumer.take_bodies({b"committed", b"asked twice"})
        assert asked.count("asked twice") >= 2
        assert "asked in vain" in asked
        assert {"committed", "rolled back"}.isdisjoint(asked)
        assert {each.body for each in received} == {b"committed", b"asked twice"}


async def test_a_java_producer_of_the_group_answers_for_ours_and_ours_for_java_s(
    java: JavaClients, place: Place
) -> None:
    """The one that sent is gone when the broker asks, so it asks the other member of the group."""
    topic = await java.create_topic(place, "SentByTheDeparted")
    asked: asyncio.Queue[StoredMessage] = asyncio.Queue()

    def leave_open(*_: object) -> TransactionOutcome:
        return TransactionOutcome.UNKNOWN

    async def check(message: StoredMessage) -> TransactionOutcome:
        asked.put_nowait(message)
        return TransactionOutcome.COMMIT

    async with java.consumer(place, "sent-by-departed", topic) as consumer:
        async with (
            Producer("mixed-java-stays", check=leave_open, **place.python) as leaving,
            java.producer(place, "mixed-python-stays", transactional=True) as java_leaving,
        ):
            for_java = {"checks": "commit"}
            await leaving.send_in_transaction(Message(topic, b"from python", properties=for_java), leave_open)
            for_python = {"outcome": "unknown", "checks": "unknown"}
            await java_leaving.send(topic, b"from java", properties=for_python)
        async with (
            java.producer(place, "mixed-java-stays", transactional=True) as java_staying,
            Producer("mixed-python-stays", check=check, **place.python) as staying,
        ):
            # A broker knows a producer by its heartbeats, and those go where the producer has something to send.
            await staying.queues(topic)
            await staying.session.heartbeats.send()
            await java_staying.send(topic, b"hello", properties={"outcome": "commit"})
            received = await consumer.take_bodies({b"from python", b"from java", b"hello"})
            assert {each.body for each in await java_staying.checks(1)} == {b"from python"}
            message = asked.get_nowait()
            assert (message.topic, message.body, message.user_properties) == (topic, b"from java", for_python)
    assert {each.body for each in received} == {b"from python", b"from java", b"hello"}


async def test_the_transaction_example_prints_the_expected_output(place: Place) -> None:
    printed = await run(ROOT / "examples" / "transaction.py", place.name_servers)
    assert printed == "ten COMMIT\ntoo much ROLLBACK\n"
