"""Fetches the messages of a queue, one pull after the other, for as long as the queue is ours."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from skyroute.client.consuming import queues as calls
from skyroute.client.consuming.push.owned_queue import OwnedQueue
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
"""How long a broker may wait for a message before it answers that there is none."""


DAMAGED_READS: Final = 3
"""A record that comes damaged is asked for again so often before it is passed over."""


class Fetching:
    """Fetches for all queues of one consumer."""

    def __init__(
        self,
        session: Session,
        settings: ConsumerSettings,
        subscriptions: Subscriptions,
        *,
        on_messages: Callable[[OwnedQueue], None],
        on_illegal_offset: Callable[[OwnedQueue, int], None],
        on_unknown: Callable[[], None],
    ) -> None:
        """Set it up.

        `on_illegal_offset` is told where a queue really goes on, and ends the fetching. `on_unknown` hears that a
        broker does not know our subscription.
        """
        self._session = session
        self._settings = settings
        self._subscriptions = subscriptions
        self._on_messages = on_messages
        self._on_illegal_offset = on_illegal_offset
        self._on_unknown = on_unknown
        self._going = asyncio.Event()
        self._going.set()

    def pause(self) -> None:
        """Fetch nothing more until `resume`; what was asked for already still comes."""
        self._going.clear()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._going.set()

    async def fetch(self, owned: OwnedQueue) -> None:
        """Fetch the messages of a queue until cancelled, or until its offset turns out to be illegal."""
        pace = self._settings.pace
        while True:
            try:
                await self._until_wanted(owned)
                started = self._session.clock.monotonic()
                before = owned.backlog.position
                answer = await self._pull(owned)
                if answer.status is PullStatus.OFFSET_ILLEGAL:
                    log.warning("offset illegal queue=%s offset=%d next=%d", owned.queue, before, answer.next_offset)
                    self._on_illegal_offset(owned, answer.next_offset)
                    return
                self._take_in(owned, answer, started)
                pause_s = 0.0
                if answer.status is not PullStatus.FOUND and owned.backlog.position == before:
                    # Whoever says so at once, again and again, must not keep us busy.
                    pause_s = pace.empty_pull_s - (owned.pulled_at - started)
            except FlowControlError:
                pause_s = pace.busy_pull_s
            except SkyrouteError as error:
                await self._failed(owned, error)
                pause_s = pace.failed_pull_s
            except Exception:
                log.exception("fetch failed queue=%s", owned.queue)
                pause_s = pace.failed_pull_s
            if pause_s > 0:
                await asyncio.sleep(pause_s)

    async def _until_wanted(self, owned: OwnedQueue) -> None:
        if not self._going.is_set():
            await self._going.wait()
        limits = self._settings.limits
        if owned.backlog.is_full(limits):
            await owned.until(lambda: not owned.backlog.is_full(limits))
        if self._settings.locks:
            await owned.until(lambda: owned.is_locked(self._session.clock.monotonic()))

    async def _pull(self, owned: OwnedQueue) -> PullAnswer:
        queue = owned.queue
        subscription = self._subscriptions.find(queue.topic)
        commit_offset = owned.backlog.commit_offset if self._settings.shares else 0
        question = PullQuestion(
            group=self._settings.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            offset=owned.backlog.position,
            count_max=self._settings.pull_batch,
            commit_offset=commit_offset or None,
            suspend_ms=SUSPEND_MS,
            expression_type=subscription.expression_type if subscription is not None else "TAG",
            subscription_version=self._subscriptions.told_version(queue.topic),
            broker_name=queue.broker_name,
        )
        return await calls.pull(self._session, question, broker_id=owned.broker_id)

    def _take_in(self, owned: OwnedQueue, answer: PullAnswer, started: float) -> None:
        owned.failed_pulls.works_again(owned.queue.topic)
        owned.pulled_at = self._session.clock.monotonic()
        owned.broker_id = answer.suggested_broker_id
        owned.tally.pulls += 1
        owned.tally.pull_s += owned.pulled_at - started
        subscription = self._subscriptions.find(owned.queue.topic)
        if subscription is None:
            return  # given up meanwhile: the queue is about to be released
        messages: list[StoredMessage] = []
        next_offset = answer.next_offset
        if answer.status is PullStatus.FOUND:
            found, next_offset = self._read(owned, answer, subscription)
            messages = self.as_seen(found, owned.queue.topic)
            owned.tally.pulled += len(messages)
        owned.backlog.add(messages, next_offset)
        if messages:
            self._on_messages(owned)

    def _read(
        self, owned: OwnedQueue, answer: PullAnswer, subscription: Subscription
    ) -> tuple[list[StoredMessage], int]:
        owned.damaged_reads += 1
        skips = owned.damaged_reads > DAMAGED_READS
        read = read_messages(answer, owned.queue, subscription, owned.backlog.position, skips_damage=skips)
        owned.damaged_reads = 0
        return read

    def as_seen(self, messages: list[StoredMessage], topic: str) -> list[StoredMessage]:
        """Return messages of a topic as handlers see them: as of the topic they were sent to, without the namespace."""
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

    async def _failed(self, owned: OwnedQueue, error: SkyrouteError) -> None:
        unsaid = owned.failed_pulls.unsaid(owned.queue.topic, self._session.clock.monotonic())
        if unsaid is not None:
            log.warning("pull failed queue=%s cause=%s unsaid=%d", owned.queue, error, unsaid)
        if isinstance(error, SubscriptionNotFoundError | SubscriptionOutdatedError):
            self._on_unknown()
        if error.stale_route or isinstance(error, RemotingError):
            try:
                await self._session.routes.refresh(owned.queue.topic)
            except SkyrouteError as also:
                log.debug("route not refreshed topic=%s cause=%s", owned.queue.topic, also)
