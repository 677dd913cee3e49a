"""Lag of consumer groups over time, from samples that a small stream takes."""

import logging
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.query import StreamingQuery

from skyroute.blocking import Admin
from skyroute.client.session.signing import Credentials
from skyroute.errors import SkyrouteError

log = logging.getLogger(__name__)

SAMPLES: Final = "at timestamp, consumer_group string, topic string, broker_name string, queue_id int, lag bigint"


class Sample(NamedTuple):
    """Number of messages of one queue that a consumer group had not consumed."""

    at: datetime
    consumer_group: str
    topic: str
    broker_name: str
    queue_id: int
    lag: int


def sample_lag(name_servers: str, groups: Collection[str] = ()) -> list[Sample]:
    """Return the lag of these consumer groups, or of all groups. Unknown groups are logged and left out.

    Requests are signed with the credentials of the environment (`Credentials.from_environment`).

    Raises:
        NoNameServerError: no name server responds.
    """
    now = datetime.now(UTC)
    with Admin(name_servers, credentials=Credentials.from_environment()) as admin:
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
    """Start a query that writes a sample to Parquet every `every_s` seconds, until it is stopped."""

    def keep(_: DataFrame, batch: int) -> None:
        taken = spark.createDataFrame(sample_lag(name_servers, groups), SAMPLES).coalesce(1)
        # A repeated batch overwrites its files.
        taken.write.mode("overwrite").parquet(str(folder / f"batch={batch}"))

    ticks = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    query = ticks.writeStream.foreachBatch(keep).option("checkpointLocation", str(folder / "_checkpoint"))
    return query.trigger(processingTime=f"{int(every_s * 1000)} milliseconds").start()


def read_samples(spark: SparkSession, folder: Path) -> DataFrame:
    """Read the samples in a folder."""
    return spark.read.schema(SAMPLES).parquet(str(folder)).drop("batch")


def lag(samples: DataFrame, window_s: float = 60.0) -> DataFrame:
    """Return minimum, mean, maximum and last lag of each group and topic for each window, and its growth.

    Samples of all queues taken at one time are summed.
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
