import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.message.queue_ref import QueueRef
from skyroute.wire.errors import BodyError, WireError
from skyroute.wire.fastjson import JsonError
from skyroute.wire.queue_maps import (
    OBJECT_KEYS_MAX,
    by_queue,
    decode_with_queue_keys,
    encode_queue_map,
    queue_of_key,
    quote_object_keys,
    write_queue_map,
)
from tests.support.hang_guard import hang_guard
from tests.unit.wire.golden import golden_line

QUEUE = QueueRef("TopicTest", "broker-a", 0)


class TopicOffset(msgspec.Struct):
    maxOffset: int  # noqa: N815 - the wire's name
    minOffset: int  # noqa: N815 - the wire's name


class TopicStats(msgspec.Struct):
    offsetTable: dict[str, TopicOffset]  # noqa: N815 - the wire's name


@pytest.mark.parametrize(
    ("written", "quoted"),
    [
        (b'{{"a":1}:2}', rb'{"{\"a\":1}":2}'),
        (b'{{"a":1}:2,{"a":2}:3}', rb'{"{\"a\":1}":2,"{\"a\":2}":3}'),
        (b'{"t":{{"a":1} :{"b":[{"c":1},{"d":2}]}}}', rb'{"t":{"{\"a\":1}" :{"b":[{"c":1},{"d":2}]}}}'),
        (b'{{"a":"}:{"}:"{{\\"x\\":1}:2}"}', rb'{"{\"a\":\"}:{\"}":"{{\"x\":1}:2}"}'),
        (b'{{\n\t"a":1\n}:2}', rb'{"{\n\t\"a\":1\n}":2}'),
        (b"{{}:1}", b'{"{}":1}'),
        ('{{"a":"主\\\\"}:1}'.encode(), '{"{\\"a\\":\\"主\\\\\\\\\\"}":1}'.encode()),
    ],
)
def test_an_object_that_is_a_key_gets_quotes(written: bytes, quoted: bytes) -> None:
    assert quote_object_keys(written) == quoted


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_what_is_json_already_stays_as_it_is(value: Any) -> None:
    data = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    assert quote_object_keys(data) == data


@given(
    st.dictionaries(
        st.builds(QueueRef, st.from_regex(r"[\w%{}:,\"\\-]{1,9}", fullmatch=True), st.just("b"), st.integers(0, 9)),
        st.integers(0, 1 << 62),
    )
)
def test_a_table_is_read_as_it_was_written(table: dict[QueueRef, int]) -> None:
    body = encode_queue_map("offsetTable", table)
    assert by_queue(decode_with_queue_keys(body, dict[str, dict[str, int]])["offsetTable"]) == table


def test_a_table_is_written_as_java_writes_it() -> None:
    table = {QUEUE: 12, QueueRef("TopicTest", "broker-a", 1): 9007199254740993}
    assert encode_queue_map("offsetTable", table) == golden_line("client/offset-reset.txt")


def test_values_are_encoded_by_the_given_function() -> None:
    assert write_queue_map({QUEUE: 0.5}, repr) == '{{"brokerName":"broker-a","queueId":0,"topic":"TopicTest"}:0.5}'


def test_javas_tables_decode_into_structs() -> None:
    stats = decode_with_queue_keys(golden_line("client/topic-stats.txt"), TopicStats)
    assert by_queue(stats.offsetTable) == {QUEUE: TopicOffset(maxOffset=5, minOffset=1)}


def test_tables_within_tables_are_read() -> None:
    table = decode_with_queue_keys(golden_line("client/consumer-offsets-of-group.txt"), dict[str, dict[str, Any]])
    assert by_queue(table["consumerTable"]["cid"])[QUEUE] == 12


def test_the_indented_form_of_an_offsets_file_is_read() -> None:
    text = (
        b'{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":0,\n\t\t\t"topic":"TopicTest"'
        b"\n\t\t}:12\n\t}\n}"
    )
    assert by_queue(decode_with_queue_keys(text, dict[str, dict[str, int]])["offsetTable"]) == {QUEUE: 12}


def test_bare_numbers_beside_object_keys_are_read() -> None:
    body = b'{{"brokerName":"broker-a","queueId":"0","topic":"TopicTest"}:{0:7,1:"8"}}'
    assert by_queue(decode_with_queue_keys(body, dict[str, dict[int, int]])) == {QUEUE: {0: 7, 1: 8}}


def test_a_key_that_is_quoted_already_is_read() -> None:
    body = rb'{"{\"brokerName\":\"broker-a\",\"queueId\":0,\"topic\":\"TopicTest\"}":12}'
    assert by_queue(decode_with_queue_keys(body, dict[str, int])) == {QUEUE: 12}


def test_a_reference_that_leads_nowhere_costs_no_more_than_itself() -> None:
    listed = decode_with_queue_keys(golden_line("client/references-4.9.7.txt"), dict[str, Any])
    first, second = listed["consumeStatsList"][0]["g"]
    assert [queue.queue_id for queue in by_queue(first["offsetTable"])] == [1, 0]
    assert len(second["offsetTable"]) == 1
    assert by_queue(second["offsetTable"]) == {}


def test_a_table_that_was_not_sent_is_empty() -> None:
    assert by_queue(None) == {}


@pytest.mark.parametrize(
    "key",
    [
        "",
        "0",
        "[]",
        "{}",
        '{"topic":"T"}',
        '{"topic":"T","queueId":"x"}',
        '{"topic":"T","queueId":4294967296}',
        '{"topic":"","queueId":0}',
        '{"topic":"a\\nb","queueId":0}',
        '{"topic":"T","queueId":0,"brokerName":"\\u0000"}',
        '{"topic":"\ud800","queueId":0}',
        "[" * 100_000,
    ],
)
def test_a_key_that_is_not_a_queue_is_refused(key: str) -> None:
    with pytest.raises(BodyError):
        queue_of_key(key)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"\xff",
        b'{"offsetTable":',
        b'{"offsetTable":{{"topic":"T"}:}}',
        b'{"offsetTable":{{"topic":"T"}:{"minOffset":"x"}}}',
        b'{"offsetTable":{{{"a":1}:1}:{}}}',
        b'{"offsetTable":' * 100_000,
        b"{" * 1_000_000,
    ],
)
def test_a_body_that_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(BodyError):
        decode_with_queue_keys(body, TopicStats)


def test_every_truncation_is_refused() -> None:
    whole = golden_line("client/topic-stats.txt")
    for length in range(len(whole)):
        with pytest.raises(BodyError):
            decode_with_queue_keys(whole[:length], TopicStats)


@given(st.text('{}":,\\ab01 \n[]$', max_size=60))
def test_any_text_is_a_table_or_a_wire_error(text: str) -> None:
    with suppress(WireError):
        assert isinstance(by_queue(decode_with_queue_keys(text.encode(), dict[str, Any])), dict)


def test_too_many_keys_are_refused() -> None:
    allowed = b"{" + b"{}:1," * (OBJECT_KEYS_MAX - 1)
    assert quote_object_keys(allowed + b"{}:1}").count(b'"{}"') == OBJECT_KEYS_MAX
    with pytest.raises(JsonError, match=f"more than {OBJECT_KEYS_MAX} objects"):
        quote_object_keys(allowed + b"{}:1,{}:1}")


@pytest.mark.parametrize(
    "pattern",
    [b"{", b"{{", b'"', b'"\\"', b'{"', b'{"a":', b"{}", b"{a", b"{ ", b"}:", b'{"a"}', b'{"\\', b'{{"a":1} ', b" "],
)
def test_hostile_text_takes_linear_time(pattern: bytes) -> None:
    text = pattern * (1_000_000 // len(pattern))
    with hang_guard(), suppress(JsonError):
        assert isinstance(quote_object_keys(text), bytes)
