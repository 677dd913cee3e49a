"""Reads a partition on a worker and returns Arrow batches.

Compressed bodies are decompressed, and batches stored as one record are split. A damaged record fails the read or
becomes a row with the column `reject`; it is never dropped.
"""

import logging
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skyroute.client.consuming.subscription import TAG
from skyroute.message.batch import unwrap_batches
from skyroute.message.errors import BatchError, CompressionError, MissingExtraError
from skyroute.message.flags import COMPRESSED, COMPRESSION_MASK, WRAPPED_BATCH
from skyroute.message.layout import find_damage
from skyroute.message.message import StoredMessage
from skyroute.message.positions import LogPosition, QueueOffset
from skyroute.message.record import decode_record, encode_record
from skyroute.message.tags import EVERY_TAG, parse_tag_expression
from skyroute.pipeline.arrow_arrays import as_flags, null_texts, number_array, repeated_text, text_array
from skyroute.pipeline.source.decode import COLUMN_DECODERS, BatchMessages, Numbers, Records, find_records
from skyroute.pipeline.source.errors import RejectedRecordError, SourceError
from skyroute.pipeline.source.fetcher import Chunk, Fetcher
from skyroute.pipeline.source.offset_lookup import report_loss
from skyroute.pipeline.source.options import ReadOptions
from skyroute.pipeline.source.planning import QueueRange, ReadPartition
from skyroute.pipeline.worker_memory import prepare_worker

log = logging.getLogger(__name__)

DECOMPRESSED_BYTES: Final = 64 << 20
"""Decompressed bytes per Arrow batch: a few compressed bytes can expand to any size."""

_PLAIN: Final = ~(COMPRESSED | COMPRESSION_MASK | WRAPPED_BATCH)
_NO_HOST: Final = bytes(8)


def read_partition(
    partition: ReadPartition, names: Sequence[str], schema: pa.Schema, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Read the columns `names` of a partition in batches of this schema.

    Raises:
        SourceError: the partition cannot be read; the text says what to do.
    """
    prepare_worker()
    for wanted in partition.ranges:
        yield from _RangeReader(wanted, names, schema, options).read()


class _RangeReader:
    """Reads one range of a queue."""

    def __init__(self, wanted: QueueRange, names: Sequence[str], schema: pa.Schema, options: ReadOptions) -> None:
        self._wanted = wanted
        self._names = names
        self._schema = schema
        self._options = options
        by_tag = options.expression_type == TAG
        self._tags = sorted(parse_tag_expression(options.expression).tags) if by_tag else []
        """A broker filters by the hash of a tag, which different tags may share, so tags are compared again here."""
        self._gaps_are_loss = options.expression == EVERY_TAG
        self._next = wanted.start
        """The offset after the last message read."""
        self._rejected = 0
        body = schema.field(names.index("body")).type if "body" in names else None
        self._body_type = None if body is None or pa.types.is_binary(body) else body
        """The type of the column `body` if its bytes must be converted."""

    def read(self) -> Iterator[pa.RecordBatch]:
        at: int | None = self._wanted.start
        while at is not None:
            at = yield from self._read_until_damage(at)
        if self._rejected:
            log.warning("records rejected queue=%s count=%d", self._wanted.queue, self._rejected)

    def _read_until_damage(self, at: int) -> Generator[pa.RecordBatch, None, int | None]:
        """Read from an offset on. At a damaged record, return the offset after it; at the end, None."""
        fetcher = Fetcher(self._options, replace(self._wanted, start=at))
        for chunk in fetcher.chunks():
            self._next = chunk.start
            records = Records(chunk.wire, find_records(chunk.wire)[0])
            is_whole = records.stop == len(chunk.wire)
            yield from self._batches(records, chunk)
            if not is_whole:
                # The damaged length hides where the next record starts: pull this offset alone.
                return (yield from self._read_single(fetcher, self._next))
            self._check_gaps(np.array([min(chunk.stop, self._wanted.stop)]))
        return None

    def _read_single(self, fetcher: Fetcher, at: int) -> Generator[pa.RecordBatch, None, int]:
        """Read the record at one offset, and return the next offset."""
        chunk = fetcher.read_one(at)
        records = Records(chunk.wire, find_records(chunk.wire)[0])
        if len(records) and records.stop == len(chunk.wire):
            yield from self._batches(records, chunk)
            return chunk.stop
        raw = bytes(chunk.wire)
        offset = min(chunk.stop, self._wanted.stop) - 1 - chunk.offset_delta
        substitute = encode_record(_message_without_fields(self._wanted.queue.topic, offset, raw))
        reasons = {offset: str(find_damage(raw, 0))}
        yield from self._rows(Records(substitute, find_records(substitute)[0]), chunk, reasons)
        return chunk.stop

    def _batches(self, records: Records, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        if not len(records.special):
            yield from self._rows(records, chunk, {})
            return
        if records.are_batches:
            try:
                messages = BatchMessages(records)
            except BatchError:
                pass  # find out below which batch is damaged
            else:
                yield from self._rows(messages, chunk, {})
                return
        for wire, reasons in self._unpack(records):
            yield from self._rows(Records(wire, find_records(wire)[0]), chunk, reasons)

    def _unpack(self, records: Records) -> Iterator[tuple[bytes, dict[int, str]]]:
        """Yield the records decompressed and unbatched, with the reasons why some could not be, by offset."""
        pieces: list[bytes] = []
        reasons: dict[int, str] = {}
        stops = [*records.starts.tolist()[1:], records.stop]
        special = set(records.special.tolist())
        size = 0
        for place, (start, stop) in enumerate(zip(records.starts.tolist(), stops, strict=True)):
            record = bytes(records.wire[start:stop])
            if place in special:
                record = self._make_plain(decode_record(record), reasons)
            pieces.append(record)
            size += len(record)
            if size >= DECOMPRESSED_BYTES:
                yield b"".join(pieces), reasons
                pieces, reasons, size = [], {}, 0
        yield b"".join(pieces), reasons

    def _make_plain(self, message: StoredMessage, reasons: dict[int, str]) -> bytes:
        try:
            found = [each.replace(stored_body=each.body) for each in unwrap_batches([message])]
        except MissingExtraError as error:
            raise SourceError(f"{self._wanted.queue} at {message.queue_offset}: {error}") from error
        except (CompressionError, BatchError) as error:
            reasons[message.queue_offset] = str(error)
            found = [message]
        return b"".join(encode_record(each.replace(sys_flag=each.sys_flag & _PLAIN)) for each in found)

    def _rows(self, records: Records, chunk: Chunk, reasons: dict[int, str]) -> Iterator[pa.RecordBatch]:
        if not len(records):
            return
        offsets = records.numbers("queue_offset") + chunk.offset_delta
        is_wanted = (offsets >= self._next) & (offsets < self._wanted.stop)
        if (np.diff(offsets) <= 0).any():  # several pulls returned the same batch record
            is_wanted[1:] &= offsets[1:] > np.maximum.accumulate(offsets)[:-1]
        if reasons:
            reasons = {offset + chunk.offset_delta: reason for offset, reason in reasons.items()}
            self._add_rejects({offset: reasons[offset] for offset in offsets[is_wanted].tolist() if offset in reasons})
        self._check_gaps(offsets[is_wanted])
        self._next = max(self._next, int(offsets.max()) + 1)
        if self._tags:
            has_tag = as_flags(pc.is_in(records.tags(), text_array(self._tags)))
            is_wanted &= has_tag | np.isin(offsets, list(reasons))  # a damaged record may have had the tag
        if not is_wanted.all():
            records.keep(is_wanted)
            offsets = offsets[is_wanted]
        if len(offsets):
            body = self._convert_body(records, offsets, reasons)
            columns = [
                body if body is not None and name == "body" else self._column(name, records, offsets, reasons)
                for name in self._names
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _convert_body(self, records: Records, offsets: Numbers, reasons: dict[int, str]) -> pa.Array | None:
        """Return the bodies in the wanted format, and add to `reasons` those without it; None if it is binary."""
        if self._body_type is None:
            return None
        from skyroute.pipeline.source.bodies import convert_bodies  # noqa: PLC0415 - most reads do without

        body, wrong = convert_bodies(COLUMN_DECODERS["body"](records), self._body_type)
        found = {int(offsets[place]): reason for place, reason in wrong.items()}
        found = {offset: reason for offset, reason in found.items() if offset not in reasons}
        self._count_rejects(found)
        reasons |= found
        return body

    def _check_gaps(self, offsets: Numbers) -> None:
        """Report missing offsets up to these, unless a filter explains them."""
        if not self._gaps_are_loss or not len(offsets):
            return
        missing = np.maximum(0, np.diff(offsets, prepend=self._next - 1) - 1)
        if not missing.any():
            return
        place = int(np.argmax(missing > 0))
        first, stop = int(offsets[place] - missing[place]), int(offsets[place])
        report_loss(
            self._options,
            f"offsets {first} to {stop - 1} of {self._wanted.queue} are missing ({missing.sum()} in total): they were"
            " deleted, or the topic is compacted",
        )

    def _add_rejects(self, reasons: dict[int, str]) -> None:
        self._count_rejects(reasons)
        if reasons:
            self._gaps_are_loss = False  # it may have been a batch of an unknown number of messages

    def _count_rejects(self, reasons: dict[int, str]) -> None:
        if reasons and not self._options.rejects_as_column:
            offset, reason = next(iter(reasons.items()))
            raise RejectedRecordError(
                f"the record at offset {offset} of {self._wanted.queue} cannot be decoded: {reason}. To continue, set"
                " rejects=column: the column `reject` then has the reason, and `body` the record's bytes"
            )
        self._rejected += len(reasons)

    def _column(self, name: str, records: Records, offsets: Numbers, reasons: dict[int, str]) -> pa.Array:
        queue = self._wanted.queue
        if name == "queue_offset":
            return number_array(offsets)
        if name == "reject":
            found = [reasons.get(offset) for offset in offsets.tolist()] if reasons else None
            return text_array(found) if found else null_texts(len(offsets))
        if name == "queue_id":
            return number_array(np.full(len(offsets), queue.queue_id, np.int32))
        if name in ("topic", "broker_name"):
            return repeated_text(queue.topic if name == "topic" else queue.broker_name, len(offsets))
        return COLUMN_DECODERS[name](records)


def _message_without_fields(topic: str, offset: int, body: bytes) -> StoredMessage:
    """Return a message that has only a topic, an offset and a body."""
    return StoredMessage(
        topic,
        0,
        QueueOffset(offset),
        LogPosition(0),
        body,
        b"",
        0,
        0,
        0,
        _NO_HOST,
        0,
        _NO_HOST,
        0,
        LogPosition(0),
        0,
        0,
    )
