"""Layout of a record.

Shared by all decoders of records. Their loops only detect that the lengths of a record do not add up; `find_damage`
then finds the reason, so that valid records need few checks.

    head: 88 bytes, 12 more for each IPv6 address, by the bits of the system flag; its last field is the body's length
    body
    topic length (1 byte; 2 in version 2), topic
    properties length (2 bytes), properties
"""

from collections.abc import Container
from struct import Struct
from typing import Final

from skyroute.message.errors import RecordError, SegmentEndError, TruncatedRecordError
from skyroute.message.flags import BORN_HOST_IPV6, STORE_HOST_IPV6
from skyroute.message.host import IPV4_HOST_BYTES, IPV6_HOST_BYTES
from skyroute.message.properties import PROPERTIES_BYTES_MAX

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_SEGMENT_END: Final = 0xCBD43194

SEGMENT_END_BYTES: Final = 8
"""Size of the end mark of a segment; every record leaves room for it."""

V1_TOPIC_BYTES_MAX: Final = 127
"""Java reads the byte of a topic's length as signed, so longer topics need version 2."""
V2_TOPIC_BYTES_MAX: Final = 32767
HEAD_BYTES: Final = 88
RECORD_BYTES_MIN: Final = HEAD_BYTES + 3

_FIELDS: Final = (
    ("record_bytes", "i"),
    ("magic", "I"),
    ("body_crc", "i"),
    ("queue_id", "i"),
    ("flag", "i"),
    ("queue_offset", "q"),
    ("log_position", "q"),
    ("sys_flag", "i"),
    ("born_at_ms", "q"),
    ("raw_born_host", ""),
    ("stored_at_ms", "q"),
    ("raw_store_host", ""),
    ("reconsume_times", "i"),
    ("prepared_position", "q"),
    ("body_bytes", "i"),
)
HEAD_FIELDS: Final = tuple(name for name, _ in _FIELDS)

_SIZES: Final = {"i": 4, "I": 4, "q": 8}
_WORDS: Final = Struct(">iI")


def compile_heads(wanted: Container[str] = HEAD_FIELDS) -> tuple[Struct, Struct, Struct, Struct]:
    """Return a struct of these header fields for each pair of address families, by bits 4 and 5 of the flag."""
    both4, born6, store6, both6 = (
        _compile_head(wanted, born, store)
        for store in (IPV4_HOST_BYTES, IPV6_HOST_BYTES)
        for born in (IPV4_HOST_BYTES, IPV6_HOST_BYTES)
    )
    return both4, born6, store6, both6


def _compile_head(wanted: Container[str], born_bytes: int, store_bytes: int) -> Struct:
    hosts = {"raw_born_host": born_bytes, "raw_store_host": store_bytes}
    parts = []
    for name, code in _FIELDS:
        size = hosts.get(name) or _SIZES[code]
        kept = f"{size}s" if name in hosts else code
        parts.append(kept if name in wanted else f"{size}x")
    return Struct(">" + "".join(parts))


HEADS: Final = compile_heads()
_BODY_LENGTH: Final = Struct(">i")
_SYS_FLAG: Final = Struct(">i")
_SYS_FLAG_AT: Final = 36


def find_damage(buffer: bytes, at: int) -> RecordError:
    """Return the error of the record at this position, which failed to decode."""
    left = len(buffer) - at
    if left < SEGMENT_END_BYTES:
        return TruncatedRecordError(f"{left} bytes are left at {at}, fewer than any record has", at)
    size, magic = _WORDS.unpack_from(buffer, at)
    if magic == MAGIC_SEGMENT_END:
        return SegmentEndError(f"the segment ends at {at}", at)
    if magic not in (MAGIC_V1, MAGIC_V2):
        return RecordError(f"no record at {at}: its magic is {magic:#010x}", at)
    if size < RECORD_BYTES_MIN:
        return RecordError(f"the record at {at} has a length of {size} (expected at least {RECORD_BYTES_MIN})", at)
    if size > left:
        return TruncatedRecordError(f"the record at {at} has a length of {size}, but only {left} bytes are left", at)
    return _find_damage_inside(buffer[at : at + size], magic, at)


def _find_damage_inside(record: bytes, magic: int, at: int) -> RecordError:
    size = len(record)
    (sys_flag,) = _SYS_FLAG.unpack_from(record, _SYS_FLAG_AT)
    head_bytes = HEAD_BYTES + (IPV6_HOST_BYTES - IPV4_HOST_BYTES) * (
        bool(sys_flag & BORN_HOST_IPV6) + bool(sys_flag & STORE_HOST_IPV6)
    )
    width = 1 if magic == MAGIC_V1 else 2
    if size < head_bytes + width + 2:
        return RecordError(f"the record at {at} has a length of {size}, but its header takes {head_bytes}", at)
    (body_bytes,) = _BODY_LENGTH.unpack_from(record, head_bytes - 4)
    topic_at = head_bytes + body_bytes + width
    if body_bytes < 0 or topic_at + 2 > size:
        return RecordError(f"the record at {at} has {size} bytes, but a body length of {body_bytes}", at)
    properties_at = topic_at + int.from_bytes(record[topic_at - width : topic_at], "big") + 2
    if properties_at > size:
        return RecordError(f"the record at {at} has {size} bytes, and its topic ends after them", at)
    properties_bytes = int.from_bytes(record[properties_at - 2 : properties_at], "big")
    if properties_bytes > PROPERTIES_BYTES_MAX:
        return RecordError(f"the record at {at} has a properties length of {properties_bytes}", at)
    return RecordError(f"the record at {at} has {size} bytes; its fields take {properties_at + properties_bytes}", at)
