"""The group of the Spark jobs, and those that write files: archive and report."""

import time
from pathlib import Path

import click

from skyroute.cli.options import examples
from skyroute.cli.pipeline import history_commands, topic_commands
from skyroute.cli.pipeline.job_runner import (
    History,
    as_datetime,
    check_name_servers,
    duration_option,
    history_options,
    spark_session,
)
from skyroute.cli.pipeline.topic_commands import source_options
from skyroute.files.replace import replace_file


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


for _command in (*history_commands.COMMANDS, *topic_commands.COMMANDS):
    pipeline.add_command(_command)


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
            source = source_options(name_servers or "", topics, job.MESSAGE_COLUMNS)
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
@duration_option("--window", "Resolution of charts over time.", default="1h")
@duration_option(
    "--every",
    "Write it again after this time, until ctrl-C. The console shows the latest: skyroute console --report FILE.",
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
