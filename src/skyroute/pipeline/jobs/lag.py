"""How far consumer groups are behind: samples taken by a small stream, and what they say over time."""

import logging
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.query import StreamingQuery

from skyroute.blocking import Admin
from skyroute.errors import SkyrouteError

log = logging.getLogger(__name__)

SAMPLES: Final = "at timestamp, consumer_group string, topic string, broker_name string, queue_id int, lag bigint"


class Sample(NamedTuple):
    """How many messages of one queue a group had before it."""

    at: datetime
    consumer_group: str
    topic: str
    broker_name: str
    queue_id: int
    lag: int


def sample_lag(name_servers: str, groups: Collection[str] = ()) -> list[Sample]:
    """Ask brokers how far these consumer groups are, or all that there are. Groups nobody knows are left out.

    Raises:
        NoNameServerError: none answers.
    """
    now = datetime.now(UTC)
    with Admin(name_servers) as admin:
        return [sample for group in groups or admin.groups() for sample in _sample(admin, group, now)]


def _sample(admin: Admin, group: str, now: datetime) -> Iterable[Sample]:
    try:
        queues = admin.progress(group).queues
    except SkyrouteError as error:
        log.warning("consumer group not sampled group=%s reason=%s", group, error)
        return
    for queue, progress in queues.items():
        yield Sample(now, group, queue.topic, queue.broker_name, queue.queue_id, progress.lag)


def start_sampling(
    spark: SparkSession, name_servers: str, folder: Path, *, every_s: float, groups: Collection[str] = ()
) -> StreamingQuery:
    """Begin to take samples into Parquet files in a folder, until the query is stopped. Spark's clock sets the pace."""

    def keep(_: DataFrame, batch: int) -> None:
        taken = spark.createDataFrame(sample_lag(name_servers, groups), SAMPLES).coalesce(1)
        # A batch that is done again replaces what it wrote.
        taken.write.mode("overwrite").parquet(str(folder / f"batch={batch}"))

    ticks = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    query = ticks.writeStream.foreachBatch(keep).option("checkpointLocation", str(folder / "_checkpoint"))
    return query.trigger(processingTime=f"{int(every_s * 1000)} milliseconds").start()


def read_samples(spark: SparkSession, folder: Path) -> DataFrame:
    """Samples that were taken into a folder."""
    return spark.read.schema(SAMPLES).parquet(str(folder)).drop("batch")


def lag(samples: DataFrame, window_s: float = 60.0) -> DataFrame:
    """Return the lag of each group and topic over time: the least, the mean, the most, the last, and how fast it grew.

    Samples of all queues that were taken at one time count together.
    """
    taken = samples.groupBy("at", "consumer_group", "topic").agg(fn.sum("lag").alias("lag"))
    window = fn.window("at", f"{int(window_s * 1000)} milliseconds")
    first, last = fn.min_by("lag", "at"), fn.max_by("lag", "at")
    passed_s = (fn.unix_millis(fn.max("at")) - fn.unix_millis(fn.min("at"))) / 1000
    found = taken.groupBy(window.alias("time"), "consumer_group", "topic").agg(
        fn.count("*").alias("samples"),
        fn.min("lag").alias("lag_min"),
        fn.avg("lag").alias("lag_mean"),
        fn.max("lag").alias("lag_max"),
        last.alias("lag_last"),
        fn.when(passed_s > 0, (last - first) / passed_s).alias("growth_per_s"),
    )
    return found.select(fn.col("time.start").alias("window"), *found.columns[1:])
