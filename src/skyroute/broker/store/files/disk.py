"""The store's way to the file system: every call that can fail on a bad day, in one place.

Tests put a disk in its place that fails when it is told to.
"""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final

from skyroute.broker.store.errors import StoreError, StoreFullError, StoreLockedError, StoreWriteError

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_OPEN: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_LOCK: Final = Struct("@hhqqi4x")
_STORE_BYTE, _INDEX_BYTE = 0, 1
"""Which byte of the lock's file stands for what."""


def failure(error: OSError, file: Path | int) -> StoreError:
    """Return the store's exception for a system error, with the path of the file or descriptor."""
    kind = StoreFullError if error.errno in _NO_ROOM else StoreWriteError
    path = _path_of(file) if isinstance(file, int) else file
    return kind(f"cannot write {path}: {error.strerror}")


def _path_of(descriptor: int) -> str:
    for links in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return str(Path(links, str(descriptor)).readlink())
    return f"a file (descriptor {descriptor})"


class Disk:
    """The machine's own."""

    def open(self, path: Path, size: int) -> int:
        """Open a file of this size; one that is missing or short is made so long, without taking room on the disk.

        Raises:
            StoreWriteError: it cannot be opened.
        """
        try:
            try:
                descriptor = os.open(path, _OPEN, 0o644)
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(path, _OPEN, 0o644)
        except OSError as error:
            raise failure(error, path) from error
        try:
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
        except OSError as error:
            os.close(descriptor)
            raise failure(error, path) from error
        return descriptor

    def write(self, descriptor: int, data: bytes | bytearray, at: int) -> None:
        """Write all of it.

        Raises:
            StoreWriteError, StoreFullError: some of it may be written.
        """
        try:
            written = os.pwrite(descriptor, data, at)
            while written < len(data):  # what is left meets the reason why it stopped, or goes through
                written += os.pwrite(descriptor, data[written:], at + written)
        except OSError as error:
            raise failure(error, descriptor) from error

    def reserve(self, descriptor: int, size: int) -> None:
        """Take room for the first bytes of a file, so that writing into its mapping cannot fail.

        Raises:
            StoreWriteError, StoreFullError: there is none.
        """
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            raise failure(error, descriptor) from error

    def cut(self, descriptor: int, at: int, size: int) -> None:
        """Make everything from here to the end zero, whatever it held, and give its room back.

        Raises:
            StoreWriteError: it cannot be cut.
        """
        try:
            os.ftruncate(descriptor, at)
            os.ftruncate(descriptor, size)
        except OSError as error:
            raise failure(error, descriptor) from error

    def sync(self, descriptor: int) -> None:
        """Wait until what was written is on the disk.

        Raises:
            StoreWriteError, StoreFullError: nobody knows what is.
        """
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            raise failure(error, descriptor) from error

    def sync_path(self, path: Path) -> None:
        """Wait until what was written to a file is on the disk; nothing if it was removed meanwhile.

        Raises:
            StoreWriteError, StoreFullError: nobody knows what is.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            raise failure(error, path) from error
        try:
            self.sync(descriptor)
        finally:
            os.close(descriptor)

    def sync_folder(self, folder: Path) -> None:
        """Wait until the names in a folder are on the disk. A file system that cannot do it is no failure."""
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def make_folder(self, folder: Path) -> None:
        """Create a folder, and those above it, if it is not there.

        Raises:
            StoreWriteError, StoreFullError: it is not there.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise failure(error, folder) from error

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there.

        Raises:
            StoreWriteError: it stays.
        """
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise failure(error, path) from error

    def replace(self, source: Path, target: Path) -> None:
        """Give a file another's name, whose content is gone then.

        Raises:
            StoreWriteError: both are as they were.
        """
        try:
            source.replace(target)
        except OSError as error:
            raise failure(error, target) from error

    def lock(self, path: Path) -> int:
        """Take the lock that Java takes too: the first byte of this file. Closing the descriptor gives it back.

        An index process of an earlier owner, which ends with it or soon after, is waited for.

        Raises:
            StoreLockedError: somebody has it.
        """
        descriptor = self.open(path, 4)
        try:
            _lock_byte(descriptor, _STORE_BYTE)
            _lock_byte(descriptor, _INDEX_BYTE, wait=True)
            _unlock_byte(descriptor, _INDEX_BYTE)
            self.write(descriptor, b"lock", 0)
        except OSError as error:
            os.close(descriptor)
            raise StoreLockedError(f"{path.parent} is in use by another broker; stop it first") from error
        except StoreError:
            os.close(descriptor)
            raise
        return descriptor

    def lock_index(self, path: Path) -> int | None:
        """Take the lock that says that an index process is at work, or return None where it is taken."""
        descriptor = self.open(path, 4)
        try:
            _lock_byte(descriptor, _INDEX_BYTE)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor

    def boot_id(self) -> str:
        """Which run of the machine this is; what was written in the same run is in its memory, if not on the disk."""
        try:
            return _BOOT_ID.read_text("ascii").strip()
        except OSError:
            return ""

    def used_ratio(self, folder: Path) -> float:
        """How full the disk is, from 0 to 1, as Java counts it: what only the superuser may use does not count."""
        found = os.statvfs(folder)
        used = found.f_blocks - found.f_bfree
        return used / max(used + found.f_bavail, 1)


def _lock_byte(descriptor: int, at: int, *, wait: bool = False) -> None:
    if hasattr(fcntl, "F_OFD_SETLK"):
        # Held by the open file, not by the process: two stores of one process exclude each other as well.
        command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
        fcntl.fcntl(descriptor, command, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0))
    else:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, at)


def _unlock_byte(descriptor: int, at: int) -> None:
    if hasattr(fcntl, "F_OFD_SETLK"):
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, at, 1, 0))
    else:
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, at)
