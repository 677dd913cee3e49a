"""Transactions: half messages, commit and rollback, and checks."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyroute.broker.handlers.transactions import TransactionHandlers
from skyroute.broker.transactions import open_transactions
from skyroute.broker.transactions import transactions as module
from skyroute.message.flags import TransactionState, transaction_of
from skyroute.message.message_id import encode_offset_id
from skyroute.message.record import decode_record
from skyroute.message.reserved_topics import HALF_DONE_TOPIC, HALF_GIVEN_UP_TOPIC, HALF_TOPIC
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.transaction import (
    TransactionEnd,
    TransactionOutcome,
    decode_transaction_check,
    encode_end_transaction,
    encode_resume_check,
)
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import FLAG_ONEWAY, Response
from tests.support.disks import HERE, FullDisk, draft, read_all
from tests.unit.broker.clients import a_beat, a_peer
from tests.unit.broker.transaction_broker import GROUP, Room

ROLLBACK = TransactionOutcome.ROLLBACK


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    room = Room(tmp_path)
    yield room
    room.store.kill()


# ------------------------------------------------------------------------------------------------------ half messages


def test_a_half_message_is_in_the_half_topic_with_its_real_topic(room: Room) -> None:
    room.begin("ID1", b"coffee")
    (half,) = read_all(room.store, HALF_TOPIC)
    assert half.body == b"coffee"
    assert half.properties == {
        **{"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": "ID1", "TAGS": "paid"},
        **{"REAL_TOPIC": "Orders", "REAL_QID": "3", "__transactionId__": "ID1"},
    }
    assert transaction_of(half.sys_flag) is TransactionState.NONE
    assert not room.delivered()


def test_check_properties_of_a_producer_are_removed(room: Room) -> None:
    room.begin(TRANSACTION_CHECK_TIMES="99", TRAN_PREPARED_QUEUE_OFFSET="0")
    (half,) = read_all(room.store, HALF_TOPIC)
    assert "TRANSACTION_CHECK_TIMES" not in half.properties
    assert "TRAN_PREPARED_QUEUE_OFFSET" not in half.properties


def test_a_half_message_with_too_long_properties_is_refused(room: Room) -> None:
    sent = draft("Orders", 3, properties={"TRAN_MSG": "true", "x": "y" * 32_740})
    with pytest.raises(RefusedError) as refused:
        room.transactions.prepare(sent)
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL


def test_the_number_of_open_transactions_is_bounded(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_transactions, "OPEN_MAX", 3)
    halves = [room.begin(f"ID{n}") for n in range(3)]
    with pytest.raises(RefusedError) as refused:
        room.begin()
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    room.check()  # their copies count once
    with pytest.raises(RefusedError):
        room.begin()
    room.end(halves[1])
    room.begin()
    with pytest.raises(RefusedError):
        room.begin()


# ------------------------------------------------------------------------------------------------ commit and rollback


def test_a_committed_message_is_delivered_to_its_real_topic(room: Room) -> None:
    half = room.begin("ID1", b"coffee")
    room.end(half)
    (message,) = room.delivered()
    assert message.body == b"coffee"
    assert transaction_of(message.sys_flag) is TransactionState.COMMITTED
    assert message.prepared_position == half.log_position
    assert message.flag == 7
    assert message.properties["TRAN_MSG"] == "true"
    assert message.properties["REAL_TOPIC"] == "Orders"
    assert room.done_bodies() == [b"0,"]
    assert read_all(room.store, HALF_DONE_TOPIC)[0].properties["TAGS"] == "d"
    assert not room.check()


def test_a_rolled_back_message_is_neither_delivered_nor_checked(room: Room) -> None:
    room.end(room.begin(), ROLLBACK)
    assert not room.delivered()
    assert room.done_bodies() == [b"0,"]
    assert not room.check()


def test_an_unknown_outcome_leaves_the_transaction_open(room: Room) -> None:
    room.end(room.begin(), TransactionOutcome.UNKNOWN)
    assert not room.done_bodies()
    assert len(room.check()) == 1


def test_transactions_that_end_together_share_an_op_message(room: Room) -> None:
    for half in [room.begin(f"ID{n}") for n in range(3)]:
        end = TransactionEnd(GROUP, half.queue_offset, half.log_position, TransactionOutcome.COMMIT)
        room.transactions.end(end, room.now_ms())
    room.transactions.write_op_messages()
    assert room.done_bodies() == [b"0,1,2,"]
    assert room.transactions.write_op_messages() is None


def test_the_size_of_an_op_message_is_bounded(room: Room) -> None:
    room.config.op_message_bytes_max = 4
    for half in [room.begin(f"ID{n}") for n in range(5)]:
        end = TransactionEnd(GROUP, half.queue_offset, half.log_position, ROLLBACK)
        room.transactions.end(end, room.now_ms())
    room.transactions.write_op_messages()
    assert room.done_bodies() == [b"0,1,", b"2,3,", b"4,"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"producer_group": "others"}, "The producer group wrong"),
        ({"half_offset": 7}, "The transaction state table offset wrong"),
        ({"log_position": 3}, "Find prepared transaction message failed"),
        ({"log_position": 1 << 40}, "Find prepared transaction message failed"),
    ],
)
def test_an_end_that_does_not_match_its_half_message_is_refused(
    room: Room, changes: dict[str, object], reason: str
) -> None:
    half = room.begin()
    fields = {"producer_group": GROUP, "half_offset": half.queue_offset, "log_position": half.log_position, **changes}
    with pytest.raises(RefusedError, match=reason) as refused:
        room.transactions.end(TransactionEnd(outcome=TransactionOutcome.COMMIT, **fields), room.now_ms())  # type: ignore[arg-type]  # as the parameters say
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert not room.delivered()


def test_only_half_messages_can_be_committed(room: Room) -> None:
    other = room.appender.put_plain(
        draft("Orders", 3, properties={"PGROUP": GROUP, "REAL_TOPIC": "T", "REAL_QID": "0"})
    )
    with pytest.raises(RefusedError, match="Find prepared"):
        room.end(other)


def test_a_transaction_ends_once(room: Room) -> None:
    half = room.begin()
    room.end(half)
    with pytest.raises(RefusedError, match="ended already"):
        room.end(half)
    room.check()
    with pytest.raises(RefusedError, match="ended already"):
        room.end(half, ROLLBACK)
    assert len(room.delivered()) == 1


def test_a_commit_that_cannot_be_stored_leaves_the_transaction_open(tmp_path: Path) -> None:
    disk = FullDisk()
    room = Room(tmp_path, disk=disk)
    half = room.begin("ID1", b"x" * 1000)
    disk.is_full = True
    with pytest.raises(Exception, match="no space left"):
        room.end(half)
    disk.is_full = False
    room.end(half)
    assert len(room.delivered()) == 1
    room.store.kill()


def test_an_op_message_that_cannot_be_stored_is_stored_later(tmp_path: Path) -> None:
    disk = FullDisk()
    room = Room(tmp_path, disk=disk)
    half = room.begin()
    disk.is_full = True
    room.end(half, ROLLBACK)
    assert not room.done_bodies()
    disk.is_full = False
    assert not room.check()
    assert room.done_bodies() == [b"0,"]
    room.store.kill()


# ---------------------------------------------------------------------------------------------------------- checks


def test_a_check_has_the_message_of_the_producer(room: Room) -> None:
    half = room.begin("ID1", b"coffee")
    (question,) = room.check()
    check = question.check
    assert question.group == GROUP
    assert check.half_offset == 1
    assert (check.message_id, check.transaction_id, check.topic) == ("ID1", "ID1", HALF_TOPIC)
    assert check.broker_name == "broker-a"
    assert check.offset_message_id == encode_offset_id(HERE, check.log_position)
    message = decode_record(check.record, check_crc=True)
    assert (message.topic, message.queue_id, message.body) == ("Orders", 3, b"coffee")
    assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert (message.log_position, message.queue_offset) == (check.log_position, 1)
    assert half.log_position < check.log_position
    copies = read_all(room.store, HALF_TOPIC)
    assert [copy.properties.get("TRANSACTION_CHECK_TIMES") for copy in copies] == [None, "1"]
    assert copies[1].flag == 7


def test_the_response_to_a_check_ends_the_transaction(room: Room) -> None:
    room.begin("ID1", b"coffee")
    (question,) = room.check()
    room.answer(question)
    assert [message.body for message in room.delivered()] == [b"coffee"]
    assert not room.check()


def test_a_late_end_with_the_first_offset_ends_the_copy(room: Room) -> None:
    half = room.begin()
    room.check()
    (question,) = room.check()
    room.end(half)
    assert len(room.delivered()) == 1
    assert not room.check()
    with pytest.raises(RefusedError, match="ended already"):
        room.answer(question)


def test_young_transactions_are_not_checked(room: Room) -> None:
    room.begin()
    assert not room.check(6)
    assert len(room.check(0.001)) == 1


def test_a_transaction_is_checked_every_round_until_it_ends(room: Room) -> None:
    room.begin()
    assert [len(room.check(1)) for _ in range(9)] == [0, 0, 0, 0, 0, 0, 1, 1, 1]


def test_a_message_can_delay_its_first_check(room: Room) -> None:
    half = room.begin(CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    assert not room.check(60)
    room.end(half)
    late = room.begin(CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    room.clock.advance(61)
    with pytest.raises(RefusedError) as refused:
        room.end(late)
    assert refused.value.code == ResponseCode.ILLEGAL_OPERATION
    (question,) = room.check(0)
    room.answer(question)
    assert len(room.delivered()) == 2


def test_a_message_can_have_an_earlier_check_and_still_be_ended(room: Room) -> None:
    half = room.begin(CHECK_IMMUNITY_TIME_IN_SECONDS="1")
    assert not room.check(1)
    room.clock.advance(5)
    room.end(half)
    assert len(room.delivered()) == 1
    room.begin(CHECK_IMMUNITY_TIME_IN_SECONDS="1")
    assert len(room.check(1.001)) == 1
    room.begin("ID2", CHECK_IMMUNITY_TIME_IN_SECONDS="0")
    assert len(room.check(0.01)) == 2


def test_a_check_delay_that_is_not_a_number_is_ignored(room: Room) -> None:
    room.begin(CHECK_IMMUNITY_TIME_IN_SECONDS="soon")
    assert not room.check(6)
    assert len(room.check(0.001)) == 1


def test_the_age_of_a_transaction_counts_from_its_born_time(room: Room) -> None:
    room.begin("ID1", b"body", 5)
    assert not room.check(1)
    assert len(room.check(0.001)) == 1
    late = room.begin("ID2", b"body", 50, CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    room.clock.advance(11)
    with pytest.raises(RefusedError) as refused:
        room.end(late)
    assert refused.value.code == ResponseCode.ILLEGAL_OPERATION


def test_a_producer_with_a_clock_ahead_gets_checks(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    room.begin("ID1", b"body", -3600)
    assert not room.check(6)
    assert len(room.check(0.001)) == 1
    monkeypatch.setattr(module, "SPAN_MAX", 0)
    room.begin("ID2", b"body", -3600, CHECK_IMMUNITY_TIME_IN_SECONDS="600")
    asked = [question.check.message_id for _ in range(3) for question in room.check()]
    assert "ID2" in asked


def test_a_check_is_not_delayed_beyond_the_retention_time(room: Room) -> None:
    room.begin(CHECK_IMMUNITY_TIME_IN_SECONDS="9" * 18)
    assert not room.check(73 * 3600)
    assert len(read_all(room.store, HALF_GIVEN_UP_TOPIC)) == 1


def test_a_transaction_is_given_up_after_its_last_check(room: Room) -> None:
    room.config.transaction_checks_max = 3
    room.begin("ID1", b"coffee")
    assert [len(room.check()) for _ in range(5)] == [1, 1, 1, 0, 0]
    (given_up,) = read_all(room.store, HALF_GIVEN_UP_TOPIC)
    assert given_up.body == b"coffee"
    assert given_up.properties["TRANSACTION_CHECK_TIMES"] == "3"
    assert room.topics.get(HALF_GIVEN_UP_TOPIC) is not None


def test_a_transaction_older_than_the_retention_time_is_given_up(room: Room) -> None:
    room.begin()
    assert not room.check(73 * 3600)
    assert len(read_all(room.store, HALF_GIVEN_UP_TOPIC)) == 1


def test_a_transaction_that_was_given_up_can_be_checked_again(room: Room) -> None:
    room.config.transaction_checks_max = 1
    room.begin("ID1", b"coffee")
    room.check()
    room.check()
    (given_up,) = read_all(room.store, HALF_GIVEN_UP_TOPIC)
    handlers = TransactionHandlers(room.transactions, room.appender, room.identity)
    peer, _ = a_peer(1)
    message_id = encode_offset_id(HERE, given_up.log_position)
    assert handlers.resume(encode_resume_check(HALF_GIVEN_UP_TOPIC, message_id), peer).code == ResponseCode.SUCCESS
    (question,) = room.check()
    room.answer(question)
    assert [message.body for message in room.delivered()] == [b"coffee"]
    for wrong in (encode_offset_id(HERE, 1 << 40), "nonsense"):
        with pytest.raises(RefusedError):
            handlers.resume(encode_resume_check(HALF_GIVEN_UP_TOPIC, wrong), peer)


def test_resuming_an_open_transaction_does_not_duplicate_it(room: Room) -> None:
    half = room.begin()
    room.transactions.resume(half.log_position)
    (question,) = room.check()
    room.answer(question)
    assert not room.check()
    assert len(room.delivered()) == 1


def test_half_messages_without_a_check_are_moved_to_the_end_of_the_queue(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SPAN_MAX", 5)
    patient = room.begin("patient", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
    for turn in range(3):
        for n in range(8):
            room.end(room.begin(f"{turn}-{n}"), ROLLBACK)
        assert not room.check()
    copies = [half for half in read_all(room.store, HALF_TOPIC) if half.properties["UNIQ_KEY"] == "patient"]
    assert len(copies) == 4
    assert {copy.properties.get("TRAN_PREPARED_QUEUE_OFFSET") for copy in copies[1:]} == {"0"}
    room.reopen()
    assert room.transactions.open_count == 1
    room.end(patient)
    assert len(room.delivered()) == 1
    room.reopen()
    assert room.transactions.open_count == 0
    assert not room.check(4000)


def test_a_half_message_without_room_for_properties_blocks_no_other(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SPAN_MAX", 0)
    patient = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "3600"}
    probe = room.begin("ID1", **patient)
    room.end(probe, ROLLBACK)
    used = len(read_all(room.store, HALF_TOPIC)[0].raw_properties)
    room.begin("ID1", x="y" * (32_767 - used - 3), **patient)
    room.begin("ID2")
    assert [question.check.message_id for question in room.check()] == ["ID2"]
    assert room.transactions.open_count == 1
    room.check(3600)
    assert len(read_all(room.store, HALF_GIVEN_UP_TOPIC)) == 1


def test_a_moved_and_checked_half_message_ends_once(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPAN_MAX", 0)
    patient = room.begin("patient", CHECK_IMMUNITY_TIME_IN_SECONDS="100")
    assert not room.check()
    assert not room.check()
    room.reopen()
    (question,) = room.check(100)
    room.reopen()
    assert room.transactions.open_count == 1
    room.answer(question)
    assert len(room.delivered()) == 1
    with pytest.raises(RefusedError):
        room.end(patient)
    room.reopen()
    assert room.transactions.open_count == 0


# -------------------------------------------------------------------------------------------------------- a restart


@pytest.mark.parametrize("how", ["reopen", "crash"])
def test_open_transactions_are_found_after_a_restart(room: Room, how: str) -> None:
    ended, *_ = (room.begin(name) for name in ("ended", "silent", "mute"))
    room.end(ended)
    getattr(room, how)()
    assert room.transactions.open_count == 2
    for times in ("1", "2"):
        questions = room.check()
        assert {question.check.message_id for question in questions} == {"silent", "mute"}
        asked = {decode_record(question.check.record).properties["TRANSACTION_CHECK_TIMES"] for question in questions}
        assert asked == {times}
        getattr(room, how)()
        assert room.transactions.open_count == 2
    for question in room.check():
        room.answer(question, ROLLBACK)
    getattr(room, how)()
    assert room.transactions.open_count == 0


def test_ended_transactions_are_not_checked_after_a_restart(room: Room) -> None:
    for n in range(50):
        room.end(room.begin(f"ID{n}"), ROLLBACK if n % 2 else TransactionOutcome.COMMIT)
    open_half = room.begin("open")
    for _ in range(3):
        room.check()
        room.reopen()
        assert room.transactions.open_count == 1
    (question,) = room.check()
    assert question.check.message_id == "open"
    assert decode_record(question.check.record).properties["TRANSACTION_CHECK_TIMES"] == "4"
    with pytest.raises(RefusedError, match="ended already"):
        room.end(open_half)  # its op message is lost, so it is checked again
    room.answer(question)
    room.reopen()
    assert not room.check()
    assert len(room.delivered()) == 26


def test_the_floors_of_both_topics_are_saved(room: Room) -> None:
    for n in range(10):
        room.end(room.begin(f"ID{n}"), ROLLBACK)
    held = room.begin("held", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
    for n in range(10):
        room.end(room.begin(f"more{n}"), ROLLBACK)
    room.check()
    room.check()
    assert room.offsets.get("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0) == held.queue_offset
    assert room.offsets.get("CID_RMQ_SYS_TRANS", HALF_DONE_TOPIC, 0) == 10
    room.end(held)
    room.check()
    room.check()
    assert room.offsets.get("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0) == 21
    assert room.offsets.get("CID_RMQ_SYS_TRANS", HALF_DONE_TOPIC, 0) == 21
    room.reopen()
    assert room.transactions.open_count == 0


def test_transactions_are_read_from_the_start_if_the_log_lost_its_end(room: Room) -> None:
    room.begin("open")
    room.offsets.commit("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0, 99)
    room.offsets.commit("CID_RMQ_SYS_TRANS", HALF_DONE_TOPIC, 0, 99)
    room.reopen()
    assert room.transactions.open_count == 1


def test_half_messages_of_apaches_brokers_are_read(room: Room) -> None:
    """One ended by an op message without a comma, as of old brokers; one moved; one moved and ended."""
    known = {"TRAN_MSG": "true", "PGROUP": GROUP, "REAL_TOPIC": "Orders", "REAL_QID": "3", "WAIT": "true"}

    def put(unique_id: str, **more: str) -> None:
        room.appender.put_plain(draft(HALF_TOPIC, 0, b"x", {**known, "UNIQ_KEY": unique_id, **more}))

    put("done")
    patient = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "600"}
    put("carried", **patient)
    put("ended", **patient)
    put("carried", TRAN_PREPARED_QUEUE_OFFSET="1", **patient)
    put("ended", TRAN_PREPARED_QUEUE_OFFSET="2", **patient)
    room.appender.put_plain(draft(HALF_DONE_TOPIC, 0, b"0", {"TAGS": "d", "WAIT": "true"}))
    room.appender.put_plain(draft(HALF_DONE_TOPIC, 0, b"2,", {"TAGS": "d"}))
    room.appender.put_plain(draft(HALF_DONE_TOPIC, 0, b"1,3,", {"TAGS": "x"}))
    room.appender.put_plain(draft(HALF_DONE_TOPIC, 0, b"junk,,-1,999999999999999999999999,", {"TAGS": "d"}))
    room.reopen()
    assert room.transactions.open_count == 1
    halves = read_all(room.store, HALF_TOPIC)
    end = TransactionEnd(GROUP, 1, halves[1].log_position, TransactionOutcome.COMMIT)
    room.transactions.end(end, halves[1].born_at_ms)
    room.transactions.write_op_messages()
    assert [message.properties["UNIQ_KEY"] for message in room.delivered()] == ["carried"]
    assert room.done_bodies()[-1] == b"3,1,"
    room.reopen()
    assert room.transactions.open_count == 0


def test_many_ends_between_two_rounds_are_bounded_in_memory(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_transactions, "ENDED_UNREAD_MAX", 10)
    open_half = room.begin("open")
    for n in range(100):
        room.end(room.begin(f"ID{n}"), ROLLBACK)
    assert room.transactions.open_count == 1
    room.end(open_half)
    assert not room.check()


def test_open_transactions_are_read_in_steps_before_a_check(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_transactions, "INDEXED_A_STEP", 10)
    for n in range(100):
        room.begin(f"ID{n}")
    checks = room.transactions.check(room.now_ms())
    counts = [room.transactions.open_count for _ in checks]
    assert counts[:9] == [10, 20, 30, 40, 50, 60, 70, 80, 90]
    assert room.transactions.open_count == 100


def test_transactions_that_begin_and_end_while_the_queue_is_read_are_checked_or_not(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_transactions, "INDEXED_A_STEP", 10)
    halves = [room.begin(f"ID{n}") for n in range(40)]
    room.clock.advance(31)
    checks = room.transactions.check(room.now_ms())
    assert next(checks) is None  # ten are read
    for half in (halves[5], halves[15], halves[39]):
        room.end(half, ROLLBACK)
    room.begin("late", b"body", 31)
    asked = {pending.check.message_id for pending in checks if pending is not None}
    assert asked == {f"ID{n}" for n in range(40) if n not in (5, 15, 39)} | {"late"}


def test_a_scan_of_transactions_that_are_not_due_is_made_in_steps(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCANNED_A_STEP", 10)
    for n in range(100):
        room.begin(f"ID{n}")
    room.check(after_s=0)
    assert list(room.transactions.check(room.now_ms())) == [None] * 10


def test_an_end_reads_one_step_of_the_queue_at_most(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_transactions, "ENDED_UNREAD_MAX", 10)
    monkeypatch.setattr(open_transactions, "INDEXED_A_STEP", 5)
    halves = [room.begin(f"ID{n}") for n in range(50)]
    counts = []
    for half in reversed(halves[20:]):
        room.end(half, ROLLBACK)
        counts.append(room.transactions.open_count)
    assert counts[8:13] == [0, 0, 5, 10, 15]
    assert len(room.check()) == 20


# -------------------------------------------------------------------------------------------------------- the edges


async def test_checks_go_to_the_producers_in_turn(room: Room) -> None:
    lines = []
    for connection in (1, 2):
        peer, line = a_peer(connection)
        room.clients.beat(peer, a_beat(f"client-{connection}", producers=[GROUP]), "JAVA", 479, 0.0)
        lines.append(line)
    for n in range(4):
        room.begin(f"ID{n}")
    room.clock.advance(31)
    await room.transactions.send_checks()
    assert [len(line.told) for line in lines] == [2, 2]
    checks = [decode_transaction_check(request) for line in lines for request in line.told]
    assert {check.message_id for check in checks} == {"ID0", "ID1", "ID2", "ID3"}


async def test_giving_up_many_transactions_yields_to_other_tasks(room: Room) -> None:
    room.config.transaction_checks_max = 0
    for n in range(500):
        room.begin(f"ID{n}")
    room.clock.advance(31)
    asking = asyncio.create_task(room.transactions.send_checks())
    turns = 0
    while not asking.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 10
    assert len(read_all(room.store, HALF_GIVEN_UP_TOPIC)) == 500


async def test_a_group_without_producers_keeps_its_transactions(room: Room) -> None:
    room.config.transaction_checks_max = 2
    room.begin()
    for _ in range(3):
        room.clock.advance(31)
        await room.transactions.send_checks()
    assert len(read_all(room.store, HALF_GIVEN_UP_TOPIC)) == 1
    assert room.announced == [HALF_GIVEN_UP_TOPIC]


async def test_one_way_ends_of_one_turn_share_an_op_message(room: Room) -> None:
    handlers = TransactionHandlers(room.transactions, room.appender, room.identity)
    peer, _ = a_peer(1)
    for half in [room.begin(f"ID{n}") for n in range(3)]:
        request = encode_end_transaction(
            TransactionEnd(GROUP, half.queue_offset, half.log_position, TransactionOutcome.COMMIT)
        )
        request.flag |= FLAG_ONEWAY
        handlers.end(request, peer)
    assert not room.done_bodies()
    await asyncio.sleep(0)
    assert room.done_bodies() == [b"0,1,2,"]


async def test_an_op_message_is_stored_before_the_response(room: Room) -> None:
    handlers = TransactionHandlers(room.transactions, room.appender, room.identity)
    peer, _ = a_peer(1)
    half = room.begin()
    request = encode_end_transaction(TransactionEnd(GROUP, half.queue_offset, half.log_position, ROLLBACK))
    answer = handlers.end(request, peer)
    assert isinstance(answer, Response)
    assert answer.code == ResponseCode.SUCCESS
    assert room.done_bodies() == [b"0,"]
