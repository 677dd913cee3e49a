"""Reading a topic once, from here to there."""

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from skyroute.pipeline.source.columns import arrow_schema, chosen_names
from skyroute.pipeline.source.options import Position, Where, read_options
from skyroute.pipeline.source.planning import Part, QueueRange, plan
from skyroute.pipeline.source.survey import Survey


class BatchReader(DataSourceReader):
    """Plans a read on the driver, and does a part of it on a worker."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        """Nothing is connected yet.

        Raises:
            OptionsError: options or columns are wrong; the text names them all.
        """
        self._options = read_options(given)
        self._names = chosen_names(schema)
        self._schema = arrow_schema(schema)

    def partitions(self) -> list[InputPartition]:
        """Find out what there is to read, and share it out.

        Raises:
            SourceError: it cannot be found out, or is not as the options say.
        """
        options = self._options
        survey = Survey(options)
        spans = survey.spans(survey.queues())
        starts = survey.locate(options.start or Position(Where.EARLIEST), spans, "startingOffsets")
        stops = survey.locate(options.end or Position(Where.LATEST), spans, "endingOffsets")
        addresses = survey.addresses(spans)
        ranges = [
            QueueRange(queue, starts[queue], max(starts[queue], stops[queue]), addresses.get(queue.broker_name))
            for queue in spans
        ]
        parts = plan(ranges, min_parts=options.min_partitions, max_records=options.max_records_per_partition)
        return list(parts or [Part([])])  # of no parts at all, Spark would make one that is none of ours

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part."""
        from skyroute.pipeline.source.rows import read_part  # noqa: PLC0415 - it takes long, and the driver only plans

        assert isinstance(partition, Part)
        return read_part(partition, self._names, self._schema, self._options)
