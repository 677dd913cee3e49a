"""Filler records, which replace damaged bytes in a repaired log.

A filler is a complete record of a topic of its own, with the flag of a rolled-back transaction: brokers, ours and
Apache's, scan it and put it into no queue and no index. Its offset field has the number of bytes that it replaces.
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
"""Maximum size of a filler, which bounds the memory of a reader; a longer range gets several."""

_ROLLED_BACK: Final = int(TransactionState.ROLLED_BACK)
_NO_HOST: Final = bytes(8)


def is_filler(record: ScannedTuple) -> bool:
    """Return whether a record of a log is a filler."""
    return bool(record[2]) and FILLER_TOPIC.startswith(record[2]) and record[5] == _ROLLED_BACK and not record[7]


def lost_bytes_of(filler: ScannedTuple) -> int:
    """Return the number of damaged bytes that a filler replaces."""
    return filler[4]


def fill(position: int, size: int, stored_at_ms: int) -> Iterator[bytes]:
    """Yield the fillers of a range between two records; none if it is too short for a record."""
    while size >= FILLER_BYTES_MIN:
        piece = size if size <= FILLER_BYTES_MAX else FILLER_BYTES_MAX - FILLER_BYTES_MIN
        yield _filler(position, piece, stored_at_ms, piece)
        position += piece
        size -= piece


def fill_to_segment_end(position: int, size: int, stored_at_ms: int) -> bytes:
    """Return the filler of a range up to the end of a segment; the bytes behind its end mark do not matter."""
    if size < FILLER_BYTES_MIN + SEGMENT_END_BYTES:
        return segment_end(size) if size >= SEGMENT_END_BYTES else b""
    # Recovery of Apache's broker expects a record at the start of a segment.
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
