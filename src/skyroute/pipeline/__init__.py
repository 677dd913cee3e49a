"""The Spark pipeline: topics as tables and streams, and jobs over the name servers' journals.

Examples:
    >>> from skyroute.pipeline import register
    >>> register(spark)
    >>> spark.read.format("rocketmq").option("nameServer", "127.0.0.1:9876").option("topic", "Orders").load()
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def attach(spark: "SparkSession", database: str, name_server: str, **options: str) -> dict[str, str]:
    """Make every topic of a cluster a table of a database: see `skyroute.pipeline.tables.attach`."""
    from skyroute.pipeline.tables import attach as attach_topics  # noqa: PLC0415 - as below

    return attach_topics(spark, database, name_server, **options)


def register(spark: "SparkSession") -> None:
    """Register the format `rocketmq` with a session. An installed skyroute is discovered without this call."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - this package imports without Spark

    from skyroute.pipeline.data_source import RocketMQSource  # noqa: PLC0415 - as above

    try:
        spark.dataSource.register(RocketMQSource)
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):  # Spark 4.0 refuses what it has discovered
            raise
