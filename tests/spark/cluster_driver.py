"""A driver on a cluster: a batch read, a job, and a stream that loses a worker. Started by `test_cluster.py`.

Prints a line of JSON for each step. Before the loss of the worker, it requests the kill and waits for a line.
"""

import argparse
import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame

from skyroute.pipeline.jobs.traffic import COLUMNS, traffic
from skyroute.pipeline.session import session
from skyroute.pipeline.spark_versions import HAS_READ_LIMITS

WAIT_S = 60


def report(**result: object) -> None:
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def where_skyroute_is(_: int) -> str:
    import skyroute  # noqa: PLC0415 - the copy of the worker

    return skyroute.__file__


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("master", "name-server", "topic", "folder"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    folder = Path(arguments.folder)
    small = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    with session(
        arguments.master,
        "cluster test",
        **{
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": small,
            "spark.executor.extraJavaOptions": small,
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.cores.max": "2",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.adaptive.enabled": "false",
        },
    ) as spark:
        options = {"nameServer": arguments.name_server, "topic": arguments.topic, "startingOffsets": "earliest"}
        files = spark.sparkContext.parallelize(range(2), 2).map(where_skyroute_is).collect()
        report(shipped=sorted(set(files)))

        read = spark.read.format("rocketmq").options(**options).load()
        row = read.selectExpr("count(*) AS messages", "sum(CAST(CAST(body AS STRING) AS INT)) AS total").first()
        assert row is not None
        report(messages=row.messages, total=row.total)

        seen = spark.read.format("rocketmq").options(**options, columns=COLUMNS).load()
        total = traffic(seen).selectExpr("sum(messages) AS messages").first()
        assert total is not None
        report(job=int(total.messages))

        query = (
            spark.readStream.format("rocketmq")
            .options(**options)
            .options(**({"maxOffsetsPerTrigger": "100"} if HAS_READ_LIMITS else {}))
            .load()
            .writeStream.format("parquet")
            .option("path", str(folder / "out"))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        while query.lastProgress is None and query.isActive:
            query.awaitTermination(1)
        progress = query.lastProgress
        report(request="kill a worker", before=progress.batchId if progress is not None else -1)
        sys.stdin.readline()
        assert query.awaitTermination(WAIT_S), "the stream does not end"
        assert query.exception() is None
        written: DataFrame = spark.read.parquet(str(folder / "out"))
        last = query.lastProgress
        assert last is not None
        rows = written.select("broker_name", "queue_id", "queue_offset").collect()
        report(stream=sorted(map(list, rows)), batches=last.batchId + 1)


if __name__ == "__main__":
    main()
