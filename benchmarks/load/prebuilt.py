"""A Python data source that returns one prebuilt batch again and again: the upper bound for any Python source.

It returns the bodies alone or, with `columns=all`, as many columns as our source does by default.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

PARTITIONS = 8
BATCH_ROWS = 10_000
TEXTS = {"topic": "Bodies-100", "broker_name": "ours", "tags": "tag", "keys": "k1234567"}


class Prebuilt(DataSource):
    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    @property
    def _has_all(self) -> bool:
        return self.options["columns"] == "all"

    def schema(self) -> str:
        texts = "".join(f"{name} string, " for name in TEXTS)
        others = f"{texts}queue_id int, queue_offset bigint, store_timestamp timestamp, "
        return f"{others if self._has_all else ''}body binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(int(self.options["rows"]), int(self.options["size"]), has_all=self._has_all)


class _Reader(DataSourceReader):
    def __init__(self, rows: int, size: int, *, has_all: bool) -> None:
        self._rows = rows
        self._size = size
        self._has_all = has_all

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        bodies = {"body": pa.array([bytes(self._size)] * BATCH_ROWS, pa.binary())}
        batch = pa.record_batch({**_others(), **bodies} if self._has_all else bodies)
        for start in range(0, self._rows // PARTITIONS, BATCH_ROWS):
            yield batch.slice(0, min(BATCH_ROWS, self._rows // PARTITIONS - start))


def _others() -> dict[str, pa.Array]:
    numbers = pa.array(range(BATCH_ROWS))
    return {
        **{name: pa.array([text] * BATCH_ROWS) for name, text in TEXTS.items()},
        "queue_id": numbers.cast(pa.int32()),
        "queue_offset": numbers,
        "store_timestamp": numbers.cast(pa.timestamp("us", tz="UTC")),
    }
