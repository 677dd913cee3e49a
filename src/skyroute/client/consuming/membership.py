"""A consumer's membership of its group: heartbeats, the rebalance loop, and the share of each topic.

Both consumers use it. What it means to take a queue or to give one up is their own part.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress

from skyroute.client.consuming import queue_calls as calls
from skyroute.client.consuming.intervals import Intervals
from skyroute.client.consuming.strategies import Strategy
from skyroute.client.errors import ClientError, NoNameServerError, NoRouteError
from skyroute.client.producing.queue_selection import subscribe_queues
from skyroute.client.session.session import Session
from skyroute.errors import SkyrouteError
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import is_retry_topic
from skyroute.remoting.log_backoff import LogBackoff
from skyroute.routing.topology import TopicRoute
from skyroute.wire.calls.clients import ConsumerData, MessageModel

log = logging.getLogger(__name__)


class GroupMembership:
    """Announces one consumer to the brokers, and starts a rebalance when members, routes or subscriptions change.

    It is the `HeartbeatSource` that the session announces for the consumer.
    """

    def __init__(
        self,
        session: Session,
        strategy: Strategy,
        intervals: Intervals,
        *,
        describe: Callable[[], ConsumerData],
        topics: Callable[[], Collection[str]],
        rebalance: Callable[[], Awaitable[bool]],
        announce: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Prepare; nothing is announced yet.

        Args:
            session: the connections to use.
            strategy: which member gets which queues.
            intervals: when to rebalance.
            describe: returns what heartbeats contain about this consumer.
            topics: returns the topics whose routes matter, with their namespace.
            rebalance: takes and gives up queues; returns whether this member now has exactly its share.
            announce: sends the heartbeats; by default that is all it does.
        """
        self._session = session
        self._strategy = strategy
        self._intervals = intervals
        self._describe = describe
        self._topics = topics
        self._rebalance = rebalance
        self._announce = announce or session.heartbeats.send
        self._due = asyncio.Event()
        self._is_announced = False
        self._is_running = False
        self.has_other_members = False
        """Whether the last member list named other members, which may still have queues that are ours now."""
        self._failed_rebalances = LogBackoff()
        self._failed_topics = LogBackoff()

    # --------------------------------------------------------------------------------------------- heartbeat source

    def producer_groups(self) -> Iterable[str]:
        return ()

    def consumer_data(self) -> Iterable[ConsumerData]:
        return (self._describe(),)

    def topics(self) -> Collection[str]:
        return self._topics()

    # ------------------------------------------------------------------------------------------------ join and leave

    def join(self) -> None:
        """Add this consumer to the session's heartbeats.

        Raises:
            ClientError: the session has a consumer of the same group.
        """
        self._session.heartbeats.add(self)
        self._due = asyncio.Event()  # after a restart, the consumer may run on another event loop
        self._is_running = True
        self._session.routes.listeners.add(self._on_route_changed)

    async def leave(self) -> None:
        """Unregister at the brokers."""
        self.stop()
        await self._session.heartbeats.remove(self)

    def stop(self) -> None:
        """End the rebalance loop after the current round; heartbeats go on until `leave`."""
        self._is_running = False
        self._is_announced = False
        self._session.routes.listeners.discard(self._on_route_changed)

    def announce_soon(self) -> None:
        """Send heartbeats with the current subscriptions soon, and rebalance."""
        self._is_announced = False
        self._due.set()

    def rebalance_soon(self) -> None:
        """Rebalance as soon as `rebalance_gap_s` allows."""
        self._due.set()

    def _on_route_changed(self, topic: str, _before: TopicRoute | None, _after: TopicRoute) -> None:
        if topic in self._topics():
            self._due.set()

    async def find_routes(self) -> None:
        """Read the routes of all topics that are not cached. The rebalance logs topics without a route.

        Raises:
            NoNameServerError: no name server responds.
        """
        for topic in self._topics():
            try:
                await self._session.routes.find(topic)
            except NoNameServerError:
                raise
            except SkyrouteError as error:
                log.debug("route not found topic=%s reason=%s", topic, error)

    async def announce(self) -> None:
        """Send heartbeats with the current subscriptions now. Brokers list only members that sent a heartbeat."""
        self._is_announced = True
        await self._announce()

    # ------------------------------------------------------------------------------------------------------ rebalance

    async def run(self, *, is_balanced: bool) -> None:
        """Rebalance at every change, and periodically, until `stop`."""
        while self._is_running:
            with suppress(TimeoutError):
                delay_s = self._intervals.rebalance_s if is_balanced else self._intervals.rebalance_retry_s
                async with asyncio.timeout(delay_s):
                    await self._due.wait()
            is_balanced = await self.rebalance()
            await asyncio.sleep(self._intervals.rebalance_gap_s)

    async def rebalance(self) -> bool:
        """Do one round, and return whether this member has exactly its share. A failure is logged."""
        group = self._describe().group
        self._due.clear()
        try:
            if not self._is_announced:
                await self.find_routes()
                await self.announce()
            is_balanced = await self._rebalance()
        except ClientError as error:
            suppressed = self._failed_rebalances.suppressed(group, self._session.clock.monotonic())
            if suppressed is not None:
                log.warning("rebalance failed group=%s reason=%s suppressed=%d", group, error, suppressed)
            return False
        except Exception:
            log.exception("rebalance failed group=%s", group)
            return False
        self._failed_rebalances.works_again(group)
        return is_balanced

    async def share_of(self, topic: str) -> frozenset[QueueRef] | None:
        """Return this member's queues of a topic; None if they cannot be determined now.

        Raises:
            NoRouteError: the topic does not exist.
        """
        data, client_id = self._describe(), self._session.client_id
        try:
            queues = subscribe_queues(topic, await self._session.routes.find(topic))
            if data.model is MessageModel.BROADCASTING:
                return frozenset(queues)
            if not queues:
                self._log_failure("share not known", data.group, topic, "no queue of the topic is readable")
                return None
            members = await calls.members(self._session, data.group, topic)
            if client_id not in members:
                # A restarted broker has no members yet; without a heartbeat this member would give up all queues.
                await self._session.heartbeats.send()
                members = await calls.members(self._session, data.group, topic)
            self.has_other_members = len(set(members)) > 1
            share = self._strategy(client_id, queues, members)
        except NoRouteError as error:
            if not is_retry_topic(topic):
                self._log_failure("topic not found", data.group, topic, error)
            raise
        except SkyrouteError as error:
            self._log_failure("share not known", data.group, topic, error)
            return None
        except Exception:
            log.exception("strategy failed group=%s topic=%s", data.group, topic)
            return None
        self._failed_topics.works_again(topic)
        return frozenset(queues).intersection(share)

    def _log_failure(self, phrase: str, group: str, topic: str, cause: SkyrouteError | str) -> None:
        suppressed = self._failed_topics.suppressed(topic, self._session.clock.monotonic())
        if suppressed is not None:
            log.warning("%s group=%s topic=%s reason=%s suppressed=%d", phrase, group, topic, cause, suppressed)
