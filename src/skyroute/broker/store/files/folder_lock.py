"""The locks of a store folder: one for the broker, the same that Java takes, and one for its index process."""

import fcntl
import os
from pathlib import Path
from struct import Struct
from typing import Final

from skyroute.broker.store.errors import StoreLockedError
from skyroute.files.disk import Disk
from skyroute.files.errors import StorageError

LOCK_NAME: Final = "lock"

_LOCK: Final = Struct("@hhqqi4x")
"""C's `struct flock`."""
_BROKER_BYTE, _INDEX_BYTE = 0, 1
"""The bytes of the lock file that the two locks cover."""


def lock_folder(folder: Path, disk: Disk) -> int:
    """Take the broker's lock; return a descriptor, whose closing releases it.

    Waits for the index process of the previous owner, which ends soon after its broker.

    Raises:
        StoreLockedError: another broker has the folder open.
        FileWriteError: the lock file cannot be written.
    """
    descriptor = disk.open(folder / LOCK_NAME, 4)
    try:
        _lock_byte(descriptor, _BROKER_BYTE)
        _lock_byte(descriptor, _INDEX_BYTE, wait=True)
        _unlock_byte(descriptor, _INDEX_BYTE)
        disk.write(descriptor, b"lock", 0)
    except OSError as error:
        os.close(descriptor)
        raise StoreLockedError(f"{folder} is in use by another broker; stop it first") from error
    except StorageError:
        os.close(descriptor)
        raise
    return descriptor


def lock_index(folder: Path, disk: Disk) -> int | None:
    """Take the lock of an index process; None if another one holds it."""
    descriptor = disk.open(folder / LOCK_NAME, 4)
    try:
        _lock_byte(descriptor, _INDEX_BYTE)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def is_locked(folder: Path) -> bool:
    """Return whether a broker, Apache's or ours, or an index process has a folder open."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if hasattr(fcntl, "F_OFD_GETLK"):
            wanted = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _BROKER_BYTE, 2, 0)
            return bool(_LOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, wanted))[0] != fcntl.F_UNLCK)
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 2)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def _lock_byte(descriptor: int, at: int, *, wait: bool = False) -> None:
    if hasattr(fcntl, "F_OFD_SETLK"):
        # Held by the open file, not by the process: two stores in one process exclude each other as well.
        command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
        fcntl.fcntl(descriptor, command, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0))
    else:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, at)


def _unlock_byte(descriptor: int, at: int) -> None:
    if hasattr(fcntl, "F_OFD_SETLK"):
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, at, 1, 0))
    else:
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, at)
