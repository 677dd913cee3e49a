"""Route changes that a Skyroute name server reports: one long poll for all topics of a session.

Apache's name servers do not support it. Without it, routes are refreshed by the session's poll alone.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from skyroute.client.errors import NoRouteError, refusal
from skyroute.client.session.name_servers import NameServers
from skyroute.client.session.route_cache import RouteCache
from skyroute.errors import SkyrouteError
from skyroute.routing.topology import TopicRoute
from skyroute.wire.calls.watch import (
    TIMEOUT_MS,
    TOPICS_MAX,
    Bookmark,
    WatchAnswer,
    WatchQuery,
    decode_watch_answer,
    encode_watch,
)
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response

log = logging.getLogger(__name__)

ADDED_S: Final = 0.1
"""How long the watch waits for more new topics, before it sends a request with them."""
RETRY_S: Final = 1.0
RETRY_S_MAX: Final = 30.0
"""Pause after a failure; it doubles with each failure up to the maximum."""
GAP_S: Final = 0.02
"""Minimum time between two responses: a name server that responds at once, again and again, causes no busy loop."""
LOOK_S: Final = 5.0
"""How often it checks for another name server, if the current one does not support watches."""
REREADS_MAX: Final = 16
"""Maximum number of routes that are read at once."""

Call = Callable[[Request, float], Awaitable[tuple[str, Response]]]
"""Sends a request to the preferred name server, and returns its address and its response."""


class RouteWatch:
    """Reads a route again as soon as the name server reports a change."""

    def __init__(
        self,
        call: Call,
        routes: RouteCache,
        used_topics: Callable[[], set[str]],
        name_servers: NameServers,
        connection_to: Callable[[str], object | None],
        timeout_s: float,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            call: sends a request.
            routes: the routes to refresh.
            used_topics: returns the topics to watch.
            name_servers: names the preferred name server.
            connection_to: returns the connection to an address, if there is one.
            timeout_s: how much longer than the long poll its response may take.
        """
        self._call = call
        self._routes = routes
        self._used_topics = used_topics
        self._name_servers = name_servers
        self._connection_to = connection_to
        self._timeout_s = timeout_s
        self._bookmark: Bookmark | None = None
        """All changes of `_covered` topics up to this point have been reported."""
        self._covered: set[str] = set()
        """Topics whose route was read after the bookmark."""
        self._waiting: asyncio.Task[tuple[str, Response]] | None = None
        self._added = asyncio.Event()
        self._next_at = 0.0
        """When the next request may be sent."""
        self._timer: asyncio.TimerHandle | None = None
        self.is_active = False
        """Whether the name server reports changes."""

    async def run(self) -> None:
        """Watch until the session stops."""
        self._routes.listeners.add(self._on_route)
        try:
            await self._run()
        finally:
            self._routes.listeners.discard(self._on_route)
            if self._timer is not None:
                self._timer.cancel()

    async def _run(self) -> None:
        pause_s = RETRY_S
        while True:
            try:
                await self._step()
                pause_s = RETRY_S
            except SkyrouteError as error:
                if self.is_active:
                    log.info("route watch lost, routes are polled reason=%s", error)
                self.is_active = False
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S_MAX)

    async def _step(self) -> None:
        """Wait for one report of changes, and read the changed routes."""
        self._added.clear()
        topics = self._used_topics()
        if not topics:
            await self._wait_for_topics()
            return
        if self._bookmark is not None:
            # A new topic may have changed between the read of its route and the bookmark.
            await self._reread(topics - self._covered)
        if self._added.is_set():
            return
        watched = tuple(sorted(topics)) if len(topics) <= TOPICS_MAX else None
        is_late = self._bookmark is not None and not topics <= self._covered
        timeout_ms = int(RETRY_S * 1000) if is_late else TIMEOUT_MS
        outcome = await self._send(WatchQuery(watched, self._bookmark, timeout_ms))
        if outcome is None:
            return
        address, response = outcome
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            await self._wait_for_another_server(address)
        elif response.code != ResponseCode.SUCCESS:
            raise refusal(response, address)
        else:
            self._take(decode_watch_answer(response), topics)
            await self._reread(topics - self._covered)
            await self._keep_gap()

    async def _keep_gap(self) -> None:
        now = asyncio.get_running_loop().time()
        wait_s = min(max(self._next_at - now, 0.0), GAP_S)  # after a restart, the time may be that of another loop
        self._next_at = now + wait_s + GAP_S
        if wait_s:
            await asyncio.sleep(wait_s)

    async def _wait_for_topics(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                await self._added.wait()
        await asyncio.sleep(ADDED_S)  # a route is cached before its producer or consumer reports the topic

    async def _send(self, query: WatchQuery) -> tuple[str, Response] | None:
        """Return the name server's address and response; None: topics were added meanwhile."""
        call = self._call(encode_watch(query), query.timeout_ms / 1000 + self._timeout_s)
        self._waiting = asyncio.ensure_future(call)
        try:
            return await self._waiting
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if own is not None and own.cancelling():
                raise
            return None
        finally:
            self._waiting = None

    def _take(self, answer: WatchAnswer, topics: set[str]) -> None:
        if not self.is_active:
            self.is_active = True
            log.info("route watch active topics=%d", len(topics))
        self._bookmark = answer.now
        if answer.compacted:
            self._covered.clear()
        else:
            self._covered.difference_update(*(change.topics for change in answer.changes))
            self._covered &= topics

    async def _reread(self, topics: Iterable[str]) -> None:
        """Read routes again. A route that cannot be read stays uncovered, and is read in the next step."""
        slots = asyncio.Semaphore(REREADS_MAX)

        async def read(topic: str) -> None:
            async with slots:
                try:
                    await self._routes.reread(topic)
                except NoRouteError:
                    pass  # the topic does not exist
                except SkyrouteError as error:
                    log.info("route not read again topic=%s reason=%s", topic, error)
                    return
            self._covered.add(topic)

        await asyncio.gather(*map(read, topics))

    async def _wait_for_another_server(self, address: str) -> None:
        """Wait until another name server is preferred, or the same one has a new connection."""
        connection, self.is_active = self._connection_to(address), False
        log.debug("route watch not supported address=%s", address)
        while True:
            await asyncio.sleep(LOOK_S)
            if self._name_servers.preferred != address or self._connection_to(address) is not connection:
                return

    def check_topics_soon(self) -> None:
        """Send a new request soon if a topic is not watched yet."""
        self._added.set()
        if self._timer is None and self._waiting is not None:
            self._timer = asyncio.get_running_loop().call_later(ADDED_S, self._restart)

    def _on_route(self, topic: str, before: TopicRoute | None, _: TopicRoute) -> None:
        if before is None and topic not in self._covered:
            self.check_topics_soon()

    def _restart(self) -> None:
        self._timer = None
        if self._waiting is not None and not self._used_topics() <= self._covered:
            self._waiting.cancel()
