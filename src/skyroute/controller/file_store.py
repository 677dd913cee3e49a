"""Keeps the state of all groups in one JSON file, for one controller.

The file is replaced atomically and on disk before a change is answered. Changes that arrive during a write are
written together by the next one, so that a hundred elections at once cost two writes. Only changed groups are encoded.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from skyroute.controller.errors import DamagedStateError, StoreConflictError
from skyroute.controller.state import GroupState
from skyroute.controller.store import StateSizes, StoredGroup
from skyroute.files.disk import Disk
from skyroute.files.errors import FileWriteError
from skyroute.files.replace import backup_path, ensure_replaceable, replace_file

log = logging.getLogger(__name__)

FORMAT: Final = 1
"""Version of the file's content."""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    groups: list[StoredGroup]


@dataclass(slots=True)
class _Write:
    """Changes that one replacement of the file stores."""

    changes: dict[str, StoredGroup] = field(default_factory=dict)
    encoded: dict[str, bytes] = field(default_factory=dict)
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class FileStore:
    """A `GroupStore` in one file. Only one process may use the file."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self._path = path
        self._disk = disk or Disk()
        self._groups: dict[str, StoredGroup] = {}
        self._encoded: dict[str, bytes] = {}
        """The content of the file, by group."""
        self._sizes = StateSizes()
        self._writer = ThreadPoolExecutor(1, "controller-state")
        """A thread of its own: those of the loop may all wait for names of brokers to be resolved."""
        self._next: _Write | None = None
        """Changes that wait for the current write."""
        self._current: _Write | None = None
        self._task: asyncio.Task[None] | None = None
        self._lock = -1

    def __repr__(self) -> str:
        return f"<FileStore {self._path} groups={len(self._groups)}>"

    async def open(self) -> None:
        """Read the file; without one, start empty.

        Raises:
            DamagedStateError: the file cannot be read or is damaged.
            FileWriteError: the file cannot be replaced, or another process uses it.
        """
        ensure_replaceable(self._path)
        self._lock = _lock(self._path.with_name(f"{self._path.name}.lock"))
        try:
            self._read()
        except BaseException:
            self._unlock()
            raise

    def _read(self) -> None:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            if backup_path(self._path).exists():
                raise DamagedStateError(
                    f"{self._path} is missing and {backup_path(self._path)} exists: copy the backup to this name, "
                    "or remove it to start without any group"
                ) from None
            log.info("controller state is new path=%s", self._path)
            return
        except OSError as error:
            raise DamagedStateError(f"cannot read {self._path}: {error.strerror}") from error
        self._groups = _decode(content, self._path)
        self._encoded = {name: msgspec.json.encode(group) for name, group in self._groups.items()}
        for name, encoded in self._encoded.items():
            self._sizes.note(name, len(encoded))
        log.info("controller state loaded path=%s groups=%d", self._path, len(self._groups))

    def find(self, broker_name: str) -> StoredGroup | None:
        return self._groups.get(broker_name)

    def groups(self) -> Mapping[str, StoredGroup]:
        return self._groups

    async def replace(self, state: GroupState, revision: int) -> None:
        name = state.broker_name
        under_way = self._under_way(name)
        if under_way is not None:
            await asyncio.wait({under_way.done})
            raise StoreConflictError(f"broker group {name} has another change under way")
        stored = self._groups.get(name)
        if (stored.revision if stored is not None else 0) != revision:
            raise StoreConflictError(f"broker group {name} has changed")
        changed = StoredGroup(state, revision + 1)
        encoded = msgspec.json.encode(changed)
        self._sizes.check(None if stored is None else stored.state, state, len(encoded))
        self._sizes.note(name, len(encoded))
        if self._next is None:
            self._next = _Write()
        write = self._next
        write.changes[name] = changed
        write.encoded[name] = encoded
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write_all())
        # The write goes on if this request is cancelled; others may wait for it as well.
        await asyncio.wait({write.done})
        write.done.result()

    async def settle(self, broker_name: str) -> StoredGroup | None:
        while (write := self._under_way(broker_name)) is not None:
            await asyncio.wait({write.done})
        return self.find(broker_name)

    def _under_way(self, broker_name: str) -> _Write | None:
        return next((each for each in (self._current, self._next) if each and broker_name in each.changes), None)

    async def _write_all(self) -> None:
        while self._next is not None:
            write, self._next = self._next, None
            self._current = write
            encoded = self._encoded | write.encoded
            loop = asyncio.get_running_loop()
            try:
                await loop.run_in_executor(self._writer, self._write, encoded.values())
            except Exception as error:  # noqa: BLE001 - whatever happened, the requests must be answered
                log.warning("controller state not written path=%s reason=%s", self._path, error)
                for name in write.changes:
                    self._sizes.note(name, len(self._encoded.get(name, b"")))
                write.done.set_exception(error)
                write.done.exception()  # marks it as seen: all waiters may be cancelled
            else:
                self._groups, self._encoded = self._groups | write.changes, encoded
                write.done.set_result(None)
            finally:
                self._current = None
        self._task = None

    def _write(self, groups: Iterable[bytes]) -> None:
        content = b'{"format":%d,"groups":[%s]}' % (FORMAT, b",".join(groups))
        replace_file(self._path, content, disk=self._disk)

    async def close(self) -> None:
        if self._task is not None:
            await asyncio.wait({self._task})
        self._writer.shutdown()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _lock(path: Path) -> int:
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise FileWriteError(f"cannot write {path}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise FileWriteError(
            f"{path} is locked by another controller: give each controller its own controllerStorePath"
        ) from error
    return lock


def _decode(content: bytes, path: Path) -> dict[str, StoredGroup]:
    try:
        file = msgspec.json.decode(content, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedStateError(
            f"{path} is damaged: {error}. Copy {backup_path(path).name}, the state before the last change, to this "
            "name if no broker changed its role since; without it, ids and epochs would be given twice"
        ) from None
    if file.format != FORMAT:
        raise DamagedStateError(f"{path} has format {file.format} (expected {FORMAT}): a newer version wrote it")
    return {group.state.broker_name: group for group in file.groups}
