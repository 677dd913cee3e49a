"""Finds when name servers had different routes, for how long, and for which broker or topic.

Name servers do not talk to each other: each has only what brokers register with it. Short differences are normal.
"""

from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as fn

from skyroute.pipeline.jobs.incidents import APART_S
from skyroute.pipeline.journal.epochs import closed_epochs, with_epochs
from skyroute.pipeline.journal.state_changes import state_changes

ABSENT: Final = "absent"
_SUBJECT: Final = ("what", "broker", "name")


def divergence(events: DataFrame, longer_than_s: float = 1.0, until: datetime | None = None) -> DataFrame:
    """Return each divergence: a time in which running servers had different values for one subject.

    `what` is group, broker, filter_servers, queues, writes or mapping; `name` is the address or topic. `views` has each
    server's value at the beginning. `until` is null if the divergence has not ended. Clocks of name servers differ, so
    divergences up to `longer_than_s` are left out.
    """
    intervals = _intervals(events, until)
    found = _divergent_times(intervals).filter(fn.col("seconds") > longer_than_s)
    same = [fn.col(f"f.{name}") == fn.col(f"s.{name}") for name in _SUBJECT]
    is_beginning = (fn.col("s.since_ms") <= fn.col("f.at_ms")) & (fn.col("s.until_ms") > fn.col("f.at_ms"))
    views = fn.map_from_entries(fn.array_sort(fn.collect_list(fn.struct("s.server", "s.value"))))
    joined = found.alias("f").join(intervals.alias("s"), [*same, is_beginning])
    named = [fn.col(f"f.{name}") for name in _SUBJECT]
    return (
        joined.groupBy(*named, "f.at_ms", "f.until_ms", "f.seconds")
        .agg(views.alias("views"))
        .select(
            fn.timestamp_millis("at_ms").alias("since"),
            fn.timestamp_millis("until_ms").alias("until"),
            "seconds",
            *_SUBJECT,
            "views",
        )
    )


def by_group(divergences: DataFrame, apart_s: float = APART_S) -> DataFrame:
    """Return one row for each divergence of a broker group: differences that begin within `apart_s` of the one before.

    Takes the result of `divergence`. A name server that lacks a broker differs in the group, the broker and every
    topic. `what` and `names` have all of these; `views` has the values of the first one.
    """
    in_order = Window.partitionBy("broker").orderBy("since")
    after_s = fn.unix_millis("since") - fn.unix_millis(fn.lag("since").over(in_order))
    is_new = fn.coalesce(after_s > int(apart_s * 1000), fn.expr("true"))
    numbered = divergences.withColumn("number", fn.sum(is_new.cast("int")).over(in_order))
    end_ms = fn.unix_millis("since") + (fn.col("seconds") * 1000).cast("bigint")
    found = numbered.groupBy("broker", "number").agg(
        fn.min("since").alias("since"),
        fn.when(fn.count("until") == fn.count("*"), fn.max("until")).alias("until"),
        ((fn.max(end_ms) - fn.unix_millis(fn.min("since"))) / 1000).alias("seconds"),
        fn.array_sort(fn.collect_set("what")).alias("what"),
        fn.array_sort(fn.collect_set(fn.nullif("name", fn.lit("")))).alias("names"),
        fn.count("*").alias("differences"),
        fn.min_by("views", fn.struct("since", "what", "name")).alias("views"),
    )
    return found.select("since", "until", "seconds", "broker", "what", "names", "differences", "views")


def _divergent_times(intervals: DataFrame) -> DataFrame:
    """Return the times in which servers had more than one value for a subject."""
    begun = intervals.select(*_SUBJECT, "value", fn.col("since_ms").alias("at_ms"), fn.lit(1).alias("step"))
    ended = intervals.select(*_SUBJECT, "value", fn.col("until_ms").alias("at_ms"), fn.lit(-1).alias("step"))
    steps = begun.unionByName(ended).groupBy(*_SUBJECT, "value", "at_ms").agg(fn.sum("step").alias("step"))
    # Count the servers with each value, and from that the different values.
    of_value = Window.partitionBy(*_SUBJECT, "value").orderBy("at_ms")
    values = steps.withColumn("is_held", (_so_far("step", of_value) > 0).cast("int"))
    turn = fn.col("is_held") - fn.coalesce(fn.lag("is_held").over(of_value), fn.lit(0))
    counts = values.withColumn("turn", turn).groupBy(*_SUBJECT, "at_ms").agg(fn.sum("turn").alias("turn"))
    of_subject = Window.partitionBy(*_SUBJECT).orderBy("at_ms")
    turns = counts.withColumn("differ", _so_far("turn", of_subject) > 1)
    turns = turns.withColumn("differed", fn.coalesce(fn.lag("differ").over(of_subject), fn.expr("false")))
    turns = turns.filter("differ != differed").withColumn("until_ms", fn.lead("at_ms").over(of_subject))
    # A divergence at the end of all observations has not ended.
    end = intervals.agg(fn.max("until_ms").alias("end_ms"))
    lasting = turns.filter("differ").crossJoin(fn.broadcast(end))
    until_ms = fn.when(fn.col("until_ms") < fn.col("end_ms"), fn.col("until_ms"))
    seconds = (fn.coalesce("until_ms", "end_ms") - fn.col("at_ms")) / 1000
    return lasting.withColumns({"until_ms": until_ms, "seconds": seconds})


def _so_far(column: str, window: WindowSpec) -> Column:
    return fn.sum(column).over(window.rowsBetween(Window.unboundedPreceding, 0))


def _intervals(events: DataFrame, until: datetime | None) -> DataFrame:
    """Return each server's value for each subject, `since_ms` to `until_ms`, while the server ran."""
    placed = with_epochs(events)
    server_epochs = closed_epochs(events, until).select("server", "epoch", "began_ms", "closed_ms")
    values = _values(placed)
    subjects = values.select(*_SUBJECT).distinct().crossJoin(fn.broadcast(server_epochs))
    beginning = subjects.select(
        "server",
        "epoch",
        fn.lit(-1).alias("seq"),
        fn.col("began_ms").alias("at_ms"),
        *_SUBJECT,
        fn.lit(ABSENT).alias("value"),
    )
    in_order = Window.partitionBy("server", "epoch", *_SUBJECT).orderBy("seq")
    known = values.unionByName(beginning).withColumn("next_ms", fn.lead("at_ms").over(in_order))
    intervals = known.join(fn.broadcast(server_epochs), ["server", "epoch"])
    until_ms = fn.coalesce("next_ms", "closed_ms")
    return intervals.select(
        "server", *_SUBJECT, "value", fn.col("at_ms").alias("since_ms"), until_ms.alias("until_ms")
    ).filter("since_ms < until_ms")


def _values(placed: DataFrame) -> DataFrame:
    """Return each new value of a subject as text, for comparison between servers."""
    queues, group, mapping = fn.col("queues"), fn.col("group"), fn.col("mapping")
    shown = {
        "group": fn.when(group.there, fn.to_json(fn.struct(group.cluster, group.zone, group.acting_master))),
        "broker": fn.when(fn.col("member.there"), fn.to_json(fn.struct("member.broker_id", "member.ha_address"))),
        "filter_servers": fn.when(fn.size("filter_servers") > 0, fn.array_join("filter_servers", " ")),
        "queues": fn.when(
            queues.there,
            fn.to_json(fn.struct(queues.read_queues, queues.write_queues, queues.permission, queues.flags)),
        ),
        "writes": fn.when(fn.col("forbidden"), fn.lit("forbidden")),
        "mapping": fn.when(mapping.there, fn.to_json(mapping.part)),
    }
    column_of = {"broker": "member", "writes": "forbidden"}
    each = fn.array(
        *(
            fn.when(
                fn.col(column_of.get(what, what)).isNotNull(),
                fn.struct(fn.lit(what).alias("what"), fn.coalesce(value, fn.lit(ABSENT)).alias("value")),
            )
            for what, value in shown.items()
        )
    )
    changes = state_changes(placed).withColumn("change", fn.explode(fn.array_compact(each)))
    return changes.select("server", "epoch", "seq", "at_ms", "change.what", "broker", "name", "change.value")
