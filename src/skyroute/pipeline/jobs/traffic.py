"""What goes through topics: messages, bytes, delays and keys. Over the columns of the `rocketmq` source."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn


def traffic(messages: DataFrame, window_s: float = 60.0) -> DataFrame:
    """Return messages and bytes of each topic, tag, producer's host and minute, and the delay from born to stored.

    Of a stream with a watermark on `store_timestamp` it gives the same rows, each when its minute is over.
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
    """Return how often each key of each topic came, and its share of the topic's messages with keys.

    A message may have several keys, with spaces between them.
    """
    keys = fn.explode(fn.filter(fn.split("keys", " +"), lambda key: key != "")).alias("key")
    counted = messages.select("topic", keys, fn.octet_length("body").alias("bytes"))
    return counted.groupBy("topic", "key").agg(fn.count("*").alias("messages"), fn.sum("bytes").alias("bytes"))
