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
        """How often something changed."""
        self._saved = 0
        """Of these changes, so many are on the disk."""
        self._writing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<TableFile {self._file.path} unsaved={self._changes - self._saved}>"

    def load(self, read: Callable[[Any], _Table]) -> _Table | None:
        """Return what `read` makes of the file, or of its backup if the file is missing or damaged: see `JsonFile`.

        Raises:
            StorageError: neither can be used.
        """
        return self._file.load(read)

    def touch(self) -> None:
        """Note that something changed; whoever saves next writes it."""
        self._changes += 1

    async def save(self) -> None:
        """Return when everything that was touched before is on the disk.

        Raises:
            FileWriteError: the disk refuses; the file is as it was.
        """
        wanted = self._changes
        while self._saved < wanted:
            if self._writing is None:
                self._writing = asyncio.get_running_loop().create_task(self._write())
                self._writing.add_done_callback(_note_failure)
            # Whoever is cancelled does not want the others' write to end.
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
        """Return when no write is under way; how it ended is its askers' business."""
        if self._writing is not None:
            await asyncio.wait({self._writing})

    def save_now(self) -> None:
        """Write on the caller's thread, for those who end. Nothing may be under way: see `finish_writes`.

        Raises:
            FileWriteError: the disk refuses; the file is as it was.
        """
        if self._saved < self._changes:
            changes = self._changes
            self._file.write(list(self._render()))
            self._saved = changes


def _note_failure(writing: asyncio.Task[None]) -> None:
    """Its askers are told of it; where all have gone, the next one to save tries again."""
    if not writing.cancelled():
        writing.exception()
