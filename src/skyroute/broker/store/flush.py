"""A flush: the files to sync, and the content of the checkpoint afterwards."""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from skyroute.broker.store.files.checkpoint import OnDisk
from skyroute.files.disk import Disk, write_error
from skyroute.files.errors import NoDescriptorError

DESCRIPTOR_PAUSE_S: Final = 0.05
DESCRIPTOR_TRIES: Final = 1_200
"""How often a flush looks for a free file descriptor: for a minute. Sends that wait for it time out earlier."""


class Flush:
    """One flush of a store. `run` may run in another thread; all else belongs to the thread of the store."""

    def __init__(self, disk: Disk, log_end: int, log_end_ms: int) -> None:
        self._disk = disk
        self._files = ExitStack()
        self._descriptors: list[int] = []
        self._paths: list[Path] = []
        self._new_paths: list[tuple[Path, int]] = []
        self._folders: dict[Path, None] = {}
        self.log_end = log_end
        """Once the flush is done, the log is on disk up to here."""
        self.log_end_ms = log_end_ms
        self.queues_ms: int | None = None
        """Store time of the newest record with a unit; None if only the log is flushed."""
        self.index_ms = 0
        self.on_disk: OnDisk | None = None

    def add(self, descriptor: int, path: Path) -> None:
        """Add an open file.

        Raises:
            FileWriteError: the descriptor is not open.
        """
        try:
            # A copy: the store may close its own descriptor while another thread waits for this one.
            copy = os.dup(descriptor)
        except OSError as error:
            failure = write_error(error, descriptor)
            if not isinstance(failure, NoDescriptorError):
                raise failure from error
            self._paths.append(path)  # `run` waits for a free descriptor
        else:
            self._files.callback(os.close, copy)
            self._descriptors.append(copy)

    def add_path(self, path: Path, *, new_names: int = 0) -> None:
        """Add a file by path: there may be more of these than can be open at once. It may be removed meanwhile.

        `new_names` is the number of names, its own and of the folders around it, that may not be on disk.
        """
        self._paths.append(path)
        if new_names:
            self._new_paths.append((path, new_names))

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
                _retry(self._disk.sync_path, path)
            # Here, not in the thread of the store: there may be 10,000 new queues, and each takes 10 us.
            for path, names in self._new_paths:
                self._folders.update(dict.fromkeys(list(path.parents)[:names]))
            for folder in self._folders:
                _retry(self._disk.sync_folder, folder)


def _retry(sync: Callable[[Path], None], path: Path) -> None:
    """Repeat a call while no file descriptor is free: nothing has failed to reach the disk."""
    for _ in range(DESCRIPTOR_TRIES):
        try:
            return sync(path)
        except NoDescriptorError:
            time.sleep(DESCRIPTOR_PAUSE_S)
    return sync(path)
