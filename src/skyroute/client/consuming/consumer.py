"""A consumer that calls handlers with messages as they arrive.

Its parts are in `push/`: `subscriptions` (topics and handlers), `assignment` (which queues), `pull_loop` (from brokers
to buffers), `dispatch` (from buffers to handlers), `retries` and `redelivery` (failed messages), `broker_requests`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar, Unpack

from skyroute.client.arguments import (
    BYTES_MAX,
    check_counts,
    check_flags,
    check_kind,
    check_methods,
    check_session,
    check_strategy,
    check_times,
    check_times_or_zero,
)
from skyroute.client.consuming.filter_support import FilterChecks, PendingSubscription, is_sql
from skyroute.client.consuming.intervals import Intervals
from skyroute.client.consuming.offset_store import BrokerOffsets, FileOffsets, OffsetStore
from skyroute.client.consuming.push.consumer_run import ConsumerRun
from skyroute.client.consuming.push.handler_runner import Worker
from skyroute.client.consuming.push.handlers import Handler, RetryLater
from skyroute.client.consuming.push.message_buffer import BufferLimits
from skyroute.client.consuming.push.process_queue import ProcessQueue
from skyroute.client.consuming.push.settings import RECONSUME_FOREVER, RECONSUME_TIMES, ConsumerSettings
from skyroute.client.consuming.push.subscriptions import NewSubscription, Subscriptions
from skyroute.client.consuming.strategies import AVERAGE, Strategy
from skyroute.client.consuming.subscription import Expression, StartPosition, make_subscription
from skyroute.client.errors import ClientError, NotRunningError
from skyroute.client.namespaces import queue_without_namespace
from skyroute.client.session.session import DEFAULT_INSTANCE, ClientArguments, Session
from skyroute.client.trace.tracer import check_trace
from skyroute.message.message import StoredMessage
from skyroute.message.names import check_consumer_group, check_topic
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import TRACE_TOPIC, is_retry_topic, retry_topic, with_namespace
from skyroute.wire.calls.clients import MessageModel

CONCURRENCY_MAX: Final = 10_000
"""Each concurrent handler has a task, and a plain one a thread."""

OFFSET_STORE_METHODS: Final = ("load", "read", "cached", "update", "persist", "forget")

STOP_TIMEOUT_S: Final = 10.0
"""Default time that `stop` waits for handlers."""

SUSPEND_S_MIN: Final = 0.01
SUSPEND_S_MAX: Final = 30.0

log = logging.getLogger(__name__)

H = TypeVar("H", bound=Callable[..., Any])


class Consumer:
    """Calls handlers with the messages of topics, and shares the queues with the other members of its group.

    Examples:
        >>> consumer = Consumer("billing", name_servers="127.0.0.1:9876")
        >>> @consumer.on("Orders", "paid || refunded")
        ... async def handle(message: StoredMessage) -> None:
        ...     await book(message.body)
        >>> asyncio.run(consumer.run())

    A message is consumed when its handler returns. If the handler raises, or returns `ConsumeResult.RETRY`, the broker
    delivers the message again later, to any member; after `reconsume_times_max` retries it goes to the dead-letter
    queue. `RetryLater` chooses the delay. Every message is delivered at least once: after a crash, or when queues move
    between members, some are delivered again.

    Without handlers, iterate over the consumer. A message counts as consumed when the next one is requested:

    Examples:
        >>> async with consumer:
        ...     async for message in consumer:
        ...         await book(message.body)

    An exception that leaves the loop and the `async with` causes a redelivery of the message; leaving both without one,
    after `break`, consumes it. A new loop over the same consumer causes a redelivery too. One loop runs at a time.

    With `ordered`, each queue is handled in order, one message at a time, and a failed message is retried after
    `suspend_s`, before all others of its queue.
    """

    def __init__(
        self,
        group: str,
        name_servers: str | Sequence[str] | None = None,
        *,
        model: MessageModel = MessageModel.CLUSTERING,
        ordered: bool = False,
        start: StartPosition = StartPosition.LAST,
        strategy: Strategy = AVERAGE,
        concurrency: int = 20,
        batch_size: int = 1,
        pull_batch: int = 32,
        reconsume_times_max: int | None = None,
        consume_timeout_s: float = 900.0,
        suspend_s: float = 1.0,
        queue_messages_max: int = 1_000,
        queue_bytes_max: int = 100 * 1024 * 1024,
        offset_span_max: int = 2_000,
        offsets: OffsetStore | None = None,
        intervals: Intervals | None = None,
        trace: bool | str = False,
        session: Session | None = None,
        **client: Unpack[ClientArguments],
    ) -> None:
        """Check the arguments. Nothing is connected before `start`.

        Args:
            group: the consumer group. All its members subscribe to the same topics with the same filters.
            name_servers: `host:port;host:port`; None uses the environment variable NAMESRV_ADDR.
            model: CLUSTERING: the members share the messages; BROADCASTING: each member gets all messages.
            ordered: handle each queue in order.
            start: where the group starts reading a queue that has no committed offset.
            strategy: how the members share the queues; all members need the same strategy.
            concurrency: maximum handlers at once; plain functions get this many threads.
            batch_size: maximum messages per handler call; if more than 1, the handler gets a list.
            pull_batch: maximum messages per pull.
            reconsume_times_max: retries before a message becomes a dead letter; None: 16, or unlimited if ordered.
            consume_timeout_s: after this time a message is sent back for a retry, and an async handler cancelled.
            suspend_s: how long an ordered queue waits before it retries a message.
            queue_messages_max: above this number of unfinished messages of a queue, no more are pulled.
            queue_bytes_max: the same, in bytes.
            offset_span_max: the same, from the oldest unfinished offset to the newest; not if ordered.
            offsets: where offsets are stored; None: at the broker, or in a file if broadcasting.
            intervals: intervals and delays; the defaults are those of Apache's clients.
            trace: write a message trace to the trace topic, or to the topic of this name.
            session: connections to share with other clients; its creator starts and stops it.
            client: see `ClientArguments`.

        Raises:
            InvalidNameError: the group name is invalid.
            ArgumentError: another argument is invalid.
            ClientError: no usable name server address is given.
        """
        check_consumer_group(group)
        check_kind("model", model, MessageModel)
        check_kind("start", start, StartPosition)
        check_strategy(strategy)
        check_flags(ordered=ordered)
        check_times(consume_timeout_s=consume_timeout_s)
        check_times_or_zero(suspend_s=suspend_s)
        check_counts(1, CONCURRENCY_MAX, concurrency=concurrency)
        check_counts(
            batch_size=batch_size,
            pull_batch=pull_batch,
            queue_messages_max=queue_messages_max,
            offset_span_max=offset_span_max,
        )
        check_counts(1, BYTES_MAX, queue_bytes_max=queue_bytes_max)
        if reconsume_times_max is not None:
            check_counts(0, reconsume_times_max=reconsume_times_max)
        if offsets is not None:
            check_methods(
                "offsets", offsets, "a skyroute.client.consuming.offset_store.OffsetStore", OFFSET_STORE_METHODS
            )
        if intervals is not None:
            check_kind("intervals", intervals, Intervals)
        check_trace(trace)
        if session is not None:
            check_session(session, Session, **client)
        self._owns_session = session is None
        if session is None and model is MessageModel.BROADCASTING:
            # The offset file is named after the client id, which must be the same after a restart.
            client.setdefault("instance_name", DEFAULT_INSTANCE)
            session = Session(name_servers, **client, keeps_default=True)
        self.session = session if session is not None else Session(name_servers, **client)
        if reconsume_times_max is None:
            reconsume_times_max = RECONSUME_FOREVER if ordered else RECONSUME_TIMES
        self.group = with_namespace(self.session.namespace, group)
        self._settings = settings = ConsumerSettings(
            group=self.group,
            model=model,
            ordered=ordered,
            start=start,
            strategy=strategy,
            concurrency=concurrency,
            batch_size=batch_size,
            pull_batch=pull_batch,
            reconsume_times_max=reconsume_times_max,
            consume_timeout_s=consume_timeout_s,
            suspend_s=min(max(suspend_s, SUSPEND_S_MIN), SUSPEND_S_MAX),
            limits=BufferLimits(queue_messages_max, queue_bytes_max, None if ordered else offset_span_max),
            intervals=intervals or Intervals(),
        )
        if offsets is None:
            session = self.session
            offsets = (
                BrokerOffsets(session, self.group) if settings.shares else FileOffsets(session.client_id, self.group)
            )
        self._offsets = offsets
        self._trace_topic = TRACE_TOPIC if trace is True else trace or None
        self._subscriptions = Subscriptions(self.session.namespace, takes_list=batch_size > 1)
        self._filter_checks = FilterChecks(self.session, self.group)
        self._run: ConsumerRun | None = None
        """None unless the consumer is running."""
        self._stopping: ConsumerRun | None = None
        """The run that is being stopped."""
        self._exit_error: BaseException | None = None
        """The SystemExit, KeyboardInterrupt or GeneratorExit that a handler raised."""
        self._run_calls = 0
        """Number of tasks in `run`."""
        self._is_paused = False
        self._loop_worker = Worker()
        """Stands for the `async for` loop of the application."""
        self._in_hand: _InHand | None = None

    def __repr__(self) -> str:
        return f"<Consumer {self.group} {'running' if self._run is not None else 'stopped'}>"

    # ------------------------------------------------------------------------------------------------ subscriptions

    def subscribe(
        self, topic: str, expression: str | Expression = "*", handler: Handler | None = None
    ) -> PendingSubscription:
        """Subscribe to a topic, before or after `start`; a second call replaces the subscription.

        `expression` is tags separated by `||`, or `sql("amount > 100")`. A broker checks an SQL filter first: at
        `start`, or in the background if the consumer runs. A refused filter changes nothing. Await the result to wait
        for the check.

        Raises:
            InvalidNameError: the topic name is invalid.
            TagExpressionError: the expression contains no tag.
            ArgumentError: the expression or the handler is invalid.
            ClientError: some subscriptions have a handler and others do not.
        """
        new = self._subscriptions.prepare(topic, expression, handler, self._now_ms())
        self._filter_checks.cancel(new.subscription.topic)
        run = self._run
        if run is not None and is_sql(new.subscription):
            return self._filter_checks.start(new.subscription, lambda: self._apply(new) if self._run is run else None)
        self._apply(new)
        return PendingSubscription()

    def _apply(self, new: NewSubscription) -> None:
        self._subscriptions.apply(new)
        if self._run is not None:
            self._run.announce_soon()

    def on(self, topic: str, expression: str | Expression = "*") -> Callable[[H], H]:
        """Decorate the handler of a topic: `@consumer.on("Orders", "paid")`."""
        check_topic(topic)  # now: `@consumer.on` without parentheses passes the handler as the topic
        make_subscription(topic, expression, 0)  # raises for an invalid expression

        def subscribe(handler: H) -> H:
            self.subscribe(topic, expression, handler)
            return handler

        return subscribe

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic. Running handlers finish.

        Retries of its messages have no handler any more, and become dead letters.

        Raises:
            InvalidNameError: the topic name is invalid.
        """
        check_topic(topic)
        name = with_namespace(self.session.namespace, topic)
        self._filter_checks.cancel(name)
        self._subscriptions.remove(topic)
        if self._run is not None:
            self._run.assignment.release_topic(name)
            self._run.announce_soon()

    # ----------------------------------------------------------------------------------------------- start and stop

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self._complete_in_hand(None)
            elif isinstance(error, Exception):
                await self._complete_in_hand(RetryLater())
        finally:
            await self.stop()

    async def start(self) -> None:
        """Join the group, take the assigned queues, and start consuming.

        With `StartPosition.LAST`, a new group gets the messages that are sent after this returns. Exception: while
        Apache's brokers have the first message of a queue in memory, a new group starts there. Topics that do not
        exist yet, and brokers that do not respond, are retried in the background.

        Raises:
            NoNameServerError: no name server responds.
            BrokerRefusedError: a broker cannot evaluate an SQL filter; the remark has the reason.
            ClientError: the shared session already has a consumer of this group.
            OffsetFileError: broadcasting, and the offset file cannot be read.
        """
        if self._run is not None:
            return
        if self._settings.batch_size > 1 and not self._subscriptions.has_handlers and self._subscriptions.topics:
            raise ClientError(
                f"batch_size is {self._settings.batch_size}, but `async for` returns one message at a time: set it to"
                " 1, or subscribe with a handler"
            )
        if self._settings.shares:
            self._subscriptions.put_retry(retry_topic(self.group), self._now_ms())
        if self._owns_session:
            await self.session.start()
        self._exit_error = None
        run = ConsumerRun(
            self.session, self._settings, self._subscriptions, self._offsets, self._trace_topic, on_exit=self._on_exit
        )
        self._run = run
        run.dispatcher.watch(self._loop_worker)
        if self._is_paused:
            run.pull_loop.pause()
        try:
            await run.start()
        except BaseException:
            await self._stop(timeout_s=0.0)
            raise

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop pulling, wait for running handlers, commit, and leave the group.

        After `timeout_s` async handlers are cancelled and threads left behind; their messages are delivered again. If
        a handler calls this, the consumer stops after that handler has returned.

        Raises:
            ArgumentError: the time is invalid.
        """
        check_times_or_zero(timeout_s=timeout_s)
        self.session.check_loop()
        run = self._run or self._stopping
        if run is None or not run.dispatcher.is_calling:
            await self._stop(timeout_s)
        elif run is self._run:
            self.session.spawn(self._stop(timeout_s), name="stop of a consumer by its handler")

    async def _stop(self, timeout_s: float) -> None:
        if self._stopping is not None:
            await self._stopping.left.wait()  # another task stops it
            return
        run, self._run = self._run, None
        self._stopping = run
        in_hand = self._in_hand
        # A loop that stops its own consumer cannot be waited for; nor can the loop of a blocking consumer.
        is_own = in_hand is None or in_hand.holder is asyncio.current_task() or in_hand.is_between_steps
        try:
            if run is not None:
                await run.stop(timeout_s, None if in_hand is None or is_own else in_hand.queue)
        finally:
            try:
                if self._owns_session:
                    await self.session.stop()
            finally:
                self._stopping = None
                if run is not None:
                    run.left.set()

    async def run(self) -> None:
        """Consume until `stop` is called, or until this is cancelled.

        If a handler calls sys.exit(), or raises KeyboardInterrupt or GeneratorExit, the consumer stops and this raises
        the same exception. The message of that handler is not consumed.

        Raises:
            NoNameServerError, BrokerRefusedError: see `start`.
            SystemExit, KeyboardInterrupt, GeneratorExit: a handler raised it.
        """
        self.session.check_loop()
        self._run_calls += 1
        try:
            if self._run is None:
                async with self:
                    await self._wait_until_left()
            else:
                await self._wait_until_left()
        finally:
            self._run_calls -= 1

    async def _wait_until_left(self) -> None:
        run = self._run or self._stopping
        if run is not None:
            await run.left.wait()
        if self._exit_error is not None:
            raise self._exit_error

    def _on_exit(self, error: BaseException) -> None:
        if self._exit_error is None:
            self._exit_error = error
            self.session.spawn(self._stop_after_exit(error), name="stop of a consumer whose handler exits")

    async def _stop_after_exit(self, error: BaseException) -> None:
        log.warning("handler exits, consumer stops group=%s error=%r", self.group, error)
        await self._stop(STOP_TIMEOUT_S)
        if not self._run_calls:
            raise error  # no task is in `run`: asyncio ends the event loop, as for any task

    def pause(self) -> None:
        """Stop pulling until `resume`. Buffered messages are still handled, and the queues stay assigned."""
        self._is_paused = True
        if self._run is not None:
            self._run.pull_loop.pause()

    def resume(self) -> None:
        """Pull again after `pause`."""
        self._is_paused = False
        if self._run is not None:
            self._run.pull_loop.resume()

    @property
    def assignment(self) -> frozenset[QueueRef]:
        """The queues of the subscribed topics that are assigned to this consumer now."""
        if self._run is None:
            return frozenset()
        namespace = self.session.namespace
        return frozenset(
            queue_without_namespace(namespace, ref)
            for ref in self._run.assignment.queues
            if not is_retry_topic(ref.topic)
        )

    def _now_ms(self) -> int:
        return int(self.session.clock.wall() * 1000)

    # --------------------------------------------------------------------------------------------------- async for

    def __aiter__(self) -> AsyncIterator[StoredMessage]:
        if self._subscriptions.has_handlers:
            raise ClientError("cannot iterate: the subscriptions have handlers; subscribe without a handler")
        if self._run is None:
            raise NotRunningError(f"the consumer {self.group} is not running: use `async with`, or call `start` first")
        return _Loop(self._next)

    async def _next(self, retry: RetryLater | None) -> StoredMessage | None:
        """Complete the message in hand, and return the next one; None after `stop`."""
        self.session.check_loop()
        await self._complete_in_hand(retry)
        run = self._run
        if run is None:
            return None
        taken = await run.dispatcher.take()
        if taken is None:
            return None
        queue, messages = taken
        run.dispatcher.begin(self._loop_worker, queue, messages)
        self._in_hand = _InHand(run, queue, messages, asyncio.current_task())
        return messages[0]

    async def _complete_in_hand(self, retry: RetryLater | None) -> None:
        in_hand, self._in_hand = self._in_hand, None
        if in_hand is None or in_hand.run.ended.is_set():
            return
        completion = self._complete(in_hand, retry)
        if retry is None:
            await completion
        else:
            # If the loop is cancelled meanwhile, its message is still retried, and does not hold up the commits.
            await asyncio.wait({self.session.spawn(completion, name="retry of a message")})

    async def _complete(self, in_hand: "_InHand", retry: RetryLater | None) -> None:
        try:
            await in_hand.run.dispatcher.complete(self._loop_worker, in_hand.messages, retry)
        finally:
            in_hand.run.dispatcher.end(in_hand.queue)


class _InHand(NamedTuple):
    """The message that an `async for` loop is handling."""

    run: ConsumerRun
    queue: ProcessQueue
    messages: list[StoredMessage]
    holder: "asyncio.Task[Any] | None"

    @property
    def is_between_steps(self) -> bool:
        """Whether the task that took it has ended, as in a blocking consumer, where each step is a task."""
        return self.holder is None or self.holder.done()


class _Loop:
    """One `async for` over a consumer."""

    def __init__(self, next_message: Callable[[RetryLater | None], Awaitable[StoredMessage | None]]) -> None:
        self._next = next_message
        self._has_begun = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoredMessage:
        # The message that an earlier loop did not complete is not consumed.
        retry = None if self._has_begun else RetryLater()
        self._has_begun = True
        message = await self._next(retry)
        if message is None:
            raise StopAsyncIteration
        return message
