"""The index of a journal: a summary of each closed segment. It can be rebuilt from the segments at any time."""

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
"""Spark and other readers of folders skip names that start with an underscore."""


class _IndexFile(msgspec.Struct):
    v: int
    segments: list[Segment]


@dataclass(slots=True)
class Index:
    """Closed segments by their first sequence number, in order."""

    folder: Path
    segments: dict[int, Segment] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The last sequence number of all segments."""
        return max((segment.last for segment in self.segments.values()), default=0)

    def add(self, segment: Segment) -> None:
        self.segments[segment.first] = segment

    def write(self, disk: Disk) -> None:
        """Replace the file. An error is only logged: the next start rebuilds the index."""
        content = msgspec.json.encode(_IndexFile(1, list(self.segments.values())))
        try:
            replace_file(self.folder / INDEX_NAME, content, keep_backup=False, disk=disk)
        except FileWriteError as error:
            log.debug("journal index not written reason=%s", error)


def read_index(folder: Path) -> dict[int, Segment]:
    """Return the segments in the index file; none if it is missing or damaged."""
    try:
        stored = msgspec.json.decode((folder / INDEX_NAME).read_bytes(), type=_IndexFile)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    return {segment.first: segment for segment in stored.segments}


def load_index(folder: Path) -> tuple[Index, list[Segment]]:
    """Return the index of the existing segments, and the segments in the index file whose files are missing.

    Reads only segments that are not in the index file. A closed segment never changes: if it differs from the index, it
    is damaged. The entry stays, so that `verify` finds the damage and no sequence number is used twice.

    Raises:
        OSError: the folder or a segment cannot be read.
    """
    stored, paths = read_index(folder), closed_segments(folder)
    index = Index(folder)
    for first, path in paths.items():
        known = stored.get(first) or summarize(path.read_bytes(), first)
        if known is not None:
            index.segments[first] = known
    return index, [segment for first, segment in stored.items() if first not in paths]
