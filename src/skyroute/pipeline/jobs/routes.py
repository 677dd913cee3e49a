"""The route table of each name server at any instant, and the changes between two instants."""

from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as fn

from skyroute.nameserver.journal.schema import Kind
from skyroute.pipeline.journal.epochs import with_epochs
from skyroute.pipeline.journal.state_changes import STATE_COLUMNS, state_changes
from skyroute.routing.topology import MASTER_ID, Permission

_KEY: Final = ("server", "part", "broker", "name")


def routes_at(events: DataFrame, instant: datetime) -> DataFrame:
    """Return every group, broker and topic in each server's route table at an instant, one row each.

    The instant is after the last record with a wall clock up to it. `part` is group, broker or topic; columns of other
    parts are null. `acts_as_master` is true for the slave with the smallest id if the group lost its master and has
    acting masters enabled. `permission` is what clients get, `given_permission` what the broker registered. A row is
    not `certain` if sequence numbers are missing since the server's last start, or if the journal has no start.
    """
    scope = _scope(events, int(instant.timestamp() * 1000))
    within = fn.col("seq").between(fn.col("start"), fn.col("cut"))
    changes = state_changes(events.join(fn.broadcast(scope.select("server", "start", "cut")), "server").filter(within))
    latest = changes.groupBy(*_KEY).agg(*map(_last_value, STATE_COLUMNS))
    known = latest.filter(_is_there())
    return _as_routes(known).join(fn.broadcast(scope.select("server", "certain")), "server").select(*_COLUMNS)


def route_history(events: DataFrame) -> DataFrame:
    """Return every state of every group, broker and topic on each server, with `since` and `until`.

    `until` is null for a current state. The columns are those of `state_changes`. `routes_at` adds what depends on the
    whole group, such as the acting master.
    """
    in_order = Window.partitionBy("epoch", *_KEY).orderBy("seq")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, 0)
    changes = state_changes(with_epochs(events)).withColumn("next_ms", fn.lead("at_ms").over(in_order))
    known = changes.withColumns({column: fn.last(column, ignorenulls=True).over(so_far) for column in STATE_COLUMNS})
    return known.filter(_is_there()).select(
        *_KEY,
        fn.timestamp_millis("at_ms").alias("since"),
        fn.timestamp_millis(fn.coalesce("next_ms", "ended_ms")).alias("until"),
        *STATE_COLUMNS,
        "cause",
        "certain",
    )


def routes_between(events: DataFrame, earlier: datetime, later: datetime) -> DataFrame:
    """Return the differences between a server's route tables at two instants: `change` is added, removed or changed.

    `before` and `after` have the columns of `routes_at` that differ, as text. A new data version alone is not a change.
    """
    state = [name for name in _COLUMNS if name not in {*_IDENTITY, "certain", "version"}]

    def table_at(instant: datetime, side: str) -> DataFrame:
        values = fn.from_json(fn.to_json(fn.struct(*state)), "map<string, string>")
        return routes_at(events, instant).select(*_IDENTITY, values.alias(side))

    # Not named as the result: Spark would take the columns of the result inside lambdas.
    joined = (
        table_at(earlier, "was")
        .alias("b")
        .join(
            table_at(later, "is").alias("a"),
            [fn.col(f"b.{name}").eqNullSafe(fn.col(f"a.{name}")) for name in _IDENTITY],
            "full_outer",
        )
    )
    change = fn.when(fn.col("was").isNull(), "added").when(fn.col("is").isNull(), "removed").otherwise("changed")
    identity = [fn.coalesce(f"a.{name}", f"b.{name}").alias(name) for name in _IDENTITY]
    sides = (_without_equal("was", "is").alias("before"), _without_equal("is", "was").alias("after"))
    found = joined.select(*identity, change.alias("change"), *sides)
    return found.filter("change != 'changed' OR size(before) > 0 OR size(after) > 0")


def _without_equal(side: str, other: str) -> Column:
    """Return the entries of a map that another map lacks or has with another value."""
    others = fn.col(other)
    return fn.map_filter(side, lambda name, value: ~fn.coalesce(others[name] == value, fn.expr("false")))


def _scope(events: DataFrame, instant_ms: int) -> DataFrame:
    """Per server: first and last sequence number of the records that make its table, and whether none is missing."""
    cut = events.filter(fn.col("wall_ms") <= instant_ms).groupBy("server").agg(fn.max("seq").alias("cut"))
    started = fn.max(fn.when(fn.col("kind") == Kind.SERVER_STARTED, fn.col("seq")))
    before = events.join(fn.broadcast(cut), "server").filter("seq <= cut")
    starts = before.groupBy("server", "cut").agg(started.alias("started"), fn.min("seq").alias("first"))
    starts = starts.select("server", "cut", "started", fn.coalesce("started", "first").alias("start"))
    since = (
        events.select("server", "seq", "kind").join(fn.broadcast(starts), "server").filter("seq between start and cut")
    )
    whole = (fn.count("*") == fn.col("cut") - fn.col("start") + 1) & (fn.count_if(fn.col("kind") == Kind.GAP) == 0)
    certain = fn.col("started").isNotNull() & whole
    return since.groupBy("server", "cut", "started", "start").agg(certain.alias("certain")).drop("started")


def _is_there() -> Column:
    return fn.coalesce("group.there", "member.there", "queues.there")


def _last_value(name: str) -> Column:
    column = fn.col(name)
    return fn.max_by(column, fn.when(column.isNotNull(), fn.col("seq"))).alias(name)


_IDENTITY: Final = ("server", "part", "broker", "address", "topic")
_COLUMNS: Final = (
    *("server", "certain", "part", "cluster", "broker", "zone", "acting_master"),
    *("broker_id", "address", "ha_address", "version", "acts_as_master", "confirmed", "filter_servers"),
    *("topic", "read_queues", "write_queues", "permission", "given_permission", "flags", "forbidden", "mapping"),
)


def _as_routes(known: DataFrame) -> DataFrame:
    """Add what depends on the group: the cluster, the acting master and the permission for clients."""
    members = known.filter("part != 'topic'").groupBy("server", "broker")
    groups = members.agg(
        fn.max("group.cluster").alias("cluster"),
        fn.max("group.acting_master").alias("may_act"),
        fn.min("member.broker_id").alias("smallest"),
    )
    is_headless = fn.coalesce(fn.col("may_act") & (fn.col("smallest") != MASTER_ID), fn.expr("false"))
    part, given = fn.col("part"), fn.col("queues.permission")
    is_topic, is_broker = part == "topic", part == "broker"
    forbidden = fn.coalesce("forbidden", fn.expr("false"))
    readable = given.bitwiseAND(~int(Permission.WRITE))
    return known.join(groups, ["server", "broker"], "left").select(
        "server",
        "part",
        "broker",
        "cluster",
        "group.zone",
        "group.acting_master",
        "member.broker_id",
        fn.when(is_broker, fn.col("name")).alias("address"),
        "member.ha_address",
        "member.version",
        fn.when(is_broker, is_headless & (fn.col("member.broker_id") == fn.col("smallest"))).alias("acts_as_master"),
        fn.when(is_broker, fn.col("confirmed")).alias("confirmed"),
        fn.when(is_broker, fn.col("filter_servers")).alias("filter_servers"),
        fn.when(is_topic, fn.col("name")).alias("topic"),
        "queues.read_queues",
        "queues.write_queues",
        fn.when(forbidden | is_headless, readable).otherwise(given).alias("permission"),
        given.alias("given_permission"),
        "queues.flags",
        fn.when(is_topic, forbidden).alias("forbidden"),
        fn.when(fn.col("mapping.there"), fn.col("mapping.part")).alias("mapping"),
    )
