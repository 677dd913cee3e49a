"""Jobs about the messages of topics: audit, latency, retention and the forecast of lag."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from skyroute.client.trace.records import ConsumeEnded, ConsumeStarted, Sent, encode_record
from skyroute.message.layout import RECORD_BYTES_MIN
from skyroute.pipeline.jobs import audit as audit_job
from skyroute.pipeline.jobs import latency as latency_job
from skyroute.pipeline.jobs import retention as retention_job
from skyroute.pipeline.jobs.audit import duplicates, gaps
from skyroute.pipeline.jobs.forecast import forecast
from skyroute.pipeline.jobs.lag import SAMPLES, Sample
from skyroute.pipeline.jobs.latency import latency, trace_records
from skyroute.pipeline.jobs.retention import UNIT_BYTES, retention
from skyroute.testing import Cluster
from tests.spark.expected import as_ms

BEGIN = datetime(2026, 11, 15, 11, 0, tzinfo=UTC)
BEGIN_MS = int(BEGIN.timestamp() * 1000)
MESSAGES = """topic string, broker_name string, queue_id int, queue_offset bigint, store_timestamp timestamp,
    keys string, properties map<string,string>, message_id string"""


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def test_gaps_are_ranges_of_missing_offsets_in_each_queue(spark: SparkSession) -> None:
    offsets = {("Orders", "a", 0): [5, 6, 9, 10, 20], ("Orders", "b", 0): [0, 1, 2], ("Payments", "a", 1): [7, 9]}
    rows: list[Any] = [
        (*queue, offset, at(offset), None, {}, "") for queue, found in offsets.items() for offset in found
    ]
    found = gaps(spark.createDataFrame(rows, MESSAGES)).orderBy("topic", "first_missing").collect()
    assert [tuple(row)[:6] for row in found] == [
        ("Orders", "a", 0, 7, 8, 2),
        ("Orders", "a", 0, 11, 19, 9),
        ("Payments", "a", 1, 8, 8, 1),
    ]
    assert (as_ms(found[0].stored_before), as_ms(found[0].stored_after)) == (BEGIN_MS + 6_000, BEGIN_MS + 9_000)


def test_duplicates_are_found_by_each_key(spark: SparkSession) -> None:
    rows = [
        ("Orders", "a", 0, 3, at(1), "k1  k2", {"idempotency_key": "w/0/1"}, "A"),
        ("Orders", "b", 1, 8, at(2), "k2", {"idempotency_key": "w/0/1"}, "B"),
        ("Orders", "b", 1, 9, at(3), "k3 k3", {}, "A"),
        ("Payments", "a", 0, 0, at(4), "k1", None, "A"),
        ("Orders", "a", 0, 4, at(5), "", {"idempotency_key": "w/0/2"}, "C"),
        ("Orders", "a", 0, 5, at(6), None, {}, "D"),
    ]
    messages = spark.createDataFrame(rows, MESSAGES)
    expected = {
        "keys": ("k2", "a:0@3", "b:1@8"),
        "message_id": ("A", "a:0@3", "b:1@9"),
        "idempotency_key": ("w/0/1", "a:0@3", "b:1@8"),
    }
    assert set(expected) == set(audit_job.KEYS)
    for key, (value, first, last) in expected.items():
        (row,) = duplicates(messages, key).collect()
        assert (row.topic, row.key, row.messages) == ("Orders", value, 2)
        assert (row.first_position, row.last_position) == (first, last)


def test_a_lag_that_falls_is_empty_at_its_pace_and_one_that_grows_is_not(spark: SparkSession) -> None:
    def samples(group: str, *lags: int) -> list[Sample]:
        return [
            Sample(at(10 * number), group, "Orders", "a", queue, lag // 2)
            for number, lag in enumerate(lags)
            for queue in range(2)
        ]

    taken = [*samples("falls", 100, 80, 60), *samples("grows", 10, 20, 30), *samples("once", 50)]
    rows = {row.consumer_group: row for row in forecast(spark.createDataFrame(taken, SAMPLES), 20.0).collect()}
    assert (rows["falls"].lag, rows["falls"].growth_per_s, rows["falls"].lag_expected) == (60, -2.0, 20)
    assert as_ms(rows["falls"].empty_at) == BEGIN_MS + 50_000
    assert (rows["grows"].growth_per_s, rows["grows"].lag_expected, rows["grows"].empty_at) == (1.0, 50, None)
    assert (rows["once"].lag, rows["once"].growth_per_s, rows["once"].lag_expected) == (50, None, None)


def test_latency_is_split_into_store_wait_and_handler(spark: SparkSession) -> None:
    def sent(message_id: str, start_ms: int, cost_ms: int) -> Sent:
        return Sent(
            at_ms=BEGIN_MS + start_ms,
            group="shop",
            topic="Orders",
            message_id=message_id,
            store_host="127.0.0.1:1",
            body_bytes=1,
            cost_ms=cost_ms,
        )

    def consumed(message_id: str, request: str, start_ms: int, cost_ms: int) -> list[Any]:
        same: dict[str, Any] = {"request_id": request, "message_id": message_id, "group": "billing"}
        return [
            ConsumeStarted(at_ms=BEGIN_MS + start_ms, **same),
            ConsumeEnded(cost_ms=cost_ms, success=True, **same),
        ]

    records = [sent("A", 0, 5), sent("B", 100, 7), sent("C", 200, 9)]
    records += [*consumed("A", "r1", 25, 3), *consumed("A", "retry", 5_000, 99), *consumed("B", "r2", 117, 4)]
    bodies = [("".join(map(encode_record, records)).encode(),), (b"Pub\x01broken\x02",)]
    traced = trace_records(spark.createDataFrame(bodies, "body binary"))
    assert traced.filter("kind = 'invalid'").count() == 1
    rows = {row.consumer_group: row for row in latency(traced, 60.0).collect()}
    assert set(rows) == {"billing", None}
    assert (rows[None].messages, rows[None].store_ms_max, rows[None].wait_ms_max) == (1, 9, None)
    row = rows["billing"]
    assert (row.messages, row.store_ms_max, row.wait_ms_p50, row.wait_ms_max, row.handle_ms_max) == (2, 7, 10, 20, 4)
    assert as_ms(row.window) == BEGIN_MS


def test_retention_is_the_disk_divided_by_the_rate_of_the_broker(spark: SparkSession) -> None:
    schema = "topic string, broker_name string, store_timestamp timestamp, properties map<string,string>, body binary"
    rows: list[Any] = [("Orders", "a", at(86_400 * day), {"KEYS": "k"}, b"x" * 100) for day in (0, 2)]
    rows += [("Logs", "a", at(86_400), None, b"y" * 50), ("Logs", "b", at(0), {}, b"z")]
    found = {
        (row.broker_name, row.topic): row for row in retention(spark.createDataFrame(rows, schema), 10_000).collect()
    }
    order = RECORD_BYTES_MIN + UNIT_BYTES + len("Orders") + 100 + len("KEYS") + 1 + 2
    line = RECORD_BYTES_MIN + UNIT_BYTES + len("Logs") + 50
    orders, logs = found["a", "Orders"], found["a", "Logs"]
    assert (orders.messages, orders.bytes, orders.bytes_per_day) == (2, 2 * order, order)
    assert orders.share + logs.share == pytest.approx(1.0)
    assert orders.days == logs.days == pytest.approx(10_000 / ((2 * order + line) / 2))
    assert found["b", "Logs"].days is None, "one message has no rate"


def test_the_jobs_name_the_columns_that_they_need(spark: SparkSession, cluster: Cluster, orders: str) -> None:
    def read(columns: str, topic: str = "Orders") -> Any:
        assert orders == cluster.name_server_address
        return spark.read.format("rocketmq").options(nameServer=orders, topic=topic, columns=columns).load()

    assert gaps(read(audit_job.COLUMNS)).count() == 0
    assert duplicates(read(audit_job.COLUMNS)).count() == 3
    assert sum(row.messages for row in retention(read(retention_job.COLUMNS), 1).collect()) == 10
    traced = latency(trace_records(read(latency_job.COLUMNS, "RMQ_SYS_TRACE_TOPIC"))).collect()
    assert sum(row.messages for row in traced if row.topic == "Orders") == 10
