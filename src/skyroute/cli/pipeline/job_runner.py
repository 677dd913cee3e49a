"""Shared code of the `skyroute pipeline` commands: finds journals, starts Spark, prints or writes results."""

import functools
import importlib.util
import logging
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from skyroute.cli.admin.output import table
from skyroute.cli.journal.times import as_moment
from skyroute.cli.progress_line import ProgressLine
from skyroute.errors import SkyrouteError
from skyroute.nameserver.journal.times import show_moment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from skyroute.pipeline.journal.reading import JournalFrames

F = TypeVar("F", bound=Callable[..., Any])

CELL_CHARS_MAX: Final = 60
MAP_CHARS_MAX: Final = 240
"""Of values with names, such as what each name server had in a divergence."""
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_SKYROUTE_ERROR: Final = re.compile(r"^skyroute(?:\.\w+)+Error: (.+?)\s*$", re.MULTILINE)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, None: 1.0}


def duration(text: str | float) -> float:
    """Return a duration in seconds."""
    if isinstance(text, float):
        return text
    match = _DURATION.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise click.BadParameter(f"{text!r} is not a duration (expected 90s, 10m, 1h or 1d)")
    return float(match[1]) * _SECONDS[match[2]]


@dataclass(frozen=True, slots=True)
class History:
    """The journals and the archive that a job reads."""

    journals: tuple[Path, ...]
    archive: Path | None

    def read(self, spark: "SparkSession") -> "JournalFrames":
        """Return the events of all of them, each once.

        Raises:
            NoJournalError, NoArchiveError: a folder has no journal or archive.
        """
        from skyroute.pipeline.jobs.archive import read_archived_journal
        from skyroute.pipeline.journal.reading import JournalFrames, read_journal

        if self.archive is None:
            journal = read_journal(spark, self.journals)
            # Jobs read events several times, and parsing JSON is slow.
            return JournalFrames(journal.events.persist(), journal.rejects)
        archived = read_archived_journal(spark, self.archive)
        if not self.journals:
            return archived
        fresh = read_journal(spark, self.journals)
        # Archived records stay in the journal for some time.
        return JournalFrames(
            archived.events.unionByName(fresh.events).dropDuplicates(["server", "seq"]),
            archived.rejects.unionByName(fresh.rejects).distinct(),
        )


def history_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for journals and archive to a command, as one argument, `history`."""

    @functools.wraps(command)
    def run(journal: Sequence[Path], archive: Path | None, config_file: str | None, **rest: Any) -> None:
        _check_spark()
        command(history=_find_history(journal, archive, config_file), **rest)

    path = click.Path(path_type=Path, resolve_path=True, exists=True, file_okay=False)
    options = [
        click.option(
            "--journal",
            metavar="FOLDER",
            multiple=True,
            type=path,
            help="Memory folder of a name server, or the journal folder in it; repeatable.",
        ),
        click.option(
            "--archive",
            metavar="FOLDER",
            type=path,
            help="Folder written by `archive`; may be combined with --journal.",
        ),
        click.option(
            "-c",
            "--configFile",
            "config_file",
            metavar="FILE",
            help="Settings file of a name server, to find its journal.",
        ),
    ]
    return _with_options(run, options)


def _find_history(journal: Sequence[Path], archive: Path | None, config_file: str | None) -> History:
    from skyroute.pipeline.journal.reading import journal_folder

    with errors_in_one_line():
        journals = list(journal)
        if config_file is not None or not (journal or archive):
            from skyroute.nameserver.config import NameServerConfig

            memory = NameServerConfig.load(config_file).persistence
            if memory is None:
                raise click.ClickException(
                    f"{config_file or 'the default configuration'} has no journal: set journalEnable=true"
                )
            journals.append(memory.path)
        return History(tuple(journal_folder(path) for path in journals), archive)


def spark_options(command: F) -> F:
    """Add the options for Spark and the output to a command."""
    options = [
        click.option(
            "--master", metavar="URL", help="Spark master, such as local[4] or spark://host:7077. Default: local."
        ),
        click.option(
            "--output",
            metavar="PATH",
            type=click.Path(path_type=Path, resolve_path=True),
            help="Write the result to this folder instead of printing it.",
        ),
        click.option(
            "--format",
            "output_format",
            type=click.Choice(["parquet", "csv", "json"]),
            default="parquet",
            show_default=True,
            help="Format of --output.",
        ),
        click.option("--overwrite", is_flag=True, help="Replace an existing output."),
        click.option(
            "--limit",
            type=click.IntRange(min=1),
            default=100,
            show_default=True,
            help="Maximum of printed rows.",
        ),
    ]
    return _with_options(command, options)


def _with_options(command: F, options: Sequence[Callable[[F], F]]) -> F:
    for option in reversed(options):
        command = option(command)
    return command


def time_option(name: str, help_text: str) -> Callable[[F], F]:
    """An option that takes a time and passes milliseconds since 1970."""
    return click.option(
        name, f"{name.strip('-').replace('-', '_')}_ms", metavar="TIME", callback=as_moment, help=help_text
    )


def duration_option(name: str, help_text: str, default: str | None = None) -> Callable[[F], F]:
    """An option that takes a duration and passes seconds."""
    return click.option(
        *(name, f"{name.strip('-').replace('-', '_')}_s"),
        type=duration,
        default=default,
        show_default=default is not None,
        metavar="DURATION",
        help=help_text,
    )


def as_datetime(moment_ms: int | None) -> datetime:
    """Return a given time, or now."""
    return datetime.now(UTC) if moment_ms is None else datetime.fromtimestamp(moment_ms / 1000, UTC)


def run_job(
    query: "Callable[[SparkSession], DataFrame]",
    activity: str,
    *,
    master: str | None,
    output: Path | None,
    output_format: str,
    overwrite: bool,
    limit: int,
    history: History | None = None,
) -> None:
    """Start Spark, run a query, and print or write its result. With `history`, report the number of invalid lines."""
    if output is not None and output.exists() and not overwrite:
        raise click.BadParameter(
            f"{output} already exists: add --overwrite, or choose another path", param_hint="--output"
        )
    with spark_session(activity, master) as spark:
        result = query(spark)
        if output is None:
            rows = result.limit(limit + 1).collect()
            text = table([name.upper() for name in result.columns], [[*map(_cell, row)] for row in rows[:limit]])
            if len(rows) > limit:
                text += "\n... more rows: raise --limit, or write all with --output"
        else:
            _write(result, output, output_format)
            text = f"written to {output}"
        rejected = 0 if history is None else history.read(spark).rejects.count()
    click.echo(text)
    if rejected:
        click.echo(f"{rejected} invalid journal lines were skipped: see skyroute pipeline rejects", err=True)


@contextmanager
def spark_session(activity: str, master: str | None) -> "Iterator[SparkSession]":
    """Yield a Spark session, with progress on standard error and errors in one line."""
    _check_spark()
    with errors_in_one_line(), ProgressLine("starting Spark") as progress:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        from skyroute.pipeline.session import session
        from skyroute.pipeline.short_errors import TRACEBACKS_ENV

        starts_here = SparkSession.getActiveSession() is None
        pressed: list[int] = []
        if starts_here:
            # Ctrl-C while Java starts would leave Java running: handle it once Spark can be stopped.
            signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
        spark = session(master, "skyroute pipeline")
        progress.how_far, progress.doing = functools.partial(_tasks, spark), activity
        try:
            if starts_here:
                signal.signal(signal.SIGINT, lambda number, _: _interrupt(pressed, number))
            if pressed:
                raise KeyboardInterrupt
            yield spark
        except (Py4JError, PySparkException) as error:
            if pressed and isinstance(error, Py4JError):
                raise KeyboardInterrupt from None  # the interrupted call fails as well
            # An error of our source in a worker arrives inside a Java stack trace: show its text alone.
            texts = _SKYROUTE_ERROR.findall(str(error))
            if not texts and os.environ.get(TRACEBACKS_ENV) == "1":
                raise
            text = texts[-1] if texts else f"{_first_line(str(error))} ({TRACEBACKS_ENV}=1 shows more)"
            raise click.ClickException(text) from error
        finally:
            progress.how_far = str
            if starts_here:
                with suppress(Py4JError):  # Java may have ended already
                    spark.stop()


def _first_line(text: str) -> str:
    """Return the first line that says what happened; py4j begins with the name of a call."""
    lines = [line.strip(" :") for line in text.splitlines() if not line.startswith("An error occurred while calling")]
    return next(filter(None, lines), text)


def _interrupt(pressed: list[int], number: int) -> NoReturn:
    """End on ctrl-C without output; Spark's own handler logs the calls that it interrupts."""
    pressed.append(number)
    logging.disable()
    raise KeyboardInterrupt


def _tasks(spark: "SparkSession") -> str:
    tracker = spark.sparkContext.statusTracker()
    stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage)) is not None]
    total, done = sum(stage.numTasks for stage in stages), sum(stage.numCompletedTasks for stage in stages)
    return f": {done} of {total} tasks done" if total else ""


def check_name_servers(addresses: str) -> None:
    """Report name servers that do not respond before Spark starts, which takes seconds."""
    _check_spark()
    from skyroute.blocking import Admin
    from skyroute.client.errors import BrokerRefusedError

    with errors_in_one_line(), suppress(BrokerRefusedError), Admin(addresses) as admin:
        admin.cluster()


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Turn our errors into a single line of output."""
    try:
        yield
    except SkyrouteError as error:
        raise click.ClickException(str(error)) from error


def _check_spark() -> None:
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        raise click.ClickException(
            "Spark is not installed: pip install 'skyroute[spark]' (or 'skyroute[spark,jvm]' to include Java)"
        )


def _write(result: "DataFrame", output: Path, output_format: str) -> None:
    from pyspark.sql import functions as fn

    if output.is_dir():
        shutil.rmtree(output)
    elif output.exists():
        output.unlink()
    if output_format == "csv":  # which supports no nested types
        nested = [field.name for field in result.schema if field.dataType.simpleString().startswith(_NESTED)]
        result = result.withColumns({name: fn.to_json(name) for name in nested})
    writer = result.coalesce(1).write.format(output_format)
    writer.option("header", "true").save(str(output))


_NESTED: Final = ("array", "map", "struct")


def _cell(value: Any) -> Any:
    limit = CELL_CHARS_MAX
    match value:
        case datetime():
            return show_moment(round(value.timestamp() * 1000))
        case list() | tuple():
            text = ",".join(str(_cell(each)) for each in value)
        case dict():
            text, limit = " ".join(f"{key}={_cell(each)}" for key, each in value.items()), MAP_CHARS_MAX
        case str():
            text = value
        case _:
            return value
    text = text if text.isprintable() else "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
    return text if len(text) <= limit else f"{text[:limit]}…"
