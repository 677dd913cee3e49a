"""What a task reads, as batches of rows.

What is compressed is unpacked, and what is many messages in one is taken apart. What cannot be decoded is set aside in
a column of its own, or ends the read; it is never dropped.
"""

import logging
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skyroute.client.subscription import TAG
from skyroute.message.batch import unwrap_batches
from skyroute.message.errors import BatchError, CompressionError, MissingExtraError
from skyroute.message.flags import COMPRESSED, COMPRESSION_MASK, WRAPPED_BATCH
from skyroute.message.layout import find_damage
from skyroute.message.message import StoredMessage
from skyroute.message.positions import LogPosition, QueueOffset
from skyroute.message.record import decode_record, encode_record
from skyroute.message.tags import EVERY_TAG, parse_tag_expression
from skyroute.pipeline.source.decode import COLUMNS, Numbers, Records, find_records
from skyroute.pipeline.source.errors import RejectedRecordError, SourceError
from skyroute.pipeline.source.fetch import Chunk, Fetch
from skyroute.pipeline.source.options import ReadOptions
from skyroute.pipeline.source.planning import Part, QueueRange
from skyroute.pipeline.source.survey import report_loss

log = logging.getLogger(__name__)

UNPACKED_BYTES: Final = 64 << 20
"""Unpacked bodies are handed on when they are as long together: a few bytes can pose as any number of them."""

_PLAIN: Final = ~(COMPRESSED | COMPRESSION_MASK | WRAPPED_BATCH)
_NO_HOST: Final = bytes(8)


def read_part(part: Part, names: Sequence[str], schema: pa.Schema, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Read everything a task has to, the columns `names` of it, in batches of this schema.

    Raises:
        SourceError: it cannot be read; the text says what to do.
    """
    for wanted in part.ranges:
        yield from _Rows(wanted, names, schema, options).read()


class _Rows:
    """The rows of one part of a queue."""

    def __init__(self, wanted: QueueRange, names: Sequence[str], schema: pa.Schema, options: ReadOptions) -> None:
        self._wanted = wanted
        self._names = names
        self._schema = schema
        self._options = options
        by_tag = options.expression_type == TAG
        self._tags = sorted(parse_tag_expression(options.expression).tags) if by_tag else []
        """A broker selects by the hash of a tag, which different tags may share; here the tag itself decides."""
        self._gaps_are_loss = options.expression == EVERY_TAG
        self._next = wanted.start
        """Behind the last message that was read."""
        self._rejected = 0

    def read(self) -> Iterator[pa.RecordBatch]:
        at: int | None = self._wanted.start
        while at is not None:
            at = yield from self._read_until_damage(at)
        if self._rejected:
            log.warning("records set aside queue=%s count=%d", self._wanted.queue, self._rejected)

    def _read_until_damage(self, at: int) -> Generator[pa.RecordBatch, None, int | None]:
        """Read from here on, and return where to read on if something on the way was no record."""
        fetch = Fetch(self._options, replace(self._wanted, start=at))
        for chunk in fetch.chunks():
            self._next = chunk.start
            records = Records(chunk.wire, find_records(chunk.wire)[0])
            is_whole = records.stop == len(chunk.wire)
            yield from self._batches(records, chunk)
            if not is_whole:
                # A broker gives a record by its place in the queue: alone, it cannot take others with it.
                return (yield from self._read_alone(fetch, self._next))
            self._check_gaps(np.array([min(chunk.stop, self._wanted.stop)]))
        return None

    def _read_alone(self, fetch: Fetch, at: int) -> Generator[pa.RecordBatch, None, int]:
        """Read the first record from here on and no other, and return where to read on."""
        chunk = fetch.read_one(at)
        records = Records(chunk.wire, find_records(chunk.wire)[0])
        if len(records) and records.stop == len(chunk.wire):
            yield from self._batches(records, chunk)
            return chunk.stop
        raw = bytes(chunk.wire)
        offset = min(chunk.stop, self._wanted.stop) - 1 - chunk.offset_delta
        stand_in = encode_record(_empty_message(self._wanted.queue.topic, offset, raw))
        reasons = {offset: str(find_damage(raw, 0))}
        yield from self._rows(Records(stand_in, find_records(stand_in)[0]), chunk, reasons)
        return chunk.stop

    def _batches(self, records: Records, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        if not len(records.special):
            yield from self._rows(records, chunk, {})
            return
        for wire, reasons in self._unpack(records):
            yield from self._rows(Records(wire, find_records(wire)[0]), chunk, reasons)

    def _unpack(self, records: Records) -> Iterator[tuple[bytes, dict[int, str]]]:
        """Give the same records with nothing special about them, and why some could not be made so."""
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
            if size >= UNPACKED_BYTES:
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
        if (np.diff(offsets) <= 0).any():  # a batch that is stored as one record came with more than one pull
            is_wanted[1:] &= offsets[1:] > np.maximum.accumulate(offsets)[:-1]
        if reasons:
            reasons = {offset + chunk.offset_delta: reason for offset, reason in reasons.items()}
            self._note({offset: reasons[offset] for offset in offsets[is_wanted].tolist() if offset in reasons})
        self._check_gaps(offsets[is_wanted])
        self._next = max(self._next, int(offsets.max()) + 1)
        if self._tags:
            has_tag = pc.is_in(records.tags(), pa.array(self._tags)).to_numpy(zero_copy_only=False)
            is_wanted &= has_tag | np.isin(offsets, list(reasons))  # what cannot be read may have had it
        if not is_wanted.all():
            records.keep(is_wanted)
            offsets = offsets[is_wanted]
        if len(offsets):
            columns = [self._column(name, records, offsets, reasons) for name in self._names]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _check_gaps(self, offsets: Numbers) -> None:
        """Report offsets that were left out before these, where every one is to be there."""
        if not self._gaps_are_loss or not len(offsets):
            return
        missing = np.maximum(0, np.diff(offsets, prepend=self._next - 1) - 1)
        if not missing.any():
            return
        place = int(np.argmax(missing > 0))
        first, stop = int(offsets[place] - missing[place]), int(offsets[place])
        report_loss(
            self._options,
            f"{self._wanted.queue} has no messages from {first} to {stop - 1} any more ({missing.sum()} in all): they"
            " were deleted, or the topic is a compacted one",
        )

    def _note(self, reasons: dict[int, str]) -> None:
        if reasons and not self._options.set_rejects_aside:
            offset, reason = next(iter(reasons.items()))
            raise RejectedRecordError(
                f"{self._wanted.queue} has a record at {offset} that cannot be decoded: {reason}. To go on, set"
                " rejects=column: its reason is then in the column `reject`, and its bytes are in `body`"
            )
        self._rejected += len(reasons)
        if reasons:
            self._gaps_are_loss = False  # it may have been a batch, and nobody knows of how many

    def _column(self, name: str, records: Records, offsets: Numbers, reasons: dict[int, str]) -> pa.Array:
        queue = self._wanted.queue
        if name == "queue_offset":
            return pa.array(offsets)
        if name == "reject":
            texts = [reasons.get(offset) for offset in offsets.tolist()] if reasons else None
            return pa.array(texts, pa.string()) if texts else pa.nulls(len(offsets), pa.string())
        if name == "queue_id":
            return pa.array(np.full(len(offsets), queue.queue_id, np.int32))
        if name in ("topic", "broker_name"):
            return pa.repeat(queue.topic if name == "topic" else queue.broker_name, len(offsets))
        return COLUMNS[name](records)


def _empty_message(topic: str, offset: int, body: bytes) -> StoredMessage:
    """Return a message of which only the place and the body say anything."""
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
