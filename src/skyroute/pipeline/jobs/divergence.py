"""When name servers did not say the same, for how long, and of what.

Name servers do not talk to each other: each believes what brokers tell it, so that they disagree for moments all the
time. Only what lasts is worth a look.
"""

from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as fn

from skyroute.pipeline.jobs.availability import closed
from skyroute.pipeline.journal.facts import epochs, facts, in_epochs

ABSENT: Final = "absent"
_SUBJECT: Final = ("what", "broker", "name")


def divergence(events: DataFrame, longer_than_s: float = 1.0, until: datetime | None = None) -> DataFrame:
    """Return each time that servers which ran at that time had different words for one subject.

    `what` is group, broker, filter_servers, queues, writes or mapping; `name` the address or topic. `views` says what
    each server had in the beginning. `until` is null where it has not ended. Clocks of name servers differ: what lasted
    no longer than `longer_than_s` is left out.
    """
    spans = _spans(events, until)
    found = _times_apart(spans).filter(fn.col("seconds") > longer_than_s)
    same = [fn.col(f"f.{name}") == fn.col(f"s.{name}") for name in _SUBJECT]
    is_beginning = (fn.col("s.since_ms") <= fn.col("f.at_ms")) & (fn.col("s.until_ms") > fn.col("f.at_ms"))
    views = fn.map_from_entries(fn.array_sort(fn.collect_list(fn.struct("s.server", "s.word"))))
    joined = found.alias("f").join(spans.alias("s"), [*same, is_beginning])
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


def _times_apart(spans: DataFrame) -> DataFrame:
    """From when to when, and so how long, more than one word was said of a subject."""
    begun = spans.select(*_SUBJECT, "word", fn.col("since_ms").alias("at_ms"), fn.lit(1).alias("step"))
    ended = spans.select(*_SUBJECT, "word", fn.col("until_ms").alias("at_ms"), fn.lit(-1).alias("step"))
    steps = begun.unionByName(ended).groupBy(*_SUBJECT, "word", "at_ms").agg(fn.sum("step").alias("step"))
    # How many servers say a word, and from that, how many words are said.
    of_word = Window.partitionBy(*_SUBJECT, "word").orderBy("at_ms")
    words = steps.withColumn("is_said", (_so_far("step", of_word) > 0).cast("int"))
    turn = fn.col("is_said") - fn.coalesce(fn.lag("is_said").over(of_word), fn.lit(0))
    counts = words.withColumn("turn", turn).groupBy(*_SUBJECT, "at_ms").agg(fn.sum("turn").alias("turn"))
    of_subject = Window.partitionBy(*_SUBJECT).orderBy("at_ms")
    turns = counts.withColumn("differ", _so_far("turn", of_subject) > 1)
    turns = turns.withColumn("differed", fn.coalesce(fn.lag("differ").over(of_subject), fn.expr("false")))
    turns = turns.filter("differ != differed").withColumn("until_ms", fn.lead("at_ms").over(of_subject))
    # What ends with the last that is known of any server has not ended.
    end = spans.agg(fn.max("until_ms").alias("end_ms"))
    lasting = turns.filter("differ").crossJoin(fn.broadcast(end))
    until_ms = fn.when(fn.col("until_ms") < fn.col("end_ms"), fn.col("until_ms"))
    seconds = (fn.coalesce("until_ms", "end_ms") - fn.col("at_ms")) / 1000
    return lasting.withColumns({"until_ms": until_ms, "seconds": seconds})


def _so_far(column: str, window: WindowSpec) -> Column:
    return fn.sum(column).over(window.rowsBetween(Window.unboundedPreceding, 0))


def _spans(events: DataFrame, until: datetime | None) -> DataFrame:
    """What each server said of each subject, from when to when, while it ran."""
    placed = in_epochs(events)
    lives = closed(epochs(placed), placed, until).select("server", "epoch", "began_ms", "closed_ms")
    words = _words(placed)
    silent = words.select(*_SUBJECT).distinct().crossJoin(fn.broadcast(lives))
    beginning = silent.select(
        "server",
        "epoch",
        fn.lit(-1).alias("seq"),
        fn.col("began_ms").alias("at_ms"),
        *_SUBJECT,
        fn.lit(ABSENT).alias("word"),
    )
    in_order = Window.partitionBy("server", "epoch", *_SUBJECT).orderBy("seq")
    said = words.unionByName(beginning).withColumn("next_ms", fn.lead("at_ms").over(in_order))
    spans = said.join(fn.broadcast(lives), ["server", "epoch"])
    until_ms = fn.coalesce("next_ms", "closed_ms")
    return spans.select(
        "server", *_SUBJECT, "word", fn.col("at_ms").alias("since_ms"), until_ms.alias("until_ms")
    ).filter("since_ms < until_ms")


def _words(placed: DataFrame) -> DataFrame:
    """Each thing said of a subject, as text that two servers can be compared by."""
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
    said_in = {"broker": "member", "writes": "forbidden"}
    each = fn.array(
        *(
            fn.when(
                fn.col(said_in.get(what, what)).isNotNull(),
                fn.struct(fn.lit(what).alias("what"), fn.coalesce(word, fn.lit(ABSENT)).alias("word")),
            )
            for what, word in shown.items()
        )
    )
    said = facts(placed).withColumn("said", fn.explode(fn.array_compact(each)))
    return said.select("server", "epoch", "seq", "at_ms", "said.what", "broker", "name", "said.word")
