"""The log of the changes since the state file was replaced: a change costs one `fdatasync` and no new disk space.

The file has its full size from the start, and every block of it was written before, so that a write changes no metadata
of the file system. A record is written twice, at the same position of both halves of the file: if one copy is damaged,
the other is read. A record without a whole copy is the end of the log; it was never answered.
"""

import os
from pathlib import Path
from struct import Struct
from typing import Final
from zlib import crc32

from skyroute.controller.errors import DamagedStateError
from skyroute.files.disk import Disk
from skyroute.files.errors import FileWriteError

HALF_BYTES: Final = 512 * 1024
"""Size of the records; the file has twice this size. A change of a group of three brokers takes some 350 bytes."""

_MARK: Final = b"SKGROUP1"
_HEAD: Final = Struct(">8sQI")
"""The mark, the generation and the length of the content."""
_SUM: Final = Struct(">I")
"""CRC-32 of the head and the content; stands between them."""
_OVERHEAD: Final = _HEAD.size + _SUM.size

CONTENT_BYTES_MAX: Final = HALF_BYTES - _OVERHEAD
"""Maximum size of the content of one record."""


class ChangeLog:
    """An open log. Only records of one generation are valid: a new one starts over at the begin of the file."""

    def __init__(self, path: Path, generation: int, disk: Disk) -> None:
        """Open a file that `prepare_log` made.

        Raises:
            FileWriteError: it cannot be opened.
        """
        self._generation = generation
        self._disk = disk
        self._descriptor = disk.open(path, 2 * HALF_BYTES)
        self._end = 0

    def append(self, content: bytes) -> bool:
        """Write a record; it is on disk before this returns. False: there is no space left.

        Raises:
            FileWriteError: it may be stored or not; nothing more can be appended.
        """
        head = _HEAD.pack(_MARK, self._generation, len(content))
        record = b"".join((head, _SUM.pack(crc32(content, crc32(head))), content))
        if self._end + len(record) > HALF_BYTES:
            return False
        for half in (0, HALF_BYTES):
            self._disk.write(self._descriptor, record, half + self._end)
        self._disk.sync(self._descriptor)
        self._end += len(record)
        return True

    def close(self) -> None:
        os.close(self._descriptor)


def prepare_log(path: Path, disk: Disk, *, like: Path) -> None:
    """Create the file unless it is there in full size; `like` gives it mode and owner.

    Raises:
        FileWriteError: it cannot be created.
    """
    if path.is_file() and path.stat().st_size == 2 * HALF_BYTES:
        return
    staged = path.with_name(f"{path.name}.tmp")
    disk.remove(staged)
    descriptor = disk.create(staged, like=like)
    try:
        disk.write(descriptor, bytes(2 * HALF_BYTES), 0)
        disk.sync(descriptor)
    except FileWriteError:
        disk.remove(staged)
        raise
    finally:
        os.close(descriptor)
    disk.replace(staged, path)
    disk.sync_folder(path.parent)


def read_log(path: Path, generation: int) -> list[bytes]:
    """Return the contents of the records of one generation, in order.

    Raises:
        DamagedStateError: the file is missing or damaged.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DamagedStateError(f"cannot read {path}, the changes of the last minutes: {error.strerror}") from error
    if len(content) != 2 * HALF_BYTES:
        raise DamagedStateError(f"{path} is damaged: it has {len(content)} bytes (expected {2 * HALF_BYTES})")
    halves = content[:HALF_BYTES], content[HALF_BYTES:]
    found: list[bytes] = []
    at = 0
    while True:
        copies = [each for half in halves if (each := _record(half, at, generation)) is not None]
        if not copies:
            break
        found.append(copies[0])
        at += _OVERHEAD + len(copies[0])
    if any(_has_record(half, at, generation) for half in halves):
        raise DamagedStateError(f"{path} is damaged at {at}: neither copy of a change can be read")
    return found


def is_used(path: Path) -> bool:
    """Return whether anything was appended to a log since it was created."""
    try:
        return path.read_bytes().strip(b"\0") != b""
    except OSError:
        return False


def _record(half: bytes, at: int, generation: int) -> bytes | None:
    """Return the content of the record at a position; None if there is no valid one."""
    begin = at + _OVERHEAD
    if begin > len(half):
        return None
    mark, found_generation, length = _HEAD.unpack_from(half, at)
    if mark != _MARK or found_generation != generation or begin + length > len(half):
        return None
    content = half[begin : begin + length]
    (expected,) = _SUM.unpack_from(half, at + _HEAD.size)
    return content if crc32(content, crc32(half[at : at + _HEAD.size])) == expected else None


def _has_record(half: bytes, at: int, generation: int) -> bool:
    """Return whether there is a valid record anywhere from a position on."""
    begin = _MARK + generation.to_bytes(8)
    while (at := half.find(begin, at)) >= 0:
        if _record(half, at, generation) is not None:
            return True
        at += 1
    return False
