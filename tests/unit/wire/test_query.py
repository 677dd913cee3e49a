from skyroute.wire.calls.query import encode_key_query, encode_view


def test_messages_are_asked_for_by_key_between_two_times() -> None:
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


def test_times_are_all_there_is_unless_said() -> None:
    fields = encode_key_query("T", "k", count_max=1).fields
    assert (fields["beginTimestamp"], fields["endTimestamp"]) == ("0", "9223372036854775807")


def test_a_senders_id_is_another_kind_of_key() -> None:
    assert encode_key_query("T", "k", count_max=32, unique=True).fields["_UNIQUE_KEY_QUERY"] == "true"


def test_what_only_some_brokers_understand_is_said_only_if_asked_for() -> None:
    fields = encode_key_query("T", "k", count_max=1, index_type="T", last_key="x").fields
    assert (fields["indexType"], fields["lastKey"]) == ("T", "x")
    assert "indexType" not in encode_key_query("T", "k", count_max=1).fields


def test_a_message_is_asked_for_by_its_place_in_the_log() -> None:
    request = encode_view("T", 10_832)
    assert (request.code, request.fields) == (33, {"topic": "T", "offset": "10832"})
