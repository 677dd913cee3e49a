"""The file that says how far timers have come, which Apache's brokers read and write as well.

It holds seven numbers: up to which time all that was due has been delivered; the end of the timer log; from which
offset of the timer topic on a broker without a timer log has to read; up to which offset the topic was read; and three
of an edition. In Apache's files the two offsets are the same, because there the timer log and the timer wheel hold what
was read and is not due. We have neither, so the first of the two is that of the oldest message that still waits.

Behind these, where Apache's brokers leave the page as it is, we keep what they have no place for: up to which message
of the time at hand all is delivered. It counts as long as the numbers in front are still ours.
"""

import os
from pathlib import Path
from struct import Struct
from typing import Final

import msgspec

from skyroute.broker.store.disk import Disk

PAGE_BYTES: Final = 4096
"""Apache's brokers map so much of it."""

_SHARED: Final = Struct(">7q")
_OWN: Final = Struct(">8s4q")
_OWN_MARK: Final = b"skyroute"


class TimerProgress(msgspec.Struct, frozen=True, gc=False):
    """How far timers have come: of the messages before `read_end`, those of slots before `slot_ms` are delivered.

    Of the slot at `slot_ms`, those before the offset `slot_offset` are delivered too.
    """

    slot_ms: int = 0
    slot_offset: int = 0
    read_end: int = 0
    oldest: int = 0
    """The offset of the oldest message that still waits; `read_end` where none does."""
    is_ours: bool = True
    """We wrote it, and Apache's broker did not run since."""


class TimerCheck:
    """The file. Reading and writing wait for the disk."""

    def __init__(self, path: Path, precision_ms: int, disk: Disk | None = None) -> None:
        self.path = path
        self._precision_ms = precision_ms
        self._disk = disk or Disk()
        self._timer_log_end = 0
        self._state_version = 0
        self._counter = 0

    def __repr__(self) -> str:
        return f"<TimerCheck {self.path}>"

    def load(self) -> TimerProgress:
        """Return what the file says; the very beginning where there is none."""
        try:
            page = self.path.read_bytes()
        except FileNotFoundError:
            return TimerProgress()
        page = page.ljust(PAGE_BYTES, b"\0")
        slot_ms, self._timer_log_end, oldest, read_end, self._state_version, _, self._counter = _SHARED.unpack_from(
            page
        )
        mark, same_slot_ms, same_end, own_slot_ms, slot_offset = _OWN.unpack_from(page, _SHARED.size)
        if (mark, same_slot_ms, same_end) == (_OWN_MARK, slot_ms, read_end):
            return TimerProgress(own_slot_ms, slot_offset, read_end, oldest)
        return TimerProgress(slot_ms, 0, read_end, read_end, is_ours=False)

    def save(self, progress: TimerProgress, now_ms: int) -> None:
        """Write it, on the disk before this returns.

        Raises:
            StoreWriteError, StoreFullError: the disk refuses.
        """
        self._counter += 1
        # Apache's wheel knows times that are multiples of its precision, and would find nothing at any other.
        slot_ms = progress.slot_ms // self._precision_ms * self._precision_ms
        end = progress.read_end
        shared = _SHARED.pack(
            slot_ms, self._timer_log_end, progress.oldest, end, self._state_version, now_ms, self._counter
        )
        own = _OWN.pack(_OWN_MARK, slot_ms, end, progress.slot_ms, progress.slot_offset)
        descriptor = self._disk.open(self.path, PAGE_BYTES)
        try:
            self._disk.write(descriptor, shared + own, 0)  # less than a sector: all of it, or nothing
            self._disk.sync(descriptor)
        finally:
            os.close(descriptor)
