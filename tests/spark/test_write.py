"""Writes through Spark: columns, order, batches, and at-least-once delivery."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from skyroute import Message, StoredMessage
from skyroute.blocking import Admin, Producer
from skyroute.pipeline.sink.row_packer import IDEMPOTENCY_KEY
from skyroute.testing import Cluster
from tests.support.waiting import wait_until

NewTopic = Callable[..., str]
FORMAT = "rocketmq"
STREAM_TIMEOUT_S = 120


def write(rows: DataFrame, cluster: Cluster, topic: str | None = None, **options: str | int) -> None:
    into = rows.write.format(FORMAT).option("nameServer", cluster.name_server_address).mode("append")
    if topic is not None:
        into = into.option("topic", topic)
    into.options(**options).save()


def stored(cluster: Cluster, topic: str) -> list[StoredMessage]:
    """Return all messages of a topic by queue, in order."""
    with Admin(cluster.name_server_address) as admin:
        ranges = admin.topic_status(topic).queues
        return [
            message
            for queue, known in sorted(ranges.items())
            for messages in admin.read(queue, known.min_offset, known.max_offset)
            for message in messages
        ]


def key_of(message: StoredMessage) -> str:
    key = message.find_property(IDEMPOTENCY_KEY)
    assert key is not None
    return key


def test_columns_become_message_fields(spark: SparkSession, cluster: Cluster, new_topic: NewTopic) -> None:
    one, other = new_topic(), new_topic()
    rows = spark.sql(
        f"""SELECT * FROM VALUES
        ('{one}', 'first', 'paid', array('k1', 'k2'), map('shop', 'north'), CAST(NULL AS INT), NULL),
        ('{other}', 'second', NULL, NULL, NULL, 1, 'broker-1')
        AS (topic, body, tags, keys, properties, queue_id, broker_name)"""
    )
    write(rows, cluster)
    (first,), (second,) = stored(cluster, one), stored(cluster, other)
    assert (first.body, first.tag, first.keys, first.user_properties["shop"]) == (
        b"first",
        "paid",
        ("k1", "k2"),
        "north",
    )
    assert (second.body, second.tag, second.broker_name, second.queue_id) == (b"second", None, "broker-1", 1)
    assert key_of(first) != key_of(second)


def test_the_rows_of_a_partition_are_sent_as_a_batch(
    spark: SparkSession, cluster: Cluster, new_topic: NewTopic
) -> None:
    topic = new_topic()
    write(spark.range(0, 1_000, 1, 1).selectExpr("CAST(id AS STRING) AS body"), cluster, topic)
    messages = stored(cluster, topic)
    assert len({message.queue_id for message in messages}) == 1, "a batch is stored in one queue"
    assert len({message.born_at_ms for message in messages}) == 1, "a batch is one request"
    assert [message.body for message in messages] == [b"%d" % number for number in range(1_000)]
    assert len({key_of(message) for message in messages}) == 1_000


def test_rows_with_the_same_sharding_key_keep_their_order(
    spark: SparkSession, cluster: Cluster, new_topic: NewTopic
) -> None:
    topic = new_topic(queues=4)
    rows = spark.range(0, 2_000, 1, 1).selectExpr(
        "CAST(id AS STRING) AS body", "CONCAT('customer-', id % 7) AS sharding_key"
    )
    write(rows, cluster, topic, batchBytes=1_000)
    messages = stored(cluster, topic)
    assert len(messages) == 2_000
    for customer in range(7):
        mine = [message for message in messages if int(message.body) % 7 == customer]
        assert len({(message.broker_name, message.queue_id) for message in mine}) == 1
        assert [int(message.body) for message in mine] == list(range(customer, 2_000, 7))


def test_a_row_with_a_delay_level_arrives_later(spark: SparkSession, cluster: Cluster, new_topic: NewTopic) -> None:
    topic = new_topic()
    rows = spark.range(0, 4, 1, 1).selectExpr("CAST(id AS STRING) AS body", "IF(id = 0, 1, 0) AS delay_level")
    write(rows, cluster, topic)
    assert {message.body for message in stored(cluster, topic)} >= {b"1", b"2", b"3"}
    messages = wait_until(lambda: len(found := stored(cluster, topic)) == 4 and found, "the delay is over")
    at = {message.body: message.stored_at_ms for message in messages or []}
    assert at[b"0"] - at[b"1"] >= 900


def test_a_stream_with_a_query_name_is_written(
    spark: SparkSession, cluster: Cluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic()
    spark.range(3).selectExpr("CAST(id AS STRING) AS body").write.parquet(str(tmp_path / "rows"))
    query = (
        spark.readStream.schema("body string")
        .parquet(str(tmp_path / "rows"))
        .writeStream.queryName("named")
        .format(FORMAT)
        .options(nameServer=cluster.name_server_address, topic=topic, checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(STREAM_TIMEOUT_S)
    assert sorted(message.body for message in stored(cluster, topic)) == [b"0", b"1", b"2"]


def test_a_view_with_columns_is_inserted_into(spark: SparkSession, cluster: Cluster, new_topic: NewTopic) -> None:
    topic = new_topic()
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW inserted USING rocketmq OPTIONS (nameServer '{cluster.name_server_address}',"
        f" topic '{topic}', columns 'tags,body')"
    )
    spark.sql("INSERT INTO inserted SELECT 'paid', CAST('7' AS BINARY)")
    assert [(message.tag, message.body) for message in stored(cluster, topic)] == [("paid", b"7")]


def test_wrong_columns_and_options_are_reported_before_any_row_is_sent(
    spark: SparkSession, cluster: Cluster, new_topic: NewTopic
) -> None:
    topic = new_topic()
    numbers = spark.range(3)
    with pytest.raises(AnalysisException, match=r"body: type bigint \(expected string or binary\)"):
        write(numbers.selectExpr("id AS body"), cluster, topic)
    with pytest.raises(AnalysisException, match="did you mean batchBytes"):
        write(numbers.selectExpr("'x' AS body"), cluster, topic, batchByte=1)
    with pytest.raises(AnalysisException, match="cannot be overwritten: use mode"):
        numbers.selectExpr("'x' AS body").write.format(FORMAT).mode("overwrite").save()
    assert stored(cluster, topic) == []


def test_an_invalid_row_is_reported_with_its_number(spark: SparkSession, cluster: Cluster, new_topic: NewTopic) -> None:
    topic = new_topic()
    rows = spark.range(0, 3, 1, 1).selectExpr("IF(id = 2, NULL, 'x') AS body")
    with pytest.raises(Exception, match="row 2 of this partition cannot be sent: body is empty"):
        write(rows, cluster, topic)
    assert stored(cluster, topic) == []


def test_a_dead_cluster_is_an_error(spark: SparkSession, rocketmq: Cluster) -> None:
    rocketmq.kill_broker()
    rows = spark.range(1).selectExpr("'x' AS body")
    with pytest.raises(Exception, match=r"(?i)NoRouteError|ConnectError|NoBrokerError"):
        write(rows, rocketmq, "Orders", numRetries=0, sendTimeoutMs=1000, retryIntervalMs=10)


def test_rows_of_a_retried_task_have_the_same_idempotency_keys(
    spark: SparkSession, cluster: Cluster, new_topic: NewTopic
) -> None:
    """Readers drop duplicates by key, as docs/spark.md shows."""
    topic = new_topic()

    name_server = cluster.name_server_address

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        is_first = task.partitionId() == 0 and task.attemptNumber() == 0
        for at, batch in enumerate(batches):
            if is_first and at == 4:
                with Admin(name_server) as admin:
                    wait_until(lambda: any(known.max_offset for known in admin.topic_status(topic).queues.values()), "")
                raise RuntimeError("the first attempt fails on purpose")
            yield batch

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
    try:
        # Large rows, so that buffers flush them before the failure.
        rows = spark.range(0, 400, 1, 1).selectExpr("RPAD(CAST(id AS STRING), 10000, ' ') AS body")
        write(rows.mapInArrow(fail_once, "body string"), cluster, topic)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    bodies = [int(message.body) for message in stored(cluster, topic)]
    assert set(bodies) == set(range(400))
    assert len(bodies) > 400, "no row was sent twice, so this test proves nothing"
    with Producer("others", cluster.name_server_address) as producer:
        for number in (1_000, 1_001):
            producer.send(Message(topic, b"%d" % number))
    read = read_topic(spark, cluster, topic)
    once = read.dropDuplicates(["row"])
    assert sorted(int(row.text) for row in once.collect()) == [*range(400), 1_000, 1_001]


def read_topic(spark: SparkSession, cluster: Cluster, topic: str) -> DataFrame:
    source = spark.read.format(FORMAT).option("nameServer", cluster.name_server_address).option("topic", topic)
    return _with_key(source.option("columns", "*").load())


def _with_key(messages: DataFrame) -> DataFrame:
    return messages.select(
        "store_timestamp",
        f.col("body").cast("string").alias("text"),
        f.coalesce(f.col("properties")[IDEMPOTENCY_KEY], "message_id").alias("row"),
    )


def test_rows_of_a_repeated_batch_have_the_same_idempotency_keys(
    spark: SparkSession, cluster: Cluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """A stream drops duplicates within a watermark that is longer than the outage."""
    topic = new_topic()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("\n".join(map(str, range(100))))

    def run() -> None:
        lines = spark.readStream.text(str(tmp_path / "in")).selectExpr("value AS body")
        query = (
            lines.writeStream.format(FORMAT)
            .option("nameServer", cluster.name_server_address)
            .option("topic", topic)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(STREAM_TIMEOUT_S)
        assert query.exception() is None

    run()
    # As if the driver died after the send and before the commit of the batch.
    for committed in (tmp_path / "checkpoint" / "commits").iterdir():
        committed.unlink()
    run()
    keys = [key_of(message) for message in stored(cluster, topic)]
    assert len(keys) == 200
    assert len(set(keys)) == 100
    assert len({key.split("/")[0] for key in keys}) == 1, "the query id survives a restart"

    source = spark.readStream.format(FORMAT).option("nameServer", cluster.name_server_address).option("topic", topic)
    messages = _with_key(source.option("columns", "*").option("startingOffsets", "earliest").load())
    once = messages.withWatermark("store_timestamp", "1 hour").dropDuplicatesWithinWatermark(["row"])
    query = (
        once.writeStream.format("memory")
        .queryName("once")
        .option("checkpointLocation", str(tmp_path / "downstream"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(STREAM_TIMEOUT_S)
    assert query.exception() is None
    assert sorted(int(row.text) for row in spark.table("once").collect()) == list(range(100))


def test_two_jobs_with_the_same_write_id_have_the_same_keys(
    spark: SparkSession, cluster: Cluster, new_topic: NewTopic
) -> None:
    topic = new_topic()
    rows = spark.range(0, 10, 1, 2).selectExpr("CAST(id AS STRING) AS body")
    for _ in range(2):
        write(rows, cluster, topic, writeId="orders-2026-11-15")
    keys = [key_of(message) for message in stored(cluster, topic)]
    assert len(keys) == 20
    assert set(keys) == {f"orders-2026-11-15/{part}/{row}" for part in range(2) for row in range(5)}
