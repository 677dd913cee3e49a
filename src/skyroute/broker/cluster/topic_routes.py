"""Routes of topics, from the name servers."""

import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from skyroute.errors import SkyrouteError
from skyroute.remoting.client import connect
from skyroute.remoting.signing import Signer
from skyroute.routing.topology import TopicRoute
from skyroute.wire.calls.route import decode_route, encode_route_query
from skyroute.wire.codes import ResponseCode

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 3.0
FRESH_S: Final = 10.0
"""Time for which a route is used without asking again."""
ROUTES_MAX: Final = 10_000
"""Cached routes; the oldest is dropped first."""


class TopicRoutes:
    """A cache of routes."""

    def __init__(
        self,
        name_servers: Sequence[str],
        monotonic: Callable[[], float],
        tls: ssl.SSLContext | None = None,
        signer: Signer | None = None,
    ) -> None:
        self._name_servers = tuple(name_servers)
        self._monotonic = monotonic
        self._tls = tls
        self._signer = signer
        self._routes: dict[str, tuple[float, TopicRoute | None]] = {}

    async def find(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic; None if no name server has one. If none answers, the last known route."""
        now = self._monotonic()
        known = self._routes.get(topic)
        if known is not None and 0 <= now - known[0] < FRESH_S:
            return known[1]
        for name_server in self._name_servers:
            try:
                channel = await connect(name_server, tls=self._tls, timeout_s=TIMEOUT_S, signer=self._signer)
                try:
                    response = await channel.call(encode_route_query(topic), TIMEOUT_S)
                finally:
                    channel.close()
                route = decode_route(response.body) if response.code == ResponseCode.SUCCESS else None
            except SkyrouteError as error:
                log.debug("route not read topic=%s name_server=%s reason=%s", topic, name_server, error)
                continue
            self._routes.pop(topic, None)
            self._routes[topic] = (now, route)
            if len(self._routes) > ROUTES_MAX:
                del self._routes[next(iter(self._routes))]
            return route
        return None if known is None else known[1]
