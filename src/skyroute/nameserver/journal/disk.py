"""The few things the journal asks of a disk, in one place, so that a test can make any of them fail."""

import os
from contextlib import suppress
from pathlib import Path


class Disk:
    """A real one. Every method raises OSError where the disk refuses."""

    def create(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, descriptor: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]

    def cut(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)
        with suppress(OSError):  # some file systems cannot do this, and the name is as good without it
            folder = os.open(target.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
