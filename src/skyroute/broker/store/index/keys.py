"""The keys of a record, and their hashes in the index."""

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Final

from skyroute.broker.store.files.segment import Segment
from skyroute.message.flags import HOSTS_IPV6, TRANSACTION_MASK, TransactionState
from skyroute.message.layout import HEAD_BYTES, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, compile_heads
from skyroute.message.properties import find_property
from skyroute.message.property_names import KEYS, UNIQUE_ID
from skyroute.message.tags import java_hash

READ_BYTES: Final = 1 << 19
"""Bytes of the log per read."""

_HEADS: Final = compile_heads({"record_bytes", "magic", "sys_flag", "stored_at_ms", "body_bytes"})
_ROLLED_BACK: Final = int(TransactionState.ROLLED_BACK)
_KEYS, _UNIQUE_ID = (f"{name}\x01".encode() for name in (KEYS, UNIQUE_ID))
_WORD: Final = Struct(">Q")
_BYTES_OF_2, _PAIRS_OF_2 = 0x00FF00FF00FF00FF, 0x0000FFFF0000FFFF

Key = tuple[int, int, int]
"""A key to add to the index: its hash, and log position and store time (milliseconds) of its message."""


class KeyReader:
    """Reads the keys of records from the log, `read_bytes` at a time. The records are known to be intact."""

    def __init__(self, find_segment: Callable[[int], Segment | None], read_bytes: int = READ_BYTES) -> None:
        self._find_segment = find_segment
        self._read_bytes = read_bytes
        self._topics: dict[bytes, str] = {}

    def read(self, position: int, stop: int, keys: list[Key]) -> tuple[int, int, int] | None:
        """Add the keys of some records from a position on; return position, size and time of the last record.

        None if no record is left before `stop`.
        """
        while position < stop:
            segment = self._find_segment(position)
            if segment is None:
                return None
            newest = self._read_segment(segment, position, min(stop, segment.stop), keys)
            if newest is not None:
                return newest
            position = segment.stop
        return None

    def _read_segment(self, segment: Segment, position: int, stop: int, keys: list[Key]) -> tuple[int, int, int] | None:
        read_bytes = self._read_bytes
        magic: int
        sys_flag: int
        stored_at_ms: int
        body_bytes: int
        while True:
            raw = segment.read(position - segment.start, min(read_bytes, stop - position))
            at, last_at, size, last_ms, end = 0, -1, 0, 0, len(raw)
            may_have_keys = _KEYS in raw or _UNIQUE_ID in raw
            while at + HEAD_BYTES <= end:
                size, magic, sys_flag, stored_at_ms, body_bytes = _HEADS[0].unpack_from(raw, at)
                stop_at = at + size
                if magic not in (MAGIC_V1, MAGIC_V2) or size < RECORD_BYTES_MIN:
                    return None if last_at < 0 else (position + last_at, at - last_at, last_ms)
                if stop_at > end:
                    break
                head_bytes = HEAD_BYTES
                if sys_flag & HOSTS_IPV6:
                    head = _HEADS[sys_flag >> 4 & 3]
                    head_bytes = head.size
                    *_, stored_at_ms, body_bytes = head.unpack_from(raw, at)
                last_at, last_ms, at = at, stored_at_ms, stop_at
                if not may_have_keys:
                    continue
                topic_at = last_at + head_bytes + body_bytes + (1 if magic == MAGIC_V1 else 2)
                topic_bytes = raw[topic_at - 1 : topic_at] if magic == MAGIC_V1 else raw[topic_at - 2 : topic_at]
                topic_stop = topic_at + int.from_bytes(topic_bytes, "big")
                raw_topic = raw[topic_at:topic_stop]
                topic = self._topics.get(raw_topic)
                if topic is None:
                    topic = self._topics.setdefault(raw_topic, raw_topic.decode("utf-8", "replace"))
                collect_keys(keys, topic, raw[topic_stop + 2 : at], sys_flag, position + last_at, stored_at_ms)
            if last_at >= 0:
                return position + last_at, at - last_at, last_ms
            if position + end >= stop:
                return None
            read_bytes = size  # the record is longer than the bytes read


def collect_keys(
    keys: list[Key], topic: str, raw_properties: bytes, sys_flag: int, position: int, stored_at_ms: int
) -> None:
    """Add the hashes of a record's unique id and keys to a list."""
    if sys_flag & TRANSACTION_MASK == _ROLLED_BACK:
        return
    if unique_id := find_value(raw_properties, _UNIQUE_ID):
        keys.append((key_hash(topic, unique_id), position, stored_at_ms))
    if words := find_value(raw_properties, _KEYS):
        for word in words.split(b" "):
            if word:
                keys.append((key_hash(topic, word), position, stored_at_ms))


def may_have_keys(together: bytes) -> bool:
    """Return whether messages with these joined properties may have keys: a name ends like the name of a key."""
    # `in` would take four times as long.
    return together.rfind(_KEYS) >= 0 or together.rfind(_UNIQUE_ID) >= 0


def find_value(raw_properties: bytes, pair_start: bytes) -> bytes | None:
    """Return the bytes of one property, as `find_property` but faster: every message passes here.

    `pair_start` is the name with its separator.
    """
    before, found, rest = raw_properties.rpartition(pair_start)
    if not found:
        return None
    value = rest.partition(b"\x02")[0]
    if value and (not before or before[-1] == 2):
        return value
    # It is the end of a longer name, or empty: an earlier one may count.
    text = find_property(raw_properties, pair_start[:-1].decode())
    return text.encode() if text else None


def _fold(word: int) -> int:
    """Return the hash of eight characters: computed for pairs, then for fours, then for both halves."""
    word = (word & _BYTES_OF_2) + (word >> 8 & _BYTES_OF_2) * 31
    word = (word & _PAIRS_OF_2) + (word >> 16 & _PAIRS_OF_2) * 31**2
    return (word & 0xFFFFFFFF) + (word >> 32) * 31**4


@lru_cache(maxsize=8192)
def _far_hash(topic: str, start: bytes) -> int:
    """Return the hash of a topic and the start of a key."""
    value = 0
    for (word,) in _WORD.iter_unpack(start.rjust(len(start) + -len(start) % _WORD.size, b"\0")):
        value = (value * 31**8 + _fold(word)) & 0xFFFFFFFF
    return (java_hash(f"{topic}#") * pow(31, len(start), 1 << 32) + value) & 0xFFFFFFFF


@lru_cache(maxsize=8192)
def _start_hash(topic: str, start: bytes) -> int:
    """Return the contribution of a topic and the start of a key to the hash, with two characters still to come."""
    # Ids of one producer share their start and have the time before the last characters.
    last = start[-_WORD.size :]
    value = _far_hash(topic, start[: -_WORD.size]) * 31 ** len(last) + _fold(int.from_bytes(last, "big"))
    return int(value * 31**2 & 0xFFFFFFFF)


@lru_cache(maxsize=8192)
def _whole_hash(topic: str, key: bytes) -> int:
    return java_hash(f"{topic}#{key.decode('utf-8', 'replace')}") & 0xFFFFFFFF


def key_hash(topic: str, key: bytes) -> int:
    """Return the hash of a key in the index: Java's hash of `topic#key`, without its sign."""
    if len(key) > 2 and key.isascii():
        # Keys are often rising numbers: all but the last two characters are cached.
        value = _start_hash(topic, key[:-2]) + key[-2] * 31 + key[-1] & 0xFFFFFFFF
    else:
        value = _whole_hash(topic, key)
    # Java has no absolute value for the smallest integer; Apache's broker uses 0.
    return value if value < 0x80000000 else -value & 0x7FFFFFFF
