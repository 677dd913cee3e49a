"""Gives out messages when asked to. The application or its group says which queues are read; a seek says where."""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
    check_times,
    check_times_or_none_at_all,
)
from skyroute.client.consuming import queues as calls
from skyroute.client.consuming.filter_support import Acceptance, find_refusal, is_condition
from skyroute.client.consuming.offset_store import BrokerOffsets
from skyroute.client.consuming.pull_broker_requests import PullConsumerAnswers
from skyroute.client.consuming.read_ahead import QueueReader, ReadAhead, ReadAheadBounds
from skyroute.client.consuming.rebalance import AVERAGE, Strategy
from skyroute.client.consuming.subscription import Expression, StartPosition, make_subscription, to_ms
from skyroute.client.errors import ClientError, NoNameServerError, NotRunningError
from skyroute.client.producing.queue_selection import subscribe_queues
from skyroute.client.session.session import ClientArguments, Session
from skyroute.errors import SkyrouteError
from skyroute.message.message import StoredMessage
from skyroute.message.names import check_consumer_group, check_topic
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import with_namespace, without_namespace
from skyroute.remoting.log_backoff import LogBackoff
from skyroute.routing.topology import TopicRoute
from skyroute.wire.calls.clients import ConsumerData, ConsumeType, MessageModel, Subscription

log = logging.getLogger(__name__)

BUFFERED_MESSAGES_MAX: Final = 10_000
QUEUE_MESSAGES_MAX: Final = 1_000
QUEUE_BYTES_MAX: Final = 100 * 1024 * 1024
"""What is read ahead, in all and of one queue."""

PULL_MESSAGES_MAX: Final = 32
"""Messages asked for at once; brokers give no more by default."""

REBALANCE_INTERVAL_S: Final = 20.0
REBALANCE_RETRY_S: Final = 1.0
"""How often a group's queues are shared out again though nobody said that anything changed; and if it did not work."""


@dataclass(frozen=True, slots=True)
class AssignmentChange:
    """Queues that the group's sharing has taken from this consumer, and given to it."""

    added: frozenset[QueueRef]
    removed: frozenset[QueueRef]


OnAssignmentChanged = Callable[[AssignmentChange], Awaitable[None] | None]


class PullConsumer:
    """Reads the queues of topics, and hands messages out when asked.

    Either the group shares the queues out among its members:

    Examples:
        >>> async with PullConsumer("billing", name_servers="127.0.0.1:9876") as consumer:
        ...     consumer.subscribe("Orders", "paid || cancelled")
        ...     async for message in consumer:
        ...         print(message.body)

    or the application chooses them itself:

    Examples:
        >>> async with PullConsumer("audit", name_servers="127.0.0.1:9876") as consumer:
        ...     consumer.assign(await consumer.queues("Orders"))
        ...     for queue in consumer.assignment:
        ...         await consumer.seek_to_begin(queue)
        ...     messages = await consumer.poll(timeout_s=5.0)

    With `auto_commit`, offsets are committed every few seconds, when a queue is handed over to another member, and at
    the end. What a poll hands out counts as processed when the next poll begins, and not before: a message is
    committed only after the application came back for more. So messages of the last poll before the end are handed
    out again to whoever continues, unless `await consumer.commit()` is called first.

    One task polls; everything may be called from the event loop it was started on.
    """

    def __init__(
        self,
        group: str,
        name_servers: str | Sequence[str] | None = None,
        *,
        start_from: StartPosition = StartPosition.LAST,
        strategy: Strategy = AVERAGE,
        auto_commit: bool = True,
        auto_commit_interval_s: float = 5.0,
        on_assignment_changed: OnAssignmentChanged | None = None,
        buffered_messages_max: int = BUFFERED_MESSAGES_MAX,
        queue_messages_max: int = QUEUE_MESSAGES_MAX,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
        pull_messages_max: int = PULL_MESSAGES_MAX,
        retry_interval_s: float = 1.0,
        session: Session | None = None,
        **client: Unpack[ClientArguments],
    ) -> None:
        """Prepare; nothing is connected before `start`.

        Args:
            group: the consumers that share what there is to read, and how far it was read.
            name_servers: `host:port;host:port`; None: the environment's NAMESRV_ADDR.
            start_from: where to begin with a queue of which the group has consumed nothing yet.
            strategy: how the group shares out queues; every member needs the same.
            auto_commit: commit what was processed without being told to.
            auto_commit_interval_s: how often.
            on_assignment_changed: called, plain or asynchronous, after the group has shared its queues out anew, and
                before the queues that were taken away are given up: the last moment to commit them.
            buffered_messages_max: messages read ahead, of all queues.
            queue_messages_max: messages read ahead, of one queue.
            queue_bytes_max: the same, counted in bytes.
            pull_messages_max: messages asked for at once.
            retry_interval_s: how long to wait after a broker failed.
            session: connections to share with others; whoever made it starts and stops it.
            client: see `ClientArguments`.

        Raises:
            InvalidNameError: no group has this name.
            ArgumentError: another argument makes no sense.
            ClientError: there is no usable address of a name server.
        """
        check_consumer_group(group)
        check_kind("start_from", start_from, StartPosition)
        check_times(auto_commit_interval_s=auto_commit_interval_s, retry_interval_s=retry_interval_s)
        check_counts(
            buffered_messages_max=buffered_messages_max,
            queue_messages_max=queue_messages_max,
            pull_messages_max=pull_messages_max,
        )
        check_counts(1, BYTES_MAX, queue_bytes_max=queue_bytes_max)
        check_strategy(strategy)
        check_flags(auto_commit=auto_commit)
        if on_assignment_changed is not None:
            check_callables(on_assignment_changed=on_assignment_changed)
        if session is not None:
            check_session(session, Session, **client)
        self._owns_session = session is None
        self.session = session if session is not None else Session(name_servers, **client)
        self.group = with_namespace(self.session.namespace, group)
        self._start_from = start_from
        self._strategy = strategy
        self._auto_commit = auto_commit
        self._auto_commit_interval_s = auto_commit_interval_s
        self._on_assignment_changed = on_assignment_changed
        self._offsets = BrokerOffsets(self.session, self.group)
        self._subscriptions: dict[str, Subscription] = {}
        self._unasked: dict[str, Subscription] = {}
        """Conditions that a broker is asked about, by topic."""
        self._ahead = ReadAhead(
            self.session,
            self.group,
            ReadAheadBounds(buffered_messages_max, queue_messages_max, queue_bytes_max, pull_messages_max),
            locate=self._find_start,
            retry_interval_s=retry_interval_s,
        )
        self._answers = PullConsumerAnswers(
            self.session,
            self.group,
            self._ahead,
            self._subscriptions,
            start_from,
            on_members_changed=self._on_members_changed,
        )
        self._unbalanced = asyncio.Event()
        self._is_assigned = False
        """The application has chosen the queues, and there is nothing to share out."""
        self._untold = True
        """Brokers have not heard of the subscriptions as they are now."""
        self._troubled = LogBackoff()
        """Topics that cannot be shared out."""
        self._tasks: list[asyncio.Task[Any]] = []
        self._running = False

    def __repr__(self) -> str:
        state = "running" if self._running else "stopped"
        return f"<PullConsumer {self.group} {state} queues={len(self._ahead.readers)}>"

    # ----------------------------------------------------------------------------------------------- start and stop

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Join the group, and begin to read. A topic that does not exist yet is read once it does.

        Raises:
            NoNameServerError: no name server answers.
            BrokerRefusedError: a broker cannot evaluate an SQL expression; the remark says why.
            ClientError: its session, which it shares, has a consumer of the same group.
        """
        if self._running:
            return
        if self._owns_session:
            await self.session.start()
        self.session.join(self)
        self._running = True
        self._unbalanced = asyncio.Event()  # the one of an earlier start belongs to the event loop of that time
        self.session.routes.listeners.add(self._on_route_changed)
        self._answers.start()
        self._ahead.start()
        try:
            await self._check_conditions()
            await self._balance()
        except BaseException:
            await self.stop()
            raise
        self._tasks.append(self.session.spawn(self._keep_balanced(), name=f"rebalance of {self.group}"))
        if self._auto_commit:
            self._tasks.append(self.session.spawn(self._keep_committing(), name=f"commits of {self.group}"))

    async def _check_conditions(self) -> None:
        for subscription in filter(is_condition, list(self._subscriptions.values())):
            refusal = await find_refusal(self.session, self.group, subscription)
            if refusal is not None:
                raise refusal

    async def stop(self) -> None:
        """Commit what was processed, if that is done automatically, and leave the group. A waiting poll ends.

        What was subscribed to is remembered for another start; which queues were assigned is not.
        """
        if not self._running:
            return
        self._running = False
        self._unasked.clear()
        self._ahead.stop()
        # It may be called by the application's listener, and so by one of these tasks, which must come to its end.
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._auto_commit:
            await self._commit_processed(self._ahead.readers.values(), wait=True)
        self.session.routes.listeners.discard(self._on_route_changed)
        self._answers.stop()
        await self.session.leave(self)
        self._ahead.clear()
        self._untold = True
        if self._owns_session:
            await self.session.stop()

    # ---------------------------------------------------------------------------------------------- what is to be read

    def subscribe(self, topic: str, expression: str | Expression = "*") -> Acceptance:
        """Read this member's share of a topic's queues; calling it again changes the expression.

        `expression` is tags with `||` between them, or `sql("amount > 100")`. Such a condition is shown to a broker
        first: at the start, or, when running, in the background, and what is refused there changes nothing. Whoever
        wants to know awaits what this returns.

        Raises:
            InvalidNameError: no topic has this name.
            TagExpressionError: the expression has no tag in it.
            ClientError: queues were assigned.
        """
        check_topic(topic)
        if self._is_assigned and self._ahead.readers:
            raise ClientError("queues were assigned: a consumer either subscribes, or is assigned queues")
        name = with_namespace(self.session.namespace, topic)
        subscription = make_subscription(name, expression, round(self.session.clock.wall() * 1000))
        self._is_assigned = False
        self._unasked.pop(name, None)
        if self._running and is_condition(subscription):
            self._unasked[name] = subscription
            return Acceptance(self.session.spawn(self._ask_and_keep(subscription), name="check of a condition"))
        self._keep(subscription)
        return Acceptance()

    async def _ask_and_keep(self, subscription: Subscription) -> SkyrouteError | None:
        refusal = await find_refusal(self.session, self.group, subscription)
        if self._unasked.get(subscription.topic) is subscription:  # else something else is wanted of it by now
            del self._unasked[subscription.topic]
            if refusal is None and self._running and not self._is_assigned:
                self._keep(subscription)
        return refusal

    def _keep(self, subscription: Subscription) -> None:
        name = subscription.topic
        self._subscriptions[name] = subscription
        for reader in self._ahead.readers.values():
            if reader.queue.topic == name:
                self._ahead.change_subscription(reader, subscription)
        self._untold = True
        self._unbalanced.set()

    def unsubscribe(self, topic: str) -> None:
        """Read a topic no longer; its queues are given up in the background.

        Raises:
            InvalidNameError: no topic has this name.
        """
        check_topic(topic)
        name = with_namespace(self.session.namespace, topic)
        self._unasked.pop(name, None)
        self._subscriptions.pop(name, None)
        self._untold = True
        self._unbalanced.set()

    def assign(self, queues: Iterable[QueueRef], expression: str | Expression = "*") -> None:
        """Read just these queues from now on, whatever other members of the group do.

        Raises:
            TagExpressionError: the expression has no tag in it.
            ArgumentError: these are no queues, or it is no expression.
            ClientError: a topic is subscribed to.
        """
        queues = check_queues("queues", queues)
        make_subscription("topic", expression, 0)  # to see whether it can be, before anything changes
        if self._subscriptions or self._unasked:
            raise ClientError("a topic is subscribed to: a consumer either subscribes, or is assigned queues")
        self._is_assigned = True
        wanted = {self._wire(queue) for queue in queues}
        subscriptions = {topic: make_subscription(topic, expression, 0) for topic in {q.topic for q in wanted}}
        removed = [reader for queue, reader in self._ahead.readers.items() if queue not in wanted]
        for reader in removed:
            self._ahead.drop(reader)
        if self._auto_commit and self._running and removed:
            self.session.spawn(self._commit_processed(removed, wait=False), name=f"last commit of {self.group}")
        for queue in wanted:
            known = self._ahead.readers.get(queue)
            if known is None:
                self._ahead.add(queue, subscriptions[queue.topic], is_shared=False)
            else:
                self._ahead.change_subscription(known, subscriptions[queue.topic])

    @property
    def assignment(self) -> frozenset[QueueRef]:
        """The queues that are read now."""
        return frozenset(map(self._plain, self._ahead.readers))

    async def queues(self, topic: str) -> list[QueueRef]:
        """Return all queues of a topic that can be read.

        Raises:
            NoRouteError: no broker serves the topic.
            NoNameServerError: no name server answers.
            InvalidNameError: no topic has this name.
        """
        check_topic(topic)
        name = with_namespace(self.session.namespace, topic)
        return [self._plain(queue) for queue in subscribe_queues(name, await self.session.routes.refresh(name))]

    # --------------------------------------------------------------------------------------------------------- polling

    async def poll(self, timeout_s: float = 5.0, max_messages: int | None = None) -> list[StoredMessage]:
        """Return messages, in order within each queue; wait if there is none, and return [] if none comes in time.

        What earlier polls returned counts as processed from now on.

        Raises:
            NotRunningError: it was not started, or is stopped.
            ArgumentError: `max_messages` is not at least one, or the time is none.
            SkyrouteError: a queue cannot be read, and trying again by itself would not help, as without permission.
                Polling again tries again.
        """
        check_times_or_none_at_all(timeout_s=timeout_s)
        if max_messages is not None:
            check_counts(max_messages=max_messages)
        self._check_running()
        self._ahead.take_as_processed()
        # Who polls without pause must not keep the readers, nor the heartbeats, from their work.
        await asyncio.sleep(0)
        await self._ahead.until_news(timeout_s)
        return self._ahead.take(max_messages)

    def __aiter__(self) -> AsyncIterator[StoredMessage]:
        """Give messages one by one until it is stopped. Each counts as processed when the next one is asked for."""
        self._check_running()
        return self

    async def __anext__(self) -> StoredMessage:
        while self._running:
            for message in await self.poll(max_messages=1):
                return message
        raise StopAsyncIteration

    def _check_running(self) -> None:
        if not (self._running and self.session.is_running):
            raise NotRunningError("the consumer is not running: use `async with`, or call `start` first")

    # ------------------------------------------------------------------------------------------------------- positions

    def pause(self, *queues: QueueRef) -> None:
        """Hand out nothing of these queues, or of all if none is named, until they are resumed. Their place is kept.

        Raises:
            ClientError: a queue is not assigned.
        """
        for reader in self._find(queues):
            self._ahead.pause(reader)

    def resume(self, *queues: QueueRef) -> None:
        """Hand out these queues again, or all if none is named.

        Raises:
            ClientError: a queue is not assigned.
        """
        for reader in self._find(queues):
            self._ahead.resume(reader)

    @property
    def paused(self) -> frozenset[QueueRef]:
        """The queues of which nothing is handed out now."""
        return frozenset(self._plain(queue) for queue, reader in self._ahead.readers.items() if reader.is_paused)

    async def position(self, queue: QueueRef) -> int:
        """Return the offset that comes next: of the next message to be handed out, or of one that is not wanted.

        Raises:
            ClientError: the queue is not assigned, or its broker refuses to say where the group stands.
            RemotingError: its broker cannot be asked.
        """
        (reader,) = self._find([queue])
        return await self._ahead.locate(reader)

    async def committed(self, queue: QueueRef) -> int | None:
        """Return the offset from which the group goes on, as the broker knows it; None if it knows of none.

        Raises:
            ClientError, RemotingError: the broker refuses to say, or cannot be asked.
        """
        check_queue("queue", queue)
        return await calls.committed_offset(self.session, self.group, self._wire(queue))

    def seek(self, queue: QueueRef, offset: int) -> None:
        """Go on from this offset. What was read ahead is dropped, and so is what is on its way.

        An offset that the queue does not have, not any more or not yet, becomes the nearest one that it has.

        Raises:
            ClientError: the queue is not assigned, or the offset is negative.
        """
        (reader,) = self._find([queue])
        check_counts(0, OFFSET_MAX, offset=offset)
        self._ahead.move(reader, offset)

    async def seek_to_begin(self, queue: QueueRef) -> None:
        """Go on from the oldest message.

        Raises:
            ClientError, RemotingError: the queue is not assigned, or its broker does not say.
        """
        (reader,) = self._find([queue])
        self._ahead.move(reader, max(0, await calls.min_offset(self.session, reader.queue)))

    async def seek_to_end(self, queue: QueueRef) -> None:
        """Go on with what comes from now on.

        Raises:
            ClientError, RemotingError: the queue is not assigned, or its broker does not say.
        """
        (reader,) = self._find([queue])
        self._ahead.move(reader, await calls.max_offset(self.session, reader.queue))

    async def seek_to_time(self, queue: QueueRef, when: datetime) -> None:
        """Go on with the first message that was stored at this time or later.

        Raises:
            ClientError, RemotingError: the queue is not assigned, its broker does not say, or the time has no zone.
        """
        (reader,) = self._find([queue])
        when_ms = to_ms(when)
        self._ahead.move(reader, await calls.offset_at(self.session, reader.queue, when_ms))

    async def commit(self, offsets: Mapping[QueueRef, int] | None = None) -> None:
        """Have the brokers keep these offsets, of the next message to read; by default all that was handed out.

        Raises:
            ClientError, RemotingError: a broker did not; others may have.
        """
        if offsets is None:
            wanted = {queue: reader.position for queue, reader in self._ahead.readers.items()}
        else:
            wanted = {self._wire(queue): offset for queue, offset in check_offsets("offsets", offsets).items()}
        outcomes = await asyncio.gather(
            *(self._commit(queue, offset) for queue, offset in wanted.items() if offset is not None),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _commit(self, queue: QueueRef, offset: int) -> None:
        await calls.commit_offset(self.session, self.group, queue, offset, wait=True)
        reader = self._ahead.readers.get(queue)
        if reader is not None and reader.position is not None:
            # What the application says is processed must not be taken back by the next automatic commit.
            reader.unprocessed_from = offset if offset < reader.position else None

    def _find(self, queues: Iterable[QueueRef]) -> list[QueueReader]:
        found = []
        for queue in queues:
            check_queue("queue", queue)
            reader = self._ahead.readers.get(self._wire(queue))
            if reader is None:
                raise ClientError(f"{queue} is not assigned to this consumer; `assignment` says which queues are")
            found.append(reader)
        return found or list(self._ahead.readers.values())

    async def _find_start(self, queue: QueueRef) -> int:
        """Return where the group has left off, or else where it was told to begin."""
        offset = await self._offsets.read(queue)
        return offset if offset is not None else await calls.start_offset(self.session, queue, self._start_from)

    def _wire(self, queue: QueueRef) -> QueueRef:
        return self._renamed(queue, with_namespace(self.session.namespace, queue.topic))

    def _plain(self, queue: QueueRef) -> QueueRef:
        return self._renamed(queue, without_namespace(self.session.namespace, queue.topic))

    @staticmethod
    def _renamed(queue: QueueRef, topic: str) -> QueueRef:
        return queue if topic == queue.topic else QueueRef(topic, queue.broker_name, queue.queue_id)

    # ------------------------------------------------------------------------------------------------------ committing

    async def _keep_committing(self) -> None:
        while True:
            await asyncio.sleep(self._auto_commit_interval_s)
            await self._commit_processed(self._ahead.readers.values(), wait=False)

    async def _commit_processed(self, readers: Iterable[QueueReader], *, wait: bool) -> None:
        queues = []
        for reader in readers:
            offset = reader.processed
            if offset is not None:
                self._offsets.update(reader.queue, offset, only_forward=False)
                queues.append(reader.queue)
        await self._offsets.persist(queues, wait=wait)

    # ----------------------------------------------------------------------------------------------- sharing the queues

    def producer_groups(self) -> Iterable[str]:
        """Nothing is sent."""
        return ()

    def consumer_data(self) -> Iterable[ConsumerData]:
        """What heartbeats say of us."""
        yield ConsumerData(
            self.group,
            ConsumeType.PULL,
            MessageModel.CLUSTERING,
            self._start_from.wire,
            tuple(self._subscriptions.values()),
        )

    def topics(self) -> Iterable[str]:
        """Topics whose routes are to be kept fresh."""
        return {*self._subscriptions, *(queue.topic for queue in self._ahead.readers)}

    def _on_members_changed(self) -> None:
        self._unbalanced.set()

    def _on_route_changed(self, topic: str, _before: TopicRoute | None, _now: TopicRoute) -> None:
        if topic in self._subscriptions:
            self._unbalanced.set()

    async def _keep_balanced(self) -> None:
        delay_s = REBALANCE_INTERVAL_S
        complaints = LogBackoff()
        while self._running:
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._unbalanced.wait()
            try:
                is_balanced = await self._balance()
            except NoNameServerError as error:
                unsaid = complaints.unsaid(self.group, self.session.clock.monotonic())
                if unsaid is not None:
                    log.warning("queues not shared out group=%s cause=%s unsaid=%d", self.group, error, unsaid)
                is_balanced = False
            except Exception:  # a strategy of the application's own may raise anything; the next round may go well
                log.exception("queues not shared out group=%s", self.group)
                is_balanced = False
            delay_s = REBALANCE_INTERVAL_S if is_balanced else REBALANCE_RETRY_S

    async def _balance(self) -> bool:
        """Find out which queues are ours now, and return whether that worked for all topics.

        Raises:
            NoNameServerError: a route is unknown, and nobody can be asked.
        """
        self._unbalanced.clear()
        routes = {topic: await self._find_route(topic) for topic in self.topics()}
        if self._untold:
            # Brokers must know us before they are asked who is in the group.
            self._untold = False
            await self.session.send_heartbeats()
        if self._is_assigned:
            return True
        is_balanced = True
        share: set[QueueRef] = set()
        for topic in list(self._subscriptions):
            mine = await self._find_share(topic, routes.get(topic))
            if mine is None:
                is_balanced = False
                mine = [queue for queue in self._ahead.readers if queue.topic == topic]
            share.update(mine)
        await self._adopt(share)
        return is_balanced

    async def _find_route(self, topic: str) -> TopicRoute | None:
        try:
            return await self.session.routes.find(topic)
        except NoNameServerError:
            raise
        except SkyrouteError as error:
            self._note_trouble(topic, error)
            return None

    async def _find_share(self, topic: str, route: TopicRoute | None) -> list[QueueRef] | None:
        """Return our queues of a topic; None if that cannot be known now."""
        if route is None:
            return None
        queues = subscribe_queues(topic, route)
        if not queues:
            self._note_trouble(topic, "no queue of the topic can be read")
            return None
        client_id = self.session.client_id
        try:
            members = await calls.members(self.session, self.group, topic)
            if client_id not in members:
                # A broker that was restarted has forgotten us; without this we would give everything up for a while.
                await self.session.send_heartbeats()
                members = await calls.members(self.session, self.group, topic)
        except SkyrouteError as error:
            self._note_trouble(topic, error)
            return None
        self._troubled.works_again(topic)
        return self._strategy(client_id, queues, members)

    def _note_trouble(self, topic: str, cause: SkyrouteError | str) -> None:
        unsaid = self._troubled.unsaid(topic, self.session.clock.monotonic())
        if unsaid is not None:
            log.warning("topic not shared out group=%s topic=%s cause=%s unsaid=%d", self.group, topic, cause, unsaid)

    async def _adopt(self, share: set[QueueRef]) -> None:
        readers = self._ahead.readers
        added, lost = share - readers.keys(), [readers[queue] for queue in readers.keys() - share]
        if not added and not lost:
            return
        log.info("queues shared out group=%s added=%d removed=%d", self.group, len(added), len(lost))
        for reader in lost:
            reader.stop()
        await self._tell_application(added, lost)
        if not self._running:
            return  # the application has stopped us, and all is committed
        for reader in lost:
            self._ahead.drop(reader)
        if self._auto_commit:
            # Whoever has them now asks where to start: the sooner this is known, the fewer messages are read twice.
            await self._commit_processed(lost, wait=True)
        for reader in lost:
            self._offsets.forget(reader.queue)
        for queue in sorted(added):
            subscription = self._subscriptions.get(queue.topic)
            if subscription is not None:  # else it was unsubscribed from meanwhile
                self._ahead.add(queue, subscription, is_shared=True)

    async def _tell_application(self, added: Iterable[QueueRef], lost: Iterable[QueueReader]) -> None:
        if self._on_assignment_changed is None:
            return
        change = AssignmentChange(
            frozenset(map(self._plain, added)), frozenset(self._plain(reader.queue) for reader in lost)
        )
        try:
            outcome = self._on_assignment_changed(change)
            if inspect.isawaitable(outcome):
                await outcome
        except Exception:
            log.exception("on_assignment_changed failed group=%s", self.group)
