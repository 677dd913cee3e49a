"""Reads the journals of one or several name servers. Invalid lines are collected as rejects.

Only closed segments are read: Spark ignores files with the name of an open segment.
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
    """A folder has no journal."""


@dataclass(frozen=True, slots=True)
class JournalFrames:
    """The valid and invalid lines of journals, as DataFrames."""

    events: DataFrame
    """The fields of a record, and `date`, the day of its `wall_ms` in UTC."""
    rejects: DataFrame
    """Lines that are not valid records: `file`, `line` and `problem`."""


def journal_folder(path: Path) -> Path:
    """Return the folder of the segments, given a name server's memory folder or the journal folder in it.

    Raises:
        NoJournalError: the folder has no journal, or cannot be read.
    """
    try:
        folder = find_journal(path)
    except OSError as error:
        raise NoJournalError(f"cannot read {path}: {error.strerror}") from error
    if folder is None:
        raise NoJournalError(f"no journal in {path}: give the memory folder of a name server")
    return folder.resolve()


def read_journal(spark: SparkSession, paths: Iterable[Path]) -> JournalFrames:
    """Read the closed segments of name servers, each given by its memory folder.

    Raises:
        NoJournalError: one of the folders has no journal.
    """
    return split(parsed(spark.read.options(**_LINES_FORMAT).text([f"/{folder}" for folder in _folders(paths)])))


def stream_journal(spark: SparkSession, paths: Iterable[Path], *, segments_per_batch: int = 1000) -> DataFrame:
    """Return a stream of the lines of segments as they are closed. `split` turns a micro-batch into a `JournalFrames`.

    Raises:
        NoJournalError: one of the folders has no journal.
    """
    reader = spark.readStream.options(**_LINES_FORMAT).option("maxFilesPerTrigger", segments_per_batch)
    # A stream takes one path, but the path may be a glob: braces hold several folders.
    return parsed(reader.text(f"/{{{','.join(_folders(paths))}}}"))


def _folders(paths: Iterable[Path]) -> list[str]:
    """Return each journal's folder once, without the leading slash, with glob characters escaped."""
    folders = {journal_folder(path) for path in paths}
    if not folders:
        raise NoJournalError("no journal given: give the memory folder of a name server")
    return sorted(re.sub(r"([\\\[\]{}*?,])", r"\\\1", str(folder)[1:]) for folder in folders)


def parsed(lines: DataFrame) -> DataFrame:
    """Parse lines of text, in `value`, into the columns `record` and, for invalid lines, `problem`."""
    record = fn.from_json("value", f"{RECORD}, {_UNREADABLE} string", _STRICT)
    # `explode` makes Spark parse a line once. Otherwise it parses again for every field of the record.
    once = fn.explode(fn.array(record)).alias("record")
    read = lines.select(fn.col("_metadata.file_name").alias("file"), fn.col("value").alias("line"), once)
    return read.withColumn("problem", _problem())


def split(lines: DataFrame) -> JournalFrames:
    """Separate valid records from invalid lines."""
    moment = fn.timestamp_millis(fn.col("record.wall_ms"))
    events = lines.filter("problem is null").select("record.*", fn.to_date(moment).alias("date")).drop(_UNREADABLE)
    return JournalFrames(events, lines.filter("problem is not null").select("file", "line", "problem"))


def _problem() -> Column:
    """Return why a line is not a valid record; null if it is one.

    Spark stops parsing at the end of the first object, so two records in one line need a check of their own.
    """
    line, missing = fn.trim("line"), [fn.col(f"record.{name}").isNull() for name in REQUIRED]
    problem = fn.when(line == "", "the line is empty")
    problem = problem.when(~line.startswith("{") | ~line.endswith("}"), "the line is incomplete")
    problem = problem.when(line.contains('}{"v":'), "the line has more than one record")
    problem = problem.when(fn.col(f"record.{_UNREADABLE}").isNotNull(), "the line is not JSON of a record")
    for name, is_missing in zip(REQUIRED, missing, strict=True):
        problem = problem.when(is_missing, f"{name} is missing")
    version = fn.col("record.v")
    newer = fn.concat(fn.lit("version "), version, fn.lit(f" of the schema (this release reads {SCHEMA_VERSION})"))
    return problem.when(version != SCHEMA_VERSION, newer)
