"""The jobs as commands. Spark and the jobs are imported when one runs, so that help and wrong words cost no time."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skyroute.cli.help import examples
from skyroute.cli.pipeline.running import (
    History,
    answer,
    as_datetime,
    history_options,
    moment_option,
    span,
    spark_options,
    working,
)

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
    """Ask the cluster's history and its topics, with Spark.

    Jobs over history read what name servers have recorded of every change (see `skyroute journal`): closed segments,
    which are at most a minute behind, and what `archive` has kept of them. Spark runs on this machine, or on a cluster
    (--master). Answers are printed, or written as Parquet, CSV or JSON (--output).
    """


@pipeline.command(
    epilog=examples(
        "skyroute pipeline routes --journal memory-9876 --at 2026-11-15T11:00 --part broker",
        "skyroute pipeline routes --journal memory-9876 --since 1h",
    )
)
@history_options
@moment_option("--at", "The instant: 2026-11-15T11:00, 11:00 for today, or 10m for ten minutes ago. Default: now.")
@moment_option("--since", "Show what is other than at this instant.")
@click.option("--part", type=click.Choice(["group", "broker", "topic"]), help="Only these.")
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
    **how: Any,
) -> None:
    """Show the route table as it was at any instant.

    As each name server had it, or what changed in it since another instant.
    """

    def ask(spark: "SparkSession") -> "DataFrame":
        from pyspark.sql import functions as fn

        from skyroute.pipeline.jobs.routes import routes_at, routes_between

        events, instant = history.read(spark).events, as_datetime(at_ms)
        found = (
            routes_at(events, instant) if since_ms is None else routes_between(events, as_datetime(since_ms), instant)
        )
        for column, wanted in (("part", part), ("topic", topic), ("broker", broker)):
            found = found if wanted is None else found.filter(fn.col(column) == wanted)
        return found.orderBy("server", "part", "broker", "address", "topic")

    answer(ask, "finding routes", history=history, **how)


@pipeline.command(
    epilog=examples(
        "skyroute pipeline availability --journal memory-9876 --what broker --window 1d",
        "skyroute pipeline availability --journal memory-9876 --outages",
    )
)
@history_options
@click.option(
    "--window", "window_s", type=span, metavar="SPAN", help="One answer for each 1h, 1d, ... Default: for all."
)
@moment_option("--until", "Up to when servers that still run are taken to have seen no more. Default: now.")
@click.option("--what", type=click.Choice(["broker", "group", "topic"]), help="Only these.")
@click.option("--outages", "as_list", is_flag=True, help="List outages: since when, until when, why.")
@spark_options
def availability(
    history: History, window_s: float | None, until_ms: int | None, what: str | None, *, as_list: bool, **how: Any
) -> None:
    """Show how long brokers, groups and topics were there.

    And why not: outages with their causes, flapping, the mean time to recover. Time after a goodbye is away, not down.
    Three outages within a window are flapping.
    """

    def ask(spark: "SparkSession") -> "DataFrame":
        from pyspark.sql import functions as fn

        from skyroute.pipeline.jobs import availability as job

        events, until = history.read(spark).events, as_datetime(until_ms)
        found = job.outages(events, until) if as_list else job.availability(events, window_s, until)
        found = found if what is None else found.filter(fn.col("what") == what)
        return found.orderBy("since" if as_list else "window", "what", "broker", "name", "server")

    answer(ask, "adding up time", history=history, **how)


@pipeline.command(
    epilog=examples("skyroute pipeline divergence --journal ns-1/memory --journal ns-2/memory --longer-than 30s")
)
@history_options
@click.option(
    "--longer-than", "longer_than_s", type=span, default="1s", show_default=True, metavar="SPAN", help="Only these."
)
@moment_option("--until", "Up to when servers that still run are taken to have seen no more. Default: now.")
@spark_options
def divergence(history: History, longer_than_s: float, until_ms: int | None, **how: Any) -> None:
    """Show when and on what name servers disagreed. Name the journals of two or more."""

    def ask(spark: "SparkSession") -> "DataFrame":
        from skyroute.pipeline.jobs import divergence as job

        found = job.divergence(history.read(spark).events, longer_than_s, as_datetime(until_ms))
        return found.orderBy("since", "what", "broker", "name")

    answer(ask, "comparing name servers", history=history, **how)


@pipeline.command(
    epilog=examples(
        "skyroute pipeline churn --journal memory-9876 --window 1h",
        "skyroute pipeline churn --journal memory-9876 --permissions",
    )
)
@history_options
@click.option(
    "--window", "window_s", type=span, default="1d", show_default=True, metavar="SPAN", help="One row for each."
)
@click.option("--permissions", "as_list", is_flag=True, help="List changes of what clients may do with topics.")
@spark_options
def churn(history: History, window_s: float, *, as_list: bool, **how: Any) -> None:
    """Show how much came, went and changed. And how many brokers, topics and queues there were then."""

    def ask(spark: "SparkSession") -> "DataFrame":
        from skyroute.pipeline.jobs import churn as job

        events = history.read(spark).events
        if as_list:
            return job.permission_changes(events).orderBy("at", "server", "broker", "topic")
        return job.churn(events, window_s).orderBy("window", "server")

    answer(ask, "counting changes", history=history, **how)


@pipeline.command(epilog=examples("skyroute pipeline capacity --journal memory-9876 --single"))
@history_options
@moment_option("--at", "The instant. Default: now.")
@click.option("--single", is_flag=True, help="Only topics that hang on one broker group.")
@spark_options
def capacity(history: History, at_ms: int | None, *, single: bool, **how: Any) -> None:
    """Show how broker groups share the queues of topics. And which topics hang on one group."""

    def ask(spark: "SparkSession") -> "DataFrame":
        from skyroute.pipeline.jobs import churn as job

        found = job.capacity(history.read(spark).events, as_datetime(at_ms))
        return (found.filter("single_broker") if single else found).orderBy("server", "topic")

    answer(ask, "counting queues", history=history, **how)


@pipeline.command(epilog=examples("skyroute pipeline rejects --journal memory-9876"))
@history_options
@spark_options
def rejects(history: History, **how: Any) -> None:
    """Show lines of journals that are no records, and why. No job drops them in silence: all count them."""
    answer(lambda spark: history.read(spark).rejects.orderBy("file", "line"), "reading journals", **how)


_name_server_option = click.option(
    "-n",
    "--nameserver",
    "name_servers",
    metavar="HOST:PORT[;...]",
    envvar="NAMESRV_ADDR",
    required=True,
    help="Where topics are found.",
)
_topic_option = click.option(
    "-t", "--topic", "topics", metavar="NAME", multiple=True, required=True, help="Once for each topic."
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
    "--window", "window_s", type=span, default="1m", show_default=True, metavar="SPAN", help="One row for each."
)
@click.option("--hot-keys", "by_key", is_flag=True, help="Show which keys come most often.")
@spark_options
def traffic(name_servers: str, topics: tuple[str, ...], window_s: float, *, by_key: bool, **how: Any) -> None:
    """Show what goes through topics, and the keys that come often.

    Messages and bytes by tag, producer's host and minute, and the delay from born to stored.
    """

    def ask(spark: "SparkSession") -> "DataFrame":
        from skyroute.pipeline.jobs import traffic as job

        messages = spark.read.format("rocketmq").options(**_source(name_servers, topics)).load()
        if by_key:
            return job.hot_keys(messages).orderBy("topic", "messages", "key", ascending=[True, False, True])
        return job.traffic(messages, window_s).orderBy("window", "topic", "tags", "producer")

    answer(ask, "reading topics", **how)


@pipeline.command(
    epilog=examples("skyroute pipeline lag -n 127.0.0.1:9876 -g billing --every 5s --for 10m --samples /data/lag")
)
@_name_server_option
@click.option(
    "-g", "--group", "groups", metavar="NAME", multiple=True, help="A consumer group. Default: all there are."
)
@click.option(
    "--every", "every_s", type=span, default="10s", show_default=True, metavar="SPAN", help="How often to look."
)
@click.option("--for", "for_s", type=span, default="1m", show_default=True, metavar="SPAN", help="How long to go on.")
@click.option(
    "--samples",
    metavar="FOLDER",
    type=click.Path(path_type=Path, resolve_path=True),
    required=True,
    help="Where samples are kept; more are added.",
)
@click.option(
    "--window", "window_s", type=span, default="1m", show_default=True, metavar="SPAN", help="One row for each."
)
@spark_options
def lag(
    name_servers: str, groups: tuple[str, ...], every_s: float, for_s: float, samples: Path, window_s: float, **how: Any
) -> None:
    """Watch for a while how far consumer groups are behind."""

    def ask(spark: "SparkSession") -> "DataFrame":
        from skyroute.pipeline.jobs import lag as job

        query = job.start_sampling(spark, name_servers, samples, every_s=every_s, groups=groups)
        query.awaitTermination(for_s)  # type: ignore[arg-type] # fractions are welcome there
        query.stop()
        return job.lag(job.read_samples(spark, samples), window_s).orderBy("window", "consumer_group", "topic")

    answer(ask, "taking samples", **how)


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
    help="A name server's memory folder. Once for each.",
)
@click.option(
    "-n",
    "--nameserver",
    "name_servers",
    metavar="HOST:PORT[;...]",
    envvar="NAMESRV_ADDR",
    help="Where topics are found.",
)
@click.option(
    "-t", "--topic", "topics", metavar="NAME", multiple=True, help="Archive this topic instead. Once for each."
)
@click.option(
    "--to",
    "root",
    metavar="FOLDER",
    type=click.Path(path_type=Path, resolve_path=True),
    required=True,
    help="The archive; it is made, or added to.",
)
@click.option("--master", metavar="URL", help="Where Spark runs. Default: here.")
def archive(
    journals: tuple[Path, ...], name_servers: str | None, topics: tuple[str, ...], root: Path, master: str | None
) -> None:
    """Write what is new of journals or topics to Parquet.

    By day, each record once, in few files.
    Run it as often as you like: it goes on where it ended. A journal forgets after a week, an archive does not. One
    archive holds journals or topics, and always the same ones.
    """
    if bool(journals) == bool(topics):
        raise click.UsageError("name what to archive: --journal, or -t with -n")
    if topics and not name_servers:
        raise click.UsageError("where are the topics? say -n HOST:PORT, or set NAMESRV_ADDR")
    with working("archiving", master) as spark:
        from skyroute.pipeline.jobs import archive as job
        from skyroute.pipeline.journal.reading import stream_journal

        if journals:
            query = job.archive_journal(stream_journal(spark, journals), root)
        else:
            source = _source(name_servers or "", topics)
            query = job.archive_messages(spark.readStream.format("rocketmq").options(**source).load(), root)
        query.awaitTermination()
        written = sum(progress.numInputRows for progress in query.recentProgress)
        compacted = job.compact(spark, root)
    click.echo(f"{written} new {'lines of journals' if journals else 'messages'} in {root}; {compacted} days compacted")


@pipeline.command(
    epilog=examples("skyroute pipeline report --journal ns-1/memory --journal ns-2/memory --to report.html")
)
@history_options
@click.option(
    "--to",
    "path",
    metavar="FILE",
    type=click.Path(path_type=Path, resolve_path=True, dir_okay=False),
    required=True,
    help="The HTML file.",
)
@click.option(
    "--window",
    "window_s",
    type=span,
    default="1h",
    show_default=True,
    metavar="SPAN",
    help="The grain of charts over time.",
)
@click.option("--overwrite", is_flag=True, help="Replace a file that is there.")
@click.option("--master", metavar="URL", help="Where Spark runs. Default: here.")
def report(history: History, path: Path, window_s: float, *, overwrite: bool, master: str | None) -> None:
    """Write a page of charts and tables about all of it. It is one file of HTML that needs nothing but a browser."""
    if path.exists() and not overwrite:
        raise click.BadParameter(f"{path} is there already: add --overwrite, or choose another", param_hint="--to")
    if not path.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {path.absolute().parent}", param_hint="--to")
    with working("gathering the report", master) as spark:
        from skyroute.pipeline.jobs.report import report as make

        journal = history.read(spark)
        page = make(journal, as_datetime(None), window_s)
        path.write_text(page, encoding="utf-8")
    click.echo(f"written to {path}")


def _source(name_servers: str, topics: tuple[str, ...]) -> dict[str, str]:
    return {"nameServer": name_servers, "topic": ",".join(topics), "startingOffsets": "earliest"}
