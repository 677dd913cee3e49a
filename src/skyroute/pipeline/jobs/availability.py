"""How long brokers, groups and topics were there, as each name server saw it, and why they were not.

A broker is an address in a group; a group is there while it has a broker, a topic while a group serves it. Time before
something was first seen counts for nothing, and so does time in which the name server itself did not run.
"""

from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from skyroute.nameserver.journal.schema import Kind
from skyroute.pipeline.journal.facts import epochs, facts, in_epochs
from skyroute.routing.events import Cause

FLAPPING: Final = 3
"""So many outages within one window are called flapping."""
GOODBYES: Final = (Cause.UNREGISTERED, Cause.ADDRESS_REPLACED, Cause.TOPIC_DELETED, Cause.REGISTERED)
"""Causes that somebody meant: time after them is away, not down. A broker that registers may leave topics out."""
_THING: Final = ("server", "what", "broker", "name")


def availability(events: DataFrame, window_s: float | None = None, until: datetime | None = None) -> DataFrame:
    """Return, for each window of event time, how long each thing was up, down and away, and its outages.

    Args:
        events: of the journal.
        window_s: how long a window is; None: one window for all.
        until: up to when servers that still run saw what they last recorded; None: up to the last record of all.

    An outage belongs to the window in which it began. `mttr_s` is the mean of those that ended. Where numbers are
    missing in a journal, what follows is not `certain` until the next start of that server.
    """
    spans = _spans(events, until)
    window_ms = None if window_s is None else int(window_s * 1000)
    seconds = fn.greatest(fn.lit(0), fn.col("overlap_ms")) / 1000
    is_outage = fn.col("begins_outage") & (fn.col("window_ms") == _window_of(fn.col("since_ms"), window_ms))
    split = _in_windows(spans, window_ms)
    found = split.groupBy(*_THING, "window_ms").agg(
        _total(seconds, fn.col("is_up")).alias("up_s"),
        _total(seconds, ~fn.col("is_up") & ~fn.col("is_away")).alias("down_s"),
        _total(seconds, ~fn.col("is_up") & fn.col("is_away")).alias("away_s"),
        fn.count_if(is_outage & ~fn.col("is_away")).alias("outages"),
        fn.avg(fn.when(is_outage & ~fn.col("is_away"), (fn.col("recovered_ms") - fn.col("since_ms")) / 1000)).alias(
            "mttr_s"
        ),
        fn.array_sort(fn.collect_set(fn.when(is_outage, fn.col("cause")))).alias("causes"),
        fn.min("certain").alias("certain"),
    )
    observed = fn.col("up_s") + fn.col("down_s")
    return found.select(
        *_THING,
        fn.timestamp_millis("window_ms").alias("window"),
        "up_s",
        "down_s",
        "away_s",
        fn.when(observed > 0, fn.col("up_s") / observed).alias("availability"),
        "outages",
        "mttr_s",
        (fn.col("outages") >= FLAPPING).alias("flapping"),
        "causes",
        "certain",
    )


def outages(events: DataFrame, until: datetime | None = None) -> DataFrame:
    """Return each time that something was not there any more: since when, until when, how long and why.

    `until` is null, and `seconds` counts to the end of what was seen, where it has not come back. Time in which the
    name server did not run is part of an outage that began before.
    """
    spans = _spans(events, until)
    lasting = fn.greatest(fn.lit(0), fn.coalesce("recovered_ms", "end_ms") - fn.col("since_ms"))
    return spans.filter("begins_outage").select(
        *_THING,
        fn.timestamp_millis("since_ms").alias("since"),
        fn.timestamp_millis("recovered_ms").alias("until"),
        (lasting / 1000).alias("seconds"),
        "cause",
        fn.col("is_away").alias("planned"),
        "certain",
    )


def _spans(events: DataFrame, until: datetime | None) -> DataFrame:
    """What was there, and what was not, from `since_ms` to `until_ms` within one epoch of a server.

    `begins_outage` marks the first span of those in a row in which a thing is not there; `cause` is that one's.
    """
    placed = in_epochs(events)
    lives = closed(epochs(placed), placed, until)
    in_order = Window.partitionBy(*_THING).orderBy("seq")
    in_epoch = Window.partitionBy(*_THING, "epoch").orderBy("seq")
    turns = _turns(placed)
    turns = turns.unionByName(_at_starts(turns, lives))
    is_restored = fn.coalesce(fn.lead("cause").over(in_epoch) == Cause.RESTORED, fn.expr("false"))
    is_up = fn.when(fn.col("is_start"), is_restored).otherwise(fn.col("is_up"))
    turns = turns.withColumns({"is_up": is_up, "next_ms": fn.lead("at_ms").over(in_epoch)})
    later = in_order.rowsBetween(1, Window.unboundedFollowing)
    turns = turns.withColumns(
        {
            "turned": ~fn.col("is_up").eqNullSafe(fn.lag("is_up").over(in_order)),
            "recovered_ms": fn.first(fn.when(fn.col("is_up"), fn.col("at_ms")), ignorenulls=True).over(later),
        }
    )
    cause = fn.last(fn.when(fn.col("turned"), fn.col("cause")), ignorenulls=True).over(in_order)
    spans = turns.withColumn("cause", cause).join(fn.broadcast(lives), ["server", "epoch"])
    # Another id is told as leaving and joining at once.
    is_moment = fn.coalesce(fn.col("recovered_ms") <= fn.col("at_ms"), fn.expr("false"))
    return spans.select(
        "server",
        "what",
        *(fn.nullif(name, fn.lit("")).alias(name) for name in ("broker", "name")),
        "is_up",
        "cause",
        "recovered_ms",
        "certain",
        fn.col("at_ms").alias("since_ms"),
        fn.greatest("at_ms", fn.coalesce("next_ms", "closed_ms")).alias("until_ms"),
        fn.col("closed_ms").alias("end_ms"),
        (~fn.col("is_up") & fn.col("turned") & ~is_moment).alias("begins_outage"),
        fn.col("cause").isin(*GOODBYES).alias("is_away"),
    )


def closed(lives: DataFrame, placed: DataFrame, until: datetime | None) -> DataFrame:
    """Epochs with an end in any case, `closed_ms`."""
    if until is not None:
        last = fn.lit(int(until.timestamp() * 1000))
        return lives.withColumn("closed_ms", fn.coalesce("ended_ms", fn.greatest(last, fn.col("began_ms"))))
    everywhere = placed.agg(fn.max("at_ms").alias("last_ms"))
    return lives.crossJoin(fn.broadcast(everywhere)).withColumn("closed_ms", fn.coalesce("ended_ms", "last_ms"))


def _turns(placed: DataFrame) -> DataFrame:
    """When each thing came and went. A group goes with its last broker, and its topics with it: their cause is its."""
    in_group = Window.partitionBy("server", "epoch", "broker").orderBy("seq")
    left = fn.last(fn.when(fn.col("kind") == Kind.BROKER_LEFT, fn.col("cause")), ignorenulls=True).over(in_group)
    cause = fn.when(fn.col("cause") == Cause.GROUP_GONE, left).otherwise(fn.col("cause"))
    relevant = (Kind.BROKER_JOINED, Kind.BROKER_LEFT, Kind.GROUP_CHANGED, Kind.TOPICS_CHANGED)
    said = facts(placed.filter(fn.col("kind").isin(*relevant)).withColumn("cause", cause))
    there = fn.coalesce("group.there", "member.there", "queues.there").cast("int")
    # What any group serves is there; the number of groups counts, and each of them once.
    of_group = Window.partitionBy("server", "epoch", "part", "broker", "name").orderBy("seq")
    step = fn.col("there") - fn.coalesce(fn.lag("there").over(of_group), fn.lit(0))
    owner = fn.when(fn.col("part") == "topic", "").otherwise(fn.col("broker"))
    counted = said.withColumn("there", there).withColumns({"step": step, "broker": owner, "what": fn.col("part")})
    so_far = Window.partitionBy(*_THING, "epoch").orderBy("seq").rowsBetween(Window.unboundedPreceding, 0)
    is_up = fn.sum("step").over(so_far) > 0
    return counted.select(
        *_THING, "epoch", "seq", "at_ms", "cause", "certain", is_up.alias("is_up"), fn.expr("false").alias("is_start")
    )


def _at_starts(turns: DataFrame, lives: DataFrame) -> DataFrame:
    """A row for each later start and each thing that was known before: it is gone, unless it is restored next."""
    first = turns.groupBy(*_THING).agg(fn.min("epoch").alias("first_epoch"))
    return (
        first.join(fn.broadcast(lives), "server")
        .filter("epoch > first_epoch")
        .select(
            *_THING,
            "epoch",
            fn.col("epoch").alias("seq"),
            fn.col("began_ms").alias("at_ms"),
            fn.lit(Kind.SERVER_STARTED.value).alias("cause"),
            fn.expr("true").alias("certain"),
            fn.expr("false").alias("is_up"),
            fn.expr("true").alias("is_start"),
        )
    )


def _window_of(moment_ms: Column, window_ms: int | None) -> Column:
    if window_ms is None:
        return fn.lit(0)
    return moment_ms - moment_ms % window_ms


def _in_windows(spans: DataFrame, window_ms: int | None) -> DataFrame:
    """Spans once for each window that they touch, with how long they lie in it."""
    since, until = fn.col("since_ms"), fn.col("until_ms")
    if window_ms is None:
        return spans.withColumns({"window_ms": fn.lit(0), "overlap_ms": until - since})
    last = _window_of(fn.greatest(since, until - 1), window_ms)
    windows = fn.sequence(_window_of(since, window_ms), last, fn.lit(window_ms))
    split = spans.withColumn("window_ms", fn.explode(windows))
    end = fn.least(until, fn.col("window_ms") + window_ms)
    return split.withColumn("overlap_ms", end - fn.greatest(since, fn.col("window_ms")))


def _total(seconds: Column, condition: Column) -> Column:
    return fn.sum(fn.when(condition, seconds).otherwise(0.0))
