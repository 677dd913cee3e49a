"""Decodes the records of a pull response into Arrow columns, without a Python object per message.

Only the record starts are found one by one. Every field then has a known distance from its record's start, and numpy
gathers it for all records at once. Only the requested columns are decoded.
"""

import re
from collections.abc import Callable
from functools import cached_property
from struct import Struct
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from skyroute.message.batch import ITEM_BYTES_MIN
from skyroute.message.errors import BatchError
from skyroute.message.flags import COMPRESSED, WRAPPED_BATCH
from skyroute.message.host import decode_host
from skyroute.message.layout import HEAD_FIELDS, HEADS, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from skyroute.message.message_id import encode_offset_id
from skyroute.message.properties import NAME_END
from skyroute.message.property_names import KEYS, TAGS, UNIQUE_ID
from skyroute.pipeline.arrow_arrays import as_numbers, null_texts, number_array, text_array

Numbers = NDArray[Any]
Buffer = bytes | bytearray | memoryview

_SIZE: Final = Struct(">i")
_NUMPY_CODES: Final = {"i": ">i4", "I": ">u4", "q": ">i8"}
_RUN_MIN: Final = 16
_RUN_MAX: Final = 4096
"""Bounds of a run: records of equal length that are found in one comparison."""
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999
"""The years 1 to 9999, which Python and Spark timestamps support."""
_HEX: Final = np.frombuffer(bytes(range(256)).hex().upper().encode(), "V2")
"""The two hexadecimal digits of each byte."""
_WORD_BYTES: Final = 8
_ITEM_FLAG, _ITEM_BODY_LENGTH, _ITEM_BODY = 12, 16, 20
"""Positions in an item of a batch."""
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


def _layouts() -> tuple[dict[str, str], dict[str, Numbers]]:
    """Return the type of every header field, and its position in each of the four header layouts."""
    kinds: dict[str, str] = {}
    positions: dict[str, list[int]] = {name: [] for name in HEAD_FIELDS}
    for head in HEADS:
        at = 0
        for name, (size, code) in zip(HEAD_FIELDS, re.findall(r"(\d*)([iIqs])", head.format), strict=True):
            kinds[name] = _NUMPY_CODES.get(code, "V8")
            positions[name].append(at)
            at += Struct(f">{size}{code}").size
    return kinds, {name: np.array(of_heads) for name, of_heads in positions.items()}


_KINDS, _POSITIONS = _layouts()
_HEAD_BYTES: Final = np.array([head.size for head in HEADS])
_HEAD: Final = np.dtype(
    {
        "names": list(_KINDS),
        "formats": list(_KINDS.values()),
        "offsets": [int(positions[0]) for positions in _POSITIONS.values()],
        "itemsize": int(_HEAD_BYTES[0]),
    }
)
"""The header of a record with IPv4 addresses."""


def find_records(wire: Buffer) -> tuple[Numbers, int]:
    """Return the start of each record, according to their length fields, and the end of the last one."""
    runs: list[Numbers] = []
    at = _find_sizes(wire, 0, len(wire), RECORD_BYTES_MIN, runs)
    return np.concatenate(runs), at


def _find_sizes(wire: Buffer, at: int, end: int, size_min: int, runs: list[Numbers]) -> int:
    """Add the start of each piece, which begins with its length, to `runs`; return the end of the last one."""
    loose: list[int] = []
    last_size = 0
    while end - at >= size_min:
        (size,) = _SIZE.unpack_from(wire, at)
        if size < size_min or size > end - at:
            break
        loose.append(at)
        at += size
        if size == last_size and (left := min((end - at) // size, _RUN_MAX)) >= _RUN_MIN:
            # Messages of one kind often have one length: find a run of them in one comparison.
            same = np.ndarray((left,), ">i4", wire, at, (size,)) == size
            count = left if same.all() else int(np.argmin(same))
            runs += np.array(loose, np.int64), at + size * np.arange(count)
            loose.clear()
            at += size * count
            size = 0
        last_size = size
    runs.append(np.array(loose, np.int64))
    return at


class Records:
    """Records in one buffer whose lengths are consistent."""

    def __init__(self, wire: Buffer, starts: Numbers) -> None:
        """Take the records at these positions, up to the first damaged one."""
        self.wire = wire
        self._bytes = np.frombuffer(wire, np.uint8)
        self.starts = starts
        self._body = self._properties = starts, starts
        self._ipv6: Numbers | None = None
        """Header layout of each record; None if all have IPv4 addresses."""
        self.sys_flags = self.numbers("sys_flag")
        kinds = self.sys_flags >> 4 & 3
        if kinds.any():
            self._ipv6 = kinds
        self._check()

    def __len__(self) -> int:
        return len(self.starts)

    def _check(self) -> None:
        last = len(self._bytes) - 2
        stops = self.starts + self.numbers("record_bytes")
        head_bytes = _HEAD_BYTES[0] if self._ipv6 is None else _HEAD_BYTES[self._ipv6]
        body_at = self.starts + head_bytes
        is_long_enough = body_at + 3 <= stops
        if not is_long_enough.all():  # an IPv6 header that exceeds its record has no body length
            self.keep(slice(int(np.argmin(is_long_enough))))
            self._check()
            return
        magic = self.numbers("magic")
        body_bytes = self.numbers("body_bytes").astype(np.int64)
        body_stop = body_at + body_bytes
        at = np.clip(body_stop, 0, last)
        topic_at, topic_bytes = body_stop + 1, self._bytes[at].astype(np.int64)
        if (long_topics := magic == MAGIC_V2).any():
            topic_at = np.where(long_topics, body_stop + 2, topic_at)
            topic_bytes = np.where(long_topics, topic_bytes << 8 | self._bytes[at + 1], topic_bytes)
        properties_at = topic_at + topic_bytes + 2
        at = np.clip(properties_at - 2, 0, last)
        properties_bytes = self._bytes[at].astype(np.int64) << 8 | self._bytes[at + 1]
        is_valid = (properties_at + properties_bytes == stops) & (body_bytes >= 0)
        is_valid &= (magic == MAGIC_V1) | long_topics
        self._body, self._properties = (body_at, body_stop), (properties_at, stops)
        if not is_valid.all():
            self.keep(slice(int(np.argmin(is_valid))))

    def keep(self, which: Any) -> None:
        """Drop all records but these: a slice, a mask or positions."""
        self.starts, self.sys_flags = self.starts[which], self.sys_flags[which]
        if self._ipv6 is not None:
            self._ipv6 = self._ipv6[which]
        self._body = self._body[0][which], self._body[1][which]
        self._properties = self._properties[0][which], self._properties[1][which]
        for cached in ("_heads", "_raw_properties", "_property_bytes", "_pairs"):
            self.__dict__.pop(cached, None)

    @property
    def stop(self) -> int:
        """The end of the last record."""
        return int(self._properties[1][-1]) if len(self) else 0

    @property
    def special(self) -> Numbers:
        """Positions of compressed records and of batches stored as one record."""
        batch = (self.sys_flags & WRAPPED_BATCH) == WRAPPED_BATCH
        return np.asarray(np.flatnonzero((self.sys_flags & COMPRESSED).astype(bool) | batch))

    @property
    def are_batches(self) -> bool:
        """Whether every record is a batch, and none is compressed."""
        return bool(((self.sys_flags & (WRAPPED_BATCH | COMPRESSED)) == WRAPPED_BATCH).all())

    # ------------------------------------------------------------------------------------------------------- columns

    def _positions(self, field: str) -> Numbers:
        positions = _POSITIONS[field]
        return self.starts + (positions[0] if self._ipv6 is None else positions[self._ipv6])

    def _gather(self, positions: Numbers, kind: str) -> Numbers:
        """Return the values of a type at these byte positions, aligned or not."""
        size = np.dtype(kind).itemsize
        return np.ndarray((max(0, len(self.wire) - size + 1),), kind, self.wire, strides=(1,))[positions]

    @cached_property
    def _heads(self) -> Numbers:
        """The headers, one after another: gathering all fields at once costs no more than gathering one."""
        # As plain bytes first: numpy gathers structures field by field.
        return self._gather(self.starts, f"V{_HEAD.itemsize}").view(_HEAD)

    def numbers(self, field: str) -> Numbers:
        """Return a header field."""
        found = self._heads[field] if self._ipv6 is None else self._gather(self._positions(field), _KINDS[field])
        return found.astype(found.dtype.newbyteorder("="))

    def times(self, field: str) -> pa.Array:
        """Return a field of milliseconds as timestamps; None where out of range."""
        times_ms = self.numbers(field)
        is_null = (times_ms < _FIRST_MS) | (times_ms > _LAST_MS)
        return number_array(times_ms * 1000, _TIMESTAMP, is_null if is_null.any() else None)

    def bodies(self) -> pa.Array:
        """Return the bodies as stored."""
        return _slices(pa.py_buffer(self.wire), *self._body)

    def born_hosts(self) -> pa.Array:
        """Return the producers' addresses, as `host:port`."""
        positions = self._positions("raw_born_host")
        if self._ipv6 is not None:
            ends = positions + np.where(self._ipv6 & 1, 20, 8)
            pieces = zip(positions.tolist(), ends.tolist(), strict=True)
            return text_array([str(decode_host(bytes(self.wire[begin:end]))) for begin, end in pieces])
        # Few producers send many messages: decode each address once.
        hosts, which = np.unique(self._gather(positions, ">u8"), return_inverse=True)
        texts = [str(decode_host(int(host).to_bytes(8, "big"))) for host in hosts]
        return text_array(texts).take(number_array(which))

    def message_ids(self) -> pa.Array:
        """Return the message ids: the producer's, or else the broker's offset id."""
        ids = self._property(UNIQUE_ID)
        return pc.coalesce(ids, self._offset_ids()) if ids.null_count else ids

    def _offset_ids(self) -> pa.Array:
        """Return the brokers' ids: address and commit log position in hexadecimal digits."""
        hosts, positions = self._positions("raw_store_host"), self._positions("log_position")
        if self._ipv6 is not None:
            sizes, numbers = np.where(self._ipv6 & 2, 20, 8), self.numbers("log_position").tolist()
            raw_hosts = (bytes(self.wire[at : at + size]) for at, size in zip(hosts, sizes, strict=True))
            return text_array(list(map(encode_offset_id, raw_hosts, numbers)))
        raw = np.empty((len(self), 2), "V8")
        raw[:, 0], raw[:, 1] = self._gather(hosts, "V8"), self._gather(positions, "V8")
        digits = _HEX[raw.view(np.uint8)]
        offsets = 32 * np.arange(len(self) + 1, dtype=np.int32)
        return pa.StringArray.from_buffers(len(self), pa.py_buffer(offsets), pa.py_buffer(digits))

    @cached_property
    def _raw_properties(self) -> pa.Array:
        return _slices(pa.py_buffer(self.wire), *self._properties)

    @cached_property
    def _property_bytes(self) -> bytes:
        data = self._raw_properties.buffers()[2]
        return b"" if data is None else data.to_pybytes()

    @cached_property
    def _pairs(self) -> "Properties":
        return Properties(self._raw_properties)

    def _property(self, name: str) -> pa.Array:
        """Return one property of each message. If none has it, the properties are not split."""
        if f"{name}{NAME_END}".encode() not in self._property_bytes:
            return null_texts(len(self))
        return self._pairs.find(name)

    def tags(self) -> pa.Array:
        """Return the tags."""
        return self._property(TAGS)

    def keys(self) -> pa.Array:
        """Return the keys of each message as one text, separated by spaces."""
        return self._property(KEYS)

    def properties(self) -> pa.Array:
        """Return all properties, including RocketMQ's own."""
        return self._pairs.maps()


class BatchMessages(Records):
    """The messages of batches that are stored as one record each. The fields of a batch are those of its messages."""

    def __init__(self, batches: Records) -> None:
        """Take the messages of uncompressed batches.

        Raises:
            BatchError: the body of a batch is not whole messages from its first byte to its last.
        """
        self.wire, self._bytes = batches.wire, batches._bytes  # noqa: SLF001 - of the same class
        runs: list[Numbers] = []
        counts: list[int] = []
        for begin, end in zip(*(ends.tolist() for ends in batches._body), strict=True):  # noqa: SLF001 - as above
            known = len(runs)
            if _find_sizes(self.wire, begin, end, ITEM_BYTES_MIN, runs) != end:
                raise BatchError("a batch does not end with a message")
            counts.append(sum(map(len, runs[known:])))
        items = np.concatenate(runs)
        each = np.repeat(np.arange(len(counts)), counts)
        body_bytes = self._gather(items + _ITEM_BODY_LENGTH, ">i4").astype(np.int64)
        stops = items + self._gather(items, ">i4")
        body_at = items + _ITEM_BODY
        properties_at = body_at + body_bytes + 2
        if (body_bytes < 0).any() or (properties_at > stops).any():
            raise BatchError("a message of a batch is longer than its length says")
        if (properties_at + self._gather(properties_at - 2, ">i2") != stops).any():
            raise BatchError("the lengths of a message of a batch contradict each other")
        self.starts, self.sys_flags = batches.starts[each], batches.sys_flags[each] & ~WRAPPED_BATCH
        self._ipv6 = None if batches._ipv6 is None else batches._ipv6[each]  # noqa: SLF001 - as above
        self._body, self._properties = (body_at, body_at + body_bytes), (properties_at, stops)
        firsts = np.cumsum([0, *counts[:-1]])
        self._own = {
            "queue_offset": batches.numbers("queue_offset")[each] + np.arange(len(items)) - firsts[each],
            "flag": self._gather(items + _ITEM_FLAG, ">i4").astype(np.int32),
        }

    def numbers(self, field: str) -> Numbers:
        own = self._own.get(field)
        return super().numbers(field) if own is None else own

    def keep(self, which: Any) -> None:
        super().keep(which)
        self._own = {field: values[which] for field, values in self._own.items()}


class Properties:
    """The properties of many messages, split at all separators at once."""

    def __init__(self, raw: pa.Array) -> None:
        """Split each message's properties, as encoded in its record."""
        _, offsets, data = raw.buffers()
        self._offsets = np.frombuffer(offsets, np.int32, len(raw) + 1).astype(np.int64)
        self._data = data if data is not None else pa.py_buffer(b"")
        self._bytes = np.frombuffer(self._data, np.uint8, int(self._offsets[-1]))
        self._ends, steps = self._find_ends()
        self._begins = np.zeros_like(self._ends)
        """Of every pair, also of those that are incomplete: `find` and `maps` drop them, as other clients do."""
        self._begins[1:] = self._ends[:-1] + steps[:-1]
        self._counts = self._count_pairs()
        self._owners = np.repeat(np.arange(len(self._counts)), self._counts)

    def _find_ends(self) -> tuple[Numbers, Numbers]:
        """Return the end of each pair, and the distance to the next pair."""
        ends = np.flatnonzero(self._bytes == 2)
        stops = self._offsets[1:]
        is_open = stops > self._offsets[:-1]
        is_open[is_open] = self._bytes[stops[is_open] - 1] != 2
        if not is_open.any():
            return ends, np.ones_like(ends)
        # Clients before 5.0 omit the last separator: the pair ends with the message's properties.
        # Sort this end before a separator at the same position, which belongs to the next message.
        everywhere = np.concatenate([stops[is_open], ends])
        steps = np.concatenate([np.zeros(int(is_open.sum()), ends.dtype), np.ones_like(ends)])
        order = np.argsort(everywhere, kind="stable")
        return everywhere[order], steps[order]

    def _count_pairs(self) -> Numbers:
        """Return the number of pairs of each message."""
        firsts = self._offsets[:-1]
        count = len(self._begins) // max(1, len(firsts))
        if count and len(self._begins) == count * len(firsts) and (self._begins[::count] == firsts).all():
            return np.full(len(firsts), count)  # usually all have the same number, and searching takes longer
        return np.diff(np.searchsorted(self._begins, self._offsets))

    def _find_name_ends(self) -> Numbers:
        begins, ends = self._begins, self._ends
        marks = np.flatnonzero(self._bytes == 1)
        if len(marks) == len(ends) and ((begins <= marks) & (marks < ends)).all():
            return marks
        # A value contains a separator, or a pair lacks one: the first in each pair counts.
        marks = np.append(marks, len(self._bytes))
        return np.minimum(marks[np.searchsorted(marks, begins)], ends)

    @cached_property
    def _words(self) -> Numbers:
        """The first bytes of each pair, as numbers: numpy compares texts slowly."""
        return self._words_at(self._begins)

    def _words_at(self, positions: Numbers) -> Numbers:
        return np.asarray(np.ndarray((len(self._bytes) + 1,), "<u8", self._padded, strides=(1,))[positions])

    @cached_property
    def _padded(self) -> bytes:
        return self._bytes.tobytes() + bytes(_WORD_BYTES)

    def find(self, name: str) -> pa.Array:
        """Return one property of each message; the last duplicate wins."""
        wanted = f"{name}{NAME_END}".encode()
        found = np.flatnonzero(_begin_with(wanted[:_WORD_BYTES], self._words))
        for at in range(_WORD_BYTES, len(wanted), _WORD_BYTES):
            words = self._words_at(self._begins[found] + at)
            found = found[_begin_with(wanted[at : at + _WORD_BYTES], words)]
        begins, ends = self._begins[found] + len(wanted), self._ends[found]
        is_pair = begins < ends
        owners = self._owners[found]
        if len(found) == len(self._counts) and is_pair.all() and (owners == np.arange(len(found))).all():
            return _as_text(_slices(self._data, begins, ends))
        value_begins, value_ends = self._offsets[:-1].copy(), self._offsets[:-1].copy()
        owners = owners[is_pair]
        value_begins[owners], value_ends[owners] = begins[is_pair], ends[is_pair]
        is_null = np.ones(len(value_begins), bool)
        is_null[owners] = False
        return _as_text(_slices(self._data, value_begins, value_ends, is_null))

    def maps(self) -> pa.Array:
        """Return all properties of each message as a map."""
        begins, name_ends, ends, owners = self._begins, self._find_name_ends(), self._ends, self._owners
        is_pair = (begins < name_ends) & (name_ends + 1 < ends)
        if not is_pair.all():
            begins, name_ends, ends, owners = begins[is_pair], name_ends[is_pair], ends[is_pair], owners[is_pair]
        names = _as_text(_slices(self._data, begins, name_ends))
        values = _as_text(_slices(self._data, name_ends + 1, ends))
        encoded = names.dictionary_encode()
        marks = owners * max(1, len(encoded.dictionary)) + as_numbers(encoded.indices)
        if len(np.unique(marks)) < len(marks):  # the last duplicate wins
            _, from_the_end = np.unique(marks[::-1], return_index=True)
            kept = np.sort(len(marks) - 1 - from_the_end)
            names, values = names.take(number_array(kept)), values.take(number_array(kept))
            owners = owners[kept]
        offsets = np.zeros(len(self._counts) + 1, np.int32)
        np.cumsum(np.bincount(owners, minlength=len(self._counts)), out=offsets[1:])
        return pa.MapArray.from_arrays(number_array(offsets), names, values)


def _begin_with(text: bytes, words: Numbers) -> Numbers:
    """Return which words begin with a text."""
    return np.asarray(words & ((1 << 8 * len(text)) - 1) == int.from_bytes(text, "little"))


def _slices(data: pa.Buffer, begins: Numbers, ends: Numbers, is_null: Numbers | None = None) -> pa.Array:
    """Return the slices of a buffer between these ascending positions.

    Slices of one length are gathered like numbers. For others, Arrow sees slices and gaps in turn and takes every other
    one. Both copy each slice once.
    """
    count = len(begins)
    size = int(ends[0] - begins[0]) if count and is_null is None else 0
    if size and (ends - begins == size).all():
        gathered = np.ndarray((data.size - size + 1,), f"V{size}", data, strides=(1,))[begins]
        offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(gathered)])
    positions = np.empty(2 * count + 1, np.int32)
    positions[0:-1:2], positions[1::2] = begins, ends
    positions[-1] = positions[-2] if count else 0
    whole = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(positions), data])
    return whole.take(number_array(np.arange(0, 2 * count, 2), is_null=is_null))


def _as_text(raw: pa.Array) -> pa.Array:
    """Return bytes as text. Invalid UTF-8 becomes U+FFFD, so that no message is lost."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if piece is None else piece.decode("utf-8", "replace") for piece in raw.to_pylist()]
        return text_array(texts)


COLUMN_DECODERS: Final[dict[str, Callable[[Records], pa.Array]]] = {
    "commit_log_offset": lambda records: number_array(records.numbers("log_position")),
    "born_timestamp": lambda records: records.times("born_at_ms"),
    "store_timestamp": lambda records: records.times("stored_at_ms"),
    "born_host": Records.born_hosts,
    "tags": Records.tags,
    "keys": Records.keys,
    "properties": Records.properties,
    "flag": lambda records: number_array(records.numbers("flag")),
    "message_id": Records.message_ids,
    "reconsume_times": lambda records: number_array(records.numbers("reconsume_times")),
    "body": Records.bodies,
}
"""Columns decoded from records. Topic, broker and queue are known from the request."""
