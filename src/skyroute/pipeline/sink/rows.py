"""From rows in Arrow to batches as they travel: what may go together does, and no batch is too long. No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from skyroute.client.outbound import BODY_BYTES_MAX
from skyroute.errors import SkyrouteError
from skyroute.message import property_names as names
from skyroute.message.batch import ITEM_BYTES_MIN, BatchItem
from skyroute.message.properties import NAME_END, PAIR_END, PROPERTIES_BYTES_MAX
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import is_retry_topic
from skyroute.message.tags import java_hash

IDEMPOTENCY_KEY: Final = "idempotency_key"
"""The property that is the same in two sends of one row, and in no two rows."""

QUEUES_SHOWN_MAX: Final = 16
"""How many queues an error lists."""

_TEXTS: Final = {"tags": names.TAGS, "keys": names.KEYS, "sharding_key": names.SHARDING_KEY}
"""Columns that travel as properties, and the names they travel by."""

_LEFT_OUT: Final = (names.RESERVED_NAMES - {names.TAGS, names.KEYS}) | {names.SHARDING_KEY, IDEMPOTENCY_KEY}
"""Properties that the writer, a column or a broker says itself: so a message can be written as it was read."""

Queues = Mapping[str, Sequence[QueueRef]]
"""The queues of each topic that can be written."""


class RowError(SkyrouteError, ValueError):
    """A row that cannot be sent; the text says which one, and why."""


@dataclass(slots=True)
class Part:
    """Rows that travel in one request."""

    topic: str
    queue: QueueRef | None
    """Where they go in order; None: to any queue."""
    items: list[BatchItem] = field(default_factory=list)
    size: int = 0


class RowPacker:
    """Packs the rows of one partition, batch after batch, and gives each the key by which a repetition is known."""

    def __init__(
        self,
        key_start: str,
        *,
        topic: str | None = None,
        namespace: str | None = None,
        batch_bytes_max: int,
    ) -> None:
        self._key_start = key_start
        self._topic = topic
        self._of_namespace = _pair(names.INSTANCE_ID, namespace) if namespace else ""
        self._batch_bytes_max = batch_bytes_max
        self.count = 0
        """Rows packed so far."""

    def topics(self, rows: pa.RecordBatch) -> list[str]:
        """Return the topic of each row.

        Raises:
            RowError: a row names none.
        """
        if self._topic is not None:
            return [self._topic] * rows.num_rows
        topics: list[str] = _values(rows, "topic")
        for at, topic in enumerate(topics):
            if not topic:
                raise self._refusal(at, "topic is empty: fill it in, or set the option topic")
        return topics

    def pack(self, rows: pa.RecordBatch, topics: Sequence[str], queues: Queues) -> list[Part]:
        """Return all rows in parts that are ready to be sent, those for one queue in their order.

        Raises:
            RowError: a row cannot be sent.
        """
        parts: list[Part] = []
        open_parts: dict[tuple[str, QueueRef | None], Part] = {}
        delays = self._delays(rows)
        # Brokers take no batches with delays, and none for retry topics.
        never_together = {topic for topic in queues if is_retry_topic(topic)}
        alone = [level > 0 or topic in never_together for level, topic in zip(delays, topics, strict=True)]
        bodies = _column(rows, "body").cast(pa.binary()).to_pylist()
        targets, texts = self._targets(rows, topics, queues), self._texts(rows, delays)
        for at, (place, body, is_alone, text) in enumerate(
            zip(zip(topics, targets, strict=True), bodies, alone, texts, strict=True)
        ):
            item = BatchItem(body, self._properties(at, text))
            if not body:
                raise self._refusal(at, "body is empty, and RocketMQ has no messages without one: filter such rows out")
            if len(body) > BODY_BYTES_MAX:
                raise self._refusal(at, f"body has {len(body):,} bytes, and a broker takes {BODY_BYTES_MAX:,} at most")
            size = ITEM_BYTES_MIN + len(body) + len(item.raw_properties)
            part = open_parts.get(place)
            if part is None or is_alone or part.size + size > self._batch_bytes_max:
                part = Part(*place)
                parts.append(part)
                open_parts[place] = part
            part.items.append(item)
            part.size += size
            if is_alone:
                del open_parts[place]
        self.count += rows.num_rows
        return parts

    def _properties(self, at: int, text: str) -> bytes:
        """Return all properties of a row as they travel.

        There is no id of the sender's among them: the row's key says more, and indexing one costs a broker dearly.
        """
        raw = f"{text}{self._of_namespace}{IDEMPOTENCY_KEY}\x01{self._key_start}{self.count + at}\x02".encode()
        if len(raw) > PROPERTIES_BYTES_MAX:
            what = (
                f"tags, keys and properties have {len(raw):,} bytes in all, and {PROPERTIES_BYTES_MAX:,} are possible"
            )
            raise self._refusal(at, what)
        return raw

    def _delays(self, rows: pa.RecordBatch) -> list[int]:
        if not _has(rows, "delay_level"):
            return [0] * rows.num_rows
        levels = [level or 0 for level in _values(rows, "delay_level")]
        for at, level in enumerate(levels):
            if level < 0:
                raise self._refusal(at, f"delay_level is {level}: 0 is no delay, and the first level is 1")
        return levels

    def _targets(self, rows: pa.RecordBatch, topics: Sequence[str], queues: Queues) -> list[QueueRef | None]:
        """Return for each row the queue it must go to, or None."""
        if not (_has(rows, "queue_id") or _has(rows, "sharding_key")):
            return [None] * rows.num_rows
        said = zip(topics, *(_values(rows, name) for name in ("queue_id", "broker_name", "sharding_key")), strict=True)
        return [
            self._target(at, queues[topic], queue_id, broker_name, key) if queue_id is not None or key else None
            for at, (topic, queue_id, broker_name, key) in enumerate(said)
        ]

    def _target(
        self, at: int, queues: Sequence[QueueRef], queue_id: int | None, broker_name: str | None, key: str | None
    ) -> QueueRef:
        if queue_id is None:
            # As all clients choose by hash, so that rows join what others send with the same key.
            return queues[abs(java_hash(key or "")) % len(queues)]
        fitting = [queue for queue in queues if queue.queue_id == queue_id and broker_name in (None, queue.broker_name)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            brokers = ", ".join(queue.broker_name for queue in fitting)
            raise self._refusal(at, f"queue_id {queue_id} is on several brokers ({brokers}): add a column broker_name")
        where = f" on broker {broker_name}" if broker_name else ""
        has = ", ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in queues[:QUEUES_SHOWN_MAX])
        raise self._refusal(at, f"{queues[0].topic} has no queue {queue_id}{where} that can be written; it has {has}")

    def _texts(self, rows: pa.RecordBatch, delays: Sequence[int]) -> list[str]:
        """Return for each row the properties that its columns say, as they travel."""
        columns = [column for column in _TEXTS if _has(rows, column)]
        if not columns and not any(delays) and not _has(rows, "properties"):
            return [""] * rows.num_rows
        left_out = _LEFT_OUT | {_TEXTS[column] for column in columns}
        told = [[pair for pair in pairs or () if pair[0] not in left_out] for pairs in _values(rows, "properties")]
        for column in columns:
            for pairs, value in zip(told, _values(rows, column), strict=True):
                text = names.KEY_SEPARATOR.join(filter(None, value)) if isinstance(value, list) else value
                pairs.append((_TEXTS[column], text))
        for pairs, level in zip(told, delays, strict=True):
            pairs.append((names.DELAY_LEVEL, str(level) if level else ""))
        try:
            return ["".join([_pair(name, value) for name, value in pairs if value]) for pairs in told]
        except ValueError as error:
            at = next(at for at, pairs in enumerate(told) if any(map(_is_odd, pairs)))
            raise self._refusal(at, str(error)) from None

    def _refusal(self, at: int, what: str) -> RowError:
        return RowError(f"row {self.count + at} of this partition cannot be sent: {what}")


def _pair(name: str, value: str) -> str:
    if _is_odd((name, value)):
        raise ValueError(f"the property {name!r} holds U+0001 or U+0002, which end names and values, or has no name")
    return f"{name}{NAME_END}{value}{PAIR_END}"


def _is_odd(pair: tuple[str, str | None]) -> bool:
    name, value = pair
    return bool(value) and (
        not name or any(end in text for end in (NAME_END, PAIR_END) for text in (name, value or ""))
    )


def _has(rows: pa.RecordBatch, name: str) -> bool:
    return name in map(str.lower, rows.schema.names)


def _column(rows: pa.RecordBatch, name: str) -> pa.Array:
    return rows.column([each.lower() for each in rows.schema.names].index(name))


def _values(rows: pa.RecordBatch, name: str) -> list[Any]:
    """Return what a column says of each row; nothing, where there is no such column."""
    return _column(rows, name).to_pylist() if _has(rows, name) else [None] * rows.num_rows
