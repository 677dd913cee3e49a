"""Rows become batches that brokers take: nothing is lost, mixed up or too long, and every row has its key."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.client.outbound import BODY_BYTES_MAX
from skyroute.message.properties import decode_properties
from skyroute.message.queue_ref import QueueRef
from skyroute.message.tags import java_hash
from skyroute.pipeline.sink.rows import IDEMPOTENCY_KEY, Part, RowError, RowPacker

BATCH_BYTES_MAX = 1_000
QUEUES = {
    topic: [QueueRef(topic, broker, number) for broker in ("a", "b") for number in range(2)]
    for topic in ("Orders", "Payments", "%RETRY%billing")
}
TYPES = {
    "body": pa.binary(),
    "topic": pa.string(),
    "tags": pa.string(),
    "keys": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "sharding_key": pa.string(),
    "delay_level": pa.int32(),
    "queue_id": pa.int32(),
    "broker_name": pa.string(),
}


def packer(topic: str | None = "Orders", namespace: str | None = None) -> RowPacker:
    return RowPacker("query/3/1/", topic=topic, namespace=namespace, batch_bytes_max=BATCH_BYTES_MAX)


def table(**columns: Sequence[Any]) -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(values, TYPES[name]) for name, values in columns.items()})


def packed(by: RowPacker, rows: pa.RecordBatch) -> list[Part]:
    return by.pack(rows, by.topics(rows), QUEUES)


def properties_of(parts: Sequence[Part]) -> list[dict[str, str]]:
    return [decode_properties(item.raw_properties) for part in parts for item in part.items]


ROW = st.fixed_dictionaries(
    {
        "body": st.binary(min_size=1, max_size=600),
        "topic": st.sampled_from(list(QUEUES)),
        "tags": st.sampled_from([None, "", "paid"]),
        "sharding_key": st.sampled_from([None, "", "one", "two"]),
        "delay_level": st.sampled_from([None, 0, 0, 3]),
        "queue_id": st.sampled_from([None, None, 1]),
    }
)


@given(st.lists(st.lists(ROW, min_size=1, max_size=30), min_size=1, max_size=3))
def test_all_rows_go_out_once_in_order_and_only_with_those_they_may_go_with(
    batches: list[list[dict[str, Any]]],
) -> None:
    by = packer(topic=None)
    parts: list[Part] = []
    for rows in batches:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        parts += packed(by, table(**columns, broker_name=["a"] * len(rows)))
    sent = [row for rows in batches for row in rows]
    places: dict[int, int] = {}
    for number, part in enumerate(parts):
        assert part.size <= BATCH_BYTES_MAX or len(part.items) == 1
        for item in part.items:
            told = decode_properties(item.raw_properties)
            at = int(told[IDEMPOTENCY_KEY].removeprefix("query/3/1/"))
            row = sent[at]
            places[at] = number
            assert item.body == row["body"]
            assert part.topic == row["topic"]
            assert told.get("TAGS") == (row["tags"] or None)
            assert told.get("DELAY") == (str(row["delay_level"]) if row["delay_level"] else None)
            assert part.queue == expected_queue(row)
            if row["delay_level"] or row["topic"].startswith("%RETRY%"):
                assert len(part.items) == 1
    assert sorted(places) == list(range(len(sent))) == list(range(by.count))
    ordered: dict[QueueRef, int] = {}
    for at in range(len(sent)):
        queue = parts[places[at]].queue
        if queue is not None:
            assert places[at] >= ordered.get(queue, 0), "a later row overtook an earlier one"
            ordered[queue] = places[at]


def expected_queue(row: Mapping[str, Any]) -> QueueRef | None:
    if row["queue_id"] is not None:
        return QueueRef(row["topic"], "a", row["queue_id"])
    if row["sharding_key"]:
        return QUEUES[row["topic"]][abs(java_hash(row["sharding_key"])) % 4]
    return None


def test_a_row_that_needs_no_queue_travels_with_its_neighbours_to_any() -> None:
    (part,) = packed(packer(), table(body=[b"one", b"two", b"three"]))
    assert [item.body for item in part.items] == [b"one", b"two", b"three"]
    assert part.queue is None


def test_texts_are_sent_as_utf8() -> None:
    (part,) = packed(packer(), pa.record_batch({"Body": pa.array(["grün"])}))
    assert part.items[0].body == "grün".encode()


def test_the_option_wins_over_the_column_topic() -> None:
    (part,) = packed(packer("Payments"), table(body=[b"one"], topic=["Orders"]))
    assert part.topic == "Payments"


def test_what_was_read_can_be_written_and_columns_win_over_properties() -> None:
    read = [("TAGS", "old"), ("KEYS", "k1"), ("UNIQ_KEY", "AC"), ("CLUSTER", "c"), ("shop", "north"), ("empty", "")]
    read += [(IDEMPOTENCY_KEY, "an earlier one"), ("DELAY", "3")]
    parts = packed(packer(), table(body=[b"one"], tags=["new"], properties=[read]))
    assert properties_of(parts) == [{"shop": "north", "KEYS": "k1", "TAGS": "new", IDEMPOTENCY_KEY: "query/3/1/0"}]


def test_several_keys_are_parted_by_blanks() -> None:
    rows = pa.record_batch({"body": [b"1", b"2"], "keys": pa.array([["k1", None, "k2"], None])})
    assert [told.get("KEYS") for told in properties_of(packed(packer(), rows))] == ["k1 k2", None]


def test_a_namespace_is_told() -> None:
    parts = packed(packer(namespace="tenant"), table(body=[b"one"]))
    assert properties_of(parts)[0]["INSTANCE_ID"] == "tenant"


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"body": [b"fine", None]}, "row 1 of this partition cannot be sent: body is empty"),
        ({"body": [b""]}, "row 0 .* body is empty"),
        ({"body": [bytes(BODY_BYTES_MAX + 1)]}, "row 0 .* 4,194,305 bytes"),
        ({"body": [b"x"], "topic": [""]}, "topic is empty: fill it in, or set the option topic"),
        ({"body": [b"x"], "delay_level": [-1]}, "delay_level is -1"),
        ({"body": [b"x", b"y"], "tags": ["fine", "\x02"]}, "row 1 .* 'TAGS' holds U"),
        ({"body": [b"x"], "properties": [[("a\x01", "b")]]}, "row 0 .* holds U"),
        ({"body": [b"x"], "properties": [[("a", "b" * 40_000)]]}, "row 0 .* 32,767 are possible"),
        ({"body": [b"x"], "queue_id": [1]}, r"on several brokers \(a, b\): add a column broker_name"),
        ({"body": [b"x"], "queue_id": [7]}, "has no queue 7 that can be written; it has a:0, a:1, b:0, b:1"),
        ({"body": [b"x"], "queue_id": [1], "broker_name": ["c"]}, "has no queue 1 on broker c"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(columns: dict[str, list[Any]], what: str) -> None:
    with pytest.raises(RowError, match=what):
        packed(packer(None if "topic" in columns else "Orders"), table(**columns))


def test_rows_are_counted_over_all_batches_of_a_partition() -> None:
    by = packer()
    packed(by, table(body=[b"one", b"two"]))
    with pytest.raises(RowError, match="row 3 of this partition"):
        packed(by, table(body=[b"three", b""]))
