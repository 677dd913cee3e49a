"""What the commands of `skyroute pipeline` share: where history is, how Spark is started, how an answer is given."""

import functools
import importlib.util
import logging
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
from skyroute.cli.progress import Progress
from skyroute.errors import SkyrouteError
from skyroute.nameserver.journal.times import show_moment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from skyroute.pipeline.journal.reading import Journal

F = TypeVar("F", bound=Callable[..., Any])

CELL_CHARS_MAX: Final = 60
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_OURS: Final = re.compile(r"^skyroute(?:\.\w+)+Error: (.+?)\s*$", re.MULTILINE)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, None: 1.0}


def span(text: str | float) -> float:
    """Return a length of time in seconds."""
    if isinstance(text, float):
        return text
    match = _SPAN.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise click.BadParameter(f"{text!r} is no length of time: write 90s, 10m, 1h or 1d")
    return float(match[1]) * _SECONDS[match[2]]


@dataclass(frozen=True, slots=True)
class History:
    """Where events are."""

    journals: tuple[Path, ...]
    archive: Path | None

    def read(self, spark: "SparkSession") -> "Journal":
        """Return events of all of it, each once.

        Raises:
            NoJournalError, NoArchiveError: one of them is not there.
        """
        from skyroute.pipeline.jobs.archive import read_archived_journal
        from skyroute.pipeline.journal.reading import Journal, read_journal

        if self.archive is None:
            journal = read_journal(spark, self.journals)
            # Jobs look at events several times, and JSON is slow to read.
            return Journal(journal.events.persist(), journal.rejects)
        archived = read_archived_journal(spark, self.archive)
        if not self.journals:
            return archived
        fresh = read_journal(spark, self.journals)
        # What was archived is still in the journal for a while.
        return Journal(
            archived.events.unionByName(fresh.events).dropDuplicates(["server", "seq"]),
            archived.rejects.unionByName(fresh.rejects).distinct(),
        )


def history_options(command: F) -> F:
    """Give a command the options that say whose history is meant, as one argument, `history`."""

    @functools.wraps(command)
    def run(journal: Sequence[Path], archive: Path | None, config_file: str | None, **rest: Any) -> None:
        _check_spark()
        command(history=_find(journal, archive, config_file), **rest)

    path = click.Path(path_type=Path, resolve_path=True, exists=True, file_okay=False)
    options = [
        click.option(
            "--journal",
            metavar="FOLDER",
            multiple=True,
            type=path,
            help="A name server's memory folder, or the journal in it. Once for each name server.",
        ),
        click.option("--archive", metavar="FOLDER", type=path, help="What `archive` has written, in place or as well."),
        click.option(
            "-c", "--configFile", "config_file", metavar="FILE", help="A name server's settings, to find it by."
        ),
    ]
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), run)  # type: ignore[return-value] # with options it is called the same


def _find(journal: Sequence[Path], archive: Path | None, config_file: str | None) -> History:
    from skyroute.pipeline.journal.reading import journal_folder

    with said_in_a_line():
        journals = list(journal)
        if config_file is not None or not (journal or archive):
            from skyroute.nameserver.config import NameServerConfig

            memory = NameServerConfig.load(config_file).memory
            if memory is None:
                raise click.ClickException("these settings keep no journal")
            journals.append(memory.path)
        return History(tuple(journal_folder(path) for path in journals), archive)


def spark_options(command: F) -> F:
    """Give a command the options that say where Spark runs, and where the answer goes."""
    options = [
        click.option("--master", metavar="URL", help="Where Spark runs: local[4], spark://host:7077. Default: here."),
        click.option(
            "--output",
            metavar="PATH",
            type=click.Path(path_type=Path, resolve_path=True),
            help="Write the answer to this folder, as Spark writes, and print nothing.",
        ),
        click.option(
            "--format",
            "output_format",
            type=click.Choice(["parquet", "csv", "json"]),
            default="parquet",
            show_default=True,
            help="Of the output.",
        ),
        click.option("--overwrite", is_flag=True, help="Replace an output that is there."),
        click.option(
            "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="How many rows are printed."
        ),
    ]
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


def moment_option(name: str, help_text: str) -> Callable[[F], F]:
    """An option that takes a moment, in milliseconds since 1970."""
    return click.option(
        name, f"{name.strip('-').replace('-', '_')}_ms", metavar="TIME", callback=as_moment, help=help_text
    )


def as_datetime(moment_ms: int | None) -> datetime:
    """A moment that was given, or now."""
    return datetime.now(UTC) if moment_ms is None else datetime.fromtimestamp(moment_ms / 1000, UTC)


def answer(
    ask: "Callable[[SparkSession], DataFrame]",
    doing: str,
    *,
    master: str | None,
    output: Path | None,
    output_format: str,
    overwrite: bool,
    limit: int,
    history: History | None = None,
) -> None:
    """Start Spark, ask, and print what comes or write it. Of a history, say how many of its lines are no records."""
    if output is not None and output.exists() and not overwrite:
        raise click.BadParameter(
            f"{output} is there already: add --overwrite, or choose another", param_hint="--output"
        )
    with working(doing, master) as spark:
        found = ask(spark)
        if output is None:
            rows = found.limit(limit + 1).collect()
            said = table([name.upper() for name in found.columns], [[*map(_cell, row)] for row in rows[:limit]])
            if len(rows) > limit:
                said += "\n... and more: --limit shows them, --output writes them all"
        else:
            _write(found, output, output_format)
            said = f"written to {output}"
        rejected = 0 if history is None else history.read(spark).rejects.count()
    click.echo(said)
    if rejected:
        click.echo(f"{rejected} lines are no records: skyroute pipeline rejects shows them", err=True)


@contextmanager
def working(doing: str, master: str | None) -> "Iterator[SparkSession]":
    """A Spark session, with progress on standard error and errors in one line."""
    _check_spark()
    with said_in_a_line(), Progress("starting Spark") as progress:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped] # it has no types
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        from skyroute.pipeline.session import session

        is_ours = SparkSession.getActiveSession() is None
        pressed: list[int] = []
        if is_ours:
            # Whoever ends us while Java starts leaves it behind: ctrl-C waits until Spark can be stopped.
            signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
        spark = session(master, "skyroute pipeline")
        progress.how_far, progress.doing = functools.partial(_tasks, spark), doing
        try:
            if is_ours:
                signal.signal(signal.SIGINT, lambda number, _: _end(pressed, number))
            if pressed:
                raise KeyboardInterrupt
            yield spark
        except Py4JError:
            if not pressed:
                raise
            raise KeyboardInterrupt from None  # what was cut off complains on its way out
        except PySparkException as error:
            # What our source raises in a worker comes up with the tale of its way here.
            ours = _OURS.findall(str(error))
            if not ours:
                raise
            raise click.ClickException(ours[-1]) from error
        finally:
            progress.how_far = str
            if is_ours:
                with suppress(Py4JError):  # Java may have gone first
                    spark.stop()


def _end(pressed: list[int], number: int) -> NoReturn:
    """End on ctrl-C without a word; Spark's own way prints what failed in the line that it cuts."""
    pressed.append(number)
    logging.disable()
    raise KeyboardInterrupt


def _tasks(spark: "SparkSession") -> str:
    tracker = spark.sparkContext.statusTracker()
    stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage)) is not None]
    total, done = sum(stage.numTasks for stage in stages), sum(stage.numCompletedTasks for stage in stages)
    return f": {done} of {total} tasks done" if total else ""


@contextmanager
def said_in_a_line() -> Iterator[None]:
    """Have what we raise end the command with its message alone."""
    try:
        yield
    except SkyrouteError as error:
        raise click.ClickException(str(error)) from error


def _check_spark() -> None:
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        raise click.ClickException(
            "this needs Spark: pip install 'skyroute[spark]' (or 'skyroute[spark,jvm]', without Java)"
        )


def _write(found: "DataFrame", output: Path, output_format: str) -> None:
    from pyspark.sql import functions as fn

    if output.is_dir():
        shutil.rmtree(output)
    elif output.exists():
        output.unlink()
    if output_format == "csv":  # which knows no lists and maps
        nested = [field.name for field in found.schema if field.dataType.simpleString().startswith(_NESTED)]
        found = found.withColumns({name: fn.to_json(name) for name in nested})
    writer = found.coalesce(1).write.format(output_format)
    writer.option("header", "true").save(str(output))


_NESTED: Final = ("array", "map", "struct")


def _cell(value: Any) -> Any:
    match value:
        case datetime():
            return show_moment(round(value.timestamp() * 1000))
        case list() | tuple():
            text = ",".join(str(_cell(member)) for member in value)
        case dict():
            text = " ".join(f"{key}={_cell(member)}" for key, member in value.items())
        case str():
            text = value
        case _:
            return value
    text = text if text.isprintable() else "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
    return text if len(text) <= CELL_CHARS_MAX else f"{text[:CELL_CHARS_MAX]}…"
