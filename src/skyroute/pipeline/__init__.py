"""The Spark pipeline: topics as tables and streams, and jobs over the name servers' journals.

Examples:
    >>> from skyroute.pipeline import register
    >>> register(spark)
    >>> spark.read.format("rocketmq").option("nameServer", "127.0.0.1:9876").option("topic", "Orders").load()
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Register the format `rocketmq` with a session. An installed skyroute is discovered without this call."""
    from skyroute.pipeline.data_source import RocketMQSource  # noqa: PLC0415 - this package imports without Spark

    spark.dataSource.register(RocketMQSource)
