"""The writers that Spark calls: check before a job starts, then send the rows of each task."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from secrets import token_urlsafe
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from skyroute.pipeline.connections import connect
from skyroute.pipeline.options import OptionsError
from skyroute.pipeline.short_errors import short_errors
from skyroute.pipeline.sink.columns import check_columns
from skyroute.pipeline.sink.options import WriteOptions, read_write_options
from skyroute.pipeline.sink.row_sender import RowSender
from skyroute.pipeline.spark_versions import DataSourceStreamArrowWriter
from skyroute.pipeline.worker_memory import prepare_worker

WRITE_ID_BYTES: Final = 12
"""Random bytes of a default write id: no two writes share one. Each row carries it, as text of 16 characters."""


@dataclass
class SentRows(WriterCommitMessage):
    """The result of one task, for Spark."""

    rows: int


def writer(
    given: Mapping[str, str], schema: StructType, *, overwrite: bool, ignored: Collection[str] = ()
) -> "BatchWriter":
    """Return the writer of a batch; `ignored` are options of reads, which a view has as well.

    Raises:
        OptionsError, SinkSchemaError: options or columns are wrong; the text names them all.
    """
    if overwrite:
        raise OptionsError('a topic cannot be overwritten: use mode("append")')
    return BatchWriter(_checked(given, schema, ignored))


def stream_writer(
    given: Mapping[str, str], schema: StructType, *, overwrite: bool, ignored: Collection[str] = ()
) -> "StreamWriter":
    """Return the writer of a stream; `ignored` are options of reads, which a table has as well.

    Raises:
        OptionsError, SinkSchemaError: options or columns are wrong; the text names them all.
    """
    if overwrite:
        raise OptionsError('outputMode("complete") cannot replace a topic: use outputMode("append")')
    return StreamWriter(_checked(given, schema, ignored))


def _checked(given: Mapping[str, str], schema: StructType, ignored: Collection[str]) -> WriteOptions:
    options = read_write_options(given, ignored)
    check_columns(schema, has_topic=options.topic is not None)
    return options


class BatchWriter(DataSourceArrowWriter):
    """Sends rows at least once. A retried task sends its rows again, with the same idempotency keys."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._write_id = options.write_id or token_urlsafe(WRITE_ID_BYTES)

    @short_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentRows:
        return _send(self._options, self._write_id, iterator)

    @short_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: all rows are stored. Spark calls this in a process of its own."""


class StreamWriter(DataSourceStreamArrowWriter):
    """Sends rows at least once. A batch repeated after a restart sends its rows with the same idempotency keys."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @short_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentRows:
        task = _task()
        query = self._options.write_id or task.getLocalProperty("sql.streaming.queryId")
        return _send(self._options, f"{query}/{task.getLocalProperty('streaming.sql.batchId')}", iterator)

    @short_errors
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing, as `BatchWriter.commit`."""


def _send(options: WriteOptions, write_id: str, batches: Iterator[pa.RecordBatch]) -> SentRows:
    prepare_worker()
    connection = connect(options.connection)
    sender = RowSender(connection.session, options, f"{write_id}/{_task().partitionId()}/")
    return SentRows(connection.run(sender.send(batches)))


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None  # Spark calls `write` only in tasks
    return task
