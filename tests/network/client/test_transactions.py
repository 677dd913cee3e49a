"""Transactions: outcomes and checks."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from skyroute.client.errors import ClientError, NotRunningError, SystemBusyError
from skyroute.client.producing.producer import Producer
from skyroute.client.results import SendResult
from skyroute.client.session.session import Session
from skyroute.client.trace.records import TransactionEnded, decode_trace
from skyroute.message.message import Message, StoredMessage
from skyroute.wire.calls.transaction import TransactionOutcome
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.support.connections import WAIT_S
from tests.support.fake_broker import FakeCluster, Reply, decode_properties, encode_record, fake_cluster
from tests.support.raw import Command
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("nothing_lost")

SEND = RequestCode.SEND_MESSAGE_V2
END = RequestCode.END_TRANSACTION
CHECK = RequestCode.CHECK_TRANSACTION_STATE
COMMIT, ROLLBACK, UNKNOWN = TransactionOutcome.COMMIT, TransactionOutcome.ROLLBACK, TransactionOutcome.UNKNOWN


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(topics={"T": 4}) as cluster:
        yield cluster


def never_asked(message: StoredMessage) -> TransactionOutcome:
    raise AssertionError(f"the broker asked about {message}")


def producer_of(cluster: FakeCluster, check: Any = never_asked, **settings: Any) -> Producer:
    return Producer("g", cluster.address, check=check, **settings)


async def end_of(cluster: FakeCluster, number: int = 1) -> Command:
    """Wait for this number of outcomes, and return the last."""
    ends = await cluster.until_seen(END, number)
    assert len(ends) == number
    assert all(end.is_one_way for end in ends)
    return ends[-1]


# --------------------------------------------------------------------------------------------------------- our own word


@pytest.mark.parametrize(("outcome", "number"), [(COMMIT, "8"), (ROLLBACK, "12"), (UNKNOWN, "0")])
@pytest.mark.parametrize("plain", [True, False])
async def test_the_outcome_is_sent_to_the_broker(
    cluster: FakeCluster, outcome: TransactionOutcome, number: str, plain: bool
) -> None:
    ran: list[tuple[Message, SendResult, bool]] = []

    def execute(message: Message, sent: SendResult) -> TransactionOutcome:
        ran.append((message, sent, threading.current_thread() is threading.main_thread()))
        return outcome

    async def execute_later(message: Message, sent: SendResult) -> TransactionOutcome:
        return execute(message, sent)

    message = Message("T", b"half", tag="A", delay_level=3)
    async with producer_of(cluster) as producer:
        result = await producer.send_in_transaction(message, execute if plain else execute_later)
        end = await end_of(cluster)
    assert (result.outcome, ran) == (outcome, [(message, result.sent, not plain)])
    (sent,) = cluster.seen(SEND)
    assert sent.fields["f"] == "4"
    assert decode_properties(sent.fields["i"]) == {
        "TAGS": "A",
        "TRAN_MSG": "true",
        "PGROUP": "g",
        "UNIQ_KEY": result.sent.message_id,
    }
    (record,) = cluster.stored(result.sent.queue)
    assert end.fields == {
        "producerGroup": "g",
        "tranStateTableOffset": str(result.sent.queue_offset),
        "commitLogOffset": str(record.position),
        "commitOrRollback": number,
        "fromTransactionCheck": "false",
        "msgId": result.sent.message_id,
        "transactionId": result.sent.message_id,
        "topic": "T",
        "bname": "broker-a",
    }


@pytest.mark.parametrize(
    "code", [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT]
)
async def test_execute_is_not_called_if_the_half_message_is_not_safe(cluster: FakeCluster, code: int) -> None:
    async def unsafe(command: Command, peer: Any) -> Reply:
        reply = await cluster.answer(command, peer)
        assert reply is not None
        return Reply(code, reply.fields)

    cluster.on(SEND, unsafe)
    async with producer_of(cluster) as producer:
        result = await producer.send_in_transaction(Message("T", b"x"), lambda *_: pytest.fail("it ran"))
        assert (result.outcome, (await end_of(cluster)).fields["commitOrRollback"]) == (ROLLBACK, "12")


async def test_a_refused_half_message_is_neither_executed_nor_ended(cluster: FakeCluster) -> None:
    cluster.refuse(SEND, ResponseCode.SYSTEM_BUSY, "busy")
    async with producer_of(cluster, retries=0) as producer:
        with pytest.raises(SystemBusyError):
            await producer.send_in_transaction(Message("T", b"x"), lambda *_: pytest.fail("it ran"))
    assert cluster.seen(END) == []


async def test_a_failing_execute_leaves_the_outcome_unknown(cluster: FakeCluster) -> None:
    def fail(*_: object) -> TransactionOutcome:
        raise ValueError("no money")

    async with producer_of(cluster) as producer:
        with pytest.raises(ValueError, match="no money"):
            await producer.send_in_transaction(Message("T", b"x"), fail)
        end = await end_of(cluster)
    assert (end.fields["commitOrRollback"], end.remark) == ("0", "ValueError: no money")


async def test_an_invalid_outcome_is_sent_as_unknown(cluster: FakeCluster) -> None:
    async with producer_of(cluster) as producer:
        with pytest.raises(ValueError, match="None"):
            await producer.send_in_transaction(Message("T", b"x"), lambda *_: None)  # type: ignore[arg-type]  # what happens
        assert (await end_of(cluster)).fields["commitOrRollback"] == "0"


async def test_a_cancelled_execute_leaves_the_outcome_unknown(cluster: FakeCluster) -> None:
    async def never(*_: object) -> TransactionOutcome:
        await asyncio.Event().wait()
        return COMMIT

    async with producer_of(cluster) as producer:
        sending = asyncio.create_task(producer.send_in_transaction(Message("T", b"x"), never))
        await cluster.until(lambda: bool(cluster.stored_bodies("T")))
        await asyncio.sleep(0)
        await eventually(lambda: producer._in_flight.count == 0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        end = await end_of(cluster)
    assert (end.fields["commitOrRollback"], end.remark) == ("0", "CancelledError: ")


async def test_an_outcome_that_cannot_be_sent_is_left_to_the_check(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def lose_the_broker(*_: object) -> TransactionOutcome:
        await cluster.broker().stop()
        await eventually(lambda: cluster.broker().address not in producer.session.connections.by_address)
        return COMMIT

    async with producer_of(cluster) as producer:
        result = await producer.send_in_transaction(Message("T", b"x"), lose_the_broker)
    assert result.outcome is COMMIT
    assert "transaction outcome not sent, the broker will check" in caplog.text


async def test_an_id_that_makes_no_sense_is_left_to_the_brokers_question(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.on(SEND, lambda *_: Reply(fields={"msgId": "garbage", "queueId": "0", "queueOffset": "0"}))
    async with producer_of(cluster) as producer:
        result = await producer.send_in_transaction(Message("T", b"x"), lambda *_: COMMIT)
    assert result.outcome is COMMIT
    assert "the broker will check" in caplog.text
    assert cluster.seen(END) == []


async def test_without_a_check_there_are_no_transactions(cluster: FakeCluster) -> None:
    async with Producer("g", cluster.address) as producer:
        with pytest.raises(ClientError, match="check="):
            await producer.send_in_transaction(Message("T", b"x"), lambda *_: COMMIT)
    with pytest.raises(NotRunningError):
        await producer_of(cluster).send_in_transaction(Message("T", b"x"), lambda *_: COMMIT)
    assert cluster.seen(SEND) == []


async def test_the_outcome_contains_the_namespace(cluster: FakeCluster) -> None:
    cluster.topics["ns%T"] = 1
    async with producer_of(cluster, namespace="ns") as producer:
        await producer.send_in_transaction(Message("T", b"x"), lambda *_: COMMIT)
        end = await end_of(cluster)
    assert (end.fields["producerGroup"], end.fields["topic"]) == ("ns%g", "ns%T")
    assert decode_properties(cluster.seen(SEND)[0].fields["i"])["PGROUP"] == "ns%g"


# ----------------------------------------------------------------------------------------------- the broker's questions


def question(cluster: FakeCluster, *, group: str = "g", topic: str = "T") -> tuple[dict[str, str], bytes]:
    properties = {"PGROUP": group, "TRAN_MSG": "true", "UNIQ_KEY": "UNIQ", "TAGS": "A"}
    record = encode_record(cluster.queue(topic, 2), 5, 4096, b"half", properties, port=10911, stored_at_ms=1)
    fields = {
        "tranStateTableOffset": "17",
        "commitLogOffset": "8192",
        "msgId": "UNIQ",
        "transactionId": "TX",
        "offsetMsgId": "OFF",
        "topic": "RMQ_SYS_TRANS_HALF_TOPIC",
        "bname": "broker-a",
    }
    return fields, record


async def be_known(producer: Producer, cluster: FakeCluster) -> str:
    await producer.send(Message("T", b"x"))
    await cluster.until_seen(RequestCode.HEART_BEAT)
    return producer.session.client_id


@pytest.mark.parametrize(("outcome", "number"), [(COMMIT, "8"), (ROLLBACK, "12"), (UNKNOWN, "0")])
@pytest.mark.parametrize("plain", [True, False])
async def test_a_transaction_check_calls_the_check_function(
    cluster: FakeCluster, outcome: TransactionOutcome, number: str, plain: bool
) -> None:
    asked: list[StoredMessage] = []

    def check(message: StoredMessage) -> TransactionOutcome:
        asked.append(message)
        return outcome

    async def check_later(message: StoredMessage) -> TransactionOutcome:
        return check(message)

    async with producer_of(cluster, check if plain else check_later) as producer:
        client_id = await be_known(producer, cluster)
        await cluster.tell_client(client_id, CHECK, *question(cluster))
        end = await end_of(cluster)
    (message,) = asked
    assert (message.topic, message.body, message.tag, message.queue_id) == ("T", b"half", "A", 2)
    assert end.fields == {
        "producerGroup": "g",
        "tranStateTableOffset": "17",
        "commitLogOffset": "8192",
        "commitOrRollback": number,
        "fromTransactionCheck": "true",
        "msgId": "UNIQ",
        "transactionId": "TX",
        "topic": "RMQ_SYS_TRANS_HALF_TOPIC",
        "bname": "broker-a",
    }


async def test_traces_contain_the_outcome_and_whether_it_was_checked(cluster: FakeCluster) -> None:
    cluster.topics["RMQ_SYS_TRACE_TOPIC"] = 1
    async with producer_of(cluster, lambda _: ROLLBACK, trace=True) as producer:
        client_id = await be_known(producer, cluster)
        sent = (await producer.send_in_transaction(Message("T", b"half", keys="k"), lambda *_: COMMIT)).sent
        await cluster.tell_client(client_id, CHECK, *question(cluster))
        await end_of(cluster, 2)
    ended = [
        record
        for body in cluster.stored_bodies("RMQ_SYS_TRACE_TOPIC")
        for record in decode_trace(body)
        if isinstance(record, TransactionEnded)
    ]
    own, asked = sorted(ended, key=lambda record: record.from_check)
    assert (own.message_id, own.topic, own.keys, own.outcome, own.from_check) == (
        sent.message_id,
        "T",
        ("k",),
        COMMIT,
        False,
    )
    assert asked == TransactionEnded(
        at_ms=asked.at_ms,
        group="g",
        topic="T",
        message_id="UNIQ",
        tag="A",
        store_host=cluster.broker().address,
        transaction_id="TX",
        outcome=ROLLBACK,
        from_check=True,
    )


@pytest.mark.usefixtures("expects_errors")
async def test_a_failing_check_leaves_the_outcome_unknown(cluster: FakeCluster) -> None:
    def check(_: StoredMessage) -> TransactionOutcome:
        raise KeyError("order")

    async with producer_of(cluster, check) as producer:
        await cluster.tell_client(await be_known(producer, cluster), CHECK, *question(cluster))
        end = await end_of(cluster)
    assert (end.fields["commitOrRollback"], end.remark) == ("0", "KeyError: 'order'")


async def test_only_the_check_of_the_group_is_called(cluster: FakeCluster) -> None:
    asked: list[str] = []

    def check_of(name: str) -> Any:
        def check(_: StoredMessage) -> TransactionOutcome:
            asked.append(name)
            return COMMIT

        return check

    async with Session(cluster.address) as session:
        async with (
            Producer("g1", session=session, check=check_of("g1")) as first,
            Producer("g2", session=session, check=check_of("g2")),
            Producer("g3", session=session),
        ):
            client_id = await be_known(first, cluster)
            await cluster.tell_client(client_id, CHECK, *question(cluster, group="g2"))
            assert (await end_of(cluster)).fields["producerGroup"] == "g2"
            # No producer of the group: the check is refused, and the broker uses another client.
            refused = await cluster.ask_client(client_id, CHECK, *question(cluster, group="g3"))
            assert refused.code == ResponseCode.SYSTEM_ERROR
        assert asked == ["g2"]
        assert len(cluster.seen(END)) == 1
        assert session.requests.handlers[CHECK] == []


async def test_the_check_sees_names_without_the_namespace(cluster: FakeCluster) -> None:
    cluster.topics["ns%T"] = 1
    topics: list[str] = []

    async def check(message: StoredMessage) -> TransactionOutcome:
        topics.append(message.topic)
        return COMMIT

    async with producer_of(cluster, check, namespace="ns") as producer:
        client_id = await be_known(producer, cluster)
        await cluster.tell_client(client_id, CHECK, *question(cluster, group="ns%g", topic="ns%T"))
        assert (await end_of(cluster)).fields["producerGroup"] == "ns%g"
    assert topics == ["T"]


@pytest.mark.parametrize("spoilt", ["record", "fields"])
async def test_a_damaged_transaction_check_is_refused(cluster: FakeCluster, spoilt: str) -> None:
    async with producer_of(cluster) as producer:
        client_id = await be_known(producer, cluster)
        fields, record = question(cluster)
        if spoilt == "record":
            record = record[:30]
        else:
            del fields["commitLogOffset"]
        answer = await cluster.ask_client(client_id, CHECK, fields, record)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (await producer.send(Message("T", b"still here"))).ok
    assert cluster.seen(END) == []


async def test_a_check_that_never_returns_does_not_keep_the_producer_from_stopping(cluster: FakeCluster) -> None:
    called, release = threading.Event(), threading.Event()

    def check(_: StoredMessage) -> TransactionOutcome:
        called.set()
        release.wait(WAIT_S)
        return COMMIT

    async with producer_of(cluster, check) as producer:
        await cluster.tell_client(await be_known(producer, cluster), CHECK, *question(cluster))
        await eventually(called.is_set)
        async with asyncio.timeout(WAIT_S / 2):
            await producer.stop()
    assert not release.is_set()
    assert cluster.seen(END) == []
    release.set()


async def test_a_restarted_producer_handles_checks_again(cluster: FakeCluster) -> None:
    producer = producer_of(cluster, lambda _: COMMIT)
    for number in (1, 2):
        async with producer:
            await producer.send_in_transaction(Message("T", b"x"), lambda *_: COMMIT)
            await end_of(cluster, 2 * number - 1)
            await cluster.tell_client(producer.session.client_id, CHECK, *question(cluster))
            await end_of(cluster, 2 * number)
