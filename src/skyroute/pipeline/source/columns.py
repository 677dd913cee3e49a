"""The columns of the format `rocketmq`: names, legacy names and types."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

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

from skyroute.pipeline.options import OptionsError, describe_problems
from skyroute.pipeline.source.body_schema import find_unsupported


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `legacy_name` is its name in the style of rocketmq-spark, the connector for Spark 2."""

    name: str
    legacy_name: str
    type: DataType
    is_default: bool = False
    """Whether a read returns it unless it chooses columns. Every column costs time, mostly in Spark."""


COLUMNS: Final = (
    Column("topic", "topic", StringType(), is_default=True),
    Column("broker_name", "brokerName", StringType(), is_default=True),
    Column("queue_id", "queueId", IntegerType(), is_default=True),
    Column("queue_offset", "queueOffset", LongType(), is_default=True),
    Column("commit_log_offset", "commitLogOffset", LongType()),
    Column("born_timestamp", "bornTimestamp", TimestampType()),
    Column("store_timestamp", "storeTimestamp", TimestampType(), is_default=True),
    Column("born_host", "bornHost", StringType()),
    Column("tags", "tags", StringType(), is_default=True),
    Column("keys", "keys", StringType(), is_default=True),
    Column("properties", "properties", MapType(StringType(), StringType())),
    Column("flag", "flag", IntegerType()),
    Column("message_id", "messageId", StringType()),
    Column("reconsume_times", "reconsumeTimes", IntegerType()),
    Column("body", "body", BinaryType(), is_default=True),
    Column("reject", "reject", StringType()),
)


class BodyFormat(StrEnum):
    """The type of the column `body`: bytes, text, or the columns of a JSON object."""

    BINARY = "binary"
    STRING = "string"
    JSON = "json"


_BODY_TYPES: Final = {BodyFormat.BINARY: "binary", BodyFormat.STRING: "string", BodyFormat.JSON: "struct<...>"}


def spark_schema(names: Sequence[str], *, legacy: bool, body: DataType | None = None) -> StructType:
    """Return the Spark schema of these columns; `body` is the type of the column `body`, if it is not binary."""
    found = {column.name: column for column in COLUMNS}
    chosen = [found[name] for name in names]
    return StructType(
        [
            StructField(
                column.legacy_name if legacy else column.name,
                body if body is not None and column.name == "body" else column.type,
            )
            for column in chosen
        ]
    )


def _is_body(kind: DataType, body_format: BodyFormat) -> bool:
    if body_format is BodyFormat.JSON:
        return isinstance(kind, StructType)
    return kind == (StringType() if body_format is BodyFormat.STRING else BinaryType())


def chosen_names(schema: StructType, body_format: BodyFormat = BodyFormat.BINARY) -> list[str]:
    """Return the current names of a schema's columns. Programs may choose columns with `.schema(...)`.

    Raises:
        OptionsError: a column is unknown or has another type.
    """
    found = {name: column for column in COLUMNS for name in (column.name, column.legacy_name)}
    wrong = []
    for field in schema.fields:
        column = found.get(field.name)
        if column is None:
            wrong.append(
                f"unknown column {field.name} (expected one of {', '.join(column.name for column in COLUMNS)})"
            )
        elif column.name == "body":
            if not _is_body(field.dataType, body_format):
                kind, wanted = field.dataType.simpleString(), _BODY_TYPES[body_format]
                wrong.append(f"body: type {kind} (expected {wanted}): change it, or the option bodyFormat")
            elif body_format is BodyFormat.JSON and (other := find_unsupported(field.dataType)) is not None:
                wrong.append(f"body: type {other.simpleString()} cannot be parsed: use bodyFormat=string and from_json")
        elif field.dataType != column.type:
            wrong.append(f"{field.name}: type {field.dataType.simpleString()} (expected {column.type.simpleString()})")
    if wrong:
        raise OptionsError(describe_problems("columns", wrong))
    return [found[field.name].name for field in schema.fields]
