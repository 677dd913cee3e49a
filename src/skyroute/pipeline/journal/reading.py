"""From the files of one or several name servers to events. What is no record is set aside and can be counted.

Only closed segments are read: those that are still being written have names that Spark passes over.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from skyroute.errors import SkyrouteError
from skyroute.nameserver.journal.reader import find_journal
from skyroute.nameserver.journal.schema import SCHEMA_VERSION
from skyroute.pipeline.journal.schema import RECORD, REQUIRED

_UNREADABLE: Final = "_unreadable"
_STRICT: Final = {
    "columnNameOfCorruptRecord": _UNREADABLE,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}
_SEGMENTS: Final = "*.jsonl"
_LINES_FORMAT: Final = {"lineSep": "\n", "pathGlobFilter": _SEGMENTS}


REJECTS: Final = "file string, line string, problem string"


class NoJournalError(SkyrouteError):
    """There is no journal where one was looked for."""


@dataclass(frozen=True, slots=True)
class Journal:
    """What was read: lines that are records, and lines that are none."""

    events: DataFrame
    """The members of a record, and `date`, the day of its `wall_ms` in UTC."""
    rejects: DataFrame
    """`file`, `line` and the `problem` with it."""


def journal_folder(path: Path) -> Path:
    """Return where the segments are, given a name server's memory folder or the journal in it.

    Raises:
        NoJournalError: There are none, or they cannot be read.
    """
    try:
        folder = find_journal(path)
    except OSError as error:
        raise NoJournalError(f"cannot read {path}: {error.strerror}") from error
    if folder is None:
        raise NoJournalError(f"there is no journal in {path}: name the memory folder of a name server")
    return folder.resolve()


def read_journal(spark: SparkSession, paths: Iterable[Path]) -> Journal:
    """Read the closed segments of these name servers, each given by its memory folder.

    Raises:
        NoJournalError: One of them has no journal.
    """
    return split(parsed(spark.read.options(**_LINES_FORMAT).text([f"/{folder}" for folder in _folders(paths)])))


def stream_journal(spark: SparkSession, paths: Iterable[Path], *, segments_at_once: int = 1000) -> DataFrame:
    """Return lines as they come with closed segments; `split` makes a `Journal` of each micro-batch.

    Raises:
        NoJournalError: One of them has no journal.
    """
    reader = spark.readStream.options(**_LINES_FORMAT).option("maxFilesPerTrigger", segments_at_once)
    # A stream has one path, which may be a pattern: braces hold several.
    return parsed(reader.text(f"/{{{','.join(_folders(paths))}}}"))


def _folders(paths: Iterable[Path]) -> list[str]:
    """Each journal's folder once, from the root on, as a pattern of Spark: what means something there is escaped."""
    folders = {journal_folder(path) for path in paths}
    if not folders:
        raise NoJournalError("no journal was named: name the memory folder of a name server")
    return sorted(re.sub(r"([\\\[\]{}*?,])", r"\\\1", str(folder)[1:]) for folder in folders)


def parsed(lines: DataFrame) -> DataFrame:
    """Lines of text, in `value`, as records, in `record`, with the `problem` of those that are none."""
    record = fn.from_json("value", f"{RECORD}, {_UNREADABLE} string", _STRICT)
    # Exploded, so that Spark parses a line once: it would do it again wherever a member of the record is named.
    once = fn.explode(fn.array(record)).alias("record")
    read = lines.select(fn.col("_metadata.file_name").alias("file"), fn.col("value").alias("line"), once)
    return read.withColumn("problem", _problem())


def split(lines: DataFrame) -> Journal:
    """Take records and what is none apart."""
    moment = fn.timestamp_millis(fn.col("record.wall_ms"))
    events = lines.filter("problem is null").select("record.*", fn.to_date(moment).alias("date")).drop(_UNREADABLE)
    return Journal(events, lines.filter("problem is not null").select("file", "line", "problem"))


def _problem() -> Column:
    """Why a line is no record that we can rely on; null: it is one.

    Spark stops reading at the end of an object, so that two records in one line would pass for one.
    """
    line, missing = fn.trim("line"), [fn.col(f"record.{name}").isNull() for name in REQUIRED]
    problem = fn.when(line == "", "the line is empty")
    problem = problem.when(~line.startswith("{") | ~line.endswith("}"), "the line is torn")
    problem = problem.when(line.contains('}{"v":'), "there is more than one record in the line")
    problem = problem.when(fn.col(f"record.{_UNREADABLE}").isNotNull(), "the line is no record")
    for name, is_missing in zip(REQUIRED, missing, strict=True):
        problem = problem.when(is_missing, f"{name} is missing")
    version = fn.col("record.v")
    newer = fn.concat(fn.lit("version "), version, fn.lit(f" of the schema, where this release reads {SCHEMA_VERSION}"))
    return problem.when(version != SCHEMA_VERSION, newer)
