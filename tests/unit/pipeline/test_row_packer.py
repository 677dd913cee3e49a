"""Rows are packed into valid batches, in order, each row with its idempotency key."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.client.producing.prepared_message import BODY_BYTES_MAX
from skyroute.message.properties import decode_properties
from skyroute.message.queue_ref import QueueRef
from skyroute.message.tags import java_hash
from skyroute.pipeline.sink import row_packer
from skyroute.pipeline.sink.row_packer import BATCH_ROWS_MAX, IDEMPOTENCY_KEY, RowError, RowPacker, SendBatch

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
    "deliver_at": pa.timestamp("us", tz="UTC"),
    "queue_id": pa.int32(),
    "broker_name": pa.string(),
}


def packer(topic: str | None = "Orders", namespace: str | None = None) -> RowPacker:
    return RowPacker("query/3/1/", topic=topic, namespace=namespace, batch_bytes_max=BATCH_BYTES_MAX)


def table(**columns: Sequence[Any]) -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(values, TYPES[name]) for name, values in columns.items()})


def packed(by: RowPacker, rows: pa.RecordBatch) -> list[SendBatch]:
    by.topics(rows)
    return list(by.pack(rows, QUEUES))


def properties_of(batches: Sequence[SendBatch]) -> list[dict[str, str]]:
    return [decode_properties(raw) for batch in batches for _, raw, _ in batch.items]


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
def test_all_rows_are_packed_once_in_order_and_in_valid_batches(
    row_lists: list[list[dict[str, Any]]],
) -> None:
    by = packer(topic=None)
    batches: list[SendBatch] = []
    for rows in row_lists:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        batches += packed(by, table(**columns, broker_name=["a"] * len(rows)))
    sent = [row for rows in row_lists for row in rows]
    places: dict[int, int] = {}
    for number, batch in enumerate(batches):
        assert len(batch.items) == batch.count
        assert len(batch.encoded) <= BATCH_BYTES_MAX or batch.count == 1
        for body, raw_properties, _ in batch.items:
            properties = decode_properties(raw_properties)
            at = int(properties[IDEMPOTENCY_KEY].removeprefix("query/3/1/"))
            row = sent[at]
            places[at] = number
            assert body == row["body"]
            assert batch.topic == row["topic"]
            assert properties.get("TAGS") == (row["tags"] or None)
            assert properties.get("DELAY") == (str(row["delay_level"]) if row["delay_level"] else None)
            assert batch.queue == expected_queue(row)
            if row["delay_level"] or row["topic"].startswith("%RETRY%"):
                assert batch.count == 1
    assert sorted(places) == list(range(len(sent))) == list(range(by.count))
    ordered: dict[QueueRef, int] = {}
    for at in range(len(sent)):
        queue = batches[places[at]].queue
        if queue is not None:
            assert places[at] >= ordered.get(queue, 0), "a later row overtook an earlier one"
            ordered[queue] = places[at]


def expected_queue(row: Mapping[str, Any]) -> QueueRef | None:
    if row["queue_id"] is not None:
        return QueueRef(row["topic"], "a", row["queue_id"])
    if row["sharding_key"]:
        return QUEUES[row["topic"]][abs(java_hash(row["sharding_key"])) % 4]
    return None


def test_rows_without_a_target_queue_share_a_batch() -> None:
    (batch,) = packed(packer(), table(body=[b"one", b"two", b"three"]))
    assert [body for body, _, _ in batch.items] == [b"one", b"two", b"three"]
    assert batch.queue is None


def test_a_batch_has_a_bounded_number_of_rows() -> None:
    by = RowPacker("query/3/1/", topic="Orders", namespace=None, batch_bytes_max=1 << 20)
    batches = packed(by, table(body=[b"x"] * 2_500))
    assert [batch.count for batch in batches] == [BATCH_ROWS_MAX, BATCH_ROWS_MAX, 500]


def test_texts_are_sent_as_utf8() -> None:
    (batch,) = packed(packer(), pa.record_batch({"Body": pa.array(["grün"])}))
    assert batch.items[0][0] == "grün".encode()


def test_the_topic_option_overrides_the_topic_column() -> None:
    (batch,) = packed(packer("Payments"), table(body=[b"one"], topic=["Orders"]))
    assert batch.topic == "Payments"


def test_rows_can_be_written_as_read_and_columns_override_properties() -> None:
    read = [("TAGS", "old"), ("KEYS", "k1"), ("UNIQ_KEY", "AC"), ("CLUSTER", "c"), ("shop", "north"), ("empty", "")]
    read += [(IDEMPOTENCY_KEY, "an older key"), ("DELAY", "3")]
    batches = packed(packer(), table(body=[b"one"], tags=["new"], properties=[read]))
    assert properties_of(batches) == [{"shop": "north", "KEYS": "k1", "TAGS": "new", IDEMPOTENCY_KEY: "query/3/1/0"}]


def test_rows_with_a_delivery_time_are_sent_alone() -> None:
    at = datetime(2026, 11, 15, 11, 0, tzinfo=UTC)
    batches = packed(packer(), table(body=[b"1", b"2", b"3", b"4"], deliver_at=[None, at, at, None]))
    assert [batch.count for batch in batches] == [1, 1, 1, 1]
    times = [properties.get("TIMER_DELIVER_MS") for properties in properties_of(batches)]
    assert times == [None, "1794740400000", "1794740400000", None]
    with pytest.raises(RowError, match="it has a delay_level and a deliver_at: set one of them"):
        packed(packer(), table(body=[b"1"], deliver_at=[at], delay_level=[1]))


def test_several_keys_are_separated_by_spaces() -> None:
    rows = pa.record_batch({"body": [b"1", b"2"], "keys": pa.array([["k1", None, "k2"], None])})
    assert [properties.get("KEYS") for properties in properties_of(packed(packer(), rows))] == ["k1 k2", None]


def test_a_namespace_is_sent_as_instance_id() -> None:
    batches = packed(packer(namespace="tenant"), table(body=[b"one"]))
    assert properties_of(batches)[0]["INSTANCE_ID"] == "tenant"


def test_a_slice_of_rows_has_its_own_properties_and_null_is_none() -> None:
    rows = table(
        body=[b"1", b"2", b"3", b"4"],
        keys=["k1", None, "k3", "k4"],
        properties=[[("a", "1"), ("b", "2")], None, [], [("c", None), ("d", "4")]],
    )
    assert properties_of(packed(packer(), rows.slice(1))) == [
        {IDEMPOTENCY_KEY: "query/3/1/0"},
        {"KEYS": "k3", IDEMPOTENCY_KEY: "query/3/1/1"},
        {"d": "4", "KEYS": "k4", IDEMPOTENCY_KEY: "query/3/1/2"},
    ]


def test_many_bytes_are_packed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_packer, "PACKED_BYTES", 500)
    batches = packed(packer(), table(body=[b"%0100d" % number for number in range(20)]))
    assert [int(body) for batch in batches for body, _, _ in batch.items] == list(range(20))
    assert [int(each[IDEMPOTENCY_KEY].split("/")[-1]) for each in properties_of(batches)] == list(range(20))


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"body": [b"fine", None]}, "row 1 of this partition cannot be sent: body is empty"),
        ({"body": [b""]}, "row 0 .* body is empty"),
        ({"body": [bytes(BODY_BYTES_MAX + 1)]}, "row 0 .* 4,194,305 bytes"),
        ({"body": [b"x"], "topic": [""]}, "topic is empty: set it, or set the option topic"),
        ({"body": [b"x"], "delay_level": [-1]}, "delay_level is -1"),
        ({"body": [b"x", b"y"], "tags": ["fine", "\x02"]}, "row 1 .* 'TAGS' contains the separator"),
        ({"body": [b"x"], "properties": [[("a\x01", "b")]]}, "row 0 .* contains the separator"),
        ({"body": [b"x"], "properties": [[("", "b")]]}, "row 0 .* has an empty name"),
        ({"body": [b"x"], "properties": [[("a", "b" * 40_000)]]}, r"row 0 .* \(at most 32,767 are allowed\)"),
        ({"body": [b"x"], "queue_id": [1]}, r"on several brokers \(a, b\): add a column broker_name"),
        (
            {"body": [b"x"], "queue_id": [7]},
            r"has no queue 7 .* \(expected one of a:0, a:1, b:0, b:1\)",
        ),
        ({"body": [b"x"], "queue_id": [1], "broker_name": ["c"]}, "has no queue 1 on broker c"),
    ],
)
def test_an_invalid_row_is_reported_with_its_number(columns: dict[str, list[Any]], what: str) -> None:
    with pytest.raises(RowError, match=what):
        packed(packer(None if "topic" in columns else "Orders"), table(**columns))


def test_row_numbers_continue_over_the_batches_of_a_partition() -> None:
    by = packer()
    packed(by, table(body=[b"one", b"two"]))
    with pytest.raises(RowError, match="row 3 of this partition"):
        packed(by, table(body=[b"three", b""]))
