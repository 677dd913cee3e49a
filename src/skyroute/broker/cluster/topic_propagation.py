"""Creates an auto-created topic on the other brokers of the cluster.

A producer sends to an unknown topic by the route of the default topic, that is, to all brokers that create topics. Once
one broker has created the topic, its route has only that broker, and the topic stays there unless enough messages were
sent before (upstream issue 2744). So the broker that creates a topic creates it on the others.
"""

import asyncio
import logging
import ssl
from collections.abc import Sequence
from typing import Final

from skyroute.broker.identity import Identity
from skyroute.errors import SkyrouteError
from skyroute.remoting.client import connect
from skyroute.remoting.signing import Signer
from skyroute.routing.topology import MASTER_ID, Permission, TopicRoute
from skyroute.wire.calls.route import decode_route, encode_route_query
from skyroute.wire.calls.topics import TopicConfig, encode_topic_stats_query, encode_topic_update
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 3.0
PROPAGATIONS_MAX: Final = 64
"""Topics that are propagated at the same time; further topics stay on this broker."""
BROKERS_MAX: Final = 64
"""Other brokers on which one topic is created."""


class TopicPropagation:
    """Creates new topics on other brokers, in the background."""

    def __init__(
        self,
        name_servers: Sequence[str],
        identity: Identity,
        tls: ssl.SSLContext | None = None,
        signer: Signer | None = None,
    ) -> None:
        self._name_servers = tuple(name_servers)
        self._identity = identity
        self._tls = tls
        self._signer = signer
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<TopicPropagation under_way={len(self._tasks)}>"

    def begin(self, topic: TopicConfig, default_topic: str) -> None:
        """Start to create a topic on the brokers that the route of the default topic has."""
        if not self._name_servers:
            return
        if len(self._tasks) >= PROPAGATIONS_MAX:
            log.warning("topic not propagated, too many at once topic=%s", topic.name)
            return
        task = asyncio.get_running_loop().create_task(self.propagate(topic, default_topic))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Cancel all propagations."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def propagate(self, topic: TopicConfig, default_topic: str) -> None:
        """Create a topic on the other brokers; failures are logged."""
        for name_server in self._name_servers:
            try:
                response = await self._call(name_server, encode_route_query(default_topic))
                route = decode_route(response.body) if response.code == ResponseCode.SUCCESS else None
            except SkyrouteError as error:
                log.debug("route of the default topic failed name_server=%s reason=%s", name_server, error)
                continue
            others = self._others(route) if route is not None else []
            await asyncio.gather(*(self._create(address, topic) for address in others[:BROKERS_MAX]))
            return

    def _others(self, route: TopicRoute) -> list[str]:
        creators = {queues.broker_name for queues in route.queues if queues.settings.permission & Permission.INHERIT}
        own = self._identity
        return [
            group.addresses[MASTER_ID]
            for group in route.groups
            if group.name in creators and group.name != own.name and group.cluster == own.cluster
            if MASTER_ID in group.addresses
        ]

    async def _create(self, address: str, topic: TopicConfig) -> None:
        """Create a topic on one broker; an existing topic is not changed."""
        try:
            if (await self._call(address, encode_topic_stats_query(topic.name))).code != ResponseCode.TOPIC_NOT_EXIST:
                return
            response = await self._call(address, encode_topic_update(topic))
        except SkyrouteError as error:
            log.warning("topic not created on another broker topic=%s broker=%s reason=%s", topic.name, address, error)
        else:
            log.info("topic created on another broker topic=%s broker=%s code=%d", topic.name, address, response.code)

    async def _call(self, address: str, request: Request) -> Response:
        channel = await connect(address, tls=self._tls, timeout_s=TIMEOUT_S, signer=self._signer)
        try:
            return await channel.call(request, TIMEOUT_S)
        finally:
            channel.close()
