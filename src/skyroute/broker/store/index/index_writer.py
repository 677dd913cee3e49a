"""Adds keys to the index, in this process or, under load, through an index process."""

import logging
from pathlib import Path

from skyroute.broker.store.commit_log import CommitLog
from skyroute.broker.store.index.index_process import IndexProcess, IndexProgress, processors
from skyroute.broker.store.index.key_index import IndexFile, KeyIndex
from skyroute.broker.store.index.keys import Key, KeyReader
from skyroute.broker.store.settings import StoreSettings

log = logging.getLogger(__name__)


class IndexWriter:
    """Owns the keys that are not in the index yet, and the index process, if there is one."""

    def __init__(self, folder: Path, settings: StoreSettings, commit_log: CommitLog, index: KeyIndex | None) -> None:
        self._folder = folder
        self._settings = settings
        self._log = commit_log
        self._index = index
        self._keys: list[Key] = []
        self.process: IndexProcess | None = None
        self._progress_seen: IndexProgress | None = None
        """The progress of the process when its files were last read."""
        self.backlogs = 0
        """Number of full backlogs with keys since the last write for another reason."""
        self.wrote_keys = False
        """Whether the last write had keys to add."""
        self._may_start_process = settings.index_process and index is not None and processors() > 1

    @property
    def collected(self) -> list[Key] | None:
        """Where to collect the keys of new records; None if the index process reads them from the log."""
        return None if self._index is None or self.process is not None else self._keys

    @property
    def has_keys(self) -> bool:
        """Whether collected keys are not in the index yet."""
        return bool(self._keys)

    def write(self, position: int, size: int, keys_left: int = 0) -> tuple[int, int]:
        """Write the keys of all records up to this one; return the newest record whose keys are in the index.

        The newest `keys_left` keys are left for the next call.

        Raises:
            FileWriteError: some keys are left for the next call.
        """
        end = position + size
        self.wrote_keys = bool(self._keys)
        if self.process is not None and not self.process.request(end):
            self._take_over(end)
        if self.process is not None:
            position, size, *_ = self.process.progress
        elif self._index is not None:
            self._index.add(self._keys, keys_left)
        return position, size

    def count_backlogs(self, backlogs: int) -> bool:
        """Set the number of full backlogs; return whether it calls for an index process."""
        self.backlogs = backlogs
        return self._may_start_process and backlogs >= self._settings.index_process_after

    def start_process(self, newest: tuple[int, int] | None) -> None:
        """Start an index process behind the newest record whose keys are in the index. Tries once per store."""
        self._may_start_process = False
        if self._index is None or newest is None:
            return
        progress = IndexProgress(*newest, *self._index.extent, self._index.end_ms)
        try:
            self.process = IndexProcess(self._folder, self._settings, progress)
        except OSError as error:
            log.warning("index process not started reason=%s", error)
            return
        log.info("index process started pid=%d", self.process.pid)

    def _take_over(self, end: int | None) -> tuple[int, int, int] | None:
        """Continue after a process that died, up to a position of the log or the position requested from it.

        Returns position, size and time of the newest record whose keys were read; None if no record was left.
        """
        process, self.process = self.process, None
        if process is None or self._index is None:
            return None
        process.kill()
        log.warning("index process died, the broker writes the index itself pid=%d", process.pid)
        position = process.progress.end
        self._index.reload()
        self._index.truncate_to(position, slots_are_sound=True)
        stop = process.requested if end is None else end
        reader = KeyReader(self._log.find)
        newest = None
        while (found := reader.read(position, stop, self._keys)) is not None:
            newest = found
            position = found[0] + found[1]
        return newest

    def refresh(self) -> None:
        """Read what the index process has added, if there is one."""
        process = self.process
        if process is not None and self._index is not None and process.progress != self._progress_seen:
            self._progress_seen = process.progress
            self._index.reload()

    def catch_up(self, end: int | None) -> tuple[int, int, int] | None:
        """Wait until the index has the keys of all written records.

        If the process has died, the keys of records before `end` are read from the log; returns as `_take_over`.

        Raises:
            FileWriteError: some keys are missing.
        """
        newest = None
        if self._index is not None and self.process is not None and not self.process.catch_up():
            newest = self._take_over(end)
            self._index.add(self._keys)
        self.refresh()
        return newest

    def end_process(self) -> tuple[int, int] | None:
        """End the process; return the newest record whose keys it added, None if there was no process."""
        process, self.process = self.process, None
        if process is None:
            return None
        process.end()
        return process.progress.position, process.progress.size

    def drop_keys(self) -> None:
        """Drop the keys that are not in the index yet."""
        self._keys.clear()

    def kill_process(self) -> None:
        """Kill the process, if there is one."""
        if self.process is not None:
            self.process.kill()

    def note_unsynced(self, first: int) -> None:
        """Include in the next flush all files from this name on: an earlier process may not have synced them."""
        for file in () if self._index is None else self._index.files:
            if int(file.path.name) >= first:
                file.is_dirty = file.is_new = True

    def unflushed_files(self) -> list[IndexFile]:
        """Return the files with writes that may not be on disk."""
        if self.process is not None:
            self.process.update()
        self.refresh()
        return [] if self._index is None else [file for file in self._index.files if file.is_dirty]

    def reached(self, newest: tuple[int, int] | None) -> tuple[tuple[int, int, int, int] | None, int]:
        """Return record, file and entries up to which the index is written, and the store time of that record.

        `newest` is the newest record whose unit and keys are written here; None if there is no such record.
        """
        if self.process is not None:
            *reached, end_ms = self.process.progress
            return (reached[0], reached[1], reached[2], reached[3]), end_ms
        if newest is None or self._keys:
            return None, 0
        if self._index is None:
            return (*newest, 0, 0), 0
        return (*newest, *self._index.extent), self._index.end_ms
