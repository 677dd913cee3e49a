"""The format `rocketmq`, as Spark finds and calls it."""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
)

from skyroute.pipeline.short_errors import short_errors

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
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
        from skyroute.pipeline.options import OptionsError
        from skyroute.pipeline.source.columns import BodyFormat, spark_schema
        from skyroute.pipeline.source.options import read_options
        from skyroute.pipeline.tables import declared_options, with_options

        given, is_table = declared_options(self.options)
        options = read_options(given)
        if options.body_format is BodyFormat.JSON and options.body_schema is None:
            raise OptionsError("bodyFormat=json needs the columns of the body: set bodySchema, or use .schema(...)")
        schema = spark_schema(options.columns, legacy=options.legacy_columns, body=options.body_type)
        return with_options(schema, given, self.options) if is_table else schema

    @short_errors
    def reader(self, schema: "StructType") -> DataSourceReader:
        from skyroute.pipeline.source.batch import BatchReader
        from skyroute.pipeline.tables import options_of

        given = options_of(schema, self.options)
        if {name.lower(): text for name, text in given.items()}.get("pushfilters", "").strip().lower() == "true":
            # A reader with this method fails unless `spark.sql.python.filterPushdown.enabled` is set.
            from skyroute.pipeline.source.pushed_filters import FilteringReader

            return FilteringReader(given, schema)
        return BatchReader(given, schema)

    @short_errors
    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:
        from skyroute.pipeline.source.stream import stream_reader
        from skyroute.pipeline.tables import options_of

        return stream_reader(options_of(schema, self.options), schema)

    @short_errors
    def writer(self, schema: "StructType", overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001 - Spark's
        from skyroute.pipeline.sink import writer
        from skyroute.pipeline.source.options import read_option_names
        from skyroute.pipeline.tables import check_write

        if not overwrite:  # which is refused in any case
            check_write(self.options, schema)
        return writer(self.options, schema, overwrite=overwrite, ignored=read_option_names())

    @short_errors
    def streamWriter(self, schema: "StructType", overwrite: bool) -> "DataSourceStreamArrowWriter":  # noqa: FBT001 - Spark's
        from skyroute.pipeline.sink import stream_writer
        from skyroute.pipeline.source.options import read_option_names
        from skyroute.pipeline.tables import check_write

        if not overwrite:  # which is refused in any case
            check_write(self.options, schema)
        return stream_writer(self.options, schema, overwrite=overwrite, ignored=read_option_names())
