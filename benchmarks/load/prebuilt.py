"""A Python data source that returns prebuilt batches: the upper bound for any Python source."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

PARTITIONS = 8
BATCH_ROWS = 10_000


class Prebuilt(DataSource):
    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def schema(self) -> str:
        return "body binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(int(self.options["rows"]), int(self.options["size"]))


class _Reader(DataSourceReader):
    def __init__(self, rows: int, size: int) -> None:
        self._rows = rows
        self._size = size

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = pa.record_batch({"body": pa.array([bytes(self._size)] * BATCH_ROWS, pa.binary())})
        for start in range(0, self._rows // PARTITIONS, BATCH_ROWS):
            yield batch.slice(0, min(BATCH_ROWS, self._rows // PARTITIONS - start))
