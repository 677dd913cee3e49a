"""Every call that changes a file or waits for the disk.

Tests and simulations replace `Disk` to make calls fail, hang or get lost. Reads use the file system directly.
"""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from skyroute.files.errors import DiskFullError, FileWriteError, NoDescriptorError

_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_OPEN: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC

LARGE_BYTES: Final = 16 << 20
"""From this size on, the space of a removed file is freed by a thread: a gigabyte takes 0.2 s."""
FREEING: Final = ThreadPoolExecutor(1, "skyroute-free-space")


def write_error(error: OSError, file: Path | int) -> FileWriteError:
    """Return the exception for a system error, with the path of the file or descriptor."""
    kind = FileWriteError
    if error.errno in _DISK_FULL:
        kind = DiskFullError
    elif error.errno in _NO_DESCRIPTOR:
        kind = NoDescriptorError
    path = _path_of(file) if isinstance(file, int) else file
    return kind(f"cannot write {path}: {error.strerror}")


def _path_of(descriptor: int) -> str:
    for links in ("/proc/self/fd", "/dev/fd"):
        with suppress(OSError):
            return str(Path(links, str(descriptor)).readlink())
    return f"a file (descriptor {descriptor})"


class Disk:
    """The file system of this machine. Every method raises FileWriteError if it fails."""

    def open(self, path: Path, size: int) -> int:
        """Open a file for reading and writing; create it and its folders if missing, extend it if shorter.

        Extending allocates no disk space.
        """
        try:
            try:
                descriptor = os.open(path, _OPEN, 0o644)
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(path, _OPEN, 0o644)
        except OSError as error:
            raise write_error(error, path) from error
        try:
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
        except OSError as error:
            os.close(descriptor)
            raise write_error(error, path) from error
        return descriptor

    def create(self, path: Path, *, like: Path | None = None) -> int:
        """Create a file that must not exist; with `like`, give it the mode and owner of that file, if it exists."""
        try:
            descriptor = os.open(path, _OPEN | os.O_EXCL, 0o644)
        except OSError as error:
            raise write_error(error, path) from error
        try:
            if like is not None:
                _copy_mode(like, descriptor)
        except OSError as error:
            os.close(descriptor)
            raise write_error(error, path) from error
        return descriptor

    def write(self, descriptor: int, data: bytes | bytearray, at: int) -> None:
        """Write all of `data`; after an error, a part of it may be written."""
        try:
            written = os.pwrite(descriptor, data, at)
            while written < len(data):  # a second call succeeds, or raises the reason why the first one stopped
                written += os.pwrite(descriptor, data[written:], at + written)
        except OSError as error:
            raise write_error(error, descriptor) from error

    def reserve(self, descriptor: int, size: int) -> None:
        """Allocate disk space for the first bytes of a file, so that writes to its mapping cannot fail."""
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            raise write_error(error, descriptor) from error

    def cut(self, descriptor: int, at: int, size: int) -> None:
        """Set the bytes from `at` to `size` to zero and free their disk space; the file then has `size` bytes."""
        try:
            os.ftruncate(descriptor, at)
            os.ftruncate(descriptor, size)
        except OSError as error:
            raise write_error(error, descriptor) from error

    def sync(self, descriptor: int) -> None:
        """Wait until everything written to a file is on disk; after an error, any part of it may be missing."""
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            raise write_error(error, descriptor) from error

    def sync_path(self, path: Path) -> None:
        """As `sync`, by path. Does nothing if the file was removed meanwhile."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            raise write_error(error, path) from error
        try:
            self.sync(descriptor)
        finally:
            os.close(descriptor)

    def sync_folder(self, folder: Path) -> None:
        """Wait until the names in a folder are on disk.

        Ignores all errors but NoDescriptorError: some file systems do not support it.
        """
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _NO_DESCRIPTOR:
                raise write_error(error, folder) from error
            return
        try:
            with suppress(OSError):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_folder(self, folder: Path) -> None:
        """Create a folder and its parents, if missing."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(error, folder) from error

    def remove(self, path: Path) -> None:
        """Remove a file, if it exists."""
        kept = _open_large(path)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise write_error(error, path) from error
        finally:
            if kept is not None:
                FREEING.submit(os.close, kept)

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file; an existing target is replaced."""
        try:
            source.replace(target)
        except OSError as error:
            raise write_error(error, target) from error

    def link(self, source: Path, target: Path) -> bool:
        """Give a file a second name; False if the file system has no hard links."""
        try:
            os.link(source, target)
        except OSError:
            return False
        return True

    def boot_id(self) -> str:
        """Return the id of the machine's current boot; empty if unknown.

        Everything written since this boot can be read back, also if it is not on disk.
        """
        try:
            return _BOOT_ID.read_text("ascii").strip()
        except OSError:
            return ""

    def used_ratio(self, folder: Path) -> float:
        """Return the used part of the disk, from 0 to 1, as Java computes it: without the superuser's reserve."""
        found = os.statvfs(folder)
        used = found.f_blocks - found.f_bfree
        return used / max(used + found.f_bavail, 1)


def _open_large(path: Path) -> int | None:
    """Return a descriptor of a large file: its space is freed when that is closed, and not when its name is removed."""
    try:
        if path.lstat().st_blocks * 512 < LARGE_BYTES:
            return None
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None


def _copy_mode(path: Path, descriptor: int) -> None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    os.fchmod(descriptor, status.st_mode & 0o7777)
    with suppress(PermissionError):
        os.fchown(descriptor, status.st_uid, status.st_gid)
