"""Atomic replacement of a small file: after a crash at any moment, the old content or the new one is there."""

import os
import threading
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from skyroute.files.disk import Disk
from skyroute.files.errors import FileWriteError

_DISK: Final = Disk()


def backup_path(path: Path) -> Path:
    """Return where `replace_file` keeps the previous content: NAME.bak, as Java does."""
    return path.with_name(f"{path.name}.bak")


def damaged_path(path: Path) -> Path:
    """Return the name under which a damaged file is kept: NAME.damaged-TIME, with the UTC time of its last change.

    Raises:
        OSError: there is no such file.
    """
    changed_at = datetime.fromtimestamp(path.stat().st_mtime_ns // 1_000_000 / 1000, UTC)
    return path.with_name(f"{path.name}.damaged-{changed_at:%Y%m%d%H%M%S}{changed_at.microsecond // 1000:03d}")


def replace_file(
    path: Path,
    content: bytes | Collection[bytes],
    *,
    keep_backup: bool = True,
    is_shared: bool = False,
    disk: Disk = _DISK,
) -> None:
    """Replace the content of a file, given whole or in pieces; it is on disk before this returns.

    Creates missing folders. A symbolic link stays; its target is replaced. Mode and owner of the file stay.

    Args:
        path: The file.
        content: The new content.
        keep_backup: Whether the previous content becomes the backup.
        is_shared: Whether other processes or threads may replace the file at the same time; the last one wins.
        disk: The disk to write to.

    Raises:
        FileWriteError: the file is as it was.
    """
    target = Path(os.path.realpath(path))
    mark = f".{os.getpid()}-{threading.get_ident()}.tmp" if is_shared else ".tmp"
    staged = target.with_name(f"{target.name}{mark}")
    pieces = (content,) if isinstance(content, bytes) else content
    folder_exists = target.parent.is_dir()
    try:
        disk.make_folder(target.parent)
        try:
            _write(staged, pieces, like=target, disk=disk)
            if keep_backup and target.exists():
                _keep_backup(target, mark, disk)
            disk.replace(staged, target)
        except FileWriteError:
            _remove_quietly(staged, disk)
            raise
    except FileWriteError as error:
        raise _with_path(error, path) from error
    disk.sync_folder(target.parent)
    if not folder_exists:
        disk.sync_folder(target.parent.parent)


def ensure_replaceable(path: Path) -> None:
    """Check that `replace_file` can replace this file, by creating and removing a file beside it.

    Raises:
        FileWriteError: it cannot.
    """
    target = Path(os.path.realpath(path))
    probe = target.with_name(f"{target.name}.tmp")
    if target.is_dir():
        raise FileWriteError(f"cannot write {path}: it is a directory")
    try:
        _DISK.make_folder(target.parent)
        _DISK.remove(probe)
        os.close(_DISK.create(probe))
        _DISK.remove(probe)
    except FileWriteError as error:
        raise _with_path(error, path) from error


def _write(path: Path, pieces: Collection[bytes], *, like: Path, disk: Disk) -> None:
    # A crash may have left a file with this name. Exclusive creation never writes through a link.
    disk.remove(path)
    descriptor = disk.create(path, like=like)
    try:
        at = 0
        for piece in pieces:
            disk.write(descriptor, piece, at)
            at += len(piece)
        disk.sync(descriptor)
    finally:
        os.close(descriptor)


def _keep_backup(path: Path, mark: str, disk: Disk) -> None:
    # A second name costs no copy, and renaming it makes the backup appear whole.
    staged = path.with_name(f"{path.name}.bak{mark}")
    try:
        disk.remove(staged)
        if not disk.link(path, staged):
            _write(staged, (_read(path),), like=path, disk=disk)
        disk.replace(staged, backup_path(path))
    except FileWriteError:
        _remove_quietly(staged, disk)
        raise
    # The rename does nothing if the backup is the same file already, as after an error just behind this.
    _remove_quietly(staged, disk)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileWriteError(f"cannot read {path} to keep a backup: {error.strerror}") from error


def _with_path(error: FileWriteError, path: Path) -> FileWriteError:
    """Return the error with the path of the file in place of that of a staged file or folder."""
    cause = error.__cause__
    return type(error)(f"cannot write {path}: {cause.strerror if isinstance(cause, OSError) else error}")


def _remove_quietly(path: Path, disk: Disk) -> None:
    """Remove a staged file after an error, which matters more than a failure to remove."""
    with suppress(FileWriteError):
        disk.remove(path)
