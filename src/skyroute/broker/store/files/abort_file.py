"""The `abort` file, which exists while a broker has the store open: how the last broker ended."""

import os
from enum import Enum, auto
from pathlib import Path

from skyroute.files.disk import Disk


class Shutdown(Enum):
    """How the last broker that had the store open ended."""

    CLEAN = auto()
    PROCESS_DIED = auto()
    MACHINE_STOPPED = auto()
    UNKNOWN = auto()
    """It crashed, and it was not this broker."""


class AbortFile:
    """Holds process id and boot id. Java writes the process id only, and reads nothing."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._path = folder / "abort"
        self._disk = disk
        self._boot_id = disk.boot_id()

    def find_shutdown(self) -> Shutdown:
        """Return how the last broker ended."""
        try:
            content = self._path.read_text("ascii", "replace").split()
        except FileNotFoundError:
            return Shutdown.CLEAN
        match content[1:]:
            case [boot_id] if self._boot_id and boot_id == self._boot_id:
                return Shutdown.PROCESS_DIED
            case [_]:
                return Shutdown.MACHINE_STOPPED
        return Shutdown.UNKNOWN

    def write(self) -> None:
        """Note that the store is open.

        The name of the file is on disk: without it, a store whose machine lost power looks like a closed one. Its
        content may be lost; recovery then does not know who had the store open.

        Raises:
            FileWriteError: the file may be incomplete.
        """
        descriptor = self._disk.open(self._path, 0)
        try:
            self._disk.cut(descriptor, 0, 0)
            self._disk.write(descriptor, f"{os.getpid()}\n{self._boot_id or '-'}".encode(), 0)
        finally:
            os.close(descriptor)
        for folder in list(self._path.parents)[:2]:  # the store may be new, too
            self._disk.sync_folder(folder)

    def remove(self) -> None:
        """Note that the store was closed.

        Raises:
            FileWriteError: the file is still there.
        """
        self._disk.remove(self._path)
