"""One queue of a topic: encodes its records, and maps offsets to units.

A unit has the log position, size and tag code of a record. Rows count units, offsets count messages.
"""

import struct
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import ClassVar, Final

from skyroute.broker.store.draft import Draft
from skyroute.broker.store.files.segment import OpenSegments
from skyroute.broker.store.queues.unit_rows import UNIT, Unit, UnitRows
from skyroute.files.disk import Disk
from skyroute.message.batch import RawItem
from skyroute.message.crc import crc32
from skyroute.message.errors import RecordError
from skyroute.message.flags import HOSTS_IPV6
from skyroute.message.host import IPV4_HOST_BYTES
from skyroute.message.layout import HEADS, MAGIC_V1, MAGIC_V2, V1_TOPIC_BYTES_MAX
from skyroute.message.properties import PROPERTIES_BYTES_MAX

GAP_MAX: Final = 100_000
"""Maximum number of missing messages between two messages; above it, the offset of the later one is damaged."""

_HEAD_START: Final = Struct(">iIiiiqq")
_BATCH_HEADS: Final = tuple(Struct(f">iIiiiqq{head.size - _HEAD_START.size - 4}si") for head in HEADS)
"""A record's header as batches write it: the bytes before the body length are the same in all records."""


class TopicQueue(UnitRows):
    """One queue of a topic. The subclasses map offsets to rows."""

    __slots__ = ("_min_known", "magic", "queue_id", "topic", "topic_field")
    is_batch_queue: ClassVar[bool]

    def __init__(
        self, folder: Path, topic: str, queue_id: int, segment_units: int, disk: Disk, opened: OpenSegments
    ) -> None:
        super().__init__(folder, segment_units, disk, opened)
        self.topic = topic
        self.queue_id = queue_id
        raw_topic = topic.encode()
        version_1 = len(raw_topic) <= V1_TOPIC_BYTES_MAX
        self.magic = MAGIC_V1 if version_1 else MAGIC_V2
        self.topic_field = len(raw_topic).to_bytes(1 if version_1 else 2, "big") + raw_topic
        """The topic field of its records: length and name."""
        self._min_known = (0, 0)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic} {self.queue_id} ..{self.end}>"

    # ---------------------------------------------------------------------------------------------------------- records

    def encode(
        self,
        draft: Draft,
        body: bytes,
        raw_properties: bytes,
        flag: int,
        queue_offset: int,
        position: int,
        stored_at_ms: int,
    ) -> bytes:
        """Return the record of a message of this queue: as `message.record.encode`, but faster.

        Raises:
            RecordError: a value does not fit its field.
        """
        born_host, store_host = draft.raw_born_host, draft.raw_store_host
        body_bytes, properties_bytes = len(body), len(raw_properties)
        topic_field = self.topic_field
        families = (len(born_host) != IPV4_HOST_BYTES) | (len(store_host) != IPV4_HOST_BYTES) << 1
        head = HEADS[families]
        if properties_bytes > PROPERTIES_BYTES_MAX:
            raise RecordError(
                f"properties of {properties_bytes} bytes are too long (expected at most {PROPERTIES_BYTES_MAX})"
            )
        try:
            start = head.pack(
                head.size + body_bytes + len(topic_field) + 2 + properties_bytes,
                self.magic,
                crc32(body) & 0x7FFFFFFF,
                self.queue_id,
                flag,
                queue_offset,
                position,
                draft.sys_flag & ~HOSTS_IPV6 | families << 4,
                draft.born_at_ms,
                born_host,
                stored_at_ms,
                store_host,
                draft.reconsume_times,
                draft.prepared_position,
                body_bytes,
            )
        except struct.error as error:
            raise RecordError(f"a number does not fit its field in a record: {error}") from error
        return b"".join((start, body, topic_field, properties_bytes.to_bytes(2, "big"), raw_properties))

    def encode_all(
        self, draft: Draft, items: Sequence[RawItem], queue_offset: int, position: int, stored_at_ms: int
    ) -> tuple[list[bytes], list[int], list[int]]:
        """Return adjacent records of several messages, in pieces, with their positions and their sizes.

        The fields of the draft are the same in all of them and are encoded once.

        Raises:
            RecordError: a value does not fit its field.
        """
        empty = self.encode(draft, b"", b"", 0, queue_offset, position, stored_at_ms)
        empty_bytes, head_bytes = len(empty), len(empty) - len(self.topic_field) - 2
        same = empty[_HEAD_START.size : head_bytes - 4]
        head = next(head.pack for head in _BATCH_HEADS if head.size == head_bytes)
        magic, queue_id = self.magic, self.queue_id
        between_bytes, between = 0, self.topic_field + bytes(2)
        pieces: list[bytes] = []
        positions: list[int] = []
        sizes: list[int] = []
        for body, raw_properties, flag in items:
            body_bytes, properties_bytes = len(body), len(raw_properties)
            if properties_bytes > PROPERTIES_BYTES_MAX:
                raise RecordError(
                    f"properties of {properties_bytes} bytes are too long (expected at most {PROPERTIES_BYTES_MAX})"
                )
            if properties_bytes != between_bytes:
                between_bytes, between = properties_bytes, self.topic_field + properties_bytes.to_bytes(2, "big")
            size = empty_bytes + body_bytes + properties_bytes
            crc = crc32(body) & 0x7FFFFFFF
            pieces.append(head(size, magic, crc, queue_id, flag, queue_offset, position, same, body_bytes))
            pieces.append(body)
            pieces.append(between)
            pieces.append(raw_properties)
            positions.append(position)
            sizes.append(size)
            position += size
            queue_offset += 1
        return pieces, positions, sizes

    @abstractmethod
    def messages_in(self, raw_properties: bytes) -> int:
        """Return the number of messages in a record that has the flag of a batch."""

    # ----------------------------------------------------------------------------------------------- messages by offset

    def advance(self, offset: int) -> None:
        """Set the offset of the next message."""
        self.next_offset = offset

    @abstractmethod
    def add(self, offset: int, position: int, size: int, code: int, stored_at_ms: int, messages: int) -> None:
        """Add the unit of a record. It stays in memory until `write`."""

    def add_all(self, offset: int, positions: list[int], units: bytearray, stored_at_ms: int) -> None:
        """Add the units of records of one message each, with consecutive offsets, at other positions than they say."""
        for number, (position, (_, size, code)) in enumerate(zip(positions, UNIT.iter_unpack(units), strict=True)):
            self.add(offset + number, position, size, code, stored_at_ms, 1)

    @abstractmethod
    def accept_gap(self, offset: int, position: int) -> bool:
        """Prepare the queue for a record whose offset is not the next one; False if the offset must be damaged.

        No checksum covers the offset in a record: a damaged one must not destroy the queue. All units are written.
        """

    @abstractmethod
    def fill_to(self, offset: int, position: int) -> None:
        """Extend the queue to an offset with units without a message, in place of records that the log has lost."""

    @abstractmethod
    def read(self, offset: int, units_max: int) -> tuple[int, Iterable[Unit], Iterable[int]] | None:
        """Return the first offset, the units from the one of this message on, and the end offset of each unit.

        The units are of one segment; None if it is missing.
        """

    @abstractmethod
    def next_segment(self, offset: int) -> int:
        """Return the first offset behind the missing segment of this offset."""

    @abstractmethod
    def _row_of(self, offset: int) -> int:
        """Return the row of the unit of a message."""

    @property
    def first_kept(self) -> int:
        """The offset of the oldest message with a unit; the log may no longer have the message."""
        return self._offset_of(self._first_row)

    def unit(self, offset: int) -> Unit:
        """Return position, size and tag code of the record of a message that has a unit."""
        return self._unit_at(self._row_of(offset))

    def min_offset(self, log_start: int) -> int:
        """Return the first offset whose message is in a log with this start."""
        known_start, known = self._min_known
        if known_start != log_start or not self.first_kept <= known <= self.end:
            known = self._offset_of(self._find_row(log_start))
            self._min_known = (log_start, known)
        return known

    @property
    def written_end(self) -> int:
        """The offset behind the newest message with a unit in a file."""
        return self._offset_of(self._written) if self._written > self._first_row else 0

    def newest_unit(self) -> tuple[int, int, int, int] | None:
        """Return the last unit as `units_before` yields it; None if the queue is empty."""
        return next(self.units_before(self._count, 1), None)

    def units_before(self, row: int, count_max: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield position, size, first offset and end offset of the units before a row, nearest first."""
        for before in range(row - 1, max(row - 1 - count_max, self._first_row - 1), -1):
            position, size, _ = self._unit_at(before)
            yield position, size, self._offset_of(before), self._stop_of(before)
