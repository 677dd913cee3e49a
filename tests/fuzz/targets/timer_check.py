"""The progress of timers: any page is refused or read, and what is read survives saving.

Input: the two copies of the page, 96 bytes each; the first byte says whether the checksum of the second is right.
"""

from struct import Struct
from typing import Final
from zlib import crc32

from skyroute.broker.scheduling.timer_check import PAGE_BYTES, TimerCheck, damage_of
from skyroute.broker.store.errors import StoreDamagedError
from tests.fuzz.scratch import empty_folder
from tests.support.disks import NOW_MS, NoSyncDisk

COPY_BYTES: Final = 96
COPY_AT: Final = 2048
SEAL: Final = Struct(">I")


def page_of(data: bytes) -> bytes:
    how, first, second = data[:1], data[1 : 1 + COPY_BYTES], data[1 + COPY_BYTES : 1 + 2 * COPY_BYTES]
    if how and how[0] & 2:
        second = first
    second = second.ljust(COPY_BYTES, b"\0")
    seal = crc32(second, crc32(b"skyroute")) ^ (how[0] & 1 if how else 1)
    page = bytearray(PAGE_BYTES)
    page[: len(first)] = first
    page[COPY_AT : COPY_AT + COPY_BYTES + SEAL.size] = second + SEAL.pack(seal)
    return bytes(page)


def check(data: bytes) -> None:
    page = page_of(data)
    path = empty_folder() / "timercheck"
    path.write_bytes(page)
    timer_check = TimerCheck(path, 1000, NoSyncDisk())
    try:
        progress = timer_check.load()
    except StoreDamagedError:
        assert damage_of(page)
        return
    assert 0 <= progress.oldest <= progress.read_end
    assert min(progress.slot_ms, progress.slot_offset) >= 0
    timer_check.save(progress, NOW_MS)
    assert not damage_of(path.read_bytes())
    again = TimerCheck(path, 1000, NoSyncDisk()).load()
    assert (again.slot_ms, again.slot_offset) == (progress.slot_ms, progress.slot_offset)
    assert (again.oldest, again.read_end) == (progress.oldest, progress.read_end)
