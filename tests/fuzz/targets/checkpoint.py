"""The checkpoint: the store and `skyroute store verify` read the same notes from any page.

Input: notes. Each is a byte that names it, a byte that says whether its checksum is right, and its bytes.
"""

from struct import Struct
from typing import Final
from zlib import crc32

from skyroute.broker.store.files.checkpoint import Checkpoint, OnDisk, parse_checkpoint
from tests.fuzz.scratch import empty_folder
from tests.support.disks import NoSyncDisk

PAGE_BYTES: Final = 4096
NOTES: Final = ((2048, 16), (2304, 32), (2560, 32), (2816, 8), (0, 24))
"""Offset and size of each note; the last are the times, which have no checksum."""
CHECKSUM: Final = Struct(">I")


def page_of(data: bytes) -> bytes:
    page = bytearray(PAGE_BYTES)
    at = 0
    while at + 2 <= len(data):
        note_at, size = NOTES[data[at] % len(NOTES)]
        note = data[at + 2 : at + 2 + size].ljust(size, b"\0")
        page[note_at : note_at + size] = note
        if note_at:
            right = crc32(note, crc32(b"skyroute"))
            page[note_at + size : note_at + size + 4] = CHECKSUM.pack(right if data[at + 1] & 1 else right ^ 1)
        at += 2 + size
    return bytes(page)


def check(data: bytes) -> None:
    page = page_of(data)
    path = empty_folder() / "checkpoint"
    path.write_bytes(page if not data or data[0] & 128 else page.rstrip(b"\0"))
    parsed = parse_checkpoint(page)
    opened = Checkpoint(path, NoSyncDisk())
    try:
        assert (opened.log_ms, opened.queues_ms, opened.index_ms) == parsed.times
        assert opened.last_dispatched in (parsed.last_dispatched, (0, 0))
        assert opened.closed_end in (parsed.closed_end, 0)
        assert parsed.closed_end is None or opened.closed_end == parsed.closed_end
        assert isinstance(opened.trusted_ms, int)
        assert opened.unfinished_batch is None or opened.unfinished_batch >= -(1 << 63) - 1
        opened.note_flush(1, 2, 3, OnDisk(4, 5, 6, 7))
        opened.note_dispatched(8, 9)
        opened.note_closed(10)
        assert (opened.on_disk, opened.last_dispatched, opened.closed_end) == (OnDisk(4, 5, 6, 7), (8, 9), 10)
        opened.clear_closed()
        assert opened.closed_end is None
    finally:
        opened.close()
