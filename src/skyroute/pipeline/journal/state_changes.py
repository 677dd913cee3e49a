"""Splits events into state changes: one row for each broker group, broker or topic that an event changes."""

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from skyroute.nameserver.journal.schema import Kind
from skyroute.pipeline.journal.schema import MAPPING, VERSION
from skyroute.routing.events import Cause

_STATE_TYPES: Final = {
    "group": "struct<there: boolean, cluster: string, zone: string, acting_master: boolean>",
    "member": f"struct<there: boolean, broker_id: bigint, ha_address: string, version: {VERSION}>",
    "filter_servers": "array<string>",
    "confirmed": "boolean",
    "queues": "struct<there: boolean, read_queues: bigint, write_queues: bigint, permission: bigint, flags: bigint>",
    "forbidden": "boolean",
    "mapping": f"struct<there: boolean, part: {MAPPING}>",
}
"""The columns of a state change and their types. Null: the event does not change this column."""
STATE_COLUMNS: Final = tuple(_STATE_TYPES)


def state_changes(events: DataFrame) -> DataFrame:
    """Return one row for each group, broker or topic that an event changes, with its new `STATE_COLUMNS`.

    `part` is group, broker or topic; `broker` is the group's name; `name` is the broker's address or the topic. Of the
    events' own columns, those in `_KEPT` remain.
    """
    kept = [name for name in _KEPT if name in events.columns]
    return events.select(*kept, fn.explode(_changes()).alias("change")).select(*kept, "change.*")


_KEPT: Final = ("server", "seq", "wall_ms", "kind", "cause", "broker", "epoch", "at_ms", "certain", "ended_ms")


def _changes() -> Column:
    kind, after = fn.col("kind"), fn.col("after")
    is_restored = fn.coalesce(fn.col("cause") == Cause.RESTORED, fn.expr("false"))
    there, gone = fn.expr("true"), fn.expr("false")
    no_names = fn.array().cast("array<string>")
    member = fn.struct(there, after.broker_id, after.ha_address, fn.col("version"))
    group = fn.struct(after.isNotNull(), after.cluster, after.zone, after.acting_master)
    single = {
        Kind.GROUP_CHANGED: _change("group", fn.lit(""), group=group),
        Kind.BROKER_JOINED: _change(
            "broker", fn.col("address"), member=member, filter_servers=no_names, confirmed=~is_restored
        ),
        Kind.BROKER_CHANGED: _change("broker", fn.col("address"), member=member),
        Kind.BROKER_CONFIRMED: _change("broker", fn.col("address"), confirmed=there),
        Kind.BROKER_LEFT: _change("broker", fn.col("address"), member=_gone("member"), filter_servers=no_names),
        Kind.FILTER_SERVERS_CHANGED: _change(
            "broker", fn.col("address"), filter_servers=fn.coalesce(after.filter_servers, no_names)
        ),
    }
    found = fn.when(
        kind == Kind.TOPICS_CHANGED,
        fn.concat(
            _each("added", lambda entry: _topic(entry.key, queues=_queues(entry.value), forbidden=gone)),
            _each("changed", lambda entry: _topic(entry.key, queues=_queues(entry.value[1]), forbidden=gone)),
            _each("removed", lambda entry: _topic(entry.key, queues=_gone("queues"), forbidden=gone)),
        ),
    )
    found = found.when(
        kind == Kind.WRITES_CHANGED,
        fn.concat(
            fn.transform(fn.coalesce("forbidden", no_names), lambda topic: _topic(topic, forbidden=there)),
            fn.transform(fn.coalesce("restored", no_names), lambda topic: _topic(topic, forbidden=gone)),
        ),
    )
    found = found.when(
        kind == Kind.MAPPINGS_CHANGED,
        _each(
            "mappings",
            lambda entry: _topic(entry.key, mapping=fn.struct(entry.value[1].isNotNull(), entry.value[1])),
        ),
    )
    for each, change in single.items():
        found = found.when(kind == each, fn.array(change))
    return found


def _each(field: str, change: Callable[[Column], Column]) -> Column:
    entries = fn.map_entries(field)
    return fn.coalesce(fn.transform(entries, change), fn.array().cast(f"array<{_CHANGE_TYPE}>"))


def _topic(name: Column, **states: Column) -> Column:
    return _change("topic", name, **states)


def _change(part: str, name: Column, **states: Column) -> Column:
    columns = [states[column] if column in states else fn.lit(None) for column in STATE_COLUMNS]
    return fn.struct(fn.lit(part), name, *columns).cast(_CHANGE_TYPE)


_CHANGE_TYPE: Final = (
    f"struct<part: string, name: string, {', '.join(f'{name}: {kind}' for name, kind in _STATE_TYPES.items())}>"
)


def _queues(settings: Column) -> Column:
    return fn.struct(fn.expr("true"), settings[0], settings[1], settings[2], settings[3])


def _gone(column: str) -> Column:
    others = _STATE_TYPES[column].count(":") - 1
    return fn.struct(fn.expr("false"), *(fn.lit(None) for _ in range(others)))
