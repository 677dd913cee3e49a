"""Watches: long polls for route changes.

A watch is completed at once if something has changed already; otherwise it waits. A waiting watch costs no task, and a
change of a topic reads the watches of that topic only.
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
"""Maximum number of waiting watches, over all connections."""
WATCHED_NAMES_MAX: Final = 1_000_000
"""Maximum number of topics that all waiting watches name."""
WATCHES_A_CONNECTION_MAX: Final = 4
"""Maximum per connection; one more completes its oldest watch as if it had timed out."""
TICKS_A_SECOND: Final = 4
"""Resolution of timeouts."""

_GO_AWAY: Final = Response(ResponseCode.GO_AWAY, "please go away")


class _Watch:
    """A waiting watch."""

    __slots__ = ("answer", "connection", "tick", "topics")

    def __init__(self, connection: int, topics: tuple[str, ...] | None, tick: int) -> None:
        self.connection = connection
        self.topics = topics
        self.tick = tick
        self.answer = DeferredResponse()


class Watches:
    """All waiting watches. None of their topics has changed up to the history's last revision."""

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
        """Number of watches completed by a change."""
        # Dictionaries as ordered sets: the oldest watch is completed first.
        self._by_topic: dict[str, dict[_Watch, None]] = {}
        self._any: dict[_Watch, None] = {}
        self._by_tick: dict[int, dict[_Watch, None]] = {}
        self._by_connection: dict[int, dict[_Watch, None]] = {}

    def __repr__(self) -> str:
        return f"<Watches {self._count} on {len(self._by_topic)} topics {self.history!r}>"

    def __len__(self) -> int:
        return self._count

    # Add

    def watch(self, query: WatchQuery, *, connection: int, now: float) -> Response | DeferredResponse:
        """Respond at once if something has changed; otherwise after a change or the timeout.

        Raises:
            RefusedError: too many watches wait already.
        """
        if self._closed:
            return _GO_AWAY
        history = self.history
        if query.after is None or not history.reaches(query.after):
            return self._encode((), history.revision, compacted=True)
        changes, revision = history.since(query.after.revision, query.topics)
        if changes or query.timeout_ms <= 0:
            return self._encode(changes, revision)
        return self._wait(query, connection, now)

    def _wait(self, query: WatchQuery, connection: int, now: float) -> DeferredResponse:
        topics = None if query.topics is None else tuple(map(intern, query.topics))
        names = 0 if topics is None else len(topics)
        of_connection = self._by_connection.get(connection, {})
        if len(of_connection) >= WATCHES_A_CONNECTION_MAX:
            self._time_out(next(iter(of_connection)))
        if self._count >= self._watches_max:
            raise RefusedError(
                ResponseCode.SYSTEM_BUSY, f"{self._count} watches wait already, which is the maximum; retry later"
            )
        if self._names + names > self._names_max:
            raise RefusedError(
                ResponseCode.SYSTEM_BUSY,
                f"watches name {self._names} topics already, {names} more exceed the maximum of {self._names_max}",
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

    # Complete

    def publish(self, topics: Collection[str], wall_ms: int) -> None:
        """Add a route change of these topics to the history, and complete the watches on them."""
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
        # Most watches that complete together name the same topics: encode their response once.
        encoded: dict[tuple[str, ...], Response] = {}
        for watch, names in found.items():
            of_watch = tuple(names)
            response = encoded.get(of_watch)
            if response is None:
                part = RouteChange(revision=revision, wall_ms=wall_ms, topics=of_watch)
                response = encoded[of_watch] = self._encode((part,), revision)
            self._complete(watch, response)
        if self._any:
            answer = self._encode((), revision, compacted=True) if change is None else self._encode((change,), revision)
            for watch in list(self._any):
                self._complete(watch, answer)
        self.woken += waited - self._count

    def publish_all(self) -> None:
        """Add a change of all topics, and complete all watches."""
        self.history.append_all()
        self._complete_all(self._encode((), self.history.revision, compacted=True))

    # End

    def expire(self, now: float) -> None:
        """Complete the watches that timed out."""
        tick = int(now * TICKS_A_SECOND)
        for past in [past for past in self._by_tick if past <= tick]:
            for watch in list(self._by_tick[past]):
                self._time_out(watch)

    def drop(self, connection: int) -> None:
        """Remove the watches of a closed connection."""
        for watch in list(self._by_connection.get(connection, ())):
            self._remove(watch)

    def close(self) -> None:
        """Complete all watches with GO_AWAY, so that a stop need not wait for them."""
        self._closed = True
        self._complete_all(_GO_AWAY)

    async def run(self, monotonic: Callable[[], float]) -> None:
        """Complete timed-out watches, while the server runs."""
        while True:
            await asyncio.sleep(1 / TICKS_A_SECOND)
            self.expire(monotonic())

    # Internal

    def _complete_all(self, response: Response) -> None:
        for watches in list(self._by_connection.values()):
            for watch in list(watches):
                self._complete(watch, response)

    def _time_out(self, watch: _Watch) -> None:
        self._complete(watch, self._encode((), self.history.revision))

    def _complete(self, watch: _Watch, response: Response) -> None:
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
