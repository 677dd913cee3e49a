"""The Spark jobs as commands. Spark is imported when a job runs: help and argument errors are fast."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skyroute.cli.options import examples
from skyroute.cli.pipeline.job_runner import (
    History,
    as_datetime,
    check_name_servers,
    duration,
    history_options,
    run_job,
    spark_options,
    spark_session,
    time_option,
)
from skyroute.files.replace import replace_file
from skyroute.message.reserved_topics import TRACE_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog=examples(
        "skyroute pipeline availability --journal /var/ns-1/memory --window 1d",
        "skyroute pipeline routes --at 11:00 --since 10:00 --topic Orders",
        "skyroute pipeline traffic -n 127.0.0.1:9876 -t Orders --hot-keys",
        "skyroute pipeline archive --journal /var/ns-1/memory --to /data/archive",
        "skyroute pipeline report --archive /data/archive --to report.html",
    ),
)
def pipeline() -> None:
    """Analyze route history and topics with Spark.

    History jobs read the journals of name servers (see `skyroute journal`), up to the last closed segment, which is at
    most a minute old, and archives written by `archive`. Spark runs locally or on a cluster (--master). Results are
    printed, or written as Parquet, CSV or JSON (--output).
    """


@pipeline.command(
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


@pipeline.command(
    epilog=examples(
        "skyroute pipeline availability --journal memory-9876 --what broker --window 1d",
        "skyroute pipeline availability --journal memory-9876 --outages",
    )
)
@history_options
@click.option(
    "--window",
    "window_s",
    type=duration,
    metavar="DURATION",
    help="Length of a window, such as 1h or 1d. Default: one window.",
)
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


@pipeline.command(
    epilog=examples("skyroute pipeline divergence --journal ns-1/memory --journal ns-2/memory --longer-than 30s")
)
@history_options
@click.option(
    "--longer-than",
    "longer_than_s",
    type=duration,
    default="1s",
    show_default=True,
    metavar="DURATION",
    help="Minimum length.",
)
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


@pipeline.command(
    epilog=examples(
        "skyroute pipeline churn --journal memory-9876 --window 1h",
        "skyroute pipeline churn --journal memory-9876 --permissions",
    )
)
@history_options
@click.option(
    "--window",
    "window_s",
    type=duration,
    default="1d",
    show_default=True,
    metavar="DURATION",
    help="Length of a window.",
)
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


@pipeline.command(
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


@pipeline.command(epilog=examples("skyroute pipeline capacity --journal memory-9876 --single"))
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


@pipeline.command(epilog=examples("skyroute pipeline rejects --journal memory-9876"))
@history_options
@spark_options
def rejects(history: History, **options: Any) -> None:
    """Show invalid lines of journals. Each with its problem; all jobs report their number."""
    run_job(lambda spark: history.read(spark).rejects.orderBy("file", "line"), "reading journals", **options)


_name_server_option = click.option(
    "-n",
    "--nameserver",
    "name_servers",
    metavar="HOST:PORT[;...]",
    envvar="NAMESRV_ADDR",
    required=True,
    help="Name servers of the cluster.",
)
_topic_option = click.option(
    "-t", "--topic", "topics", metavar="NAME", multiple=True, required=True, help="Topic; repeatable."
)


@pipeline.command(
    epilog=examples(
        "skyroute pipeline traffic -n 127.0.0.1:9876 -t Orders -t Payments --window 1h",
        "skyroute pipeline traffic -n 127.0.0.1:9876 -t Orders --hot-keys --limit 10",
    )
)
@_name_server_option
@_topic_option
@click.option(
    "--window",
    "window_s",
    type=duration,
    default="1m",
    show_default=True,
    metavar="DURATION",
    help="Length of a window.",
)
@click.option("--hot-keys", "by_key", is_flag=True, help="Show the most frequent keys.")
@spark_options
def traffic(name_servers: str, topics: tuple[str, ...], window_s: float, *, by_key: bool, **options: Any) -> None:
    """Show messages and bytes of topics, and frequent keys.

    Shows messages, bytes and the delay from born to stored by topic, tag, producer host and window.
    """

    def query(spark: "SparkSession") -> "DataFrame":
        from skyroute.pipeline.jobs import traffic as job

        source = _source_options(name_servers, topics, job.COLUMNS)
        messages = spark.read.format("rocketmq").options(**source).load()
        if by_key:
            return job.hot_keys(messages).orderBy("topic", "messages", "key", ascending=[True, False, True])
        return job.traffic(messages, window_s).orderBy("window", "topic", "tags", "producer")

    check_name_servers(name_servers)
    run_job(query, "reading topics", **options)


@pipeline.command(
    epilog=examples("skyroute pipeline lag -n 127.0.0.1:9876 -g billing --every 5s --for 10m --samples /data/lag")
)
@_name_server_option
@click.option(
    "-g", "--group", "groups", metavar="NAME", multiple=True, help="Consumer group; repeatable. Default: all."
)
@click.option(
    "--every",
    "every_s",
    type=duration,
    default="10s",
    show_default=True,
    metavar="DURATION",
    help="Interval between samples.",
)
@click.option(
    "--for",
    "for_s",
    type=duration,
    default="1m",
    show_default=True,
    metavar="DURATION",
    help="Duration of the sampling, from the first sample on.",
)
@click.option(
    "--samples",
    metavar="FOLDER",
    type=click.Path(path_type=Path, resolve_path=True),
    required=True,
    help="Folder of the samples; new samples are added.",
)
@click.option(
    "--window",
    "window_s",
    type=duration,
    default="1m",
    show_default=True,
    metavar="DURATION",
    help="Length of a window.",
)
@spark_options
def lag(
    name_servers: str,
    groups: tuple[str, ...],
    every_s: float,
    for_s: float,
    samples: Path,
    window_s: float,
    **options: Any,
) -> None:
    """Sample the lag of consumer groups."""

    def query(spark: "SparkSession") -> "DataFrame":
        from skyroute.pipeline.jobs import lag as job

        job.take_samples(spark, name_servers, samples, every_s=every_s, for_s=for_s, groups=groups)
        if not any(samples.glob("batch=*")):
            of = f"of {' or '.join(groups)}" if groups else "of a consumer group"
            raise click.ClickException(f"no samples: no broker has offsets {of}. Start a consumer first")
        return job.lag(job.read_samples(spark, samples), window_s).orderBy("window", "consumer_group", "topic")

    check_name_servers(name_servers)
    run_job(query, "taking samples", **options)


@pipeline.command(
    epilog=examples(
        "skyroute pipeline audit -n 127.0.0.1:9876 -t Orders",
        "skyroute pipeline audit -n 127.0.0.1:9876 -t Orders --duplicates keys --limit 20",
    )
)
@_name_server_option
@_topic_option
@click.option(
    "--duplicates",
    "key",
    type=click.Choice(["keys", "message_id", "idempotency_key"]),
    help="Show messages with the same key instead of missing offsets.",
)
@spark_options
def audit(name_servers: str, topics: tuple[str, ...], key: str | None, **options: Any) -> None:
    """Show missing offsets of topics, or messages stored twice."""

    def query(spark: "SparkSession") -> "DataFrame":
        from skyroute.pipeline.jobs import audit as job

        source = {**_source_options(name_servers, topics, job.COLUMNS), "failOnDataLoss": "false"}
        messages = spark.read.format("rocketmq").options(**source).load()
        if key is not None:
            return job.duplicates(messages, key).orderBy("topic", "messages", "key", ascending=[True, False, True])
        return job.gaps(messages).orderBy("topic", "broker_name", "queue_id", "first_missing")

    check_name_servers(name_servers)
    run_job(query, "reading topics", **options)


@pipeline.command(epilog=examples("skyroute pipeline latency -n 127.0.0.1:9876 --window 1h"))
@_name_server_option
@click.option("--trace-topic", default=TRACE_TOPIC, show_default=True, metavar="NAME", help="Topic of the traces.")
@click.option(
    "--window",
    "window_s",
    type=duration,
    default="1m",
    show_default=True,
    metavar="DURATION",
    help="Length of a window.",
)
@spark_options
def latency(name_servers: str, trace_topic: str, window_s: float, **options: Any) -> None:
    """Show latency from send to consumption, from traces.

    Shows the time from send to storage, from there to the handler, and in the handler, by topic and consumer group.
    """

    def query(spark: "SparkSession") -> "DataFrame":
        from skyroute.pipeline.jobs import latency as job

        source = _source_options(name_servers, (trace_topic,), job.COLUMNS)
        records = job.trace_records(spark.read.format("rocketmq").options(**source).load())
        return job.latency(records, window_s).orderBy("window", "topic", "consumer_group")

    check_name_servers(name_servers)
    run_job(query, "reading traces", **options)


@pipeline.command(epilog=examples("skyroute pipeline retention -n 127.0.0.1:9876 -t Orders --disk 500"))
@_name_server_option
@_topic_option
@click.option(
    "--disk",
    "disk_gib",
    type=click.FloatRange(min=0, min_open=True),
    required=True,
    metavar="GIB",
    help="Disk of a broker.",
)
@spark_options
def retention(name_servers: str, topics: tuple[str, ...], disk_gib: float, **options: Any) -> None:
    """Show for how long the messages of topics fit on a disk."""

    def query(spark: "SparkSession") -> "DataFrame":
        from skyroute.pipeline.jobs import retention as job

        messages = spark.read.format("rocketmq").options(**_source_options(name_servers, topics, job.COLUMNS)).load()
        return job.retention(messages, int(disk_gib * 2**30)).orderBy("broker_name", "topic")

    check_name_servers(name_servers)
    run_job(query, "reading topics", **options)


@pipeline.command(epilog=examples("skyroute pipeline forecast --samples /data/lag --within 1h"))
@click.option(
    "--samples",
    metavar="FOLDER",
    type=click.Path(path_type=Path, resolve_path=True),
    required=True,
    help="Folder of the samples that `lag` took.",
)
@click.option(
    "--within",
    "within_s",
    type=duration,
    default="1h",
    show_default=True,
    metavar="DURATION",
    help="How far to look ahead.",
)
@spark_options
def forecast(samples: Path, within_s: float, **options: Any) -> None:
    """Forecast the lag of consumer groups from samples."""
    if not samples.is_dir():
        raise click.UsageError(f"no samples in {samples}: take some with `skyroute pipeline lag --samples`")

    def query(spark: "SparkSession") -> "DataFrame":
        from skyroute.pipeline.jobs.forecast import forecast as job
        from skyroute.pipeline.jobs.lag import read_samples

        return job(read_samples(spark, samples), within_s).orderBy("consumer_group", "topic")

    run_job(query, "reading samples", **options)


@pipeline.command(
    epilog=examples(
        "skyroute pipeline archive --journal ns-1/memory --journal ns-2/memory --to /data/journal",
        "skyroute pipeline archive -n 127.0.0.1:9876 -t Orders --to /data/orders",
    )
)
@click.option(
    "--journal",
    "journals",
    metavar="FOLDER",
    multiple=True,
    type=click.Path(path_type=Path, resolve_path=True, exists=True, file_okay=False),
    help="Memory folder of a name server; repeatable.",
)
@click.option(
    "-n",
    "--nameserver",
    "name_servers",
    metavar="HOST:PORT[;...]",
    envvar="NAMESRV_ADDR",
    help="Name servers of the cluster.",
)
@click.option("-t", "--topic", "topics", metavar="NAME", multiple=True, help="Archive this topic instead; repeatable.")
@click.option(
    "--to",
    "root",
    metavar="FOLDER",
    type=click.Path(path_type=Path, resolve_path=True),
    required=True,
    help="Folder of the archive; created if missing.",
)
@click.option("--master", metavar="URL", help="Spark master. Default: local.")
def archive(
    journals: tuple[Path, ...], name_servers: str | None, topics: tuple[str, ...], root: Path, master: str | None
) -> None:
    """Write new journal records or messages to Parquet.

    Writes each record once, by day, in few files. Every run continues where the last one ended. Journals are deleted
    after a week, archives are not. An archive holds either journals or topics, and always the same ones.
    """
    if bool(journals) == bool(topics):
        raise click.UsageError("nothing to archive: add --journal, or -t with -n")
    if topics and not name_servers:
        raise click.UsageError("-t needs a name server: add -n HOST:PORT, or set NAMESRV_ADDR")
    if name_servers and topics:
        check_name_servers(name_servers)
    with spark_session("archiving", master) as spark:
        from skyroute.pipeline.jobs import archive as job
        from skyroute.pipeline.journal.reading import stream_journal

        if journals:
            query = job.archive_journal(stream_journal(spark, journals), root)
        else:
            source = _source_options(name_servers or "", topics, job.MESSAGE_COLUMNS)
            query = job.archive_messages(spark.readStream.format("rocketmq").options(**source).load(), root)
        query.awaitTermination()
        written = sum(progress.numInputRows for progress in query.recentProgress)
        compacted = job.compact(spark, root)
    click.echo(f"{written} new {'journal lines' if journals else 'messages'} in {root}; {compacted} days compacted")


@pipeline.command(
    epilog=examples(
        "skyroute pipeline report --journal ns-1/memory --journal ns-2/memory --to report.html",
        "skyroute pipeline report --archive /data/archive --to report.html --every 1h",
    )
)
@history_options
@click.option(
    "--to",
    "path",
    metavar="FILE",
    type=click.Path(path_type=Path, resolve_path=True, dir_okay=False),
    required=True,
    help="HTML file to write.",
)
@click.option(
    "--window",
    "window_s",
    type=duration,
    default="1h",
    show_default=True,
    metavar="DURATION",
    help="Resolution of charts over time.",
)
@click.option(
    "--every",
    "every_s",
    type=duration,
    metavar="DURATION",
    help="Write it again after this time, until ctrl-C. The console shows the latest: skyroute console --report FILE.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option("--master", metavar="URL", help="Spark master. Default: local.")
def report(
    history: History, path: Path, window_s: float, every_s: float | None, *, overwrite: bool, master: str | None
) -> None:
    """Write an HTML report about journals. One self-contained file with charts and tables."""
    if path.exists() and not overwrite:
        raise click.BadParameter(f"{path} already exists: add --overwrite, or choose another path", param_hint="--to")
    if not path.absolute().parent.is_dir():
        raise click.BadParameter(f"no such folder: {path.absolute().parent}", param_hint="--to")
    write_report(history, path, window_s, master)
    while every_s is not None:
        time.sleep(every_s)
        write_report(history, path, window_s, master)


def write_report(history: History, path: Path, window_s: float, master: str | None) -> None:
    """Write the report. Between two reports, Spark is stopped and its memory free."""
    with spark_session("building the report", master) as spark:
        from skyroute.pipeline.report.page import report as build_report

        journal = history.read(spark)
        page = build_report(journal, as_datetime(None), window_s)
        journal.events.unpersist()
        replace_file(path, page.encode(), keep_backup=False)
    click.echo(f"written to {path}")


def _source_options(name_servers: str, topics: tuple[str, ...], columns: str) -> dict[str, str]:
    return {"nameServer": name_servers, "topic": ",".join(topics), "startingOffsets": "earliest", "columns": columns}
