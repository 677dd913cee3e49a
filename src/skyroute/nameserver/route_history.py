"""Which routes changed of late, each change under a revision of its own.

Revisions grow by one with every change, and begin above those of any earlier life of the server as long as the clock
does not go back. That is for people: what tells lives apart is a name that is new for each, so a revision of another
life, or of another server, is never taken for one of this.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable
from typing import Final

from skyroute.clock import Clock
from skyroute.wire.calls.watch import Bookmark, RouteChange

NAMES_MAX: Final = 100_000
"""How many names of topics are kept, over all changes."""
CHANGE_NAMES_MAX: Final = 2_000
"""A change of more topics at once is not kept: whoever misses it has most to read again anyway."""
ANSWER_CHARS_MAX: Final = 1024 * 1024
"""How much is told in one answer, or one change if that alone has more; the rest follows with the next."""


def first_revision(clock: Clock) -> int:
    """Return a revision above those of earlier lives: as if there had been a thousand changes a millisecond."""
    return int(clock.wall() * 1000) * 1000


class RouteHistory:
    """The changes after `floor`, up to `revision`. It owns both, and knows nothing of who wants to hear of them."""

    def __init__(
        self,
        life: str,
        first_revision: int,
        *,
        names_max: int = NAMES_MAX,
        answer_chars_max: int = ANSWER_CHARS_MAX,
    ) -> None:
        self.life = life
        self.revision = first_revision
        """Of the last change."""
        self.floor = first_revision
        """Changes up to this one are not known any more."""
        self._names_max = names_max
        self._answer_chars_max = answer_chars_max
        self._names = 0
        self._changes: deque[RouteChange] = deque()
        self._by_topic: dict[str, deque[RouteChange]] = {}

    def __repr__(self) -> str:
        return f"<RouteHistory {self.life} after {self.floor} up to {self.revision} names={self._names}>"

    @property
    def now(self) -> Bookmark:
        """For whoever has read everything."""
        return Bookmark(self.life, self.revision)

    def reaches(self, bookmark: Bookmark) -> bool:
        """Whether all that changed after a bookmark is known."""
        return bookmark.life == self.life and self.floor <= bookmark.revision <= self.revision

    def append(self, topics: Collection[str], wall_ms: int) -> RouteChange | None:
        """Take note that the routes of some topics changed. None: of too many, which counts as all."""
        if len(topics) > CHANGE_NAMES_MAX:
            self.append_all()
            return None
        self.revision += 1
        change = RouteChange(revision=self.revision, wall_ms=wall_ms, topics=tuple(sorted(topics)))
        self._changes.append(change)
        self._names += len(change.topics)
        for topic in change.topics:
            self._by_topic.setdefault(topic, deque()).append(change)
        while self._names > self._names_max:
            self._drop_oldest()
        return change

    def append_all(self) -> None:
        """Take note that any route may have changed."""
        self.revision += 1
        self.floor = self.revision
        self._changes.clear()
        self._by_topic.clear()
        self._names = 0

    def _drop_oldest(self) -> None:
        gone = self._changes.popleft()
        self.floor = gone.revision
        self._names -= len(gone.topics)
        for topic in gone.topics:
            changes = self._by_topic[topic]
            changes.popleft()
            if not changes:
                del self._by_topic[topic]

    def since(self, revision: int, topics: Collection[str] | None) -> tuple[tuple[RouteChange, ...], int]:
        """Return what changed after a revision, in order, and the revision up to which this is all.

        Args:
            revision: One that is reached.
            topics: Which to look at; None for any.
        """
        if revision == self.revision:
            return (), revision
        return self._cut(self._any_since(revision) if topics is None else self._named_since(revision, topics))

    def _any_since(self, revision: int) -> Iterable[RouteChange]:
        # Every change above the floor is kept, so its place follows from its revision.
        first = revision - self.floor
        return (self._changes[at] for at in range(first, len(self._changes)))

    def _named_since(self, revision: int, topics: Collection[str]) -> Iterable[RouteChange]:
        found: dict[int, list[str]] = {}
        times: dict[int, int] = {}
        for topic in topics:
            changes = self._by_topic.get(topic)
            if changes is None or changes[-1].revision <= revision:
                continue
            for at in range(bisect_right(changes, revision, key=_revision_of), len(changes)):
                change = changes[at]
                found.setdefault(change.revision, []).append(topic)
                times[change.revision] = change.wall_ms
        return (RouteChange(revision=at, wall_ms=times[at], topics=tuple(sorted(found[at]))) for at in sorted(found))

    def _cut(self, changes: Iterable[RouteChange]) -> tuple[tuple[RouteChange, ...], int]:
        told: list[RouteChange] = []
        chars = 0
        for change in changes:
            chars += sum(map(len, change.topics))
            if told and chars > self._answer_chars_max:
                return tuple(told), told[-1].revision
            told.append(change)
        return tuple(told), self.revision


def _revision_of(change: RouteChange) -> int:
    return change.revision
