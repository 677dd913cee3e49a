"""One queue of a topic: a row of units, each saying where in the log a message lies, how long it is, and its tag."""

from bisect import bisect_left
from pathlib import Path
from struct import Struct
from struct import error as StructError  # noqa: N812 - the module's own name for it is too plain to use bare
from typing import Final
from zlib import crc32

from skyroute.broker.store.disk import Disk
from skyroute.broker.store.draft import Draft
from skyroute.broker.store.segment import OpenSegments, Segment
from skyroute.broker.store.segmented_log import SegmentedLog
from skyroute.message.errors import RecordError
from skyroute.message.flags import HOSTS_IPV6
from skyroute.message.host import IPV4_HOST_BYTES
from skyroute.message.layout import HEAD_BYTES, HEADS, MAGIC_V1, MAGIC_V2, V1_TOPIC_BYTES_MAX
from skyroute.message.properties import PROPERTIES_BYTES_MAX

UNIT: Final = Struct(">qiq")
"""Position of the record, its size, and the code of its tag."""

_HEAD_WITHOUT_HOSTS: Final = HEAD_BYTES - 2 * IPV4_HOST_BYTES
_NO_MESSAGE_BYTES: Final = 0x7FFFFFFF
"""The size in a unit that stands for no message: where a queue begins in the middle of a segment."""


class ConsumeQueue:
    """The n-th unit is the n-th message of the queue, whether or not the log still has it."""

    __slots__ = (
        "_log",
        "_min_known",
        "_tail",
        "_written",
        "end",
        "magic",
        "next_offset",
        "queue_id",
        "topic",
        "topic_field",
    )

    def __init__(
        self, folder: Path, topic: str, queue_id: int, segment_units: int, disk: Disk, opened: OpenSegments
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.next_offset = 0
        """What the next message of this queue gets."""
        self.end = 0
        """How many units there are; readers see no more."""
        self._written = 0
        """How many of them are in files; the rest is the tail."""
        self._tail = bytearray()
        raw_topic = topic.encode()
        version_1 = len(raw_topic) <= V1_TOPIC_BYTES_MAX
        self.magic = MAGIC_V1 if version_1 else MAGIC_V2
        self.topic_field = len(raw_topic).to_bytes(1 if version_1 else 2, "big") + raw_topic
        """The topic as its records hold it, with its length."""
        self._log = SegmentedLog(folder, segment_units * UNIT.size, disk, opened)
        self._min_known = (0, 0)

    def __repr__(self) -> str:
        return f"<ConsumeQueue {self.topic} {self.queue_id} ..{self.end}>"

    # ------------------------------------------------------------------------------------------------ records of it

    def record_bytes(self, draft: Draft, body_bytes: int, properties_bytes: int) -> int:
        """Return how long a record of this queue is."""
        hosts_bytes = len(draft.raw_born_host) + len(draft.raw_store_host)
        return _HEAD_WITHOUT_HOSTS + hosts_bytes + body_bytes + len(self.topic_field) + 2 + properties_bytes

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
        """Return the record of a message of this queue. What `message.record` writes, without a detour.

        Raises:
            RecordError: something does not fit its place.
        """
        born_host, store_host = draft.raw_born_host, draft.raw_store_host
        body_bytes, properties_bytes = len(body), len(raw_properties)
        topic_field = self.topic_field
        families = (len(born_host) != IPV4_HOST_BYTES) | (len(store_host) != IPV4_HOST_BYTES) << 1
        head = HEADS[families]
        if properties_bytes > PROPERTIES_BYTES_MAX:
            raise RecordError(f"properties of {properties_bytes} bytes do not fit a record")
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
        except StructError as error:
            raise RecordError(f"a number does not fit its place in a record: {error}") from error
        return b"".join((start, body, topic_field, properties_bytes.to_bytes(2, "big"), raw_properties))

    # -------------------------------------------------------------------------------------------------- units of it

    @property
    def folder(self) -> Path:
        return self._log.folder

    @property
    def segments(self) -> list[Segment]:
        return self._log.segments

    def load(self) -> None:
        """Find the segments, and how many units there are."""
        self._log.load()
        if self._log.segments:
            last = self._log.segments[-1]
            # Units are written one behind the other into what was zero.
            units = range(last.size // UNIT.size)
            self.end = last.start // UNIT.size + bisect_left(units, 1, key=lambda unit: self._is_empty(last, unit))
        self._written = self.next_offset = self.end

    @staticmethod
    def _is_empty(segment: Segment, unit: int) -> bool:
        position, size, _ = UNIT.unpack(segment.read(unit * UNIT.size, UNIT.size))
        return bool(position < 0 or size <= 0)

    @property
    def first_kept(self) -> int:
        """The oldest unit there is; the log may no longer have its message."""
        return self._log.segments[0].start // UNIT.size if self._log.segments else self._written

    def unit(self, offset: int) -> tuple[int, int, int]:
        """Return position, size and tag code of one message; the offset is one that is kept."""
        units = self.units(offset, 1)
        return UNIT.unpack(units) if units else (0, _NO_MESSAGE_BYTES, 0)

    def units(self, offset: int, count_max: int) -> bytes:
        """Return units from this one on, as many as lie side by side; nothing where their segment is missing."""
        if offset >= self._written:
            at = (offset - self._written) * UNIT.size
            return bytes(self._tail[at : at + count_max * UNIT.size])
        at = offset * UNIT.size
        segment = self._log.find(at)
        if segment is None:
            return b""
        stop = min(at + count_max * UNIT.size, self._written * UNIT.size, segment.stop)
        return segment.read(at - segment.start, stop - at)

    def next_segment(self, offset: int) -> int:
        """Return the first offset of the segment behind the one that would hold this offset."""
        units = self._log.segment_bytes // UNIT.size
        return offset + units - offset % units

    def add(self, offset: int, unit: bytes) -> None:
        """Add the unit of the message with this offset. It stays in memory until `write`."""
        if offset != self.end:
            self._fill_up_to(offset, unit)
        self._tail += unit
        self.end = offset + 1

    def _fill_up_to(self, offset: int, unit: bytes) -> None:
        if self._log.segments or self._tail:
            # In between, positions have to rise, since they are searched.
            position = UNIT.unpack(unit)[0]
        else:
            # As Apache does it: the head of the first segment is filled, and all before it is not there.
            position = 0
            self.end = self._written = offset - offset % (self._log.segment_bytes // UNIT.size)
        self._tail += UNIT.pack(position, _NO_MESSAGE_BYTES, 0) * (offset - self.end)

    def write(self) -> list[Segment]:
        """Write what was added to files, and return their segments.

        Raises:
            StoreWriteError, StoreFullError: it stays in memory, where readers see it none the less.
        """
        written: list[Segment] = []
        at, units = self._written * UNIT.size, bytes(self._tail)
        while units:
            segment = self._log.find(at) or self._log.add(at)
            room = segment.stop - at
            segment.write(at - segment.start, units[:room])
            written.append(segment)
            at, units = at + room, units[room:]
        self._tail.clear()
        self._written = self.end
        return written

    def truncate(self, offset: int) -> None:
        """Forget the units from this one on. Called by recovery, when all are written."""
        if offset < self.end:
            self._log.truncate(offset * UNIT.size)
            self.end = self._written = self.next_offset = max(offset, self.first_kept)

    def truncate_to(self, position: int) -> None:
        """Forget the units of messages that lie at or behind this position of the log."""
        if self.end > self.first_kept and self.unit(self.end - 1)[0] >= position:
            self.truncate(self._find(position))

    def min_offset(self, log_start: int) -> int:
        """Return the first offset whose message is still in a log that starts there."""
        known_start, known = self._min_known
        if known_start != log_start or not self.first_kept <= known <= self.end:
            known = self._find(log_start)
            self._min_known = (log_start, known)
        return known

    def _find(self, position: int) -> int:
        """Return the first offset whose message lies at or behind a position of the log."""
        return bisect_left(
            range(self.end), 1, lo=self.first_kept, hi=self.end, key=lambda offset: self._is_behind(offset, position)
        )

    def is_filler(self, offset: int) -> bool:
        """Return whether a unit only stands for a message that is missing."""
        return self.unit(offset)[1] == _NO_MESSAGE_BYTES

    def _is_behind(self, offset: int, position: int) -> bool:
        found, size, _ = self.unit(offset)
        return found >= position and not (size == _NO_MESSAGE_BYTES and found == 0)

    def log_end(self) -> int:
        """Return where in the log the newest message of this queue ends; -1 where there is none."""
        if self.end <= self.first_kept:
            return -1
        position, size, _ = self.unit(self.end - 1)
        return position + size if size != _NO_MESSAGE_BYTES else position

    def remove_expired(self, log_start: int) -> int:
        """Remove the segments, but for the last, whose messages are no longer in the log; return how many."""
        removed = 0
        while len(self._log.segments) > 1:
            last_unit = self._log.segments[0].stop // UNIT.size - 1
            if self.unit(last_unit)[0] >= log_start:
                break
            self._log.remove_first()
            removed += 1
        return removed

    def remove(self) -> None:
        """Remove all of it from the disk."""
        self._log.remove_all()
        self._tail.clear()
        self.end = self._written = self.next_offset = 0

    def close(self) -> None:
        self._log.close()
