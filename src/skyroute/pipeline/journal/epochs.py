"""Orders the journal's events and divides them into epochs.

Events are ordered by their sequence numbers. A server's epoch runs from one of its starts to the next, and is named by
the sequence number of the start: a start discards all that the server knew. `at_ms` is the wall clock, held constant
while a clock that stepped back catches up.
"""

from datetime import datetime
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as fn

from skyroute.nameserver.journal.schema import Kind

BEFORE_ANY_START: Final = 0
"""The epoch of records whose server started before the journal begins."""


def with_epochs(events: DataFrame) -> DataFrame:
    """Return events with the columns `epoch`, `at_ms` and `certain`.

    `certain` is false if a sequence number is missing since the last start, or if there is no start. Starts, gaps and
    clock steps are few, so they are collected first and broadcast to all events.
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
    """Per server: its starts, the records after missing ones, and the records at which its clock stepped back."""
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
    """Return each server's epochs with `began_ms`, `ended_ms`, `end_known` and `stopped`, which is false after a crash.

    Takes the result of `with_epochs`.

    `ended_ms` is null while the server runs. A crashed server ends with its last sign of life, which the gap record of
    the next start has. A journal of a version without signs of life ends with its last record: `end_known` is false.
    """
    is_sign = fn.col("kind") != Kind.GAP
    found = placed.groupBy("server", "epoch").agg(
        fn.min("at_ms").alias("began_ms"),
        fn.greatest(fn.max(fn.when(is_sign, fn.col("at_ms"))), fn.max("alive_ms")).alias("seen_ms"),
        fn.max_by("kind", "seq").alias("last_kind"),
        fn.max(fn.when(fn.col("kind") == Kind.SERVER_STOPPED, fn.lit(1))).isNotNull().alias("stopped"),
        fn.max("alive_ms").isNotNull().alias("was_alive"),
    )
    following = fn.lead("epoch").over(Window.partitionBy("server").orderBy("epoch"))
    has_ended = (fn.col("last_kind") == Kind.SERVER_STOPPED) | following.isNotNull()
    return found.withColumns(
        {
            "ended_ms": fn.when(has_ended, fn.col("seen_ms")),
            "end_known": ~has_ended | fn.col("stopped") | fn.col("was_alive"),
        }
    ).drop("last_kind", "seen_ms", "was_alive")


def closed_epochs(placed: DataFrame, until: datetime | None) -> DataFrame:
    """Return `epochs` with `closed_ms`: the end, or `until` for servers that still run.

    Without `until`, servers that still run end with the last record of all servers.
    """
    found = epochs(placed)
    if until is not None:
        last = fn.lit(int(until.timestamp() * 1000))
        return found.withColumn("closed_ms", fn.coalesce("ended_ms", fn.greatest(last, fn.col("began_ms"))))
    last_of_all = placed.agg(fn.max("at_ms").alias("last_ms"))
    return found.crossJoin(fn.broadcast(last_of_all)).withColumn("closed_ms", fn.coalesce("ended_ms", "last_ms"))
