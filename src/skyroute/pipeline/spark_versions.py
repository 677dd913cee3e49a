"""The differences between the versions of Spark 4. Everything else in the pipeline is written for the newest."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from skyroute.pipeline.options import OptionsError

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_READ_LIMITS = True
else:
    try:  # from Spark 4.2 on
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )

        HAS_READ_LIMITS: Final = True
    except ImportError:
        HAS_READ_LIMITS: Final = False

        class ReadLimit:
            """Stands for a class that this Spark lacks."""

        class ReadAllAvailable(ReadLimit):
            """As `ReadLimit`."""

        @dataclass
        class ReadMaxRows(ReadLimit):
            """As `ReadLimit`."""

            max_rows: int

        class SupportsTriggerAvailableNow:
            """As `ReadLimit`."""

    try:  # from Spark 4.1 on
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:
        from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

        class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
            """Spark 4.0 passes Arrow batches to every writer of this second class."""


__all__ = [
    "HAS_READ_LIMITS",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "check_read_limit",
]


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the batches that Spark expects, with timestamps in UTC."""
    if HAS_READ_LIMITS:
        return to_arrow_schema(schema, timezone="UTC")
    convert: Any = to_arrow_schema
    return convert(schema)  # before 4.2, timestamps are always in UTC


def check_read_limit(max_offsets_per_trigger: int | None) -> None:
    """Check that this Spark can limit the size of a batch.

    Raises:
        OptionsError: it cannot.
    """
    if max_offsets_per_trigger is not None and not HAS_READ_LIMITS:
        raise OptionsError(
            "maxOffsetsPerTrigger needs Spark 4.2 or newer: before, trigger(availableNow=True) would end after one"
            " batch of this size. Remove it; a batch then has all new messages; maxRecordsPerPartition bounds its tasks"
        )
