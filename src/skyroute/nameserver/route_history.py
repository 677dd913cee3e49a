"""Recent route changes, each with a revision.

Revisions grow by one with every change. They start above those of earlier runs of the server, unless the clock went
back; that is for people who compare them. Clients compare `life`, an id that is new for each run, so a revision of
another run or server is never mistaken for one of this.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable
from heapq import merge
from itertools import groupby, islice
from operator import itemgetter
from typing import Final

from skyroute.clock import Clock
from skyroute.wire.calls.watch import Bookmark, RouteChange

NAMES_MAX: Final = 100_000
"""Maximum number of topic names in all changes."""
CHANGE_NAMES_MAX: Final = 2_000
"""A change of more topics is not kept: clients that miss it read all routes again."""
ANSWER_CHARS_MAX: Final = 1024 * 1024
"""Maximum size of a response, except for a single larger change; the next response continues."""
CHANGE_CHARS: Final = 64
"""Size of a change in a response besides its topics."""


def first_revision(clock: Clock) -> int:
    """Return a revision above those of earlier runs with fewer than a thousand changes per millisecond."""
    return int(clock.wall() * 1000) * 1000


class RouteHistory:
    """The changes after `floor`, up to `revision`."""

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
        """Revision of the last change."""
        self.floor = first_revision
        """Changes up to this revision are not kept."""
        self._names_max = names_max
        self._answer_chars_max = answer_chars_max
        self._names = 0
        self._changes: deque[RouteChange] = deque()
        self._by_topic: dict[str, deque[RouteChange]] = {}

    def __repr__(self) -> str:
        return f"<RouteHistory {self.life} after {self.floor} up to {self.revision} names={self._names}>"

    @property
    def now(self) -> Bookmark:
        """The bookmark after the last change."""
        return Bookmark(self.life, self.revision)

    def reaches(self, bookmark: Bookmark) -> bool:
        """Whether all changes after a bookmark are kept."""
        return bookmark.life == self.life and self.floor <= bookmark.revision <= self.revision

    def append(self, topics: Collection[str], wall_ms: int) -> RouteChange | None:
        """Add a change of these topics. None: too many topics, which counts as a change of all."""
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
        """Add a change of all topics."""
        self.revision += 1
        self.floor = self.revision
        self._changes.clear()
        self._by_topic.clear()
        self._names = 0

    def _drop_oldest(self) -> None:
        oldest = self._changes.popleft()
        self.floor = oldest.revision
        self._names -= len(oldest.topics)
        for topic in oldest.topics:
            changes = self._by_topic[topic]
            changes.popleft()
            if not changes:
                del self._by_topic[topic]

    def since(self, revision: int, topics: Collection[str] | None) -> tuple[tuple[RouteChange, ...], int]:
        """Return the changes after a revision, in order, and the revision up to which they are complete.

        Args:
            revision: From a bookmark for which `reaches` is true.
            topics: None for all.
        """
        if revision == self.revision:
            return (), revision
        return self._cut(self._any_since(revision) if topics is None else self._named_since(revision, topics))

    def _any_since(self, revision: int) -> Iterable[RouteChange]:
        # Every change above the floor is kept, so its position follows from its revision.
        return islice(self._changes, revision - self.floor, None)

    def _named_since(self, revision: int, topics: Collection[str]) -> Iterable[RouteChange]:
        # Both ways are lazy: the response may have room for the first few of a hundred thousand changes only.
        if sum(len(self._by_topic.get(topic, ())) for topic in topics) > len(self._changes):
            wanted = frozenset(topics)
            for change in self._any_since(revision):
                if names := wanted.intersection(change.topics):
                    yield RouteChange(revision=change.revision, wall_ms=change.wall_ms, topics=tuple(sorted(names)))
            return
        named = merge(*(self._of_topic(topic, revision) for topic in topics))
        for (at, wall_ms), some in groupby(named, key=itemgetter(0, 1)):
            yield RouteChange(revision=at, wall_ms=wall_ms, topics=tuple(topic for _, _, topic in some))

    def _of_topic(self, topic: str, revision: int) -> Iterable[tuple[int, int, str]]:
        """Revision and time of each change of a topic after a revision, with its name."""
        changes = self._by_topic.get(topic)
        if changes is None or changes[-1].revision <= revision:
            return ()
        later = islice(changes, bisect_right(changes, revision, key=_revision_of), None)
        return ((change.revision, change.wall_ms, topic) for change in later)

    def _cut(self, changes: Iterable[RouteChange]) -> tuple[tuple[RouteChange, ...], int]:
        taken: list[RouteChange] = []
        chars = 0
        for change in changes:
            chars += CHANGE_CHARS + sum(map(len, change.topics))
            if taken and chars > self._answer_chars_max:
                return tuple(taken), taken[-1].revision
            taken.append(change)
        return tuple(taken), self.revision


def _revision_of(change: RouteChange) -> int:
    return change.revision
