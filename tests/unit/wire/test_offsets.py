import json
from collections.abc import Callable

import pytest

from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.offsets import (
    OffsetQuery,
    OffsetUpdate,
    TimeSearch,
    decode_offset,
    decode_offset_query,
    decode_offset_update,
    decode_queue,
    decode_time_search,
    decode_timestamp,
    encode_earliest_time_query,
    encode_max_offset_query,
    encode_min_offset_query,
    encode_offset,
    encode_offset_query,
    encode_offset_update,
    encode_time_search,
    encode_timestamp,
)
from skyroute.wire.command import Request, Response
from skyroute.wire.errors import FieldError
from tests.unit.wire.golden import golden_line

HEADERS = json.loads(golden_line("client/headers.json"))
QUEUE = QueueRef("TopicTest", "broker-a", 3)


def test_asking_where_a_group_is_has_javas_fields() -> None:
    request = encode_offset_query("CG", QUEUE, zero_if_not_found=False)
    assert (request.code, request.fields) == (14, HEADERS["offset-query"])
    assert decode_offset_query(request) == OffsetQuery("CG", QUEUE, zero_if_not_found=False)


@pytest.mark.parametrize(("choice", "field"), [(None, None), (True, "true"), (False, "false")])
def test_the_answer_for_a_young_queue_may_be_left_to_the_broker(choice: bool | None, field: str | None) -> None:
    request = encode_offset_query("CG", QUEUE, zero_if_not_found=choice)
    assert request.fields.get("setZeroIfNotFound") == field
    assert decode_offset_query(request).zero_if_not_found is choice


def test_saying_where_a_group_is_has_javas_fields() -> None:
    request = encode_offset_update("CG", QUEUE, 12)
    assert (request.code, request.fields) == (15, HEADERS["offset-update"])
    assert decode_offset_update(request) == OffsetUpdate("CG", QUEUE, 12)


def test_searching_by_time_has_javas_fields() -> None:
    request = encode_time_search(QUEUE, 1700000000000, upper=True)
    assert (request.code, request.fields) == (29, HEADERS["time-search"])
    assert decode_time_search(request) == TimeSearch(QUEUE, 1700000000000, upper=True)


@pytest.mark.parametrize(("word", "upper"), [("UPPER", True), ("upper", True), ("LOWER", False), ("", False)])
def test_a_time_search_looks_forward_by_default(word: str, upper: bool) -> None:
    fields = {**HEADERS["time-search"], "boundaryType": word}
    assert decode_time_search(Request(29, fields)).upper is upper


def test_a_time_search_of_an_old_client_looks_forward() -> None:
    fields = {"topic": "T", "queueId": "0", "timestamp": "1"}
    assert decode_time_search(Request(29, fields)) == TimeSearch(QueueRef("T", "", 0), 1, upper=False)


@pytest.mark.parametrize(
    ("encode", "code"),
    [(encode_max_offset_query, 30), (encode_min_offset_query, 31), (encode_earliest_time_query, 32)],
)
def test_requests_about_a_queue_name_it(encode: Callable[[QueueRef], Request], code: int) -> None:
    request = encode(QUEUE)
    # Java's request for the maximum offset has "committed" too, which is the broker's default.
    assert {**request.fields, "committed": "true"} == HEADERS["max-offset-query"]
    assert request.code == code
    assert decode_queue(request) == QUEUE


@pytest.mark.parametrize(
    "fields",
    [{}, {"topic": "T"}, {"queueId": "0"}, {"topic": "", "queueId": "0"}, {"topic": "T", "queueId": "zero"}],
)
def test_a_request_about_no_queue_is_refused(fields: dict[str, str]) -> None:
    for decode in (decode_queue, decode_time_search, decode_offset_update, decode_offset_query):
        with pytest.raises(FieldError):
            decode(Request(30, {"consumerGroup": "CG", "timestamp": "0", "commitOffset": "0", **fields}))


@pytest.mark.parametrize("value", [-1, 0, (1 << 63) - 1])
def test_answers_are_read_as_they_were_written(value: int) -> None:
    assert decode_offset(encode_offset(value)) == value
    assert decode_timestamp(encode_timestamp(value)) == value


@pytest.mark.parametrize("fields", [None, {}, {"offset": "", "timestamp": ""}, {"offset": "1.5", "timestamp": "now"}])
def test_an_answer_without_its_number_is_refused(fields: dict[str, str] | None) -> None:
    with pytest.raises(FieldError, match="offset"):
        decode_offset(Response(fields=fields))
    with pytest.raises(FieldError, match="timestamp"):
        decode_timestamp(Response(fields=fields))
