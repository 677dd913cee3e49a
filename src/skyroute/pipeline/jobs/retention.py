"""Plans retention: how long messages fit on a disk at the current rate."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from skyroute.message.layout import RECORD_BYTES_MIN

COLUMNS: Final = "topic,broker_name,store_timestamp,properties,body"
"""The columns of the source that this job needs, as its option `columns`."""

UNIT_BYTES: Final = 20
"""Bytes of a message in its consume queue."""
_DAY_S: Final = 86_400


def retention(messages: DataFrame, disk_bytes: int) -> DataFrame:
    """Return the bytes a day of each topic on each broker, and for how many days `disk_bytes` of the broker last.

    `days` is the same for all topics of a broker, because they share its commit log. It is null if all messages were
    stored at once. Sizes are those of records and consume queues: bodies that are stored compressed count in full,
    the key index does not count.
    """
    pairs = fn.map_entries("properties")
    properties = fn.aggregate(
        pairs, fn.lit(0), lambda total, pair: total + fn.octet_length(pair.key) + fn.octet_length(pair.value) + 2
    )
    size = fn.octet_length("body") + fn.octet_length("topic") + fn.coalesce(properties, fn.lit(0))
    topics = messages.groupBy("broker_name", "topic").agg(
        fn.count("*").alias("messages"),
        fn.sum(size + RECORD_BYTES_MIN + UNIT_BYTES).alias("bytes"),
        fn.min("store_timestamp").alias("first"),
        fn.max("store_timestamp").alias("last"),
    )
    brokers = topics.groupBy("broker_name").agg(
        fn.sum("bytes").alias("all_bytes"),
        ((fn.unix_millis(fn.max("last")) - fn.unix_millis(fn.min("first"))) / 1000).alias("observed_s"),
    )
    observed_s = fn.when(fn.col("observed_s") > 0, fn.col("observed_s"))
    return topics.join(fn.broadcast(brokers), "broker_name").select(
        "broker_name",
        "topic",
        "messages",
        "bytes",
        (fn.col("bytes") / fn.col("all_bytes")).alias("share"),
        (fn.col("bytes") * _DAY_S / observed_s).cast("bigint").alias("bytes_per_day"),
        (disk_bytes * observed_s / fn.col("all_bytes") / _DAY_S).alias("days"),
        "observed_s",
    )
