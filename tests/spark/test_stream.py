"""Streaming reads through Spark: every message once, even if the driver is killed."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from skyroute.blocking import Producer
from skyroute.message.message import Message
from skyroute.pipeline.source.lag_listener import Lag, LagListener
from skyroute.pipeline.spark_versions import HAS_READ_LIMITS
from skyroute.testing import Cluster
from tests.spark.killing import kill_driver_once, limit_of_batches
from tests.support.waiting import wait_until
from tests.unit.pipeline.reading import make_topic, send

NewTopic = Callable[..., str]
STREAM_TIMEOUT_S = 90


def stream(spark: SparkSession, cluster: Cluster, topic: str, **options: str | int) -> DataFrame:
    chosen: dict[str, str | int] = {"startingOffsets": "earliest", "topic": topic, **options}
    return spark.readStream.format("rocketmq").options(nameServer=cluster.name_server_address, **chosen).load()


def run_to_the_end(rows: DataFrame, folder: Path) -> StreamingQuery:
    """Copy all current messages to Parquet."""
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(folder / "rows"))
    assert query.awaitTermination(STREAM_TIMEOUT_S)
    assert query.exception() is None
    return query


def offsets_read(spark: SparkSession, folder: Path) -> dict[tuple[str, int], list[int]]:
    """Return the written offsets by queue, including duplicates."""
    found: dict[tuple[str, int], list[int]] = {}
    for row in spark.read.parquet(str(folder / "rows")).select("broker_name", "queue_id", "queue_offset").collect():
        found.setdefault((row.broker_name, row.queue_id), []).append(row.queue_offset)
    return {queue: sorted(offsets) for queue, offsets in found.items()}


def test_a_stream_continues_at_its_checkpoint(
    spark: SparkSession, cluster: Cluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic()
    send(cluster, topic, 50)
    send(cluster, topic, 30, broker=1, queue_id=1)
    query = run_to_the_end(stream(spark, cluster, topic, **limit_of_batches(40)), tmp_path)
    taken = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert sum(taken) == 80
    assert not HAS_READ_LIMITS or max(taken) <= 40
    assert offsets_read(spark, tmp_path) == {("broker-0", 0): list(range(50)), ("broker-1", 1): list(range(30))}
    send(cluster, topic, 5)
    run_to_the_end(stream(spark, cluster, topic), tmp_path)
    assert offsets_read(spark, tmp_path) == {("broker-0", 0): list(range(55)), ("broker-1", 1): list(range(30))}


def test_a_running_stream_finds_new_queues_and_reports_lag(
    spark: SparkSession, cluster: Cluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(1)
    reported: list[Lag] = []
    listener = LagListener(reported.append)
    spark.streams.addListener(listener)
    writer = stream(spark, cluster, topic).writeStream.format("memory").queryName("growing")
    query = writer.option("checkpointLocation", str(tmp_path)).start()

    def count() -> int:
        assert query.exception() is None
        return spark.table("growing").count()

    try:
        send(cluster, topic, 3)
        wait_until(lambda: count() == 3, "the first messages", timeout_s=STREAM_TIMEOUT_S)
        make_topic(cluster, topic, queues=3)
        send(cluster, topic, 4, queue_id=2)
        wait_until(lambda: count() == 7, "the messages of a new queue", timeout_s=STREAM_TIMEOUT_S)
        if HAS_READ_LIMITS:  # before 4.2, Spark does not ask for the ends of queues
            wait_until(lambda: any(len(lag.queues) == 6 for lag in reported), "the lag of all queues")
            assert reported[-1].query_name == "growing"
    finally:
        query.stop()
        spark.streams.removeListener(listener)


@contextmanager
def sending(cluster: Cluster, topic: str) -> Iterator[None]:
    """Send to all queues of a topic all the time."""
    stop = threading.Event()

    def work() -> None:
        with Producer("senders", cluster.name_server_address) as producer:
            while not stop.wait(0.02):
                producer.send(Message(topic, b"x"))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_no_offset_is_repeated_or_skipped_when_the_driver_is_killed(
    spark: SparkSession, cluster: Cluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Starts at the end of a growing topic, where the start is most easily lost."""
    topic = new_topic()
    send(cluster, topic, 20)
    log = tmp_path / "checkpoint" / "offsets"
    with sending(cluster, topic):
        # Kill the driver when the first batch is planned but not run, then during a later one.
        for batch in ("0", "4"):
            kill_driver_once(
                "stream_driver",
                *(cluster.name_server_address, topic, str(tmp_path)),
                log=tmp_path / "driver.log",
                until=(log / batch).exists,
                timeout_s=STREAM_TIMEOUT_S,
            )
    run_to_the_end(stream(spark, cluster, topic, startingOffsets="latest"), tmp_path)
    begin = json.loads((log / "0").read_text().splitlines()[2])[topic]
    end = json.loads(max(log.glob("[0-9]*"), key=lambda path: int(path.name)).read_text().splitlines()[2])[topic]
    found = offsets_read(spark, tmp_path)
    expected = {name: list(range(begin[name], end[name])) for name in end}
    assert {f"{broker}:{number}": offsets for (broker, number), offsets in found.items()} == expected
    assert all(expected.values()), "every queue had messages"
