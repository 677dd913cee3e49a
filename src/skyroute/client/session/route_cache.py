"""What the name servers said last: where each topic is, and where each broker is."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from skyroute.client.errors import NoRouteError
from skyroute.client.session.shared_task import outcome_of
from skyroute.routing.topology import MASTER_ID, TopicRoute

log = logging.getLogger(__name__)

RouteListener = Callable[[str, TopicRoute | None, TopicRoute], None]
"""Told of a topic, its route until now, and its new one."""


class RouteCache:
    """Routes by topic. Who brings news of a change is not its business: anybody may call `refresh` or `store`."""

    def __init__(self, fetch: Callable[[str], Awaitable[TopicRoute | None]]) -> None:
        self._fetch = fetch
        self._routes: dict[str, TopicRoute] = {}
        self._brokers: dict[str, Mapping[int, str]] = {}
        self._asking: dict[str, asyncio.Task[TopicRoute]] = {}
        self.listeners: set[RouteListener] = set()

    @property
    def topics(self) -> list[str]:
        """Every topic whose route is known."""
        return list(self._routes)

    @property
    def brokers(self) -> Mapping[str, Mapping[int, str]]:
        """The addresses of every broker in any known route, by name and id."""
        return self._brokers

    def cached(self, topic: str) -> TopicRoute | None:
        """Return the route as last heard, or None."""
        return self._routes.get(topic)

    async def find(self, topic: str) -> TopicRoute:
        """Return the route of a topic, as last heard or else asked for now.

        Raises:
            NoRouteError: no name server knows one.
            NoNameServerError: none answers.
        """
        route = self._routes.get(topic)
        return route if route is not None else await self.refresh(topic)

    async def refresh(self, topic: str) -> TopicRoute:
        """Ask for a route now; all who ask at the same time share one question.

        Raises:
            NoRouteError: no name server knows one. What was known before stays.
            NoNameServerError: none answers.
            NotRunningError: the session stopped meanwhile.
        """
        task = self._asking.get(topic)
        if task is None:
            task = asyncio.create_task(self._ask(topic))
            self._asking[topic] = task
            task.add_done_callback(lambda done: self._asked(topic, done))
        return await outcome_of(task)

    async def reread(self, topic: str) -> TopicRoute:
        """Ask for a route that is known to have changed: an answer that may have been on its way before will not do.

        Raises:
            As `refresh`.
        """
        task = self._asking.get(topic)
        if task is not None:
            await asyncio.wait({task})
        return await self.refresh(topic)

    async def _ask(self, topic: str) -> TopicRoute:
        route = await self._fetch(topic)
        if route is None:
            raise NoRouteError(
                f"no broker serves the topic {topic}: create it (skyroute admin updateTopic), or check its spelling"
            )
        self.store(topic, route)
        return route

    def _asked(self, topic: str, task: "asyncio.Task[TopicRoute]") -> None:
        del self._asking[topic]
        if not task.cancelled():
            task.exception()  # whoever asked has seen it; if all went away meanwhile, nobody needs to

    def store(self, topic: str, route: TopicRoute) -> None:
        """Take a route as the newest, and tell the listeners if it differs."""
        before = self._routes.get(topic)
        # The newest word counts: other routes may still name a broker's old addresses.
        self._brokers.update((group.name, group.addresses) for group in route.groups)
        if before == route:
            return
        self._routes[topic] = route
        if before is not None:
            self._drop_unnamed({group.name for group in before.groups} - {group.name for group in route.groups})
        log.info("route changed topic=%s brokers=%s", topic, ",".join(group.name for group in route.groups))
        for listener in tuple(self.listeners):
            listener(topic, before, route)

    def forget(self, topic: str) -> None:
        """Drop a topic nobody uses any more."""
        route = self._routes.pop(topic, None)
        if route is not None:
            self._drop_unnamed({group.name for group in route.groups})

    def _drop_unnamed(self, names: set[str]) -> None:
        """Forget those of these brokers that no route names any more."""
        if names:
            for name in names - {group.name for route in self._routes.values() for group in route.groups}:
                del self._brokers[name]

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return where the broker of this name and id is, or None."""
        addresses = self._brokers.get(broker_name)
        return None if addresses is None else addresses.get(broker_id)

    def any_address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return where the broker of this name and id is, or else the next one, or else any of its name."""
        addresses = self._brokers.get(broker_name, {})
        for wanted in (broker_id, broker_id + 1):
            if wanted in addresses:
                return addresses[wanted]
        return next(iter(addresses.values()), None)

    def stop(self) -> None:
        """End the questions that are under way."""
        for task in list(self._asking.values()):
            task.cancel()
