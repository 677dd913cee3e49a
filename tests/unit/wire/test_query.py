import json

import pytest

from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.clients import Subscription
from skyroute.wire.calls.query import (
    KeyQuery,
    QueueUnit,
    UnitsQuery,
    decode_key_query,
    decode_units_query,
    decode_view,
    encode_key_matches,
    encode_key_query,
    encode_units,
    encode_units_query,
    encode_view,
    group_offsets_parts,
)
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request
from skyroute.wire.errors import FieldError


def test_messages_are_queried_by_key_between_two_times() -> None:
    request = encode_key_query("T", "k", count_max=64, begin_ms=1, end_ms=2)
    assert request.code == 12
    assert request.fields == {
        "topic": "T",
        "key": "k",
        "maxNum": "64",
        "beginTimestamp": "1",
        "endTimestamp": "2",
        "_UNIQUE_KEY_QUERY": "false",
    }


def test_a_query_covers_all_times_by_default() -> None:
    fields = encode_key_query("T", "k", count_max=1).fields
    assert (fields["beginTimestamp"], fields["endTimestamp"]) == ("0", "9223372036854775807")


def test_a_senders_id_is_another_kind_of_key() -> None:
    assert encode_key_query("T", "k", count_max=32, unique=True).fields["_UNIQUE_KEY_QUERY"] == "true"


def test_fields_of_newer_brokers_are_sent_only_if_requested() -> None:
    fields = encode_key_query("T", "k", count_max=1, index_type="T", last_key="x").fields
    assert (fields["indexType"], fields["lastKey"]) == ("T", "x")
    assert "indexType" not in encode_key_query("T", "k", count_max=1).fields


def test_a_message_is_queried_by_its_log_position() -> None:
    request = encode_view("T", 10_832)
    assert (request.code, request.fields) == (33, {"topic": "T", "offset": "10832"})
    assert decode_view(request) == 10_832


def test_a_query_by_key_is_decoded_as_encoded() -> None:
    asked = encode_key_query("T", "k", count_max=64, begin_ms=1, end_ms=2, unique=True)
    assert decode_key_query(asked) == KeyQuery("T", "k", 64, 1, 2, unique=True)


@pytest.mark.parametrize("name", ["topic", "key", "maxNum", "beginTimestamp", "endTimestamp"])
def test_a_request_for_a_key_without_a_field_is_refused(name: str) -> None:
    request = encode_key_query("T", "k", count_max=1)
    del request.fields[name]
    with pytest.raises(FieldError, match=name):
        decode_key_query(request)


def test_what_was_found_comes_with_how_far_the_index_is() -> None:
    fields = {"indexLastUpdateTimestamp": "5", "indexLastUpdatePhyoffset": "6"}
    found = encode_key_matches(b"records", last_stored_at_ms=5, last_position=6)
    assert (found.code, found.fields, found.body) == (ResponseCode.SUCCESS, fields, b"records")
    nothing = encode_key_matches(b"", last_stored_at_ms=5, last_position=6)
    assert (nothing.code, nothing.fields) == (ResponseCode.QUERY_NOT_FOUND, fields)


@pytest.mark.parametrize("query", [UnitsQuery("T", 1, 2, 3), UnitsQuery("T", 1, 2, 3, "g")])
def test_a_query_for_queue_entries_is_decoded_as_encoded(query: UnitsQuery) -> None:
    request = encode_units_query(query)
    assert request.code == 321
    assert decode_units_query(request) == query


def test_a_request_for_units_needs_a_topic_and_a_place() -> None:
    with pytest.raises(FieldError, match="topic"):
        decode_units_query(Request(321, {"index": "0"}))
    with pytest.raises(FieldError, match="index"):
        decode_units_query(Request(321, {"topic": "T"}))


def test_queue_entries_are_encoded_with_javas_names() -> None:
    units = [QueueUnit(100, 50, -7)]
    plain = encode_units(units, min_offset=0, max_offset=9)
    assert plain.body == (
        b'{"maxQueueIndex":9,"minQueueIndex":0,'
        b'"queueData":[{"eval":false,"physicOffset":100,"physicSize":50,"tagsCode":-7}]}'
    )
    query = UnitsQuery("T", 0, 0, 1, "g")
    offline = json.loads(encode_units(units, min_offset=0, max_offset=9, group_of=query).body)
    assert offline["filterData"] == "g@T is not online!"
    online = encode_units(units, min_offset=0, max_offset=9, group_of=query, subscription=Subscription("T"))
    assert json.loads(online.body)["subscriptionData"]["topic"] == "T"


def test_offsets_of_a_group_are_written_by_client() -> None:
    offsets = {"c1": {QueueRef("T", "b", 0): 7}, "c2": {}}
    body = "".join(group_offsets_parts(offsets.items()))
    assert body == '{"consumerTable":{"c1":{{"brokerName":"b","queueId":0,"topic":"T"}:7},"c2":{}}}'
