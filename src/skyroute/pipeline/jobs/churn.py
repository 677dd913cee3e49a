"""Counts of changes over time, permission changes, and how broker groups share the queues of topics."""

from datetime import datetime

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from skyroute.nameserver.journal.schema import Kind
from skyroute.pipeline.jobs.routes import routes_at
from skyroute.pipeline.journal.epochs import with_epochs
from skyroute.pipeline.journal.state_changes import state_changes
from skyroute.routing.events import Cause
from skyroute.routing.topology import Permission


def churn(events: DataFrame, window_s: float = 86_400.0) -> DataFrame:
    """Return, for each server and window with a change, the counts of changes and the totals at its end.

    Brokers and topics restored after a start are not changes. A topic counts once for each group that serves it.
    """
    window_ms = int(window_s * 1000)
    relevant = (Kind.SERVER_STARTED, Kind.BROKER_JOINED, Kind.BROKER_LEFT, Kind.TOPICS_CHANGED)
    placed = with_epochs(events).filter(fn.col("kind").isin(*relevant))
    kind, size = fn.col("kind"), {name: fn.coalesce(fn.size(fn.map_keys(name)), fn.lit(0)) for name in _MAPS}
    is_change = ~fn.coalesce(fn.col("cause") == Cause.RESTORED, fn.expr("false"))
    joined, left = (kind == Kind.BROKER_JOINED).cast("int"), (kind == Kind.BROKER_LEFT).cast("int")
    steps = placed.select(
        "server",
        "epoch",
        "seq",
        (fn.col("at_ms") - fn.col("at_ms") % window_ms).alias("window_ms"),
        (joined * is_change.cast("int")).alias("brokers_joined"),
        left.alias("brokers_left"),
        *((size[name] * is_change.cast("int")).alias(f"topics_{name}") for name in _MAPS),
        _permissions_changed().alias("permission_changes"),
        (joined - left).alias("brokers_step"),
        (size["added"] - size["removed"]).alias("topics_step"),
        (_queues(fn.map_values("added")) - _queues(fn.map_values("removed")) + _queues_changed()).alias("queues_step"),
    )
    so_far = Window.partitionBy("server", "epoch").orderBy("seq")
    levels = ("brokers", "topics", "queues")
    counted = steps.withColumns({level: fn.sum(f"{level}_step").over(so_far) for level in levels})
    changes = ("brokers_joined", "brokers_left", *(f"topics_{name}" for name in _MAPS), "permission_changes")
    found = counted.groupBy("server", "window_ms").agg(
        *(fn.sum(name).alias(name) for name in changes), *(fn.max_by(level, "seq").alias(level) for level in levels)
    )
    return found.select("server", fn.timestamp_millis("window_ms").alias("window"), *changes, *levels)


def capacity(events: DataFrame, instant: datetime) -> DataFrame:
    """Return, for each topic at an instant, its queues, their skew over groups, and whether one group has them all.

    `skew` is the largest number of write queues of a group divided by the mean: 1 is even.
    """
    topics = routes_at(events, instant).filter("part = 'topic'")
    write, permission = fn.col("write_queues"), fn.col("permission")
    can_write = permission.bitwiseAND(int(Permission.WRITE)) != 0
    return topics.groupBy("server", "topic").agg(
        fn.count("*").alias("groups"),
        fn.sum("read_queues").alias("read_queues"),
        fn.sum("write_queues").alias("write_queues"),
        (fn.max(write) / fn.nullif(fn.avg(write), fn.lit(0.0))).alias("skew"),
        (fn.count("*") == 1).alias("single_broker"),
        (fn.count_if(can_write) == 0).alias("read_only"),
        fn.array_sort(fn.collect_list("broker")).alias("brokers"),
        fn.min("certain").alias("certain"),
    )


def permission_changes(events: DataFrame) -> DataFrame:
    """Return each change of a topic's permission on a group, and its cause.

    `before` and `after` are sums of 2 for write and 4 for read. They are null where an operator forbade or restored
    writes.
    """
    changed = events.filter(fn.col("kind") == Kind.TOPICS_CHANGED).select(
        *_WHEN, fn.explode("changed").alias("topic", "pair")
    )
    by_broker = changed.filter(fn.col("pair")[0][2] != fn.col("pair")[1][2]).select(
        *_WHEN, "topic", fn.col("pair")[0][2].alias("before"), fn.col("pair")[1][2].alias("after")
    )
    changes = state_changes(events.filter(fn.col("kind") == Kind.WRITES_CHANGED))
    nothing = fn.lit(None).cast("bigint")
    by_operator = changes.select(*_WHEN, fn.col("name").alias("topic"), nothing.alias("before"), nothing.alias("after"))
    moment = fn.timestamp_millis("wall_ms").alias("at")
    return by_broker.unionByName(by_operator).select(moment, "server", "broker", "topic", "before", "after", "cause")


_MAPS = ("added", "changed", "removed")
_WHEN = ("wall_ms", "server", "broker", "cause")


def _queues(settings: Column) -> Column:
    """Return the sum of write queues of a list of settings."""
    total = fn.aggregate(settings, fn.lit(0).cast("bigint"), lambda total, each: total + each[1])
    return fn.coalesce(total, fn.lit(0))


def _queues_changed() -> Column:
    pairs = fn.map_values("changed")
    total = fn.aggregate(pairs, fn.lit(0).cast("bigint"), lambda total, pair: total + pair[1][1] - pair[0][1])
    return fn.coalesce(total, fn.lit(0))


def _permissions_changed() -> Column:
    pairs = fn.filter(fn.map_values("changed"), lambda pair: pair[0][2] != pair[1][2])
    return fn.coalesce(fn.size(pairs), fn.lit(0))
