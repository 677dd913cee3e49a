"""The format `rocketmq`, as Spark finds and calls it."""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)

from skyroute.pipeline.short_errors import short_errors

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# Readers and writers are imported inside the methods: Spark imports this module in every session.


class RocketMQSource(DataSource):
    """Topics of a RocketMQ cluster as tables and streams. docs/spark.md lists options and columns."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `.format(...)`."""
        return "rocketmq"

    @short_errors
    def schema(self) -> "StructType":
        from skyroute.pipeline.source.columns import spark_schema
        from skyroute.pipeline.source.options import read_options

        options = read_options(self.options)
        return spark_schema(options.columns, legacy=options.legacy_columns)

    @short_errors
    def reader(self, schema: "StructType") -> DataSourceReader:
        from skyroute.pipeline.source.batch import BatchReader

        return BatchReader(self.options, schema)

    @short_errors
    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:
        from skyroute.pipeline.source.stream import StreamReader

        return StreamReader(self.options, schema)

    @short_errors
    def writer(self, schema: "StructType", overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark's
        from skyroute.pipeline.sink import writer
        from skyroute.pipeline.source.options import read_option_names

        return writer(self.options, schema, overwrite=overwrite, ignored=read_option_names())

    @short_errors
    def streamWriter(self, schema: "StructType", overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: FBT001 - Spark's
        from skyroute.pipeline.sink import stream_writer
        from skyroute.pipeline.source.options import read_option_names

        return stream_writer(self.options, schema, overwrite=overwrite, ignored=read_option_names())
