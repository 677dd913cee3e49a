"""Which columns can be written, and what is said of those that cannot, before any row is sent."""

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
)

from skyroute.errors import SkyrouteError


class SinkSchemaError(SkyrouteError, ValueError):
    """Columns that cannot be written: the text names each of them, and says what to do."""


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType)


def _is_whole(kind: DataType) -> bool:
    return isinstance(kind, IntegralType)


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
    "delay_level": (_is_whole, "int"),
    "queue_id": (_is_whole, "int"),
    "broker_name": (_is_text, "string"),
}
"""What a row may have, and of which type."""


def check_columns(schema: StructType, *, has_topic: bool) -> None:
    """Let pass columns that can be written; `has_topic`: an option names the topic.

    Raises:
        SinkSchemaError: some cannot, or one is missing.
    """
    names = [field.name.lower() for field in schema]
    problems = [f"{name} is there twice: drop one" for name in COLUMNS if names.count(name) > 1]
    for field in schema:
        fits, wanted = COLUMNS.get(field.name.lower(), (None, ""))
        kind = field.dataType.simpleString()
        if fits is None:
            problems.append(f"{field.name} ({kind}) has no place in a message: {_place_of(field.name.lower())}")
        elif not fits(field.dataType):
            problems.append(f"{field.name} is {kind} and must be {wanted}: {_remedy(field.name, kind)}")
    if "body" not in names:
        problems.append("body is missing: make it of what is to be sent, such as to_json(struct(*)) AS body")
    if "topic" not in names and not has_topic:
        problems.append("topic is missing: set the option topic, or add a column topic")
    if "broker_name" in names and "queue_id" not in names:
        problems.append("broker_name says nothing without queue_id: add that column, or drop it")
    if problems:
        raise SinkSchemaError("rocketmq cannot write these rows:" + "".join(f"\n  - {each}" for each in problems))


def _place_of(name: str) -> str:
    near = {"value": "body", "key": "keys", "tag": "tags", "headers": "properties", "partition": "queue_id"}.get(name)
    if near is None:
        close = get_close_matches(name, COLUMNS, n=1, cutoff=0.8)
        near = close[0] if close else None
    return f"is it {near}? Else drop it" if near else "drop it, or put it into body or properties"


def _remedy(name: str, kind: str) -> str:
    wanted = COLUMNS[name.lower()][1]
    if kind.startswith(("struct", "array", "map")) and wanted.startswith("string"):
        return f"write to_json({name}) AS {name}"
    return f"write CAST({name} AS {wanted.split()[0]}) AS {name}"
