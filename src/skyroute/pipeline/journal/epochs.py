"""Orders the journal's events and divides them into epochs.

Events are ordered by their sequence numbers. A server's epoch runs from one of its starts to the next, and is named by
the sequence number of the start: a start discards all that the server knew. `at_ms` is the wall clock, held constant
while a clock that stepped back catches up.
"""

from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from skyroute.nameserver.journal.schema import Kind

BEFORE_ANY_START: Final = 0
"""The epoch of records whose server started before the journal begins."""


def with_epochs(events: DataFrame) -> DataFrame:
    """Return events with the columns `epoch`, `at_ms`, `certain`, and the `ended_ms` of their epoch.

    `certain` is false if a sequence number is missing since the last start, or if there is no start. Epochs are few, so
    they are found first and broadcast to all events.
    """
    seq, epoch = fn.col("seq"), fn.col("epoch")
    found = fn.broadcast(epochs(events).select("server", "epoch", "next_epoch", "first_hole", "steps", "ended_ms"))
    is_within = (seq >= epoch) & fn.coalesce(seq < fn.col("next_epoch"), fn.expr("true"))
    is_whole = fn.coalesce(seq < fn.col("first_hole"), fn.expr("true"))
    placed = events.join(found, "server").filter(is_within)
    return placed.withColumns(
        {"at_ms": fn.greatest("wall_ms", _stood_at(seq)), "certain": (epoch != BEFORE_ANY_START) & is_whole}
    ).drop("next_epoch", "first_hole", "steps")


def _stood_at(seq: Column) -> Column:
    """Return the latest time from which the clock stepped back in this epoch, up to a record."""
    steps = fn.filter("steps", lambda step: step.seq <= seq)
    return fn.array_max(fn.transform(steps, lambda step: step.from_ms))


def epochs(events: DataFrame) -> DataFrame:
    """Return each server's epochs with `began_ms`, `ended_ms`, `end_known` and `stopped`, which is false after a crash.

    `ended_ms` is null while the server runs. A crashed server ends with its last sign of life, which the gap record of
    the next start has. A journal of a version without signs of life ends with its last record: `end_known` is false.
    `last_ms` is the last time of any record. `next_epoch` is null for the last epoch. `first_hole` is the first record
    after missing ones, `steps` those at which the clock stepped back.
    """
    # One aggregate for everything: each further one would read and parse the whole journal again.
    is_sign, step = fn.col("kind") != Kind.GAP, fn.struct("seq", "from_ms")
    found = (
        _numbered(events)
        .groupBy("server", "epoch")
        .agg(
            fn.min_by("wall_ms", "seq").alias("began_ms"),
            fn.max("wall_ms").alias("last_ms"),
            fn.max(fn.when(is_sign, fn.col("seq"))).alias("last_sign"),
            fn.max(fn.when(is_sign, fn.col("wall_ms"))).alias("sign_ms"),
            fn.max("alive_ms").alias("alive_ms"),
            fn.bool_or(fn.col("kind") == Kind.SERVER_STOPPED).alias("stopped"),
            fn.max_by(fn.col("kind") == Kind.SERVER_STOPPED, "seq").alias("ends_stopped"),
            fn.min(fn.when(fn.col("is_hole"), fn.col("seq"))).alias("first_hole"),
            fn.collect_list(fn.when(fn.col("from_ms").isNotNull(), step)).alias("steps"),
        )
    )
    following = fn.lead("epoch").over(Window.partitionBy("server").orderBy("epoch"))
    has_ended = fn.col("ends_stopped") | following.isNotNull()
    seen_ms = fn.greatest("sign_ms", _stood_at(fn.col("last_sign")), "alive_ms")
    return found.select(
        "server",
        "epoch",
        "began_ms",
        fn.when(has_ended, seen_ms).alias("ended_ms"),
        (~has_ended | fn.col("stopped") | fn.col("alive_ms").isNotNull()).alias("end_known"),
        "stopped",
        "last_ms",
        following.alias("next_epoch"),
        "first_hole",
        "steps",
    )


def _numbered(events: DataFrame) -> DataFrame:
    """Return what `epochs` needs of events, with `epoch`, `is_hole`, and `from_ms` if the clock stepped back.

    A start is never a hole or a step: what was before it does not count.
    """
    in_order = Window.partitionBy("server").orderBy("seq")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    kind, before, before_ms = fn.col("kind"), fn.lag("seq").over(in_order), fn.lag("wall_ms").over(in_order)
    is_start = kind == Kind.SERVER_STARTED
    started = fn.last(fn.when(is_start, fn.col("seq")), ignorenulls=True).over(so_far)
    is_after_missing = fn.coalesce(fn.coalesce("missing_from", "seq") > before + 1, fn.expr("false"))
    return events.select(
        "server",
        "seq",
        "kind",
        "wall_ms",
        "alive_ms",
        fn.coalesce(started, fn.lit(BEFORE_ANY_START)).alias("epoch"),
        (~is_start & ((kind == Kind.GAP) | is_after_missing)).alias("is_hole"),
        fn.when(~is_start & (fn.col("wall_ms") < before_ms), before_ms).alias("from_ms"),
    )


def closed_epochs(events: DataFrame, until: datetime | None) -> DataFrame:
    """Return `epochs` with `closed_ms`: the end, or `until` for servers that still run.

    Without `until`, servers that still run end with the last record of all servers.
    """
    found = epochs(events)
    if until is not None:
        last = fn.lit(int(until.timestamp() * 1000))
        return found.withColumn("closed_ms", fn.coalesce("ended_ms", fn.greatest(last, fn.col("began_ms"))))
    last_of_all = found.agg(fn.max("last_ms").alias("last_of_all_ms"))
    return found.crossJoin(fn.broadcast(last_of_all)).withColumn("closed_ms", fn.coalesce("ended_ms", "last_of_all_ms"))
