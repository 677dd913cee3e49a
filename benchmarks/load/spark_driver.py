"""A Spark session that runs commands from standard input, one line of JSON each, and prints their durations.

It runs with our source and with Spark's Kafka source, on one version of Spark. There skyroute is not installed: the
path has it.
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
        """Read all messages and sum the lengths of the bodies."""
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
            raise RuntimeError(f"the stream failed or timed out: {query.exception()}")

    def write(self, options: dict[str, str], rows: int, size: int, key: str | None = None) -> None:
        """Write rows; `key` is the name of a column of unique keys."""
        filler = "x" * (size - 8)
        keys = [] if key is None else [f"CONCAT('k', id) AS {key}"]
        # The same eight partitions for both sources; the filler is a constant.
        bodies = self._spark.range(0, rows, 1, 8).selectExpr(
            f"CAST(CONCAT('{filler}', LPAD(CAST(id AS STRING), 8, '0')) AS BINARY) AS {self._body}", *keys
        )
        bodies.write.format(self._source).options(**options).mode("append").save()

    def limit(self, rows: int, size: int, columns: str) -> int:
        """Read from a Python source that returns one prebuilt batch again and again: the upper bound."""
        from benchmarks.load.prebuilt import Prebuilt  # noqa: PLC0415 - only with our source

        self._spark.dataSource.register(Prebuilt)
        source = self._spark.read.format("prebuilt").options(rows=rows, size=size, columns=columns)
        return self._sum(source.load())

    def route_history(self, journal: str) -> None:
        """Run the job `route_history`."""
        from skyroute.pipeline.jobs.routes import route_history  # noqa: PLC0415 - only with our source
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
    arguments = parser.parse_args()
    builder: Any = SparkSession.builder.master("local[2]").appName(f"benchmark {arguments.source}")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "3g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": arguments.scratch,
        "spark.sql.warehouse.dir": f"{arguments.scratch}/warehouse",
    }
    if arguments.jars:
        settings["spark.jars"] = arguments.jars
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if arguments.source == "rocketmq":
        from skyroute.pipeline import register  # noqa: PLC0415 - only with our source

        register(spark)
    driver = Driver(spark, arguments.source)
    sys.stdout.write(json.dumps({"version": spark.version}) + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        request = json.loads(line)
        command = getattr(driver, request.pop("command"))
        began = time.monotonic()
        value = command(**request)
        sys.stdout.write(json.dumps({"seconds": time.monotonic() - began, "value": value}) + "\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()
