"""Packs Arrow rows into batches to send, within the size limit. No I/O.

Arrow encodes all rows of a Spark batch at once; only target queues are found row by row.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from skyroute.client.producing.prepared_message import BODY_BYTES_MAX
from skyroute.errors import SkyrouteError
from skyroute.message import property_names as names
from skyroute.message.batch import ITEM_BYTES_MIN, RawItem, decode_batch
from skyroute.message.properties import NAME_END, PAIR_END, PROPERTIES_BYTES_MAX
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import is_retry_topic
from skyroute.message.tags import java_hash

IDEMPOTENCY_KEY: Final = "idempotency_key"
"""The property with a value unique to each row; a row sent twice has the same value twice."""

QUEUES_SHOWN_MAX: Final = 16
"""Maximum number of queues that an error lists."""

BATCH_ROWS_MAX: Final = 1_000
"""Rows of a batch. Our broker stores a longer one in steps, for 1.6 times the processor time a row."""

PACKED_BYTES: Final = 64 << 20
"""Rows that are encoded at once, unless one row is larger. Arrow's offsets end at 2 GiB."""

_PROPERTY_COLUMNS: Final = {"tags": names.TAGS, "keys": names.KEYS, "sharding_key": names.SHARDING_KEY}
"""Columns sent as properties, and the property names."""

_DROPPED: Final = (names.RESERVED_NAMES - {names.TAGS, names.KEYS}) | {names.SHARDING_KEY, IDEMPOTENCY_KEY}
"""Properties set by this writer, a column or the broker. Dropped, so that rows can be written as they were read."""

Queues = Mapping[str, Sequence[QueueRef]]
"""The writable queues of each topic."""
_Place = tuple[str, QueueRef | None]
_Numbers = NDArray[Any]


class RowError(SkyrouteError, ValueError):
    """A row cannot be sent; the text has its number and the reason."""


@dataclass(frozen=True, slots=True)
class SendBatch:
    """Rows sent in one request."""

    topic: str
    queue: QueueRef | None
    """The target queue of ordered rows; None: any queue."""
    encoded: memoryview
    """The rows as items of a batch."""
    count: int

    @property
    def items(self) -> list[RawItem]:
        """The rows, decoded."""
        return decode_batch(bytes(self.encoded))


class RowPacker:
    """Packs the rows of one partition, and gives each row its idempotency key."""

    def __init__(
        self,
        key_prefix: str,
        *,
        topic: str | None = None,
        namespace: str | None = None,
        batch_bytes_max: int,
    ) -> None:
        instance = f"{names.INSTANCE_ID}{NAME_END}{namespace}{PAIR_END}" if namespace else ""
        self._last_property = f"{instance}{IDEMPOTENCY_KEY}{NAME_END}{key_prefix}"
        """The end of each row's properties, up to the row's number."""
        self._topic = topic
        self._batch_bytes_max = batch_bytes_max
        self.count = 0
        """Rows packed so far."""

    def topics(self, rows: pa.RecordBatch) -> set[str]:
        """Return the topics of the rows.

        Raises:
            RowError: a row has no topic.
        """
        if self._topic is not None:
            return {self._topic}
        topics = _column(rows, "topic")
        self._refuse(_lengths(topics) == 0, "topic is empty: set it, or set the option topic")
        return set(topics.unique().to_pylist())

    def pack(self, rows: pa.RecordBatch, queues: Queues) -> Iterator[SendBatch]:
        """Yield all rows in batches to send; rows for one queue keep their order.

        Raises:
            RowError: a row cannot be sent.
        """
        if rows.nbytes > PACKED_BYTES and rows.num_rows > 1:
            middle = rows.num_rows // 2
            yield from self.pack(rows.slice(0, middle), queues)
            yield from self.pack(rows.slice(middle), queues)
            return
        delays = self._delays(rows)
        times_ms = self._times_ms(rows, delays)
        items = self._encode(rows, delays, times_ms)
        # Brokers reject batches with delays and batches to retry topics.
        for (topic, queue), at in self._places(rows, queues):
            is_alone = (
                np.full(rows.num_rows, fill_value=True) if is_retry_topic(topic) else (delays > 0) | (times_ms > 0)
            )
            wanted = items if at is None else items.take(pa.array(at))
            breaks = np.flatnonzero(is_alone if at is None else is_alone[at])
            for start, stop, encoded in self._cut(wanted, breaks):
                yield SendBatch(topic, queue, encoded, stop - start)
        self.count += rows.num_rows

    def _cut(self, items: pa.Array, alone: _Numbers) -> Iterator[tuple[int, int, memoryview]]:
        """Cut encoded rows into batches within the limit. The rows `alone` get a batch each."""
        _, raw_offsets, data = items.buffers()
        offsets = np.frombuffer(raw_offsets, np.int32)[items.offset :][: len(items) + 1]
        breaks = np.unique(np.concatenate([alone, alone + 1, [len(items)]]))
        encoded = memoryview(data)
        start = 0
        while start < len(items):
            fitting = int(np.searchsorted(offsets, int(offsets[start]) + self._batch_bytes_max, "right")) - 1
            until_alone = int(breaks[np.searchsorted(breaks, start, "right")])
            stop = min(max(fitting, start + 1), start + BATCH_ROWS_MAX, until_alone)
            yield start, stop, encoded[int(offsets[start]) : int(offsets[stop])]
            start = stop

    # ---------------------------------------------------------------------------------------------------------- places

    def _places(self, rows: pa.RecordBatch, queues: Queues) -> list[tuple[_Place, _Numbers | None]]:
        """Return each topic and target queue with the numbers of its rows; None: all rows."""
        has_target = _has(rows, "queue_id") or _has(rows, "sharding_key")
        if self._topic is not None and not has_target:
            return [((self._topic, None), None)]
        topics = [self._topic] * rows.num_rows if self._topic is not None else _values(rows, "topic")
        targets = self._targets(rows, topics, queues) if has_target else [None] * rows.num_rows
        numbers: dict[_Place, int] = {}
        codes = np.array([numbers.setdefault(place, len(numbers)) for place in zip(topics, targets, strict=True)])
        return [(place, np.flatnonzero(codes == code)) for place, code in numbers.items()]

    def _targets(self, rows: pa.RecordBatch, topics: Sequence[str], queues: Queues) -> list[QueueRef | None]:
        """Return the target queue of each row, or None."""
        columns = zip(
            topics, *(_values(rows, name) for name in ("queue_id", "broker_name", "sharding_key")), strict=True
        )
        return [
            self._target(at, queues[topic], queue_id, broker_name, key) if queue_id is not None or key else None
            for at, (topic, queue_id, broker_name, key) in enumerate(columns)
        ]

    def _target(
        self, at: int, queues: Sequence[QueueRef], queue_id: int | None, broker_name: str | None, key: str | None
    ) -> QueueRef:
        if queue_id is None:
            # The same hash as in other clients, so that messages with one key share a queue.
            return queues[abs(java_hash(key or "")) % len(queues)]
        fitting = [queue for queue in queues if queue.queue_id == queue_id and broker_name in (None, queue.broker_name)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            brokers = ", ".join(queue.broker_name for queue in fitting)
            raise self._error(at, f"queue_id {queue_id} is on several brokers ({brokers}): add a column broker_name")
        where = f" on broker {broker_name}" if broker_name else ""
        known = ", ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in queues[:QUEUES_SHOWN_MAX])
        raise self._error(
            at, f"{queues[0].topic} has no queue {queue_id}{where} that can be written (expected one of {known})"
        )

    # -------------------------------------------------------------------------------------------------------- encoding

    def _encode(self, rows: pa.RecordBatch, delays: _Numbers, times_ms: _Numbers) -> pa.Array:
        """Return each row as an item of a batch."""
        bodies = _column(rows, "body").cast(pa.binary())
        body_bytes = _lengths(bodies)
        self._refuse(body_bytes == 0, "body is empty, which RocketMQ does not allow: filter such rows out")
        self._refuse(
            body_bytes > BODY_BYTES_MAX, lambda at: f"body has {body_bytes[at]:,} bytes{_limit(BODY_BYTES_MAX)}"
        )
        properties = self._properties(rows, delays, times_ms)
        property_bytes = _lengths(properties)
        self._refuse(
            property_bytes > PROPERTIES_BYTES_MAX,
            lambda at: f"tags, keys and properties have {property_bytes[at]:,} bytes{_limit(PROPERTIES_BYTES_MAX)}",
        )
        heads = np.zeros((rows.num_rows, 5), ">i4")
        heads[:, 0], heads[:, 4] = ITEM_BYTES_MIN + body_bytes + property_bytes, body_bytes
        lengths = _fixed(property_bytes.astype(">i2"))
        return pc.binary_join_element_wise(_fixed(heads), bodies, lengths, properties, b"")

    def _properties(self, rows: pa.RecordBatch, delays: _Numbers, times_ms: _Numbers) -> pa.Array:
        """Return the encoded properties of each row.

        They have no UNIQ_KEY: the idempotency key replaces it, and brokers index every UNIQ_KEY at a high cost.
        """
        columns = [column for column in _PROPERTY_COLUMNS if _has(rows, column)]
        pieces = []
        if _has(rows, "properties"):
            pieces.append(self._given_properties(rows, [_PROPERTY_COLUMNS[column] for column in columns]))
        for column in columns:
            texts, name = _as_texts(_column(rows, column)), _PROPERTY_COLUMNS[column]
            self._refuse(_has_separator(texts), _separator_in(name))
            pieces.append(_pairs(name, texts))
        if delays.any():
            pieces.append(_pairs(names.DELAY_LEVEL, pa.array(delays, mask=delays == 0).cast(pa.string())))
        if times_ms.any():
            pieces.append(_pairs(names.TIMER_DELIVER_MS, pa.array(times_ms, mask=times_ms == 0).cast(pa.string())))
        numbers = pa.array(np.arange(self.count, self.count + rows.num_rows)).cast(pa.string())
        pieces += [pa.scalar(self._last_property), numbers, pa.scalar(PAIR_END)]
        return pc.binary_join_element_wise(*pieces, "").cast(pa.binary())

    def _given_properties(self, rows: pa.RecordBatch, overridden: Sequence[str]) -> pa.Array:
        """Return the pairs of the column `properties`, without those that are dropped or overridden."""
        maps = _column(rows, "properties")
        row_offsets = np.asarray(maps.offsets)
        first, count = row_offsets[0], row_offsets[-1] - row_offsets[0]  # a slice does not begin at 0
        keys, values = maps.keys.slice(first, count), maps.items.slice(first, count)
        dropped = pa.array(sorted(_DROPPED.union(overridden)), keys.type)
        is_sent = ~np.asarray(pc.is_in(keys, dropped)) & (_lengths(values) > 0)
        is_wrong = is_sent & (_has_separator(keys) | _has_separator(values) | (_lengths(keys) == 0))
        if is_wrong.any():
            place = int(np.argmax(is_wrong))
            name = keys[place].as_py()
            at = int(np.searchsorted(row_offsets - first, place, "right")) - 1
            raise self._error(at, _separator_in(name) if name else f"the property {name!r} has an empty name: drop it")
        pairs = pc.binary_join_element_wise(keys, NAME_END, pc.fill_null(values, ""), PAIR_END, "")
        pairs = pc.if_else(pa.array(is_sent), pairs, pa.scalar("", pairs.type))
        lists = pa.ListArray.from_arrays(pa.array(row_offsets - first, pa.int32()), pairs)
        return pc.binary_join(lists, "").cast(pa.string())

    def _delays(self, rows: pa.RecordBatch) -> _Numbers:
        if not _has(rows, "delay_level"):
            return np.zeros(rows.num_rows, np.int64)
        levels = np.asarray(pc.fill_null(_column(rows, "delay_level").cast(pa.int64()), 0))
        self._refuse(levels < 0, lambda at: f"delay_level is {levels[at]} (expected 0 for no delay, or a level from 1)")
        return levels

    def _times_ms(self, rows: pa.RecordBatch, delays: _Numbers) -> _Numbers:
        """Return when each row is delivered, in milliseconds since 1970; 0: at once."""
        if not _has(rows, "deliver_at"):
            return np.zeros(rows.num_rows, np.int64)
        times = _column(rows, "deliver_at").cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
        found = np.asarray(pc.fill_null(times, 0))
        self._refuse((found > 0) & (delays > 0), "it has a delay_level and a deliver_at: set one of them")
        return found

    def _refuse(self, is_wrong: _Numbers, what: str | Callable[[int], str]) -> None:
        """Raise an error about the first wrong row, if there is one."""
        if is_wrong.any():
            at = int(np.argmax(is_wrong))
            raise self._error(at, what if isinstance(what, str) else what(at))

    def _error(self, at: int, what: str) -> RowError:
        return RowError(f"row {self.count + at} of this partition cannot be sent: {what}")


def _separator_in(name: str) -> str:
    return f"the property {name!r} contains the separator U+0001 or U+0002: remove it"


def _limit(count_max: int) -> str:
    return f" (at most {count_max:,} are allowed)"


def _lengths(texts: pa.Array) -> _Numbers:
    """Return the number of bytes of each value; 0 for null."""
    return np.asarray(pc.fill_null(pc.binary_length(texts), 0)).astype(np.int64)


def _has_separator(texts: pa.Array) -> _Numbers:
    found = [pc.fill_null(pc.match_substring(texts, mark), fill_value=False) for mark in (NAME_END, PAIR_END)]
    return np.asarray(pc.or_(*found))


def _pairs(name: str, texts: pa.Array) -> pa.Array:
    """Return each text as an encoded property; nothing for empty texts and null."""
    pairs = pc.binary_join_element_wise(f"{name}{NAME_END}", pc.fill_null(texts, ""), PAIR_END, "")
    return pc.if_else(pa.array(_lengths(texts) > 0), pairs, "")


def _as_texts(values: pa.Array) -> pa.Array:
    """Return texts as they are, and lists of texts joined as keys."""
    if not pa.types.is_list(values.type) and not pa.types.is_large_list(values.type):
        return values.cast(pa.string())
    joined = [names.KEY_SEPARATOR.join(filter(None, each)) if each else None for each in values.to_pylist()]
    return pa.array(joined, pa.string())


def _fixed(values: _Numbers) -> pa.Array:
    """Return each row of numbers as binary."""
    count, width = len(values), values.nbytes // max(1, len(values))
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(values)])


def _has(rows: pa.RecordBatch, name: str) -> bool:
    return name in map(str.lower, rows.schema.names)


def _column(rows: pa.RecordBatch, name: str) -> pa.Array:
    return rows.column([each.lower() for each in rows.schema.names].index(name))


def _values(rows: pa.RecordBatch, name: str) -> list[Any]:
    """Return the values of a column; None for each row if there is no such column."""
    return _column(rows, name).to_pylist() if _has(rows, name) else [None] * rows.num_rows
