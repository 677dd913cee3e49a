"""Lag of consumer groups over time, from samples taken at regular times."""

import logging
import time
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

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


def take_samples(
    spark: SparkSession,
    name_servers: str,
    folder: Path,
    *,
    every_s: float,
    for_s: float,
    groups: Collection[str] = (),
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
) -> int:
    """Add samples to Parquet files in a folder every `every_s` seconds, for `for_s` seconds after the first sample.

    Returns the number of rounds of samples. A round that takes longer than `every_s` delays the next one.

    Raises:
        NoNameServerError: no name server responds.
    """
    began: float | None = None
    rounds = 0
    while True:
        taken = sample_lag(name_servers, groups)
        now = monotonic()
        began = now if began is None else began
        rounds += 1
        if taken:
            rows = spark.createDataFrame(taken, SAMPLES).coalesce(1)
            rows.write.mode("overwrite").parquet(str(folder / f"batch={int(taken[0].at.timestamp() * 1000)}"))
        due = began + rounds * every_s
        if due > began + for_s:
            return rounds
        sleep(max(0.0, due - monotonic()))


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
