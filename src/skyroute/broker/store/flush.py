"""Waiting for the disk."""

import os
from contextlib import ExitStack
from pathlib import Path

from skyroute.broker.store.files.checkpoint import OnDisk
from skyroute.files.disk import Disk, write_error


class Flush:
    """One flush: `run` waits for the disk and may do so in another thread; the store is told when it is done."""

    def __init__(self, disk: Disk, log_end: int, log_end_ms: int) -> None:
        self._disk = disk
        self._files = ExitStack()
        self._descriptors: list[int] = []
        self._paths: list[Path] = []
        self._folders: dict[Path, None] = {}
        self.log_end = log_end
        self.log_end_ms = log_end_ms
        self.derived_ms: int | None = None
        self.index_ms = 0
        self.on_disk: OnDisk | None = None

    def add(self, descriptor: int) -> None:
        """Have a file waited for.

        Raises:
            FileWriteError: too many files are open.
        """
        try:
            # A copy, so that the store may close its own while another thread waits for this one.
            copy = os.dup(descriptor)
        except OSError as error:
            raise write_error(error, descriptor) from error
        self._files.callback(os.close, copy)
        self._descriptors.append(copy)

    def add_path(self, path: Path) -> None:
        """Have a file waited for, of which there may be more than can be open at once. It may be gone by then."""
        self._paths.append(path)

    def add_folder(self, folder: Path) -> None:
        """Have the names in a folder waited for."""
        self._folders[folder] = None

    def cancel(self) -> None:
        """Let go of the files; it will not be run."""
        self._files.close()

    def run(self) -> None:
        """Wait until everything is on the disk.

        Raises:
            FileWriteError: nobody knows what is. `MessageStore.fail_flush` has to be told.
        """
        with self._files:
            for descriptor in self._descriptors:
                self._disk.sync(descriptor)
            for path in self._paths:
                self._disk.sync_path(path)
            for folder in self._folders:
                self._disk.sync_folder(folder)
