"""Files of a store, opened to be read and never changed."""

import fcntl
import os
from pathlib import Path
from struct import Struct
from typing import Final, NoReturn

from skyroute.broker.store.errors import StoreReadError, StoreWriteError
from skyroute.broker.store.files.disk import Disk
from skyroute.broker.store.files.segment import OpenSegments, Segment

_LOCK: Final = Struct("@hhqqi4x")


class ReadOnlyDisk(Disk):
    """Opens files that exist, for reading. Every other call is refused."""

    def open(self, path: Path, size: int) -> int:
        """Open a file; it is never made longer.

        Raises:
            StoreReadError: it cannot be opened.
        """
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StoreReadError(f"cannot read {path}: {error.strerror}") from error

    def write(self, descriptor: int, data: bytes | bytearray, at: int) -> NoReturn:
        raise StoreWriteError("the store is open for reading only")

    def reserve(self, descriptor: int, size: int) -> NoReturn:
        raise StoreWriteError("the store is open for reading only")

    def cut(self, descriptor: int, at: int, size: int) -> NoReturn:
        raise StoreWriteError("the store is open for reading only")

    def make_folder(self, folder: Path) -> NoReturn:
        raise StoreWriteError("the store is open for reading only")

    def remove(self, path: Path) -> NoReturn:
        raise StoreWriteError("the store is open for reading only")

    def replace(self, source: Path, target: Path) -> NoReturn:
        raise StoreWriteError("the store is open for reading only")


def segments_in(folder: Path, opened: OpenSegments) -> list[Segment]:
    """Return the files of a folder that are named by a position, in order, each with the size that it has.

    Files without any byte are left out: they are created first and filled then.

    Raises:
        OSError: the folder cannot be read.
    """
    disk = ReadOnlyDisk()
    if not folder.is_dir():
        return []
    sizes = {path: path.stat().st_size for path in folder.iterdir() if path.name.isdecimal()}
    paths = sorted((path for path, size in sizes.items() if size), key=lambda path: int(path.name))
    return [Segment(path, int(path.name), sizes[path], disk, opened) for path in paths]


def is_in_use(folder: Path) -> bool:
    """Return whether a broker, Apache's or ours, has a store open."""
    try:
        descriptor = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if hasattr(fcntl, "F_OFD_GETLK"):
            wanted = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 2, 0)  # the store's byte, and the index process's
            return bool(_LOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, wanted))[0] != fcntl.F_UNLCK)
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 2)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)
