"""Reads the journals of name servers: a timeline of records, and the routes at any point in time.

A journal may have a gigabyte: every read has a bound and runs in a thread, one read at a time.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from skyroute.console.errors import ConsoleError
from skyroute.nameserver.journal.index import read_index
from skyroute.nameserver.journal.reader import Damage, decode_lines, find_journal
from skyroute.nameserver.journal.replay import Replay
from skyroute.nameserver.journal.schema import Kind, Record
from skyroute.nameserver.journal.segments import closed_segments, open_segments, read_content, read_mark, whole_lines
from skyroute.nameserver.journal.selection import Selection

T = TypeVar("T")

TIMELINE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes read of each journal for a timeline: some tens of thousands of records."""
REPLAY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes read between the start of a name server and a point in time."""
_START: Final = Kind.SERVER_STARTED.value.encode()


class Entry(NamedTuple):
    """A record of a journal, or a damaged line."""

    at_ms: int
    """For a damaged line, the time of the record before it."""
    journal: str
    what: Record | Damage


@dataclass(slots=True)
class Timeline:
    """Records of one or more journals, newest first."""

    entries: list[Entry] = field(default_factory=list)
    cut: set[str] = field(default_factory=set)
    """Journals with older records that were not read."""
    unread: dict[str, str] = field(default_factory=dict)
    """Journals that cannot be read, with the reason."""


class Point(NamedTuple):
    """A position in a journal: after the record with a number, or after the last record up to a time."""

    seq: int | None = None
    time_ms: int | None = None

    def covers(self, seq: int, time_ms: int) -> bool:
        return seq <= self.seq if self.seq is not None else time_ms <= (self.time_ms or 0)


@dataclass(slots=True)
class Routes:
    """The route table of a name server at one point in time."""

    table: Replay
    last: Record
    """The last record that was applied."""
    has_start: bool = False
    gaps: int = 0
    damages: int = 0

    @property
    def is_certain(self) -> bool:
        return self.has_start and not self.gaps and not self.damages


class Journals:
    """The journals of a console by name."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = dict(paths)
        self._turn = asyncio.Semaphore(1)

    @property
    def names(self) -> list[str]:
        return list(self._paths)

    async def timeline(self, names: list[str], wanted: Callable[[], Selection]) -> Timeline:
        """Return the timeline of some journals; `wanted` returns a new selection for each."""
        return await self._in_turn(lambda: self._timeline(names, wanted))

    async def routes(self, name: str, *points: Point) -> list[Routes]:
        """Return the routes of a name server at some points in time.

        Raises:
            ConsoleError: the journal does not exist, cannot be read, or does not reach back that far.
        """
        if name not in self._paths:
            raise ConsoleError(f"unknown journal {name!r} (expected one of {', '.join(self._paths)})")
        try:
            return await self._in_turn(lambda: [self._routes(name, point) for point in points])
        except OSError as error:
            raise ConsoleError(f"journal {name} cannot be read: {error}") from error

    async def _in_turn(self, work: Callable[[], T]) -> T:
        async with self._turn:
            return await asyncio.to_thread(work)

    def _timeline(self, names: list[str], wanted: Callable[[], Selection]) -> Timeline:
        found = Timeline()
        each: list[list[Entry]] = []
        for name in names:
            selection = wanted()
            try:
                contents, whole = self._latest(name, selection)
            except (OSError, ConsoleError) as error:
                found.unread[name] = str(error)
                continue
            if not whole:
                found.cut.add(name)
            each.append(list(_entries(name, contents, selection))[::-1])
        found.entries = list(merge(*each, key=lambda entry: -entry.at_ms))
        return found

    def _latest(self, name: str, wanted: Selection) -> tuple[list[tuple[Path, bytes]], bool]:
        """Return the content of segments that may match, oldest first, and whether that is all of them."""
        contents: list[tuple[Path, bytes]] = []
        left = TIMELINE_BYTES_MAX
        # The brokers of a topic are in earlier records.
        for path, content in self._backwards(name, None if wanted.topic else wanted.since_ms, wanted.until_ms):
            if contents and len(content) > left:
                return contents[::-1], False
            contents.append((path, content))
            left -= len(content)
        return contents[::-1], True

    def _backwards(self, name: str, since_ms: int | None, until_ms: int | None) -> Iterator[tuple[Path, bytes]]:
        """Yield segments from newest to oldest, without those outside the time range in the index."""
        folder = find_journal(self._paths[name])
        if folder is None:
            raise ConsoleError(f"there is no journal in {self._paths[name]}: check the path")
        index = read_index(folder)
        paths = open_segments(folder) | closed_segments(folder)
        for first in sorted(paths, reverse=True):
            known = index.get(first)
            if known is not None and since_ms is not None and known.max_ms < since_ms:
                continue
            if known is not None and until_ms is not None and known.min_ms > until_ms:
                continue
            yield paths[first], whole_lines(read_content(paths[first]) or b"")

    def _routes(self, name: str, point: Point) -> Routes:
        contents: list[tuple[Path, bytes]] = []
        last: int | None = None
        left = REPLAY_BYTES_MAX
        for path, content in self._backwards(name, None, point.time_ms):
            if last is None:
                last = _last_covered(content, point)
            if last is None:
                continue
            contents.append((path, content))
            left -= len(content)
            if _has_start(content, last):
                break
            if left < 0:
                raise ConsoleError(
                    f"more than {REPLAY_BYTES_MAX >> 20} MiB lie between the start of the name server and this time: "
                    f"use Spark with `skyroute pipeline routes --journal {self._paths[name]} --at ...`"
                )
        if last is None:
            raise ConsoleError("the journal begins later: choose a later time")
        return _replayed(contents[::-1], last)


def _entries(name: str, contents: list[tuple[Path, bytes]], wanted: Selection) -> Iterator[Entry]:
    at_ms = seq = 0
    for path, content in contents:
        for found in decode_lines(content, path):
            if isinstance(found, Damage):
                if _is_within(at_ms, wanted):
                    yield Entry(at_ms, name, found)
            elif found.seq > seq:
                at_ms, seq = found.wall_ms, found.seq
                if wanted.wants(found):
                    yield Entry(at_ms, name, found)


def _is_within(at_ms: int, wanted: Selection) -> bool:
    return (wanted.since_ms is None or at_ms >= wanted.since_ms) and (
        wanted.until_ms is None or at_ms <= wanted.until_ms
    )


def _last_covered(content: bytes, point: Point) -> int | None:
    marks = (mark for line in content.splitlines() if (mark := read_mark(line)) is not None)
    return max((mark.seq for mark in marks if point.covers(mark.seq, mark.wall_ms)), default=None)


def _has_start(content: bytes, last: int) -> bool:
    marks = (read_mark(line) for line in content.splitlines() if _START in line)
    return any(mark is not None and mark.kind == Kind.SERVER_STARTED and mark.seq <= last for mark in marks)


def _replayed(contents: list[tuple[Path, bytes]], last: int) -> Routes:
    table, routes, damages = Replay(), None, 0
    for found in (line for path, content in contents for line in decode_lines(content, path)):
        if isinstance(found, Damage):
            damages += 1
            continue
        if found.seq > last:
            break
        if routes is None or found.kind == Kind.SERVER_STARTED:
            has_start = found.kind == Kind.SERVER_STARTED
            routes = Routes(table, found, has_start=has_start, damages=0 if has_start else damages)
        elif found.seq <= routes.last.seq:
            continue  # a segment that exists under both its names
        else:
            begins = found.seq if found.missing_from is None else found.missing_from
            routes.gaps += found.kind == Kind.GAP or begins > routes.last.seq + 1
            routes.damages += damages
        damages = 0
        table.apply(found)
        routes.last = found
        if found.seq == last:
            break
    if routes is None:
        raise ConsoleError("the journal has no valid record up to this time: run `skyroute journal verify`")
    return routes
