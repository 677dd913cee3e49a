"""Encodes and decodes records, as in the commit log and in responses to pulls and queries.

Records follow each other with nothing in between. Reading is quick rather than curious: one look at the head, three
slices, and nothing is decoded that may not be wanted. Checksums are verified on request.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Final

from skyroute.message.crc import crc32
from skyroute.message.errors import ChecksumError, RecordError
from skyroute.message.flags import HOSTS_IPV6
from skyroute.message.host import IPV4_HOST_BYTES, IPV6_HOST_BYTES
from skyroute.message.layout import (
    HEAD_BYTES,
    HEADS,
    MAGIC_SEGMENT_END,
    MAGIC_V1,
    MAGIC_V2,
    V1_TOPIC_BYTES_MAX,
    V2_TOPIC_BYTES_MAX,
    find_damage,
)
from skyroute.message.message import StoredMessage
from skyroute.message.properties import PROPERTIES_BYTES_MAX, delete_property, find_property
from skyroute.message.property_names import RECORD_CRC
from skyroute.message.queue_ref import QueueRef

_WORDS: Final = Struct(">iI")
_LENGTHS: Final = Struct(">i")
_SEAL_BYTES: Final = len(RECORD_CRC) + 12
_NO_LIMIT: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class RecordRun:
    """The valid records at the start of a buffer."""

    messages: list[StoredMessage]
    stop: int
    """End of the last record, where the next would start."""
    failure: RecordError | None
    """Why decoding stopped: damage, the end of a segment, a truncated record. None at the end of buffer or limit."""


def decode_records(
    buffer: bytes | bytearray | memoryview, *, queue: QueueRef | None = None, check_crc: bool = False
) -> list[StoredMessage]:
    """Return all records of a buffer.

    `queue` is the queue they were pulled from: messages then bear its id and its broker's name.

    Raises:
        RecordError: the buffer does not consist of whole records.
        ChecksumError: with `check_crc`, the checksum of a body does not match.
    """
    run = decode_run(buffer, queue=queue, check_crc=check_crc)
    if run.failure is not None:
        raise run.failure
    return run.messages


def decode_record(buffer: bytes | bytearray | memoryview, at: int = 0, *, check_crc: bool = False) -> StoredMessage:
    """Return the record at a position. From a buffer other than bytes, only the record is copied.

    Raises:
        RecordError: there is no valid record.
        ChecksumError: with `check_crc`, the checksum of its body does not match.
    """
    if not isinstance(buffer, bytes):
        size = _LENGTHS.unpack_from(buffer, at)[0] if len(buffer) - at >= 4 else 0
        buffer, at = bytes(buffer[at : at + max(size, HEAD_BYTES)]), 0
    run = decode_run(buffer, at, count_max=1, check_crc=check_crc)
    if run.messages:
        return run.messages[0]
    raise run.failure or find_damage(buffer, at)


def decode_run(
    buffer: bytes | bytearray | memoryview,
    at: int = 0,
    *,
    count_max: int = _NO_LIMIT,
    queue: QueueRef | None = None,
    check_crc: bool = False,
) -> RecordRun:
    """Return the valid records from `at` on, and why decoding stopped.

    What recovery of a log and reading of a growing one want: neither takes a bad record for a reason to lose good ones.
    """
    buffer = bytes(buffer)  # no copy if it is bytes already
    messages: list[StoredMessage] = []
    failure: RecordError | None = None
    keep: Callable[[StoredMessage], None] = messages.append
    broker_name, pulled_id = (queue.broker_name, queue.queue_id) if queue is not None else ("", None)
    end = len(buffer)
    read_head = HEADS[0].unpack_from
    last_topic, topic = b"", ""
    try:
        while at < end and count_max > 0:
            (size, magic, crc, queue_id, flag, queue_offset, position, sys_flag, born_ms, born_host, stored_ms,
             store_host, reconsumed, prepared, body_bytes) = read_head(buffer, at)  # fmt: skip
            body_at = at + HEAD_BYTES
            if sys_flag & HOSTS_IPV6:
                head = HEADS[sys_flag >> 4 & 3]
                body_at = at + head.size
                (_, _, _, _, _, _, _, _, _, born_host, stored_ms,
                 store_host, reconsumed, prepared, body_bytes) = head.unpack_from(buffer, at)  # fmt: skip
            body_stop = body_at + body_bytes
            if magic == MAGIC_V1:
                topic_at = body_stop + 1
                topic_stop = topic_at + buffer[body_stop]
            elif magic == MAGIC_V2:
                topic_at = body_stop + 2
                topic_stop = topic_at + (buffer[body_stop] << 8 | buffer[body_stop + 1])
            else:
                failure = find_damage(buffer, at)
                break
            properties_bytes = buffer[topic_stop] << 8 | buffer[topic_stop + 1]
            stop = at + size
            # If the body length is not negative and all parts add up to the size, each part is within the record.
            if (
                topic_stop + 2 + properties_bytes != stop
                or stop > end
                or body_bytes < 0
                or properties_bytes > PROPERTIES_BYTES_MAX
            ):
                failure = find_damage(buffer, at)
                break
            raw_topic = buffer[topic_at:topic_stop]
            if raw_topic != last_topic:
                last_topic, topic = raw_topic, raw_topic.decode("utf-8", "replace")
            body = buffer[body_at:body_stop]
            if check_crc and body and body_crc(body) != crc:  # as in Apache's code, that of no body says nothing
                failure = ChecksumError(f"the body of the record at {at} is not the one that was stored", at)
                break
            keep(
                StoredMessage(
                    topic,
                    queue_id if pulled_id is None else pulled_id,
                    queue_offset,
                    position,
                    body,
                    buffer[topic_stop + 2 : stop],
                    sys_flag,
                    flag,
                    born_ms,
                    born_host,
                    stored_ms,
                    store_host,
                    reconsumed,
                    prepared,
                    crc,
                    size,
                    broker_name,
                )
            )
            at = stop
            count_max -= 1
    except (struct.error, IndexError):
        failure = find_damage(buffer, at)
    return RecordRun(messages, at, failure)


def encode_record(message: StoredMessage, *, seal: bool = False) -> bytes:
    """Return a record's bytes.

    Its size, its version and the flag's address bits follow from the content; the body's checksum is the field's.
    `seal` adds a checksum over the whole record as a last property, as brokers with `enabledAppendPropCRC` do.

    Raises:
        RecordError: a value does not fit its field.
    """
    try:
        topic = message.topic.encode()
    except UnicodeEncodeError as error:
        raise RecordError("the topic contains a lone surrogate, which UTF-8 cannot encode") from error
    properties = message.raw_properties
    if seal:
        properties = delete_property(properties, RECORD_CRC)
        if properties and not properties.endswith(b"\x02"):
            properties += b"\x02"
    properties_bytes = len(properties) + (_SEAL_BYTES if seal else 0)
    if len(topic) > V2_TOPIC_BYTES_MAX or properties_bytes > PROPERTIES_BYTES_MAX:
        raise RecordError(f"a topic of {len(topic)} or properties of {properties_bytes} bytes is too long for a record")
    if len(topic) <= V1_TOPIC_BYTES_MAX:
        magic, topic_length = MAGIC_V1, len(topic).to_bytes(1, "big")
    else:
        magic, topic_length = MAGIC_V2, len(topic).to_bytes(2, "big")
    body, born_host, store_host = message.stored_body, message.raw_born_host, message.raw_store_host
    families = _family_bits(born_host) | _family_bits(store_host) << 1
    head = HEADS[families]
    try:
        start = head.pack(
            head.size + len(body) + len(topic_length) + len(topic) + 2 + properties_bytes,
            magic,
            message.body_crc,
            message.queue_id,
            message.flag,
            message.queue_offset,
            message.log_position,
            message.sys_flag & ~HOSTS_IPV6 | families << 4,
            message.born_at_ms,
            born_host,
            message.stored_at_ms,
            store_host,
            message.reconsume_times,
            message.prepared_position,
            len(body),
        )
    except struct.error as error:
        raise RecordError(f"a number does not fit its field in a record: {error}") from error
    record = b"".join((start, body, topic_length, topic, properties_bytes.to_bytes(2, "big"), properties))
    return record + _seal_of(record) if seal else record


def _family_bits(raw_host: bytes) -> int:
    if len(raw_host) == IPV4_HOST_BYTES:
        return 0
    if len(raw_host) == IPV6_HOST_BYTES:
        return 1
    raise RecordError(f"a host has {len(raw_host)} bytes (expected {IPV4_HOST_BYTES} or {IPV6_HOST_BYTES})")


def record_bytes(*, topic_bytes: int, body_bytes: int, properties_bytes: int, ipv6_hosts: int = 0) -> int:
    """Return the length of a record, from the lengths of its parts."""
    width = 1 if topic_bytes <= V1_TOPIC_BYTES_MAX else 2
    hosts = ipv6_hosts * (IPV6_HOST_BYTES - IPV4_HOST_BYTES)
    return HEAD_BYTES + hosts + body_bytes + width + topic_bytes + 2 + properties_bytes


def segment_end(bytes_left: int) -> bytes:
    """Return the end mark of a segment; `left` bytes of its file remain, including the mark."""
    return _WORDS.pack(bytes_left, MAGIC_SEGMENT_END)


def body_crc(body: bytes | memoryview) -> int:
    """Return the checksum of a stored body: CRC-32 without its top bit."""
    return crc32(body) & 0x7FFFFFFF


def seal_holds(record: bytes) -> bool | None:
    """Return whether the checksum of a whole record matches; None if the record has none."""
    raw = record[-_SEAL_BYTES:]
    if len(record) < HEAD_BYTES + _SEAL_BYTES or find_property(raw, RECORD_CRC) is None:
        return None
    return raw == _seal_of(record[:-_SEAL_BYTES])


def _seal_of(record: bytes) -> bytes:
    # Ten digits, lowest first, as Apache's brokers write it.
    return f"{RECORD_CRC}\x01{str(body_crc(record))[::-1]:0<10}\x02".encode()
