"""The state folder of a name server (`memoryPath`).

```
identity.json    id of this name server, created once
lock             locked while a name server runs
routes.snapshot  the route table, for the next start
journal/         all changes, in segments
```
"""

import fcntl
import logging
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from skyroute.files.errors import FileWriteError
from skyroute.files.replace import replace_file
from skyroute.nameserver.errors import FolderInUseError, StateFolderError

log = logging.getLogger(__name__)

JOURNAL_NAME: Final = "journal"
SNAPSHOT_NAME: Final = "routes.snapshot"
_IDENTITY_NAME: Final = "identity.json"
_LOCK_NAME: Final = "lock"


class _Identity(msgspec.Struct):
    id: str


@dataclass(slots=True)
class StateFolder:
    """A folder that is locked until `release`, or until the process ends."""

    path: Path
    server_id: str
    _lock: int

    @property
    def journal(self) -> Path:
        return self.path / JOURNAL_NAME

    @property
    def snapshot(self) -> Path:
        return self.path / SNAPSHOT_NAME

    def release(self) -> None:
        """Unlock the folder."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def lock_folder(path: Path) -> StateFolder:
    """Create and lock a folder.

    Raises:
        FolderInUseError: Another name server uses it.
        StateFolderError: It cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StateFolderError(f"cannot write {path}: {error.strerror}") from error
    try:
        _lock(lock, path)
        return StateFolder(path, _identity(path / _IDENTITY_NAME), lock)
    except BaseException:
        os.close(lock)
        raise


def _lock(lock: int, path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
        raise FolderInUseError(
            f"{path} is in use by another name server (process {owner}); give each its own memoryPath"
        ) from error
    except OSError as error:
        raise StateFolderError(f"cannot lock {path / _LOCK_NAME}: {error.strerror}") from error
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    except OSError as error:
        raise StateFolderError(f"cannot write {path / _LOCK_NAME}: {error.strerror}") from error


def _identity(path: Path) -> str:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Identity).id
    except FileNotFoundError:
        pass
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        log.warning("name server id lost, creating a new one file=%s reason=%s", path, error)
    made = secrets.token_hex(8)
    try:
        replace_file(path, msgspec.json.encode(_Identity(made)), keep_backup=False)
    except FileWriteError as error:
        raise StateFolderError(str(error)) from error
    return made
