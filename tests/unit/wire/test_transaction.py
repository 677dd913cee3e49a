import json

import pytest

from skyroute.wire.calls.transaction import (
    TransactionCheck,
    TransactionEnd,
    TransactionOutcome,
    decode_end_transaction,
    decode_resume_check,
    decode_transaction_check,
    encode_end_transaction,
    encode_resume_check,
    encode_transaction_check,
)
from skyroute.wire.command import Request
from skyroute.wire.errors import FieldError
from tests.unit.wire.golden import golden_line

HEADERS = json.loads(golden_line("client/headers.json"))
END = TransactionEnd(
    producer_group="PG",
    half_offset=5,
    log_position=4096,
    outcome=TransactionOutcome.ROLLBACK,
    message_id="UNIQ",
    transaction_id="TX",
    topic="TopicTest",
    from_check=True,
    broker_name="broker-a",
    remark="it raised",
)
CHECK = TransactionCheck(
    half_offset=5,
    log_position=4096,
    record=b"record",
    message_id="UNIQ",
    transaction_id="TX",
    offset_message_id="OFF",
    topic="RMQ_SYS_TRANS_HALF_TOPIC",
    broker_name="broker-a",
)


def test_an_end_has_javas_fields() -> None:
    request = encode_end_transaction(END)
    assert (request.code, request.fields, request.remark) == (37, HEADERS["transaction-end"], "it raised")
    assert decode_end_transaction(request) == END


@pytest.mark.parametrize(
    ("outcome", "number"),
    [(TransactionOutcome.UNKNOWN, "0"), (TransactionOutcome.COMMIT, "8"), (TransactionOutcome.ROLLBACK, "12")],
)
def test_outcomes_have_the_numbers_of_a_messages_flags(outcome: TransactionOutcome, number: str) -> None:
    request = encode_end_transaction(TransactionEnd("PG", 0, 0, outcome))
    assert request.fields["commitOrRollback"] == number
    assert decode_end_transaction(request).outcome is outcome


@pytest.mark.parametrize("number", ["1", "4", "-8", "x", ""])
def test_another_outcome_is_refused(number: str) -> None:
    with pytest.raises(FieldError, match="commitOrRollback"):
        decode_end_transaction(Request(37, {**HEADERS["transaction-end"], "commitOrRollback": number}))


@pytest.mark.parametrize("name", ["producerGroup", "tranStateTableOffset", "commitLogOffset"])
def test_an_end_without_a_field_is_refused(name: str) -> None:
    fields = {key: value for key, value in HEADERS["transaction-end"].items() if key != name}
    with pytest.raises(FieldError, match=name):
        decode_end_transaction(Request(37, fields))


def test_a_check_has_javas_fields() -> None:
    request = encode_transaction_check(CHECK)
    assert (request.code, request.fields, request.body) == (39, HEADERS["transaction-check"], b"record")
    assert decode_transaction_check(request) == CHECK


def test_a_check_may_have_the_two_numbers_only() -> None:
    request = encode_transaction_check(TransactionCheck(5, 4096, b"record"))
    assert request.fields == {"tranStateTableOffset": "5", "commitLogOffset": "4096"}
    assert decode_transaction_check(request) == TransactionCheck(5, 4096, b"record")


@pytest.mark.parametrize("name", ["tranStateTableOffset", "commitLogOffset"])
def test_a_check_without_a_number_is_refused(name: str) -> None:
    fields = {key: value for key, value in HEADERS["transaction-check"].items() if key != name}
    with pytest.raises(FieldError, match=name):
        decode_transaction_check(Request(39, fields))


def test_a_half_message_to_check_again_is_requested_by_its_id() -> None:
    request = encode_resume_check("TRANS_CHECK_MAX_TIME_TOPIC", "7F0000010000")
    assert (request.code, decode_resume_check(request)) == (323, "7F0000010000")
    with pytest.raises(FieldError, match="msgId"):
        decode_resume_check(Request(323))
