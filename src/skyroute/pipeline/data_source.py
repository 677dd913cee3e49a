"""The format `rocketmq`: what Spark asks of a data source, before anything is read or written."""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# What reads and writes is imported where it is needed: Spark imports this module in every session it starts.


class RocketMQSource(DataSource):
    """Topics of a RocketMQ cluster as tables and streams; docs/spark.md has the options and the columns."""

    @classmethod
    def name(cls) -> str:
        """What `.format(...)` is given."""
        return "rocketmq"

    def schema(self) -> "StructType":
        from skyroute.pipeline.source.columns import spark_schema
        from skyroute.pipeline.source.options import read_options

        options = read_options(self.options)
        return spark_schema(options.columns, legacy=options.legacy_columns)

    def reader(self, schema: "StructType") -> DataSourceReader:
        from skyroute.pipeline.source.batch import BatchReader

        return BatchReader(self.options, schema)

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:
        from skyroute.pipeline.source.stream import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: "StructType", overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark's
        from skyroute.pipeline.sink import writer

        return writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: FBT001 - Spark's
        from skyroute.pipeline.sink import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite)
