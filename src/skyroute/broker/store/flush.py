"""A flush: the files to sync, and the content of the checkpoint afterwards."""

import os
from contextlib import ExitStack
from pathlib import Path

from skyroute.broker.store.files.checkpoint import OnDisk
from skyroute.files.disk import Disk, write_error


class Flush:
    """One flush of a store. `run` may run in another thread; all else belongs to the thread of the store."""

    def __init__(self, disk: Disk, log_end: int, log_end_ms: int) -> None:
        self._disk = disk
        self._files = ExitStack()
        self._descriptors: list[int] = []
        self._paths: list[Path] = []
        self._folders: dict[Path, None] = {}
        self.log_end = log_end
        """Once the flush is done, the log is on disk up to here."""
        self.log_end_ms = log_end_ms
        self.queues_ms: int | None = None
        """Store time of the newest record with a unit; None if only the log is flushed."""
        self.index_ms = 0
        self.on_disk: OnDisk | None = None

    def add(self, descriptor: int) -> None:
        """Add an open file.

        Raises:
            FileWriteError: too many files are open.
        """
        try:
            # A copy: the store may close its own descriptor while another thread waits for this one.
            copy = os.dup(descriptor)
        except OSError as error:
            raise write_error(error, descriptor) from error
        self._files.callback(os.close, copy)
        self._descriptors.append(copy)

    def add_path(self, path: Path) -> None:
        """Add a file by path: there may be more of these than can be open at once. It may be removed meanwhile."""
        self._paths.append(path)

    def add_folder(self, folder: Path) -> None:
        """Add the names in a folder."""
        self._folders[folder] = None

    def set_reached(self, queues_ms: int, index_ms: int, on_disk: OnDisk | None) -> None:
        """Set the checkpoint of queues and index that holds once the flush is done."""
        self.queues_ms = queues_ms
        self.index_ms = index_ms
        self.on_disk = on_disk

    def forget_behind(self, position: int) -> None:
        """Note that the log was truncated while the flush runs: what it has behind the position counts no more."""
        if self.log_end > position:
            self.log_end = position
            self.queues_ms = None

    def cancel(self) -> None:
        """Close the files without waiting."""
        self._files.close()

    def run(self) -> None:
        """Wait until everything is on disk.

        Raises:
            FileWriteError: any part may be missing on disk. The caller then calls `MessageStore.fail_flush`.
        """
        with self._files:
            for descriptor in self._descriptors:
                self._disk.sync(descriptor)
            for path in self._paths:
                self._disk.sync_path(path)
            for folder in self._folders:
                self._disk.sync_folder(folder)
