"""Replacing a small file whole, so that a crash at any moment leaves either the old one or the new one."""

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from skyroute.settings.errors import FileWriteError


def backup_path(path: Path) -> Path:
    """Where `replace_file` keeps what the file held before: the name Java uses too."""
    return path.with_name(f"{path.name}.bak")


def damaged_path(path: Path) -> Path:
    """Return the name under which a damaged file is kept: NAME.damaged-TIME, with the UTC time of its last change.

    Raises:
        OSError: there is no such file.
    """
    changed_at = datetime.fromtimestamp(path.stat().st_mtime_ns // 1_000_000 / 1000, UTC)
    return path.with_name(f"{path.name}.damaged-{changed_at:%Y%m%d%H%M%S}{changed_at.microsecond // 1000:03d}")


def replace_file(path: Path, content: bytes | Sequence[bytes], *, keep_backup: bool = True) -> None:
    """Put `content`, whole or in pieces, in place of the file, on disk before this returns.

    Directories are created as needed.

    `keep_backup` says whether the file that is being replaced is worth keeping as the backup.

    Raises:
        FileWriteError: nothing was replaced.
    """
    try:
        # Through a symbolic link it is the target that is replaced: the link is the operator's arrangement.
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = target.with_name(f"{target.name}.tmp")
        try:
            _write_durably(staged, content, like=target)
            if keep_backup and target.exists():
                _keep_as_backup(target)
            staged.replace(target)
        finally:
            staged.unlink(missing_ok=True)
    except OSError as error:
        raise FileWriteError(f"cannot write {path}: {error.strerror}") from error
    # From here on the new file is the one that everybody sees, so a file system that cannot do this is not a failure.
    with suppress(OSError):
        _sync_directory(target.parent)


def ensure_replaceable(path: Path) -> None:
    """Prove that `replace_file` can work here, by creating the directory and a file in it, and removing the file.

    Raises:
        FileWriteError: it cannot.
    """
    target = Path(os.path.realpath(path))  # where `replace_file` writes
    probe = target.with_name(f"{target.name}.tmp")
    try:
        if target.is_dir():
            raise IsADirectoryError(0, "it is a directory")
        target.parent.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise FileWriteError(f"cannot write {path}: {error.strerror}") from error


def _write_durably(path: Path, content: bytes | Sequence[bytes], *, like: Path) -> None:
    # What a crash left behind is not a reason to fail, and an exclusive creation never writes through a link.
    path.unlink(missing_ok=True)
    with path.open("xb") as file:
        with suppress(FileNotFoundError):
            replaced = like.stat()
            os.fchmod(file.fileno(), replaced.st_mode & 0o7777)
            with suppress(PermissionError):
                os.fchown(file.fileno(), replaced.st_uid, replaced.st_gid)
        file.writelines((content,) if isinstance(content, bytes) else content)
        file.flush()
        os.fsync(file.fileno())


def _keep_as_backup(path: Path) -> None:
    # A second name for the old file costs no copy, and the rename below makes the backup appear whole.
    second_name = path.with_name(f"{path.name}.bak.tmp")
    second_name.unlink(missing_ok=True)
    try:
        try:
            os.link(path, second_name)
        except OSError:  # a file system without hard links
            _write_durably(second_name, path.read_bytes(), like=path)
        second_name.replace(backup_path(path))
    finally:
        second_name.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
