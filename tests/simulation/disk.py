"""A simulated disk: real files, of which a power failure loses or tears what was not synced.

Folders that a program creates without the disk, such as those of a lock, count as synced.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from skyroute.files.disk import Disk
from skyroute.files.errors import DiskFullError, FileWriteError

SECTOR: Final = 512
"""A power failure keeps or loses whole sectors, and syncs write whole ones. A write of several may be torn."""

_SEGMENT_FOLDERS: Final = frozenset({"commitlog", "consumequeue", "batchconsumequeue", "journal"})
"""Folders whose files are written through the disk only. Others may be written through a mapping, which is not seen."""


class DeadDiskError(FileWriteError):
    """The machine was switched off: nothing is written any more."""


@dataclass(slots=True)
class _SyncedFile:
    """What a power failure cannot take."""

    path: Path
    content: bytearray = field(default_factory=bytearray)
    dirty: list[tuple[int, int]] = field(default_factory=list)
    """Ranges written since the last sync, if all writes go through the disk."""
    dropped: list[tuple[int, int]] = field(default_factory=list)
    """Ranges that a failed sync has dropped: Linux keeps them in its cache, and never writes them."""
    is_mapped: bool = False
    """Writes go through a mapping, unseen: compare all of it."""


@dataclass(slots=True)
class DiskFaults:
    """Faults of one disk; a scenario changes them while it runs."""

    is_full: bool = False
    sync_s: tuple[float, float] = (0.0001, 0.003)
    slow_share: float = 0.0
    """The share of syncs that take up to `slow_s`."""
    slow_s: float = 8.0
    loses_names: bool = True
    """A power failure loses names whose folder was not synced, as POSIX allows. Common file systems of Linux do not."""
    fails_next_sync: bool = False
    """The next sync fails, and later ones do not write what this one should have written. A power failure loses it."""
    fails_sync_of: str = ""
    """The sync that fails is of a file with this text in its path."""


class SimDisk(Disk):
    """The disk of one machine. All its files are below `folder`.

    Contents are on disk after a sync, names of files and folders after a sync of their folder. `crash` makes the files
    what a restarted machine finds: of the changes of names in a folder that were not synced, it keeps the first ones.
    """

    def __init__(self, folder: Path, rng: random.Random, sleep: Callable[[float], None]) -> None:
        self.folder = folder
        self.faults = DiskFaults()
        self.is_dead = False
        self.syncs = 0
        self.lost_sectors = 0
        self._rng = rng
        self._sleep = sleep
        self._boots = 1
        self._files: dict[int, _SyncedFile] = {}
        """By inode."""
        self._undo: dict[Path, list[Callable[[], None]]] = {}
        """By folder, how to undo each change of a name since the folder was synced, oldest first."""
        self._kept = folder / ".undo"
        self._kept_numbers = count(1)
        self.lost_names = 0

    def _check(self, *, needs_space: bool = False) -> None:
        if self.is_dead:
            raise DeadDiskError("the machine is switched off")
        if needs_space and self.faults.is_full:
            raise DiskFullError("no space left on the simulated disk")

    def _file(self, descriptor: int) -> _SyncedFile:
        inode = os.fstat(descriptor).st_ino
        found = self._files.get(inode)
        if found is None:  # an older file, all of which is on disk
            content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
            found = self._files[inode] = _SyncedFile(Path(f"/proc/self/fd/{descriptor}").readlink(), bytearray(content))
        return found

    def _add(self, path: Path, descriptor: int) -> None:
        """Note a new file: neither its name nor its content is on disk."""
        self._may_undo(path, partial(path.unlink, missing_ok=True))
        self._files[os.fstat(descriptor).st_ino] = _SyncedFile(path, is_mapped=not _SEGMENT_FOLDERS & {*path.parts})

    def open(self, path: Path, size: int) -> int:
        self._check()
        existed = path.exists()
        self._add_folders(path.parent)
        descriptor = super().open(path, size)
        if not existed:
            self._add(path, descriptor)
        else:
            self._file(descriptor).is_mapped = not _SEGMENT_FOLDERS & {*path.parts}
        return descriptor

    def create(self, path: Path, *, like: Path | None = None) -> int:
        self._check(needs_space=True)
        descriptor = super().create(path, like=like)
        self._add(path, descriptor)
        return descriptor

    def write(self, descriptor: int, data: bytes | bytearray, at: int) -> None:
        self._check(needs_space=True)
        self._file(descriptor).dirty.append((at, at + len(data)))
        super().write(descriptor, data, at)

    def reserve(self, descriptor: int, size: int) -> None:
        self._check(needs_space=True)
        self._file(descriptor).is_mapped = True
        super().reserve(descriptor, size)

    def cut(self, descriptor: int, at: int, size: int) -> None:
        self._check()
        before = os.fstat(descriptor).st_size
        self._file(descriptor).dirty.append((at, max(before, size)))
        super().cut(descriptor, at, size)

    def sync(self, descriptor: int) -> None:
        self._check()
        self.syncs += 1
        faults = self.faults
        is_slow = self._rng.random() < faults.slow_share
        self._sleep(self._rng.uniform(*faults.sync_s) if not is_slow else self._rng.uniform(0.05, faults.slow_s))
        self._check()  # the machine may have been switched off meanwhile
        known = self._file(descriptor)
        if faults.fails_next_sync and faults.fails_sync_of in str(known.path):
            faults.fails_next_sync = False
            if not known.is_mapped:
                known.dropped += known.dirty
                known.dirty.clear()
            raise FileWriteError("this sync fails on the simulated disk")
        size = os.fstat(descriptor).st_size
        content = known.content
        if len(content) > size:
            del content[size:]
        elif len(content) < size:
            content.extend(bytes(size - len(content)))
        if known.is_mapped:
            content[:] = os.pread(descriptor, size, 0)
        else:
            for start, end in known.dirty:
                low, stop = start // SECTOR * SECTOR, min(-(-end // SECTOR) * SECTOR, size)
                if low < stop:
                    content[low:stop] = os.pread(descriptor, stop - low, low)
        known.dirty.clear()

    def sync_folder(self, folder: Path) -> None:
        self._check()
        self._undo.pop(folder, None)

    def make_folder(self, folder: Path) -> None:
        self._check()
        self._add_folders(folder)
        super().make_folder(folder)

    def _add_folders(self, folder: Path) -> None:
        """Create missing folders: their names are not on disk."""
        missing: list[Path] = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for each in reversed(missing):
            self._may_undo(each, partial(shutil.rmtree, each, ignore_errors=True))
            each.mkdir()

    def remove(self, path: Path) -> None:
        self._check()
        if path.exists():
            self._may_undo(path, partial(_restore, self._keep(path), path))
        super().remove(path)

    def replace(self, source: Path, target: Path) -> None:
        self._check()
        source_kept = self._keep(source)
        target_kept = self._keep(target) if target.exists() else None
        super().replace(source, target)
        self._may_undo(target, partial(_undo_replace, source, source_kept, target, target_kept))

    def link(self, source: Path, target: Path) -> bool:
        self._check()
        self._may_undo(target, partial(target.unlink, missing_ok=True))
        return super().link(source, target)

    def _may_undo(self, path: Path, undo: Callable[[], None]) -> None:
        self._undo.setdefault(path.parent, []).append(undo)

    def _keep(self, path: Path) -> Path:
        """Give a file a second name, by which it can be restored."""
        self._kept.mkdir(exist_ok=True)
        kept = self._kept / str(next(self._kept_numbers))
        kept.hardlink_to(path)
        return kept

    def boot_id(self) -> str:
        return f"boot-{self._boots}"

    def used_ratio(self, folder: Path) -> float:
        return 0.95 if self.faults.is_full else 0.1

    # Faults

    def die(self) -> None:
        """Refuse everything from now on. The files stay as they are: the process died, the machine did not."""
        self.is_dead = True

    def revive(self) -> None:
        """Work again, for the next process."""
        self.is_dead = False

    def crash(self) -> None:
        """Lose or tear what was not synced, and count a boot. Call it while nothing has the files open."""
        self._boots += 1
        # Folders inside others first: what was lost with its folder cannot be undone.
        for _, undo in sorted(self._undo.items(), key=lambda each: -len(each[0].parts)):
            lost = undo[self._rng.randint(0, len(undo)) :] if self.faults.loses_names else []
            self.lost_names += len(lost)
            for step in reversed(lost):
                step()
        self._undo.clear()
        shutil.rmtree(self._kept, ignore_errors=True)
        inodes: dict[int, Path] = {}
        for path in sorted(each for each in self.folder.rglob("*") if each.is_file()):
            inodes.setdefault(path.stat().st_ino, path)
        for inode, path in inodes.items():
            known = self._files.get(inode)
            if known is not None:
                self._lose(path, known)
        # The machine has written all that it found; from here on it is on disk.
        self._files = {inode: _SyncedFile(path, bytearray(path.read_bytes())) for inode, path in inodes.items()}

    def _lose(self, path: Path, known: _SyncedFile) -> None:
        now = path.read_bytes()
        old = known.content.ljust(len(now), b"\0")[: len(now)]
        if now == old:
            return
        after = bytearray(now)
        keeps = self._rng.choice((0.0, 0.5, 0.9))
        changed = self._changed_sectors(now, old, known)
        for start in changed:
            if self._rng.random() >= keeps:
                stop = min(start + SECTOR, len(now))
                after[start:stop] = old[start:stop]
                self.lost_sectors += 1
        path.write_bytes(after)

    @staticmethod
    def _changed_sectors(now: bytes, old: bytes | bytearray, known: _SyncedFile) -> list[int]:
        ranges = [(0, len(now))] if known.is_mapped else known.dirty + known.dropped
        sectors: dict[int, None] = {}
        for begin, end in ranges:
            for start in range(begin // SECTOR * SECTOR, min(end, len(now)), SECTOR):
                if now[start : start + SECTOR] != old[start : start + SECTOR]:
                    sectors[start] = None
        return list(sectors)

    def flip_bit(self, pattern: str) -> Path | None:
        """Flip one bit in a file that matches a glob pattern; return its path."""
        found = sorted(path for path in self.folder.glob(pattern) if path.is_file() and path.stat().st_size)
        if not found:
            return None
        path = self._rng.choice(found)
        with path.open("r+b") as file:
            content = file.read()
            written = len(content.rstrip(b"\0")) or 1
            at = self._rng.randrange(written)
            file.seek(at)
            file.write(bytes([content[at] ^ (1 << self._rng.randrange(8))]))
        return path


def _restore(kept: Path, path: Path) -> None:
    """Give a file its old name again."""
    path.unlink(missing_ok=True)
    path.hardlink_to(kept)


def _undo_replace(source: Path, source_kept: Path, target: Path, target_kept: Path | None) -> None:
    _restore(source_kept, source)
    target.unlink(missing_ok=True)
    if target_kept is not None:
        _restore(target_kept, target)
