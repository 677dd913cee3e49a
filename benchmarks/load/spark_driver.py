"""A Spark session that does what it is told, one line of JSON after another, and tells how long it took.

It runs under our PySpark with our source, and under the one that Spark's Kafka source is for. It needs nothing of ours.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

BODIES = {"kafka": "value", "rocketmq": "body"}
TIMEOUT_S = 600


class Driver:
    def __init__(self, spark: SparkSession, source: str) -> None:
        self._spark = spark
        self._source = source
        self._body = BODIES[source]

    def read(self, options: dict[str, str]) -> int:
        """Read all, and add up the lengths of the bodies."""
        return self._sum(self._load(options))

    def read_to_parquet(self, options: dict[str, str], out: str) -> None:
        self._load(options).write.mode("overwrite").parquet(out)

    def stream_to_parquet(self, options: dict[str, str], out: str) -> None:
        rows = self._spark.readStream.format(self._source).options(**options).load()
        query = (
            rows.writeStream.format("parquet")
            .option("path", f"{out}/data")
            .option("checkpointLocation", f"{out}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        if not query.awaitTermination(TIMEOUT_S) or query.exception() is not None:
            raise RuntimeError(f"the stream did not end well: {query.exception()}")

    def write(self, options: dict[str, str], rows: int, size: int) -> None:
        filler = "x" * (size - 8)
        # Eight partitions of the same rows for either side; the filler is one constant.
        bodies = self._spark.range(0, rows, 1, 8).selectExpr(
            f"CAST(CONCAT('{filler}', LPAD(CAST(id AS STRING), 8, '0')) AS BINARY) AS {self._body}"
        )
        bodies.write.format(self._source).options(**options).mode("append").save()

    def limit(self, rows: int, size: int) -> int:
        """What a Python data source can give at most: one batch, made beforehand, over and over."""
        from benchmarks.load.prebuilt import Prebuilt  # noqa: PLC0415 - for our PySpark alone

        self._spark.dataSource.register(Prebuilt)
        return self._sum(self._spark.read.format("prebuilt").option("rows", rows).option("size", size).load())

    def route_history(self, journal: str) -> None:
        """Find every state that a name server's routes were in."""
        from skyroute.pipeline.jobs.routes import route_history  # noqa: PLC0415 - for our PySpark alone
        from skyroute.pipeline.journal.reading import read_journal  # noqa: PLC0415 - as above

        route_history(read_journal(self._spark, [Path(journal)]).events).write.format("noop").mode("overwrite").save()

    def _load(self, options: dict[str, str]) -> DataFrame:
        return self._spark.read.format(self._source).options(**options).load()

    def _sum(self, rows: DataFrame) -> int:
        found = rows.selectExpr(f"sum(length({self._body}))").first()
        assert found is not None
        return int(found[0] or 0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", choices=BODIES, required=True)
    parser.add_argument("--jars", default="")
    parser.add_argument("--scratch", required=True)
    words = parser.parse_args()
    builder: Any = SparkSession.builder.master("local[2]").appName(f"benchmark {words.source}")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "3g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": words.scratch,
        "spark.sql.warehouse.dir": f"{words.scratch}/warehouse",
    }
    if words.jars:
        settings["spark.jars"] = words.jars
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if words.source == "rocketmq":
        from skyroute.pipeline import register  # noqa: PLC0415 - Kafka's environment does not have it

        register(spark)
    driver = Driver(spark, words.source)
    sys.stdout.write(json.dumps({"version": spark.version}) + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        told = json.loads(line)
        work = getattr(driver, told.pop("do"))
        began = time.monotonic()
        value = work(**told)
        sys.stdout.write(json.dumps({"seconds": time.monotonic() - began, "value": value}) + "\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()
