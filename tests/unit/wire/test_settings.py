import pytest

from skyroute.routing.registration import DataVersion
from skyroute.settings.properties import parse_properties
from skyroute.wire.calls.settings import (
    BrokerStats,
    StatsQuery,
    StatsSpan,
    decode_broker_state,
    decode_broker_stats,
    decode_broker_stats_query,
    decode_kv_value,
    decode_settings,
    encode_broker_settings_query,
    encode_broker_settings_update,
    encode_broker_state,
    encode_broker_state_query,
    encode_broker_stats,
    encode_broker_stats_query,
    encode_expired_log_deletion,
    encode_expired_queues_cleaning,
    encode_kv_deletion,
    encode_kv_put,
    encode_kv_query,
    encode_name_server_settings_query,
    encode_name_server_settings_update,
    encode_settings,
    encode_settings_answer,
    encode_unused_topics_cleaning,
)
from skyroute.wire.command import Request, Response
from skyroute.wire.errors import BodyError, FieldError
from tests.unit.wire.golden import golden_line


@pytest.mark.parametrize(
    ("request_", "code", "fields", "body"),
    [
        (encode_broker_settings_query(), 26, {}, b""),
        (encode_broker_settings_update({"flushDiskType": "SYNC_FLUSH"}), 25, {}, b"flushDiskType=SYNC_FLUSH\n"),
        (encode_name_server_settings_query(), 319, {}, b""),
        (encode_name_server_settings_update({"a": "1", "b": "2"}), 318, {}, b"a=1\nb=2\n"),
        (encode_kv_put("space", "key", "value"), 100, {"namespace": "space", "key": "key", "value": "value"}, b""),
        (encode_kv_query("space", "key"), 101, {"namespace": "space", "key": "key"}, b""),
        (encode_kv_deletion("space", "key"), 102, {"namespace": "space", "key": "key"}, b""),
        (encode_broker_state_query(), 28, {}, b""),
        (encode_expired_queues_cleaning(), 306, {}, b""),
        (encode_unused_topics_cleaning(), 316, {}, b""),
        (encode_broker_stats_query("N", "k"), 315, {"statsName": "N", "statsKey": "k"}, b""),
    ],
)
def test_each_request_has_its_code_and_fields(
    request_: Request, code: int, fields: dict[str, str], body: bytes
) -> None:
    assert (request_.code, request_.fields, request_.body) == (code, fields, body)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("brokerName", "broker-a"),
        ("path", "C:\\store\\commitlog"),
        ("padded", "  two blanks before, one behind "),
        ("marks", "=a:b#c!d"),
        ("lines", "one\ntwo\r\n\tthree"),
        ("名字", "值 \N{ROCKET}"),
        ("a=b", "c"),
        ("a b", "c"),
        ("#comment", "not one"),
        ("empty", ""),
    ],
)
def test_settings_are_read_back_as_they_are(name: str, value: str) -> None:
    text = encode_settings({"before": "1", name: value, "after": "2"}).decode("ascii")
    assert parse_properties(text) == {"before": "1", name: value, "after": "2"}


def test_settings_of_a_server_are_read_without_escapes_and_sorted() -> None:
    settings = decode_settings(golden_line("client/name-server-settings.txt"))
    assert settings["rocketmqHome"] == "/home/rocketmq"
    assert settings["configBlackList"] == "configBlackList;configStorePath;kvConfigPath"
    assert len(settings) == 40
    assert list(settings) == sorted(settings)
    assert decode_settings("b=C:\\x\n\na=1=2\u2028\n".encode()) == {"a": "1=2\u2028", "b": "C:\\x"}


def test_a_value_is_read() -> None:
    assert decode_kv_value(Response(0, fields={"value": "broker-a:4"})) == "broker-a:4"
    assert decode_kv_value(Response(0, fields={"value": ""})) == ""
    with pytest.raises(FieldError):
        decode_kv_value(Response(0))


def test_a_brokers_state_is_read() -> None:
    state = decode_broker_state(golden_line("client/broker-state.txt"))
    assert state["brokerVersionDesc"] == "V5_5_0"
    assert state["getTotalTps"] == "36.757401152394195 37.39623308017149 0.0"
    assert list(state) == sorted(state)


def test_counts_are_read() -> None:
    assert decode_broker_stats(golden_line("client/broker-counts.txt")) == BrokerStats()
    body = b'{"statsMinute":{"avgpt":1.0,"sum":7,"tps":0.5}}'
    assert decode_broker_stats(body).minute == StatsSpan(7, 0.5, 1.0)


@pytest.mark.parametrize(
    ("stats", "count"),
    [
        (BrokerStats(StatsSpan(1), StatsSpan(2), StatsSpan(3)), 3),
        (BrokerStats(StatsSpan(1), StatsSpan(2)), 2),
        (BrokerStats(StatsSpan(1)), 1),
        (BrokerStats(), 0),
    ],
)
def test_the_count_of_a_day_is_that_of_the_longest_span_known(stats: BrokerStats, count: int) -> None:
    assert stats.sum_of_day == count


@pytest.mark.parametrize("body", [b"", b"[]", b'{"table":1}', b'{"table":{"a":'])
def test_an_invalid_state_is_refused(body: bytes) -> None:
    with pytest.raises(BodyError, match="a broker's state"):
        decode_broker_state(body)


@pytest.mark.parametrize("body", [b"", b'{"statsDay":{"sum":"many"}}'])
def test_invalid_statistics_are_refused(body: bytes) -> None:
    with pytest.raises(BodyError, match="a broker's counts"):
        decode_broker_stats(body)


def test_settings_are_answered_with_their_version() -> None:
    answer = encode_settings_answer("a=1\n", DataVersion(0, 1700, 3))
    assert answer.fields == {"version": '{"counter":3,"stateVersion":0,"timestamp":1700}'}
    assert decode_settings(answer.body) == {"a": "1"}


def test_a_state_and_counts_are_read_as_they_were_written() -> None:
    assert decode_broker_state(encode_broker_state({"b": "2", "a": "1 2 3"}).body) == {"a": "1 2 3", "b": "2"}
    stats = BrokerStats(StatsSpan(1, 0.5, 2.0), StatsSpan(2, 1e-7, 3.0), StatsSpan(3))
    assert decode_broker_stats(encode_broker_stats(stats).body) == stats


def test_a_request_for_counts_is_read() -> None:
    assert decode_broker_stats_query(encode_broker_stats_query("N", "k")) == StatsQuery("N", "k")
    with pytest.raises(FieldError, match="statsKey"):
        decode_broker_stats_query(Request(315, {"statsName": "N"}))


def test_expired_messages_are_deleted_on_request() -> None:
    assert encode_expired_log_deletion().code == 329
