"""Latency of messages from sent to stored to consumed, from message traces."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from skyroute.client.trace.records import ConsumeEnded, ConsumeStarted, Sent, TraceError, TraceRecord, decode_trace

COLUMNS: Final = "body"
"""The columns of the trace topic that this job needs, as the option `columns` of the source."""
RECORDS: Final = (
    "kind string, message_id string, topic string, consumer_group string, request_id string, at_ms bigint,"
    " cost_ms bigint, success boolean"
)
QUANTILES: Final = (0.5, 0.99)
_ARROW: Final = pa.schema(
    [(name, pa.string()) for name in ("kind", "message_id", "topic", "consumer_group", "request_id")]
    + [("at_ms", pa.int64()), ("cost_ms", pa.int64()), ("success", pa.bool_())]
)


def trace_records(messages: DataFrame) -> DataFrame:
    """Return the records of trace messages, one row each: `kind` is sent, started, ended or invalid.

    A trace message that cannot be decoded is one row `invalid`, with all other columns null.
    """
    return messages.select("body").mapInArrow(_decode, RECORDS)


def latency(records: DataFrame, window_s: float = 60.0) -> DataFrame:
    """Return the latency of messages by topic, consumer group and window of the send: median, 99 % and maximum.

    `store_ms` runs from the start of the send to the broker's response, `wait_ms` from there to the handler;
    `handle_ms` is the time in the handler. Only the first delivery to a group counts. `consumer_group` is null for
    messages that no traced consumer received. `wait_ms` compares the clocks of producers and consumers.
    """
    sent = records.filter("kind = 'sent' and success").select(
        "message_id", "topic", fn.col("at_ms").alias("sent_ms"), fn.col("cost_ms").alias("store_ms")
    )
    started = records.filter("kind = 'started'").groupBy("message_id", "consumer_group")
    first = started.agg(fn.min("at_ms").alias("started_ms"), fn.min_by("request_id", "at_ms").alias("request_id"))
    ended = records.filter("kind = 'ended'").select("message_id", "request_id", fn.col("cost_ms").alias("handle_ms"))
    joined = sent.join(first, "message_id", "left").join(ended, ["message_id", "request_id"], "left")
    wait = fn.col("started_ms") - fn.col("sent_ms") - fn.col("store_ms")
    window_ms = int(window_s * 1000)
    window = fn.timestamp_millis(fn.col("sent_ms") - fn.col("sent_ms") % window_ms)
    timed = joined.withColumns({"wait_ms": wait, "window": window})
    figures = [
        figure
        for name in ("store_ms", "wait_ms", "handle_ms")
        for figure in (
            *(fn.percentile_approx(name, at).alias(f"{name}_p{at * 100:g}") for at in QUANTILES),
            fn.max(name).alias(f"{name}_max"),
        )
    ]
    return timed.groupBy("window", "topic", "consumer_group").agg(fn.count("*").alias("messages"), *figures)


def _decode(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = [row for body in batch.column(0).to_pylist() for row in _rows(body)]
        yield pa.RecordBatch.from_pylist(rows, schema=_ARROW)


def _rows(body: bytes) -> Iterator[dict[str, object]]:
    try:
        records = decode_trace(body)
    except TraceError:
        yield {"kind": "invalid"}
        return
    for record in records:
        if row := _row(record):
            yield row


def _row(record: TraceRecord) -> dict[str, object] | None:
    match record:
        case Sent():
            more: dict[str, object] = {"kind": "sent", "topic": record.topic, "cost_ms": record.cost_ms}
            return {**more, "message_id": record.message_id, "at_ms": record.at_ms, "success": record.success}
        case ConsumeStarted():
            more = {"kind": "started", "consumer_group": record.group, "request_id": record.request_id}
            return {**more, "message_id": record.message_id, "at_ms": record.at_ms}
        case ConsumeEnded():
            more = {"kind": "ended", "request_id": record.request_id, "cost_ms": record.cost_ms}
            return {**more, "message_id": record.message_id, "success": record.success}
    return None
