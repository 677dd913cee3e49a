"""The small JSON files beside the messages, as Apache's broker writes and reads them."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from skyroute.broker.store.disk import Disk
from skyroute.broker.store.errors import StoreDamagedError
from skyroute.wire.fastjson import Dialect, JsonError, dumps, loads


class JsonFile:
    """One file and its `.bak`. What it says is its owner's business; integer keys come back as text."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self.path = path
        self._disk = disk or Disk()

    def __repr__(self) -> str:
        return f"<JsonFile {self.path}>"

    @property
    def backup(self) -> Path:
        return self.path.with_name(f"{self.path.name}.bak")

    def load(self) -> Any:
        """Return what the file says; None where there is neither it nor its backup.

        A file that is empty or makes no sense is removed, and its backup counts: the next `save` must not push it over
        the only good one.

        Raises:
            StoreDamagedError: neither makes sense.
        """
        damage: Exception | None = None
        for path in (self.path, self.backup):
            try:
                content = path.read_bytes()
                if content:
                    return loads(content)
            except FileNotFoundError:
                continue
            except (JsonError, OSError) as error:
                damage = damage or error
            if path == self.path and self.backup.exists():
                self._disk.remove(path)
        if damage is not None:
            raise StoreDamagedError(f"neither {self.path} nor its .bak can be read: {damage}")
        return None

    def save(self, value: object) -> None:
        """Put a value in the file's place, on the disk before this returns. What was there becomes the backup.

        Raises:
            StoreWriteError, StoreFullError: the file is as it was, or, at worst, is its backup by now.
        """
        self.write([dumps(value, Dialect.LEGACY)])

    def write(self, pieces: Collection[bytes]) -> None:
        """Put a text, given in pieces, in the file's place; all else as `save`.

        Raises:
            StoreWriteError, StoreFullError: as `save`.
        """
        staged = self.path.with_name(f"{self.path.name}.tmp")
        self._disk.remove(staged)
        descriptor = self._disk.open(staged, sum(map(len, pieces)))
        try:
            at = 0
            for piece in pieces:
                self._disk.write(descriptor, piece, at)
                at += len(piece)
            self._disk.sync(descriptor)
        finally:
            os.close(descriptor)
        if self.path.exists():
            self._disk.replace(self.path, self.backup)
        self._disk.replace(staged, self.path)
        self._disk.sync_folder(self.path.parent)
