"""Scans the log and skips damage.

A record with an intact header and a damaged body is skipped alone. So is one with a damaged size, magic or single
length: the other fields give the start of the next record. After any other damage, the scan searches for the next
magic. A record has its own position, so other bytes rarely pass for one.
"""

import struct
from collections.abc import Generator
from struct import Struct
from typing import Final, NamedTuple, Protocol

from skyroute.broker.store.commit_log import ScannedRecord, ScannedTuple, is_torn, scan_segment
from skyroute.broker.store.files.segment import Segment
from skyroute.broker.store.files.sparse import data_chunks, has_data, last_data
from skyroute.broker.store.recovery.damage import DamagedRange
from skyroute.message.crc import crc32
from skyroute.message.layout import MAGIC_SEGMENT_END, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, compile_heads

SEARCH_CRC_BYTES: Final = 16 << 20
SEARCH_CRC_RATIO: Final = 4
"""Bounds of the body bytes whose checksum a search computes: in total, and per byte that it skips.

Without it, content made of many nested headers costs seconds. Past the bound, a record counts as intact if another
one follows it.
"""

TORN: Final = "the end of the record is missing"
BAD_BODY: Final = "the body does not match its checksum"
BAD_HEAD: Final = "no record starts here"
ZEROS: Final = "zeros"
MISSING_FILE: Final = "the file is missing"

_MAGIC_START: Final = b"\xda\xa3\x20"
"""The first bytes of the magic of both versions."""
_MAGIC_AT: Final = 4
_WORDS: Final = Struct(">iI")
_HEADS: Final = compile_heads(
    {"record_bytes", "magic", "body_crc", "queue_id", "queue_offset", "log_position", "sys_flag"}
    | {"stored_at_ms", "body_bytes"}
)
_SYS_FLAG: Final = Struct(">36xi")


class HasSegments(Protocol):
    """Anything with the segments of a log."""

    @property
    def segments(self) -> list[Segment]:
        """The files, in order."""


class _Head(NamedTuple):
    """An unchecked header as read from a file."""

    size: int
    magic: int
    crc: int
    queue_id: int
    queue_offset: int
    log_position: int
    sys_flag: int
    stored_at_ms: int
    body_bytes: int
    body_at: int
    topic_at: int
    topic_stop: int
    fields_stop: int
    """The end of the record by the lengths of its fields; it may be outside the segment."""


def scan_log(log: HasSegments, position: int) -> Generator[ScannedTuple | DamagedRange, None, None]:
    """Yield the intact records from a position to the end of the log, and the damaged ranges between them.

    Missing files and zeros between records are damaged ranges too; zeros behind the last record are not.
    """
    topics: dict[bytes, str] = {}
    segments = [segment for segment in log.segments if segment.stop > position]
    # Apache's broker creates files before it needs them.
    while segments and not any(data_chunks(segments[-1], 0)):
        segments.pop()
    for segment in segments:
        if position < segment.start:
            missing = segment.path.with_name(f"{position:020d}")
            yield DamagedRange(position, segment.start - position, missing, MISSING_FILE)
        yield from _scan_past_damage(segment, max(position, segment.start), topics, is_last=segment is segments[-1])
        segment.release_memory()
        position = segment.stop


def _scan_past_damage(
    segment: Segment, position: int, topics: dict[bytes, str], *, is_last: bool
) -> Generator[ScannedTuple | DamagedRange, None, None]:
    while True:
        position, is_over = yield from scan_segment(segment, position, topics)
        if is_over:
            return
        damaged = inspect(segment, position)
        if damaged is None:
            at = position - segment.start
            following = find_next_record(segment, position)
            resumed = None if following is None else following - segment.start
            if resumed is None:
                end = last_data(segment, at) if is_last else segment.size
                if end > at:
                    reason = BAD_HEAD if has_data(segment, at, end) else ZEROS
                    yield DamagedRange(position, end - at, segment.path, reason)
                return
            reason = BAD_HEAD if has_data(segment, at, resumed) else ZEROS
            damaged = DamagedRange(position, resumed - at, segment.path, reason)
        yield damaged
        position = damaged.end


def find_next_record(segment: Segment, position: int) -> int | None:
    """Return the position of the next record behind a damaged header; None if the segment has no further one."""
    at = position - segment.start
    found = _find_by_sizes(segment, at) or _find_by_magic(segment, at)
    return None if found is None else segment.start + found


def inspect(segment: Segment, position: int) -> DamagedRange | None:
    """Return the damage of a record with an intact header: a bad body, or a missing end.

    None if the header is damaged too.
    """
    record = read_record(segment, position)
    if record is None:
        return None
    reason = TORN if is_cut(segment, record) else BAD_BODY
    return DamagedRange(position, record.size, segment.path, reason, record)


def is_cut(segment: Segment, record: ScannedRecord) -> bool:
    """Return whether the end of a record with an intact header was never written."""
    stop = record.position - segment.start + record.size
    return is_torn(segment.content, stop - 1 if record.raw_properties else stop - 3, stop)


def read_record(segment: Segment, position: int) -> ScannedRecord | None:
    """Return the record that starts here if its header is intact, whatever its body; else None."""
    at = position - segment.start
    head = _read_head(segment, at)
    if head is None or not _adds_up(head, at, segment):
        return None
    content = segment.content
    topic = content[head.topic_at : head.topic_stop].decode("utf-8", "replace")
    raw_properties = content[head.topic_stop + 2 : at + head.size]
    return ScannedRecord(
        *(position, head.size, topic, head.queue_id, head.queue_offset),
        *(head.sys_flag, head.stored_at_ms, raw_properties),
    )


# ---------------------------------------------------------------------------------------------------------------- heads


def _read_head(segment: Segment, at: int) -> _Head | None:
    """Return the header that starts here; None if the segment is too short for one."""
    content = segment.content
    try:
        (sys_flag,) = _SYS_FLAG.unpack_from(content, at)
        layout = _HEADS[sys_flag >> 4 & 3]
        numbers: tuple[int, int, int, int, int, int, int, int, int] = layout.unpack_from(content, at)
    except struct.error:
        return None
    magic, body_bytes, body_at = numbers[1], numbers[8], at + layout.size
    width = 2 if magic == MAGIC_V2 else 1
    topic_at = body_at + body_bytes + width
    # Behind the end of the segment there are no bytes, which count as 0.
    topic_stop = topic_at + int.from_bytes(content[topic_at - width : topic_at])
    fields_stop = topic_stop + 2 + int.from_bytes(content[topic_stop : topic_stop + 2])
    return _Head(*numbers, body_at, topic_at, topic_stop, fields_stop)


def _adds_up(head: _Head, at: int, segment: Segment) -> bool:
    """Return whether the fields of a header agree; body, topic and properties are not checked."""
    return (
        head.magic in (MAGIC_V1, MAGIC_V2)
        and head.log_position == segment.start + at
        and head.body_bytes >= 0
        and head.fields_stop == at + head.size <= segment.size
    )


def _starts_here(segment: Segment, at: int) -> bool:
    """Return whether a record with an intact header, or the end mark of the segment, starts here."""
    if at + _WORDS.size <= segment.size:
        size, magic = _WORDS.unpack_from(segment.content, at)
        if magic == MAGIC_SEGMENT_END:
            return bool(size == segment.size - at)
    head = _read_head(segment, at)
    return head is not None and _adds_up(head, at, segment)


def _find_by_sizes(segment: Segment, at: int) -> int | None:
    """Return the end of a damaged record, by its size or the lengths of its fields, if a record starts there.

    A damaged length may lead to a later record: the nearer end counts.
    """
    head = _read_head(segment, at)
    if head is None:
        return None
    stops = (stop for stop in (at + head.size, head.fields_stop) if at + RECORD_BYTES_MIN <= stop)
    return min((stop for stop in stops if _starts_here(segment, stop)), default=None)


# ------------------------------------------------------------------------------------------------------------ searching


def _find_by_magic(segment: Segment, at: int) -> int | None:
    """Return the start of the next intact record of a segment; None if there is no further one."""
    content = segment.content
    checked_bytes = 0
    for low, high in data_chunks(segment, at + 1 + _MAGIC_AT):
        place = low
        while (found := content.find(_MAGIC_START, place, high + len(_MAGIC_START) - 1)) != -1:
            start = found - _MAGIC_AT
            head = _read_head(segment, start)
            if head is not None and _adds_up(head, start, segment):
                if checked_bytes < SEARCH_CRC_BYTES + SEARCH_CRC_RATIO * (start - at):
                    checked_bytes += head.body_bytes
                    is_intact = crc32(content[head.body_at : head.body_at + head.body_bytes]) & 0x7FFFFFFF == head.crc
                else:
                    is_intact = _starts_here(segment, start + head.size)
                if is_intact:
                    return start
            place = found + len(_MAGIC_START)
        segment.release_memory()
    return None
