"""The data pipeline on Spark: a topic is a table, and the name server's history is a data set.

Examples:
    >>> from skyroute.pipeline import register
    >>> register(spark)
    >>> spark.read.format("rocketmq").option("nameServer", "127.0.0.1:9876").option("topic", "Orders").load()
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Make the format `rocketmq` known to a session. Where skyroute is installed, Spark finds it by itself."""
    from skyroute.pipeline.data_source import RocketMQSource  # noqa: PLC0415 - this package imports without Spark

    spark.dataSource.register(RocketMQSource)
