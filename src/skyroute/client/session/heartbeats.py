"""Heartbeats to all brokers, which announce the producers and consumers of a session."""

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from skyroute.client.errors import ClientError
from skyroute.errors import SkyrouteError
from skyroute.message.reserved_topics import CLIENT_INNER_PRODUCER_GROUP, TRACE_GROUP, without_namespace
from skyroute.remoting.log_backoff import LogBackoff
from skyroute.routing.topology import MASTER_ID
from skyroute.wire.calls.clients import ConsumerData, encode_heartbeat, encode_unregistration
from skyroute.wire.command import Request

if TYPE_CHECKING:
    from skyroute.client.session.session import Session

log = logging.getLogger(__name__)

UNREGISTER_TIMEOUT_S: Final = 1.0

AT_ONCE_MAX: Final = 100
"""Maximum number of brokers that get a heartbeat at the same time: a connection is opened for each."""


class HeartbeatSource(Protocol):
    """A producer or consumer that heartbeats announce."""

    def producer_groups(self) -> Iterable[str]:
        """Return its producer groups."""
        ...

    def consumer_data(self) -> Iterable[ConsumerData]:
        """Return its consumer groups with their subscriptions."""
        ...

    def topics(self) -> Iterable[str]:
        """Return the topics whose routes the session refreshes."""
        ...


class Heartbeats:
    """The producers and consumers of one session, and their heartbeats."""

    def __init__(self, session: "Session", interval_s: float) -> None:
        self._session = session
        self._interval_s = interval_s
        self.sources: list[HeartbeatSource] = []
        self.broker_versions: dict[str, int] = {}
        """The version in each broker's last heartbeat response, by address."""
        self._failed = LogBackoff()

    def add(self, source: HeartbeatSource) -> None:
        """Announce a producer or consumer from the next heartbeat on, and refresh its routes.

        Raises:
            ClientError: the session has a producer, or a consumer, of the same group.
        """
        taken = {role for other in self.sources for role in _roles(other)}
        for kind, group in _roles(source):
            if (kind, group) in taken and without_namespace(self._session.namespace, group) != TRACE_GROUP:
                raise ClientError(
                    f"the session already has a {kind} of group {group}: use another group, or a session of its own"
                )
        self.sources.append(source)
        if self._session.watch is not None:
            self._session.watch.check_topics_soon()

    async def remove(self, source: HeartbeatSource) -> None:
        """Unregister a producer or consumer at the brokers. A broker that is not reached expires it."""
        if source not in self.sources:
            return
        self.sources.remove(source)
        client_id, session = self._session.client_id, self._session
        requests = [
            *(encode_unregistration(client_id, producer_group=group) for group in source.producer_groups()),
            *(encode_unregistration(client_id, consumer_group=data.group) for data in source.consumer_data()),
        ]
        timeout_s = min(UNREGISTER_TIMEOUT_S, session.request_timeout_s)
        calls = [
            session.call(address, Request(request.code, dict(request.fields)), timeout_s)
            for address in session.routes.broker_addresses().intersection(session.connections.by_address)
            for request in requests
        ]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, Exception):
                log.info("unregistration failed reason=%s", outcome)

    def topics(self) -> set[str]:
        """Return the topics of all sources."""
        return {topic for source in self.sources for topic in source.topics()}

    async def run(self) -> None:
        """Send heartbeats periodically."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.send()

    async def send(self) -> None:
        """Send a heartbeat to every broker of every cached route; to slaves only if the session has a consumer."""
        if not self.sources:
            return
        consuming = any(True for source in self.sources for _ in source.consumer_data())
        addresses = {
            address
            for brokers in self._session.routes.brokers.values()
            for broker_id, address in brokers.items()
            if consuming or broker_id == MASTER_ID
        }
        free = asyncio.Semaphore(AT_ONCE_MAX)

        async def send_to(address: str) -> None:
            async with free:
                await self.send_to(address)

        await asyncio.gather(*map(send_to, addresses))

    async def send_to(self, address: str) -> None:
        """Send a heartbeat to one broker. A failure is logged."""
        producers = {group for source in self.sources for group in source.producer_groups()}
        consumers = [data for source in self.sources for data in source.consumer_data()]
        if not producers and not consumers:
            return
        if consumers:
            producers.add(CLIENT_INNER_PRODUCER_GROUP)  # it sends the retries of consumers, as in Java's client
        session = self._session
        try:
            response = await session.ask(address, encode_heartbeat(session.client_id, producers, consumers))
        except SkyrouteError as error:
            suppressed = self._failed.suppressed(address, session.clock.monotonic())
            if suppressed is not None:
                log.warning("heartbeat failed broker=%s reason=%s suppressed=%d", address, error, suppressed)
        else:
            self.broker_versions[address] = response.version
            self._failed.works_again(address)


def _roles(source: HeartbeatSource) -> list[tuple[str, str]]:
    """Return the role of a source in each of its groups."""
    return [
        *(("producer", group) for group in source.producer_groups()),
        *(("consumer", data.group) for data in source.consumer_data()),
    ]
