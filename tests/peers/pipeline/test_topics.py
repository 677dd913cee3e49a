"""Topics on Apache's broker as tables: Spark reads what Java wrote, and Java's consumers what Spark wrote."""

from __future__ import annotations

from pyspark.sql import DataFrame, Row, SparkSession

from skyroute.pipeline.sink.row_packer import IDEMPOTENCY_KEY
from tests.peers.client.conftest import DELAY_LEVEL
from tests.peers.client.java_client import JavaClients, Place, message

TEXT = b"all work and no play makes " * 1_000


def read(spark: SparkSession, place: Place, topic: str, **options: str) -> DataFrame:
    source = spark.read.format("rocketmq").option("nameServer", place.name_servers).option("topic", topic)
    return source.options(**options).load()


def by_body(rows: DataFrame) -> dict[bytes, Row]:
    return {bytes(row.body): row for row in rows.collect()}


async def test_spark_reads_what_java_wrote_plain_compressed_and_in_batches(
    spark: SparkSession, java: JavaClients, place: Place
) -> None:
    topic = await java.create_topic(place, "SparkReads")
    async with java.producer(place) as producer:
        sent = await producer.send(topic, b"plain", tag="blue", keys=["k1", "k2"], properties={"note": "grün 绿"})
        await producer.send_batch([message(topic, b"batch %d" % number, tag="red") for number in range(50)])
    for compression in ("ZLIB", "LZ4", "ZSTD"):
        async with java.producer(place, compression=compression, compress_over=4096) as compressing:
            await compressing.send(topic, compression.encode() + TEXT)
    rows = by_body(read(spark, place, topic, columns="*"))
    expected = {b"plain", *(b"batch %d" % number for number in range(50))}
    assert set(rows) == expected | {name + TEXT for name in (b"ZLIB", b"LZ4", b"ZSTD")}
    plain = rows[b"plain"]
    assert (plain.topic, plain.tags, plain.keys, plain.properties["note"]) == (topic, "blue", "k1 k2", "grün 绿")
    assert (plain.message_id, plain.broker_name, plain.queue_id) == (sent.message_id, "first", sent.queue_id)
    assert plain.queue_offset == sent.queue_offset
    only_red = read(spark, place, topic, subExpression="red")
    assert only_red.count() == 50


async def test_spark_reads_what_is_to_be_tried_again(spark: SparkSession, java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "SparkReadsFailures")
    async with (
        java.producer(place) as producer,
        java.consumer(place, "spark-reads-failures", topic, failures=1) as consumer,
    ):
        await producer.send(topic, b"difficult")
        await consumer.take(2)  # refused, and given again
    (retried,) = read(spark, place, "%RETRY%spark-reads-failures", columns="*").collect()
    assert (bytes(retried.body), retried.reconsume_times) == (b"difficult", 1)


async def test_java_receives_what_spark_wrote(spark: SparkSession, java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "SparkWrites")
    rows = spark.range(0, 200, 1, 2).selectExpr(
        "CONCAT('row ', id) AS body",
        "IF(id % 2 = 0, 'even', 'odd') AS tags",
        "ARRAY(CONCAT('k', id), 'all') AS keys",
        "MAP('note', 'grün 绿') AS properties",
        f"IF(id = 7, {DELAY_LEVEL}, 0) AS delay_level",
    )
    async with (
        java.consumer(place, "spark-writes", topic) as everything,
        java.consumer(place, "spark-writes-even", {topic: "even"}) as even,
    ):
        rows.write.format("rocketmq").option("nameServer", place.name_servers).mode("append").save(topic)
        received = {each.body: each for each in await everything.take(200)}
        assert set(received) == {b"row %d" % number for number in range(200)}
        got = received[b"row 4"]
        assert (got.tag, got.keys, got.properties["note"]) == ("even", ("k4", "all"), "grün 绿")
        assert len({each.properties[IDEMPOTENCY_KEY] for each in received.values()}) == 200
        assert len({each.message_id for each in received.values()}) == 200
        assert received[b"row 7"].stored_ms - received[b"row 5"].stored_ms > 2_000
        assert len(await even.take(100)) == 100


async def test_java_receives_keyed_rows_in_order_from_the_queues_it_would_choose(
    spark: SparkSession, java: JavaClients, place: Place
) -> None:
    topic = await java.create_topic(place, "SparkWritesInOrder")
    rows = spark.range(0, 60, 1, 1).selectExpr("CAST(id AS STRING) AS body", "CONCAT('c', id % 3) AS sharding_key")
    async with java.producer(place) as producer, java.consumer(place, "in-order", topic, is_orderly=True) as consumer:
        rows.write.format("rocketmq").option("nameServer", place.name_servers).mode("append").save(topic)
        by_java = [await producer.send(topic, b"6%d" % key, order_key=f"c{key}") for key in range(3)]
        received = await consumer.take(63)
    for key in range(3):
        mine = [each for each in received if int(each.body) % 3 == key]
        assert [int(each.body) for each in mine] == [*range(key, 60, 3), 60 + key]
        assert {each.queue_id for each in mine} == {by_java[key].queue_id}
