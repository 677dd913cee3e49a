"""A consumer that is given messages as they come. What it is made of, how it starts, and how it stops.

Its parts are in `client.push`: `subscriptions` (what is wanted), `ownership` (which queues are ours), `fetching` (from
brokers to backlogs), `handling` (from backlogs to handlers), `redelivery` (what handlers failed), `answers` (what
brokers ask).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
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
    check_times_or_none_at_all,
)
from skyroute.client.consuming.filter_support import Acceptance, find_refusal, is_condition
from skyroute.client.consuming.offset_store import BrokerOffsets, FileOffsets, OffsetStore
from skyroute.client.consuming.push.backlog import BacklogLimits
from skyroute.client.consuming.push.consuming import Consuming
from skyroute.client.consuming.push.handlers import Handler, RetryLater
from skyroute.client.consuming.push.handling import Worker
from skyroute.client.consuming.push.owned_queue import OwnedQueue
from skyroute.client.consuming.push.settings import RECONSUME_FOREVER, RECONSUME_TIMES, ConsumerSettings, Intervals
from skyroute.client.consuming.push.subscriptions import Subscriptions, Wanted
from skyroute.client.consuming.rebalance import AVERAGE, Strategy
from skyroute.client.consuming.subscription import Expression, StartPosition, make_subscription
from skyroute.client.errors import ArgumentError, ClientError, NotRunningError
from skyroute.client.session.session import DEFAULT_INSTANCE, ClientArguments, Session
from skyroute.client.trace import check_trace
from skyroute.errors import SkyrouteError
from skyroute.message.message import StoredMessage
from skyroute.message.names import check_consumer_group, check_topic
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import TRACE_TOPIC, is_retry_topic, retry_topic, with_namespace, without_namespace
from skyroute.wire.calls.clients import MessageModel

CONCURRENCY_MAX: Final = 10_000
"""Each has a task, and for a plain handler a thread."""

OFFSET_STORE_METHODS: Final = ("load", "read", "cached", "update", "persist", "forget")

STOP_TIMEOUT_S: Final = 10.0
"""How long `stop` waits for handlers unless it is told otherwise."""

SUSPEND_S_MIN: Final = 0.01
SUSPEND_S_MAX: Final = 30.0

log = logging.getLogger(__name__)

H = TypeVar("H", bound=Callable[..., Any])


class Consumer:
    """Gives the messages of topics to handlers, and shares the work with the other members of its group.

    Examples:
        >>> consumer = Consumer("billing", name_servers="127.0.0.1:9876")
        >>> @consumer.on("Orders", "paid || refunded")
        ... async def handle(message: StoredMessage) -> None:
        ...     await book(message.body)
        >>> asyncio.run(consumer.run())

    A message is consumed when its handler returns. If the handler raises, or returns `ConsumeResult.RETRY`, the broker
    delivers the message again later, to any member; after `max_reconsume_times` it goes to the group's dead letters.
    `RetryLater` says when. Every message is delivered at least once: after a crash, or when queues move between
    members, some are delivered again.

    Without handlers, messages come in a loop. A message counts as consumed when the next one is asked for:

    Examples:
        >>> async with consumer:
        ...     async for message in consumer:
        ...         await book(message.body)

    Leaving the loop and then the `async with` by an exception has the message delivered again; leaving both quietly,
    with `break`, counts as consumed. So does nothing else: a message is delivered again if the loop is entered anew
    without asking for the next. One loop runs at a time.

    With `ordered`, each queue is handled in its order, one message at a time, and a message that fails is tried again
    after `suspend_s`, before all others of its queue.
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
        max_reconsume_times: int | None = None,
        consume_timeout_s: float = 900.0,
        suspend_s: float = 1.0,
        cached_messages_max: int = 1_000,
        cached_bytes_max: int = 100 * 1024 * 1024,
        offset_span_max: int = 2_000,
        offsets: OffsetStore | None = None,
        pace: Intervals | None = None,
        trace: bool | str = False,
        session: Session | None = None,
        **client: Unpack[ClientArguments],
    ) -> None:
        """Prepare; nothing is connected before `start`.

        Args:
            group: the consumers that share a task; all of them subscribe to the same.
            name_servers: `host:port;host:port`; None: the environment's NAMESRV_ADDR.
            model: whether the members share the messages, or each gets them all.
            ordered: handle each queue in its order.
            start: where the group begins with a queue of which it has consumed nothing yet.
            strategy: how the members share out the queues; all of them need the same.
            concurrency: handlers at work at once; plain functions get so many threads.
            batch_size: how many messages a handler is given at most; if more than 1, it is given a list.
            pull_batch: how many messages are asked for at once.
            max_reconsume_times: None is 16, or without limit if ordered.
            consume_timeout_s: after so long a message is sent back for another try, and an async handler cancelled.
            suspend_s: how long an ordered queue waits before it tries the same message again.
            cached_messages_max: with more than so many unfinished messages of a queue, no more are fetched.
            cached_bytes_max: the same, in bytes.
            offset_span_max: the same, from the oldest unfinished message to the newest; not if ordered.
            offsets: where it is kept how far the group has come; None is the broker, or, broadcasting, a file.
            pace: how often things are done; the defaults are those of Apache's clients.
            trace: write a trace of every message to the trace topic, or to the topic of this name.
            session: connections to share with others; whoever made it starts and stops it.
            client: see `ClientArguments`.

        Raises:
            InvalidNameError: no group has this name.
            ArgumentError: another argument makes no sense.
            ClientError: there is no usable address of a name server.
        """
        check_consumer_group(group)
        check_kind("model", model, MessageModel)
        check_kind("start", start, StartPosition)
        check_strategy(strategy)
        check_flags(ordered=ordered)
        check_times(consume_timeout_s=consume_timeout_s)
        check_times_or_none_at_all(suspend_s=suspend_s)
        check_counts(1, CONCURRENCY_MAX, concurrency=concurrency)
        check_counts(
            batch_size=batch_size,
            pull_batch=pull_batch,
            cached_messages_max=cached_messages_max,
            offset_span_max=offset_span_max,
        )
        check_counts(1, BYTES_MAX, cached_bytes_max=cached_bytes_max)
        if max_reconsume_times is not None:
            check_counts(0, max_reconsume_times=max_reconsume_times)
        if offsets is not None:
            check_methods(
                "offsets", offsets, "a skyroute.client.consuming.offset_store.OffsetStore", OFFSET_STORE_METHODS
            )
        if pace is not None and not isinstance(pace, Intervals):
            raise ArgumentError(f"pace is a skyroute.client.consuming.push.settings.Intervals: {pace!r} is none")
        check_trace(trace)
        if session is not None:
            check_session(session, Session, **client)
        self._owns_session = session is None
        if session is None and model is MessageModel.BROADCASTING:
            # The file of offsets is named after the client, and is to be found again.
            client.setdefault("instance_name", DEFAULT_INSTANCE)
            session = Session(name_servers, **client, keeps_default=True)
        self.session = session if session is not None else Session(name_servers, **client)
        if max_reconsume_times is None:
            max_reconsume_times = RECONSUME_FOREVER if ordered else RECONSUME_TIMES
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
            reconsume_times_max=max_reconsume_times,
            consume_timeout_s=consume_timeout_s,
            suspend_s=min(max(suspend_s, SUSPEND_S_MIN), SUSPEND_S_MAX),
            limits=BacklogLimits(cached_messages_max, cached_bytes_max, None if ordered else offset_span_max),
            pace=pace or Intervals(),
        )
        if offsets is None:
            session = self.session
            offsets = (
                BrokerOffsets(session, self.group) if settings.shares else FileOffsets(session.client_id, self.group)
            )
        self._offsets = offsets
        self._trace_topic = TRACE_TOPIC if trace is True else trace or None
        self._subscriptions = Subscriptions(self.session.namespace, takes_list=batch_size > 1)
        self._unasked: dict[str, Wanted] = {}
        """Conditions that a broker is asked about, by topic."""
        self._life: Consuming | None = None
        """None unless it is running."""
        self._ending: Consuming | None = None
        """What is being stopped."""
        self._left: BaseException | None = None
        """What a handler was left with that meant to end the program."""
        self._runs = 0
        """How many are in `run`."""
        self._is_paused = False
        self._worker = Worker()
        """Stands for the loop, where there are no handlers."""
        self._in_hand: _InHand | None = None

    def __repr__(self) -> str:
        return f"<Consumer {self.group} {'running' if self._life is not None else 'stopped'}>"

    # ------------------------------------------------------------------------------------------------ subscriptions

    def subscribe(self, topic: str, expression: str | Expression = "*", handler: Handler | None = None) -> Acceptance:
        """Want messages of a topic, before the start or after it; what was wanted of the topic before is replaced.

        `expression` names tags (`A || B`), or is a condition: `sql("amount > 100")`. A condition is shown to a broker
        first: at the start, or, when running, in the background, and what is refused there changes nothing. Whoever
        wants to know awaits what this returns.

        Raises:
            InvalidNameError: no topic has this name.
            TagExpressionError: there is nothing but bars in the expression.
            ArgumentError: it is no expression, or no handler.
            ClientError: some subscriptions have a handler, and others have none.
        """
        wanted = self._subscriptions.prepare(topic, expression, handler, self._now_ms())
        self._unasked.pop(topic, None)
        if self._life is not None and is_condition(wanted.subscription):
            self._unasked[topic] = wanted
            return Acceptance(self.session.spawn(self._ask_and_keep(self._life, wanted), name="check of a condition"))
        self._keep(wanted)
        return Acceptance()

    def _keep(self, wanted: Wanted) -> None:
        self._subscriptions.keep(wanted)
        if self._life is not None:
            self._life.announce()

    async def _ask_and_keep(self, life: Consuming, wanted: Wanted) -> SkyrouteError | None:
        refusal = await find_refusal(self.session, self.group, wanted.subscription)
        if self._unasked.get(wanted.topic) is wanted:  # else something else is wanted of the topic by now
            del self._unasked[wanted.topic]
            if refusal is None and self._life is life:
                try:
                    self._keep(wanted)
                except SkyrouteError as error:
                    log.warning("subscription refused group=%s topic=%s cause=%s", self.group, wanted.topic, error)
                    return error
        return refusal

    def on(self, topic: str, expression: str | Expression = "*") -> Callable[[H], H]:
        """Decorate the handler of a topic: `@consumer.on("Orders", "paid")`."""
        check_topic(topic)  # now, as without parentheses it would be the handler, and nobody would ever subscribe
        make_subscription(topic, expression, 0)  # to see whether it can be

        def subscribe(handler: H) -> H:
            self.subscribe(topic, expression, handler)
            return handler

        return subscribe

    def unsubscribe(self, topic: str) -> None:
        """Want nothing more of a topic. Handlers that are at work on it are not disturbed.

        Messages of it that are to be tried again need a handler: those that come after this are soon dead letters.

        Raises:
            InvalidNameError: no topic has this name.
        """
        check_topic(topic)
        self._unasked.pop(topic, None)
        self._subscriptions.remove(topic)
        if self._life is not None:
            self._life.ownership.release_topic(with_namespace(self.session.namespace, topic))
            self._life.announce()

    # --------------------------------------------------------------------------------------------------------- life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self._settle_in_hand(None)
            elif isinstance(error, Exception):
                await self._settle_in_hand(RetryLater())
        finally:
            await self.stop()

    async def start(self) -> None:
        """Find the queues that are ours, and begin to consume.

        When this returns, `StartPosition.LAST` means from here on, except that Apache's brokers begin a new group at
        the first message of a queue that still has it at hand. Topics that do not exist yet, and brokers that do not
        answer, are tried again in the background.

        Raises:
            NoNameServerError: none of the name servers answers.
            BrokerRefusedError: a broker cannot evaluate an SQL expression; the remark says why.
            ClientError: its session, which it shares, has a consumer of the same group.
            OffsetFileError: broadcasting, and the file of offsets cannot be read.
        """
        if self._life is not None:
            return
        if self._settings.batch_size > 1 and not self._subscriptions.has_handlers and self._subscriptions.topics:
            raise ClientError("`async for` gives one message at a time: leave batch_size at 1, or subscribe a handler")
        if self._settings.shares:
            self._subscriptions.put_retry(retry_topic(self.group), self._now_ms())
        if self._owns_session:
            await self.session.start()
        self._left = None
        life = Consuming(
            self.session, self._settings, self._subscriptions, self._offsets, self._trace_topic, on_left=self._on_left
        )
        self._life = life
        life.handling.watch(self._worker)
        if self._is_paused:
            life.fetching.pause()
        try:
            await life.start()
        except BaseException:
            await self._stop(timeout_s=0.0)
            raise

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Fetch nothing more, let handlers finish for so long, commit how far we have come, and take leave.

        Handlers that take longer are cancelled, or, in threads, left behind; their messages are delivered again. A
        handler that calls this is not kept waiting for itself: the consumer stops when it has returned.

        Raises:
            ArgumentError: the time is none.
        """
        check_times_or_none_at_all(timeout_s=timeout_s)
        life = self._life or self._ending
        if life is None or not life.handling.is_calling:
            await self._stop(timeout_s)
        elif life is self._life:
            self.session.spawn(self._stop(timeout_s), name="stop of a consumer by its handler")

    async def _stop(self, timeout_s: float) -> None:
        if self._ending is not None:
            await self._ending.gone.wait()  # whoever stops it sees to everything
            return
        life, self._life = self._life, None
        self._ending = life
        in_hand = self._in_hand
        # A loop that stops its own consumer cannot be waited for; nor one whose steps are tasks of their own.
        is_own = in_hand is None or in_hand.holder is asyncio.current_task() or in_hand.is_between_steps
        try:
            if life is not None:
                await life.stop(timeout_s, None if in_hand is None or is_own else in_hand.owned)
        finally:
            try:
                if self._owns_session:
                    await self.session.stop()
            finally:
                self._ending = None
                if life is not None:
                    life.gone.set()

    async def run(self) -> None:
        """Consume until `stop` is called, or until this is cancelled.

        A handler that calls sys.exit(), or raises KeyboardInterrupt or GeneratorExit, ends it as well: the consumer
        stops, and raises the same here. The message is not consumed.

        Raises:
            NoNameServerError, BrokerRefusedError: see `start`.
            SystemExit, KeyboardInterrupt, GeneratorExit: a handler raised it.
        """
        self._runs += 1
        try:
            if self._life is None:
                async with self:
                    await self._until_ended()
            else:
                await self._until_ended()
        finally:
            self._runs -= 1

    async def _until_ended(self) -> None:
        life = self._life or self._ending
        if life is not None:
            await life.gone.wait()
        if self._left is not None:
            raise self._left

    def _on_left(self, error: BaseException) -> None:
        if self._left is None:
            self._left = error
            self.session.spawn(self._leave(error), name="stop of a consumer whose handler exits")

    async def _leave(self, error: BaseException) -> None:
        log.warning("handler exits, and so the consumer stops group=%s with=%r", self.group, error)
        await self._stop(STOP_TIMEOUT_S)
        if not self._runs:
            raise error  # nobody waits for us: asyncio then ends the event loop, as for any task

    def pause(self) -> None:
        """Fetch nothing more for now. What was fetched is still handled, and our queues stay ours."""
        self._is_paused = True
        if self._life is not None:
            self._life.fetching.pause()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._is_paused = False
        if self._life is not None:
            self._life.fetching.resume()

    @property
    def assignment(self) -> frozenset[QueueRef]:
        """The queues of the subscribed topics that are ours now."""
        if self._life is None:
            return frozenset()
        namespace = self.session.namespace
        return frozenset(
            QueueRef(without_namespace(namespace, queue.topic), queue.broker_name, queue.queue_id)
            for queue in self._life.ownership.owned
            if not is_retry_topic(queue.topic)
        )

    def _now_ms(self) -> int:
        return int(self.session.clock.wall() * 1000)

    # --------------------------------------------------------------------------------------------------- async for

    def __aiter__(self) -> AsyncIterator[StoredMessage]:
        if self._subscriptions.has_handlers:
            raise ClientError("messages go to handlers: subscribe without any to get them in a loop")
        if self._life is None:
            raise NotRunningError("the consumer is not running: use `async with`, or call `start` first")
        return _Loop(self)

    async def _next(self, wish: RetryLater | None) -> StoredMessage | None:
        """Be done with the message in hand, and return the next; None when there are to be no more."""
        await self._settle_in_hand(wish)
        if self._life is None:
            return None
        life = self._life
        taken = await life.handling.take()
        if taken is None:
            return None
        owned, messages = taken
        life.handling.begin(self._worker, owned, messages)
        self._in_hand = _InHand(life, owned, messages, asyncio.current_task())
        return messages[0]

    async def _settle_in_hand(self, wish: RetryLater | None) -> None:
        in_hand, self._in_hand = self._in_hand, None
        if in_hand is None or in_hand.life.ended.is_set():
            return
        try:
            await in_hand.life.handling.settle(self._worker, in_hand.messages, wish)
        finally:
            in_hand.life.handling.leave(in_hand.owned)


class _InHand(NamedTuple):
    """What a loop is at."""

    life: Consuming
    owned: OwnedQueue
    messages: list[StoredMessage]
    holder: "asyncio.Task[Any] | None"

    @property
    def is_between_steps(self) -> bool:
        """Whether whoever took it has ended, as after a blocking call, and cannot be waited for."""
        return self.holder is None or self.holder.done()


class _Loop:
    """One `async for` over a consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._has_begun = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoredMessage:
        # An earlier loop was left in the middle: what it had in hand is not consumed.
        wish = None if self._has_begun else RetryLater()
        self._has_begun = True
        message = await self._consumer._next(wish)  # noqa: SLF001 - the other half of the same thing
        if message is None:
            raise StopAsyncIteration
        return message
