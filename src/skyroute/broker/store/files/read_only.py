"""Read-only access to the files of a store, for verification and repair."""

import os
from pathlib import Path
from typing import Final, NoReturn

from skyroute.broker.store.files.segment import OpenSegments, Segment
from skyroute.files.disk import Disk
from skyroute.files.errors import FileReadError, FileWriteError

_REFUSAL: Final = "the store is open for reading only"


class ReadOnlyDisk(Disk):
    """Opens existing files for reading, so that the system refuses writes to them. Other changes are refused here."""

    def open(self, path: Path, size: int) -> int:
        """Open a file for reading.

        Raises:
            FileReadError: it cannot be opened.
        """
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise FileReadError(f"cannot read {path}: {error.strerror}") from error

    def create(self, path: Path, *, like: Path | None = None) -> NoReturn:
        raise FileWriteError(_REFUSAL)

    def make_folder(self, folder: Path) -> NoReturn:
        raise FileWriteError(_REFUSAL)

    def remove(self, path: Path) -> NoReturn:
        raise FileWriteError(_REFUSAL)

    def replace(self, source: Path, target: Path) -> NoReturn:
        raise FileWriteError(_REFUSAL)

    def link(self, source: Path, target: Path) -> NoReturn:
        raise FileWriteError(_REFUSAL)


def segments_in(folder: Path, opened: OpenSegments) -> list[Segment]:
    """Return the segments of a folder in order, each with the size of its file.

    Empty files are left out: a file is created first and extended then.

    Raises:
        OSError: the folder cannot be read.
    """
    disk = ReadOnlyDisk()
    if not folder.is_dir():
        return []
    sizes = {path: path.stat().st_size for path in folder.iterdir() if path.name.isdecimal()}
    paths = sorted((path for path, size in sizes.items() if size), key=lambda path: int(path.name))
    return [Segment(path, int(path.name), sizes[path], disk, opened) for path in paths]
