"""Jobs over topics: traffic, lag and archive, with generated rows and a real cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from skyroute import Message
from skyroute.blocking import Producer, PullConsumer
from skyroute.pipeline.jobs.archive import archive_messages, read_archive
from skyroute.pipeline.jobs.lag import SAMPLES, Sample, lag, read_samples, sample_lag, take_samples
from skyroute.pipeline.jobs.traffic import hot_keys, traffic
from skyroute.testing import Cluster
from tests.spark.expected import as_ms
from tests.spark.killing import kill_driver_once
from tests.support.clock import ManualClock

BEGIN = datetime(2026, 11, 15, 11, 0, tzinfo=UTC)
MESSAGES = """topic string, born_timestamp timestamp, store_timestamp timestamp, born_host string, tags string,
    keys string, body binary"""
WAIT_S = 60
DRIVER_S = 180.0
"""Includes the start of a new JVM."""


@pytest.fixture(scope="module")
def sent() -> list[tuple[Any, ...]]:
    random = Random(7)
    found = []
    for _ in range(500):
        stored = BEGIN + timedelta(milliseconds=random.randrange(600_000))
        born = stored - timedelta(milliseconds=random.randrange(2_000))
        host = f"10.0.0.{random.randrange(3)}:{random.randrange(1_000, 60_000)}"
        keys = random.choice([None, "", "a", "a  b", "b c"])
        tags, topic = random.choice([None, "paid", "open"]), random.choice(["Orders", "Payments"])
        found.append((topic, born, stored, host, tags, keys, b"x" * random.randrange(100)))
    return found


def expected_traffic(sent: list[tuple[Any, ...]]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = defaultdict(list)
    for topic, born, stored, host, tags, _, body in sent:
        minute = int(stored.timestamp()) // 60 * 60_000
        found[minute, topic, tags, host.partition(":")[0]].append(
            (len(body), (stored - born) // timedelta(milliseconds=1))
        )
    return found


def check_traffic(rows: list[Any], sent: list[tuple[Any, ...]]) -> None:
    expected = expected_traffic(sent)
    found = {(as_ms(row.window), row.topic, row.tags, row.producer): row for row in rows}
    assert len(rows) == len(found)
    assert found.keys() == expected.keys()
    for key, row in found.items():
        sizes, delays = zip(*expected[key], strict=True)
        assert (row.messages, row.bytes, row.delay_ms_max) == (len(sizes), sum(sizes), max(delays))
        assert row.delay_ms_mean == pytest.approx(sum(delays) / len(delays))


def test_traffic_matches_the_messages(spark: SparkSession, sent: list[tuple[Any, ...]]) -> None:
    check_traffic(traffic(spark.createDataFrame(sent, MESSAGES)).collect(), sent)


def test_traffic_of_a_stream_equals_that_of_a_batch(
    spark: SparkSession, sent: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    # In the order of storage, as in a topic. The last row is an hour later and closes all windows before it.
    rows = sorted(sent, key=lambda row: row[2])
    end = ("Orders", BEGIN, BEGIN + timedelta(hours=1), "10.0.0.9:1", None, None, b"")
    for number in range(3):
        part = [*rows[number::3]] if number < 2 else [*rows[2::3], end]
        spark.createDataFrame(part, MESSAGES).coalesce(1).write.mode("append").parquet(str(tmp_path / "rows"))
    stream = spark.readStream.schema(MESSAGES).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "rows"))
    counted = traffic(stream.withWatermark("store_timestamp", "15 minutes"))
    query = counted.writeStream.format("memory").queryName("minutes").outputMode("append")
    started = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert started.awaitTermination(WAIT_S)
    check_traffic(spark.table("minutes").collect(), sent)


def test_hot_keys_are_counted(spark: SparkSession, sent: list[tuple[Any, ...]]) -> None:
    expected: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for topic, _, _, _, _, keys, body in sent:
        for key in (keys or "").split():
            expected[topic, key][0] += 1
            expected[topic, key][1] += len(body)
    rows = hot_keys(spark.createDataFrame(sent, MESSAGES)).collect()
    assert {(row.topic, row.key): [row.messages, row.bytes] for row in rows} == expected


def test_lag_over_time_sums_queues(spark: SparkSession) -> None:
    samples = [
        Sample(BEGIN + timedelta(seconds=at), "billing", "Orders", "broker-a", queue, lag_of * (queue + 1))
        for at, lag_of in ((0, 4), (10, 10), (50, 1), (60, 7))
        for queue in (0, 1)
    ]
    first, second = lag(spark.createDataFrame(samples, SAMPLES)).orderBy("window").collect()
    assert tuple(first)[1:] == ("billing", "Orders", 3, 3, 15.0, 30, 3, (3 - 12) / 50)
    assert tuple(second)[1:] == ("billing", "Orders", 1, 21, 21.0, 21, 21, None)


def test_a_stream_samples_the_lag_of_a_real_group(
    spark: SparkSession, cluster: Cluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic(queues=1)
    with Producer("makers", cluster.name_server_address) as producer:
        for number in range(10):
            producer.send(Message(topic, b"%d" % number))
    with PullConsumer("readers", cluster.name_server_address) as consumer:
        consumer.assign(consumer.queues(topic))
        for queue in consumer.assignment:
            consumer.seek_to_begin(queue)
        taken = 0
        while taken < 10:
            taken += len(consumer.poll())
        consumer.commit()
    with Producer("makers", cluster.name_server_address) as producer:
        for number in range(4):
            producer.send(Message(topic, b"%d" % number))
    assert sum(sample.lag for sample in sample_lag(cluster.name_server_address, ["readers"])) == 4
    clock, slept = ManualClock(), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance(seconds)

    groups = ["readers", "unknown"]
    rounds = take_samples(
        spark,
        cluster.name_server_address,
        tmp_path,
        every_s=1.0,
        for_s=3.0,
        groups=groups,
        sleep=sleep,
        monotonic=clock.monotonic,
    )
    assert (rounds, slept) == (4, [1.0, 1.0, 1.0])
    rows = lag(read_samples(spark, tmp_path), 3_600.0).collect()
    assert {(row.consumer_group, row.topic, row.lag_min, row.lag_max) for row in rows} == {("readers", topic, 4, 4)}


def test_messages_are_archived_once(
    spark: SparkSession, cluster: Cluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic()
    options = {"nameServer": cluster.name_server_address, "topic": topic, "startingOffsets": "earliest"}

    def archive_now() -> DataFrame:
        stream = spark.readStream.format("rocketmq").options(**options).load()
        query = archive_messages(stream, tmp_path)
        assert query.awaitTermination(WAIT_S)
        return read_archive(spark, tmp_path, "messages")

    sent: list[bytes] = []
    for number in range(2):
        with Producer("makers", cluster.name_server_address) as producer:
            for _ in range(20):
                sent.append(b"%d" % len(sent))
                producer.send(Message(topic, sent[-1], tag=f"round-{number}"))
        kept = archive_now().filter(fn.col("topic") == topic)
        assert sorted(bytes(row.body) for row in kept.collect()) == sorted(sent)
    assert archive_now().count() == len(sent)


def test_an_archive_has_each_message_once_after_its_driver_is_killed(
    spark: SparkSession, cluster: Cluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, root = new_topic(), tmp_path / "archive"
    with Producer("makers", cluster.name_server_address) as producer:
        for number in range(200):
            producer.send(Message(topic, b"%d" % number))
    checkpoint = root / "_checkpoint"

    def is_in(batch: str) -> bool:
        """Whether a batch has begun and has written files."""
        begun, ended = (checkpoint / part / batch for part in ("offsets", "commits"))
        written = any((root / "messages").glob("_temporary/**/*.parquet"))
        return begun.exists() and (written or ended.exists())

    for batch in ("0", "3"):
        kill_driver_once(
            "archive_driver",
            *(cluster.name_server_address, topic, str(root)),
            log=tmp_path / "driver.log",
            until=partial(is_in, batch),
            timeout_s=DRIVER_S,
        )
    rows = spark.readStream.format("rocketmq").options(
        nameServer=cluster.name_server_address, topic=topic, startingOffsets="earliest"
    )
    assert archive_messages(rows.load(), root).awaitTermination(WAIT_S)
    found = sorted(int(bytes(row.body)) for row in read_archive(spark, root, "messages").collect())
    assert found == list(range(200))
