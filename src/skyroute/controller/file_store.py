"""Keeps the state of all groups in one JSON file and a log of the changes since it was written, for one controller.

A change is on disk before it is answered. Changes that arrive during a write are written together by the next one, so
that a hundred elections at once cost two writes. Only changed groups are encoded.

When the log is full, the file is replaced, and its next generation begins in a second log. Each generation of the file
is the one before with the changes in its log. So the backup, which is the file before, has all changes with both logs.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import msgspec

from skyroute.controller.change_log import CONTENT_BYTES_MAX, ChangeLog, is_used, prepare_log, read_log
from skyroute.controller.errors import DamagedStateError, StoreConflictError
from skyroute.controller.state import GroupState
from skyroute.controller.store import StateSizes, StoredGroup
from skyroute.files.disk import Disk
from skyroute.files.errors import FileWriteError
from skyroute.files.replace import backup_path, ensure_replaceable, replace_file

log = logging.getLogger(__name__)

FORMAT: Final = 2
"""Version of the file's content; version 1 had no generation and no log."""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    groups: list[StoredGroup]
    generation: Annotated[int, msgspec.Meta(ge=0, lt=2**62)] = 0
    """Which records of the log belong to this file; 0: it has no log."""


@dataclass(slots=True)
class _Write:
    """Changes that are stored together."""

    changes: dict[str, StoredGroup] = field(default_factory=dict)
    encoded: dict[str, bytes] = field(default_factory=dict)
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class FileStore:
    """A `GroupStore` in a file and its logs. Only one process may use them."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self._path = path
        self._disk = disk or Disk()
        self._groups: dict[str, StoredGroup] = {}
        self._encoded: dict[str, bytes] = {}
        """What is stored, by group."""
        self._generation = 0
        self._log: ChangeLog | None = None
        """The log of this generation; None: it takes no more changes. The first change after a start begins one."""
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
        """Read the file and its log; without a file, start empty.

        Raises:
            DamagedStateError: a file is missing, cannot be read or is damaged.
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
                    "or remove it and the logs beside it to start without any group"
                ) from None
            for log_path in map(self._log_path, (0, 1)):
                if is_used(log_path):
                    raise DamagedStateError(
                        f"{self._path} is missing and {log_path} has changes: restore both from a backup, "
                        "or remove the logs to start without any group"
                    ) from None
            log.info("controller state is new path=%s", self._path)
            return
        except OSError as error:
            raise DamagedStateError(f"cannot read {self._path}: {error.strerror}") from error
        file = _decode(content, self._path)
        self._groups = {group.state.broker_name: group for group in file.groups}
        self._generation = file.generation
        if file.generation:
            self._replay(file.generation)
        # Only a backup in place of the file has a successor.
        if is_used(self._log_path(self._generation + 1)):
            self._replay(self._generation + 1)
        self._encoded = {name: msgspec.json.encode(group) for name, group in self._groups.items()}
        for name, encoded in self._encoded.items():
            self._sizes.note(name, len(encoded))
        log.info("controller state loaded path=%s groups=%d", self._path, len(self._groups))

    def _replay(self, generation: int) -> None:
        """Apply the changes in a log, and make them safe: the process that wrote them may have died before that."""
        path = self._log_path(generation)
        for content in read_log(path, generation):
            for group in _decode_changes(content, path):
                name = group.state.broker_name
                before = self._groups.get(name)
                if group.revision != (1 if before is None else before.revision + 1):
                    known = 0 if before is None else before.revision
                    raise DamagedStateError(
                        f"{path} does not continue {self._path}: broker group {name} has revision {group.revision}, "
                        f"after {known}. Restore all files from one backup"
                    )
                self._groups[name] = group
            self._generation = generation
        self._disk.sync_path(path)

    def _log_path(self, generation: int) -> Path:
        return self._path.with_name(f"{self._path.name}.log{generation % 2}")

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
                await loop.run_in_executor(self._writer, self._write, write.encoded.values(), encoded.values())
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

    def _write(self, changes: Collection[bytes], after: Iterable[bytes]) -> None:
        content = b"[%s]" % b",".join(changes)
        if len(content) > CONTENT_BYTES_MAX:
            # The second one makes the first one the backup, so that the logs continue it.
            self._begin_generation(after)
            self._begin_generation(after)
        elif self._log is None or not self._append(self._log, content):
            self._append(self._begin_generation(self._encoded.values()), content)

    def _append(self, changes: ChangeLog, content: bytes) -> bool:
        try:
            return changes.append(content)
        except FileWriteError:
            self._close_log()
            raise

    def _begin_generation(self, groups: Iterable[bytes]) -> ChangeLog:
        """Replace the file, and return the empty log of its generation.

        The log before takes no more changes, even if this fails: the file may be replaced all the same.
        """
        self._close_log()
        generation = self._generation + 1
        path = self._log_path(generation)
        prepare_log(path, self._disk, like=self._path)
        begun = ChangeLog(path, generation, self._disk)
        try:
            content = b'{"format":%d,"generation":%d,"groups":[%s]}' % (FORMAT, generation, b",".join(groups))
            replace_file(self._path, content, disk=self._disk)
        except FileWriteError:
            begun.close()
            raise
        self._generation, self._log = generation, begun
        return begun

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    async def close(self) -> None:
        if self._task is not None:
            await asyncio.wait({self._task})
        self._writer.shutdown()
        self._close_log()
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


def _decode(content: bytes, path: Path) -> _File:
    try:
        file = msgspec.json.decode(content, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedStateError(
            f"{path} is damaged: {error}. Copy {backup_path(path).name} to this name: with the logs beside it, it has "
            "all changes; without them, ids and epochs would be given twice"
        ) from None
    if not 1 <= file.format <= FORMAT:
        raise DamagedStateError(f"{path} has format {file.format} (expected {FORMAT}): a newer version wrote it")
    return file


def _decode_changes(content: bytes, path: Path) -> list[StoredGroup]:
    try:
        return msgspec.json.decode(content, type=list[StoredGroup])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedStateError(f"{path} is damaged: {error}. Restore it from a backup") from None
