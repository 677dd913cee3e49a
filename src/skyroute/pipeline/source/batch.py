"""Batch reads of topics."""

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from skyroute.message.queue_ref import QueueRef
from skyroute.pipeline.short_errors import short_errors, short_iteration
from skyroute.pipeline.source.columns import chosen_names
from skyroute.pipeline.source.offset_lookup import OffsetLookup
from skyroute.pipeline.source.options import Position, PositionKind, read_options
from skyroute.pipeline.source.planning import QueueRange, ReadPartition, plan
from skyroute.pipeline.spark_versions import arrow_schema


class BatchReader(DataSourceReader):
    """Plans a read on the driver and reads one partition on a worker."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        """Check options and schema; connect later.

        Raises:
            OptionsError: options or columns are wrong; the text names them all.
        """
        self._options = read_options(given)
        self._names = chosen_names(schema, self._options.body_format)
        self._schema = arrow_schema(schema)
        self._since_ms: int | None = None
        self._until_ms: int | None = None
        self._queue_ids: set[int] | None = None
        """What `FilteringReader` was asked for."""

    def _wanted_queues(self, queues: Iterable[QueueRef]) -> list[QueueRef]:
        return list(queues)

    def _bounds(self) -> tuple[Position | None, Position | None]:
        """Return times that narrow the read, beside the positions of the options."""
        return None, None

    @short_errors
    def partitions(self) -> list[InputPartition]:
        """Look up the queues and their offsets, and divide them into partitions.

        Raises:
            SourceError: the lookup fails, or the options name queues or offsets that do not exist.
        """
        options = self._options
        lookup = OffsetLookup(options)
        ranges = lookup.offset_ranges(self._wanted_queues(lookup.queues()))
        starts = lookup.resolve(options.start or Position(PositionKind.EARLIEST), ranges)
        stops = lookup.resolve(options.end or Position(PositionKind.LATEST), ranges)
        since, until = self._bounds()
        if since is not None:
            later = lookup.resolve(since, ranges)
            starts = {queue: max(offset, later[queue]) for queue, offset in starts.items()}
        if until is not None:
            earlier = lookup.resolve(until, ranges)
            stops = {queue: min(offset, earlier[queue]) for queue, offset in stops.items()}
        addresses, batch_topics = lookup.broker_addresses(ranges), lookup.batch_topics(ranges)
        wanted = [
            QueueRange(
                queue,
                starts[queue],
                max(starts[queue], stops[queue]),
                addresses.get(queue.broker_name),
                broker_filters=(queue.topic, queue.broker_name) not in batch_topics,
            )
            for queue in ranges
        ]
        planned = plan(wanted, min_partitions=options.min_partitions, max_records=options.max_records_per_partition)
        # Given no partition, Spark would create one of its own class, which `read` cannot handle.
        return list(planned or [ReadPartition([])])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition."""
        from skyroute.pipeline.source.partition_reader import read_partition  # noqa: PLC0415 - slow; workers only

        assert isinstance(partition, ReadPartition)
        return short_iteration(read_partition(partition, self._names, self._schema, self._options))
