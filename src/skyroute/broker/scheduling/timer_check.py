"""The file `timercheck` with the progress of timers, which Apache's brokers read and write as well.

It has seven numbers: the time up to which all due messages are delivered; the end of the timer log; the offset of the
timer topic from which a broker without a timer log reads; the offset up to which the topic was read; and a data version
of three numbers. In Apache's files both offsets are equal, because the timer log and timer wheel have the messages in
between. This broker has neither, so the first offset is that of the oldest message that is not due.

Behind these, in bytes that Apache's brokers do not change, is the offset up to which the current slot is delivered. It
is used as long as the seven numbers are those that this broker wrote.

The second half of the page has a copy with a checksum. It is used if the seven numbers are damaged: if they differ from
the copy, and their data version is not newer.
"""

import logging
import os
from pathlib import Path
from struct import Struct
from typing import Final
from zlib import crc32

import msgspec

from skyroute.broker.store.errors import StoreDamagedError
from skyroute.broker.tables.table_format import CLAIMED_CHANGES
from skyroute.files.disk import Disk
from skyroute.routing.registration import DataVersion

log = logging.getLogger(__name__)

PAGE_BYTES: Final = 4096
"""Size that Apache's brokers map."""

NUMBER_MAX: Final = 1 << 62
"""Maximum of each number. Larger ones are damaged, and the next one may not fit its field."""

_SHARED: Final = Struct(">7q")
_OWN: Final = Struct(">8s4q")
_OWN_MARK: Final = b"skyroute"
_COPY_BYTES: Final = _SHARED.size + _OWN.size
_COPY_AT: Final = 2048
_SEAL: Final = Struct(">I")
_COUNTER: Final = 6


class TimerProgress(msgspec.Struct, frozen=True, gc=False):
    """Progress of timers: of the messages before `read_end`, those of slots before `slot_ms` are delivered.

    In the slot at `slot_ms`, messages before `slot_offset` are delivered too.
    """

    slot_ms: int = 0
    slot_offset: int = 0
    read_end: int = 0
    oldest: int = 0
    """Offset of the oldest message that is not delivered; `read_end` if all are."""
    is_ours: bool = True
    """This broker wrote it, and Apache's broker has not run since."""


class TimerCheck:
    """The file. Reading and writing block."""

    def __init__(self, path: Path, precision_ms: int, disk: Disk | None = None) -> None:
        self.path = path
        self._precision_ms = precision_ms
        self._disk = disk or Disk()
        self._timer_log_end = 0
        self._state_version = 0
        self._counter = 0
        self.claims = False
        """The next save counts as newer than any of a missing master."""
        self._shared = bytes(_SHARED.size)
        self._own = bytes(_OWN.size)

    @property
    def check_point(self) -> bytes:
        """The seven numbers, as other members of the group ask for them; behind them, this broker's own."""
        return self._shared + self._own

    def advanced(self, slot_ms: int) -> bytes:
        """Return the check point with a later slot, before which nothing is left to deliver."""
        numbers, progress = _read(self.check_point)
        slot_ms = slot_ms // self._precision_ms * self._precision_ms
        if slot_ms <= numbers[0]:
            return self.check_point
        progress = msgspec.structs.replace(progress, slot_ms=slot_ms, slot_offset=0)
        is_written = any(self._own) and progress.is_ours
        return _SHARED.pack(slot_ms, *numbers[1:]) + (_own_part(progress, slot_ms) if is_written else bytes(_OWN.size))

    @property
    def version(self) -> DataVersion:
        """Data version of the seven numbers."""
        return version_of(self._shared)

    def __repr__(self) -> str:
        return f"<TimerCheck {self.path}>"

    def load(self) -> TimerProgress:
        """Return the progress in the file; the initial progress if the file is missing or was never written.

        Raises:
            StoreDamagedError: the numbers are invalid, and so is their copy.
        """
        try:
            page = self.path.read_bytes()
        except FileNotFoundError:
            return TimerProgress()
        numbers, progress, copy = read_page(page)
        damage = _find_damage(numbers, progress, copy)
        if damage and copy is None:
            raise StoreDamagedError(
                f"{self.path} is damaged: {damage}. Restore a copy of it, or remove it to deliver again every message "
                "of the timer topic that is still in the log"
            )
        if damage and copy is not None:
            log.warning("timer progress damaged, its copy is used file=%s reason=%s", self.path, damage)
            numbers, progress = copy
        _, self._timer_log_end, _, _, self._state_version, _, self._counter = numbers
        self._shared = _SHARED.pack(*numbers)
        self._own = _own_part(progress, numbers[0]) if progress.is_ours else bytes(_OWN.size)
        return progress

    def take_over(self, check_point: bytes) -> None:
        """Write the numbers of another member of the group, for a later `load`.

        Raises:
            FileWriteError: the write failed.
            StoreDamagedError: they are invalid.
        """
        check_point = check_point[:_COPY_BYTES].ljust(_COPY_BYTES, b"\0")
        if check_point == self.check_point:
            return
        numbers, progress = _read(check_point)
        if damage := _find_damage(numbers, progress, None):
            raise StoreDamagedError(f"the master's timer progress is invalid: {damage}")
        self._write(check_point)
        self._shared, self._own = check_point[: _SHARED.size], check_point[_SHARED.size :]

    def save(self, progress: TimerProgress, now_ms: int) -> None:
        """Write the progress and flush it.

        Raises:
            FileWriteError: the write failed.
        """
        self._counter = min(self._counter + (CLAIMED_CHANGES if self.claims else 1), NUMBER_MAX)
        self.claims = False
        # Apache's timer wheel only has slots at multiples of its precision.
        slot_ms = progress.slot_ms // self._precision_ms * self._precision_ms
        end = progress.read_end
        shared = _SHARED.pack(
            slot_ms, self._timer_log_end, progress.oldest, end, self._state_version, now_ms, self._counter
        )
        own = _own_part(progress, slot_ms)
        self._write(shared + own)
        self._shared, self._own = shared, own

    def _write(self, copy: bytes) -> None:
        descriptor = self._disk.open(self.path, PAGE_BYTES)
        try:
            self._disk.write(descriptor, copy, 0)  # less than a sector: all of it, or nothing
            self._disk.write(descriptor, copy + _SEAL.pack(_seal(copy)), _COPY_AT)
            self._disk.sync(descriptor)
        finally:
            os.close(descriptor)


def version_of(check_point: bytes) -> DataVersion:
    """Return the data version in the seven numbers."""
    *_, state_version, timestamp_ms, counter = _SHARED.unpack_from(check_point)
    return DataVersion(state_version, timestamp_ms, counter)


def _own_part(progress: TimerProgress, slot_ms: int) -> bytes:
    return _OWN.pack(_OWN_MARK, slot_ms, progress.read_end, progress.slot_ms, progress.slot_offset)


Page = tuple[tuple[int, ...], TimerProgress]
"""The seven numbers, and the progress that they and this broker's own numbers describe."""


def read_page(page: bytes) -> tuple[tuple[int, ...], TimerProgress, Page | None]:
    """Return the numbers, their progress, and the copy of both if it is intact."""
    page = page.ljust(PAGE_BYTES, b"\0")
    raw_copy = page[_COPY_AT : _COPY_AT + _COPY_BYTES]
    (seal,) = _SEAL.unpack_from(page, _COPY_AT + _COPY_BYTES)
    copy = _read(raw_copy) if any(raw_copy) and seal == _seal(raw_copy) else None
    if copy is not None and _find_damage(*copy, None):
        copy = None
    return *_read(page), copy


def damage_of(page: bytes) -> str:
    """Return why the file is damaged; an empty text if it is intact or was never written."""
    return _find_damage(*read_page(page))


def _read(raw: bytes) -> Page:
    numbers: tuple[int, ...] = _SHARED.unpack_from(raw)
    slot_ms, _, oldest, read_end, *_ = numbers
    mark, same_slot_ms, same_end, own_slot_ms, slot_offset = _OWN.unpack_from(raw, _SHARED.size)
    if (mark, same_slot_ms, same_end) == (_OWN_MARK, slot_ms, read_end):
        return numbers, TimerProgress(own_slot_ms, slot_offset, read_end, oldest)
    return numbers, TimerProgress(slot_ms, 0, read_end, read_end, is_ours=False)


def _find_damage(numbers: tuple[int, ...], progress: TimerProgress, copy: Page | None) -> str:
    """Return why the numbers are damaged; an empty text if they are intact."""
    if min(numbers) < 0:
        return f"a number is negative: {min(numbers)}"
    largest = max(*numbers, progress.slot_ms, progress.slot_offset)
    if largest > NUMBER_MAX:
        return f"a number is too large: {largest}"
    if not 0 <= progress.oldest <= progress.read_end or min(progress.slot_ms, progress.slot_offset) < 0:
        return f"offsets do not fit: oldest {progress.oldest}, read up to {progress.read_end}"
    if copy is not None and numbers[_COUNTER] <= copy[0][_COUNTER] and (numbers, progress) != copy:
        return f"data version {numbers[_COUNTER]} differs from its copy"
    return ""


def _seal(raw: bytes) -> int:
    return crc32(raw, crc32(_OWN_MARK))
