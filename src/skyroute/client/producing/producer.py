"""Sends messages: which queue, how often to try, how many at once. What travels is written in `wire.calls.send`."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
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
    check_times_or_none_at_all,
    listed,
)
from skyroute.client.errors import (
    ArgumentError,
    BrokerRefusedError,
    ClientError,
    NoBrokerError,
    NoRouteError,
    NotRunningError,
)
from skyroute.client.producing.delivery import Choose, Delivery
from skyroute.client.producing.in_flight import InFlight
from skyroute.client.producing.prepared_message import BODY_BYTES_MAX, Outbound, Packing, write_properties
from skyroute.client.producing.request_reply import Replies, reply_properties
from skyroute.client.producing.transactions import Check, Transactions, as_outcome
from skyroute.client.results import SendResult, TransactionResult
from skyroute.client.session.session import ClientArguments, Session
from skyroute.client.trace import DEFAULT_REGION, Recalled, Sent, Tracer, check_trace, kind_of
from skyroute.clock import Clock
from skyroute.errors import SkyrouteError
from skyroute.message import property_names as names
from skyroute.message.batch import BatchItem, check_batch, encode_batch
from skyroute.message.compression import COMPRESS_FROM_BYTES, COMPRESSION_LEVEL
from skyroute.message.errors import InvalidMessageError
from skyroute.message.flags import Compression, TransactionState
from skyroute.message.message import Message, StoredMessage
from skyroute.message.names import check_open_to_senders, check_producer_group, check_topic
from skyroute.message.properties import split_properties
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import (
    DEFAULT_TOPIC,
    TRACE_GROUP,
    TRACE_TOPIC,
    reply_topic,
    with_namespace,
    without_namespace,
)
from skyroute.message.tags import java_hash
from skyroute.remoting.errors import CallTimeoutError, RemotingError
from skyroute.wire.calls.clients import ConsumerData
from skyroute.wire.calls.send_back import decode_recall_handle, encode_recall
from skyroute.wire.calls.transaction import TransactionOutcome
from skyroute.wire.errors import FieldError

log = logging.getLogger(__name__)

BATCH_BYTES_MAX: Final = 1024 * 1024
"""Batches are cut so that none is longer, unless a single message is."""

IN_FLIGHT_MAX: Final = 1_024
IN_FLIGHT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Sends under way at once; the next ones wait for their turn."""

LEVELS: Final = {Compression.ZLIB: (0, 9), Compression.LZ4: (0, 22), Compression.ZSTD: (1, 22)}
"""How hard each way of compressing can try, from and to. LZ4 has no levels, and is not particular about them."""

Select = Callable[[Sequence[QueueRef], Message], QueueRef]
"""Chooses the queue of a message among those of its topic, whose order stays the same while no broker comes or goes."""


class Producer:
    """Sends messages of one group of producers.

    Examples:
        >>> async with Producer("orders", name_servers="127.0.0.1:9876") as producer:
        ...     result = await producer.send(Message("Orders", b"one coffee", tag="drinks", keys="order-17"))
        ...     print(result.message_id)

    All methods may be called from many tasks at once. A send that cannot be done raises; one that returns is stored.
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
        """Prepare; nothing is connected before `start`.

        Args:
            group: the producers that share a task, such as an application's name.
            name_servers: `host:port;host:port`; None: the environment's NAMESRV_ADDR.
            send_timeout_s: how long one send may take, with all its attempts.
            retries: how many more brokers are tried when one fails.
            retry_unsafe: also try another broker when one stored the message less safely than it is set up to.
            avoid_slow: keep away from brokers that failed or were slow of late, for a while.
            compression: how bodies from `compress_from_bytes` on are compressed.
            compression_level: how hard to try: 0 to 9, with Zstandard 1 to 22; LZ4 takes no notice.
            compress_from_bytes: shorter bodies travel as they are.
            body_bytes_max: longer bodies are refused here, before they travel.
            batch_bytes_max: longer batches are cut.
            in_flight_max: sends under way at once; the next ones wait.
            in_flight_bytes_max: the same, counted in bytes of bodies.
            new_topic_queues: queues of a topic that the broker creates because we send to it.
            check: says what became of a transaction, when the broker asks.
            trace: write a trace of every send to the trace topic, or to the topic of this name.
            session: connections to share with others; whoever made it starts and stops it.
            client: see `ClientArguments`.

        Raises:
            InvalidNameError: no group has this name.
            ArgumentError: another argument makes no sense.
            ClientError: there is no usable address of a name server.
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
        if session is None:
            session = Session(name_servers, **client)
            self._owns_session = True
        else:
            self._owns_session = False
        self.session = session
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
        self._trace_producer: Producer | None = None
        self._tracer: Tracer | None = None
        if trace:
            self._trace_producer = Producer(TRACE_GROUP, session=session)
            self._tracer = Tracer(self._trace_producer.send, topic=trace if isinstance(trace, str) else TRACE_TOPIC)
        self._transactions = Transactions(session, self.group, check, self._tracer)
        self._running = False

    def __repr__(self) -> str:
        return f"<Producer {self.group} {'running' if self._running else 'stopped'}>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Begin. Brokers and name servers are connected to when they are first needed.

        Raises:
            ClientError: its session, which it shares, has a producer of the same group.
        """
        if self._running:
            return
        if self._owns_session:
            await self.session.start()
        self.session.join(self)
        self._transactions.start()
        self._replies.start()
        if self._trace_producer is not None and self._tracer is not None:
            await self._trace_producer.start()
            self._tracer.start()
        self._running = True
        # A shared session may be connected already, and brokers ask only those producers that they have heard of.
        self.session.spawn(self.session.send_heartbeats(), name="heartbeat of a new producer")

    async def stop(self) -> None:
        """Take leave of the brokers. Sends that are under way fail if the session is our own."""
        if not self._running:
            return
        self._running = False
        try:
            if self._trace_producer is not None and self._tracer is not None:
                await self._tracer.stop()
                await self._trace_producer.stop()
            await self.session.leave(self)
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
        """Send a message and wait until a broker has it.

        A failed broker is followed by another one, except where the queue is fixed: by `queue`, by `select`, or by the
        message's `sharding_key`, which always leads to the same queue. Then a second attempt could break the order, so
        it is made only if the broker was never reached.

        Raises:
            NoRouteError: no broker serves the topic, and none would create it.
            BrokerRefusedError: brokers were reached, and refused.
            RemotingError: no broker was reached, or none answered in time; the message may be stored all the same.
            InvalidMessageError: the message breaks a rule; it was not sent.
        """
        self._check_running()
        if not isinstance(message, Message):
            raise _no_message(message)
        if timeout_s is not None:
            check_times_or_none_at_all(timeout_s=timeout_s)
        outbound = self._prepare(message, message.to_properties())
        return await self._send(outbound, message, self._choice(message, queue, select), timeout_s)

    async def send_oneway(
        self, message: Message, *, queue: QueueRef | None = None, select: Select | None = None
    ) -> None:
        """Send a message and do not wait: nobody learns whether it arrived.

        Raises:
            NoRouteError: no broker serves the topic, and none would create it.
            RemotingError: there is no line to send it on.
            InvalidMessageError: the message breaks a rule; it was not sent.
        """
        self._check_running()
        if not isinstance(message, Message):
            raise _no_message(message)
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
        """Send messages of one topic together, in as many batches as their sizes call for.

        Messages with the same `sharding_key` stay in order. Returns a result for each message.

        Raises:
            InvalidMessageError: they may not travel as a batch: several topics, or delayed ones. Nothing was sent.
            BrokerRefusedError: a batch was refused; those before it are stored.
            RemotingError: a batch met no broker, or no answer in time; those before it are stored.
        """
        self._check_running()
        messages = listed("messages", messages, "skyroute.Message")
        for message in messages:
            if not isinstance(message, Message):
                raise _no_message(message, "each of messages")
        if timeout_s is not None:
            check_times_or_none_at_all(timeout_s=timeout_s)
        check_batch(messages)
        check_open_to_senders(messages[0].topic)
        results: dict[int, SendResult] = {}
        for choose, part in await self._batches(messages, queue, select):
            if len(part) == 1:
                place = part[0][0]
                outbound = self._prepare(messages[place], messages[place].to_properties())
                results[place] = await self._send(outbound, messages[place], choose, timeout_s)
                continue
            ids = [message_id for _, message_id, _ in part]
            body = encode_batch(item for _, _, item in part)
            properties = {names.UNIQUE_ID: self.session.message_ids.next()}
            if not messages[0].wait_stored:
                properties[names.WAIT_STORED] = "false"
            topic = with_namespace(self.session.namespace, messages[0].topic)
            outbound = Outbound(topic, body, write_properties(properties), ",".join(ids), batch=True)
            sent = await self._send(outbound, messages[part[0][0]], choose, timeout_s)
            # One id for all is how a topic answers that keeps a batch as one record.
            offset_ids = sent.offset_id.split(",")
            for step, (place, message_id, _) in enumerate(part):
                results[place] = SendResult(
                    sent.status,
                    message_id,
                    offset_ids[step] if len(offset_ids) == len(part) else sent.offset_id,
                    sent.queue,
                    sent.queue_offset + step,
                    region=sent.region,
                    trace_on=sent.trace_on,
                )
        return [results[place] for place in range(len(messages))]

    async def send_in_transaction(
        self,
        message: Message,
        execute: "Callable[[Message, SendResult], TransactionOutcome | Awaitable[TransactionOutcome]]",
        *,
        timeout_s: float | None = None,
    ) -> TransactionResult:
        """Send a message that consumers see only if `execute`, your own part of the transaction, says COMMIT.

        While `execute` runs, the broker keeps the message back. If it raises, or says UNKNOWN, or this process dies,
        the broker asks `check` of any producer of the group later on. A plain function runs in a thread.

        Raises:
            ClientError: the producer was made without `check`.
            BrokerRefusedError: the message was refused; `execute` was not called.
            RemotingError: no broker was reached, or none answered in time; `execute` was not called.
            Exception: whatever `execute` raised; the broker will ask.
        """
        self._check_running()
        if not isinstance(message, Message):
            raise _no_message(message)
        check_callables(execute=execute)
        if timeout_s is not None:
            check_times_or_none_at_all(timeout_s=timeout_s)
        if self._transactions.check is None:
            raise ClientError(
                "a producer of transactions needs check=...: what the broker asks when it hears no outcome"
            )
        properties = message.to_properties()
        # A message is delayed after it was committed, not before, which no broker can do: as Apache's clients have it.
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
        """Send a message to whoever consumes the topic, and return the reply, as `Producer.reply` sends it.

        Raises:
            RequestTimeoutError: nobody replied in time.
            BrokerRefusedError: the message was refused.
            RemotingError: no broker was reached.
        """
        self._check_running()
        if not isinstance(message, Message):
            raise _no_message(message)
        check_times_or_none_at_all(timeout_s=timeout_s)
        deadline = self._clock.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._prepare_for_replies(message.topic)
        except TimeoutError:
            raise CallTimeoutError("the time for a reply was over before the brokers knew of us") from None
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
        """Answer a request that a consumer was given.

        Raises:
            InvalidMessageError: it was no request.
            BrokerRefusedError: the broker does not know the one who asked any more.
            RemotingError: no broker was reached.
        """
        self._check_running()
        check_kind("to", to, StoredMessage)
        if timeout_s is not None:
            check_times_or_none_at_all(timeout_s=timeout_s)
        cluster, properties = reply_properties(to)
        message = Message(reply_topic(cluster), body)
        outbound = self._prepare(message, properties, reply=True)
        return await self._send(outbound, message, None, timeout_s)

    async def recall(self, topic: str, recall_handle: str, *, broker_name: str | None = None) -> None:
        """Have a message that waits for its time not delivered at all. The broker must allow it (5.x).

        Raises:
            BrokerRefusedError: it does not, or the message was delivered already.
        """
        self._check_running()
        check_topic(topic)
        check_texts(recall_handle=recall_handle)
        if broker_name is not None:
            check_texts(broker_name=broker_name)
        topic = with_namespace(self.session.namespace, topic)
        route = await self.session.routes.find(topic)
        brokers = [broker_name] if broker_name else [group.name for group in route.groups]
        failure: SkyrouteError = NoBrokerError(f"no broker of topic {topic} is known")
        for name in brokers:
            try:
                address = await self._delivery.address(topic, QueueRef(topic, name, 0))
                request = encode_recall(self.group, topic, recall_handle)
                answer = await self.session.ask(address, request, self._send_timeout_s)
            except (BrokerRefusedError, RemotingError, NoBrokerError) as error:
                failure = error
            else:
                self._trace_recall(topic, recall_handle, (answer.fields or {}).get(names.REGION), success=True)
                return
        self._trace_recall(topic, recall_handle, None, success=False)
        raise failure

    async def queues(self, topic: str) -> list[QueueRef]:
        """Return the queues of a topic that can be written, in the order that `select` sees.

        Raises:
            NoRouteError: no broker serves the topic, and none would create it.
        """
        self._check_running()
        check_topic(topic)
        queues = (await self._delivery.rotation(with_namespace(self.session.namespace, topic))).queues
        return [self._without_namespace(queue) for queue in queues]

    # ---------------------------------------------------------------------------------------------------- the parts

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
        if namespace is not None and not reply:  # replies go to the cluster's own topic, whoever asked
            topic = with_namespace(namespace, topic)
            properties[names.INSTANCE_ID] = namespace
        message_id = properties[names.UNIQUE_ID] = self.session.message_ids.next()
        text = write_properties(properties)
        return Outbound(topic, message.body, text, message_id, sys_flag, message.flag, reply=reply)

    async def _compress(self, outbound: Outbound) -> None:
        if not outbound.batch:  # brokers take batches apart, and would have to unpack them first
            outbound.body, compressed = await self._packing.pack(outbound.body)
            outbound.sys_flag |= compressed

    def _choice(self, message: Message, queue: QueueRef | None, select: Select | None) -> Choose | None:
        """Return how the queue is chosen, or None where any will do."""
        if queue is not None:
            if select is not None:
                raise InvalidMessageError("give one of queue and select")
            check_queue("queue", queue)
            fixed = self._with_namespace(message, queue)
            return lambda _: fixed
        if select is not None:
            check_callables(select=select)
            chosen_by = select
            if self.session.namespace is None:
                return lambda queues: self._with_namespace(message, chosen_by(queues, message))
            return lambda queues: self._with_namespace(
                message, chosen_by([self._without_namespace(queue) for queue in queues], message)
            )
        if (key := message.sharding_key) is not None:
            # As Apache's clients choose by hash, so that producers in both languages agree.
            number = abs(java_hash(key))
            return lambda queues: queues[number % len(queues)]
        return None

    def _with_namespace(self, message: Message, queue: QueueRef) -> QueueRef:
        if not isinstance(queue, QueueRef):
            raise InvalidMessageError(f"a message goes to a QueueRef, and {queue!r} is none")
        namespace = self.session.namespace
        topic = with_namespace(namespace, queue.topic)
        if topic != with_namespace(namespace, message.topic):
            raise InvalidMessageError(f"a message of topic {message.topic} cannot go to a queue of {queue.topic}")
        return queue if topic == queue.topic else QueueRef(topic, queue.broker_name, queue.queue_id)

    def _without_namespace(self, queue: QueueRef) -> QueueRef:
        topic = without_namespace(self.session.namespace, queue.topic)
        return QueueRef(topic, queue.broker_name, queue.queue_id)

    def _send(
        self, outbound: Outbound, message: Message, choose: Choose | None, timeout_s: float | None
    ) -> Coroutine[Any, Any, SendResult]:
        """Return what delivers a message: for most, no more than that, since each step on the way costs every send."""
        timeout_s = self._send_timeout_s if timeout_s is None else timeout_s
        if self._tracer is None and len(outbound.body) < self._packing.from_bytes:
            return self._delivery.deliver(outbound, choose, timeout_s)
        return self._compress_and_trace(outbound, message, choose, timeout_s)

    async def _compress_and_trace(
        self, outbound: Outbound, message: Message, choose: Choose | None, timeout_s: float
    ) -> SendResult:
        await self._compress(outbound)
        result = await self._delivery.deliver(outbound, choose, timeout_s)
        if self._tracer is not None:
            self._trace_send(self._tracer, outbound, message, result)
        return result

    def _trace_send(self, tracer: Tracer, outbound: Outbound, message: Message, result: SendResult) -> None:
        """Note a send for whoever looks for the message later; of a batch, for each of its messages."""
        if not result.trace_on:
            return
        cost_s = self._clock.monotonic() - outbound.began_at
        offset_ids = result.offset_id.split(",")
        message_ids = outbound.message_id.split(",")
        for place, message_id in enumerate(message_ids):
            tracer.add(
                Sent(
                    at_ms=int((self._clock.wall() - cost_s) * 1000),
                    region=result.region or DEFAULT_REGION,
                    group=without_namespace(self.session.namespace, self.group),
                    topic=message.topic,
                    message_id=message_id,
                    tag=message.tag,
                    keys=message.keys,
                    store_host=self.session.routes.address(result.queue.broker_name) or "",
                    body_bytes=len(outbound.body) // len(message_ids),
                    cost_ms=int(cost_s * 1000),
                    kind=kind_of(split_properties(outbound.properties)),
                    offset_id=offset_ids[place] if len(offset_ids) == len(message_ids) else result.offset_id,
                    success=result.ok,
                )
            )

    def _trace_recall(self, topic: str, recall_handle: str, region: str | None, *, success: bool) -> None:
        if self._tracer is None:
            return
        namespace = self.session.namespace
        with suppress(FieldError):  # a handle that nobody can read is of no message
            self._tracer.add(
                Recalled(
                    at_ms=int(self._clock.wall() * 1000),
                    region=region or DEFAULT_REGION,
                    group=without_namespace(namespace, self.group),
                    topic=without_namespace(namespace, topic),
                    message_id=decode_recall_handle(recall_handle).unique_id,
                    success=success,
                )
            )

    async def _batches(
        self, messages: Sequence[Message], queue: QueueRef | None, select: Select | None
    ) -> list[tuple[Choose | None, list[tuple[int, str, BatchItem]]]]:
        """Cut messages into batches: each to one queue, and none too long."""
        queues = (await self._delivery.rotation(with_namespace(self.session.namespace, messages[0].topic))).queues
        open_parts: dict[QueueRef | None, list[tuple[int, str, BatchItem]]] = {}
        sizes: dict[QueueRef | None, int] = {}
        cut: list[tuple[QueueRef | None, list[tuple[int, str, BatchItem]]]] = []
        for place, message in enumerate(messages):
            self._packing.check(message.body)
            choose = self._choice(message, queue, select)
            target = choose(queues) if choose is not None else None
            properties = message.to_properties()
            message_id = properties[names.UNIQUE_ID] = self.session.message_ids.next()
            if self.session.namespace is not None:
                properties[names.INSTANCE_ID] = self.session.namespace
            item = BatchItem(message.body, write_properties(properties).encode(), message.flag)
            size = 22 + len(item.body) + len(item.raw_properties)
            if target in open_parts and sizes[target] + size > self._batch_bytes_max:
                del open_parts[target]
            if target not in open_parts:
                open_parts[target], sizes[target] = [], 0
                cut.append((target, open_parts[target]))
            open_parts[target].append((place, message_id, item))
            sizes[target] += size
        return [(_always(target), part) for target, part in cut]

    async def _prepare_for_replies(self, topic: str) -> None:
        """Make ourselves known to every broker through which a reply can come."""
        topic = with_namespace(self.session.namespace, topic)
        routes = self.session.routes
        await self._delivery.rotation(topic)
        route = routes.cached(topic) or await routes.find(DEFAULT_TOPIC)
        unknown = {reply_topic(group.cluster) for group in route.groups} - self._replies.ready
        for replies in unknown:
            try:
                await routes.find(replies)
            except NoRouteError as error:
                log.info("replies may not come: %s", error)
        if unknown:
            await self.session.send_heartbeats()
            self._replies.ready |= unknown

    # -------------------------------------------------------------------------------------- what the session asks

    def producer_groups(self) -> Iterable[str]:
        return (self.group,)

    def consumer_data(self) -> Iterable[ConsumerData]:
        return ()

    def topics(self) -> Iterable[str]:
        return self._delivery.topics


def _no_message(given: object, name: str = "message") -> ArgumentError:
    return ArgumentError(f"{name} is a skyroute.Message: {given!r} is none")


def _always(queue: QueueRef | None) -> Choose | None:
    return None if queue is None else lambda _: queue
