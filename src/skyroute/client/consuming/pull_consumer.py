"""A consumer that returns messages when the application polls.

Its parts are in `pull/`: `prefetch` (reads queues ahead), `assignment` (which queues), `broker_requests`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Self, Unpack

from skyroute.client.arguments import (
    BYTES_MAX,
    OFFSET_MAX,
    check_callables,
    check_counts,
    check_flags,
    check_kind,
    check_offsets,
    check_queue,
    check_queues,
    check_session,
    check_strategy,
    check_times_or_zero,
)
from skyroute.client.consuming import queue_calls as calls
from skyroute.client.consuming.filter_support import FilterChecks, PendingSubscription, find_refusal, is_sql
from skyroute.client.consuming.intervals import Intervals
from skyroute.client.consuming.membership import GroupMembership
from skyroute.client.consuming.offset_store import BrokerOffsets
from skyroute.client.consuming.pull.assignment import OnAssignmentChanged, PullAssignment
from skyroute.client.consuming.pull.broker_requests import PullBrokerRequests
from skyroute.client.consuming.pull.prefetch import Prefetch, PrefetchLimits, QueueReader
from skyroute.client.consuming.strategies import AVERAGE, Strategy
from skyroute.client.consuming.subscription import Expression, StartPosition, make_subscription, to_ms
from skyroute.client.errors import ClientError, NotRunningError
from skyroute.client.namespaces import queue_with_namespace, queue_without_namespace
from skyroute.client.producing.queue_selection import subscribe_queues
from skyroute.client.session.session import ClientArguments, Session
from skyroute.message.message import StoredMessage
from skyroute.message.names import check_consumer_group, check_topic
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import with_namespace
from skyroute.wire.calls.clients import ConsumerData, ConsumeType, MessageModel, Subscription

log = logging.getLogger(__name__)

BUFFERED_MESSAGES_MAX: Final = 10_000
QUEUE_MESSAGES_MAX: Final = 1_000
QUEUE_BYTES_MAX: Final = 100 * 1024 * 1024
"""Default limits of the prefetched messages: of all queues together, and of one queue."""

PULL_BATCH: Final = 32
"""Messages per pull. Brokers return at most this many by default."""


class PullConsumer:
    """Reads the queues of topics, and returns messages when polled.

    Either the members of the group share the queues:

    Examples:
        >>> async with PullConsumer("billing", name_servers="127.0.0.1:9876") as consumer:
        ...     consumer.subscribe("Orders", "paid || cancelled")
        ...     async for message in consumer:
        ...         print(message.body)

    or the application assigns the queues itself:

    Examples:
        >>> async with PullConsumer("audit", name_servers="127.0.0.1:9876") as consumer:
        ...     consumer.assign(await consumer.queues("Orders"))
        ...     for queue in consumer.assignment:
        ...         await consumer.seek_to_begin(queue)
        ...     messages = await consumer.poll(timeout_s=5.0)

    With `auto_commit`, offsets are committed every few seconds, when a rebalance removes a queue, and at `stop`. The
    messages of a poll count as processed when the next poll begins, not before. So after `stop` the group reads the
    messages of the last poll again, unless `await consumer.commit()` was called.

    Poll from one task at a time. Call all methods on the event loop that started the consumer.
    """

    def __init__(
        self,
        group: str,
        name_servers: str | Sequence[str] | None = None,
        *,
        start: StartPosition = StartPosition.LAST,
        strategy: Strategy = AVERAGE,
        auto_commit: bool = True,
        on_assignment_changed: OnAssignmentChanged | None = None,
        buffered_messages_max: int = BUFFERED_MESSAGES_MAX,
        queue_messages_max: int = QUEUE_MESSAGES_MAX,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
        pull_batch: int = PULL_BATCH,
        intervals: Intervals | None = None,
        session: Session | None = None,
        **client: Unpack[ClientArguments],
    ) -> None:
        """Check the arguments. Nothing is connected before `start`.

        Args:
            group: the consumer group. Its members share the queues and the committed offsets.
            name_servers: `host:port;host:port`; None uses the environment variable NAMESRV_ADDR.
            start: where the group starts reading a queue that has no committed offset.
            strategy: how the members share the queues; all members need the same strategy.
            auto_commit: commit processed messages automatically, every `intervals.commit_s`.
            on_assignment_changed: plain or async function, called at a rebalance that changes the queues of this
                consumer. The removed queues can still be committed in it.
            buffered_messages_max: maximum prefetched messages of all queues.
            queue_messages_max: maximum prefetched messages of one queue.
            queue_bytes_max: maximum prefetched bytes of one queue.
            pull_batch: maximum messages per pull.
            intervals: intervals and delays; the defaults are those of Apache's clients.
            session: connections to share with other clients; its creator starts and stops it.
            client: see `ClientArguments`.

        Raises:
            InvalidNameError: the group name is invalid.
            ArgumentError: another argument is invalid.
            ClientError: no usable name server address is given.
        """
        check_consumer_group(group)
        check_kind("start", start, StartPosition)
        check_counts(
            buffered_messages_max=buffered_messages_max, queue_messages_max=queue_messages_max, pull_batch=pull_batch
        )
        check_counts(1, BYTES_MAX, queue_bytes_max=queue_bytes_max)
        check_strategy(strategy)
        check_flags(auto_commit=auto_commit)
        if intervals is not None:
            check_kind("intervals", intervals, Intervals)
        if on_assignment_changed is not None:
            check_callables(on_assignment_changed=on_assignment_changed)
        if session is not None:
            check_session(session, Session, **client)
        self._owns_session = session is None
        self.session = session if session is not None else Session(name_servers, **client)
        self.group = with_namespace(self.session.namespace, group)
        self._start = start
        self._intervals = intervals or Intervals()
        self._offsets = BrokerOffsets(self.session, self.group)
        self._subscriptions: dict[str, Subscription] = {}
        self._filter_checks = FilterChecks(self.session, self.group)
        self._prefetch = Prefetch(
            self.session,
            self.group,
            PrefetchLimits(buffered_messages_max, queue_messages_max, queue_bytes_max, pull_batch),
            find_start=self._find_start,
            intervals=self._intervals,
        )
        self._assignment = PullAssignment(
            self.group,
            self.session.namespace,
            self._subscriptions,
            self._prefetch,
            self._offsets,
            auto_commit=auto_commit,
            on_changed=on_assignment_changed,
        )
        self._membership = GroupMembership(
            self.session,
            strategy,
            self._intervals,
            describe=self._describe,
            topics=self._topics,
            rebalance=self._rebalance,
        )
        self._requests = PullBrokerRequests(
            self.session,
            self.group,
            self._prefetch,
            self._subscriptions,
            start,
            on_members_changed=self._membership.rebalance_soon,
        )
        self._is_assigned = False
        """Whether the application assigns the queues, so that there is nothing to rebalance."""
        self._tasks: list[asyncio.Task[Any]] = []
        self._running = False
        self._left = asyncio.Event()
        """Set unless it runs, or a task is in `stop`."""
        self._left.set()

    def __repr__(self) -> str:
        state = "running" if self._running else "stopped"
        return f"<PullConsumer {self.group} {state} queues={len(self._prefetch.readers)}>"

    # ----------------------------------------------------------------------------------------------- start and stop

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Join the group and start reading. A topic that does not exist yet is read once it exists.

        Raises:
            NoNameServerError: no name server responds.
            BrokerRefusedError: a broker cannot evaluate an SQL filter; the remark has the reason.
            ClientError: the shared session already has a consumer of this group.
        """
        if self._running:
            return
        if self._owns_session:
            await self.session.start()
        self._membership.join()
        self._running = True
        self._left = asyncio.Event()
        self._requests.start()
        self._prefetch.start()
        try:
            await self._check_filters()
            await self._membership.find_routes()
            is_balanced = await self._membership.rebalance()
        except BaseException:
            await self.stop()
            raise
        rebalances = self._membership.run(is_balanced=is_balanced)
        self._tasks.append(self.session.spawn(rebalances, name=f"rebalance of {self.group}"))
        if self._assignment.auto_commit:
            self._tasks.append(self.session.spawn(self._keep_committing(), name=f"commits of {self.group}"))

    async def stop(self) -> None:
        """Commit processed messages if `auto_commit` is on, and leave the group. A waiting poll returns [].

        Subscriptions are kept for the next `start`; assigned queues are not.
        """
        if not self._running:
            await self._left.wait()  # another task may be stopping it
            return
        self.session.check_loop()
        self._running = False
        self._filter_checks.clear()
        self._membership.stop()
        self._prefetch.stop()
        # on_assignment_changed may call this, in one of these tasks, which must not cancel itself.
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._assignment.auto_commit:
                await self._assignment.commit_processed(self._prefetch.readers.values(), wait=True)
        finally:
            self._requests.stop()
            self._prefetch.clear()
            try:
                await self._membership.leave()
            finally:
                try:
                    if self._owns_session:
                        await self.session.stop()
                finally:
                    self._left.set()

    async def _check_filters(self) -> None:
        for subscription in filter(is_sql, list(self._subscriptions.values())):
            if (refusal := await find_refusal(self.session, self.group, subscription)) is not None:
                raise refusal

    async def _keep_committing(self) -> None:
        while True:
            await asyncio.sleep(self._intervals.commit_s)
            await self._assignment.commit_processed(self._prefetch.readers.values(), wait=False)

    # -------------------------------------------------------------------------------------------------- membership

    def _describe(self) -> ConsumerData:
        subscriptions = tuple(self._subscriptions.values())
        return ConsumerData(self.group, ConsumeType.PULL, MessageModel.CLUSTERING, self._start.wire, subscriptions)

    def _topics(self) -> set[str]:
        return {*self._subscriptions, *(queue.topic for queue in self._prefetch.readers)}

    async def _rebalance(self) -> bool:
        if self._is_assigned:
            return True
        return await self._assignment.rebalance(self._membership, lambda: self._running)

    # ----------------------------------------------------------------------------------------- subscribe and assign

    def subscribe(self, topic: str, expression: str | Expression = "*") -> PendingSubscription:
        """Read this member's share of a topic's queues; a second call replaces the filter.

        `expression` is tags separated by `||`, or `sql("amount > 100")`. A broker checks an SQL filter first: at
        `start`, or in the background if the consumer runs. A refused filter changes nothing. Await the result to wait
        for the check.

        Raises:
            InvalidNameError: the topic name is invalid.
            TagExpressionError: the expression contains no tag.
            ClientError: queues were assigned.
        """
        check_topic(topic)
        if self._is_assigned and self._prefetch.readers:
            raise ClientError(
                f"cannot subscribe to {topic}: queues were assigned with `assign`; use another consumer to subscribe"
            )
        name = with_namespace(self.session.namespace, topic)
        subscription = make_subscription(name, expression, round(self.session.clock.wall() * 1000))
        self._is_assigned = False
        self._filter_checks.cancel(name)
        if self._running and is_sql(subscription):
            return self._filter_checks.start(subscription, lambda: self._apply_if_running(subscription))
        self._apply(subscription)
        return PendingSubscription()

    def _apply_if_running(self, subscription: Subscription) -> None:
        if self._running and not self._is_assigned:
            self._apply(subscription)

    def _apply(self, subscription: Subscription) -> None:
        self._subscriptions[subscription.topic] = subscription
        for reader in self._prefetch.readers.values():
            if reader.queue.topic == subscription.topic:
                self._prefetch.change_subscription(reader, subscription)
        self._membership.announce_soon()

    def unsubscribe(self, topic: str) -> None:
        """Stop reading a topic. Its queues are given up in the background.

        Raises:
            InvalidNameError: the topic name is invalid.
        """
        check_topic(topic)
        name = with_namespace(self.session.namespace, topic)
        self._filter_checks.cancel(name)
        self._subscriptions.pop(name, None)
        self._membership.announce_soon()

    def assign(self, queues: Iterable[QueueRef], expression: str | Expression = "*") -> None:
        """Read exactly these queues, independent of the other members of the group.

        Raises:
            TagExpressionError: the expression contains no tag.
            ArgumentError: `queues` are not queues, or the expression is invalid.
            ClientError: the consumer has subscribed to a topic.
        """
        queues = check_queues("queues", queues)
        make_subscription("topic", expression, 0)  # raises before anything changes
        if self._subscriptions or self._filter_checks:
            raise ClientError("cannot assign queues: the consumer has subscribed to a topic; use another consumer")
        self._is_assigned = True
        wanted = {self._with_namespace(queue) for queue in queues}
        subscriptions = {topic: make_subscription(topic, expression, 0) for topic in {q.topic for q in wanted}}
        removed = [reader for queue, reader in self._prefetch.readers.items() if queue not in wanted]
        for reader in removed:
            self._prefetch.drop(reader)
        if self._assignment.auto_commit and self._running and removed:
            commit = self._assignment.commit_processed(removed, wait=False)
            self.session.spawn(commit, name=f"last commit of {self.group}")
        for queue in wanted:
            known = self._prefetch.readers.get(queue)
            if known is None:
                self._prefetch.add(queue, subscriptions[queue.topic], is_shared=False)
            else:
                self._prefetch.change_subscription(known, subscriptions[queue.topic])

    @property
    def assignment(self) -> frozenset[QueueRef]:
        """The queues that this consumer reads now."""
        return frozenset(map(self._without_namespace, self._prefetch.readers))

    async def queues(self, topic: str) -> list[QueueRef]:
        """Return all readable queues of a topic.

        Raises:
            NoRouteError: no broker serves the topic.
            NoNameServerError: no name server responds.
            InvalidNameError: the topic name is invalid.
        """
        check_topic(topic)
        name = with_namespace(self.session.namespace, topic)
        route = await self.session.routes.refresh(name)
        return [self._without_namespace(queue) for queue in subscribe_queues(name, route)]

    # --------------------------------------------------------------------------------------------------------- polling

    async def poll(self, timeout_s: float = 5.0, messages_max: int | None = None) -> list[StoredMessage]:
        """Return prefetched messages, in order within each queue; wait for the first, and return [] on a timeout.

        The messages of earlier polls count as processed from now on.

        Raises:
            NotRunningError: the consumer is not running.
            ArgumentError: an argument is invalid.
            SkyrouteError: a queue cannot be read, and retrying does not help, for example without permission. The next
                poll tries again.
        """
        check_times_or_zero(timeout_s=timeout_s)
        if messages_max is not None:
            check_counts(messages_max=messages_max)
        self._check_running()
        self.session.check_loop()
        self._prefetch.mark_processed()
        # A loop that polls without a pause must not starve the readers and the heartbeats.
        await asyncio.sleep(0)
        await self._prefetch.wait_for_messages(timeout_s)
        return self._prefetch.take(messages_max)

    def __aiter__(self) -> AsyncIterator[StoredMessage]:
        """Return messages one by one until `stop`. Each counts as processed when the next one is requested."""
        self._check_running()
        return self

    async def __anext__(self) -> StoredMessage:
        while self._running:
            for message in await self.poll(messages_max=1):
                return message
        raise StopAsyncIteration

    def _check_running(self) -> None:
        if not (self._running and self.session.is_running):
            raise NotRunningError(f"the consumer {self.group} is not running: use `async with`, or call `start` first")

    # ------------------------------------------------------------------------------------------------------- positions

    def pause(self, *queues: QueueRef) -> None:
        """Return no messages of these queues, or of all queues if none is given, until `resume`. Positions are kept.

        Raises:
            ClientError: a queue is not assigned.
        """
        for reader in self._find_readers(queues):
            self._prefetch.pause(reader)

    def resume(self, *queues: QueueRef) -> None:
        """Return messages of these queues again, or of all queues if none is given.

        Raises:
            ClientError: a queue is not assigned.
        """
        for reader in self._find_readers(queues):
            self._prefetch.resume(reader)

    @property
    def paused(self) -> frozenset[QueueRef]:
        """The queues that are paused now."""
        paused = (queue for queue, reader in self._prefetch.readers.items() if reader.is_paused)
        return frozenset(map(self._without_namespace, paused))

    async def position(self, queue: QueueRef) -> int:
        """Return the offset that the next poll continues from.

        Raises:
            ClientError: the queue is not assigned, or its broker refuses to return the committed offset.
            RemotingError: the broker does not respond.
        """
        (reader,) = self._find_readers([queue])
        return await self._prefetch.locate(reader)

    async def committed(self, queue: QueueRef) -> int | None:
        """Return the committed offset of the group from the broker; None if there is none.

        Raises:
            ClientError, RemotingError: the broker refuses, or does not respond.
        """
        check_queue("queue", queue)
        return await calls.committed_offset(self.session, self.group, self._with_namespace(queue))

    def seek(self, queue: QueueRef, offset: int) -> None:
        """Continue at this offset. Prefetched messages are dropped.

        An offset outside the queue becomes the nearest offset in it.

        Raises:
            ClientError: the queue is not assigned, or the offset is negative.
        """
        (reader,) = self._find_readers([queue])
        check_counts(0, OFFSET_MAX, offset=offset)
        self._prefetch.seek(reader, offset)

    async def seek_to_begin(self, queue: QueueRef) -> None:
        """Continue at the oldest message.

        Raises:
            ClientError, RemotingError: the queue is not assigned, or its broker does not return the offset.
        """
        (reader,) = self._find_readers([queue])
        self._prefetch.seek(reader, max(0, await calls.min_offset(self.session, reader.queue)))

    async def seek_to_end(self, queue: QueueRef) -> None:
        """Continue behind the newest message.

        Raises:
            ClientError, RemotingError: the queue is not assigned, or its broker does not return the offset.
        """
        (reader,) = self._find_readers([queue])
        self._prefetch.seek(reader, await calls.max_offset(self.session, reader.queue))

    async def seek_to_time(self, queue: QueueRef, when: datetime) -> None:
        """Continue at the first message that was stored at this time or later.

        Raises:
            ClientError, RemotingError: the queue is not assigned, its broker does not return the offset, or `when` has
                no time zone.
        """
        (reader,) = self._find_readers([queue])
        when_ms = to_ms(when)
        self._prefetch.seek(reader, await calls.offset_at(self.session, reader.queue, when_ms))

    async def commit(self, offsets: Mapping[QueueRef, int] | None = None) -> None:
        """Commit offsets, each the offset of the next message to read; by default those of all returned messages.

        Raises:
            NotRunningError: the consumer is not running. Nothing was committed.
            ClientError, RemotingError: a broker did not store its offsets; other brokers may have.
        """
        self._check_running()
        if offsets is None:
            wanted = {queue: reader.position for queue, reader in self._prefetch.readers.items()}
        else:
            checked = check_offsets("offsets", offsets)
            wanted = {self._with_namespace(queue): offset for queue, offset in checked.items()}
        outcomes = await asyncio.gather(
            *(self._commit(queue, offset) for queue, offset in wanted.items() if offset is not None),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _commit(self, queue: QueueRef, offset: int) -> None:
        await calls.commit_offset(self.session, self.group, queue, offset, wait=True)
        reader = self._prefetch.readers.get(queue)
        if reader is not None and reader.position is not None:
            # The next automatic commit must not move behind what the application has committed.
            reader.unprocessed_from = offset if offset < reader.position else None

    def _find_readers(self, queues: Iterable[QueueRef]) -> list[QueueReader]:
        found = []
        for queue in queues:
            check_queue("queue", queue)
            reader = self._prefetch.readers.get(self._with_namespace(queue))
            if reader is None:
                raise ClientError(f"queue {queue} is not assigned to this consumer: see `assignment` for its queues")
            found.append(reader)
        return found or list(self._prefetch.readers.values())

    async def _find_start(self, queue: QueueRef) -> int:
        """Return the committed offset of the group, or else the offset that `start` selects."""
        offset = await self._offsets.read(queue)
        return offset if offset is not None else await calls.start_offset(self.session, queue, self._start)

    def _with_namespace(self, queue: QueueRef) -> QueueRef:
        return queue_with_namespace(self.session.namespace, queue)

    def _without_namespace(self, queue: QueueRef) -> QueueRef:
        return queue_without_namespace(self.session.namespace, queue)
