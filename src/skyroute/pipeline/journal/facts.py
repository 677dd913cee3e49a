"""What each event says is so from then on: of a group, of a broker in it, of a topic that it serves.

The order of events is that of their numbers, and a start of the server makes an end of all it knew. An epoch is what
lies between two starts, and is named by the number of the start. `at_ms` is the wall clock, held still where it stepped
back within an epoch.
"""

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from skyroute.nameserver.journal.schema import Kind
from skyroute.pipeline.journal.schema import MAPPING, VERSION
from skyroute.routing.events import Cause

BEFORE_ANY_START: Final = 0
"""The epoch of records whose server started before the journal begins."""

_ASPECTS: Final = {
    "group": "struct<there: boolean, cluster: string, zone: string, acting_master: boolean>",
    "member": f"struct<there: boolean, broker_id: bigint, ha_address: string, version: {VERSION}>",
    "filter_servers": "array<string>",
    "confirmed": "boolean",
    "queues": "struct<there: boolean, read_queues: bigint, write_queues: bigint, permission: bigint, flags: bigint>",
    "forbidden": "boolean",
    "mapping": f"struct<there: boolean, part: {MAPPING}>",
}
"""What can be said of one thing. Null: nothing is said of it here."""
ASPECTS: Final = tuple(_ASPECTS)


def in_epochs(events: DataFrame) -> DataFrame:
    """Events with their `epoch` and `at_ms`, and whether the table follows from them for `certain`.

    It does not where a number is missing since the last start, or where there is no start. Starts, holes and steps of
    the clock are few: they are found first, in as few columns as it takes, and held against all events then.
    """
    seq, epoch = fn.col("seq"), fn.col("epoch")
    placed = events.join(fn.broadcast(_marks(events)), "server")
    started = fn.array_max(fn.filter("starts", lambda start: start <= seq))
    placed = placed.withColumn("epoch", fn.coalesce(started, fn.lit(BEFORE_ANY_START)))
    is_broken = fn.exists("holes", lambda hole: (hole > epoch) & (hole <= seq))
    steps = fn.filter("steps", lambda step: (step.seq > epoch) & (step.seq <= seq))
    stood_at = fn.array_max(fn.transform(steps, lambda step: step.from_ms))
    return placed.withColumns(
        {"at_ms": fn.greatest("wall_ms", stood_at), "certain": (epoch != BEFORE_ANY_START) & ~is_broken}
    ).drop("starts", "holes", "steps")


def _marks(events: DataFrame) -> DataFrame:
    """Per server: its starts, records before which some are missing, and records at which its clock stepped back."""
    in_order = Window.partitionBy("server").orderBy("seq")
    kind, before, before_ms = fn.col("kind"), fn.lag("seq").over(in_order), fn.lag("wall_ms").over(in_order)
    ordered = events.select(
        "server", "seq", "kind", "wall_ms", fn.coalesce("missing_from", "seq").alias("begins")
    ).select(
        "server",
        "seq",
        (kind == Kind.SERVER_STARTED).alias("is_start"),
        ((kind == Kind.GAP) | fn.coalesce(fn.col("begins") > before + 1, fn.expr("false"))).alias("is_hole"),
        fn.when(fn.col("wall_ms") < before_ms, before_ms).alias("from_ms"),
    )
    seq, from_ms = fn.col("seq"), fn.col("from_ms")
    return ordered.groupBy("server").agg(
        fn.collect_list(fn.when(fn.col("is_start"), seq)).alias("starts"),
        fn.collect_list(fn.when(fn.col("is_hole"), seq)).alias("holes"),
        fn.collect_list(fn.when(from_ms.isNotNull(), fn.struct("seq", "from_ms"))).alias("steps"),
    )


def epochs(placed: DataFrame) -> DataFrame:
    """When each server was there to see: `began_ms`, and `ended_ms`, which is null while it runs.

    A server that crashed was last seen with its last record; the gap behind that is the word of its next start. Takes
    what `in_epochs` returns.
    """
    is_sign = fn.col("kind") != Kind.GAP
    found = placed.groupBy("server", "epoch").agg(
        fn.min("at_ms").alias("began_ms"),
        fn.max(fn.when(is_sign, fn.col("at_ms"))).alias("seen_ms"),
        fn.max_by("kind", "seq").alias("last_kind"),
    )
    following = fn.lead("epoch").over(Window.partitionBy("server").orderBy("epoch"))
    has_ended = (fn.col("last_kind") == Kind.SERVER_STOPPED) | following.isNotNull()
    return found.withColumn("ended_ms", fn.when(has_ended, fn.col("seen_ms"))).drop("last_kind", "seen_ms")


def facts(events: DataFrame) -> DataFrame:
    """One row for each thing that an event speaks of, with what it says in the columns `ASPECTS`.

    `part` is group, broker or topic; `broker` the group's name, and `name` the broker's address or the topic. All other
    columns of the events that are not consumed by this stay, as far as they are few: see `_KEPT`.
    """
    kept = [name for name in _KEPT if name in events.columns]
    return events.select(*kept, fn.explode(_said()).alias("said")).select(*kept, "said.*")


_KEPT: Final = ("server", "seq", "wall_ms", "kind", "cause", "broker", "epoch", "at_ms", "certain")


def _said() -> Column:
    kind, after = fn.col("kind"), fn.col("after")
    is_restored = fn.coalesce(fn.col("cause") == Cause.RESTORED, fn.expr("false"))
    there, gone = fn.expr("true"), fn.expr("false")
    nobody = fn.array().cast("array<string>")
    member = fn.struct(there, after.broker_id, after.ha_address, fn.col("version"))
    group = fn.struct(after.isNotNull(), after.cluster, after.zone, after.acting_master)
    single = {
        Kind.GROUP_CHANGED: _about("group", fn.lit(""), group=group),
        Kind.BROKER_JOINED: _about(
            "broker", fn.col("address"), member=member, filter_servers=nobody, confirmed=~is_restored
        ),
        Kind.BROKER_CHANGED: _about("broker", fn.col("address"), member=member),
        Kind.BROKER_CONFIRMED: _about("broker", fn.col("address"), confirmed=there),
        Kind.BROKER_LEFT: _about("broker", fn.col("address"), member=_gone("member"), filter_servers=nobody),
        Kind.FILTER_SERVERS_CHANGED: _about(
            "broker", fn.col("address"), filter_servers=fn.coalesce(after.filter_servers, nobody)
        ),
    }
    said = fn.when(
        kind == Kind.TOPICS_CHANGED,
        fn.concat(
            _each("added", lambda entry: _topic(entry.key, queues=_queues(entry.value), forbidden=gone)),
            _each("changed", lambda entry: _topic(entry.key, queues=_queues(entry.value[1]), forbidden=gone)),
            _each("removed", lambda entry: _topic(entry.key, queues=_gone("queues"), forbidden=gone)),
        ),
    )
    said = said.when(
        kind == Kind.WRITES_CHANGED,
        fn.concat(
            fn.transform(fn.coalesce("forbidden", nobody), lambda topic: _topic(topic, forbidden=there)),
            fn.transform(fn.coalesce("restored", nobody), lambda topic: _topic(topic, forbidden=gone)),
        ),
    )
    said = said.when(
        kind == Kind.MAPPINGS_CHANGED,
        _each(
            "mappings",
            lambda entry: _topic(entry.key, mapping=fn.struct(entry.value[1].isNotNull(), entry.value[1])),
        ),
    )
    for each, about in single.items():
        said = said.when(kind == each, fn.array(about))
    return said


def _each(member: str, about: Callable[[Column], Column]) -> Column:
    entries = fn.map_entries(member)
    return fn.coalesce(fn.transform(entries, about), fn.array().cast(f"array<{_SAID}>"))


def _topic(name: Column, **aspects: Column) -> Column:
    return _about("topic", name, **aspects)


def _about(part: str, name: Column, **aspects: Column) -> Column:
    said = [aspects[aspect] if aspect in aspects else fn.lit(None) for aspect in ASPECTS]
    return fn.struct(fn.lit(part), name, *said).cast(_SAID)


_SAID: Final = f"struct<part: string, name: string, {', '.join(f'{name}: {kind}' for name, kind in _ASPECTS.items())}>"


def _queues(settings: Column) -> Column:
    return fn.struct(fn.expr("true"), settings[0], settings[1], settings[2], settings[3])


def _gone(aspect: str) -> Column:
    others = _ASPECTS[aspect].count(":") - 1
    return fn.struct(fn.expr("false"), *(fn.lit(None) for _ in range(others)))
