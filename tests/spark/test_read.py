"""Batch reads through Spark."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, LongType, StructType

from skyroute.blocking import Producer
from skyroute.message.message import Message
from skyroute.message.queue_ref import QueueRef
from skyroute.testing import Cluster
from tests.unit.pipeline.reading import make_topic, send

NewTopic = Callable[..., str]


def table(spark: SparkSession, cluster: Cluster, **options: str | int) -> DataFrame:
    return spark.read.format("rocketmq").options(nameServer=cluster.name_server_address, **options).load()


def test_all_columns_have_their_types(spark: SparkSession, cluster: Cluster, new_topic: NewTopic) -> None:
    topic = new_topic()
    with Producer("senders", cluster.name_server_address) as producer:
        began = datetime.now(UTC).replace(tzinfo=None)
        message = Message(topic, b"one", tag="paid", keys=("a", "b"), properties={"shop": "north"})
        sent = producer.send(message, queue=QueueRef(topic, "broker-1", 1))
    rows = table(spark, cluster, topic=topic, columns="*")
    assert rows.dtypes == [
        ("topic", "string"),
        ("broker_name", "string"),
        ("queue_id", "int"),
        ("queue_offset", "bigint"),
        ("commit_log_offset", "bigint"),
        ("born_timestamp", "timestamp"),
        ("store_timestamp", "timestamp"),
        ("born_host", "string"),
        ("tags", "string"),
        ("keys", "string"),
        ("properties", "map<string,string>"),
        ("flag", "int"),
        ("message_id", "string"),
        ("reconsume_times", "int"),
        ("body", "binary"),
    ]
    (row,) = rows.collect()
    assert (row.topic, row.broker_name, row.queue_id, row.queue_offset) == (topic, "broker-1", 1, 0)
    assert (row.tags, row["keys"], row.properties["shop"], bytes(row.body)) == ("paid", "a b", "north", b"one")
    assert (row.message_id, row.flag, row.reconsume_times) == (sent.message_id, 0, 0)
    assert row.born_host.startswith("127.0.0.1:")
    text = rows.selectExpr("date_format(store_timestamp, 'yyyy-MM-dd HH:mm:ss.SSS') AS at").first()
    assert text is not None
    assert abs((datetime.fromisoformat(text["at"]) - began).total_seconds()) < 60


def test_many_rows_of_many_queues_are_read(spark: SparkSession, cluster: Cluster, new_topic: NewTopic) -> None:
    topic = new_topic(4)
    for broker in range(2):
        for queue_id in range(4):
            send(cluster, topic, 6_000, broker=broker, queue_id=queue_id)
    rows = table(spark, cluster, topic=topic, columns="broker_name,queue_id,queue_offset,body")
    assert rows.rdd.getNumPartitions() == 8
    found = rows.groupBy("broker_name", "queue_id").agg(
        f.count("*").alias("count"),
        f.countDistinct("queue_offset").alias("offsets"),
        f.max("queue_offset").alias("last"),
        f.sum(f.expr("CAST(CAST(body AS STRING) AS BIGINT)")).alias("total"),
    )
    assert {tuple(row)[2:] for row in found.collect()} == {(6_000, 6_000, 5_999, 5_999 * 3_000)}
    assert table(spark, cluster, topic=topic, minPartitions=20).rdd.getNumPartitions() >= 20
    assert rows.limit(10).count() == 10


def test_small_queues_share_one_task(spark: SparkSession, cluster: Cluster, new_topic: NewTopic) -> None:
    topic = new_topic(4)
    send(cluster, topic, 10)
    send(cluster, topic, 10, broker=1)
    rows = table(spark, cluster, topic=topic)
    assert rows.rdd.getNumPartitions() == 1
    assert rows.count() == 20


def test_an_empty_topic_is_an_empty_table(spark: SparkSession, cluster: Cluster, new_topic: NewTopic) -> None:
    assert table(spark, cluster, topic=new_topic()).collect() == []


def test_a_schema_chooses_columns(spark: SparkSession, cluster: Cluster, new_topic: NewTopic) -> None:
    topic = new_topic()
    send(cluster, topic, 2)
    chosen = StructType().add("body", BinaryType()).add("queue_offset", LongType())
    reader = spark.read.format("rocketmq").schema(chosen).option("nameServer", cluster.name_server_address)
    assert [(bytes(row.body), row.queue_offset) for row in reader.load(topic).collect()] == [(b"0", 0), (b"1", 1)]


def test_a_topic_is_readable_as_an_sql_view(spark: SparkSession, cluster: Cluster, new_topic: NewTopic) -> None:
    topic = new_topic()
    send(cluster, topic, 3)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW read_view USING rocketmq"
        f" OPTIONS (nameServer '{cluster.name_server_address}', topic '{topic}')"
    )
    row = spark.sql("SELECT count(*) AS n, max(queue_offset) AS last FROM read_view").first()
    assert row is not None
    assert (row.n, row["last"]) == (3, 2)


def test_a_new_session_discovers_the_format(spark: SparkSession, cluster: Cluster, new_topic: NewTopic) -> None:
    topic = new_topic()
    send(cluster, topic, 3)
    assert table(spark.newSession(), cluster, topic=topic).count() == 3


def error_of(work: Callable[[], Any]) -> str:
    with pytest.raises(PySparkException) as caught:
        work()
    return str(caught.value)


def test_wrong_options_are_reported_before_a_job_starts(spark: SparkSession, cluster: Cluster) -> None:
    text = error_of(lambda: table(spark, cluster, toppic="A", failOnDataLoss="perhaps"))
    assert "unknown option toppic: did you mean topic?" in text
    assert "failOnDataLoss: invalid value 'perhaps' (expected true or false)" in text
    assert "topic is missing" in text


def test_errors_have_few_lines_around_their_text(spark: SparkSession, cluster: Cluster) -> None:
    for work in (
        lambda: table(spark, cluster, toppic="A"),
        lambda: table(spark, cluster, topic="Nowhere").count(),
        lambda: spark.range(1).write.format("rocketmq").mode("append").save("T"),
    ):
        assert len(error_of(work).splitlines()) <= 9


def test_an_unknown_topic_is_reported(spark: SparkSession, cluster: Cluster) -> None:
    text = error_of(lambda: table(spark, cluster, topic="Nowhere").count())
    assert "no broker serves the topic Nowhere: create it" in text


def test_a_dead_broker_is_reported(spark: SparkSession, rocketmq: Cluster) -> None:
    make_topic(rocketmq, "Away", queues=1)
    send(rocketmq, "Away", 1)
    hasty = {"fetchOffset.numRetries": 1, "fetchOffset.retryIntervalMs": 10}
    rows = table(spark, rocketmq, topic="Away", **hasty)
    assert rows.rdd.getNumPartitions() == 1, "planned while the broker runs"
    rocketmq.kill_broker()
    assert "Away@broker-0:0 cannot be read from offset 0 on, tried 2 times" in error_of(rows.collect)
