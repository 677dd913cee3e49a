import json

import pytest

from skyroute.remoting.stepwise import run_through
from skyroute.wire.calls.kv import KV_ENTRIES_A_STEP, ORDER_TOPICS, KvKey, decode_kv_key, encode_kv_table
from skyroute.wire.command import Request
from skyroute.wire.errors import FieldError


def test_a_value_is_kept_under_namespace_and_key() -> None:
    request = Request(code=101, fields={"namespace": ORDER_TOPICS, "key": "TopicA", "value": "ignored"})
    assert decode_kv_key(request) == KvKey("ORDER_TOPIC_CONFIG", "TopicA")


@pytest.mark.parametrize(
    "fields", [{}, {"namespace": "n"}, {"key": "k"}, {"namespace": "", "key": "k"}, {"namespace": "n", "key": ""}]
)
def test_a_missing_namespace_or_key_is_refused_with_apaches_text(fields: dict[str, str]) -> None:
    with pytest.raises(FieldError) as caught:
        decode_kv_key(Request(code=101, fields=fields))
    assert str(caught.value) == "namespace or key is null"


@pytest.mark.parametrize(
    ("table", "written"),
    [
        ({}, '{"table":{}}'),
        ({"TopicA": "broker-a:4"}, '{"table":{"TopicA":"broker-a:4"}}'),
        ({"b": "/", "a": "中\n"}, '{"table":{"b":"/","a":"中\\n"}}'),
    ],
)
def test_a_namespace_is_written_as_a_table(table: dict[str, str], written: str) -> None:
    assert run_through(encode_kv_table(table)) == written.encode()


def test_a_long_table_is_written_in_steps() -> None:
    table = {f"key {at}": f"value {at}" for at in range(2 * KV_ENTRIES_A_STEP + 1)}
    steps = encode_kv_table(table)
    for _ in range(2):
        next(steps)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert json.loads(end.value.value) == {"table": table}
