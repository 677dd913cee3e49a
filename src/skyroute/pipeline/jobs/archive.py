"""Archives new journal records and messages to Parquet by day, each once, in few files.

```
ROOT/_checkpoint                              Spark's checkpoint; belongs to the data
ROOT/events/date=2026-11-15/batches=0-0/      one micro-batch's records of a day
ROOT/events/date=2026-11-14/batches=0-41/     micro-batches compacted into one folder
ROOT/rejects/date=.../                        invalid lines, by the day they were read
ROOT/messages/topic=Orders/date=.../          messages of topics
```

A micro-batch repeated after a crash overwrites its folders, which carry its number. A folder whose numbers lie within
another folder's is left over from a compaction: `read_archive` ignores it.
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
from skyroute.pipeline.journal.reading import REJECTS, JournalFrames, split

COMPACT_FROM_FOLDERS: Final = 8
"""Number of folders of one day from which they are compacted."""
MESSAGE_COLUMNS: Final = (
    "topic,broker_name,queue_id,queue_offset,commit_log_offset,born_timestamp,store_timestamp,born_host,tags,keys,flag,"
    "message_id,reconsume_times,body"
)
"""The columns of archived messages, as the option `columns` of the source."""
_BATCHES: Final = re.compile(r"batches=(\d+)-(\d+)")
_CHECKPOINT: Final = "_checkpoint"


class NoArchiveError(SkyrouteError):
    """A folder has no archive."""


def archive_journal(lines: DataFrame, root: Path) -> StreamingQuery:
    """Archive the new records of a stream of `stream_journal`, and end when all are written."""
    return _write_available(lines, root, lambda batch, number: write_journal_batch(batch, root, number))


def write_journal_batch(batch: DataFrame, root: Path, number: int) -> None:
    """Write one micro-batch of a stream of `stream_journal`. Idempotent."""
    batch.persist()
    journal = split(batch)
    _write(journal.events, root / "events", ["date"], number)
    _write(journal.rejects.withColumn("date", fn.current_date()), root / "rejects", ["date"], number)
    batch.unpersist()


def archive_messages(messages: DataFrame, root: Path) -> StreamingQuery:
    """Archive the new messages of a stream of the `rocketmq` source, by topic and day of storage."""

    def keep(batch: DataFrame, number: int) -> None:
        _write(batch.withColumn("date", fn.to_date("store_timestamp")), root / "messages", ["topic", "date"], number)

    return _write_available(messages, root, keep)


def read_archive(spark: SparkSession, root: Path, part: str = "events") -> DataFrame:
    """Return the archived events, rejects or messages, each once.

    Raises:
        NoArchiveError: the archive has none.
    """
    base = root / part
    folders = [str(folder) for day in _days(base) for folder in _current(day)]
    if not folders:
        raise NoArchiveError(f"no archived {part} in {root}: run `skyroute pipeline archive` first")
    return spark.read.option("basePath", str(base)).parquet(*folders).drop("batches")


def read_archived_journal(spark: SparkSession, root: Path) -> JournalFrames:
    """Return the archived events and rejects.

    Raises:
        NoArchiveError: the archive has no events.
    """
    events = read_archive(spark, root)
    try:
        return JournalFrames(events, read_archive(spark, root, "rejects").drop("date"))
    except NoArchiveError:
        return JournalFrames(events, spark.createDataFrame([], REJECTS))


def compact(spark: SparkSession, root: Path, *, folders_min: int = COMPACT_FROM_FOLDERS) -> int:
    """Compact each day with at least `folders_min` folders into one; return the number of compacted days.

    Do not call it while a query writes to the archive.
    """
    compacted = 0
    for base in (root / "events", root / "rejects", root / "messages"):
        for day in _days(base):
            current = _current(day)
            for old in set(_folders(day)) - set(current):
                shutil.rmtree(old)
            if len(current) >= folders_min:
                _merge(spark, root / "_compacting", day, current)
                compacted += 1
    return compacted


def _write_available(stream: DataFrame, root: Path, keep: Callable[[DataFrame, int], None]) -> StreamingQuery:
    writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(root / _CHECKPOINT))
    return writer.trigger(availableNow=True).start()


def _write(rows: DataFrame, base: Path, by: Sequence[str], number: int) -> None:
    numbered = rows.withColumn("batches", fn.lit(f"{number}-{number}"))
    writer = numbered.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer.option("compression", "zstd").partitionBy(*by, "batches").parquet(str(base))


def _merge(spark: SparkSession, temporary: Path, day: Path, folders: Sequence[Path]) -> None:
    shutil.rmtree(temporary, ignore_errors=True)
    spark.read.parquet(*map(str, folders)).coalesce(1).write.option("compression", "zstd").parquet(str(temporary))
    numbers = [number for folder in folders for number in _range(folder)]
    temporary.rename(day / f"batches={min(numbers)}-{max(numbers)}")
    for folder in folders:
        shutil.rmtree(folder)


def _days(base: Path) -> list[Path]:
    return sorted(path for path in base.rglob("date=*") if path.is_dir())


def _folders(day: Path) -> Iterator[Path]:
    return (path for path in day.iterdir() if _BATCHES.fullmatch(path.name))


def _current(day: Path) -> list[Path]:
    """Return the folders that no compacted folder replaces."""
    found = {path: _range(path) for path in _folders(day)}

    def is_replaced(path: Path, first: int, last: int) -> bool:
        return any(other != path and low <= first and last <= high for other, (low, high) in found.items())

    return sorted(path for path, (first, last) in found.items() if not is_replaced(path, first, last))


def _range(folder: Path) -> tuple[int, int]:
    match = _BATCHES.fullmatch(folder.name)
    assert match is not None, folder
    return int(match[1]), int(match[2])
