"""Transactions of our own producer with a running broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from skyroute import Message, Producer, StoredMessage, TransactionOutcome
from skyroute.client.errors import ServerFailedError
from skyroute.message.message_id import decode_offset_id
from skyroute.message.reserved_topics import HALF_DONE_TOPIC, HALF_GIVEN_UP_TOPIC, HALF_TOPIC
from skyroute.wire.calls.transaction import TransactionEnd, encode_end_transaction
from skyroute.wire.codes import ResponseCode
from tests.network.broker.one_broker import OneBroker, one_broker
from tests.network.client.consumers import Inbox
from tests.support.waiting import eventually

COMMIT, ROLLBACK, UNKNOWN = TransactionOutcome.COMMIT, TransactionOutcome.ROLLBACK, TransactionOutcome.UNKNOWN


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
async def place(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[OneBroker]:
    async with one_broker(tmp_path, flush_disk_type=request.param) as place:
        yield place


def bodies(messages: list[StoredMessage]) -> list[bytes]:
    return [message.body for message in messages]


async def send_checks(place: OneBroker) -> None:
    place.clock.advance(31)
    await place.broker.components.transactions.send_checks()


class Ledger:
    """Answers transaction checks with a given state, and records them."""

    def __init__(self, outcome: TransactionOutcome) -> None:
        self.outcome = outcome
        self.asked: list[StoredMessage] = []

    def was_asked(self, times: int) -> bool:
        return len(self.asked) == times

    async def check(self, message: StoredMessage) -> TransactionOutcome:
        self.asked.append(message)
        return self.outcome


async def test_consumers_receive_only_committed_messages(place: OneBroker) -> None:
    inbox = Inbox()
    consumer = place.consumer()
    consumer.on("Orders")(inbox)
    async with consumer, Producer("p", place.name_server.address, check=Ledger(UNKNOWN).check) as producer:
        for body, outcome in ((b"no", ROLLBACK), (b"open", UNKNOWN), (b"yes", COMMIT)):
            result = await producer.send_in_transaction(Message("Orders", body), lambda *_, outcome=outcome: outcome)
            assert (result.sent.queue.topic, result.sent.queue.queue_id) == ("Orders", 0)
        assert await inbox.until(1) == [b"yes"]
        (message,) = inbox.messages
        assert message.properties["TRAN_MSG"] == "true"
        await eventually(lambda: len(place.stored(HALF_DONE_TOPIC)) >= 1)
    assert bodies(place.stored(HALF_TOPIC)) == [b"no", b"open", b"yes"]


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
async def test_the_producer_of_an_open_transaction_is_checked(place: OneBroker, outcome: TransactionOutcome) -> None:
    ledger = Ledger(outcome)
    async with Producer("p", place.name_server.address, check=ledger.check) as producer:
        await producer.send_in_transaction(Message("Orders", b"coffee", keys="k"), lambda *_: UNKNOWN)
        await producer.session.heartbeats.send()
        await send_checks(place)
        await eventually(lambda: len(place.stored(HALF_DONE_TOPIC)) == 2)
        await send_checks(place)
    (asked,) = ledger.asked
    assert (asked.topic, asked.queue_id, asked.body, asked.keys) == ("Orders", 0, b"coffee", ("k",))
    assert bodies(place.stored()) == ([b"coffee"] if outcome is COMMIT else [])


@pytest.mark.parametrize("by_force", [False, True])
async def test_open_transactions_survive_a_broker_restart(place: OneBroker, by_force: bool) -> None:
    ledger = Ledger(COMMIT)
    async with Producer("p", place.name_server.address, check=ledger.check) as producer:
        await producer.send_in_transaction(Message("Orders", b"ended"), lambda *_: COMMIT)
        await producer.send_in_transaction(Message("Orders", b"open"), lambda *_: UNKNOWN)
        await eventually(lambda: len(place.stored(HALF_DONE_TOPIC)) == 1)
        await place.restart(by_force=by_force)
        assert place.broker.components.transactions.open_count == 1
        await producer.session.heartbeats.send()
        await eventually(lambda: len(place.broker.components.clients.producers("p")) == 1)
        await send_checks(place)
        await eventually(lambda: bodies(place.stored()) == [b"ended", b"open"])
        await eventually(lambda: len(place.stored(HALF_DONE_TOPIC)) == 3)
        await place.restart(by_force=by_force)
        assert place.broker.components.transactions.open_count == 0
    assert bodies(ledger.asked) == [b"open"]


async def test_a_check_goes_to_another_producer_of_the_group(place: OneBroker) -> None:
    ledger = Ledger(COMMIT)
    async with Producer("p", place.name_server.address, check=Ledger(UNKNOWN).check) as leaving:
        await leaving.send_in_transaction(Message("Orders", b"left open"), lambda *_: UNKNOWN)
    async with Producer("p", place.name_server.address, check=ledger.check) as staying:
        await staying.queues("Orders")
        await staying.session.heartbeats.send()
        await send_checks(place)
        await eventually(lambda: bodies(place.stored()) == [b"left open"])
    assert len(ledger.asked) == 1


async def test_a_half_message_without_a_result_moves_to_the_discard_topic(tmp_path: Path) -> None:
    async with one_broker(tmp_path, transaction_checks_max=2) as place:
        ledger = Ledger(UNKNOWN)
        async with Producer("p", place.name_server.address, check=ledger.check) as producer:
            await producer.send_in_transaction(Message("Orders", b"lost"), lambda *_: UNKNOWN)
            for times in range(1, 4):
                await send_checks(place)
                await eventually(partial(ledger.was_asked, min(times, 2)))
        assert bodies(place.stored(HALF_GIVEN_UP_TOPIC)) == [b"lost"]
        assert HALF_GIVEN_UP_TOPIC in place.name_server.server.table.topics


async def test_a_wrong_end_of_a_transaction_returns_the_reason(place: OneBroker) -> None:
    async with Producer("p", place.name_server.address, check=Ledger(UNKNOWN).check) as producer:
        result = await producer.send_in_transaction(Message("Orders", b"coffee"), lambda *_: UNKNOWN)
        position = decode_offset_id(result.sent.offset_id).log_position

        async def end(group: str) -> None:
            ending = TransactionEnd(group, result.sent.queue_offset, position, COMMIT)
            await producer.session.ask(place.address, encode_end_transaction(ending))

        with pytest.raises(ServerFailedError, match="producer group wrong") as failed:
            await end("others")
        assert failed.value.code == ResponseCode.SYSTEM_ERROR
        await end("p")
        assert len(place.stored(HALF_DONE_TOPIC)) == 1
        assert bodies(place.stored()) == [b"coffee"]
        with pytest.raises(ServerFailedError, match="ended already"):
            await end("p")


async def test_many_concurrent_transactions_end_correctly(tmp_path: Path) -> None:
    async with AsyncExitStack() as ends:
        place = await ends.enter_async_context(one_broker(tmp_path))
        producer = await ends.enter_async_context(Producer("p", place.name_server.address, check=Ledger(UNKNOWN).check))

        async def send(number: int) -> None:
            outcome = (COMMIT, ROLLBACK)[number % 2]

            async def execute(*_: object) -> TransactionOutcome:
                return outcome

            await producer.send_in_transaction(Message("Orders", str(number).encode()), execute)

        await asyncio.gather(*map(send, range(200)))
        await eventually(lambda: len(place.stored()) == 100)
        assert {int(body) % 2 for body in bodies(place.stored())} == {0}

        def done() -> set[bytes]:
            return {offset for record in place.stored(HALF_DONE_TOPIC) for offset in record.body.split(b",") if offset}

        await eventually(lambda: len(done()) == 200)
        await send_checks(place)
        assert place.broker.components.transactions.open_count == 0
