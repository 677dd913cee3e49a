"""Topics as tables in SQL."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from skyroute.blocking import Admin
from skyroute.pipeline import attach
from skyroute.pipeline.options import OptionsError
from skyroute.testing import Cluster
from tests.spark.test_write import stored
from tests.unit.pipeline.reading import send

NewTopic = Callable[..., str]


@pytest.fixture
def topic(cluster: Cluster, new_topic: NewTopic) -> str:
    """A topic with three messages."""
    name = new_topic()
    send(cluster, name, 3)
    return name


def create(spark: SparkSession, cluster: Cluster, table: str, topic: str, more: str = "") -> None:
    spark.sql(f"DROP TABLE IF EXISTS {table}")
    options = f"nameServer '{cluster.name_server_address}', topic '{topic}'{more}"
    spark.sql(f"CREATE TABLE {table} USING rocketmq OPTIONS ({options})")


def count(spark: SparkSession, query: str) -> int:
    row = spark.sql(query).first()
    assert row is not None
    return int(row[0])


def error_of(work: Callable[[], object]) -> str:
    with pytest.raises(PySparkException) as caught:
        work()
    return str(caught.value)


def test_a_table_is_read_with_its_options(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    create(spark, cluster, "sql_orders", topic)
    assert count(spark, "SELECT count(*) FROM sql_orders") == 3
    assert count(spark, "SELECT count(*) FROM sql_orders WITH (tags = 'paid')") == 0
    assert spark.newSession().table("sql_orders").count() == 3


METASTORE_PROGRAM = """
import sys
from skyroute.pipeline.session import session
folder, statement = sys.argv[1:]
conf = {
    "spark.sql.catalogImplementation": "hive",
    "spark.sql.warehouse.dir": folder + "/warehouse",
    "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
    "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder} -XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}
with session("local[1]", **conf) as spark:
    print(spark.sql(statement).collect())
"""


def test_a_table_is_read_by_another_process_through_a_metastore(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    options = f"nameServer '{cluster.name_server_address}', topic '{topic}', columns 'queue_id,body'"
    printed = []
    for statement in (
        f"CREATE TABLE orders USING rocketmq OPTIONS ({options})",
        "SELECT count(*) AS messages FROM orders WITH (startingOffsets = 'earliest')",
    ):
        command = [sys.executable, "-c", METASTORE_PROGRAM, str(tmp_path), statement]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        printed.append(ended.stdout.strip())
    assert printed == ["[]", "[Row(messages=3)]"]


def test_a_table_is_read_as_a_stream(spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create(spark, cluster, "streamed", topic, ", startingOffsets 'earliest'")
    query = (
        spark.readStream.table("streamed")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    assert query.awaitTermination(60)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 3


def test_an_insert_without_a_target_is_refused_and_one_with_a_target_is_right(
    spark: SparkSession, cluster: Cluster, topic: str, new_topic: NewTopic
) -> None:
    target = new_topic()
    create(spark, cluster, "source", topic, ", columns 'topic,body'")
    create(spark, cluster, "target", target, ", columns 'topic,body'")
    before = len(stored(cluster, topic))
    for query in ("SELECT * FROM source", "SELECT 'x', CAST('1' AS BINARY)"):
        assert "no option that names its target" in error_of(partial(spark.sql, f"INSERT INTO target {query}"))
    assert (len(stored(cluster, topic)), stored(cluster, target)) == (before, [])
    where = f"nameServer = '{cluster.name_server_address}', topic = '{target}'"
    spark.sql(f"INSERT INTO target WITH ({where}) SELECT * FROM source")
    assert (len(stored(cluster, topic)), len(stored(cluster, target))) == (before, 3)


def test_an_insert_that_would_send_rows_back_to_their_topic_is_refused(
    spark: SparkSession, cluster: Cluster, topic: str, new_topic: NewTopic
) -> None:
    create(spark, cluster, "source", topic, ", columns 'tags,topic,body'")
    create(spark, cluster, "target", new_topic(), ", columns 'topic,body'")
    before = len(stored(cluster, topic))
    where = f"nameServer = '{cluster.name_server_address}'"
    for query in ("SELECT topic, body FROM source", "SELECT s.topic, CAST('x' AS BINARY) AS body FROM source s"):
        text = error_of(partial(spark.sql, f"INSERT INTO target WITH ({where}) {query}"))
        assert "they would be sent back to it: name the target with the option topic" in text
    assert len(stored(cluster, topic)) == before


def test_a_table_with_listed_columns_says_how_to_create_it(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    spark.sql("DROP TABLE IF EXISTS listed")
    options = f"nameServer '{cluster.name_server_address}', topic '{topic}'"
    spark.sql(f"CREATE TABLE listed (body BINARY) USING rocketmq OPTIONS ({options})")
    assert "this table has no options: Spark drops those of CREATE TABLE" in error_of(
        lambda: spark.sql("SELECT * FROM listed").collect()
    )


def test_a_table_stores_no_secret(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    text = error_of(lambda: create(spark, cluster, "secret", topic, ", accessKey 'me', secretKey 'hidden-word'"))
    assert "a table cannot store" in text
    assert "hidden-word" not in text
    assert not spark.catalog.tableExists("secret")


def test_attached_topics_are_tables(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    tables = attach(spark, "rmq", cluster.name_server_address, columns="queue_offset,body")
    assert tables[topic] == topic
    assert not {"broker-0", "DefaultCluster", "DefaultCluster_REPLY_TOPIC"} & set(tables.values())
    assert topic.lower() in [row.tableName for row in spark.sql("SHOW TABLES IN rmq").collect()]
    assert count(spark, f"SELECT count(*) FROM rmq.{topic}") == 3
    with Admin(cluster.name_server_address) as admin:
        admin.delete_topic(topic, "DefaultCluster")
    assert topic not in attach(spark, "rmq", cluster.name_server_address)
    assert not spark.catalog.tableExists(f"rmq.{topic}")


def test_attach_changes_no_table_that_it_did_not_create(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    attach(spark, "kept", cluster.name_server_address)
    create(spark, cluster, "kept.mine", topic)
    spark.sql(f"CREATE TABLE kept.copied USING parquet AS SELECT * FROM kept.{topic}")
    spark.sql(f"CREATE VIEW kept.broken AS SELECT * FROM kept.{topic}")
    attach(spark, "kept", cluster.name_server_address, columns="queue_offset")
    assert (count(spark, "SELECT count(*) FROM kept.mine"), count(spark, "SELECT count(*) FROM kept.copied")) == (3, 3)
    spark.sql(f"DROP TABLE kept.{topic}")
    create(spark, cluster, f"kept.{topic}", topic, ", tags 'paid'")
    with pytest.raises(OptionsError, match=f"tables named as topics, which attach did not create: {topic}"):
        attach(spark, "kept", cluster.name_server_address)
    assert count(spark, f"SELECT count(*) FROM kept.{topic}") == 0


def test_attach_with_wrong_options_changes_nothing(spark: SparkSession, cluster: Cluster, topic: str) -> None:
    attach(spark, "steady", cluster.name_server_address)
    for wrong in ({"columns": "bodyy"}, {"accessKey": "me", "secretKey": "hidden-word"}):
        with pytest.raises((OptionsError, PySparkException)):
            attach(spark, "steady", cluster.name_server_address, **wrong)
    assert count(spark, f"SELECT count(*) FROM steady.{topic}") == 3
