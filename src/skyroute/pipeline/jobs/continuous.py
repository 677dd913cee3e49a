"""Runs a job over a stream of journals: after each micro-batch, over all events so far.

Segments of several name servers arrive in any order, but a job needs all records of a server. Each micro-batch is
therefore archived first, and the job runs over the archive. The result equals that of a batch job.
"""

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from skyroute.pipeline.jobs.archive import read_archive, write_journal_batch


def run_continuously(
    lines: DataFrame,
    root: Path,
    job: Callable[[DataFrame], DataFrame],
    on_result: Callable[[DataFrame, int], None],
    *,
    every_s: float | None = None,
) -> StreamingQuery:
    """Start a query that calls `on_result` with the job's result and the batch number after each micro-batch.

    Args:
        lines: a stream of `stream_journal`.
        root: the archive of the stream; a restarted query continues there.
        job: such as `availability`.
        on_result: called after each micro-batch.
        every_s: interval between checks for closed segments; None: process the existing ones and end.
    """

    def archive_and_run(batch: DataFrame, number: int) -> None:
        write_journal_batch(batch, root, number)
        on_result(job(read_archive(batch.sparkSession, root)), number)

    writer = lines.writeStream.foreachBatch(archive_and_run).option("checkpointLocation", str(root / "_checkpoint"))
    return (
        writer.trigger(availableNow=True) if every_s is None else writer.trigger(processingTime=f"{every_s} seconds")
    ).start()
