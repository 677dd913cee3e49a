"""JSON files of the broker, such as `topics.json`, in the format of Apache's broker."""

import errno
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from skyroute.broker.store.errors import StoreDamagedError
from skyroute.files.disk import Disk
from skyroute.files.errors import StorageError
from skyroute.files.replace import backup_path, damaged_path, replace_file
from skyroute.wire.fastjson import Dialect, JsonError, dumps, loads

log = logging.getLogger(__name__)

_Table = TypeVar("_Table")


class JsonFile:
    """One file and its `.bak`. Integer keys come back as text."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self.path = path
        self._disk = disk or Disk()
        self.used_backup = False
        """`load` returned the backup, which may be one change older."""

    def __repr__(self) -> str:
        return f"<JsonFile {self.path}>"

    @property
    def backup(self) -> Path:
        return backup_path(self.path)

    def load(self, read: Callable[[Any], _Table]) -> _Table | None:
        """Return the file's content, converted by `read`; None if neither the file nor its backup exists.

        The backup replaces a missing or damaged file: empty, not JSON, or refused by `read`. A damaged file is kept
        as `NAME.damaged-TIME`, TIME being that of its last change.

        Raises:
            StoreDamagedError: one of the two is damaged, and the other is missing or damaged. Nothing is changed.
            StorageError: a file cannot be read for another reason, such as its permissions.
        """
        damage: list[str] = []
        for path in (self.path, self.backup):
            try:
                table = read_json(path, read)
            except FileNotFoundError:
                continue
            except StoreDamagedError as error:
                damage.append(str(error))
                continue
            if path != self.path:
                self._use_backup(damage)
            return table
        if damage:
            raise StoreDamagedError(
                f"{'; '.join(damage)}. No intact copy is beside it: restore {self.path} from a backup, or move "
                "the damaged file away to start without its content"
            )
        return None

    def _use_backup(self, damage: list[str]) -> None:
        """Rename a damaged file, so that the next `save` does not replace the backup with it."""
        self.used_backup = True
        if not damage:
            log.warning("table missing, its backup is used file=%s backup=%s", self.path, self.backup)
            return
        kept = damaged_path(self.path)
        self._disk.replace(self.path, kept)
        log.warning(
            "table damaged, its backup is used file=%s backup=%s kept_as=%s reason=%s",
            *(self.path, self.backup, kept, damage[0]),
        )

    def save(self, value: object) -> None:
        """Replace the content; it is on disk before this returns. The previous content becomes the backup.

        Raises:
            FileWriteError: the file is as it was.
        """
        self.write([dumps(value, Dialect.LEGACY)])

    def write(self, pieces: Collection[bytes]) -> None:
        """As `save`, with the JSON text in pieces.

        Raises:
            FileWriteError: as `save`.
        """
        replace_file(self.path, pieces, disk=self._disk)


def read_json(path: Path, read: Callable[[Any], _Table]) -> _Table:
    """Return a file's content, converted by `read`.

    Raises:
        FileNotFoundError: there is no such file.
        StoreDamagedError: it is empty, not JSON, not readable on disk, or `read` refuses it.
        StorageError: it cannot be opened.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        kind = StoreDamagedError if error.errno == errno.EIO else StorageError
        raise kind(f"cannot read {path}: {error.strerror}") from error
    if not content.strip(b"\0"):
        raise StoreDamagedError(f"{path} is damaged: {f'{len(content)} bytes, all zero' if content else 'it is empty'}")
    try:
        return read(loads(content))
    except (JsonError, StoreDamagedError) as error:
        raise StoreDamagedError(f"{path} is damaged: {error}") from error
