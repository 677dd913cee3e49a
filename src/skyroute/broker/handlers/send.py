"""Sends of producers: checks, automatic creation of topics, and the store of single messages."""

import asyncio
import random
from collections.abc import Awaitable
from functools import lru_cache, partial
from typing import Final

from skyroute.broker.appender import Appender
from skyroute.broker.clients.queue_locks import QueueLocks
from skyroute.broker.cluster.topic_propagation import TopicPropagation
from skyroute.broker.config import BrokerConfig
from skyroute.broker.handlers.send_back import redirect_retry
from skyroute.broker.handlers.send_batch import BatchSends
from skyroute.broker.handlers.send_responses import SendResponses
from skyroute.broker.identity import Identity
from skyroute.broker.scheduling.timers import recall_handle
from skyroute.broker.store.draft import Draft
from skyroute.broker.store.index.keys import find_value
from skyroute.broker.tables.consumer_groups import Groups
from skyroute.broker.tables.topics import Announce, Topics
from skyroute.broker.transactions import Transactions
from skyroute.clock import Clock
from skyroute.files.errors import StorageError
from skyroute.message.errors import HostError, InvalidNameError, RecordError
from skyroute.message.flags import INNER_BATCH, MULTI_TAGS
from skyroute.message.host import decode_host, encode_host
from skyroute.message.message_ids import MessageIds
from skyroute.message.names import check_topic
from skyroute.message.properties import PROPERTIES_BYTES_MAX, delete_property, encode_properties, find_property
from skyroute.message.property_names import (
    CLUSTER,
    DELAY_LEVEL,
    INNER_COUNT,
    KEYS,
    POP_RECEIPT,
    PRIORITY,
    REGION,
    SHARDING_KEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRACE_ON,
    TRANSACTION_PREPARED,
    UNIQUE_ID,
)
from skyroute.message.reserved_topics import CLOSED_TO_SENDERS, RETRY_PREFIX, TIMER_TOPIC, is_retry_topic
from skyroute.remoting.dispatch import Answer, DeferredResponse, OrderedResponse, Peer, wait_for_response
from skyroute.remoting.errors import RefusedError
from skyroute.remoting.stepwise import StepRunner
from skyroute.routing.topology import Permission, TopicFlag
from skyroute.wire.calls.send import Sending, decode_send
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response

PACKED_ADDRESSES_MAX: Final = 16_384
"""Maximum number of cached producer addresses."""

_BROKER_PROPERTIES: Final = (REGION, TRACE_ON, CLUSTER, POP_RECEIPT)
"""Properties that only the broker sets. A message forwarded from another cluster may contain them."""
_UNIQUE_ID_START: Final = f"{UNIQUE_ID}\x01".encode()
_WRITE: Final = int(Permission.WRITE)
_TRANSACTION_MARK: Final = f"{TRANSACTION_PREPARED}\x01"
_INNER_COUNT_MARK: Final = f"{INNER_COUNT}\x01"
_PRIORITY_MARK: Final = f"{PRIORITY}\x01"
"""Starts of properties of special messages. A search in the text takes a sixth of the time of `find_property`."""
_NOT_PRIORITIZED: Final = (DELAY_LEVEL, TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS, SHARDING_KEY)
_NO_WAIT_MARK: Final = b"WAIT\x01false\x02"


class SendHandlers:
    """Handles sends of single messages and of batches."""

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
        self._responses = SendResponses(appender, config, identity)
        self._batches = BatchSends(appender, topics, config, identity, self._responses, step_runner)
        self._announcing: set[str] = set()
        """Created topics that are not yet registered at the name servers."""
        self._broker_properties = encode_properties(
            {REGION: config.region_id, TRACE_ON: "true" if config.trace_on else "false", CLUSTER: identity.cluster}
        )

    def send(self, request: Request, peer: Peer) -> Answer:
        """Store a message or a batch; respond with a receipt."""
        sending = decode_send(request)
        config, topic = self._config, self._topics.get(sending.topic)
        try:
            if (
                topic is None
                or sending.topic in CLOSED_TO_SENDERS
                or not config.broker_permission & _WRITE
                or config.accept_sends_from_ms
            ):
                check_send(sending, topic, config, self._identity, self._clock)
            if self._appender.check_replicas is not None:
                self._appender.check_replicas()
            if topic is None or sending.topic in self._announcing:
                return self._responses.with_fields(self._create_topic_and_store(sending, request, peer))
            return self._store(sending, topic, request, peer)
        except RefusedError as error:
            raise RefusedError(error.code, str(error), self._responses.fields) from None

    async def _create_topic_and_store(self, sending: Sending, request: Request, peer: Peer) -> Response:
        """Create the topic of a first message, and announce it to the name servers before the response."""
        topic = self._topics.get(sending.topic)
        if topic is None or sending.topic in self._announcing:  # else it was announced in the meantime
            topic = await self._create_topic(sending)
        return await _wait_for(self._store(sending, topic, request, peer))

    async def _create_topic(self, sending: Sending) -> TopicConfig:
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
        is_first = sending.topic not in self._announcing
        self._announcing.add(sending.topic)
        try:
            await self._save_and_announce(topic)
        finally:
            self._announcing.discard(sending.topic)
        if is_first:
            self._propagation.begin(topic, sending.default_topic)
        return topic

    async def _save_and_announce(self, topic: TopicConfig) -> None:
        try:
            await asyncio.gather(self._announce([topic]), self._topics.table_file.save())
        except StorageError as error:
            raise self._responses.store_failure(error) from error

    async def _respond_when_announced(self, topic: TopicConfig, response: Response | DeferredResponse) -> Response:
        await self._save_and_announce(topic)
        return await wait_for_response(response)

    def _store(
        self, sending: Sending, topic: TopicConfig, request: Request, peer: Peer
    ) -> Response | DeferredResponse | OrderedResponse | Awaitable[Response]:
        queue_id = sending.queue_id
        if queue_id >= topic.write_queues:
            check_queue(queue_id, topic, peer)
        if queue_id < 0:
            queue_id = random.randrange(max(1, topic.write_queues))
        raw_born_host = _pack_address(peer.address)
        raw_properties, unique_id = self._complete_properties(sending.properties)
        if sending.is_batch:
            return self._batches.store(sending, request.body, topic, queue_id, raw_born_host, raw_properties, unique_id)
        if _PRIORITY_MARK in sending.properties:
            queue_id, raw_properties = _prioritized(queue_id, raw_properties, topic)
        return self._store_one(sending, topic, queue_id, raw_born_host, raw_properties, unique_id, request)

    def _store_one(
        self,
        sending: Sending,
        topic: TopicConfig,
        queue_id: int,
        raw_born_host: bytes,
        raw_properties: bytes,
        unique_id: bytes,
        request: Request,
    ) -> Response | DeferredResponse | Awaitable[Response]:
        body = request.body
        if not body or len(body) > self._config.message_bytes_max or len(raw_properties) > PROPERTIES_BYTES_MAX:
            raise self._responses.illegal()
        draft = Draft(
            sending.topic,
            queue_id,
            body,
            raw_properties,
            sending.born_at_ms,
            raw_born_host,
            self._identity.raw_store_host,
            sending.sys_flag | MULTI_TAGS if topic.filter_type == "MULTI_TAG" else sending.sys_flag,
            sending.flag,
            sending.reconsume_times,
        )
        if topic.attributes:
            self._check_attributes(topic, raw_properties)
        if sending.sys_flag & INNER_BATCH or _INNER_COUNT_MARK in sending.properties:
            self._check_inner_batch(topic, sending.sys_flag, raw_properties)
        created: TopicConfig | None = None
        if sending.topic.startswith(RETRY_PREFIX):
            version_before = self._topics.version
            draft = redirect_retry(
                draft,
                groups=self._groups,
                topics=self._topics,
                max_reconsume_times=sending.max_reconsume_times,
                version=request.version,
                is_locked=partial(self._locks.holds_any, now=self._clock.monotonic()),
            )
            if self._topics.version != version_before:
                created = self._topics.get(draft.topic)
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
            raise self._responses.store_failure(error) from error
        response: Response | DeferredResponse
        response = receipt = self._responses.receipt(request.form, appended, queue_id, unique_id, handle)
        if appender.may_wait and _NO_WAIT_MARK not in raw_properties:
            response = self._responses.when_durable(appended.log_end, receipt)
        if created is None:
            return response
        return self._responses.with_fields(self._respond_when_announced(created, response))

    def _complete_properties(self, text: str) -> tuple[bytes, bytes]:
        """Return a message's properties with those of the broker, and its unique id."""
        try:
            raw = text.encode()
        except UnicodeEncodeError:
            raise self._responses.illegal() from None
        if "CLUSTER\x01" in text or "POP_CK\x01" in text or "TRACE_ON\x01" in text or "MSG_REGION\x01" in text:
            for name in _BROKER_PROPERTIES:
                raw = delete_property(raw, name)
        if raw and not raw.endswith(b"\x02"):
            raw += b"\x02"
        found = find_value(raw, _UNIQUE_ID_START)
        if found is not None:
            return raw + self._broker_properties, found
        unique_id = self._ids.next().encode()
        return b"%bUNIQ_KEY\x01%b\x02%b" % (raw, unique_id, self._broker_properties), unique_id

    def _check_attributes(self, topic: TopicConfig, raw: bytes) -> None:
        if topic.attributes.get("cleanup.policy") == "COMPACTION" and not (find_property(raw, KEYS) or "").strip():
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, "Required message key is missing")

    def _check_inner_batch(self, topic: TopicConfig, sys_flag: int, raw: bytes) -> None:
        """Refuse an inner batch outside batch topics, and a message with only half of its marks."""
        is_batch = bool(sys_flag & INNER_BATCH)
        if find_property(raw, INNER_COUNT) is not None and not is_batch:
            raise self._responses.illegal()
        if is_batch and not self._topics.is_batch_topic(topic.name):
            raise self._responses.illegal()

    def _check_transactions_allowed(self) -> None:
        if self._config.reject_transactions:
            where = self._identity.address.rpartition(":")[0]
            raise RefusedError(
                ResponseCode.NO_PERMISSION, f"the broker[{where}] sending transaction message is forbidden"
            )


async def _wait_for(response: Response | DeferredResponse | OrderedResponse | Awaitable[Response]) -> Response:
    if isinstance(response, Response | DeferredResponse):
        return await wait_for_response(response)
    return await (response.work if isinstance(response, OrderedResponse) else response)


def check_send(
    sending: Sending, topic: TopicConfig | None, config: BrokerConfig, identity: Identity, clock: Clock
) -> None:
    """Check whether a producer may send to a topic, which need not exist.

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
    if sending.topic in CLOSED_TO_SENDERS:
        raise RefusedError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{sending.topic}] is forbidden.")


def check_queue(queue_id: int, topic: TopicConfig, peer: Peer) -> None:
    """Check that a topic has a queue; a negative id lets the broker choose.

    Raises:
        RefusedError: the topic has no such queue.
    """
    if queue_id >= topic.write_queues and queue_id >= topic.read_queues:
        raise RefusedError(
            ResponseCode.INVALID_PARAMETER,
            f"request queueId[{queue_id}] is illegal, {topic.name} has {topic.write_queues} to write and "
            f"{topic.read_queues} to read Producer: {peer.address}",
        )


@lru_cache(maxsize=PACKED_ADDRESSES_MAX)
def _pack_address(address: str) -> bytes:
    """Return a client's address in the form of records."""
    ip, _, port = address.rpartition(":")
    try:
        return encode_host(ip.strip("[]"), int(port))
    except (HostError, ValueError):  # a proxy may send any address
        return encode_host("0.0.0.0", 0)


def _prioritized(queue_id: int, raw_properties: bytes, topic: TopicConfig) -> tuple[int, bytes]:
    """Return queue and properties of a message with a priority: it is the number of the queue.

    Transactions, delayed and ordered messages have none; as with Apache's brokers, it is removed.
    """
    text = (find_property(raw_properties, PRIORITY) or "").removeprefix("+")
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < 1 << 31):
        return queue_id, raw_properties
    is_transaction = (find_property(raw_properties, TRANSACTION_PREPARED) or "").lower() == "true"
    if is_transaction or any(find_property(raw_properties, name) is not None for name in _NOT_PRIORITIZED):
        return queue_id, delete_property(raw_properties, PRIORITY)
    return min(int(text), topic.write_queues - 1), raw_properties


def _is_prepared(draft: Draft) -> bool:
    """Return whether a message is a half message; a delayed retry is not."""
    if (find_property(draft.raw_properties, TRANSACTION_PREPARED) or "").lower() != "true":
        return False
    level = find_property(draft.raw_properties, DELAY_LEVEL) or "0"
    return not (draft.reconsume_times > 0 and level.isdecimal() and int(level) > 0)
