"""Audits a topic: missing offsets, and messages that were stored more than once."""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

COLUMNS: Final = "topic,broker_name,queue_id,queue_offset,store_timestamp,keys,properties,message_id"
"""The columns of the source that these jobs need, as its option `columns`."""
KEYS: Final = ("keys", "message_id", "idempotency_key")
"""What identifies a message in `duplicates`."""


def gaps(messages: DataFrame) -> DataFrame:
    """Return each range of missing offsets between two messages of a queue.

    A range is deleted messages, or offsets that a filter or a transaction left out. Read with `failOnDataLoss=false`,
    or the read fails at the first gap.
    """
    queue = ("topic", "broker_name", "queue_id")
    in_order = Window.partitionBy(*queue).orderBy("queue_offset")
    offset, before = fn.col("queue_offset"), fn.lag("queue_offset").over(in_order)
    placed = messages.select(
        *queue,
        (before + 1).alias("first_missing"),
        (offset - 1).alias("last_missing"),
        (offset - before - 1).alias("missing"),
        fn.lag("store_timestamp").over(in_order).alias("stored_before"),
        fn.col("store_timestamp").alias("stored_after"),
    )
    return placed.filter("missing > 0")


def duplicates(messages: DataFrame, key: str = "keys") -> DataFrame:
    """Return each key of a topic with several messages, their number and where the first and the last one are.

    `key` is one of `KEYS`. A message with several `keys` counts for each. Messages without the key are ignored.
    """
    place = fn.struct("store_timestamp", "broker_name", "queue_id", "queue_offset")
    found = messages.select("topic", _key(key).alias("key"), place.alias("place")).filter("key != ''")
    counted = found.groupBy("topic", "key").agg(
        fn.count("*").alias("messages"), fn.min("place").alias("first"), fn.max("place").alias("last")
    )
    return counted.filter("messages > 1").select(
        "topic",
        "key",
        "messages",
        fn.col("first.store_timestamp").alias("first_stored"),
        fn.col("last.store_timestamp").alias("last_stored"),
        *(_position(side).alias(f"{side}_position") for side in ("first", "last")),
    )


def _key(key: str) -> Column:
    if key == "keys":
        return fn.explode(fn.array_distinct(fn.split("keys", " +")))
    if key == "message_id":
        return fn.col("message_id")
    return fn.col("properties")[key]


def _position(side: str) -> Column:
    return fn.format_string("%s:%d@%d", *(f"{side}.{name}" for name in ("broker_name", "queue_id", "queue_offset")))
