"""Writes audit records as lines of JSON into files of bounded size and number."""

import os
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from skyroute.access.audit import AuditRecord
from skyroute.files.disk import write_error

FILE_BYTES: Final = 16 * 1024 * 1024
"""Size at which the current file is closed and the next one begins."""
FILES_KEPT: Final = 8
"""Number of closed files that are kept; the oldest is removed."""
REFUSALS_MAX: Final = 20
"""Maximum number of different refusals between two writes; further ones are counted by source, then together.

So a stranger cannot fill all files with refusals, and push out the records of changes, within minutes.
"""
SEVERAL: Final = "several"
"""Reason in a record that stands for different refusals."""
WAITING_MAX: Final = 10_000
"""Maximum number of records that wait to be written; further ones are only counted."""


class AuditLog:
    """Collects audit records on the event loop, and writes them where waiting for the disk is allowed.

    `put` never waits. The caller calls `write` with what `take` returns in a thread, one call at a time. Closed files
    are named `NAME.1`, the newest, to `NAME.8`.

    Args:
        path: The current file. Only its owner can read it.
        file_bytes: Size at which the next file begins.
        files_kept: Number of closed files to keep.
    """

    def __init__(self, path: Path, *, file_bytes: int = FILE_BYTES, files_kept: int = FILES_KEPT) -> None:
        self.path = path
        self._file_bytes = file_bytes
        self._files_kept = files_kept
        self._waiting: list[AuditRecord] = []
        self._refusals: dict[tuple[object, ...], int] = {}
        """Places of the refusals among them, by all but the time."""
        self.dropped = 0
        """Number of records that were not written, because too many waited or the disk refused them."""

    def put(self, record: AuditRecord) -> None:
        """Add a record. Equal refusals become one."""
        if not record.is_allowed:
            self._put_refusal(record)
        elif len(self._waiting) < WAITING_MAX:
            self._waiting.append(record)
        else:
            self.dropped += 1

    def _put_refusal(self, record: AuditRecord) -> None:
        key: tuple[object, ...] = (record.source, record.code, record.user, record.needs, record.reason)
        if key not in self._refusals and len(self._refusals) >= REFUSALS_MAX:
            record = replace(record, code=0, request="", user="", door="", needs=(), reason=SEVERAL)
            key = (record.source,)
            if key not in self._refusals and len(self._refusals) >= 2 * REFUSALS_MAX:
                record, key = replace(record, source=""), ()
        place = self._refusals.setdefault(key, len(self._waiting))
        if place == len(self._waiting):
            self._waiting.append(record)
        else:
            self._waiting[place] = replace(self._waiting[place], count=self._waiting[place].count + 1)

    @property
    def waiting(self) -> int:
        """Number of records that wait to be written."""
        return len(self._waiting)

    def take(self) -> list[AuditRecord]:
        """Return the waiting records, oldest first, for `write`."""
        taken, self._waiting = self._waiting, []
        self._refusals.clear()
        return taken

    def write(self, records: Iterable[AuditRecord]) -> None:
        """Append records; they are on disk when this returns.

        Raises:
            FileWriteError: the disk refused them. They are counted in `dropped`, and no half line is left.
        """
        lines = [record.line() for record in records]
        written = 0
        try:
            while written < len(lines):
                written += self._append(lines[written:])
        except OSError as error:
            self.dropped += len(lines) - written
            raise write_error(error, self.path) from error

    def _append(self, lines: list[bytes]) -> int:
        """Append as many lines as the current file has room for, at least one to an empty file; return how many."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            size = begin = os.fstat(descriptor).st_size
            count = 0
            while count < len(lines) and (not size or size + len(lines[count]) <= self._file_bytes):
                size += len(lines[count])
                count += 1
            if count:
                _write_whole(descriptor, b"".join(lines[:count]), begin)
        finally:
            os.close(descriptor)
        if not count:
            self._rotate()
        return count

    def _rotate(self) -> None:
        files = [self.path]
        files += [self.path.with_name(f"{self.path.name}.{number}") for number in range(1, self._files_kept + 1)]
        for newer, older in reversed(list(pairwise(files))):
            if newer.exists():
                newer.replace(older)
        if not self._files_kept:
            self.path.unlink()


def _write_whole(descriptor: int, data: bytes, begin: int) -> None:
    try:
        written = os.write(descriptor, data)
        while written < len(data):
            written += os.write(descriptor, data[written:])
        os.fdatasync(descriptor)
    except OSError:
        os.ftruncate(descriptor, begin)
        raise
