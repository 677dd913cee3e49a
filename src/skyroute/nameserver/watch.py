"""Watches: long polls for route changes.

A watch is completed at once if something has changed already; otherwise it waits. A waiting watch costs no task, and a
change of a topic reads the watches of that topic only.

One change, timeout or closed connection may end a hundred thousand watches. They become due together, each with its
response, and are completed in turns of some milliseconds. What changes between is not in that response: its bookmark is
from before, so the client's next watch reports it at once.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable
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
NAMES_COMPARED_MAX: Final = 100_000
"""If waiting watches name more topics, a change of more than `CHANGE_NAMES_MAX` topics completes all of them."""
TURN_COST: Final = 20_000
"""Cost of the watches completed in one turn of the loop: some milliseconds. A topic costs 1."""
WATCH_COST: Final = 30
"""Cost of a watch besides its topics."""

_GO_AWAY: Final = Response(ResponseCode.GO_AWAY, "please go away")


class _Watch:
    """A waiting watch."""

    __slots__ = ("answer", "connection", "is_due", "is_open", "response", "tick", "topics")

    def __init__(self, connection: int, topics: tuple[str, ...] | None, tick: int) -> None:
        self.connection = connection
        self.topics = topics
        self.tick = tick
        self.answer = DeferredResponse()
        self.is_open = True
        self.is_due = False
        self.response: Callable[[_Watch], Response] | None = None
        """Makes its response, once it is due; None if its connection has ended."""


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
        self._own: dict[str, str] = {}
        """Each watched topic to the one object of its name that all watches share."""
        self._due: deque[_Watch] = deque()
        self._is_due = asyncio.Event()

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
        names = 0 if query.topics is None else len(query.topics)
        of_connection = self._by_connection.get(connection, {})
        if len(of_connection) >= WATCHES_A_CONNECTION_MAX:
            oldest = next(iter(of_connection))
            self._make_due((oldest,), self._timed_out())
            self._complete(oldest)
        if self._count >= self._watches_max:
            raise RefusedError(
                ResponseCode.SYSTEM_BUSY, f"{self._count} watches wait already, which is the maximum; retry later"
            )
        if self._names + names > self._names_max:
            raise RefusedError(
                ResponseCode.SYSTEM_BUSY,
                f"watches name {self._names} topics already, {names} more exceed the maximum of {self._names_max}",
            )
        topics = None if query.topics is None else tuple(map(self._own.setdefault, query.topics, query.topics))
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
        revision = self.history.revision
        compacted = self._encode((), revision, compacted=True)
        of_any = compacted if change is None else self._encode((change,), revision)
        self.woken += self._make_due(self._any, lambda _: of_any)
        if change is None and self._names > NAMES_COMPARED_MAX:
            self.woken += self._make_all_due(lambda _: compacted)
        else:
            self.woken += self._make_due_on(topics, revision, wall_ms)
        self.work()

    def _make_due_on(self, topics: Collection[str], revision: int, wall_ms: int) -> int:
        """Make the watches on these topics due. Their responses name the topics of each that have changed."""
        fewer, more = sorted((self._by_topic.keys(), topics), key=len)
        found = {topic for topic in fewer if topic in more}
        # Most watches that complete together name the same topics: encode their response once.
        encoded: dict[tuple[str, ...], Response] = {}

        def response_to(watch: _Watch) -> Response:
            names = tuple(sorted(found.intersection(watch.topics or ())))
            response = encoded.get(names)
            if response is None:
                part = RouteChange(revision=revision, wall_ms=wall_ms, topics=names)
                response = encoded[names] = self._encode((part,), revision)
            return response

        due: dict[_Watch, None] = {}
        for topic in sorted(found):
            due.update(self._by_topic[topic])
        return self._make_due(due, response_to)

    def publish_all(self) -> None:
        """Add a change of all topics, and complete all watches."""
        self.history.append_all()
        compacted = self._encode((), self.history.revision, compacted=True)
        self._make_all_due(lambda _: compacted)
        self.work()

    # End

    def expire(self, now: float) -> None:
        """Complete the watches that timed out."""
        tick = int(now * TICKS_A_SECOND)
        for past in [past for past in self._by_tick if past <= tick]:
            self._make_due(self._by_tick[past], self._timed_out())
        self.work()

    def drop(self, connection: int) -> None:
        """Have the watches of a closed connection removed, turn by turn: many may close at once."""
        watches = self._by_connection.get(connection, ())
        self._make_due(watches, None)
        for watch in watches:
            watch.response = None
        if watches:
            self._is_due.set()

    def close(self) -> None:
        """Complete all watches with GO_AWAY, so that a stop need not wait for them."""
        self._closed = True
        self._make_all_due(lambda _: _GO_AWAY)
        while self._due:
            self.work()

    async def run(self, monotonic: Callable[[], float]) -> None:
        """Complete timed-out watches, while the server runs."""
        while True:
            await asyncio.sleep(1 / TICKS_A_SECOND)
            self.expire(monotonic())

    async def finish(self) -> None:
        """Complete due watches, turn by turn, while the server runs."""
        while True:
            await self._is_due.wait()
            self.work()
            await asyncio.sleep(0)

    # Due watches

    def _make_due(self, watches: Iterable[_Watch], response: Callable[[_Watch], Response] | None) -> int:
        """Make those watches due that are not yet, and return their number."""
        before = len(self._due)
        for watch in watches:
            if not watch.is_due:
                watch.is_due, watch.response = True, response
                self._due.append(watch)
        return len(self._due) - before

    def _make_all_due(self, response: Callable[[_Watch], Response]) -> int:
        return sum(self._make_due(watches, response) for watches in self._by_connection.values())

    def _timed_out(self) -> Callable[[_Watch], Response]:
        response = self._encode((), self.history.revision)
        return lambda _: response

    def work(self) -> None:
        """Complete due watches, at most for one turn of the loop."""
        due, left = self._due, TURN_COST
        while due and left > 0:
            watch = due.popleft()
            left -= WATCH_COST + len(watch.topics or ())
            if watch.is_open:
                self._complete(watch)
        if due:
            self._is_due.set()
        else:
            self._is_due.clear()

    def _complete(self, watch: _Watch) -> None:
        self._remove(watch)
        if watch.response is not None:
            watch.answer.give(watch.response(watch))

    def _encode(self, changes: tuple[RouteChange, ...], revision: int, *, compacted: bool = False) -> Response:
        history = self.history
        return encode_watch_answer(
            WatchAnswer(Bookmark(history.life, revision), history.floor, changes, compacted=compacted)
        )

    def _remove(self, watch: _Watch) -> None:
        watch.is_open = False
        for topic in watch.topics or ():
            _discard(self._by_topic, topic, watch)
            if topic not in self._by_topic:
                del self._own[topic]
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
