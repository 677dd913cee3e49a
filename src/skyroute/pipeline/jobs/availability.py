"""Availability and outages of brokers, broker groups and topics, as each name server recorded them.

A broker is an address in a group. A group is up while it has a broker; a topic is up while a group serves it. Time
before the first registration does not count, nor does time in which the name server did not run.
"""

from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from skyroute.nameserver.journal.schema import Kind
from skyroute.pipeline.journal.epochs import closed_epochs, with_epochs
from skyroute.pipeline.journal.state_changes import state_changes
from skyroute.routing.events import Cause

FLAPPING_OUTAGES: Final = 3
"""Number of outages in one window from which it counts as flapping."""
PLANNED_CAUSES: Final = (Cause.UNREGISTERED, Cause.ADDRESS_REPLACED, Cause.TOPIC_DELETED, Cause.REGISTERED)
"""Causes of planned outages: the time counts as away, not down. A registration may remove topics on purpose."""
_SUBJECT: Final = ("server", "what", "broker", "name")


def availability(events: DataFrame, window_s: float | None = None, until: datetime | None = None) -> DataFrame:
    """Return, for each window of event time, the seconds up, down and away of each subject, and its outages.

    Args:
        events: the journal's events.
        window_s: length of a window; None: one window for everything, and the column `window` is null.
        until: the end of the observation of servers that still run; None: the last record of all servers.

    An outage belongs to the window in which it began. `mttr_s` is the mean time to recovery of ended outages. After
    missing sequence numbers, rows are not `certain` until the next start of that server. Nor are they if the server
    crashed at an unknown time, which happens in journals without signs of life.
    """
    intervals = _intervals(events, until)
    window_ms = None if window_s is None else int(window_s * 1000)
    seconds = fn.greatest(fn.lit(0), fn.col("overlap_ms")) / 1000
    is_outage = fn.col("begins_outage") & (fn.col("window_ms") == _window_of(fn.col("since_ms"), window_ms))
    split = _in_windows(intervals, window_ms)
    found = split.groupBy(*_SUBJECT, "window_ms").agg(
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
        *_SUBJECT,
        (fn.lit(None).cast("timestamp") if window_ms is None else fn.timestamp_millis("window_ms")).alias("window"),
        "up_s",
        "down_s",
        "away_s",
        fn.when(observed > 0, fn.col("up_s") / observed).alias("availability"),
        "outages",
        "mttr_s",
        (fn.col("outages") >= FLAPPING_OUTAGES).alias("flapping"),
        "causes",
        "certain",
    )


def outages(events: DataFrame, until: datetime | None = None) -> DataFrame:
    """Return each outage with its start, end, length and cause.

    For an outage that has not ended, `until` is null and `seconds` counts to the end of the observation. An outage
    includes time in which the name server did not run.
    """
    intervals = _intervals(events, until)
    lasting = fn.greatest(fn.lit(0), fn.coalesce("recovered_ms", "end_ms") - fn.col("since_ms"))
    return intervals.filter("begins_outage").select(
        *_SUBJECT,
        fn.timestamp_millis("since_ms").alias("since"),
        fn.timestamp_millis("recovered_ms").alias("until"),
        (lasting / 1000).alias("seconds"),
        "cause",
        fn.col("is_away").alias("planned"),
        "certain",
    )


def _intervals(events: DataFrame, until: datetime | None) -> DataFrame:
    """Return intervals, `since_ms` to `until_ms`, in which a subject is up or not, each within one epoch of a server.

    `begins_outage` marks the first of several consecutive intervals that are not up; all have the first one's `cause`.
    """
    placed = with_epochs(events)
    server_epochs = closed_epochs(events, until)
    in_order = Window.partitionBy(*_SUBJECT).orderBy("seq")
    in_epoch = Window.partitionBy(*_SUBJECT, "epoch").orderBy("seq")
    transitions = _transitions(placed)
    transitions = transitions.unionByName(_at_starts(transitions, server_epochs))
    is_restored = fn.coalesce(fn.lead("cause").over(in_epoch) == Cause.RESTORED, fn.expr("false"))
    is_up = fn.when(fn.col("is_start"), is_restored).otherwise(fn.col("is_up"))
    transitions = transitions.withColumns({"is_up": is_up, "next_ms": fn.lead("at_ms").over(in_epoch)})
    later = in_order.rowsBetween(1, Window.unboundedFollowing)
    transitions = transitions.withColumns(
        {
            "turned": ~fn.col("is_up").eqNullSafe(fn.lag("is_up").over(in_order)),
            "recovered_ms": fn.first(fn.when(fn.col("is_up"), fn.col("at_ms")), ignorenulls=True).over(later),
        }
    )
    cause = fn.last(fn.when(fn.col("turned"), fn.col("cause")), ignorenulls=True).over(in_order)
    intervals = transitions.withColumn("cause", cause).join(fn.broadcast(server_epochs), ["server", "epoch"])
    # A change of the broker id is recorded as leaving and joining at once: not an outage.
    is_instant = fn.coalesce(fn.col("recovered_ms") <= fn.col("at_ms"), fn.expr("false"))
    return intervals.select(
        "server",
        "what",
        *(fn.nullif(name, fn.lit("")).alias(name) for name in ("broker", "name")),
        "is_up",
        "cause",
        "recovered_ms",
        (fn.col("certain") & (fn.col("next_ms").isNotNull() | fn.col("end_known"))).alias("certain"),
        fn.col("at_ms").alias("since_ms"),
        fn.greatest("at_ms", fn.coalesce("next_ms", "closed_ms")).alias("until_ms"),
        fn.col("closed_ms").alias("end_ms"),
        (~fn.col("is_up") & fn.col("turned") & ~is_instant).alias("begins_outage"),
        fn.col("cause").isin(*PLANNED_CAUSES).alias("is_away"),
    )


def _transitions(placed: DataFrame) -> DataFrame:
    """Return when each subject went up and down. A group and its topics have the cause of its last broker."""
    in_group = Window.partitionBy("server", "epoch", "broker").orderBy("seq")
    left = fn.last(fn.when(fn.col("kind") == Kind.BROKER_LEFT, fn.col("cause")), ignorenulls=True).over(in_group)
    cause = fn.when(fn.col("cause") == Cause.GROUP_GONE, left).otherwise(fn.col("cause"))
    relevant = (Kind.BROKER_JOINED, Kind.BROKER_LEFT, Kind.GROUP_CHANGED, Kind.TOPICS_CHANGED)
    changes = state_changes(placed.filter(fn.col("kind").isin(*relevant)).withColumn("cause", cause))
    there = fn.coalesce("group.there", "member.there", "queues.there").cast("int")
    # A topic is up while any group serves it: count the groups, each once.
    of_group = Window.partitionBy("server", "epoch", "part", "broker", "name").orderBy("seq")
    step = fn.col("there") - fn.coalesce(fn.lag("there").over(of_group), fn.lit(0))
    owner = fn.when(fn.col("part") == "topic", "").otherwise(fn.col("broker"))
    counted = changes.withColumn("there", there).withColumns({"step": step, "broker": owner, "what": fn.col("part")})
    so_far = Window.partitionBy(*_SUBJECT, "epoch").orderBy("seq").rowsBetween(Window.unboundedPreceding, 0)
    is_up = fn.sum("step").over(so_far) > 0
    return counted.select(
        *_SUBJECT, "epoch", "seq", "at_ms", "cause", "certain", is_up.alias("is_up"), fn.expr("false").alias("is_start")
    )


def _at_starts(transitions: DataFrame, server_epochs: DataFrame) -> DataFrame:
    """Return a row for each later start and each subject known before: it is down unless it is restored next."""
    first = transitions.groupBy(*_SUBJECT).agg(fn.min("epoch").alias("first_epoch"))
    return (
        first.join(fn.broadcast(server_epochs), "server")
        .filter("epoch > first_epoch")
        .select(
            *_SUBJECT,
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


def _in_windows(intervals: DataFrame, window_ms: int | None) -> DataFrame:
    """Return each interval once per window that it overlaps, with `overlap_ms`."""
    since, until = fn.col("since_ms"), fn.col("until_ms")
    if window_ms is None:
        return intervals.withColumns({"window_ms": fn.lit(0), "overlap_ms": until - since})
    last = _window_of(fn.greatest(since, until - 1), window_ms)
    windows = fn.sequence(_window_of(since, window_ms), last, fn.lit(window_ms))
    split = intervals.withColumn("window_ms", fn.explode(windows))
    end = fn.least(until, fn.col("window_ms") + window_ms)
    return split.withColumn("overlap_ms", end - fn.greatest(since, fn.col("window_ms")))


def _total(seconds: Column, condition: Column) -> Column:
    return fn.sum(fn.when(condition, seconds).otherwise(0.0))
