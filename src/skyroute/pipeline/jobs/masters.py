"""Who was master of which broker group, from when to when, and why: from the journals of controllers."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as fn

from skyroute.nameserver.journal.schema import Kind


def masters(events: DataFrame) -> DataFrame:
    """Return each time that a broker was master, with the cause of its election and of its end.

    `until` and `end_cause` are null for a master that was not replaced yet. Epochs order the changes, because the
    clocks of several controllers differ.
    """
    changes = events.filter(fn.col("kind").isin(Kind.MASTER_ELECTED.value, Kind.MASTER_LOST.value))
    following = Window.partitionBy("cluster", "broker").orderBy("master_epoch")
    times = changes.withColumns(
        {"until_ms": fn.lead("wall_ms").over(following), "end_cause": fn.lead("cause").over(following)}
    )
    return times.filter(fn.col("kind") == Kind.MASTER_ELECTED.value).select(
        "cluster",
        "broker",
        fn.col("master_epoch").alias("epoch"),
        "broker_id",
        "address",
        fn.timestamp_millis("wall_ms").alias("since"),
        fn.timestamp_millis("until_ms").alias("until"),
        "cause",
        "end_cause",
        fn.coalesce("unclean", fn.expr("false")).alias("unclean"),
        fn.col("server").alias("controller"),
    )
