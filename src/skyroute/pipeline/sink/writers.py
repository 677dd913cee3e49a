"""What Spark calls to write: checks before a job starts, and the work of one task."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from skyroute.pipeline.connections import connect
from skyroute.pipeline.options import OptionsError
from skyroute.pipeline.sink.columns import check_columns
from skyroute.pipeline.sink.options import WriteOptions, read_write_options
from skyroute.pipeline.sink.sending import Sending


@dataclass
class Sent(WriterCommitMessage):
    """What a task has done."""

    rows: int


def writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> "BatchWriter":
    """Return what writes the rows of a batch.

    Raises:
        OptionsError, SinkSchemaError: these rows cannot be written like this.
    """
    if overwrite:
        raise OptionsError('a topic cannot be overwritten, only added to: use mode("append")')
    return BatchWriter(_checked(given, schema))


def stream_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> "StreamWriter":
    """Return what writes the rows of one batch of a stream.

    Raises:
        OptionsError, SinkSchemaError: these rows cannot be written like this.
    """
    if overwrite:
        raise OptionsError('a topic cannot be written anew with each batch: use outputMode("append") or ("update")')
    return StreamWriter(_checked(given, schema))


def _checked(given: Mapping[str, str], schema: StructType) -> WriteOptions:
    options = read_write_options(given)
    check_columns(schema, has_topic=options.topic is not None)
    return options


class BatchWriter(DataSourceArrowWriter):
    """Sends rows at least once. A task that is tried again sends its rows again, with the same keys."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._write_id = options.write_id or str(uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return _send(self._options, self._write_id, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Sends rows at least once. A batch that is run again after a restart sends its rows again, with the same keys."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        task = _task()
        query = self._options.write_id or task.getLocalProperty("sql.streaming.queryId")
        return _send(self._options, f"{query}/{task.getLocalProperty('streaming.sql.batchId')}", iterator)


def _send(options: WriteOptions, write_id: str, batches: Iterator[pa.RecordBatch]) -> Sent:
    connection = connect(options.connection)
    sending = Sending(connection.session, options, f"{write_id}/{_task().partitionId()}/")
    return Sent(connection.run(sending.send(batches)))


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None  # Spark calls `write` in tasks alone
    return task
