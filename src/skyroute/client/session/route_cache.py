"""The routes of topics and the addresses of brokers, as the name servers last returned them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from skyroute.client.errors import NoRouteError
from skyroute.client.session.logical_queues import logical_leaders
from skyroute.client.session.shared_task import outcome_of
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import LOGICAL_BROKER_PREFIX
from skyroute.routing.topology import MASTER_ID, TopicRoute

log = logging.getLogger(__name__)

RouteListener = Callable[[str, TopicRoute | None, TopicRoute], None]
"""Called with a topic, its old route and its new route."""


class RouteCache:
    """Routes by topic. The poll task, the route watch and failed requests call `refresh` or `store`."""

    def __init__(self, fetch: Callable[[str], Awaitable[TopicRoute | None]]) -> None:
        self._fetch = fetch
        self._routes: dict[str, TopicRoute] = {}
        self._brokers: dict[str, Mapping[int, str]] = {}
        self._leaders: dict[str, Mapping[tuple[str, int], str | None]] = {}
        """By static topic, the broker name of each logical queue."""
        self._refreshes: dict[str, asyncio.Task[TopicRoute]] = {}
        self.listeners: set[RouteListener] = set()

    @property
    def topics(self) -> list[str]:
        """Every topic with a cached route."""
        return list(self._routes)

    @property
    def brokers(self) -> Mapping[str, Mapping[int, str]]:
        """The addresses of every broker in any cached route, by name and id."""
        return self._brokers

    def broker_addresses(self) -> set[str]:
        """Return the addresses of all brokers in cached routes."""
        return {address for addresses in self._brokers.values() for address in addresses.values()}

    def cached(self, topic: str) -> TopicRoute | None:
        """Return the cached route, or None."""
        return self._routes.get(topic)

    async def find(self, topic: str) -> TopicRoute:
        """Return the cached route of a topic, or read it from a name server.

        Raises:
            NoRouteError: the topic does not exist.
            NoNameServerError: no name server responds.
        """
        route = self._routes.get(topic)
        return route if route is not None else await self.refresh(topic)

    async def refresh(self, topic: str) -> TopicRoute:
        """Read a route from a name server now. Concurrent callers share one request.

        Raises:
            NoRouteError: the topic does not exist. The cached route is kept.
            NoNameServerError: no name server responds.
            NotRunningError: the session stopped meanwhile.
        """
        task = self._refreshes.get(topic)
        if task is None:
            task = asyncio.create_task(self._fetch_and_store(topic))
            self._refreshes[topic] = task
            task.add_done_callback(lambda done: self._refreshed(topic, done))
        return await outcome_of(task)

    async def reread(self, topic: str) -> TopicRoute:
        """Read a route that has changed. A running request does not count: its response may be older than the change.

        Raises:
            As `refresh`.
        """
        task = self._refreshes.get(topic)
        if task is not None:
            await asyncio.wait({task})
        return await self.refresh(topic)

    async def until_changed(self, topic: str, timeout_s: float) -> None:
        """Wait until the cached route of a topic changes, or until the time is over."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def listen(name: str, _before: TopicRoute | None, _after: TopicRoute) -> None:
            if name == topic and not changed.done():
                changed.set_result(None)

        self.listeners.add(listen)
        try:
            await asyncio.wait({changed}, timeout=timeout_s)
        finally:
            self.listeners.discard(listen)

    async def _fetch_and_store(self, topic: str) -> TopicRoute:
        route = await self._fetch(topic)
        if route is None:
            raise NoRouteError(
                f"no broker serves the topic {topic}: create it (skyroute admin updateTopic), or check its spelling"
            )
        self.store(topic, route)
        return route

    def _refreshed(self, topic: str, task: "asyncio.Task[TopicRoute]") -> None:
        del self._refreshes[topic]
        if not task.cancelled():
            task.exception()  # marks it as retrieved, in case all callers were cancelled

    def store(self, topic: str, route: TopicRoute) -> None:
        """Cache a route, and call the listeners if it differs."""
        before = self._routes.get(topic)
        # The newest route wins: others may still contain a broker's old addresses.
        self._brokers.update((group.name, group.addresses) for group in route.groups)
        if before == route:
            return
        self._routes[topic] = route
        if route.mappings:
            self._leaders[topic] = logical_leaders(route)
        else:
            self._leaders.pop(topic, None)
        if before is not None:
            self._drop_unnamed({group.name for group in before.groups} - {group.name for group in route.groups})
        log.info("route changed topic=%s brokers=%s", topic, ",".join(group.name for group in route.groups))
        for listener in tuple(self.listeners):
            listener(topic, before, route)

    def forget(self, topic: str) -> None:
        """Drop the route of a topic."""
        route = self._routes.pop(topic, None)
        self._leaders.pop(topic, None)
        if route is not None:
            self._drop_unnamed({group.name for group in route.groups})

    def _drop_unnamed(self, names: set[str]) -> None:
        """Drop those of these brokers that no route contains any more."""
        if names:
            for name in names - {group.name for route in self._routes.values() for group in route.groups}:
                del self._brokers[name]

    def broker_of(self, queue: QueueRef) -> str:
        """Return the name of a queue's broker: for a logical queue its leader, or its own name if none is known."""
        if not queue.broker_name.startswith(LOGICAL_BROKER_PREFIX):
            return queue.broker_name
        leaders = self._leaders.get(queue.topic, {})
        return leaders.get((queue.broker_name, queue.queue_id)) or queue.broker_name

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return the address of the broker with this name and id, or None."""
        addresses = self._brokers.get(broker_name)
        return None if addresses is None else addresses.get(broker_id)

    def any_address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return the address of the broker with this name and id, or with the next id, or with any id."""
        addresses = self._brokers.get(broker_name, {})
        for wanted in (broker_id, broker_id + 1):
            if wanted in addresses:
                return addresses[wanted]
        return next(iter(addresses.values()), None)

    def stop(self) -> None:
        """Cancel the running requests."""
        for task in list(self._refreshes.values()):
            task.cancel()
