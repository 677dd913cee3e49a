"""A consumer that receives and acknowledges messages one by one (RocketMQ 5's POP consumption)."""

import asyncio
import logging
import uuid
from collections.abc import Iterable, Sequence
from typing import Final, Self, Unpack

from skyroute.client.arguments import (
    check_callables,
    check_counts,
    check_flags,
    check_kind,
    check_session,
    check_times,
    check_times_or_zero,
)
from skyroute.client.consuming import pop_calls as calls
from skyroute.client.consuming.pop_handlers import FAILED_RECEIVE_S, Handler, HandlerCalls
from skyroute.client.consuming.pop_targets import ASSIGNMENT_S, PopTargets
from skyroute.client.consuming.subscription import Expression, StartPosition, make_subscription
from skyroute.client.errors import ArgumentError, NotRunningError
from skyroute.client.session.session import ClientArguments, Session
from skyroute.errors import SkyrouteError
from skyroute.message.message import StoredMessage
from skyroute.message.names import check_consumer_group, check_topic
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import with_namespace, without_namespace
from skyroute.wire.calls.clients import ConsumerData, ConsumeType, MessageModel, Subscription
from skyroute.wire.calls.pop import POP_COUNT_MAX, InitMode, PopQuestion

log = logging.getLogger(__name__)

RETRIES_MAX: Final = 16
"""Retries after which `run` makes a message a dead letter, by default; as in Java's client."""

EMPTY_RECEIVE_S: Final = 0.2
"""Shortest time between two requests that find nothing: a broker may not hold long polls."""

STOP_TIMEOUT_S: Final = 10.0
"""Default time that `stop` waits for handlers."""


class SimpleConsumer:
    """Receives messages and acknowledges each: the members of a group share all queues without a rebalance.

    A received message is invisible to the other members for a while. If it is not acknowledged by then, it comes again.

    Examples:
        >>> async with SimpleConsumer("billing", name_servers="127.0.0.1:9876") as consumer:
        ...     consumer.subscribe("Orders", "paid || cancelled")
        ...     for message in await consumer.receive(16, wait_s=20, invisible_s=60):
        ...         print(message.body)
        ...         await consumer.ack(message)

    Brokers of 4.x do not support it.
    """

    def __init__(
        self,
        group: str,
        name_servers: str | Sequence[str] | None = None,
        *,
        ordered: bool = False,
        assigned: bool = False,
        start: StartPosition = StartPosition.FIRST,
        session: Session | None = None,
        **client: Unpack[ClientArguments],
    ) -> None:
        """Check the arguments. Nothing is connected before `start`.

        Args:
            group: the consumer group.
            name_servers: `host:port;host:port`; None uses the environment variable NAMESRV_ADDR.
            ordered: receive each queue in order: none of its messages is visible while one is not acknowledged.
            assigned: receive from the queues that a broker assigns to this member: after `mqadmin setConsumeMode -m POP
                -q N` those of N + 1 members. Without, or if none are assigned for POP, from all queues.
            start: where the group starts in a queue without an offset: `StartPosition.FIRST` or `LAST`.
            session: connections to share with other clients; its creator starts and stops it.
            client: see `ClientArguments`.

        Raises:
            InvalidNameError: the group name is invalid.
            ArgumentError: another argument is invalid.
            ClientError: no usable name server address is given.
        """
        check_consumer_group(group)
        check_flags(ordered=ordered, assigned=assigned)
        check_kind("start", start, StartPosition)
        if start.when_ms is not None:
            raise ArgumentError(f"start is {start!r}: expected StartPosition.FIRST or StartPosition.LAST")
        if session is not None:
            check_session(session, Session, **client)
        self._owns_session = session is None
        self.session = session if session is not None else Session(name_servers, **client)
        self.group = with_namespace(self.session.namespace, group)
        self._ordered = ordered
        self._attempts: dict[QueueRef, str] = {}
        """Ids of ordered requests without a response: repeated, they get the same messages."""
        self._start = start
        self._init_mode = InitMode.MIN if start is StartPosition.FIRST else InitMode.MAX
        self._subscriptions: dict[str, Subscription] = {}
        self._targets = PopTargets(
            *(self.session, self.group, self._subscriptions),
            ordered=ordered,
            assigned=assigned,
            is_running=lambda: self._running,
        )
        self._running = False
        self._runs: set[HandlerCalls] = set()

    def __repr__(self) -> str:
        return f"<SimpleConsumer {self.group} {'running' if self._running else 'stopped'}>"

    # ----------------------------------------------------------------------------------------------- start and stop

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Connect, and announce the group to the brokers.

        Raises:
            NoNameServerError: no name server responds.
            ClientError: the shared session already has a consumer of this group.
        """
        if self._running:
            return
        if self._owns_session:
            await self.session.start()
        self.session.heartbeats.add(self)
        self._running = True

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Leave the group, after the handlers of `run` have ended; after `timeout_s` they are cancelled.

        Messages that were not acknowledged come again when they become visible.

        Raises:
            ArgumentError: `timeout_s` is not a number of seconds.
        """
        check_times_or_zero(timeout_s=timeout_s)
        self.session.check_loop()
        if any(running.is_calling for running in self._runs):
            self.session.spawn(self._stop(timeout_s), name="stop of a consumer by its handler")
        else:
            await self._stop(timeout_s)

    async def _stop(self, timeout_s: float) -> None:
        await asyncio.gather(*(running.stop(timeout_s) for running in tuple(self._runs)))
        if not self._running:
            return
        self._running = False
        try:
            await self.session.heartbeats.remove(self)
        finally:
            if self._owns_session:
                await self.session.stop()

    def producer_groups(self) -> Iterable[str]:
        """Return nothing: heartbeats announce no producer."""
        return ()

    def consumer_data(self) -> Iterable[ConsumerData]:
        """Return the group with its subscriptions, for heartbeats."""
        subscriptions = tuple(self._subscriptions.values())
        model, start = MessageModel.CLUSTERING, self._start.wire
        return (ConsumerData(self.group, ConsumeType.POP, model, start, subscriptions),)

    def topics(self) -> Iterable[str]:
        """Return the subscribed topics, with the namespace."""
        return tuple(self._subscriptions)

    # ------------------------------------------------------------------------------------------------------- receive

    def subscribe(self, topic: str, expression: str | Expression = "*") -> None:
        """Receive messages of a topic; a second call replaces the filter.

        `expression` is tags separated by `||`, or `sql("amount > 100")`; `receive` raises if brokers refuse it.

        Raises:
            InvalidNameError: the topic name is invalid.
            TagExpressionError: the expression contains no tag.
        """
        check_topic(topic)
        name = with_namespace(self.session.namespace, topic)
        self._subscriptions[name] = make_subscription(name, expression, round(self.session.clock.wall() * 1000))
        self._targets.announce_soon()

    def unsubscribe(self, topic: str) -> None:
        """Receive no more messages of a topic.

        Raises:
            InvalidNameError: the topic name is invalid.
        """
        check_topic(topic)
        name = with_namespace(self.session.namespace, topic)
        self._subscriptions.pop(name, None)
        self._targets.forget(name)

    async def receive(
        self, count_max: int = 16, *, wait_s: float = 20.0, invisible_s: float = 60.0
    ) -> list[StoredMessage]:
        """Return messages of the subscribed topics, invisible to others for `invisible_s`; [] if none came in time.

        Raises:
            ArgumentError: an argument is out of range, or nothing is subscribed.
            NoRouteError: no broker serves a topic.
            BrokerRefusedError, RemotingError: a broker refused the request, or did not respond.
            NotRunningError: the consumer is not started, or stopped.
        """
        check_counts(1, POP_COUNT_MAX, count_max=count_max)
        check_times_or_zero(wait_s=wait_s)
        check_times(invisible_s=invisible_s)
        self._check_running()
        now = self.session.clock.monotonic
        deadline = now() + wait_s
        targets = await self._targets.next()
        next_request = 0.0
        while True:
            # With one broker the long poll is part of the request.
            poll_s = max(0.0, min(deadline - now(), ASSIGNMENT_S)) if len(targets) == 1 else 0.0
            if messages := await self._pop_any(targets, count_max, invisible_s, poll_s):
                return messages
            if now() >= deadline or not self._running:
                return []
            await asyncio.sleep(min(deadline, next_request) - now())
            next_request = now() + (EMPTY_RECEIVE_S if targets else FAILED_RECEIVE_S)
            ready: list[QueueRef] = []
            if len(targets) > 1:
                ready = await self._targets.with_messages(targets, min(deadline - now(), ASSIGNMENT_S))
            targets = ready or await self._targets.next()

    def _check_running(self) -> None:
        if not self._running:
            raise NotRunningError(f"the consumer of {self.group} is not running: use `async with`, or call `start`")
        self.session.check_loop()

    async def _pop_any(
        self, targets: Sequence[QueueRef], count_max: int, invisible_s: float, poll_s: float
    ) -> list[StoredMessage]:
        """Return messages of the first target that has some. A broker that fails does not hold up the others.

        Raises:
            SkyrouteError: all targets failed.
        """
        failures: list[SkyrouteError] = []
        for target in targets:
            try:
                if messages := await self._pop(target, count_max, invisible_s, poll_s):
                    return messages
            except SkyrouteError as error:
                failures.append(error)
                await self._targets.note_failure(target, error)
        if failures and len(failures) == len(targets):
            raise failures[-1]
        return []

    async def _pop(self, target: QueueRef, count_max: int, invisible_s: float, poll_s: float) -> list[StoredMessage]:
        subscription = self._subscriptions.get(target.topic)
        if subscription is None:  # unsubscribed meanwhile
            return []
        if self._ordered:
            self._attempts.setdefault(target, uuid.uuid4().hex)
        question = self._question(target, subscription, count_max, invisible_s, poll_s)
        messages = await calls.pop(self.session, target.broker_name, question)
        self._attempts.pop(target, None)
        self._targets.note_success(target)
        return await self._accepted(subscription, messages)

    def _question(
        self, target: QueueRef, subscription: Subscription, count_max: int, invisible_s: float, poll_s: float
    ) -> PopQuestion:
        return PopQuestion(
            self.group,
            target.topic,
            round(invisible_s * 1000),
            count_max,
            target.queue_id,
            poll_ms=round(poll_s * 1000),
            born_at_ms=round(self.session.clock.wall() * 1000),
            init_mode=self._init_mode,
            expression=subscription.expression,
            expression_type=subscription.expression_type,
            ordered=self._ordered,
            attempt_id=self._attempts.get(target),
        )

    async def _accepted(self, subscription: Subscription, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Return the messages that match the subscription: brokers compare only the hash of a tag."""
        topic, wanted = subscription.topic, frozenset(subscription.tags)
        accepted: list[StoredMessage] = []
        for message in messages:
            if not wanted or message.tag in wanted:
                accepted.append(message.replace(topic=without_namespace(self.session.namespace, topic)))
                continue
            try:
                await calls.ack(self.session, self.group, topic, message)
            except SkyrouteError as error:
                log.warning("unwanted message not acknowledged message=%s reason=%s", message.message_id, error)
        return accepted

    # ------------------------------------------------------------------------------------------------------- receipts

    async def ack(self, *messages: StoredMessage) -> None:
        """Acknowledge received messages: they do not come again. A late acknowledgement has no effect.

        Raises:
            ArgumentError: a message was not returned by `receive`.
            BrokerRefusedError, RemotingError: a broker refused the request, or did not respond.
        """
        self._check_running()
        await asyncio.gather(
            *(calls.ack(self.session, self.group, self._full(message), message) for message in messages)
        )

    async def change_invisible_time(self, message: StoredMessage, invisible_s: float) -> StoredMessage:
        """Make a message visible again `invisible_s` from now; return it with its new receipt, for `ack`.

        A small time rejects the message: it soon comes again.

        Raises:
            As `ack`.
        """
        check_times_or_zero(invisible_s=invisible_s)
        self._check_running()
        return await calls.change_invisible_time(
            self.session, self.group, self._full(message), message, round(invisible_s * 1000)
        )

    def _full(self, message: StoredMessage) -> str:
        return with_namespace(self.session.namespace, message.topic)

    # ----------------------------------------------------------------------------------------------------------- run

    async def run(
        self,
        handler: Handler,
        *,
        concurrency: int = 16,
        invisible_s: float = 60.0,
        retries_max: int = RETRIES_MAX,
    ) -> None:
        """Call a handler with each message, until the consumer stops or this is cancelled.

        A message is acknowledged when its handler returns; while a handler runs, its message stays invisible. If it
        raises, the message comes again after a delay of `RETRY_DELAYS_S`; after `retries_max` retries a broker moves it
        to the dead-letter queue of the group. With `ordered`, the messages of a queue are
        handled one after the other, and a failure also delays those behind it. Plain functions run in threads.

        Raises:
            ArgumentError: an argument is out of range, or nothing is subscribed.
            NotRunningError: the consumer is not started.
        """
        check_callables(handler=handler)
        check_counts(1, 1_000, concurrency=concurrency)
        check_counts(0, 1_000_000, retries_max=retries_max)
        check_times(invisible_s=invisible_s)
        self._check_running()
        await self._targets.next()
        running = HandlerCalls(
            self,
            self.group,
            handler,
            self.session.clock.monotonic,
            concurrency=concurrency,
            invisible_s=invisible_s,
            retries_max=retries_max,
            ordered=self._ordered,
        )
        self._runs.add(running)
        try:
            await running.run()
        finally:
            self._runs.discard(running)

    async def make_dead_letter(self, message: StoredMessage) -> None:
        """Store a copy of a received message in the dead-letter queue of the group. It is not acknowledged.

        Raises:
            As `ack`.
        """
        self._check_running()
        await calls.make_dead_letter(self.session, self.group, self._full(message), message)
