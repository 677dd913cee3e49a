"""A consumer between its start and its stop: its parts, and what it does by itself from time to time."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from skyroute.client.consuming.filter_support import check_expression, is_condition
from skyroute.client.consuming.offset_store import OffsetStore
from skyroute.client.consuming.push.broker_requests import ConsumerAnswers
from skyroute.client.consuming.push.fetching import Fetching
from skyroute.client.consuming.push.handling import Handling, OnLeft
from skyroute.client.consuming.push.owned_queue import OwnedQueue
from skyroute.client.consuming.push.ownership import Ownership
from skyroute.client.consuming.push.redelivery import Redelivery
from skyroute.client.consuming.push.settings import ConsumerSettings
from skyroute.client.consuming.push.statistics import SAMPLE_S
from skyroute.client.consuming.push.subscriptions import Subscriptions
from skyroute.client.errors import ClientError, NoRouteError
from skyroute.client.producing.producer import Producer
from skyroute.client.session.session import Session
from skyroute.client.trace import Tracer
from skyroute.message.reserved_topics import TRACE_GROUP
from skyroute.remoting.log_backoff import LogBackoff
from skyroute.routing.topology import TopicRoute
from skyroute.wire.calls.clients import ConsumerData, ConsumeType

log = logging.getLogger(__name__)

SWEEP_S: Final = 10.0
"""How often handlers that take too long are looked for; more often if they may take less time than that."""


class Consuming:
    """What a running consumer is made of. It is the member that the session names in heartbeats."""

    def __init__(
        self,
        session: Session,
        settings: ConsumerSettings,
        subscriptions: Subscriptions,
        offsets: OffsetStore,
        trace_topic: str | None,
        *,
        on_left: OnLeft,
    ) -> None:
        self._session = session
        self._settings = settings
        self._subscriptions = subscriptions
        self._offsets = offsets
        self._trace_producer: Producer | None = None
        self._tracer: Tracer | None = None
        if trace_topic is not None:
            self._trace_producer = Producer(TRACE_GROUP, session=session)
            self._tracer = Tracer(self._trace_producer.send, topic=trace_topic)
        self.handling = Handling(
            session,
            settings,
            Redelivery(session, settings),
            subscriptions.find_handler,
            self._tracer,
            on_left=on_left,
        )
        self.ownership = Ownership(
            session,
            settings,
            subscriptions,
            offsets,
            on_handed_over=self._look_for_queues,
            on_locked=self.handling.offer,
        )
        self.fetching = Fetching(
            session,
            settings,
            subscriptions,
            on_messages=self.handling.offer,
            on_illegal_offset=lambda owned, offset: self.ownership.release(owned, move_to=offset),
            on_unknown=self.announce,
        )
        self._answers = ConsumerAnswers(
            session,
            settings,
            subscriptions,
            self.ownership,
            self.fetching,
            self.handling,
            on_members_changed=self._look_for_queues,
        )
        self._news = asyncio.Event()
        """Set where there is reason to look for our queues now."""
        self._unbalanced = LogBackoff()
        self._announcement_is_due = False
        self._tasks: list[asyncio.Task[Any]] = []
        self.ended = asyncio.Event()
        """Nothing is handled or committed any more."""
        self.gone = asyncio.Event()
        """The brokers know, and the connections are closed if they were ours alone. Set by the consumer."""

    # -------------------------------------------------------------------------------------- what the session asks for

    def producer_groups(self) -> Iterable[str]:
        return ()

    def consumer_data(self) -> Iterable[ConsumerData]:
        settings = self._settings
        return (
            ConsumerData(
                settings.group, ConsumeType.PUSH, settings.model, settings.start.wire, self._subscriptions.all
            ),
        )

    def topics(self) -> Iterable[str]:
        return self._subscriptions.topics

    # --------------------------------------------------------------------------------------------------------- life

    async def start(self) -> None:
        """Begin. For what this may raise, see `Consumer.start`."""
        self._answers.start()
        self._session.routes.listeners.add(self._route_changed)
        await self._offsets.load()
        await self._find_routes()
        for subscription in self._subscriptions.all:
            if is_condition(subscription):
                await check_expression(self._session, self._settings.group, subscription)
        self._session.join(self)
        if self._trace_producer is not None and self._tracer is not None:
            await self._trace_producer.start()
            self._tracer.start()
        await self._announce()
        is_balanced = await self._balance()
        pace = self._settings.pace
        self._run(self._keep_balance(is_balanced=is_balanced), "balance")
        self._run(self._repeat(self.ownership.persist, lambda: pace.persist_s), "offsets")
        self._run(self._repeat(self._sweep, lambda: min(SWEEP_S, self._settings.consume_timeout_s)), "sweep")
        self._run(self._repeat(self._sample, lambda: SAMPLE_S), "tally")
        if self._settings.locks:
            self._run(self._repeat(self.ownership.renew_locks, self._until_next_renewal_s), "locks")

    async def stop(self, timeout_s: float, in_hand: OwnedQueue | None = None) -> None:
        """Let handlers finish for so long, commit, and take leave. Of a queue `in_hand` a loop has a message."""
        deadline = self._session.clock.monotonic() + timeout_s
        self.handling.close()
        try:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.ownership.stop_fetching(self.ownership.owned.values())
            await self.handling.stop(timeout_s)
            if in_hand is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, deadline - self._session.clock.monotonic())):
                        await in_hand.until(lambda: in_hand.running == 0)
            await self.ownership.close()
            if self._tracer is not None and self._trace_producer is not None:
                await self._tracer.stop()
                await self._trace_producer.stop()
        finally:
            self._answers.stop()
            self._session.routes.listeners.discard(self._route_changed)
            self.handling.abandon()
            self.ownership.abandon()
            self.ended.set()
            await self._session.leave(self)

    def _run(self, work: Any, name: str) -> None:
        self._tasks.append(self._session.spawn(work, name=f"consumer {name}"))

    async def _repeat(self, work: Callable[[], Awaitable[None]], pause_s: Callable[[], float]) -> None:
        while True:
            await asyncio.sleep(pause_s())
            try:
                await work()
            except Exception:
                log.exception("upkeep failed group=%s", self._settings.group)

    async def _sweep(self) -> None:
        await self.handling.sweep(self._session.clock.monotonic())

    async def _sample(self) -> None:
        self.ownership.sample(self._session.clock.monotonic())

    def _until_next_renewal_s(self) -> float:
        now = self._session.clock.monotonic()
        all_locked = all(owned.is_locked(now) for owned in self.ownership.owned.values())
        return self._settings.pace.lock_s if all_locked else self._settings.pace.unbalanced_s

    # ----------------------------------------------------------------------------------------------- subscriptions

    def announce(self) -> None:
        """Tell brokers soon what we subscribe to, and look for our queues."""
        if self._subscriptions.has_handlers:
            self.handling.start()
        self._announcement_is_due = True
        self._news.set()

    async def _announce(self) -> None:
        self._announcement_is_due = False
        if self._subscriptions.has_handlers:
            self.handling.start()
        told = self._subscriptions.all
        await self._session.send_heartbeats()
        self._subscriptions.mark_told(told)

    async def _find_routes(self) -> None:
        for topic in self._subscriptions.topics:
            with contextlib.suppress(NoRouteError):  # whoever looks for our share of it says so
                await self._session.routes.find(topic)

    # -------------------------------------------------------------------------------------------------- our queues

    def _look_for_queues(self) -> None:
        self._news.set()

    def _route_changed(self, topic: str, _before: TopicRoute | None, _after: TopicRoute) -> None:
        if self._subscriptions.find(topic) is not None:
            self._news.set()

    async def _keep_balance(self, *, is_balanced: bool) -> None:
        pace = self._settings.pace
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pace.rebalance_s if is_balanced else pace.unbalanced_s):
                    await self._news.wait()
            is_balanced = await self._balance()
            await asyncio.sleep(pace.rebalance_gap_s)

    async def _balance(self) -> bool:
        self._news.clear()
        try:
            if self._announcement_is_due:
                await self._find_routes()
                await self._announce()
            balance = await self.ownership.balance()
            if balance.changed:
                now_ms = int(self._session.clock.wall() * 1000)
                for topic in balance.changed:
                    self._subscriptions.touch(topic, now_ms)
                # Brokers pass the news on to the other members.
                await self._announce()
            for owned in balance.taken:
                if not owned.is_released:
                    work = self.fetching.fetch(owned)
                    owned.fetcher = self._session.spawn(work, name=f"fetch of {owned.queue}")
        except ClientError as error:
            unsaid = self._unbalanced.unsaid(self._settings.group, self._session.clock.monotonic())
            if unsaid is not None:
                log.warning("queues not looked for group=%s cause=%s unsaid=%d", self._settings.group, error, unsaid)
            return False
        except Exception:
            log.exception("balance failed group=%s", self._settings.group)
            return False
        self._unbalanced.works_again(self._settings.group)
        return balance.is_balanced
