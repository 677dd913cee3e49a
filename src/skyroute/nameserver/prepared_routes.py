"""Encoded routes, shared by all topics with the same route.

A route does not name its topic. Topics that the same broker groups serve with the same queues have the same route, so
a table of 300,000 topics has a handful of them. Each topic takes one dictionary entry.
"""

from collections.abc import Callable, Collection, Hashable
from typing import Final

from skyroute.routing import discovery
from skyroute.routing.table_view import RouteTableView
from skyroute.wire.calls.route import decode_route_query
from skyroute.wire.command import Request
from skyroute.wire.fast_path import EncodedRoute, PreparedResponse, PreparedRoute
from skyroute.wire.fastjson import Dialect

PREPARED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum size of all encoded routes; beyond it all are dropped, and encoded again on request."""

ROUTE_BYTES: Final = 1024
"""Upper estimate of a route's memory besides its responses."""

ANSWER_BYTES: Final = 2048
"""Upper estimate of a response's memory besides its body."""

TOPICS_MAX: Final = 20_000
"""Maximum number of topics dropped one by one; a larger change drops all topics, which is faster."""

_STRICT: Final = Dialect.STRICT


class PreparedRoutes:
    """Caches the response for each topic. Every change of the table, or of a trait, must call `forget`.

    Args:
        table: Which groups serve which topics.
        encode: Writes the response for a topic; None if no broker serves it.
        trait: What else the route of a topic depends on: its order config.
    """

    def __init__(
        self,
        table: RouteTableView,
        encode: Callable[[str, Dialect], PreparedResponse | None],
        trait: Callable[[str], Hashable],
    ) -> None:
        self._table = table
        self._encode = encode
        self._trait = trait
        self.by_topic: dict[str, PreparedRoute] = {}
        """Routes of requested topics, except names with a backslash. The object never changes."""
        self._by_key: dict[Hashable, PreparedRoute] = {}
        self._by_group: dict[str, set[PreparedRoute]] = {}
        self._bytes = 0
        self._ran_over = False
        """Routes were dropped for lack of room, so `forget` cannot tell which of them are cached elsewhere."""

    def __repr__(self) -> str:
        return f"<PreparedRoutes topics={len(self.by_topic)} routes={len(self._by_key)} bytes={self._bytes}>"

    def find(self, topic: str, dialect: Dialect) -> EncodedRoute | None:
        """Return the response for a topic; None if no broker serves it."""
        route = self.by_topic.get(topic)
        if route is None:
            route = self._place(topic)
            if route is None:
                return None
        answer = route.strict if dialect is _STRICT else route.legacy
        return self._prepare(route, topic, dialect) if answer is None else answer

    def dialect_of(self, request: Request) -> Dialect:
        """Return the dialect that a route request wants."""
        return decode_route_query(request).dialect

    def _place(self, topic: str) -> PreparedRoute | None:
        placement = discovery.placement(self._table, topic)
        if placement is None:
            return None
        key = placement, self._trait(topic)
        route = self._by_key.get(key)
        if route is None:
            self._make_room(ROUTE_BYTES)
            route = self._by_key[key] = PreparedRoute(self._table.serving(topic))
        if "\\" not in topic:
            self.by_topic[self._table.own_name(topic)] = route  # each topic has one copy of its name
        return route

    def _prepare(self, route: PreparedRoute, topic: str, dialect: Dialect) -> EncodedRoute | None:
        response = self._encode(topic, dialect)
        if response is None:
            return None
        answer = EncodedRoute(response)
        self._make_room(ANSWER_BYTES + len(answer.body))
        if dialect is _STRICT:
            route.strict = answer
        else:
            route.legacy = answer
        for name in route.groups:
            self._by_group.setdefault(name, set()).add(route)
        return answer

    def _make_room(self, size: int) -> None:
        if self._bytes + size > PREPARED_BYTES_MAX:
            self.forget_all()
            self._ran_over = True
        self._bytes += size

    def forget(self, topics: Collection[str], groups: Collection[str]) -> bool:
        """Drop the routes of these topics and broker groups; return whether any was, or may have been, cached."""
        dropped, self._ran_over = self._ran_over, False
        for name in groups:
            for route in self._by_group.pop(name, ()):
                dropped = True
                for answer in (route.strict, route.legacy):
                    self._bytes -= 0 if answer is None else ANSWER_BYTES + len(answer.body)
                route.strict = route.legacy = None
        by_topic = self.by_topic
        if len(topics) > TOPICS_MAX:
            dropped = dropped or bool(by_topic)
            by_topic.clear()
        else:
            for topic in topics:
                dropped = by_topic.pop(topic, None) is not None or dropped
        return dropped

    def forget_all(self) -> None:
        """Drop all routes, after a change that affects every topic."""
        self.by_topic.clear()
        self._by_key.clear()
        self._by_group.clear()
        self._bytes = 0
