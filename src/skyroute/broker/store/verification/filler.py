"""Records that replace damaged bytes, so that every reader of a log skips them.

A filler is a whole record of a topic of its own, and marked as a transaction that was rolled back: brokers, ours and
Apache's, walk over it and put it into no queue and no index. In place of an offset it holds the number of bytes that it
stands for.
"""

from collections.abc import Iterator
from typing import Final

from skyroute.broker.store.commit_log import ScannedTuple
from skyroute.message.crc import crc32
from skyroute.message.flags import TransactionState
from skyroute.message.layout import HEADS, MAGIC_V1, RECORD_BYTES_MIN, SEGMENT_END_BYTES
from skyroute.message.record import segment_end

FILLER_TOPIC: Final = "SKYROUTE_DAMAGED"
FILLER_BYTES_MIN: Final = RECORD_BYTES_MIN + 1
"""A filler has a topic of at least one character."""
FILLER_BYTES_MAX: Final = 1 << 20
"""Longer ranges take several fillers, which bounds the memory that a reader needs."""

_ROLLED_BACK: Final = int(TransactionState.ROLLED_BACK)
_NO_HOST: Final = bytes(8)


def is_filler(record: ScannedTuple) -> bool:
    """Return whether a record of a log is a filler."""
    return bool(record[2]) and FILLER_TOPIC.startswith(record[2]) and record[5] == _ROLLED_BACK and not record[7]


def lost_bytes_of(filler: ScannedTuple) -> int:
    """Return how many damaged bytes a filler stands for."""
    return filler[4]


def fill(position: int, size: int, stored_at_ms: int) -> Iterator[bytes]:
    """Return the bytes that fill a range between two records; nothing if it is too short for a record."""
    while size >= FILLER_BYTES_MIN:
        piece = size if size <= FILLER_BYTES_MAX else FILLER_BYTES_MAX - FILLER_BYTES_MIN
        yield _filler(position, piece, stored_at_ms, piece)
        position += piece
        size -= piece


def fill_to_segment_end(position: int, size: int, stored_at_ms: int) -> bytes:
    """Return the bytes that fill a range up to the end of a segment; the rest may hold anything."""
    if size < FILLER_BYTES_MIN + SEGMENT_END_BYTES:
        return segment_end(size) if size >= SEGMENT_END_BYTES else b""
    # Apache's recovery looks for a record at the start of a segment.
    head = _filler(position, FILLER_BYTES_MIN, stored_at_ms, size)
    return head + segment_end(size - len(head))


def _filler(position: int, size: int, stored_at_ms: int, lost_bytes: int) -> bytes:
    topic = FILLER_TOPIC.encode()[: size - RECORD_BYTES_MIN]
    body = bytes(size - RECORD_BYTES_MIN - len(topic))
    head = HEADS[0].pack(
        *(size, MAGIC_V1, crc32(body) & 0x7FFFFFFF, 0, 0, lost_bytes, position, _ROLLED_BACK),
        *(stored_at_ms, _NO_HOST, stored_at_ms, _NO_HOST, 0, 0, len(body)),
    )
    return b"".join((head, body, bytes((len(topic),)), topic, bytes(2)))
