"""Has the other brokers of a cluster make a topic, too, that came to be on one of them by a first message.

A producer sends to a topic that nobody has on the route of the default topic: to all brokers that make topics. But once
one of them has made it, its next route names that one only, and the topic stays there for ever, unless enough messages
came before (upstream issue 2744). So the one that makes it tells the others.
"""

import asyncio
import logging
import ssl
from collections.abc import Sequence
from typing import Final

from skyroute.broker.identity import Identity
from skyroute.errors import SkyrouteError
from skyroute.remoting.client import connect
from skyroute.routing.topology import MASTER_ID, Permission, TopicRoute
from skyroute.wire.calls.route import decode_route, encode_route_query
from skyroute.wire.calls.topics import TopicConfig, encode_topic_stats_query, encode_topic_update
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 3.0
PROPAGATIONS_MAX: Final = 64
"""How many topics are made known to others at the same time; those beyond stay where they are made."""
BROKERS_MAX: Final = 64
"""How many other brokers are told of one topic."""


class TopicPropagation:
    """Tells other brokers of new topics, behind the back of the producer that made us make them."""

    def __init__(self, name_servers: Sequence[str], identity: Identity, tls: ssl.SSLContext | None = None) -> None:
        self._name_servers = tuple(name_servers)
        self._identity = identity
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<TopicPropagation under_way={len(self._tasks)}>"

    def begin(self, topic: TopicConfig, default_topic: str) -> None:
        """Have those brokers make a topic that would have made it if its first message had come to them."""
        if not self._name_servers:
            return
        if len(self._tasks) >= PROPAGATIONS_MAX:
            log.warning("topic stays on this broker, too many are made at once topic=%s", topic.name)
            return
        task = asyncio.get_running_loop().create_task(self.propagate(topic, default_topic))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Leave off."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def propagate(self, topic: TopicConfig, default_topic: str) -> None:
        """Do it, and return when it is done as far as it can be."""
        for name_server in self._name_servers:
            try:
                response = await self._ask(name_server, encode_route_query(default_topic))
                route = decode_route(response.body) if response.code == ResponseCode.SUCCESS else None
            except SkyrouteError as error:
                log.debug("no route of the default topic name_server=%s reason=%s", name_server, error)
                continue
            others = self._others(route) if route is not None else []
            await asyncio.gather(*(self._make(address, topic) for address in others[:BROKERS_MAX]))
            return

    def _others(self, route: TopicRoute) -> list[str]:
        makers = {queues.broker_name for queues in route.queues if queues.settings.permission & Permission.INHERIT}
        own = self._identity
        return [
            group.addresses[MASTER_ID]
            for group in route.groups
            if group.name in makers and group.name != own.name and group.cluster == own.cluster
            if MASTER_ID in group.addresses
        ]

    async def _make(self, address: str, topic: TopicConfig) -> None:
        """Have one broker make a topic that it does not have; one that it has stays as it is."""
        try:
            if (await self._ask(address, encode_topic_stats_query(topic.name))).code != ResponseCode.TOPIC_NOT_EXIST:
                return
            response = await self._ask(address, encode_topic_update(topic))
        except SkyrouteError as error:
            log.warning("topic not made by another broker topic=%s broker=%s reason=%s", topic.name, address, error)
        else:
            log.info("topic made by another broker topic=%s broker=%s code=%d", topic.name, address, response.code)

    async def _ask(self, address: str, request: Request) -> Response:
        channel = await connect(address, tls=self._tls, timeout_s=TIMEOUT_S)
        try:
            return await channel.call(request, TIMEOUT_S)
        finally:
            channel.close()
