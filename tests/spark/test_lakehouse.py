"""A stream to Iceberg and Delta tables, with the versions of Spark that their jars exist for."""

import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from pyspark import __version__ as spark_version

from tests.support.apache import made_once

CENTRAL = "https://repo1.maven.org/maven2"
JARS = {
    ("iceberg", "4.0"): ("org/apache/iceberg/iceberg-spark-runtime-4.0_2.13/1.11.0",),
    ("iceberg", "4.1"): ("org/apache/iceberg/iceberg-spark-runtime-4.1_2.13/1.12.0",),
    ("delta", "4.0"): ("io/delta/delta-spark_2.13/4.0.0", "io/delta/delta-storage/4.0.0"),
    ("delta", "4.1"): ("io/delta/delta-spark_4.1_2.13/4.4.0", "io/delta/delta-storage/4.4.0"),
    ("delta", "4.2"): ("io/delta/delta-spark_4.2_2.13/4.4.0", "io/delta/delta-storage/4.4.0"),
}
"""Folders of the repository, by table format and version of Spark."""
VERSION = ".".join(spark_version.split(".")[:2])

PROGRAM = """
import sys
from skyroute.pipeline.session import session
name_server, kind, jars, folder = sys.argv[1:]
extensions = {
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
}
catalog = {
    "iceberg": {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": folder + "/lake",
    },
    "delta": {"spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"},
}
spark = session("local[2]", **{"spark.jars": jars, "spark.sql.extensions": extensions[kind], **catalog[kind]})
orders = spark.readStream.format("rocketmq").option("nameServer", name_server).option("topic", "Orders")
rows = orders.option("startingOffsets", "earliest").load()
for run in range(2):
    stream = rows.writeStream.option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True)
    if kind == "iceberg":
        spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.db")
        if not spark.catalog.tableExists("lake.db.orders"):
            rows_type = spark.createDataFrame([], rows.schema)
            rows_type.writeTo("lake.db.orders").create()
        stream.format("iceberg").toTable("lake.db.orders").awaitTermination()
        print(spark.table("lake.db.orders").count())
    else:
        stream.format("delta").start(folder + "/orders").awaitTermination()
        print(spark.read.format("delta").load(folder + "/orders").count())
"""


def jars_of(kind: str) -> list[Path]:
    """Return the downloaded jars of a table format."""

    def fetch(folder: Path) -> None:
        for place in JARS[kind, VERSION]:
            artifact, version = place.split("/")[-2:]
            name = f"{artifact}-{version}.jar"
            urllib.request.urlretrieve(f"{CENTRAL}/{place}/{name}", folder / name)

    return sorted(made_once(f"{kind}-spark-{VERSION}", fetch).glob("*.jar"))


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_stream_writes_each_message_once(orders: str, tmp_path: Path, kind: str) -> None:
    if (kind, VERSION) not in JARS:
        pytest.skip(f"no {kind} for Spark {VERSION}")
    jars = ",".join(map(str, jars_of(kind)))
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, orders, kind, jars, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["10", "10"]
