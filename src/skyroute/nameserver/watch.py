"""Who waits for routes to change, and waking them.

Whoever asks is answered at once if something has changed already, and else parked: a parked watch costs no task, and a
change of a topic looks at the watches of that topic only.
"""

import asyncio
from collections.abc import Callable, Collection
from sys import intern
from typing import Final, TypeVar

from skyroute.nameserver.route_history import RouteHistory
from skyroute.remoting.dispatch import DeferredResponse
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.watch import Bookmark, RouteChange, WatchAnswer, WatchQuery, encode_watch_answer
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Response

K = TypeVar("K")

WATCHES_MAX: Final = 100_000
"""How many wait at most, over all connections."""
WATCHED_NAMES_MAX: Final = 1_000_000
"""How many topics they name together."""
WATCHES_A_CONNECTION_MAX: Final = 4
"""Of one connection: with one more, its oldest is answered as if its time were over."""
TICKS_A_SECOND: Final = 4
"""How exactly the end of a wait is kept."""

_GO_AWAY: Final = Response(ResponseCode.GO_AWAY, "please go away")


class _Watch:
    """One that waits."""

    __slots__ = ("answer", "connection", "tick", "topics")

    def __init__(self, connection: int, topics: tuple[str, ...] | None, tick: int) -> None:
        self.connection = connection
        self.topics = topics
        self.tick = tick
        self.answer = DeferredResponse()


class Watches:
    """Everyone who waits. A parked watch has heard of all that concerns it up to the history's last revision."""

    def __init__(
        self, history: RouteHistory, *, watches_max: int = WATCHES_MAX, names_max: int = WATCHED_NAMES_MAX
    ) -> None:
        self.history = history
        self._watches_max = watches_max
        self._names_max = names_max
        self._count = 0
        self._names = 0
        self._closed = False
        self.woken = 0
        """How many were answered because something they waited for changed."""
        # Dictionaries without values keep an order: whoever waits longest is answered first.
        self._by_topic: dict[str, dict[_Watch, None]] = {}
        self._any: dict[_Watch, None] = {}
        self._by_tick: dict[int, dict[_Watch, None]] = {}
        self._by_connection: dict[int, dict[_Watch, None]] = {}

    def __repr__(self) -> str:
        return f"<Watches {self._count} on {len(self._by_topic)} topics {self.history!r}>"

    def __len__(self) -> int:
        return self._count

    # Asking

    def watch(self, query: WatchQuery, *, connection: int, now: float) -> Response | DeferredResponse:
        """Answer at once, or when something changes, or when the time is over.

        Raises:
            RefusedError: too many wait already.
        """
        if self._closed:
            return _GO_AWAY
        history = self.history
        if query.after is None or not history.reaches(query.after):
            return self._encode((), history.revision, compacted=True)
        changes, revision = history.since(query.after.revision, query.topics)
        if changes or query.timeout_ms <= 0:
            return self._encode(changes, revision)
        return self._park(query, connection, now)

    def _park(self, query: WatchQuery, connection: int, now: float) -> DeferredResponse:
        topics = None if query.topics is None else tuple(map(intern, query.topics))
        names = 0 if topics is None else len(topics)
        of_connection = self._by_connection.get(connection, {})
        if len(of_connection) >= WATCHES_A_CONNECTION_MAX:
            self._time_over(next(iter(of_connection)))
        if self._count >= self._watches_max:
            raise RefusedError(
                ResponseCode.SYSTEM_BUSY, f"{self._count} watches wait already, which is all there is room for"
            )
        if self._names + names > self._names_max:
            raise RefusedError(
                ResponseCode.SYSTEM_BUSY,
                f"watches name {self._names} topics already, and there is room for {self._names_max}",
            )
        watch = _Watch(connection, topics, int((now + query.timeout_ms / 1000) * TICKS_A_SECOND) + 1)
        for topic in topics or ():
            self._by_topic.setdefault(topic, {})[watch] = None
        if topics is None:
            self._any[watch] = None
        self._by_tick.setdefault(watch.tick, {})[watch] = None
        self._by_connection.setdefault(connection, {})[watch] = None
        self._count += 1
        self._names += names
        return watch.answer

    # Changing

    def note(self, topics: Collection[str], wall_ms: int) -> None:
        """Take note that the routes of some topics changed, and answer whoever waits for them."""
        if not topics:
            return
        change = self.history.append(topics, wall_ms)
        waited = self._count
        revision = self.history.revision
        found: dict[_Watch, list[str]] = {}
        fewer, more = sorted((self._by_topic.keys(), topics), key=len)
        for topic in sorted({topic for topic in fewer if topic in more}):
            for watch in self._by_topic[topic]:
                found.setdefault(watch, []).append(topic)
        # Most who are woken together wait for the same, and are told the same.
        told: dict[tuple[str, ...], Response] = {}
        for watch, names in found.items():
            of_watch = tuple(names)
            response = told.get(of_watch)
            if response is None:
                part = RouteChange(revision=revision, wall_ms=wall_ms, topics=of_watch)
                response = told[of_watch] = self._encode((part,), revision)
            self._give(watch, response)
        if self._any:
            answer = self._encode((), revision, compacted=True) if change is None else self._encode((change,), revision)
            for watch in list(self._any):
                self._give(watch, answer)
        self.woken += waited - self._count

    def note_all(self) -> None:
        """Take note that any route may have changed, and have everyone read everything again."""
        self.history.append_all()
        self._answer_all(self._encode((), self.history.revision, compacted=True))

    # Ending

    def expire(self, now: float) -> None:
        """Answer those whose time is over."""
        tick = int(now * TICKS_A_SECOND)
        for past in [past for past in self._by_tick if past <= tick]:
            for watch in list(self._by_tick[past]):
                self._time_over(watch)

    def drop(self, connection: int) -> None:
        """Forget those of a connection that has ended."""
        for watch in list(self._by_connection.get(connection, ())):
            self._remove(watch)

    def close(self) -> None:
        """Send everyone away, so that a server that is about to stop need not wait for them."""
        self._closed = True
        self._answer_all(_GO_AWAY)

    async def run(self, monotonic: Callable[[], float]) -> None:
        """Look for those whose time is over, again and again."""
        while True:
            await asyncio.sleep(1 / TICKS_A_SECOND)
            self.expire(monotonic())

    # How it is done

    def _answer_all(self, response: Response) -> None:
        for watches in list(self._by_connection.values()):
            for watch in list(watches):
                self._give(watch, response)

    def _time_over(self, watch: _Watch) -> None:
        self._give(watch, self._encode((), self.history.revision))

    def _give(self, watch: _Watch, response: Response) -> None:
        self._remove(watch)
        watch.answer.give(response)

    def _encode(self, changes: tuple[RouteChange, ...], revision: int, *, compacted: bool = False) -> Response:
        history = self.history
        return encode_watch_answer(
            WatchAnswer(Bookmark(history.life, revision), history.floor, changes, compacted=compacted)
        )

    def _remove(self, watch: _Watch) -> None:
        for topic in watch.topics or ():
            _discard(self._by_topic, topic, watch)
        if watch.topics is None:
            del self._any[watch]
        _discard(self._by_tick, watch.tick, watch)
        _discard(self._by_connection, watch.connection, watch)
        self._count -= 1
        self._names -= len(watch.topics or ())


def _discard(table: dict[K, dict[_Watch, None]], key: K, watch: _Watch) -> None:
    watches = table[key]
    del watches[watch]
    if not watches:
        del table[key]
