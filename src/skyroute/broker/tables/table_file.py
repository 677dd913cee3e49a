"""Saves a table to disk without blocking the event loop."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from skyroute.broker.store.files.json_file import JsonFile

_Table = TypeVar("_Table")


class TableFile:
    """Writes one JSON file on request. All requests that arrive during a write share the next write.

    `render` returns the file's text in pieces of a few milliseconds each; other requests are served in between. A
    change during the write may be missing from the text; the next write has it.
    """

    def __init__(self, file: JsonFile, render: Callable[[], Iterable[bytes]]) -> None:
        self._file = file
        self._render = render
        self._changes = 0
        """Number of changes."""
        self._saved = 0
        """Number of changes that are on the disk."""
        self._writing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<TableFile {self._file.path} unsaved={self._changes - self._saved}>"

    def load(self, read: Callable[[Any], _Table]) -> _Table | None:
        """Parse the file with `read`, or its backup if the file is missing or damaged: see `JsonFile`.

        Raises:
            StorageError: neither can be used.
        """
        return self._file.load(read)

    def touch(self) -> None:
        """Note a change; the next save writes it."""
        self._changes += 1

    async def save(self) -> None:
        """Return when all changes noted before are on the disk.

        Raises:
            FileWriteError: the write failed; the file is as it was.
        """
        wanted = self._changes
        while self._saved < wanted:
            if self._writing is None:
                self._writing = asyncio.get_running_loop().create_task(self._write())
                self._writing.add_done_callback(_note_failure)
            # A cancelled caller must not cancel the write of the others.
            await asyncio.shield(self._writing)

    async def _write(self) -> None:
        changes = self._changes
        try:
            pieces: list[bytes] = []
            for piece in self._render():
                pieces.append(piece)
                await asyncio.sleep(0)
            await asyncio.to_thread(self._file.write, pieces)
            self._saved = max(self._saved, changes)
        finally:
            self._writing = None

    async def finish_writes(self) -> None:
        """Return when no write is under way. Its callers of `save` get its error."""
        if self._writing is not None:
            await asyncio.wait({self._writing})

    def save_now(self) -> None:
        """Write on the caller's thread, at the end of a broker. No write may be under way: see `finish_writes`.

        Raises:
            FileWriteError: the write failed; the file is as it was.
        """
        if self._saved < self._changes:
            changes = self._changes
            self._file.write(list(self._render()))
            self._saved = changes


def _note_failure(writing: asyncio.Task[None]) -> None:
    """Retrieve the error: callers of `save` get it; if all were cancelled, the next save tries again."""
    if not writing.cancelled():
        writing.exception()
