"""Routes of topics, from the name servers."""

from collections.abc import Callable
from typing import Final

from skyroute.broker.cluster.peer_brokers import PeerBrokers
from skyroute.routing.topology import TopicRoute
from skyroute.wire.calls.route import decode_route, encode_route_query
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Response

FRESH_S: Final = 10.0
"""Time for which a route is used without asking again, by default."""
ROUTES_MAX: Final = 10_000
"""Cached routes; the oldest is dropped first."""


class TopicRoutes:
    """A cache of routes."""

    def __init__(self, peers: PeerBrokers, monotonic: Callable[[], float]) -> None:
        self._peers = peers
        self._monotonic = monotonic
        self._routes: dict[str, tuple[float, TopicRoute | None]] = {}

    def fresh(self, topic: str, fresh_s: float = FRESH_S) -> tuple[TopicRoute | None] | None:
        """Return the route of a topic in a tuple if it was read less than `fresh_s` ago; else None."""
        known = self._routes.get(topic)
        return (known[1],) if known is not None and 0 <= self._monotonic() - known[0] < fresh_s else None

    async def find(self, topic: str, fresh_s: float = FRESH_S) -> TopicRoute | None:
        """Return the route of a topic; None if no name server has one. If none answers, the last known route.

        A route that was read less than `fresh_s` ago is used without asking again.
        """
        if (fresh := self.fresh(topic, fresh_s)) is not None:
            return fresh[0]
        now = self._monotonic()
        found = await self._peers.call_name_server(encode_route_query(topic), _decode)
        if found is None:
            known = self._routes.get(topic)
            return None if known is None else known[1]
        self._routes.pop(topic, None)
        self._routes[topic] = (now, found[0])
        if len(self._routes) > ROUTES_MAX:
            del self._routes[next(iter(self._routes))]
        return found[0]


def _decode(response: Response) -> tuple[TopicRoute | None]:
    """Return the route in a tuple, or None in it if the name server has none."""
    return (decode_route(response.body) if response.code == ResponseCode.SUCCESS else None,)
