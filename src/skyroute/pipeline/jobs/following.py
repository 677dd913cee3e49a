"""A job over a stream: after each micro-batch, the answer from all that has come so far.

Segments of several name servers come in any order, and a job needs a server's records in the order of their numbers:
what has come is therefore archived first, and the job asked about the archive. So a stream gives what a batch gives.
"""

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from skyroute.pipeline.jobs.archive import keep_journal, read_archive


def follow(
    lines: DataFrame,
    root: Path,
    job: Callable[[DataFrame], DataFrame],
    answer: Callable[[DataFrame, int], None],
    *,
    every_s: float | None = None,
) -> StreamingQuery:
    """Give `answer` what `job` makes of all events, and the number of the micro-batch, whenever segments are closed.

    Args:
        lines: a stream of `stream_journal`.
        root: the archive that the stream is kept in; it goes on where it ended the last time.
        job: such as `availability`.
        answer: called after each micro-batch.
        every_s: how often to look for segments; None: once, for all that there are.
    """

    def keep_and_answer(batch: DataFrame, number: int) -> None:
        keep_journal(batch, root, number)
        answer(job(read_archive(batch.sparkSession, root)), number)

    writer = lines.writeStream.foreachBatch(keep_and_answer).option("checkpointLocation", str(root / "_checkpoint"))
    return (
        writer.trigger(availableNow=True) if every_s is None else writer.trigger(processingTime=f"{every_s} seconds")
    ).start()
