"""A driver that copies a topic to Parquet until it is killed. Started by `test_stream.py`."""

import sys

from skyroute.pipeline.session import session
from tests.spark.killing import limit_of_batches


def main() -> None:
    name_server, topic, folder = sys.argv[1:]
    quick = {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
    spark = session("local[2]", "to be killed", **quick)
    rows = spark.readStream.format("rocketmq").options(
        nameServer=name_server, topic=topic, startingOffsets="latest", **limit_of_batches(40)
    )
    stream = rows.load().writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    stream.start(f"{folder}/rows").awaitTermination()


if __name__ == "__main__":
    main()
