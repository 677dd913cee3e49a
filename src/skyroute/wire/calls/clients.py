"""What clients say to brokers about themselves, and what brokers ask of the clients they know.

Groups and their members, locks on queues, and what a running consumer can be asked to tell, to move or to try.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from typing import Annotated, Any, Final, TypeVar

import msgspec

from skyroute.message.queue_ref import QueueRef
from skyroute.wire import fastjson
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Int32, Int64, Request, Response
from skyroute.wire.errors import BodyError
from skyroute.wire.fastjson import Dialect, JsonError
from skyroute.wire.fields import is_name, optional_int, optional_name, required_name, truth
from skyroute.wire.queue_maps import (
    QueueBody,
    by_queue,
    decode_with_queue_keys,
    encode_queue_map,
    queue_members,
    write_legacy,
    write_queue_map,
)

GROUPS_MAX: Final = 10_000
"""The most groups of each kind that one heartbeat may bring."""
SUBSCRIPTIONS_MAX: Final = 10_000
"""The most topics that one group may subscribe to."""
TAGS_MAX: Final = 10_000
"""The most tags that one subscription may name."""
LOCKED_QUEUES_MAX: Final = 100_000
"""The most queues that one request may lock."""
MEMBERS_MAX: Final = 100_000
"""The most members that a group may be said to have."""

_INT64_MAX: Final = (1 << 63) - 1
T = TypeVar("T")
E = TypeVar("E", bound=Enum)


class ConsumeType(StrEnum):
    """Who decides when messages move."""

    PULL = "CONSUME_ACTIVELY"
    PUSH = "CONSUME_PASSIVELY"
    POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Whether every member of a group gets every message, or they share them out.

    >>> consumer = Consumer("screens", model=MessageModel.BROADCASTING)
    """

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class StartFrom(StrEnum):
    """Where a group that has not read a queue before begins in it."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    # The next three are of old clients only, and mean the first.
    LAST_OFFSET_OR_MIN_AT_FIRST_BOOT = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class Subscription(msgspec.Struct, frozen=True, gc=False):
    """What a group wants of one topic."""

    topic: str
    expression: str = "*"
    expression_type: str = "TAG"
    version: int = 0
    """When it was made, in milliseconds (Go: nanoseconds): a broker keeps the newest."""
    tags: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()


class ConsumerData(msgspec.Struct, frozen=True, gc=False):
    """What a heartbeat says of one consumer group."""

    group: str
    consume_type: ConsumeType
    model: MessageModel
    start_from: StartFrom
    subscriptions: tuple[Subscription, ...] = ()
    unit_mode: bool = False


class Heartbeat(msgspec.Struct, frozen=True):
    """A client's word that it lives, and which groups it is in."""

    client_id: str
    producer_groups: tuple[str, ...] = ()
    consumers: tuple[ConsumerData, ...] = ()
    fingerprint: int = 0
    """What the client takes its subscriptions to be; 0 where it does not compare."""
    without_subscriptions: bool = False
    """The broker has said that it knows them, so they are left out, and are not to be forgotten."""


class SubscriptionBody(msgspec.Struct):
    """A subscription as it lies on the wire."""

    topic: str
    subString: str | None = None  # noqa: N815 - the wire's name
    expressionType: str | None = None  # noqa: N815 - the wire's name
    subVersion: Int64 = 0  # noqa: N815 - the wire's name
    tagsSet: Annotated[list[str], msgspec.Meta(max_length=TAGS_MAX)] | None = None  # noqa: N815 - the wire's name
    codeSet: Annotated[list[Int32], msgspec.Meta(max_length=TAGS_MAX)] | None = None  # noqa: N815 - the wire's name

    def value(self) -> Subscription:
        """Return the subscription.

        Raises:
            BodyError: its topic is no name.
        """
        return Subscription(
            topic=_name("topic", self.topic),
            expression=self.subString or "*",
            expression_type=self.expressionType or "TAG",
            version=self.subVersion,
            tags=tuple(self.tagsSet or ()),
            codes=tuple(self.codeSet or ()),
        )


def subscription_members(subscription: Subscription) -> dict[str, object]:
    """Return what a subscription looks like on the wire."""
    return {
        "classFilterMode": False,
        "codeSet": subscription.codes,
        "expressionType": subscription.expression_type,
        "subString": subscription.expression,
        "subVersion": subscription.version,
        "tagsSet": subscription.tags,
        "topic": subscription.topic,
    }


class _ProducerBody(msgspec.Struct):
    groupName: str  # noqa: N815 - the wire's name


class _ConsumerBody(msgspec.Struct):
    groupName: str  # noqa: N815 - the wire's name
    # C++ sends the place of a word in its list, as Java's reader allows.
    consumeType: str | int | None = None  # noqa: N815 - the wire's name
    messageModel: str | int | None = None  # noqa: N815 - the wire's name
    consumeFromWhere: str | int | None = None  # noqa: N815 - the wire's name
    subscriptionDataSet: (  # noqa: N815 - the wire's name
        Annotated[list[SubscriptionBody], msgspec.Meta(max_length=SUBSCRIPTIONS_MAX)] | None
    ) = None
    unitMode: bool | None = None  # noqa: N815 - the wire's name

    def value(self) -> ConsumerData:
        return ConsumerData(
            group=_name("groupName", self.groupName),
            consume_type=_word(self.consumeType, ConsumeType.PUSH),
            model=_word(self.messageModel, MessageModel.CLUSTERING),
            start_from=_word(self.consumeFromWhere, StartFrom.LAST_OFFSET),
            subscriptions=tuple(body.value() for body in self.subscriptionDataSet or ()),
            unit_mode=bool(self.unitMode),
        )


class _HeartbeatBody(msgspec.Struct):
    clientID: str  # noqa: N815 - the wire's name
    producerDataSet: (  # noqa: N815 - the wire's name
        Annotated[list[_ProducerBody], msgspec.Meta(max_length=GROUPS_MAX)] | None
    ) = None
    consumerDataSet: (  # noqa: N815 - the wire's name
        Annotated[list[_ConsumerBody], msgspec.Meta(max_length=GROUPS_MAX)] | None
    ) = None
    heartbeatFingerprint: Int32 = 0  # noqa: N815 - the wire's name
    withoutSub: bool = False  # noqa: N815 - the wire's name


def encode_heartbeat(
    client_id: str,
    producer_groups: Iterable[str],
    consumers: Iterable[ConsumerData],
    *,
    fingerprint: int = 0,
    without_subscriptions: bool = False,
) -> Request:
    """Say that a client lives, and which groups it is in. What is said of a group replaces all that was said before."""
    members = {
        "clientID": client_id,
        "consumerDataSet": [_consumer_members(consumer) for consumer in consumers],
        "heartbeatFingerprint": fingerprint,
        "producerDataSet": [{"groupName": group} for group in producer_groups],
        "withoutSub": without_subscriptions,
    }
    return Request(RequestCode.HEART_BEAT, body=_dumps(members))


def _consumer_members(consumer: ConsumerData) -> dict[str, object]:
    return {
        "consumeFromWhere": consumer.start_from,
        "consumeType": consumer.consume_type,
        "groupName": consumer.group,
        "messageModel": consumer.model,
        "subscriptionDataSet": [subscription_members(subscription) for subscription in consumer.subscriptions],
        "unitMode": consumer.unit_mode,
    }


def decode_heartbeat(request: Request) -> Heartbeat:
    """Read a heartbeat of Java's, of Go's or of C++'s.

    Raises:
        BodyError: it cannot be read.
    """
    body = _decode_body(request.body, _HeartbeatBody, "a heartbeat")
    return Heartbeat(
        client_id=_name("clientID", body.clientID),
        producer_groups=tuple(_name("groupName", producer.groupName) for producer in body.producerDataSet or ()),
        consumers=tuple(consumer.value() for consumer in body.consumerDataSet or ()),
        fingerprint=body.heartbeatFingerprint,
        without_subscriptions=body.withoutSub,
    )


def encode_heartbeat_answer() -> Response:
    """Thank for a heartbeat: the next one shall be whole again, because subscriptions are not compared."""
    return Response(fields={"IS_SUPPORT_HEART_BEAT_V2": "false", "IS_SUB_CHANGE": "true"})


class Unregistration(msgspec.Struct, frozen=True, gc=False):
    """A client's word that it leaves a group."""

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None


def encode_unregistration(
    client_id: str, *, producer_group: str | None = None, consumer_group: str | None = None
) -> Request:
    """Say that a client leaves a group."""
    fields = {"clientID": client_id}
    if producer_group is not None:
        fields["producerGroup"] = producer_group
    if consumer_group is not None:
        fields["consumerGroup"] = consumer_group
    return Request(RequestCode.UNREGISTER_CLIENT, fields)


def decode_unregistration(request: Request) -> Unregistration:
    """Read that a client leaves a group.

    Raises:
        FieldError: it does not say which client, or a name is none.
    """
    fields = request.fields
    return Unregistration(
        required_name(fields, "clientID"),
        optional_name(fields, "producerGroup"),
        optional_name(fields, "consumerGroup"),
    )


def encode_member_query(group: str) -> Request:
    """Ask for the client ids of a group's members."""
    return Request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})


def encode_members_changed(group: str) -> Request:
    """Tell a client that a group has other members than before. Sent one way: nobody answers."""
    return Request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})


def decode_consumer_group(request: Request) -> str:
    """Read which group is meant by a question for its members, or by the news that they changed.

    Raises:
        FieldError: none is.
    """
    return required_name(request.fields, "consumerGroup")


class _MembersBody(msgspec.Struct):
    consumerIdList: (  # noqa: N815 - the wire's name
        Annotated[list[str], msgspec.Meta(max_length=MEMBERS_MAX)] | None
    ) = None


def encode_members(client_ids: Iterable[str]) -> bytes:
    """Write the client ids of a group's members."""
    return _dumps({"consumerIdList": list(client_ids)})


def decode_members(body: bytes) -> list[str]:
    """Read the client ids of a group's members, in no order.

    Raises:
        BodyError: they cannot be read.
    """
    return _decode_body(body, _MembersBody, "a list of members").consumerIdList or []


class QueueLocking(msgspec.Struct, frozen=True):
    """Which queues a client wants for itself alone, or gives back."""

    client_id: str
    group: str
    queues: tuple[QueueRef, ...]
    only_this_broker: bool = False
    """Other brokers of the group are not to be asked."""


_QueueBodies = Annotated[list[QueueBody], msgspec.Meta(max_length=LOCKED_QUEUES_MAX)]


class _LockBody(msgspec.Struct):
    clientId: str  # noqa: N815 - the wire's name
    consumerGroup: str  # noqa: N815 - the wire's name
    mqSet: _QueueBodies | None = None  # noqa: N815 - the wire's name
    onlyThisBroker: bool = False  # noqa: N815 - the wire's name


class _LockedBody(msgspec.Struct):
    lockOKMQSet: _QueueBodies | None = None  # noqa: N815 - the wire's name


def encode_lock(client_id: str, group: str, queues: Iterable[QueueRef]) -> Request:
    """Ask for queues to be this client's alone; the answer says which are."""
    return Request(RequestCode.LOCK_BATCH_MQ, body=_write_lock(client_id, group, queues))


def encode_unlock(client_id: str, group: str, queues: Iterable[QueueRef]) -> Request:
    """Give queues back."""
    return Request(RequestCode.UNLOCK_BATCH_MQ, body=_write_lock(client_id, group, queues))


def _write_lock(client_id: str, group: str, queues: Iterable[QueueRef]) -> bytes:
    members = {"clientId": client_id, "consumerGroup": group, "mqSet": [queue_members(queue) for queue in queues]}
    return _dumps({**members, "onlyThisBroker": False})


def decode_locking(request: Request) -> QueueLocking:
    """Read which queues a client wants, or gives back.

    Raises:
        BodyError: they cannot be read.
    """
    body = _decode_body(request.body, _LockBody, "queues to lock")
    return QueueLocking(
        _name("clientId", body.clientId),
        _name("consumerGroup", body.consumerGroup),
        tuple(queue.value() for queue in body.mqSet or ()),
        body.onlyThisBroker,
    )


def encode_locked(queues: Iterable[QueueRef]) -> bytes:
    """Write which queues are now the asker's alone."""
    return _dumps({"lockOKMQSet": [queue_members(queue) for queue in queues]})


def decode_locked(body: bytes) -> frozenset[QueueRef]:
    """Read which queues are now this client's alone.

    Raises:
        BodyError: they cannot be read.
    """
    decoded = _decode_body(body, _LockedBody, "locked queues")
    return frozenset(queue.value() for queue in decoded.lockOKMQSet or ())


class ClientCheck(msgspec.Struct, frozen=True):
    """A client's question whether a broker can filter as it wants."""

    client_id: str
    group: str
    subscription: Subscription
    namespace: str | None = None


class _ClientCheckBody(msgspec.Struct):
    clientId: str  # noqa: N815 - the wire's name
    group: str
    subscriptionData: SubscriptionBody  # noqa: N815 - the wire's name
    namespace: str | None = None


def encode_client_check(
    client_id: str, group: str, subscription: Subscription, namespace: str | None = None
) -> Request:
    """Ask whether a broker can filter as a subscription wants; a refusal's remark says why not."""
    members = {
        "clientId": client_id,
        "group": group,
        "namespace": namespace,
        "subscriptionData": subscription_members(subscription),
    }
    return Request(RequestCode.CHECK_CLIENT_CONFIG, body=_dumps(members))


def decode_client_check(request: Request) -> ClientCheck:
    """Read the question whether this broker can filter as a client wants.

    Raises:
        BodyError: it cannot be read.
    """
    body = _decode_body(request.body, _ClientCheckBody, "a subscription to check")
    return ClientCheck(
        _name("clientId", body.clientId), _name("group", body.group), body.subscriptionData.value(), body.namespace
    )


class HeldQueue(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={
        "cached_count": "cachedMsgCount",
        "cached_max_offset": "cachedMsgMaxOffset",
        "cached_min_offset": "cachedMsgMinOffset",
        "cached_mib": "cachedMsgSizeInMiB",
        "commit_offset": "commitOffset",
        "dropped": "droped",
        "last_consume_ms": "lastConsumeTimestamp",
        "last_lock_ms": "lastLockTimestamp",
        "last_pull_ms": "lastPullTimestamp",
        "handled_count": "transactionMsgCount",
        "handled_max_offset": "transactionMsgMaxOffset",
        "handled_min_offset": "transactionMsgMinOffset",
        "try_unlock_times": "tryUnlockTimes",
    },
):
    """What a consumer tells of a queue that it holds."""

    cached_count: Int64 = 0
    """Messages that it has and has not finished."""
    cached_max_offset: Int64 = 0
    cached_min_offset: Int64 = 0
    cached_mib: Int64 = 0
    commit_offset: Int64 = 0
    dropped: bool = False
    last_consume_ms: Int64 = 0
    last_lock_ms: Int64 = 0
    last_pull_ms: Int64 = 0
    locked: bool = False
    handled_count: Int64 = 0
    """Messages of an ordered queue that a handler has just now."""
    handled_max_offset: Int64 = 0
    handled_min_offset: Int64 = 0
    try_unlock_times: Int64 = 0


class ConsumePace(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={
        "failed_an_hour": "consumeFailedMsgs",
        "failed_a_second": "consumeFailedTPS",
        "consumed_a_second": "consumeOKTPS",
        "consume_ms": "consumeRT",
        "pull_ms": "pullRT",
        "pulled_a_second": "pullTPS",
    },
):
    """How fast a consumer says it is with one topic: averages, and how many messages failed in the last hour."""

    failed_an_hour: Int64 = 0
    failed_a_second: float = 0.0
    consumed_a_second: float = 0.0
    consume_ms: float = 0.0
    pull_ms: float = 0.0
    pulled_a_second: float = 0.0


class RunningConsumer(msgspec.Struct, frozen=True):
    """What a running consumer tells of itself."""

    properties: Mapping[str, str] = {}
    subscriptions: tuple[Subscription, ...] = ()
    queues: Mapping[QueueRef, HeldQueue] = {}
    paces: Mapping[str, ConsumePace] = {}
    """By topic."""
    notes: Mapping[str, str] = {}
    """Whatever the application has to add."""
    stacks: str | None = None
    """What its threads do, if that was asked for."""


# The properties that mqadmin shows, and fails without.
PROPERTY_NAME_SERVERS: Final = "PROP_NAMESERVER_ADDR"
PROPERTY_THREADS: Final = "PROP_THREADPOOL_CORE_SIZE"
PROPERTY_ORDERED: Final = "PROP_CONSUMEORDERLY"
PROPERTY_CONSUME_TYPE: Final = "PROP_CONSUME_TYPE"
PROPERTY_CLIENT_VERSION: Final = "PROP_CLIENT_VERSION"
PROPERTY_STARTED_MS: Final = "PROP_CONSUMER_START_TIMESTAMP"


class _RunningBody(msgspec.Struct):
    # Java's properties may hold other things than text.
    properties: dict[str, Any] | None = None
    subscriptionSet: list[SubscriptionBody] | None = None  # noqa: N815 - the wire's name
    mqTable: dict[str, HeldQueue] | None = None  # noqa: N815 - the wire's name
    statusTable: dict[str, ConsumePace] | None = None  # noqa: N815 - the wire's name
    userConsumerInfo: dict[str, str] | None = None  # noqa: N815 - the wire's name
    jstack: str | None = None


class RunningQuery(msgspec.Struct, frozen=True, gc=False):
    """Which running consumer is to tell of itself, and whether of its threads too."""

    group: str
    client_id: str
    with_stacks: bool = False


def encode_running_query(query: RunningQuery) -> Request:
    """Ask a consumer, or the broker it is connected to, what it is doing."""
    fields = {
        "consumerGroup": query.group,
        "clientId": query.client_id,
        "jstackEnable": "true" if query.with_stacks else "false",
    }
    return Request(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)


def decode_running_query(request: Request) -> RunningQuery:
    """Read which running consumer is meant.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    return RunningQuery(
        required_name(fields, "consumerGroup"), required_name(fields, "clientId"), truth(fields, "jstackEnable")
    )


def encode_running_consumer(consumer: RunningConsumer) -> bytes:
    """Write what a consumer tells of itself."""
    subscriptions = write_legacy([subscription_members(subscription) for subscription in consumer.subscriptions])
    paces = ",".join(f"{write_legacy(topic)}:{_write_numbers(pace)}" for topic, pace in consumer.paces.items())
    stacks = f'"jstack":{write_legacy(consumer.stacks)},' if consumer.stacks is not None else ""
    text = (
        f'{{{stacks}"mqPopTable":{{}},"mqTable":{write_queue_map(consumer.queues, _write_numbers)},'
        f'"properties":{write_legacy(consumer.properties)},"statusTable":{{{paces}}},'
        f'"subscriptionSet":{subscriptions},"userConsumerInfo":{write_legacy(consumer.notes)}}}'
    )
    return text.encode("utf-8", "replace")


_write_struct = msgspec.json.Encoder().encode


def _write_numbers(value: msgspec.Struct) -> str:
    return _write_struct(value).decode()


def decode_running_consumer(body: bytes) -> RunningConsumer:
    """Read what a consumer tells of itself.

    Raises:
        BodyError: it cannot be read.
    """
    decoded = decode_with_queue_keys(body, _RunningBody)
    return RunningConsumer(
        properties={name: _property_text(value) for name, value in (decoded.properties or {}).items()},
        subscriptions=tuple(subscription.value() for subscription in decoded.subscriptionSet or ()),
        queues=by_queue(decoded.mqTable),
        paces=decoded.statusTable or {},
        notes=decoded.userConsumerInfo or {},
        stacks=decoded.jstack,
    )


def _property_text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


class ConsumeResult(StrEnum):
    """What a handler made of a message."""

    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    ROLLBACK = "CR_ROLLBACK"
    COMMIT = "CR_COMMIT"
    RAISED = "CR_THROW_EXCEPTION"
    NOTHING_RETURNED = "CR_RETURN_NULL"


class DirectConsumption(msgspec.Struct, frozen=True):
    """A message that one consumer is to handle now, whatever its offsets say."""

    group: str
    client_id: str | None
    record: bytes
    """The message as it lies in a log; empty on the way to the broker, which knows it by its id."""
    message_id: str | None = None
    topic: str | None = None
    broker_name: str | None = None


class DirectOutcome(msgspec.Struct, frozen=True):
    """What came of handling a message directly."""

    result: ConsumeResult
    spent_ms: int
    remark: str | None = None
    ordered: bool = False
    auto_commit: bool = True


class _DirectOutcomeBody(msgspec.Struct):
    consumeResult: str | int | None = None  # noqa: N815 - the wire's name
    spentTimeMills: Int64 = 0  # noqa: N815 - the wire's name
    remark: str | None = None
    order: bool = False
    autoCommit: bool = True  # noqa: N815 - the wire's name


def encode_direct_consumption(consumption: DirectConsumption) -> Request:
    """Ask a consumer, or the broker it is connected to, to handle one message now."""
    optional = {
        "clientId": consumption.client_id,
        "msgId": consumption.message_id,
        "topic": consumption.topic,
        "brokerName": consumption.broker_name,
    }
    fields = {"consumerGroup": consumption.group}
    fields.update((name, value) for name, value in optional.items() if value is not None)
    return Request(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, body=consumption.record)


def decode_direct_consumption(request: Request) -> DirectConsumption:
    """Read which message is to be handled now, and by whom.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    return DirectConsumption(
        group=required_name(fields, "consumerGroup"),
        client_id=optional_name(fields, "clientId"),
        record=request.body,
        message_id=fields.get("msgId"),
        topic=optional_name(fields, "topic"),
        broker_name=optional_name(fields, "brokerName"),
    )


def encode_direct_outcome(outcome: DirectOutcome) -> bytes:
    """Write what came of handling a message directly."""
    members = {
        "autoCommit": outcome.auto_commit,
        "consumeResult": outcome.result,
        "order": outcome.ordered,
        "remark": outcome.remark,
        "spentTimeMills": outcome.spent_ms,
    }
    return _dumps(members)


def decode_direct_outcome(body: bytes) -> DirectOutcome:
    """Read what came of handling a message directly.

    Raises:
        BodyError: it cannot be read.
    """
    decoded = _decode_body(body, _DirectOutcomeBody, "the outcome of a message")
    result = _word(decoded.consumeResult, ConsumeResult.NOTHING_RETURNED)
    return DirectOutcome(result, decoded.spentTimeMills, decoded.remark, decoded.order, decoded.autoCommit)


class OffsetReset(msgspec.Struct, frozen=True):
    """Where a group is to go on reading a topic; queues that are not here stay as they are."""

    topic: str
    group: str
    offsets: Mapping[QueueRef, int]
    timestamp_ms: int = 0


class _QueueOffsetBody(QueueBody, kw_only=True):
    """A queue and its new offset as they are sent where the one who asked for the reset is a C++ program."""

    offset: Int64


class _ResetBody(msgspec.Struct):
    offsetTable: dict[str, Int64] | list[_QueueOffsetBody] | None = None  # noqa: N815 - the wire's name


class _StatusBody(msgspec.Struct):
    messageQueueTable: dict[str, Int64] | None = None  # noqa: N815 - the wire's name


def encode_offset_reset(reset: OffsetReset) -> Request:
    """Tell a consumer where to go on reading. Sent one way: nobody answers."""
    # The last means nothing to a client, but Java logs an error where it is missing.
    fields = {
        "topic": reset.topic,
        "group": reset.group,
        "timestamp": str(reset.timestamp_ms),
        "isForce": "false",
    }
    body = encode_queue_map("offsetTable", reset.offsets)
    return Request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body=body)


def decode_offset_reset(request: Request) -> OffsetReset:
    """Read where a consumer is to go on reading.

    Raises:
        FieldError: a field is missing or malformed.
        BodyError: the offsets cannot be read.
    """
    fields = request.fields
    table = decode_with_queue_keys(request.body, _ResetBody).offsetTable if request.body else None
    offsets = {entry.value(): entry.offset for entry in table} if isinstance(table, list) else by_queue(table)
    return OffsetReset(
        topic=required_name(fields, "topic"),
        group=required_name(fields, "group"),
        offsets=offsets,
        timestamp_ms=optional_int(fields, "timestamp", 0, _INT64_MAX),
    )


class OffsetsQuery(msgspec.Struct, frozen=True, gc=False):
    """Which consumer is to tell how far it has got with a topic."""

    topic: str
    group: str
    client_address: str | None = None
    """The one client to ask; None where all are."""


def encode_offsets_query(query: OffsetsQuery) -> Request:
    """Ask a consumer how far it has got with a topic."""
    fields = {"topic": query.topic, "group": query.group}
    if query.client_address is not None:
        fields["clientAddr"] = query.client_address
    return Request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields)


def decode_offsets_query(request: Request) -> OffsetsQuery:
    """Read which consumer is to tell how far it has got.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    return OffsetsQuery(
        required_name(fields, "topic"), required_name(fields, "group"), optional_name(fields, "clientAddr")
    )


def encode_consumer_offsets(offsets: Mapping[QueueRef, int]) -> bytes:
    """Write how far a consumer has got."""
    return encode_queue_map("messageQueueTable", offsets)


def decode_consumer_offsets(body: bytes) -> dict[QueueRef, int]:
    """Read how far a consumer has got.

    Raises:
        BodyError: it cannot be read.
    """
    return by_queue(decode_with_queue_keys(body, _StatusBody).messageQueueTable)


def _dumps(members: Mapping[str, object]) -> bytes:
    return fastjson.dumps(members, Dialect.LEGACY)


def _decode_body(body: bytes, kind: type[T], what: str) -> T:
    try:
        decoded: T = fastjson.decode(body, kind)
    except JsonError as error:
        raise BodyError(f"not {what}: {error}") from None
    return decoded


def _name(field: str, text: str) -> str:
    if not is_name(text):
        raise BodyError(f"{field} is empty, too long, or has control characters: {text[:80]!r}")
    return text


def _word(said: str | int | None, default: E) -> E:
    """Return the member of a vocabulary that is meant by its spelling in any case, or by its place."""
    if said is None:
        return default
    words = list(type(default))
    for place, word in enumerate(words):
        if said == place or (isinstance(said, str) and said.upper() == word.value):
            return word
    raise BodyError(f"{said!r} is none of {', '.join(str(word.value) for word in words)}")
