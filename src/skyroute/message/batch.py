"""Batches: many messages in one body. Producers send them, and batch topics store them as one record.

A batch is a sequence of items. Each has its length, two unused 32-bit fields, a flag, then body and properties with
their lengths. Topic, queue and addresses are those of the enclosing request or record.
"""

import struct
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final, NamedTuple

from skyroute.message.errors import BatchError, InvalidMessageError
from skyroute.message.flags import COMPRESSED, WRAPPED_BATCH
from skyroute.message.message import Message, StoredMessage
from skyroute.message.positions import QueueOffset
from skyroute.message.record import body_crc
from skyroute.message.reserved_topics import is_retry_topic

_HEAD: Final = Struct(">iiiii")
_READ_HEAD: Final = Struct(">i8xii")
"""Length, flag and length of the body."""
_PROPERTIES_LENGTH: Final = Struct(">h")
ITEM_BYTES_MIN: Final = _HEAD.size + _PROPERTIES_LENGTH.size


class BatchItem(NamedTuple):
    """One message of a batch."""

    body: bytes
    raw_properties: bytes = b""
    flag: int = 0


RawItem = tuple[bytes, bytes, int]
"""A `BatchItem` as a plain tuple, which is faster to create."""


def encode_batch(items: Iterable[RawItem]) -> bytes:
    """Return the body of a batch.

    Raises:
        BatchError: properties are too long, or a flag does not fit into 32 bits.
    """
    parts: list[bytes] = []
    for body, raw_properties, flag in items:
        size = ITEM_BYTES_MIN + len(body) + len(raw_properties)
        try:
            parts += (
                _HEAD.pack(size, 0, 0, flag, len(body)),
                body,
                _PROPERTIES_LENGTH.pack(len(raw_properties)),
                raw_properties,
            )
        except struct.error as error:
            raise BatchError(f"an item cannot be encoded in a batch: {error}") from error
    return b"".join(parts)


def decode_batch(body: bytes) -> list[RawItem]:
    """Return the messages of a batch, in the order of `BatchItem`.

    Raises:
        BatchError: the body is not whole items from its first byte to its last.
    """
    return decode_some(body, 0, len(body))[0]


def decode_some(body: bytes, at: int, count_max: int) -> tuple[list[RawItem], int]:
    """Decode at most `count_max` messages of a batch from a position; return them and the position after them.

    Raises:
        BatchError: the body is not whole items up to there.
    """
    items: list[RawItem] = []
    end, head_bytes, read_head = len(body), _HEAD.size, _READ_HEAD.unpack_from
    size: int
    flag: int
    body_bytes: int
    try:
        for _ in range(count_max):
            if at >= end:
                break
            size, flag, body_bytes = read_head(body, at)
            start = at + head_bytes
            stop = start + body_bytes
            if body_bytes < 0:
                raise BatchError(f"the item at {at} has a body length of {body_bytes}")
            if stop + 2 > end:
                raise BatchError(f"the batch ends inside the item at {at}")
            at_next = stop + 2 + (body[stop] << 8 | body[stop + 1])
            if body[stop] > 127 or at_next != at + size or at_next > end:  # above 127: a negative length
                raise BatchError(f"the item at {at} has a length of {size}, but takes {min(at_next, end) - at} bytes")
            items.append((body[start:stop], body[stop + 2 : at_next], flag))
            at = at_next
    except struct.error:
        raise BatchError(f"the batch ends inside the item at {at}") from None
    return items, at


def count_items(body: bytes, at: int, count_max: int) -> tuple[int, int]:
    """Check at most `count_max` messages of a batch as `decode_some` does; return their number and the position after.

    Raises:
        BatchError: the body is not whole items up to there.
    """
    end, head_bytes, read_head = len(body), _HEAD.size, _READ_HEAD.unpack_from
    count = 0
    size: int
    body_bytes: int
    try:
        while count < count_max and at < end:
            size, _flag, body_bytes = read_head(body, at)
            stop = at + head_bytes + body_bytes
            at_next = at + size
            if (
                body_bytes < 0
                or stop + 2 > at_next
                or at_next > end
                or body[stop] > 127  # a negative length
                or stop + 2 + (body[stop] << 8 | body[stop + 1]) != at_next
            ):
                decode_some(body, at, 1)  # raises an error that says what is wrong
            at = at_next
            count += 1
    except struct.error:
        raise BatchError(f"the batch ends inside the item at {at}") from None
    return count, at


def check_batch(messages: Sequence[Message]) -> None:
    """Check that messages may be sent as one batch.

    Raises:
        InvalidMessageError: they may not, or the list is empty.
    """
    if not messages:
        raise InvalidMessageError("a batch needs at least one message")
    first = messages[0]
    if is_retry_topic(first.topic):
        raise InvalidMessageError("Retry Group is not supported for batching")
    for message in messages:
        if message.delay_level or message.deliver_at is not None or message.deliver_after_s is not None:
            raise InvalidMessageError("TimeDelayLevel is not supported for batching")
        if message.topic != first.topic:
            raise InvalidMessageError("The topic of the messages in one batch should be the same")
        if message.wait_stored != first.wait_stored:
            raise InvalidMessageError("The waitStoreMsgOK of the messages in one batch should the same")


def unwrap_batches(messages: list[StoredMessage]) -> list[StoredMessage]:
    """Return the messages, with every batch among them replaced by its messages.

    Raises:
        BatchError: the body of a batch is invalid.
        CompressionError: the body of a batch cannot be decompressed.
    """
    if not any(message.is_wrapped_batch for message in messages):
        return messages
    found: list[StoredMessage] = []
    for message in messages:
        if message.is_wrapped_batch:
            found += _unwrap(message)
        else:
            found.append(message)
    return found


def _unwrap(batch: StoredMessage) -> list[StoredMessage]:
    return [
        batch.replace(
            queue_offset=QueueOffset(batch.queue_offset + place),
            stored_body=body,
            raw_properties=raw_properties,
            flag=flag,
            # The inner messages are neither batches nor compressed.
            sys_flag=batch.sys_flag & ~(WRAPPED_BATCH | COMPRESSED),
            body_crc=body_crc(body),
            record_bytes=ITEM_BYTES_MIN + len(body) + len(raw_properties),
        )
        for place, (body, raw_properties, flag) in enumerate(decode_batch(batch.body))
    ]
