"""A push consumer from its start to its stop: its parts, and its periodic work."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from skyroute.client.consuming.filter_support import check_filter, is_sql
from skyroute.client.consuming.membership import GroupMembership
from skyroute.client.consuming.offset_store import OffsetStore
from skyroute.client.consuming.push.assignment import PushAssignment
from skyroute.client.consuming.push.broker_requests import PushBrokerRequests
from skyroute.client.consuming.push.dispatch import Dispatcher, OnExit
from skyroute.client.consuming.push.process_queue import ProcessQueue
from skyroute.client.consuming.push.pull_loop import PullLoop
from skyroute.client.consuming.push.redelivery import Redelivery
from skyroute.client.consuming.push.settings import ConsumerSettings
from skyroute.client.consuming.push.statistics import SAMPLE_S
from skyroute.client.consuming.push.subscriptions import Subscriptions
from skyroute.client.producing.producer import TraceProducer
from skyroute.client.session.session import Session
from skyroute.wire.calls.clients import ConsumerData, ConsumeType

log = logging.getLogger(__name__)

TIMEOUT_SCAN_S: Final = 10.0
"""How often handlers are checked against `consume_timeout_s`; more often if that is shorter."""


class ConsumerRun:
    """The parts of a running push consumer."""

    def __init__(
        self,
        session: Session,
        settings: ConsumerSettings,
        subscriptions: Subscriptions,
        offsets: OffsetStore,
        trace_topic: str | None,
        *,
        on_exit: OnExit,
    ) -> None:
        self._session = session
        self._settings = settings
        self._subscriptions = subscriptions
        self._offsets = offsets
        self._trace = None if trace_topic is None else TraceProducer(session, trace_topic)
        self.dispatcher = Dispatcher(
            session,
            settings,
            Redelivery(session, settings),
            subscriptions.find_handler,
            None if self._trace is None else self._trace.tracer,
            on_exit=on_exit,
        )
        self.membership = GroupMembership(
            session,
            settings.strategy,
            settings.intervals,
            describe=self._describe,
            topics=lambda: subscriptions.topics,
            rebalance=self._rebalance,
            announce=self._announce,
        )
        self.assignment = PushAssignment(
            session,
            settings,
            subscriptions,
            offsets,
            self.membership,
            on_handed_over=self.membership.rebalance_soon,
            on_locked=self.dispatcher.offer,
        )
        self.pull_loop = PullLoop(
            session,
            settings,
            subscriptions,
            on_messages=self.dispatcher.offer,
            on_illegal_offset=lambda queue, offset: self.assignment.release(queue, move_to=offset),
            on_unknown_subscription=self.announce_soon,
        )
        self._requests = PushBrokerRequests(
            session,
            settings,
            subscriptions,
            self.assignment,
            self.pull_loop,
            self.dispatcher,
            on_members_changed=self.membership.rebalance_soon,
        )
        self._tasks: list[asyncio.Task[Any]] = []
        self.ended = asyncio.Event()
        """Set when nothing is handled or committed any more."""
        self.left = asyncio.Event()
        """Set by the consumer when it has left the group and closed its own session."""

    def _describe(self) -> ConsumerData:
        settings = self._settings
        return ConsumerData(
            settings.group, ConsumeType.PUSH, settings.model, settings.start.wire, self._subscriptions.all
        )

    # ----------------------------------------------------------------------------------------------- start and stop

    async def start(self) -> None:
        """Join the group, and start pulling. `Consumer.start` lists the errors."""
        self._requests.start()
        await self._offsets.load()
        await self.membership.find_routes()
        for subscription in self._subscriptions.all:
            if is_sql(subscription):
                await check_filter(self._session, self._settings.group, subscription)
        self.membership.join()
        if self._trace is not None:
            await self._trace.start()
        await self.membership.announce()
        is_balanced = await self.membership.rebalance()
        self._spawn(self.membership.run(is_balanced=is_balanced), "rebalance")
        intervals = self._settings.intervals
        self._spawn(self._repeat(self.assignment.commit, lambda: intervals.commit_s), "commits")
        scan_s = min(TIMEOUT_SCAN_S, self._settings.consume_timeout_s)
        self._spawn(self._repeat(self._stop_late_handlers, lambda: scan_s), "timeouts")
        self._spawn(self._repeat(self._sample, lambda: SAMPLE_S), "statistics")
        if self._settings.locks:
            self._spawn(self._repeat(self.assignment.renew_locks, self._lock_renewal_s), "locks")

    async def stop(self, timeout_s: float, in_hand: ProcessQueue | None = None) -> None:
        """Wait for running handlers, commit, and leave the group. A loop has a message of the queue `in_hand`."""
        deadline = self._session.clock.monotonic() + timeout_s
        self.dispatcher.close()
        try:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.assignment.stop_pulling(self.assignment.queues.values())
            await self.dispatcher.stop(timeout_s)
            if in_hand is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, deadline - self._session.clock.monotonic())):
                        await in_hand.until(lambda: in_hand.running == 0)
            await self.assignment.close()
            if self._trace is not None:
                await self._trace.stop()
        finally:
            self._requests.stop()
            self.dispatcher.abandon()
            self.assignment.abandon()
            self.ended.set()
            await self.membership.leave()

    def _spawn(self, work: Any, name: str) -> None:
        self._tasks.append(self._session.spawn(work, name=f"consumer {name}"))

    async def _repeat(self, work: Callable[[], Awaitable[None]], pause_s: Callable[[], float]) -> None:
        while True:
            await asyncio.sleep(pause_s())
            try:
                await work()
            except Exception:
                log.exception("periodic work failed group=%s", self._settings.group)

    async def _stop_late_handlers(self) -> None:
        await self.dispatcher.stop_late_handlers(self._session.clock.monotonic())

    async def _sample(self) -> None:
        self.assignment.sample(self._session.clock.monotonic())

    def _lock_renewal_s(self) -> float:
        now = self._session.clock.monotonic()
        all_locked = all(queue.is_locked(now) for queue in self.assignment.queues.values())
        intervals = self._settings.intervals
        return intervals.lock_renewal_s if all_locked else intervals.rebalance_retry_s

    # --------------------------------------------------------------------------------------------------- membership

    def announce_soon(self) -> None:
        """Announce the current subscriptions soon, and rebalance."""
        if self._subscriptions.has_handlers:
            self.dispatcher.start()
        self.membership.announce_soon()

    async def _announce(self) -> None:
        if self._subscriptions.has_handlers:
            self.dispatcher.start()
        announced = self._subscriptions.all
        await self._session.heartbeats.send()
        self._subscriptions.mark_announced(announced)

    async def _rebalance(self) -> bool:
        result = await self.assignment.rebalance()
        if result.changed_topics:
            now_ms = int(self._session.clock.wall() * 1000)
            for topic in result.changed_topics:
                self._subscriptions.raise_version(topic, now_ms)
            # Brokers notify the other members when a version rises.
            await self.membership.announce()
        for queue in result.taken:
            if not queue.is_released:
                queue.puller = self._session.spawn(self.pull_loop.run(queue), name=f"pull loop of {queue.ref}")
        return result.is_balanced
