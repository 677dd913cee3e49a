"""Taking messages from producers."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Generator
from functools import lru_cache, partial
from typing import Final

from skyroute.broker.appender import Appender
from skyroute.broker.clients.queue_locks import QueueLocks
from skyroute.broker.cluster.topic_propagation import TopicPropagation
from skyroute.broker.config import BrokerConfig
from skyroute.broker.delivery.flush_wait import Flushed
from skyroute.broker.handlers.send_back import redirect_retry
from skyroute.broker.identity import Identity
from skyroute.broker.scheduling.timers import recall_handle
from skyroute.broker.store.draft import Appended, AppendedBatch, Draft
from skyroute.broker.store.errors import RecordTooLargeError, StoreClosedError
from skyroute.broker.store.index.keys import find_value
from skyroute.broker.tables.consumer_groups import Groups
from skyroute.broker.tables.topics import Announce, Topics
from skyroute.broker.transactions import Transactions
from skyroute.clock import Clock
from skyroute.files.errors import DiskFullError, StorageError
from skyroute.message.batch import RawItem, decode_some
from skyroute.message.errors import BatchError, HostError, InvalidNameError, RecordError
from skyroute.message.flags import INNER_BATCH, MULTI_TAGS, TRANSACTION_MASK
from skyroute.message.host import decode_host, encode_host
from skyroute.message.message_id import encode_offset_id, encode_offset_ids
from skyroute.message.message_ids import MessageIds
from skyroute.message.names import TOPIC_CHARS_MAX, check_topic
from skyroute.message.properties import PROPERTIES_BYTES_MAX, delete_property, encode_properties, find_property
from skyroute.message.property_names import (
    CLUSTER,
    DELAY_LEVEL,
    INNER_COUNT,
    KEYS,
    POP_RECEIPT,
    REGION,
    TRACE_ON,
    TRANSACTION_PREPARED,
    UNIQUE_ID,
)
from skyroute.message.reserved_topics import RETRY_PREFIX, TIMER_TOPIC, is_closed_to_senders, is_retry_topic
from skyroute.remoting.dispatch import Answer, DeferredResponse, OrderedResponse, Peer, wait_for_response
from skyroute.remoting.errors import RefusedError
from skyroute.remoting.stepwise import StepRunner
from skyroute.routing.topology import Permission, TopicFlag
from skyroute.wire.calls.send import (
    ReceiptForm,
    Sending,
    SendReceipt,
    decode_send,
    encode_send_receipt,
    region_fields,
)
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import FORM_JSON, Request, Response

BATCH_MESSAGES_A_STEP: Final = 1_000
"""Messages of a batch decoded and encoded in one step."""
BATCH_IDS_A_STEP: Final = 10_000
"""Message ids of a batch encoded in one step."""

PACKED_ADDRESSES_MAX: Final = 16_384
"""Maximum number of producer addresses that are kept as records hold them."""

_STAMPED: Final = (REGION, TRACE_ON, CLUSTER, POP_RECEIPT)
"""Properties that are the broker's to give; a message that is sent on from elsewhere may have them."""
_UNIQUE_ID_START: Final = f"{UNIQUE_ID}\x01".encode()
_WRITE: Final = int(Permission.WRITE)
_TRANSACTION_MARK: Final = f"{TRANSACTION_PREPARED}\x01"
_INNER_COUNT_MARK: Final = f"{INNER_COUNT}\x01"
"""Parts of properties that make a message special; they are looked for in text, which takes a sixth of the time."""
_NO_WAIT_MARK: Final = b"WAIT\x01false\x02"
_NOT_AVAILABLE: Final = (
    "service not available now. It may be caused by one of the following reasons: the broker's disk is full [%.2f], "
    "messages are put to the slave, message store has been shut down, etc."
)


class SendHandlers:
    """Sends of single messages and of batches."""

    def __init__(
        self,
        appender: Appender,
        *,
        topics: Topics,
        groups: Groups,
        locks: QueueLocks,
        announce: Announce,
        propagation: TopicPropagation,
        transactions: Transactions,
        config: BrokerConfig,
        identity: Identity,
        clock: Clock,
        step_runner: StepRunner,
    ) -> None:
        self._appender = appender
        self._topics = topics
        self._groups = groups
        self._locks = locks
        self._announce = announce
        self._propagation = propagation
        self._transactions = transactions
        self._config = config
        self._identity = identity
        self._clock = clock
        self._ids = MessageIds(str(decode_host(identity.raw_store_host).ip), clock.wall)
        self._step_runner = step_runner
        self._long_batches = asyncio.Lock()
        """Held while a long batch is encoded, which takes several times its memory."""
        self._unknown: set[str] = set()
        """Topics that were just made, and that not every name server knows yet."""
        self._region = config.region_id
        self._trace_on = config.trace_on
        self._refusal_fields = region_fields(self._region, trace_on=self._trace_on)
        self._receipt_form = ReceiptForm(identity.raw_store_host, self._region, trace_on=self._trace_on)
        self._stamp = encode_properties(
            {REGION: self._region, TRACE_ON: "true" if self._trace_on else "false", CLUSTER: identity.cluster}
        )

    def send(self, request: Request, peer: Peer) -> Answer:
        """Take a message, or a batch."""
        sending = decode_send(request)
        config, topic = self._config, self._topics.get(sending.topic)
        try:
            if (
                topic is None
                or is_closed_to_senders(sending.topic)
                or not config.broker_permission & _WRITE
                or config.accept_sends_from_ms
            ):
                check_send(sending, topic, config, self._identity, self._clock)
            if topic is None or sending.topic in self._unknown:
                return self._say_more(self._create_and_take(sending, request, peer))
            return self._take(sending, topic, request, peer)
        except RefusedError as error:
            raise RefusedError(error.code, str(error), self._refusal_fields) from None

    async def _say_more(self, answer: Awaitable[Response]) -> Response:
        """Have a refusal that comes late say what any other does."""
        try:
            return await answer
        except RefusedError as error:
            raise RefusedError(error.code, str(error), self._refusal_fields) from None

    async def _create_and_take(self, sending: Sending, request: Request, peer: Peer) -> Response:
        """Create a topic for its first message; name servers know of it before the producer is answered."""
        topic = self._topics.get(sending.topic)
        if topic is None or sending.topic in self._unknown:  # else it has become known since we were asked
            topic = await self._create(sending)
        return await _answer_of(self._take(sending, topic, request, peer))

    async def _create(self, sending: Sending) -> TopicConfig:
        sys_flag = 0
        if sending.unit_mode:
            sys_flag = int(TopicFlag.UNIT_SUBSCRIPTION if is_retry_topic(sending.topic) else TopicFlag.UNIT)
        topic = self._topics.create_for_send(
            sending.topic, sending.default_topic, sending.default_topic_queues, sys_flag=sys_flag
        )
        if topic is None:
            raise RefusedError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{sending.topic}] not exist, apply first please! "
                "Create it with `skyroute admin updateTopic`, or set autoCreateTopicEnable=true.",
            )
        is_first = sending.topic not in self._unknown
        self._unknown.add(sending.topic)
        try:
            await self._make_known(topic)
        finally:
            self._unknown.discard(sending.topic)
        if is_first:
            self._propagation.begin(topic, sending.default_topic)
        return topic

    async def _make_known(self, topic: TopicConfig) -> None:
        try:
            await asyncio.gather(self._announce([topic]), self._topics.table_file.save())
        except StorageError as error:
            raise self._refusal(error) from error

    async def _answer_when_known(self, topic: TopicConfig, answer: Response | DeferredResponse) -> Response:
        await self._make_known(topic)
        return await wait_for_response(answer)

    def _take(
        self, sending: Sending, topic: TopicConfig, request: Request, peer: Peer
    ) -> Response | DeferredResponse | OrderedResponse | Awaitable[Response]:
        queue_id = sending.queue_id
        check_queue(queue_id, topic, peer)
        if queue_id < 0:
            queue_id = random.randrange(max(1, topic.write_queues))
        if sending.is_batch:
            return self._take_batch(sending, request.body, topic, queue_id, peer)
        return self._take_one(sending, topic, queue_id, request, peer)

    def _take_one(
        self, sending: Sending, topic: TopicConfig, queue_id: int, request: Request, peer: Peer
    ) -> Response | DeferredResponse | Awaitable[Response]:
        body = request.body
        raw, unique_id = self._stamped(sending.properties)
        if not body or len(body) > self._config.message_bytes_max or len(raw) > PROPERTIES_BYTES_MAX:
            raise self._illegal()
        draft = Draft(
            sending.topic,
            queue_id,
            body,
            raw,
            sending.born_at_ms,
            _pack_address(peer.address),
            self._identity.raw_store_host,
            sending.sys_flag | MULTI_TAGS if topic.filter_type == "MULTI_TAG" else sending.sys_flag,
            sending.flag,
            sending.reconsume_times,
        )
        if topic.attributes:
            self._check_attributes(topic, raw)
        if sending.sys_flag & INNER_BATCH or _INNER_COUNT_MARK in sending.properties:
            self._check_inner_batch(topic, sending.sys_flag, raw)
        made: TopicConfig | None = None
        if sending.topic.startswith(RETRY_PREFIX):
            edition = self._topics.version
            draft = redirect_retry(
                draft,
                groups=self._groups,
                topics=self._topics,
                max_reconsume_times=sending.max_reconsume_times,
                version=request.version,
                is_locked=partial(self._locks.holds_any, now=self._clock.monotonic()),
            )
            if self._topics.version != edition:
                made = self._topics.get(draft.topic)
        appender = self._appender
        handle: str | None = None
        try:
            if _TRANSACTION_MARK in sending.properties and _is_prepared(draft):
                self._check_transactions_allowed()
                scheduled = self._transactions.prepare(draft)
            else:
                scheduled = appender.schedule(draft)
                if scheduled.topic == TIMER_TOPIC:
                    handle = recall_handle(scheduled, self._identity.name)
            appended = appender.put_plain(scheduled)
        except (StorageError, RecordError) as error:
            raise self._refusal(error) from error
        if appender.waits_for_disk and _NO_WAIT_MARK not in raw:
            say = partial(self._receipt, request, appended, queue_id, unique_id, handle)
            answer: Response | DeferredResponse = self._answer_when_safe(appended.log_end, say)
        else:
            answer = self._receipt(request, appended, queue_id, unique_id, handle)
        return answer if made is None else self._say_more(self._answer_when_known(made, answer))

    def _receipt(
        self, request: Request, appended: Appended, queue_id: int, unique_id: bytes, handle: str | None, code: int = 0
    ) -> Response:
        """Say where a message was stored."""
        if request.form == FORM_JSON and handle is None and not code and unique_id.isalnum():
            return self._receipt_form.fill(appended.log_position, queue_id, appended.queue_offset, unique_id)
        receipt = SendReceipt(
            encode_offset_id(self._identity.raw_store_host, appended.log_position),
            queue_id,
            appended.queue_offset,
            unique_id.decode("utf-8", "replace"),
            self._region,
            self._trace_on,
            handle,
        )
        return encode_send_receipt(receipt, code)

    def _stamped(self, text: str) -> tuple[bytes, bytes]:
        """Return a message's properties with what a broker adds, and its unique id."""
        try:
            raw = text.encode()
        except UnicodeEncodeError:
            raise self._illegal() from None
        if "CLUSTER\x01" in text or "POP_CK\x01" in text or "TRACE_ON\x01" in text or "MSG_REGION\x01" in text:
            for name in _STAMPED:
                raw = delete_property(raw, name)
        if raw and not raw.endswith(b"\x02"):
            raw += b"\x02"
        found = find_value(raw, _UNIQUE_ID_START)
        if found is not None:
            return raw + self._stamp, found
        unique_id = self._ids.next().encode()
        return b"%bUNIQ_KEY\x01%b\x02%b" % (raw, unique_id, self._stamp), unique_id

    def _check_attributes(self, topic: TopicConfig, raw: bytes) -> None:
        if topic.attributes.get("cleanup.policy") == "COMPACTION" and not (find_property(raw, KEYS) or "").strip():
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, "Required message key is missing")

    def _check_inner_batch(self, topic: TopicConfig, sys_flag: int, raw: bytes) -> None:
        """Refuse what says that it is a batch in one record, and is none or may not be one here."""
        is_batch = bool(sys_flag & INNER_BATCH)
        if find_property(raw, INNER_COUNT) is not None and not is_batch:
            raise self._illegal()
        if is_batch and not self._topics.is_batch_topic(topic.name):
            raise self._illegal()

    def _check_transactions_allowed(self) -> None:
        if self._config.reject_transactions:
            where = self._identity.address.rpartition(":")[0]
            raise RefusedError(
                ResponseCode.NO_PERMISSION, f"the broker[{where}] sending transaction message is forbidden"
            )

    def _take_batch(
        self, sending: Sending, body: bytes, topic: TopicConfig, queue_id: int, peer: Peer
    ) -> Response | DeferredResponse | OrderedResponse:
        if len(topic.name) > TOPIC_CHARS_MAX:
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, f"message topic length too long {len(topic.name)}")
        if is_retry_topic(topic.name):
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {topic.name}")
        header, unique_id = self._stamped(sending.properties)
        if sending.sys_flag & TRANSACTION_MASK or (find_property(header, DELAY_LEVEL) or "0") != "0":
            raise self._illegal()
        if not body or len(body) > self._config.message_bytes_max:
            raise self._illegal()
        items, decoded_to = self._decode(body, 0)
        is_whole = self._topics.is_batch_topic(topic.name) and _has_unique_id(sending)
        draft = Draft(
            sending.topic,
            queue_id,
            body if is_whole else b"",
            header if is_whole else b"",
            sending.born_at_ms,
            _pack_address(peer.address),
            self._identity.raw_store_host,
            sending.sys_flag | MULTI_TAGS if topic.filter_type == "MULTI_TAG" else sending.sys_flag,
            sending.flag,
            sending.reconsume_times,
        )
        if decoded_to < len(body):
            storing = self._take_long_batch(draft, body, items, decoded_to, unique_id, is_whole=is_whole)
            return OrderedResponse(self._say_more(storing))
        try:
            if is_whole:
                whole = self._appender.put_inner_batch(draft, len(items))
                appended = AppendedBatch([whole.log_position], whole.queue_offset, whole.log_end)
            else:
                appended = self._appender.put_batch(draft, items)
        except (StorageError, RecordError) as error:
            raise self._refusal(error) from error
        ids = encode_offset_ids(self._identity.raw_store_host, appended.log_positions)
        return self._batch_receipt(ids, queue_id, appended.queue_offset, appended.log_end, unique_id, is_whole=is_whole)

    def _decode(self, body: bytes, start: int) -> tuple[list[RawItem], int]:
        """Decode up to `BATCH_MESSAGES_A_STEP` messages from a position; return them and the position behind them."""
        try:
            return decode_some(body, start, BATCH_MESSAGES_A_STEP)
        except BatchError as error:
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None

    def _batch_receipt(
        self, ids: str, queue_id: int, queue_offset: int, log_end: int, unique_id: bytes, *, is_whole: bool
    ) -> Response | DeferredResponse:
        sender_id = unique_id.decode("utf-8", "replace")
        receipt = SendReceipt(
            ids,
            queue_id,
            queue_offset,
            sender_id,
            self._region,
            self._trace_on,
            batch_unique_id=sender_id if is_whole else None,
        )
        if self._appender.waits_for_disk:
            return self._answer_when_safe(log_end, partial(encode_send_receipt, receipt))
        return encode_send_receipt(receipt)

    async def _take_long_batch(
        self, draft: Draft, body: bytes, items: list[RawItem], decoded_to: int, unique_id: bytes, *, is_whole: bool
    ) -> Response:
        """Store a batch of many messages. It is decoded and encoded in steps, and stored with one write."""
        try:
            async with self._long_batches:
                appended = await self._step_runner.run(
                    self._put_long(draft, body, items, decoded_to, is_whole=is_whole)
                )
        except (StorageError, RecordError) as error:
            raise self._refusal(error) from error
        ids = await self._step_runner.run(self._ids_of(appended))
        answer = self._batch_receipt(
            ids, draft.queue_id, appended.queue_offset, appended.log_end, unique_id, is_whole=is_whole
        )
        response = await wait_for_response(answer)
        await self._step_runner.run(self._derive())
        return response

    def _put_long(
        self, draft: Draft, body: bytes, items: list[RawItem], decoded_to: int, *, is_whole: bool
    ) -> Generator[None, None, AppendedBatch]:
        batch = None if is_whole else self._appender.prepare_batch(draft)
        messages = 0
        while True:
            messages += len(items)
            if batch is not None:
                batch.add(items)
            yield
            if decoded_to >= len(body):
                break
            items, decoded_to = self._decode(body, decoded_to)
        self._check_exists(draft.topic)
        if batch is not None:
            return self._appender.put_prepared(batch)
        whole = self._appender.put_inner_batch(draft, messages)
        return AppendedBatch([whole.log_position], whole.queue_offset, whole.log_end)

    def _ids_of(self, appended: AppendedBatch) -> Generator[None, None, str]:
        parts: list[str] = []
        for start in range(0, len(appended.log_positions), BATCH_IDS_A_STEP):
            yield
            positions = appended.log_positions[start : start + BATCH_IDS_A_STEP]
            parts.append(encode_offset_ids(self._identity.raw_store_host, positions))
        return ",".join(parts)

    def _derive(self) -> Generator[None, None, None]:
        while self._appender.dispatch_step():
            yield

    def _check_exists(self, topic: str) -> None:
        """Refuse a message whose topic was deleted while the message waited."""
        if self._topics.get(topic) is None:
            raise RefusedError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] was deleted before the message was stored"
            )

    def _answer_when_safe(self, log_end: int, say: Callable[[int], Response]) -> DeferredResponse:
        """Answer once the disk has the message; `say` is told the code that goes with what came of it."""
        answer = DeferredResponse()

        def settle(outcome: Flushed) -> None:
            if outcome is Flushed.FAILED:
                answer.give(self._not_available())
            else:
                answer.give(say(ResponseCode.FLUSH_DISK_TIMEOUT if outcome is Flushed.LATE else 0))

        self._appender.when_flushed(log_end, settle)
        return answer

    def _illegal(self) -> RefusedError:
        return RefusedError(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched. "
            f"msg body length limit {self._config.message_bytes_max}B, msg properties length limit 32KB.",
        )

    def _not_available(self) -> Response:
        reason = _NOT_AVAILABLE % self._appender.disk_used()
        return Response(ResponseCode.SERVICE_NOT_AVAILABLE, reason, dict(self._refusal_fields))

    def _refusal(self, error: Exception) -> RefusedError:
        """Say in the protocol's words why nothing was stored."""
        if isinstance(error, DiskFullError | StoreClosedError):
            return RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, _NOT_AVAILABLE % self._appender.disk_used())
        if isinstance(error, RecordTooLargeError | RecordError):
            return self._illegal()
        return RefusedError(ResponseCode.SYSTEM_ERROR, f"create mapped file failed, server is busy or broken. {error}")


async def _answer_of(answer: Response | DeferredResponse | OrderedResponse | Awaitable[Response]) -> Response:
    if isinstance(answer, Response | DeferredResponse):
        return await wait_for_response(answer)
    return await (answer.work if isinstance(answer, OrderedResponse) else answer)


def check_send(
    sending: Sending, topic: TopicConfig | None, config: BrokerConfig, identity: Identity, clock: Clock
) -> None:
    """Let pass what may be sent to, whether the topic is there or not.

    Raises:
        RefusedError: it may not.
    """
    opens_at_ms = config.accept_sends_from_ms
    if clock.wall() * 1000 < opens_at_ms:
        raise RefusedError(
            ResponseCode.SYSTEM_ERROR,
            f"broker unable to service, until {opens_at_ms} ms of system time (startAcceptSendRequestTimeStamp)",
        )
    if not config.broker_permission & _WRITE and topic is not None and topic.ordered:
        where = identity.address.rpartition(":")[0]
        raise RefusedError(ResponseCode.NO_PERMISSION, f"the broker[{where}] sending message is forbidden")
    try:
        check_topic(sending.topic)
    except InvalidNameError as error:
        raise RefusedError(ResponseCode.INVALID_PARAMETER, str(error)) from None
    if is_closed_to_senders(sending.topic):
        raise RefusedError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{sending.topic}] is forbidden.")


def check_queue(queue_id: int, topic: TopicConfig, peer: Peer) -> None:
    """Let pass a queue that a topic has, and the wish that the broker choose one.

    Raises:
        RefusedError: there is no such queue.
    """
    if queue_id >= topic.write_queues and queue_id >= topic.read_queues:
        raise RefusedError(
            ResponseCode.INVALID_PARAMETER,
            f"request queueId[{queue_id}] is illegal, {topic.name} has {topic.write_queues} to write and "
            f"{topic.read_queues} to read Producer: {peer.address}",
        )


@lru_cache(maxsize=PACKED_ADDRESSES_MAX)
def _pack_address(address: str) -> bytes:
    """Return a peer's address as records hold it."""
    ip, _, port = address.rpartition(":")
    try:
        return encode_host(ip.strip("[]"), int(port))
    except (HostError, ValueError):  # a proxy may send any address
        return encode_host("0.0.0.0", 0)


def _has_unique_id(sending: Sending) -> bool:
    return find_property(sending.properties.encode(), UNIQUE_ID) is not None


def _is_prepared(draft: Draft) -> bool:
    """Return whether a message waits for the end of a transaction. One that is tried again after a while does not."""
    if (find_property(draft.raw_properties, TRANSACTION_PREPARED) or "").lower() != "true":
        return False
    level = find_property(draft.raw_properties, DELAY_LEVEL) or "0"
    return not (draft.reconsume_times > 0 and level.isdecimal() and int(level) > 0)
