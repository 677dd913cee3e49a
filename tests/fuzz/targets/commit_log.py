"""Scans of the log: records and damage cover the log in order, and every record found is intact.

Input: the content of a segment of 2,048 bytes; zeros follow. Bytes FF stand for the position of the next record, if
they are where a record has it.
"""

import re
from typing import Final

from skyroute.broker.store.commit_log import CommitLog
from skyroute.broker.store.files.segment import OpenSegments
from skyroute.broker.store.index.keys import KeyReader
from skyroute.broker.store.recovery.damage import DamagedRange
from skyroute.broker.store.recovery.log_scan import BAD_HEAD, ZEROS, scan_log
from skyroute.message.errors import RecordError
from skyroute.message.record import decode_record
from tests.fuzz.scratch import empty_folder
from tests.support.disks import NoSyncDisk

SEGMENT_BYTES: Final = 2048
POSITION_AT: Final = 28
MAGIC: Final = b"\xda\xa3\x20"


def segment_of(data: bytes) -> bytes:
    """Replace eight bytes FF in each header by its position: a fuzzer hardly finds it."""
    content = bytearray(data[:SEGMENT_BYTES].ljust(SEGMENT_BYTES, b"\0"))
    at = content.find(MAGIC)
    while at >= 4:
        start = at - 4
        if content[start + POSITION_AT : start + POSITION_AT + 8] == b"\xff" * 8:
            content[start + POSITION_AT : start + POSITION_AT + 8] = start.to_bytes(8, "big")
        at = content.find(MAGIC, at + 1)
    return bytes(content)


def is_intact(content: bytes, at: int) -> bool:
    try:
        record = decode_record(content, at, check_crc=True)
    except RecordError:
        return False
    return record.log_position == at and content[at + record.record_bytes - 1] != 0


def check(data: bytes) -> None:
    content = segment_of(data)
    folder = empty_folder()
    (folder / f"{0:020d}").write_bytes(content)
    log = CommitLog(folder, SEGMENT_BYTES, NoSyncDisk(), OpenSegments(8))
    log.load()
    reached = 0
    records: list[int] = []
    stops: list[int] = []
    last: object = None
    for found in scan_log(log, 0):
        last = found
        if isinstance(found, DamagedRange):
            assert found.position == reached
            assert found.size > 0
            reached = found.end
            continue
        position, size, topic, _, offset, _, stored_at_ms, raw_properties = found
        assert position == reached
        record = decode_record(content, position, check_crc=True)
        assert (record.record_bytes, record.topic, record.queue_offset) == (size, topic, offset)
        assert (record.stored_at_ms, record.raw_properties) == (stored_at_ms, raw_properties)
        records.append(position)
        reached = position + size
        stops.append(reached)
    if isinstance(last, DamagedRange) and last.reason in (BAD_HEAD, ZEROS):
        starts = (found.start() - 4 for found in re.finditer(re.escape(MAGIC), content))
        assert not any(is_intact(content, at) for at in starts if last.position <= at < last.end)
    log.finish_at(reached, is_flushed=True)
    for position, stop in zip(records, stops, strict=True):
        assert log.record_at(position) is not None
        assert isinstance(log.stored_at_ms(position), int | None)
        assert KeyReader(log.find).read(position, stop, []) is not None
    log.close()
