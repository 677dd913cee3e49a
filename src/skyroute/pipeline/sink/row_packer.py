"""Packs Arrow rows into batches to send, within the size limit. No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from skyroute.client.producing.prepared_message import BODY_BYTES_MAX
from skyroute.errors import SkyrouteError
from skyroute.message import property_names as names
from skyroute.message.batch import ITEM_BYTES_MIN, BatchItem
from skyroute.message.properties import NAME_END, PAIR_END, PROPERTIES_BYTES_MAX
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import is_retry_topic
from skyroute.message.tags import java_hash

IDEMPOTENCY_KEY: Final = "idempotency_key"
"""The property with a value unique to each row; a row sent twice has the same value twice."""

QUEUES_SHOWN_MAX: Final = 16
"""Maximum number of queues that an error lists."""

_PROPERTY_COLUMNS: Final = {"tags": names.TAGS, "keys": names.KEYS, "sharding_key": names.SHARDING_KEY}
"""Columns sent as properties, and the property names."""

_DROPPED: Final = (names.RESERVED_NAMES - {names.TAGS, names.KEYS}) | {names.SHARDING_KEY, IDEMPOTENCY_KEY}
"""Properties set by this writer, a column or the broker. Dropped, so that rows can be written as they were read."""

Queues = Mapping[str, Sequence[QueueRef]]
"""The writable queues of each topic."""


class RowError(SkyrouteError, ValueError):
    """A row cannot be sent; the text has its number and the reason."""


@dataclass(slots=True)
class SendBatch:
    """Rows sent in one request."""

    topic: str
    queue: QueueRef | None
    """The target queue of ordered rows; None: any queue."""
    items: list[BatchItem] = field(default_factory=list)
    size: int = 0


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
        self._key_prefix = key_prefix
        self._topic = topic
        self._namespace_property = _pair(names.INSTANCE_ID, namespace) if namespace else ""
        self._batch_bytes_max = batch_bytes_max
        self.count = 0
        """Rows packed so far."""

    def topics(self, rows: pa.RecordBatch) -> list[str]:
        """Return the topic of each row.

        Raises:
            RowError: a row has no topic.
        """
        if self._topic is not None:
            return [self._topic] * rows.num_rows
        topics: list[str] = _values(rows, "topic")
        for at, topic in enumerate(topics):
            if not topic:
                raise self._error(at, "topic is empty: set it, or set the option topic")
        return topics

    def pack(self, rows: pa.RecordBatch, topics: Sequence[str], queues: Queues) -> list[SendBatch]:
        """Return all rows in batches to send; rows for one queue keep their order.

        Raises:
            RowError: a row cannot be sent.
        """
        batches: list[SendBatch] = []
        open_batches: dict[tuple[str, QueueRef | None], SendBatch] = {}
        delays = self._delays(rows)
        # Brokers reject batches with delays and batches to retry topics.
        unbatchable = {topic for topic in queues if is_retry_topic(topic)}
        alone = [level > 0 or topic in unbatchable for level, topic in zip(delays, topics, strict=True)]
        bodies = _column(rows, "body").cast(pa.binary()).to_pylist()
        targets, texts = self._targets(rows, topics, queues), self._column_properties(rows, delays)
        for at, (place, body, is_alone, text) in enumerate(
            zip(zip(topics, targets, strict=True), bodies, alone, texts, strict=True)
        ):
            item = BatchItem(body, self._properties(at, text))
            if not body:
                raise self._error(at, "body is empty, which RocketMQ does not allow: filter such rows out")
            if len(body) > BODY_BYTES_MAX:
                raise self._error(at, f"body has {len(body):,} bytes (at most {BODY_BYTES_MAX:,} are allowed)")
            size = ITEM_BYTES_MIN + len(body) + len(item.raw_properties)
            batch = open_batches.get(place)
            if batch is None or is_alone or batch.size + size > self._batch_bytes_max:
                batch = SendBatch(*place)
                batches.append(batch)
                open_batches[place] = batch
            batch.items.append(item)
            batch.size += size
            if is_alone:
                del open_batches[place]
        self.count += rows.num_rows
        return batches

    def _properties(self, at: int, text: str) -> bytes:
        """Return all encoded properties of a row.

        They have no UNIQ_KEY: the idempotency key replaces it, and brokers index every UNIQ_KEY at a high cost.
        """
        raw = f"{text}{self._namespace_property}{IDEMPOTENCY_KEY}\x01{self._key_prefix}{self.count + at}\x02".encode()
        if len(raw) > PROPERTIES_BYTES_MAX:
            what = f"tags, keys and properties have {len(raw):,} bytes (at most {PROPERTIES_BYTES_MAX:,} are allowed)"
            raise self._error(at, what)
        return raw

    def _delays(self, rows: pa.RecordBatch) -> list[int]:
        if not _has(rows, "delay_level"):
            return [0] * rows.num_rows
        levels = [level or 0 for level in _values(rows, "delay_level")]
        for at, level in enumerate(levels):
            if level < 0:
                raise self._error(at, f"delay_level is {level} (expected 0 for no delay, or a level from 1)")
        return levels

    def _targets(self, rows: pa.RecordBatch, topics: Sequence[str], queues: Queues) -> list[QueueRef | None]:
        """Return the target queue of each row, or None."""
        if not (_has(rows, "queue_id") or _has(rows, "sharding_key")):
            return [None] * rows.num_rows
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

    def _column_properties(self, rows: pa.RecordBatch, delays: Sequence[int]) -> list[str]:
        """Return the encoded properties that the columns of each row set."""
        columns = [column for column in _PROPERTY_COLUMNS if _has(rows, column)]
        if not columns and not any(delays) and not _has(rows, "properties"):
            return [""] * rows.num_rows
        dropped = _DROPPED | {_PROPERTY_COLUMNS[column] for column in columns}
        pairs_of_rows = [
            [pair for pair in pairs or () if pair[0] not in dropped] for pairs in _values(rows, "properties")
        ]
        for column in columns:
            for pairs, value in zip(pairs_of_rows, _values(rows, column), strict=True):
                text = names.KEY_SEPARATOR.join(filter(None, value)) if isinstance(value, list) else value
                pairs.append((_PROPERTY_COLUMNS[column], text))
        for pairs, level in zip(pairs_of_rows, delays, strict=True):
            pairs.append((names.DELAY_LEVEL, str(level) if level else ""))
        try:
            return ["".join([_pair(name, value) for name, value in pairs if value]) for pairs in pairs_of_rows]
        except ValueError as error:
            at = next(at for at, pairs in enumerate(pairs_of_rows) if any(map(_is_invalid, pairs)))
            raise self._error(at, str(error)) from None

    def _error(self, at: int, what: str) -> RowError:
        return RowError(f"row {self.count + at} of this partition cannot be sent: {what}")


def _pair(name: str, value: str) -> str:
    if _is_invalid((name, value)):
        problem = "contains the separator U+0001 or U+0002: remove it" if name else "has an empty name: drop it"
        raise ValueError(f"the property {name!r} {problem}")
    return f"{name}{NAME_END}{value}{PAIR_END}"


def _is_invalid(pair: tuple[str, str | None]) -> bool:
    name, value = pair
    return bool(value) and (
        not name or any(end in text for end in (NAME_END, PAIR_END) for text in (name, value or ""))
    )


def _has(rows: pa.RecordBatch, name: str) -> bool:
    return name in map(str.lower, rows.schema.names)


def _column(rows: pa.RecordBatch, name: str) -> pa.Array:
    return rows.column([each.lower() for each in rows.schema.names].index(name))


def _values(rows: pa.RecordBatch, name: str) -> list[Any]:
    """Return the values of a column; None for each row if there is no such column."""
    return _column(rows, name).to_pylist() if _has(rows, name) else [None] * rows.num_rows
