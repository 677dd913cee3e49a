"""Messages, bytes, delays and frequent keys of topics. Input: `COLUMNS` of the `rocketmq` source."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

COLUMNS: Final = "topic,born_timestamp,store_timestamp,born_host,tags,keys,body"
"""The columns of the source that these jobs need, as its option `columns`."""


def traffic(messages: DataFrame, window_s: float = 60.0) -> DataFrame:
    """Return messages, bytes and delay from born to stored for each topic, tag, producer host and window.

    A stream with a watermark on `store_timestamp` gives the same rows, each at the end of its window.
    """
    delay_ms = fn.unix_millis("store_timestamp") - fn.unix_millis("born_timestamp")
    host = fn.regexp_replace("born_host", r":\d+$", "")
    window = fn.window("store_timestamp", f"{int(window_s * 1000)} milliseconds")
    found = messages.groupBy(window.alias("time"), "topic", "tags", host.alias("producer")).agg(
        fn.count("*").alias("messages"),
        fn.sum(fn.octet_length("body")).alias("bytes"),
        fn.avg(delay_ms).alias("delay_ms_mean"),
        fn.max(delay_ms).alias("delay_ms_max"),
    )
    return found.select(fn.col("time.start").alias("window"), *found.columns[1:])


def hot_keys(messages: DataFrame) -> DataFrame:
    """Return the number of messages and bytes of each key of each topic.

    A message may have several keys, separated by spaces.
    """
    keys = fn.explode(fn.filter(fn.split("keys", " +"), lambda key: key != "")).alias("key")
    counted = messages.select("topic", keys, fn.octet_length("body").alias("bytes"))
    return counted.groupBy("topic", "key").agg(fn.count("*").alias("messages"), fn.sum("bytes").alias("bytes"))
