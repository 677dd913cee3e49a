"""Forecasts the lag of consumer groups from samples of the job `lag`."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn


def forecast(samples: DataFrame, within_s: float = 3600.0) -> DataFrame:
    """Return, for each group and topic, the expected lag after `within_s`, and when it is empty at this pace.

    The pace is the slope of a line through all samples (least squares). One sample has no
    pace. `empty_at` is null unless the lag falls.
    """
    taken = samples.groupBy("at", "consumer_group", "topic").agg(fn.sum("lag").alias("lag"))
    seconds = fn.unix_millis("at") / 1000
    found = taken.groupBy("consumer_group", "topic").agg(
        fn.count("*").alias("samples"),
        fn.max("at").alias("sampled_at"),
        fn.max_by("lag", "at").alias("lag"),
        fn.regr_slope("lag", seconds).alias("growth_per_s"),
    )
    lag, growth = fn.col("lag"), fn.col("growth_per_s")
    expected = fn.when(growth.isNotNull(), fn.greatest(fn.lit(0.0), lag + growth * within_s))
    empty_ms = fn.unix_millis("sampled_at") + lag / -growth * 1000
    return found.withColumns(
        {
            "lag_expected": fn.round(expected).cast("bigint"),
            "empty_at": fn.when((growth < 0) & (lag > 0), fn.timestamp_millis(empty_ms.cast("bigint"))),
        }
    )
