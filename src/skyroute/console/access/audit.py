"""The audit log: one JSON object per line, only appended."""

import asyncio
import errno
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

log = logging.getLogger(__name__)

VALUE_CHARS_MAX: Final = 200
"""Longest value of a parameter; a message's body may have megabytes."""
READ_BYTES_MAX: Final = 1024 * 1024
"""Bytes read from the end of the file: some thousands of entries."""


class Entry(msgspec.Struct, frozen=True):
    """A change, or a sign-in."""

    time_ms: int
    user: str
    address: str
    action: str
    given: dict[str, str]
    failure: str | None = None


class AuditLog:
    """Appends to a file that only its owner can read. An action has two entries: before it begins and when it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writing = threading.Lock()

    async def write(
        self, time_ms: int, user: str, address: str, action: str, given: Mapping[str, str], failure: str | None = None
    ) -> None:
        """Append one entry; it is on disk when this returns.

        Raises:
            OSError: the file cannot be written.
        """
        kept = {name: value[:VALUE_CHARS_MAX] for name, value in given.items()}
        entry = Entry(time_ms, user, address, action, kept, failure)
        log.info("audit action=%s user=%s address=%s failure=%s", action, user, address, failure)
        await asyncio.to_thread(self._append, msgspec.json.encode(entry) + b"\n")

    def _append(self, line: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._writing:
            descriptor = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
            try:
                size = os.fstat(descriptor).st_size
                if os.write(descriptor, line) < len(line):
                    os.ftruncate(descriptor, size)  # half a line would damage the next one
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)

    def latest(self) -> list[Entry]:
        """Return the entries in the last `READ_BYTES_MAX` bytes, newest first. Invalid lines are skipped."""
        try:
            with self.path.open("rb") as file:
                begin = max(0, file.seek(0, os.SEEK_END) - READ_BYTES_MAX)
                file.seek(begin)
                lines = file.read().splitlines()[1 if begin else 0 :]
        except FileNotFoundError:
            return []
        found = []
        for line in reversed(lines):
            try:
                found.append(msgspec.json.decode(line, type=Entry))
            except (msgspec.MsgspecError, ValueError, RecursionError):
                continue
        return found
