"""Journals and topics to Parquet, by day: what is new each time, once each, in few files.

```
ROOT/_checkpoint                              how far Spark has read; it belongs to what was written
ROOT/events/date=2026-11-15/batches=0-0/      what one micro-batch brought of a day
ROOT/events/date=2026-11-14/batches=0-41/     micro-batches that were compacted into one folder
ROOT/rejects/date=.../                        lines that are no records, by the day they were read
ROOT/messages/topic=Orders/date=.../          of topics
```

A micro-batch that is done again, because the driver died in it, replaces the folders it wrote: they have its number. A
folder whose numbers lie within another's is an old part of it that is not gone yet: `read_archive` passes over it.
"""

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.query import StreamingQuery

from skyroute.errors import SkyrouteError
from skyroute.pipeline.journal.reading import REJECTS, Journal, split

COMPACTED_FROM: Final = 8
"""So many folders of one day are made one."""
_BATCHES: Final = re.compile(r"batches=(\d+)-(\d+)")
_CHECKPOINT: Final = "_checkpoint"


class NoArchiveError(SkyrouteError):
    """There is no archive where one was looked for."""


def archive_journal(lines: DataFrame, root: Path) -> StreamingQuery:
    """Write what is new in a stream of `stream_journal`, and end when all that there is has been written."""
    return _drain(lines, root, lambda batch, number: keep_journal(batch, root, number))


def keep_journal(batch: DataFrame, root: Path, number: int) -> None:
    """Write one micro-batch of a stream of `stream_journal`; once more does no harm."""
    batch.persist()
    journal = split(batch)
    _write(journal.events, root / "events", ["date"], number)
    _write(journal.rejects.withColumn("date", fn.current_date()), root / "rejects", ["date"], number)
    batch.unpersist()


def archive_messages(messages: DataFrame, root: Path) -> StreamingQuery:
    """Write what is new in a stream of the `rocketmq` source, by topic and day of storing."""

    def keep(batch: DataFrame, number: int) -> None:
        _write(batch.withColumn("date", fn.to_date("store_timestamp")), root / "messages", ["topic", "date"], number)

    return _drain(messages, root, keep)


def read_archive(spark: SparkSession, root: Path, part: str = "events") -> DataFrame:
    """What was written of events, rejects or messages, each once.

    Raises:
        NoArchiveError: Nothing was.
    """
    base = root / part
    folders = [str(folder) for day in _days(base) for folder in _current(day)]
    if not folders:
        raise NoArchiveError(f"there are no {part} of an archive in {root}")
    return spark.read.option("basePath", str(base)).parquet(*folders).drop("batches")


def read_archived_journal(spark: SparkSession, root: Path) -> Journal:
    """What was written of journals.

    Raises:
        NoArchiveError: Nothing was.
    """
    events = read_archive(spark, root)
    try:
        return Journal(events, read_archive(spark, root, "rejects").drop("date"))
    except NoArchiveError:
        return Journal(events, spark.createDataFrame([], REJECTS))


def compact(spark: SparkSession, root: Path, *, folders_max: int = COMPACTED_FROM) -> int:
    """Make one folder of many small ones, for each day that has so many; return how many were made.

    Called while nothing is being written to the archive.
    """
    made = 0
    for base in (root / "events", root / "rejects", root / "messages"):
        for day in _days(base):
            current = _current(day)
            for old in set(_folders(day)) - set(current):
                shutil.rmtree(old)
            if len(current) >= folders_max:
                _merge(spark, root / "_compacting", day, current)
                made += 1
    return made


def _drain(stream: DataFrame, root: Path, keep: Callable[[DataFrame, int], None]) -> StreamingQuery:
    writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(root / _CHECKPOINT))
    return writer.trigger(availableNow=True).start()


def _write(rows: DataFrame, base: Path, by: Sequence[str], number: int) -> None:
    numbered = rows.withColumn("batches", fn.lit(f"{number}-{number}"))
    writer = numbered.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer.option("compression", "zstd").partitionBy(*by, "batches").parquet(str(base))


def _merge(spark: SparkSession, aside: Path, day: Path, folders: Sequence[Path]) -> None:
    shutil.rmtree(aside, ignore_errors=True)
    spark.read.parquet(*map(str, folders)).coalesce(1).write.option("compression", "zstd").parquet(str(aside))
    numbers = [number for folder in folders for number in _range(folder)]
    aside.rename(day / f"batches={min(numbers)}-{max(numbers)}")
    for folder in folders:
        shutil.rmtree(folder)


def _days(base: Path) -> list[Path]:
    return sorted(path for path in base.rglob("date=*") if path.is_dir())


def _folders(day: Path) -> Iterator[Path]:
    return (path for path in day.iterdir() if _BATCHES.fullmatch(path.name))


def _current(day: Path) -> list[Path]:
    """Folders that are not part of another."""
    found = {path: _range(path) for path in _folders(day)}

    def is_old(path: Path, first: int, last: int) -> bool:
        return any(other != path and low <= first and last <= high for other, (low, high) in found.items())

    return sorted(path for path, (first, last) in found.items() if not is_old(path, first, last))


def _range(folder: Path) -> tuple[int, int]:
    match = _BATCHES.fullmatch(folder.name)
    assert match is not None, folder
    return int(match[1]), int(match[2])
