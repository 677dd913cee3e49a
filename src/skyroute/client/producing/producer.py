"""The producer: checks what the application passes, and sends it.

`prepared_message` compresses, `delivery` chooses queue and broker and retries, `batching` splits batches,
`transactions` and `request_reply` handle the requests that brokers send for them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, Self, Unpack

from skyroute.client.arguments import (
    BYTES_MAX,
    check_callables,
    check_counts,
    check_flags,
    check_kind,
    check_queue,
    check_session,
    check_texts,
    check_times,
    check_times_or_zero,
    listed,
)
from skyroute.client.errors import (
    ArgumentError,
    BrokerRefusedError,
    ClientError,
    NoBrokerError,
    NotRunningError,
)
from skyroute.client.namespaces import queue_with_namespace, queue_without_namespace
from skyroute.client.producing.batching import BatchEntry, results_of, split_batches
from skyroute.client.producing.delivery import Choose, Delivery
from skyroute.client.producing.in_flight import InFlight
from skyroute.client.producing.prepared_message import BODY_BYTES_MAX, Outbound, Packing, write_properties
from skyroute.client.producing.request_reply import Replies, reply_properties
from skyroute.client.producing.send_trace import trace_recall, trace_send
from skyroute.client.producing.transactions import Check, Transactions, as_outcome
from skyroute.client.results import SendResult, TransactionResult
from skyroute.client.session.session import ClientArguments, Session
from skyroute.client.trace.tracer import Tracer, check_trace
from skyroute.clock import Clock
from skyroute.errors import SkyrouteError
from skyroute.message import property_names as names
from skyroute.message.batch import BatchItem, check_batch, encode_batch
from skyroute.message.compression import COMPRESS_FROM_BYTES, COMPRESSION_LEVEL
from skyroute.message.errors import InvalidMessageError
from skyroute.message.flags import Compression, TransactionState
from skyroute.message.message import Message, StoredMessage
from skyroute.message.names import check_open_to_senders, check_producer_group, check_topic
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import (
    TRACE_GROUP,
    TRACE_TOPIC,
    reply_topic,
    with_namespace,
)
from skyroute.message.tags import java_hash
from skyroute.remoting.errors import CallTimeoutError, RemotingError
from skyroute.wire.calls.clients import ConsumerData
from skyroute.wire.calls.send_back import encode_recall
from skyroute.wire.calls.transaction import TransactionOutcome
from skyroute.wire.command import Response

log = logging.getLogger(__name__)

BATCH_BYTES_MAX: Final = 1024 * 1024
"""Default size limit of a batch; a single message may be longer."""

IN_FLIGHT_MAX: Final = 1_024
IN_FLIGHT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Default limits of the sends in flight; more sends wait."""

LEVELS: Final = {Compression.ZLIB: (0, 9), Compression.LZ4: (0, 22), Compression.ZSTD: (1, 22)}
"""Lowest and highest level of each compression. LZ4 has no levels and ignores the number."""

Select = Callable[[Sequence[QueueRef], Message], QueueRef]
"""Chooses one of the topic's queues for a message. The order of the queues changes only when brokers change."""


class Producer:
    """Sends messages of one producer group.

    Examples:
        >>> async with Producer("orders", name_servers="127.0.0.1:9876") as producer:
        ...     result = await producer.send(Message("Orders", b"one coffee", tag="drinks", keys="order-17"))
        ...     print(result.message_id)

    All methods may be called from many tasks at once. A send that returns is stored; a send that fails raises.
    """

    def __init__(
        self,
        group: str,
        name_servers: str | Sequence[str] | None = None,
        *,
        send_timeout_s: float = 3.0,
        retries: int = 2,
        retry_unsafe: bool = False,
        avoid_slow: bool = True,
        compression: Compression = Compression.ZLIB,
        compression_level: int = COMPRESSION_LEVEL,
        compress_from_bytes: int = COMPRESS_FROM_BYTES,
        body_bytes_max: int = BODY_BYTES_MAX,
        batch_bytes_max: int = BATCH_BYTES_MAX,
        in_flight_max: int = IN_FLIGHT_MAX,
        in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
        new_topic_queues: int = 4,
        check: Check | None = None,
        trace: bool | str = False,
        session: Session | None = None,
        **client: Unpack[ClientArguments],
    ) -> None:
        """Check the arguments. Nothing is connected before `start`.

        Args:
            group: the producer group, such as the name of the application.
            name_servers: `host:port;host:port`; None uses the environment variable NAMESRV_ADDR.
            send_timeout_s: how long one send may take, with all its retries.
            retries: how many other brokers are tried after a failure.
            retry_unsafe: also retry when a broker stored the message less safely than configured.
            avoid_slow: avoid brokers that failed or were slow, for a while.
            compression: how bodies of `compress_from_bytes` or more are compressed.
            compression_level: 0 to 9, with Zstandard 1 to 22; LZ4 ignores it.
            compress_from_bytes: shorter bodies are not compressed.
            body_bytes_max: longer bodies are refused before they are sent.
            batch_bytes_max: longer batches are split.
            in_flight_max: maximum sends in flight; more sends wait.
            in_flight_bytes_max: the same, in bytes of their bodies.
            new_topic_queues: queues of a topic that the broker creates because of a send.
            check: returns the outcome of a transaction, when the broker requests it.
            trace: write a message trace to the trace topic, or to the topic of this name.
            session: connections to share with other clients; its creator starts and stops it.
            client: see `ClientArguments`.

        Raises:
            InvalidNameError: the group name is invalid.
            ArgumentError: another argument is invalid.
            ClientError: no usable name server address is given.
        """
        check_producer_group(group)
        check_times(send_timeout_s=send_timeout_s)
        check_flags(retry_unsafe=retry_unsafe, avoid_slow=avoid_slow)
        check_counts(0, retries=retries)
        check_counts(0, BYTES_MAX, compress_from_bytes=compress_from_bytes)
        check_counts(in_flight_max=in_flight_max, new_topic_queues=new_topic_queues)
        check_counts(
            1,
            BYTES_MAX,
            body_bytes_max=body_bytes_max,
            batch_bytes_max=batch_bytes_max,
            in_flight_bytes_max=in_flight_bytes_max,
        )
        check_kind("compression", compression, Compression)
        check_counts(*LEVELS[compression], compression_level=compression_level)
        if check is not None:
            check_callables(check=check)
        check_trace(trace)
        if session is not None:
            check_session(session, Session, **client)
        self._owns_session = session is None
        self.session = session = session if session is not None else Session(name_servers, **client)
        self.group = with_namespace(session.namespace, group)
        self._clock: Clock = session.clock
        self._send_timeout_s = send_timeout_s
        self._packing = Packing(compression, compression_level, compress_from_bytes, body_bytes_max)
        self._batch_bytes_max = min(batch_bytes_max, body_bytes_max)
        self._in_flight = InFlight(in_flight_max, in_flight_bytes_max)
        self._delivery = Delivery(
            session,
            self.group,
            self._in_flight,
            attempts=1 + retries,
            retry_unsafe=retry_unsafe,
            avoid_slow=avoid_slow,
            new_topic_queues=new_topic_queues,
        )
        self._replies = Replies(session)
        self._trace = TraceProducer(session, TRACE_TOPIC if trace is True else trace) if trace else None
        tracer = None if self._trace is None else self._trace.tracer
        self._transactions = Transactions(session, self.group, check, tracer)
        self._running = False

    def __repr__(self) -> str:
        return f"<Producer {self.group} {'running' if self._running else 'stopped'}>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start. Connections are opened when they are first needed.

        Raises:
            ClientError: the shared session already has a producer of this group.
        """
        if self._running:
            return
        if self._owns_session:
            await self.session.start()
        self.session.heartbeats.add(self)
        self._transactions.start()
        self._replies.start()
        if self._trace is not None:
            await self._trace.start()
        self._running = True
        # A shared session may be connected already, and brokers check transactions only with producers that they know.
        self.session.spawn(self.session.heartbeats.send(), name="heartbeat of a new producer")

    async def stop(self) -> None:
        """Unregister at the brokers. Sends in flight fail, unless the session is shared."""
        if not self._running:
            return
        self.session.check_loop()
        self._running = False
        try:
            if self._trace is not None:
                await self._trace.stop()
            await self.session.heartbeats.remove(self)
        finally:
            self._transactions.stop()
            self._replies.stop()
            if self._owns_session:
                await self.session.stop()

    # ----------------------------------------------------------------------------------------------------- sending

    async def send(
        self,
        message: Message,
        *,
        queue: QueueRef | None = None,
        select: Select | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send a message and wait until a broker has stored it.

        After a failure another broker is tried, except where `queue`, `select` or the message's `sharding_key` fixes
        the queue. There a retry could break the order, so it is made only if the broker was not reached.

        Raises:
            NoRouteError: no broker serves the topic, and none would create it.
            BrokerRefusedError: the brokers refused the message.
            RemotingError: no broker was reached, or none responded in time; the message may be stored nevertheless.
            InvalidMessageError: the message is invalid; it was not sent.
        """
        self._check_running()
        if not isinstance(message, Message):
            raise _not_a_message(message)
        if timeout_s is not None:
            check_times_or_zero(timeout_s=timeout_s)
        outbound = self._prepare(message, message.to_properties())
        return await self._send(outbound, message, self._choice(message, queue, select), timeout_s)

    async def send_oneway(
        self, message: Message, *, queue: QueueRef | None = None, select: Select | None = None
    ) -> None:
        """Send a message without waiting for a response: it may get lost.

        Raises:
            NoRouteError: no broker serves the topic, and none would create it.
            RemotingError: the broker cannot be reached.
            InvalidMessageError: the message is invalid; it was not sent.
        """
        self._check_running()
        if not isinstance(message, Message):
            raise _not_a_message(message)
        outbound = self._prepare(message, message.to_properties())
        await self._compress(outbound)
        await self._delivery.deliver_oneway(outbound, self._choice(message, queue, select))

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: QueueRef | None = None,
        select: Select | None = None,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic in batches, and return a result for each message.

        Messages with the same `sharding_key` stay in order.

        Raises:
            InvalidMessageError: they cannot be a batch: several topics, or a delayed message. Nothing was sent.
            BrokerRefusedError: a batch was refused; the batches before it are stored.
            RemotingError: no broker took a batch in time; the batches before it are stored.
        """
        self._check_running()
        messages = listed("messages", messages, "skyroute.Message")
        for message in messages:
            if not isinstance(message, Message):
                raise _not_a_message(message, "each of messages")
        if timeout_s is not None:
            check_times_or_zero(timeout_s=timeout_s)
        check_batch(messages)
        check_open_to_senders(messages[0].topic)
        results: dict[int, SendResult] = {}
        for queue_of_batch, batch in await self._batches(messages, queue, select):
            choose = _always(queue_of_batch)
            first = messages[batch[0].position]
            if len(batch) == 1:
                outbound = self._prepare(first, first.to_properties())
                results[batch[0].position] = await self._send(outbound, first, choose, timeout_s)
                continue
            properties = {names.UNIQUE_ID: self.session.message_ids.next()}
            if not messages[0].wait_stored:
                properties[names.WAIT_STORED] = "false"
            topic = with_namespace(self.session.namespace, first.topic)
            ids = ",".join(entry.message_id for entry in batch)
            body = encode_batch(entry.item for entry in batch)
            outbound = Outbound(topic, body, write_properties(properties), ids, batch=True)
            results |= results_of(batch, await self._send(outbound, first, choose, timeout_s))
        return [results[index] for index in range(len(messages))]

    async def send_in_transaction(
        self,
        message: Message,
        execute: "Callable[[Message, SendResult], TransactionOutcome | Awaitable[TransactionOutcome]]",
        *,
        timeout_s: float | None = None,
    ) -> TransactionResult:
        """Send a message that consumers get only if `execute`, the local transaction, returns COMMIT.

        While `execute` runs, the broker stores the message as a half message. If `execute` raises or returns UNKNOWN,
        or this process dies, the broker later calls `check` of any producer of the group. A plain function runs in a
        thread.

        Raises:
            ClientError: the producer has no `check`.
            BrokerRefusedError: the message was refused; `execute` was not called.
            RemotingError: no broker was reached, or none responded in time; `execute` was not called.
            Exception: any exception of `execute`; the broker calls `check` later.
        """
        self._check_running()
        if not isinstance(message, Message):
            raise _not_a_message(message)
        check_callables(execute=execute)
        if timeout_s is not None:
            check_times_or_zero(timeout_s=timeout_s)
        if self._transactions.check is None:
            raise ClientError(
                f"the producer {self.group} has no check: pass Producer(check=...), for the broker's transaction checks"
            )
        properties = message.to_properties()
        # Brokers cannot delay a half message; Apache's clients drop the delay level too.
        properties.pop(names.DELAY_LEVEL, None)
        properties |= {names.TRANSACTION_PREPARED: "true", names.PRODUCER_GROUP: self.group}
        outbound = self._prepare(message, properties, sys_flag=int(TransactionState.PREPARED))
        sent = await self._send(outbound, message, self._choice(message, None, None), timeout_s)
        outcome = TransactionOutcome.ROLLBACK
        remark: str | None = None
        try:
            if sent.ok:
                outcome = TransactionOutcome.UNKNOWN
                outcome = as_outcome("execute", await self._transactions.call(execute, message, sent))
        except BaseException as error:
            remark = f"{type(error).__name__}: {error}"
            raise
        finally:
            await self._transactions.end(message, sent, outcome, remark)
        return TransactionResult(sent, outcome)

    async def request(self, message: Message, *, timeout_s: float = 3.0) -> StoredMessage:
        """Send a message to a consumer of the topic, and return the reply that it sends with `Producer.reply`.

        Raises:
            RequestTimeoutError: no reply arrived in time.
            BrokerRefusedError: the message was refused.
            RemotingError: no broker was reached.
        """
        self._check_running()
        if not isinstance(message, Message):
            raise _not_a_message(message)
        check_times_or_zero(timeout_s=timeout_s)
        deadline = self._clock.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._replies.prepare(with_namespace(self.session.namespace, message.topic), self._delivery)
        except TimeoutError:
            raise CallTimeoutError(
                f"request not sent: heartbeats to the brokers of topic {message.topic} took longer than {timeout_s:g} s"
            ) from None
        with self._replies.expect() as (correlation_id, arrival):
            properties = message.to_properties()
            properties |= {
                names.CORRELATION_ID: correlation_id,
                names.REPLY_TO_CLIENT: self.session.client_id,
                names.TTL: str(round(timeout_s * 1000)),
            }
            outbound = self._prepare(message, properties)
            await self._send(outbound, message, self._choice(message, None, None), deadline - self._clock.monotonic())
            return await arrival(deadline - self._clock.monotonic())

    async def reply(self, to: StoredMessage, body: bytes, *, timeout_s: float | None = None) -> SendResult:
        """Reply to a message that was sent with `request`.

        Raises:
            InvalidMessageError: the message is not a request.
            BrokerRefusedError: the requester is not connected to the broker any more.
            RemotingError: no broker was reached.
        """
        self._check_running()
        check_kind("to", to, StoredMessage)
        if timeout_s is not None:
            check_times_or_zero(timeout_s=timeout_s)
        cluster, properties = reply_properties(to)
        message = Message(reply_topic(cluster), body)
        outbound = self._prepare(message, properties, reply=True)
        return await self._send(outbound, message, None, timeout_s)

    async def recall(self, topic: str, recall_handle: str, *, broker_name: str | None = None) -> None:
        """Cancel the delivery of a message with `deliver_after_s` or `deliver_at`, by the handle in its `SendResult`.

        The broker must support it (5.x), and have `recallMessageEnable=true`.

        Raises:
            BrokerRefusedError: the broker does not support or allow it, or has delivered the message already.
        """
        self._check_running()
        check_topic(topic)
        check_texts(recall_handle=recall_handle)
        if broker_name is not None:
            check_texts(broker_name=broker_name)
        topic = with_namespace(self.session.namespace, topic)
        route = await self.session.routes.find(topic)
        brokers = [broker_name] if broker_name else [group.name for group in route.groups]
        failure: SkyrouteError = NoBrokerError(f"the route of topic {topic} has no broker: does the topic exist?")
        response: Response | None = None
        for name in brokers:
            try:
                address = await self._delivery.address(topic, QueueRef(topic, name, 0))
                request = encode_recall(self.group, topic, recall_handle)
                response = await self.session.ask(address, request, self._send_timeout_s)
                break
            except (BrokerRefusedError, RemotingError, NoBrokerError) as error:
                failure = error
        if self._trace is not None:
            region = None if response is None else (response.fields or {}).get(names.REGION)
            args = (self._trace.tracer, self.session, self.group, topic, recall_handle, region)
            trace_recall(*args, success=response is not None)
        if response is None:
            raise failure

    async def queues(self, topic: str) -> list[QueueRef]:
        """Return the writable queues of a topic, in the order that `select` gets.

        Raises:
            NoRouteError: no broker serves the topic, and none would create it.
        """
        self._check_running()
        check_topic(topic)
        queues = (await self._delivery.rotation(with_namespace(self.session.namespace, topic))).queues
        return [queue_without_namespace(self.session.namespace, queue) for queue in queues]

    # ------------------------------------------------------------------------------------------------ steps of a send

    def _check_running(self) -> None:
        if not self._running:
            raise NotRunningError(f"the producer {self.group} is not running: use `async with`, or call `start` first")

    def _prepare(
        self, message: Message, properties: dict[str, str], *, sys_flag: int = 0, reply: bool = False
    ) -> Outbound:
        self._packing.check(message.body)
        namespace = self.session.namespace
        topic = message.topic
        check_open_to_senders(topic)
        if namespace is not None and not reply:  # the reply topic belongs to the cluster and has no namespace
            topic = with_namespace(namespace, topic)
            properties[names.INSTANCE_ID] = namespace
        message_id = properties[names.UNIQUE_ID] = self.session.message_ids.next()
        text = write_properties(properties)
        return Outbound(topic, message.body, text, message_id, sys_flag, message.flag, reply=reply)

    async def _compress(self, outbound: Outbound) -> None:
        if not outbound.batch:  # brokers split batches, and would have to decompress them first
            outbound.body, compressed = await self._packing.pack(outbound.body)
            outbound.sys_flag |= compressed

    def _choice(self, message: Message, queue: QueueRef | None, select: Select | None) -> Choose | None:
        """Return the function that chooses the queue, or None for any queue."""
        if queue is not None:
            if select is not None:
                raise InvalidMessageError("queue and select are both given: give only one")
            check_queue("queue", queue)
            fixed = self._with_namespace(message, queue)
            return lambda _: fixed
        if select is not None:
            check_callables(select=select)
            chosen_by = select
            if self.session.namespace is None:
                return lambda queues: self._with_namespace(message, chosen_by(queues, message))
            return lambda queues: self._with_namespace(
                message,
                chosen_by([queue_without_namespace(self.session.namespace, queue) for queue in queues], message),
            )
        if (key := message.sharding_key) is not None:
            # The same hash as in Apache's clients, so that producers in Java and Python choose the same queue.
            number = abs(java_hash(key))
            return lambda queues: queues[number % len(queues)]
        return None

    def _with_namespace(self, message: Message, queue: QueueRef) -> QueueRef:
        if not isinstance(queue, QueueRef):
            raise InvalidMessageError(f"select returned {queue!r}: expected one of the given queues")
        namespace = self.session.namespace
        queue = queue_with_namespace(namespace, queue)
        if queue.topic != with_namespace(namespace, message.topic):
            raise InvalidMessageError(
                f"the queue is of topic {queue.topic} and the message of topic {message.topic}: expected the same topic"
            )
        return queue

    def _send(
        self, outbound: Outbound, message: Message, choose: Choose | None, timeout_s: float | None
    ) -> Coroutine[Any, Any, SendResult]:
        """Return the coroutine that delivers a message. The common case skips compression and trace to be fast."""
        timeout_s = self._send_timeout_s if timeout_s is None else timeout_s
        if self._trace is None and len(outbound.body) < self._packing.from_bytes:
            return self._delivery.deliver(outbound, choose, timeout_s)
        return self._compress_and_trace(outbound, message, choose, timeout_s)

    async def _compress_and_trace(
        self, outbound: Outbound, message: Message, choose: Choose | None, timeout_s: float
    ) -> SendResult:
        await self._compress(outbound)
        result = await self._delivery.deliver(outbound, choose, timeout_s)
        if self._trace is not None:
            trace_send(self._trace.tracer, self.session, self.group, outbound, message, result)
        return result

    async def _batches(
        self, messages: Sequence[Message], queue: QueueRef | None, select: Select | None
    ) -> list[tuple[QueueRef | None, list[BatchEntry]]]:
        namespace = self.session.namespace
        queues = (await self._delivery.rotation(with_namespace(namespace, messages[0].topic))).queues
        entries: list[tuple[QueueRef | None, BatchEntry]] = []
        for index, message in enumerate(messages):
            self._packing.check(message.body)
            choose = self._choice(message, queue, select)
            properties = message.to_properties()
            message_id = properties[names.UNIQUE_ID] = self.session.message_ids.next()
            if namespace is not None:
                properties[names.INSTANCE_ID] = namespace
            item = BatchItem(message.body, write_properties(properties).encode(), message.flag)
            entries.append((None if choose is None else choose(queues), BatchEntry(index, message_id, item)))
        return split_batches(entries, self._batch_bytes_max)

    # --------------------------------------------------------------------------------------------- heartbeat source

    def producer_groups(self) -> Iterable[str]:
        return (self.group,)

    def consumer_data(self) -> Iterable[ConsumerData]:
        return ()

    def topics(self) -> Iterable[str]:
        return self._delivery.topics


def _not_a_message(given: object, name: str = "message") -> ArgumentError:
    return ArgumentError(f"{name} is {given!r}: expected a skyroute.Message")


def _always(queue: QueueRef | None) -> Choose | None:
    return None if queue is None else lambda _: queue


class TraceProducer:
    """A producer of the trace topic, and the tracer that uses it."""

    def __init__(self, session: Session, topic: str) -> None:
        self._producer = Producer(TRACE_GROUP, session=session)
        self.tracer = Tracer(self._producer.send, topic=topic)

    async def start(self) -> None:
        await self._producer.start()
        self.tracer.start()

    async def stop(self) -> None:
        """Send the remaining records."""
        await self.tracer.stop()
        await self._producer.stop()
