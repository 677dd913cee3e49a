"""The columns of the format `rocketmq`: their names, old and new, and their types."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from skyroute.pipeline.options import OptionsError


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `legacy_name` is what the connector for Spark 2 would have called it."""

    name: str
    legacy_name: str
    type: DataType


COLUMNS: Final = (
    Column("topic", "topic", StringType()),
    Column("broker_name", "brokerName", StringType()),
    Column("queue_id", "queueId", IntegerType()),
    Column("queue_offset", "queueOffset", LongType()),
    Column("commit_log_offset", "commitLogOffset", LongType()),
    Column("born_timestamp", "bornTimestamp", TimestampType()),
    Column("store_timestamp", "storeTimestamp", TimestampType()),
    Column("born_host", "bornHost", StringType()),
    Column("tags", "tags", StringType()),
    Column("keys", "keys", StringType()),
    Column("properties", "properties", MapType(StringType(), StringType())),
    Column("flag", "flag", IntegerType()),
    Column("message_id", "messageId", StringType()),
    Column("reconsume_times", "reconsumeTimes", IntegerType()),
    Column("body", "body", BinaryType()),
    Column("reject", "reject", StringType()),
)


def spark_schema(names: Sequence[str], *, legacy: bool) -> StructType:
    """Return these columns as Spark sees them."""
    found = {column.name: column for column in COLUMNS}
    chosen = [found[name] for name in names]
    return StructType([StructField(column.legacy_name if legacy else column.name, column.type) for column in chosen])


def chosen_names(schema: StructType) -> list[str]:
    """Return which columns a schema is of, by their names today: a program may choose them with `.schema(...)`.

    Raises:
        OptionsError: a column is none of ours, or of another type.
    """
    found = {name: column for column in COLUMNS for name in (column.name, column.legacy_name)}
    wrong = []
    for field in schema.fields:
        column = found.get(field.name)
        if column is None:
            wrong.append(f"{field.name} is not a column: there are {', '.join(column.name for column in COLUMNS)}")
        elif field.dataType != column.type:
            wrong.append(f"{field.name} is {column.type.simpleString()}, not {field.dataType.simpleString()}")
    if wrong:
        raise OptionsError("wrong schema for rocketmq:" + "".join(f"\n  - {each}" for each in wrong))
    return [found[field.name].name for field in schema.fields]


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return a schema as batches have to have it."""
    return to_arrow_schema(schema, timezone="UTC")
