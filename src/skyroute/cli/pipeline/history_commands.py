"""Commands over the history of routes and masters, from journals and archives. Spark is imported when a job runs."""

from typing import TYPE_CHECKING, Any, Final

import click

from skyroute.cli.options import examples
from skyroute.cli.pipeline.job_runner import (
    History,
    as_datetime,
    duration_option,
    history_options,
    run_job,
    spark_options,
    time_option,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@click.command(
    epilog=examples(
        "skyroute pipeline routes --journal memory-9876 --at 2026-11-15T11:00 --part broker",
        "skyroute pipeline routes --journal memory-9876 --since 1h",
    )
)
@history_options
@time_option("--at", "Time: 2026-11-15T11:00, 11:00 for today, or 10m for ten minutes ago. Default: now.")
@time_option("--since", "Show only the changes since this time.")
@click.option("--part", type=click.Choice(["group", "broker", "topic"]), help="Only rows of this kind.")
@click.option("--topic", help="Only this topic.")
@click.option("--broker", metavar="NAME", help="Only this broker group.")
@spark_options
def routes(
    history: History,
    at_ms: int | None,
    since_ms: int | None,
    part: str | None,
    topic: str | None,
    broker: str | None,
    **options: Any,
) -> None:
    """Show the route table at any time.

    Shows the route table of each name server, or with --since its changes between two times.
    """

    def query(spark: "SparkSession") -> "DataFrame":
        from pyspark.sql import functions as fn

        from skyroute.pipeline.jobs.routes import routes_at, routes_between

        events, instant = history.read(spark).events, as_datetime(at_ms)
        result = (
            routes_at(events, instant) if since_ms is None else routes_between(events, as_datetime(since_ms), instant)
        )
        for column, wanted in (("part", part), ("topic", topic), ("broker", broker)):
            result = result if wanted is None else result.filter(fn.col(column) == wanted)
        return result.orderBy("server", "part", "broker", "address", "topic")

    run_job(query, "finding routes", history=history, **options)


@click.command(
    epilog=examples(
        "skyroute pipeline availability --journal memory-9876 --what broker --window 1d",
        "skyroute pipeline availability --journal memory-9876 --outages",
    )
)
@history_options
@duration_option("--window", "Length of a window, such as 1h or 1d. Default: one window.")
@time_option("--until", "End of the observation of name servers that still run. Default: now.")
@click.option("--what", type=click.Choice(["broker", "group", "topic"]), help="Only rows of this kind.")
@click.option("--outages", "listed", flag_value="outages", help="List outages with start, end and cause.")
@click.option("--incidents", "listed", flag_value="incidents", help="List outages that began together as one.")
@spark_options
def availability(
    history: History,
    window_s: float | None,
    until_ms: int | None,
    what: str | None,
    listed: str | None,
    **options: Any,
) -> None:
    """Show uptime and outages of brokers, groups and topics.

    Shows time up, down and away, outages with their causes, and the mean time to recovery. Time after a planned
    departure, such as an unregistration, is away, not down. Three outages in one window count as flapping.
    Outages that begin within 15 seconds of each other are one incident.
    """

    def query(spark: "SparkSession") -> "DataFrame":
        from pyspark.sql import functions as fn

        from skyroute.pipeline.jobs import availability as job
        from skyroute.pipeline.jobs.incidents import incidents

        events, until = history.read(spark).events, as_datetime(until_ms)
        result = job.availability(events, window_s, until) if listed is None else job.outages(events, until)
        if window_s is None and listed is None:
            result = result.drop("window")
        result = result if what is None else result.filter(fn.col("what") == what)
        if listed == "incidents":
            return incidents(result).orderBy("since")
        first = ["since"] if listed else [] if window_s is None else ["window"]
        return result.orderBy(*first, "what", "broker", "name", "server")

    run_job(query, "computing availability", history=history, **options)


@click.command(
    epilog=examples("skyroute pipeline divergence --journal ns-1/memory --journal ns-2/memory --longer-than 30s")
)
@history_options
@duration_option("--longer-than", "Minimum length.", default="1s")
@time_option("--until", "End of the observation of name servers that still run. Default: now.")
@click.option("--each", "as_list", is_flag=True, help="One row for each group, broker and topic that differs.")
@spark_options
def divergence(history: History, longer_than_s: float, until_ms: int | None, *, as_list: bool, **options: Any) -> None:
    """Show when name servers had different routes. Needs journals of two or more name servers.

    Differences of one broker group that begin within 15 seconds of each other are one row.
    """

    def query(spark: "SparkSession") -> "DataFrame":
        from skyroute.pipeline.jobs import divergence as job

        result = job.divergence(history.read(spark).events, longer_than_s, as_datetime(until_ms))
        if as_list:
            return result.orderBy("since", "what", "broker", "name")
        return job.by_group(result).orderBy("since", "broker")

    run_job(query, "comparing name servers", history=history, **options)


@click.command(
    epilog=examples(
        "skyroute pipeline churn --journal memory-9876 --window 1h",
        "skyroute pipeline churn --journal memory-9876 --permissions",
    )
)
@history_options
@duration_option("--window", "Length of a window.", default="1d")
@click.option("--permissions", "as_list", is_flag=True, help="List changes of topic permissions.")
@spark_options
def churn(history: History, window_s: float, *, as_list: bool, **options: Any) -> None:
    """Count changes over time. Also shows the number of brokers, topics and queues."""

    def query(spark: "SparkSession") -> "DataFrame":
        from skyroute.pipeline.jobs import churn as job

        events = history.read(spark).events
        if as_list:
            return job.permission_changes(events).orderBy("at", "server", "broker", "topic")
        return job.churn(events, window_s).orderBy("window", "server")

    run_job(query, "counting changes", history=history, **options)


@click.command(
    epilog=examples(
        "skyroute pipeline masters --journal /var/lib/skyroute/controller",
        "skyroute pipeline masters --journal memory-9876 --broker broker-a",
    )
)
@history_options
@click.option("--broker", metavar="NAME", help="Only this broker group.")
@spark_options
def masters(history: History, broker: str | None, **options: Any) -> None:
    """Show who was master when, and why.

    Reads the journals of controllers. A controller in a name server records in the name server's journal.
    """

    def query(spark: "SparkSession") -> "DataFrame":
        from pyspark.sql import functions as fn

        from skyroute.pipeline.jobs import masters as job

        result = job.masters(history.read(spark).events)
        if broker is not None:
            result = result.filter(fn.col("broker") == broker)
        return result.orderBy("cluster", "broker", "epoch")

    run_job(query, "reading masters", history=history, **options)


@click.command(epilog=examples("skyroute pipeline capacity --journal memory-9876 --single"))
@history_options
@time_option("--at", "Time. Default: now.")
@click.option("--single", is_flag=True, help="Only topics on a single broker group.")
@spark_options
def capacity(history: History, at_ms: int | None, *, single: bool, **options: Any) -> None:
    """Show how broker groups share the queues of topics. Also shows topics on a single group."""

    def query(spark: "SparkSession") -> "DataFrame":
        from skyroute.pipeline.jobs import churn as job

        result = job.capacity(history.read(spark).events, as_datetime(at_ms))
        return (result.filter("single_broker") if single else result).orderBy("server", "topic")

    run_job(query, "counting queues", history=history, **options)


@click.command(epilog=examples("skyroute pipeline rejects --journal memory-9876"))
@history_options
@spark_options
def rejects(history: History, **options: Any) -> None:
    """Show invalid lines of journals. Each with its problem; all jobs report their number."""
    run_job(lambda spark: history.read(spark).rejects.orderBy("file", "line"), "reading journals", **options)


COMMANDS: Final = (routes, availability, divergence, churn, masters, capacity, rejects)
