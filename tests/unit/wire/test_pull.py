import json
from dataclasses import dataclass

import pytest

from skyroute.wire.calls.pull import (
    PULL_CODES,
    PullAnswer,
    PullQuestion,
    PullStatus,
    decode_pull,
    decode_pull_answer,
    encode_pull,
    encode_pull_answer,
)
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.errors import FieldError
from tests.unit.wire.golden import golden_line

HEADERS = json.loads(golden_line("client/headers.json"))
JAVAS = PullQuestion(
    group="CG",
    topic="TopicTest",
    queue_id=3,
    offset=12,
    count_max=32,
    commit_offset=9,
    suspend_ms=15000,
    expression="TagA",
    subscription_version=1700000000000,
    lite=True,
    broker_name="broker-a",
)
PLAIN = PullQuestion("CG", "TopicTest", 0, 0, 32)


def test_a_pull_has_javas_fields() -> None:
    request = encode_pull(JAVAS)
    assert request.code == 361
    assert request.fields == HEADERS["pull"]


def test_javas_pull_is_read() -> None:
    assert decode_pull(Request(361, HEADERS["pull"])) == JAVAS


@dataclass(frozen=True)
class Kind:
    """A kind of consumer, and the flags its pulls have."""

    question: PullQuestion
    code: int
    flag: str


@pytest.mark.parametrize(
    "kind",
    [
        Kind(PLAIN, 11, "0"),
        Kind(PullQuestion("CG", "TopicTest", 0, 0, 32, suspend_ms=15000), 11, "2"),
        Kind(PullQuestion("CG", "TopicTest", 0, 0, 32, commit_offset=0, suspend_ms=15000), 11, "3"),
        Kind(PullQuestion("CG", "TopicTest", 0, 0, 32, suspend_ms=20000, expression="*"), 11, "6"),
        Kind(PullQuestion("CG", "TopicTest", 0, 0, 10, suspend_ms=20000, expression="*", lite=True), 361, "22"),
        Kind(PullQuestion("CG", "TopicTest", 0, 0, 32, expression="a > 1", expression_type="SQL92"), 11, "4"),
    ],
)
def test_flags_decide_which_fields_are_used(kind: Kind) -> None:
    request = encode_pull(kind.question)
    assert (request.code, request.fields["sysFlag"]) == (kind.code, kind.flag)
    assert decode_pull(request) == kind.question


def test_fields_without_their_flag_do_not_count() -> None:
    question = decode_pull(Request(11, {**HEADERS["pull"], "sysFlag": "8"}))
    assert (question.commit_offset, question.suspend_ms, question.expression, question.lite) == (None, 0, None, False)


def test_an_old_client_sends_less() -> None:
    fields = {name: value for name, value in HEADERS["pull"].items() if name not in ("expressionType", "maxMsgBytes")}
    question = decode_pull(Request(11, fields))
    assert (question.expression_type, question.bytes_max) == ("TAG", (1 << 31) - 1)


def test_a_negative_wait_is_zero() -> None:
    assert decode_pull(Request(11, {**HEADERS["pull"], "suspendTimeoutMillis": "-1"})).suspend_ms == 0


@pytest.mark.parametrize("name", ["consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag"])
@pytest.mark.parametrize("value", [None, "", "\0"])
def test_a_pull_without_a_field_is_refused(name: str, value: str | None) -> None:
    fields = {**HEADERS["pull"], name: value or ""}
    if value is None:
        del fields[name]
    with pytest.raises(FieldError, match=name):
        decode_pull(Request(11, fields))


def test_an_answer_has_javas_fields() -> None:
    answer = PullAnswer(PullStatus.FOUND, 20, 2, 25, suggested_broker_id=1, offset_delta=7, body=b"records")
    response = Response(0, "FOUND", HEADERS["pull-answer"], b"records")
    assert encode_pull_answer(answer, "FOUND") == response
    assert decode_pull_answer(response) == answer


def test_an_answer_always_has_all_four_numbers() -> None:
    fields = encode_pull_answer(PullAnswer(PullStatus.NO_NEW_MESSAGE, 0, 0, 0)).fields
    assert fields == {"suggestWhichBrokerId": "0", "nextBeginOffset": "0", "minOffset": "0", "maxOffset": "0"}


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.SUCCESS, PullStatus.FOUND),
        (ResponseCode.PULL_NOT_FOUND, PullStatus.NO_NEW_MESSAGE),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, PullStatus.NO_MATCHED_MESSAGE),
        (ResponseCode.PULL_OFFSET_MOVED, PullStatus.OFFSET_ILLEGAL),
    ],
)
def test_the_code_is_the_status(code: ResponseCode, status: PullStatus) -> None:
    assert decode_pull_answer(Response(int(code), fields=HEADERS["pull-answer"])).status is status
    assert encode_pull_answer(PullAnswer(status, 0, 0, 0)).code == code


def test_four_codes_are_answers() -> None:
    assert {0, 19, 20, 21} == PULL_CODES


@pytest.mark.parametrize("name", ["nextBeginOffset", "minOffset", "maxOffset"])
@pytest.mark.parametrize("value", [None, "", "x", "1_0", "9" * 19, "9" * 5000])
def test_an_answer_without_an_offset_is_refused(name: str, value: str | None) -> None:
    fields = {**HEADERS["pull-answer"], name: value or ""}
    if value is None:
        del fields[name]
    with pytest.raises(FieldError, match=name):
        decode_pull_answer(Response(0, fields=fields))


def test_an_answer_without_any_field_is_refused() -> None:
    with pytest.raises(FieldError):
        decode_pull_answer(Response(0))
