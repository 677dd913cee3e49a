"""A driver that archives a topic in small batches until it is killed. Started by `test_jobs_topics.py`."""

import sys
from pathlib import Path

from skyroute.pipeline.jobs.archive import archive_messages
from skyroute.pipeline.session import session
from tests.spark.killing import limit_of_batches


def main() -> None:
    name_server, topic, root = sys.argv[1:]
    quick = {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
    spark = session("local[2]", "to be killed", **quick)
    rows = spark.readStream.format("rocketmq").options(
        nameServer=name_server, topic=topic, startingOffsets="earliest", **limit_of_batches(20)
    )
    archive_messages(rows.load(), Path(root)).awaitTermination()


if __name__ == "__main__":
    main()
