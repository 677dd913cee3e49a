"""News of routes from a name server that tells them: one watch for all topics of a session.

Apache's name servers answer that they do not support it. Then, and whenever no watch can be had, nothing is lost:
the session asks for its routes again and again, as it does in any case.
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
"""How long a watch waits for more topics before it is put again with those that were added."""
RETRY_S: Final = 1.0
RETRY_S_MAX: Final = 30.0
"""How long it waits after a failure: twice as long after each, up to a bound."""
LOOK_S: Final = 5.0
"""How often it looks whether somebody else is asked for routes, where the one who is does not know watches."""
REREAD_AT_ONCE: Final = 16

Call = Callable[[Request, float], Awaitable[tuple[str, Response]]]
"""Asks the name server that is asked for routes, and returns who answered, and what."""


class RouteWatch:
    """Reads a route again as soon as its name server says that it changed."""

    def __init__(
        self,
        call: Call,
        routes: RouteCache,
        used_topics: Callable[[], set[str]],
        name_servers: NameServers,
        line_to: Callable[[str], object | None],
        timeout_s: float,
    ) -> None:
        """Nothing is asked yet.

        Args:
            call: How to ask.
            routes: What to keep fresh.
            used_topics: Which of them somebody uses.
            name_servers: Who is asked first.
            line_to: The connection to an address, if there is one; another one is another object.
            timeout_s: How much longer than the watch itself its answer may take.
        """
        self._call = call
        self._routes = routes
        self._used_topics = used_topics
        self._name_servers = name_servers
        self._line_to = line_to
        self._timeout_s = timeout_s
        self._heard: Bookmark | None = None
        """Up to where the name server has told us everything about `_covered`."""
        self._covered: set[str] = set()
        """Topics that were read after that, or that we have been told of since."""
        self._waiting: asyncio.Task[tuple[str, Response]] | None = None
        self._added = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self.is_told = False
        """The name server tells us of changes."""

    async def run(self) -> None:
        """Watch for as long as the session runs."""
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
                if self.is_told:
                    log.info("routes are polled until a name server tells of changes again reason=%s", error)
                self.is_told = False
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S_MAX)

    async def _step(self) -> None:
        """Wait for one piece of news."""
        self._added.clear()
        topics = self._used_topics()
        if not topics:
            await self._until_added()
            return
        if self._heard is not None:
            # What is new here may have changed after it was read and before we heard what we heard.
            await self._reread(topics - self._covered)
        if self._added.is_set():
            return
        asked = tuple(sorted(topics)) if len(topics) <= TOPICS_MAX else None
        is_late = self._heard is not None and not topics <= self._covered
        timeout_ms = int(RETRY_S * 1000) if is_late else TIMEOUT_MS
        answered = await self._ask(WatchQuery(asked, self._heard, timeout_ms))
        if answered is None:
            return
        address, response = answered
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            await self._until_another(address)
        elif response.code != ResponseCode.SUCCESS:
            raise refusal(response, address)
        else:
            self._take(decode_watch_answer(response), topics)
            await self._reread(topics - self._covered)

    async def _until_added(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                await self._added.wait()
        await asyncio.sleep(ADDED_S)  # a route is stored before whoever asked for it names its topic

    async def _ask(self, query: WatchQuery) -> tuple[str, Response] | None:
        """Return who answered, and what; None: topics were added meanwhile."""
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
        if not self.is_told:
            self.is_told = True
            log.info("the name server tells of changed routes topics=%d", len(topics))
        self._heard = answer.now
        if answer.compacted:
            self._covered.clear()
        else:
            self._covered.difference_update(*(change.topics for change in answer.changes))
            self._covered &= topics

    async def _reread(self, topics: Iterable[str]) -> None:
        """Read routes again; those that cannot be read now stay uncovered, and are tried again with the next step."""
        turns = asyncio.Semaphore(REREAD_AT_ONCE)

        async def read(topic: str) -> None:
            async with turns:
                try:
                    await self._routes.reread(topic)
                except NoRouteError:
                    pass  # it is no more, or not yet
                except SkyrouteError as error:
                    log.info("route not read again topic=%s reason=%s", topic, error)
                    return
            self._covered.add(topic)

        await asyncio.gather(*map(read, topics))

    async def _until_another(self, address: str) -> None:
        """Wait until somebody else is asked for routes, or the same one on another connection."""
        line, self.is_told = self._line_to(address), False
        log.debug("the name server does not tell of changed routes address=%s", address)
        while True:
            await asyncio.sleep(LOOK_S)
            if self._name_servers.preferred != address or self._line_to(address) is not line:
                return

    # What is new to the session

    def look(self) -> None:
        """See whether somebody uses a topic that is not watched yet, soon."""
        self._added.set()
        if self._timer is None and self._waiting is not None:
            self._timer = asyncio.get_running_loop().call_later(ADDED_S, self._put_again)

    def _on_route(self, topic: str, before: TopicRoute | None, _: TopicRoute) -> None:
        if before is None and topic not in self._covered:
            self.look()

    def _put_again(self) -> None:
        self._timer = None
        if self._waiting is not None and not self._used_topics() <= self._covered:
            self._waiting.cancel()
