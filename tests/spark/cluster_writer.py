"""A driver on a cluster that writes two partitions and loses a worker in mid-write. Started by `test_cluster.py`.

Each task writes half of its rows, and the rest once a file exists.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from skyroute.pipeline.session import session

ROWS = 400
WAIT_S = 120


def main() -> None:
    master, name_server, topic, go_on = sys.argv[1:]

    def pause(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ends = time.monotonic() + WAIT_S
        for number, batch in enumerate(batches):
            while number == 5 and not Path(go_on).exists() and time.monotonic() < ends:
                time.sleep(0.05)
            yield batch

    small = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    with session(
        master,
        "cluster write",
        **{
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": small,
            "spark.executor.extraJavaOptions": small,
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.cores.max": "2",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
        },
    ) as spark:
        # Large rows, so that buffers flush the first ones.
        rows = spark.range(0, ROWS, 1, 2).selectExpr("RPAD(CAST(id AS STRING), 10000, ' ') AS body")
        options = {"nameServer": name_server, "topic": topic, "batchBytes": "20000"}
        rows.mapInArrow(pause, "body string").write.format("rocketmq").options(**options).mode("append").save()


if __name__ == "__main__":
    main()
