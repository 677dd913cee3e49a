"""Pulls the messages of a queue into its buffer, one pull after the other, while the queue is assigned."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from skyroute.client.consuming import queue_calls as calls
from skyroute.client.consuming.push.process_queue import ProcessQueue
from skyroute.client.consuming.push.settings import ConsumerSettings
from skyroute.client.consuming.push.subscriptions import Subscriptions
from skyroute.client.consuming.subscription import read_messages
from skyroute.client.errors import FlowControlError, SubscriptionNotFoundError, SubscriptionOutdatedError
from skyroute.client.session.session import Session
from skyroute.errors import SkyrouteError
from skyroute.message import property_names as names
from skyroute.message.message import StoredMessage
from skyroute.message.reserved_topics import is_retry_topic, without_namespace
from skyroute.remoting.errors import RemotingError
from skyroute.wire.calls.clients import Subscription
from skyroute.wire.calls.pull import PullAnswer, PullQuestion, PullStatus

log = logging.getLogger(__name__)

SUSPEND_MS: Final = 15_000
"""How long a broker holds a long poll when there is no message."""

DAMAGED_READS: Final = 3
"""How many times a damaged record is pulled again before it is skipped."""


class PullLoop:
    """The pull loops of one consumer; each assigned queue has a task in `run`."""

    def __init__(
        self,
        session: Session,
        settings: ConsumerSettings,
        subscriptions: Subscriptions,
        *,
        on_messages: Callable[[ProcessQueue], None],
        on_illegal_offset: Callable[[ProcessQueue, int], None],
        on_unknown_subscription: Callable[[], None],
    ) -> None:
        """Prepare.

        `on_illegal_offset` gets the next offset that exists, and the pull loop of the queue ends.
        `on_unknown_subscription` is called when a broker does not know the current subscription.
        """
        self._session = session
        self._settings = settings
        self._subscriptions = subscriptions
        self._on_messages = on_messages
        self._on_illegal_offset = on_illegal_offset
        self._on_unknown_subscription = on_unknown_subscription
        self._not_paused = asyncio.Event()
        self._not_paused.set()

    def pause(self) -> None:
        """Start no pull until `resume`. Running pulls still add messages."""
        self._not_paused.clear()

    def resume(self) -> None:
        """Pull again after `pause`."""
        self._not_paused.set()

    async def run(self, queue: ProcessQueue) -> None:
        """Pull a queue until cancelled, or until its offset is illegal."""
        intervals = self._settings.intervals
        while True:
            try:
                await self._wait_for_room(queue)
                started = self._session.clock.monotonic()
                before = queue.buffer.position
                answer = await self._pull(queue)
                if answer.status is PullStatus.OFFSET_ILLEGAL:
                    log.warning("offset illegal queue=%s offset=%d next=%d", queue.ref, before, answer.next_offset)
                    self._on_illegal_offset(queue, answer.next_offset)
                    return
                self._receive(queue, answer, started)
                pause_s = 0.0
                if queue.buffer.position == before:
                    # A broker that does not hold the long poll, or finds nothing new, must not cause a busy loop.
                    pause_s = intervals.empty_pull_s - (queue.pulled_at - started)
            except FlowControlError:
                pause_s = intervals.flow_control_s
            except SkyrouteError as error:
                await self._failed(queue, error)
                pause_s = intervals.failed_pull_s
            except Exception:
                log.exception("pull failed queue=%s", queue.ref)
                pause_s = intervals.failed_pull_s
            if pause_s > 0:
                await asyncio.sleep(pause_s)

    async def _wait_for_room(self, queue: ProcessQueue) -> None:
        if not self._not_paused.is_set():
            await self._not_paused.wait()
        limits = self._settings.limits
        if queue.buffer.is_full(limits):
            await queue.until(lambda: not queue.buffer.is_full(limits))
        if self._settings.locks:
            await queue.until(lambda: queue.is_locked(self._session.clock.monotonic()))

    async def _pull(self, queue: ProcessQueue) -> PullAnswer:
        ref = queue.ref
        subscription = self._subscriptions.find(ref.topic)
        commit_offset = queue.buffer.commit_offset if self._settings.shares else 0
        question = PullQuestion(
            group=self._settings.group,
            topic=ref.topic,
            queue_id=ref.queue_id,
            offset=queue.buffer.position,
            count_max=self._settings.pull_batch,
            commit_offset=commit_offset or None,
            suspend_ms=SUSPEND_MS,
            expression_type=subscription.expression_type if subscription is not None else "TAG",
            subscription_version=self._subscriptions.announced_version(ref.topic),
            broker_name=ref.broker_name,
        )
        return await calls.pull(self._session, question, broker_id=queue.broker_id)

    def _receive(self, queue: ProcessQueue, answer: PullAnswer, started: float) -> None:
        queue.failed_pulls.works_again(queue.ref.topic)
        queue.pulled_at = self._session.clock.monotonic()
        queue.broker_id = answer.suggested_broker_id
        queue.statistics.pulls += 1
        queue.statistics.pull_s += queue.pulled_at - started
        subscription = self._subscriptions.find(queue.ref.topic)
        if subscription is None:
            return  # unsubscribed meanwhile: the queue is about to be released
        messages: list[StoredMessage] = []
        next_offset = answer.next_offset
        if answer.status is PullStatus.FOUND:
            found, next_offset = self._read(queue, answer, subscription)
            messages = self.as_application_sees(found, queue.ref.topic)
            queue.statistics.pulled += len(messages)
        queue.buffer.add(messages, next_offset)
        if messages:
            self._on_messages(queue)

    def _read(
        self, queue: ProcessQueue, answer: PullAnswer, subscription: Subscription
    ) -> tuple[list[StoredMessage], int]:
        queue.damaged_reads += 1
        skips = queue.damaged_reads > DAMAGED_READS
        read = read_messages(answer, queue.ref, subscription, queue.buffer.position, skips_damage=skips)
        queue.damaged_reads = 0
        return read

    def as_application_sees(self, messages: list[StoredMessage], topic: str) -> list[StoredMessage]:
        """Return messages with the topic that they were sent to, without the namespace."""
        namespace = self._session.namespace
        if is_retry_topic(topic):
            return [
                message.replace(
                    topic=without_namespace(namespace, message.find_property(names.RETRY_TOPIC) or message.topic)
                )
                for message in messages
            ]
        if namespace is None:
            return messages
        topic = without_namespace(namespace, topic)
        return [message.replace(topic=topic) for message in messages]

    async def _failed(self, queue: ProcessQueue, error: SkyrouteError) -> None:
        suppressed = queue.failed_pulls.suppressed(queue.ref.topic, self._session.clock.monotonic())
        if suppressed is not None:
            log.warning("pull failed queue=%s reason=%s suppressed=%d", queue.ref, error, suppressed)
        if isinstance(error, SubscriptionNotFoundError | SubscriptionOutdatedError):
            self._on_unknown_subscription()
        if error.stale_route or isinstance(error, RemotingError):
            try:
                await self._session.routes.refresh(queue.ref.topic)
            except SkyrouteError as refresh_error:
                log.debug("route not refreshed topic=%s reason=%s", queue.ref.topic, refresh_error)
