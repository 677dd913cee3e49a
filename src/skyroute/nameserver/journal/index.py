"""Which segments there are and what they cover, so that nobody has to read them to know. It can always be made anew."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from skyroute.files.disk import Disk
from skyroute.files.errors import FileWriteError
from skyroute.files.replace import replace_file
from skyroute.nameserver.journal.segments import Segment, closed_segments, summarize

log = logging.getLogger(__name__)

INDEX_NAME: Final = "_index.json"
"""Readers of many files pass over names that begin so."""


class _IndexFile(msgspec.Struct):
    v: int
    segments: list[Segment]


@dataclass(slots=True)
class Index:
    """Segments by their first number, in order."""

    folder: Path
    segments: dict[int, Segment] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The largest number that any segment covers."""
        return max((segment.last for segment in self.segments.values()), default=0)

    def add(self, segment: Segment) -> None:
        self.segments[segment.first] = segment

    def write(self, disk: Disk) -> None:
        """Replace the file. A disk that refuses does no harm: the next start makes the index anew."""
        content = msgspec.json.encode(_IndexFile(1, list(self.segments.values())))
        try:
            replace_file(self.folder / INDEX_NAME, content, keep_backup=False, disk=disk)
        except FileWriteError as error:
            log.debug("journal index not written reason=%s", error)


def read_index(folder: Path) -> dict[int, Segment]:
    """What the file says; nothing, if it is not there or cannot be understood."""
    try:
        stored = msgspec.json.decode((folder / INDEX_NAME).read_bytes(), type=_IndexFile)
    except (OSError, msgspec.MsgspecError, ValueError):
        return {}
    return {segment.first: segment for segment in stored.segments}


def load_index(folder: Path) -> tuple[Index, list[Segment]]:
    """The index of the files that are there, reading only those it does not know, and the segments somebody removed.

    A closed segment never changes: where the file says otherwise than the index, the file is damaged. What the index
    knows stays, so that damage is still found later and no number that was in it is given again.

    Raises:
        OSError: The folder or a segment cannot be read.
    """
    stored, paths = read_index(folder), closed_segments(folder)
    index = Index(folder)
    for first, path in paths.items():
        known = stored.get(first) or summarize(path.read_bytes())
        if known is not None:
            index.segments[first] = known
    return index, [segment for first, segment in stored.items() if first not in paths]
