"""A driver that writes a folder of text files to a topic as a stream, until it is killed or done.

Started by `test_killed.py`.
"""

import sys

from skyroute.pipeline.session import session


def main() -> None:
    name_server, topic, folder = sys.argv[1:]
    spark = session("local[2]", "to be killed", **{"spark.driver.extraJavaOptions": "-XX:+UseSerialGC"})
    lines = spark.readStream.text(f"{folder}/in").selectExpr("value AS body")
    stream = lines.writeStream.format("rocketmq").option("checkpointLocation", f"{folder}/checkpoint")
    options = {"nameServer": name_server, "topic": topic, "batchBytes": "2000"}
    stream.options(**options).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
