"""Groups outages that begin together into incidents: what failed, and what it took along."""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

APART_S: Final = 15.0
"""Time between two outages from which they are two incidents. Name servers notice one failure seconds apart."""


def incidents(outages: DataFrame, apart_s: float = APART_S) -> DataFrame:
    """Return one row for each incident: outages that begin within `apart_s` of the one before.

    Takes the result of `availability.outages`. Planned and unplanned outages are separate incidents. An incident of a
    broker has its group and the topics that no other group serves, on every name server. `until` is null if an outage
    has not ended; `seconds` is the time from the first beginning to the last end.
    """
    in_order = Window.partitionBy("planned").orderBy("since")
    after_s = fn.unix_millis("since") - fn.unix_millis(fn.lag("since").over(in_order))
    is_new = fn.coalesce(after_s > int(apart_s * 1000), fn.expr("true"))
    numbered = outages.withColumn("number", fn.sum(is_new.cast("int")).over(in_order))
    end = fn.timestamp_millis(fn.unix_millis("since") + (fn.col("seconds") * 1000).cast("bigint"))
    found = numbered.groupBy("planned", "number").agg(
        fn.min("since").alias("since"),
        fn.when(fn.count("until") == fn.count("*"), fn.max("until")).alias("until"),
        fn.max(end).alias("last_end"),
        _names(fn.col("what") == "broker", fn.concat("name", fn.lit(" ("), "broker", fn.lit(")"))).alias("brokers"),
        _names(fn.col("what") == "group", fn.col("broker")).alias("groups"),
        _names(fn.col("what") == "topic", fn.col("name")).alias("topics"),
        fn.array_sort(fn.collect_set("cause")).alias("causes"),
        fn.array_sort(fn.collect_set("server")).alias("servers"),
        fn.count("*").alias("outages"),
        fn.min("certain").alias("certain"),
    )
    seconds = (fn.unix_millis("last_end") - fn.unix_millis("since")) / 1000
    kept = ("brokers", "groups", "topics", "causes", "planned", "servers", "outages", "certain")
    return found.select("since", "until", seconds.alias("seconds"), *kept)


def _names(condition: Column, name: Column) -> Column:
    return fn.array_sort(fn.collect_set(fn.when(condition, name)))
