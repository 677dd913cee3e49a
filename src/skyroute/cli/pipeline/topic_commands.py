"""Commands over the messages and consumer groups of a cluster. Spark is imported when a job runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from skyroute.cli.options import examples
from skyroute.cli.pipeline.job_runner import (
    check_name_servers,
    duration_option,
    run_job,
    spark_options,
)
from skyroute.message.reserved_topics import TRACE_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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


@click.command(
    epilog=examples(
        "skyroute pipeline traffic -n 127.0.0.1:9876 -t Orders -t Payments --window 1h",
        "skyroute pipeline traffic -n 127.0.0.1:9876 -t Orders --hot-keys --limit 10",
    )
)
@_name_server_option
@_topic_option
@duration_option("--window", "Length of a window.", default="1m")
@click.option("--hot-keys", "by_key", is_flag=True, help="Show the most frequent keys.")
@spark_options
def traffic(name_servers: str, topics: tuple[str, ...], window_s: float, *, by_key: bool, **options: Any) -> None:
    """Show messages and bytes of topics, and frequent keys.

    Shows messages, bytes and the delay from born to stored by topic, tag, producer host and window.
    """

    def query(spark: "SparkSession") -> "DataFrame":
        from skyroute.pipeline.jobs import traffic as job

        source = source_options(name_servers, topics, job.COLUMNS)
        messages = spark.read.format("rocketmq").options(**source).load()
        if by_key:
            return job.hot_keys(messages).orderBy("topic", "messages", "key", ascending=[True, False, True])
        return job.traffic(messages, window_s).orderBy("window", "topic", "tags", "producer")

    check_name_servers(name_servers)
    run_job(query, "reading topics", **options)


@click.command(
    epilog=examples("skyroute pipeline lag -n 127.0.0.1:9876 -g billing --every 5s --for 10m --samples /data/lag")
)
@_name_server_option
@click.option(
    "-g", "--group", "groups", metavar="NAME", multiple=True, help="Consumer group; repeatable. Default: all."
)
@duration_option("--every", "Interval between samples.", default="10s")
@duration_option("--for", "Duration of the sampling, from the first sample on.", default="1m")
@click.option(
    "--samples",
    metavar="FOLDER",
    type=click.Path(path_type=Path, resolve_path=True),
    required=True,
    help="Folder of the samples; new samples are added.",
)
@duration_option("--window", "Length of a window.", default="1m")
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


@click.command(
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

        source = {**source_options(name_servers, topics, job.COLUMNS), "failOnDataLoss": "false"}
        messages = spark.read.format("rocketmq").options(**source).load()
        if key is not None:
            return job.duplicates(messages, key).orderBy("topic", "messages", "key", ascending=[True, False, True])
        return job.gaps(messages).orderBy("topic", "broker_name", "queue_id", "first_missing")

    check_name_servers(name_servers)
    run_job(query, "reading topics", **options)


@click.command(epilog=examples("skyroute pipeline latency -n 127.0.0.1:9876 --window 1h"))
@_name_server_option
@click.option("--trace-topic", default=TRACE_TOPIC, show_default=True, metavar="NAME", help="Topic of the traces.")
@duration_option("--window", "Length of a window.", default="1m")
@spark_options
def latency(name_servers: str, trace_topic: str, window_s: float, **options: Any) -> None:
    """Show latency from send to consumption, from traces.

    Shows the time from send to storage, from there to the handler, and in the handler, by topic and consumer group.
    """

    def query(spark: "SparkSession") -> "DataFrame":
        from skyroute.pipeline.jobs import latency as job

        source = source_options(name_servers, (trace_topic,), job.COLUMNS)
        records = job.trace_records(spark.read.format("rocketmq").options(**source).load())
        return job.latency(records, window_s).orderBy("window", "topic", "consumer_group")

    check_name_servers(name_servers)
    run_job(query, "reading traces", **options)


@click.command(epilog=examples("skyroute pipeline retention -n 127.0.0.1:9876 -t Orders --disk 500"))
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

        messages = spark.read.format("rocketmq").options(**source_options(name_servers, topics, job.COLUMNS)).load()
        return job.retention(messages, int(disk_gib * 2**30)).orderBy("broker_name", "topic")

    check_name_servers(name_servers)
    run_job(query, "reading topics", **options)


@click.command(epilog=examples("skyroute pipeline forecast --samples /data/lag --within 1h"))
@click.option(
    "--samples",
    metavar="FOLDER",
    type=click.Path(path_type=Path, resolve_path=True),
    required=True,
    help="Folder of the samples that `lag` took.",
)
@duration_option("--within", "How far to look ahead.", default="1h")
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


def source_options(name_servers: str, topics: tuple[str, ...], columns: str) -> dict[str, str]:
    """Return the options of the Spark source for all messages of topics."""
    return {"nameServer": name_servers, "topic": ",".join(topics), "startingOffsets": "earliest", "columns": columns}


COMMANDS: Final = (traffic, lag, audit, latency, retention, forecast)
