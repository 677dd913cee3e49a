"""Checks the columns of a write before any row is sent."""

from collections.abc import Callable
from difflib import get_close_matches
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from skyroute.errors import SkyrouteError
from skyroute.pipeline.options import describe_problems


class SinkSchemaError(SkyrouteError, ValueError):
    """Columns that cannot be written; the text names each of them with what to do."""


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType)


def _is_integer(kind: DataType) -> bool:
    return isinstance(kind, IntegralType)


def _is_time(kind: DataType) -> bool:
    return isinstance(kind, TimestampType)


def _is_body(kind: DataType) -> bool:
    return isinstance(kind, StringType | BinaryType)


def _is_keys(kind: DataType) -> bool:
    return _is_text(kind) or (isinstance(kind, ArrayType) and _is_text(kind.elementType))


def _is_properties(kind: DataType) -> bool:
    return isinstance(kind, MapType) and _is_text(kind.keyType) and _is_text(kind.valueType)


COLUMNS: Final[dict[str, tuple[Callable[[DataType], bool], str]]] = {
    "body": (_is_body, "string or binary"),
    "topic": (_is_text, "string"),
    "tags": (_is_text, "string"),
    "keys": (_is_keys, "string or array<string>"),
    "properties": (_is_properties, "map<string,string>"),
    "sharding_key": (_is_text, "string"),
    "delay_level": (_is_integer, "int"),
    "deliver_at": (_is_time, "timestamp"),
    "queue_id": (_is_integer, "int"),
    "broker_name": (_is_text, "string"),
}
"""The columns of a write, and their types."""


def check_columns(schema: StructType, *, has_topic: bool) -> None:
    """Check that all columns can be written; `has_topic`: an option names the topic.

    Raises:
        SinkSchemaError: a column is unknown, missing or of a wrong type; the text names them all.
    """
    names = [field.name.lower() for field in schema]
    problems = [f"{name}: duplicate column: drop one" for name in COLUMNS if names.count(name) > 1]
    for field in schema:
        fits, wanted = COLUMNS.get(field.name.lower(), (None, ""))
        kind = field.dataType.simpleString()
        if fits is None:
            problems.append(f"{field.name}: unknown column: {_suggestion(field.name.lower())}")
        elif not fits(field.dataType):
            problems.append(f"{field.name}: type {kind} (expected {wanted}): {_cast(field.name, kind)}")
    if "body" not in names:
        problems.append("body: column is missing: add it, such as to_json(struct(*)) AS body")
    if "topic" not in names and not has_topic:
        problems.append("topic: column is missing: add it, or set the option topic")
    if "broker_name" in names and "queue_id" not in names:
        problems.append("broker_name: needs the column queue_id: add it, or drop broker_name")
    if problems:
        raise SinkSchemaError(describe_problems("columns", problems))


def _suggestion(name: str) -> str:
    near = {"value": "body", "key": "keys", "tag": "tags", "headers": "properties", "partition": "queue_id"}.get(name)
    if near is None:
        close = get_close_matches(name, COLUMNS, n=1, cutoff=0.8)
        near = close[0] if close else None
    return f"rename it to {near}, or drop it" if near else "drop it, or add it to body or properties"


def _cast(name: str, kind: str) -> str:
    wanted = COLUMNS[name.lower()][1]
    if kind.startswith(("struct", "array", "map")) and wanted.startswith("string"):
        return f"write to_json({name}) AS {name}"
    return f"write CAST({name} AS {wanted.split()[0]}) AS {name}"
