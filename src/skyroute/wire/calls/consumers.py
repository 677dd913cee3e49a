"""What brokers and administrators ask of a running consumer: what it does, to try a message, to move, how far it is."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.clients import Subscription, SubscriptionBody, read_word, subscription_members, write_body
from skyroute.wire.calls.topics import read_body
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Int64, Request
from skyroute.wire.errors import BodyError
from skyroute.wire.fields import optional_int, optional_name, required_name, truth
from skyroute.wire.queue_maps import (
    QueueBody,
    by_queue,
    decode_with_queue_keys,
    encode_queue_map,
    write_legacy,
    write_queue_map,
)

_INT64_MAX: Final = (1 << 63) - 1


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


_BREAKS: Final = re.compile(rb"[\x00-\x1f]")


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
    if not body:
        raise BodyError("the consumer told nothing of itself; Go's do so while one of their rates is no number")
    try:
        decoded = decode_with_queue_keys(body, _RunningBody)
    except BodyError:
        # Go's clients put the line breaks of a stack into JSON as they are, and have no others.
        decoded = decode_with_queue_keys(_BREAKS.sub(_escaped, body), _RunningBody)
    return RunningConsumer(
        properties={name: _property_text(value) for name, value in (decoded.properties or {}).items()},
        subscriptions=tuple(subscription.value() for subscription in decoded.subscriptionSet or ()),
        queues=by_queue(decoded.mqTable),
        paces=decoded.statusTable or {},
        notes=decoded.userConsumerInfo or {},
        stacks=decoded.jstack,
    )


def _escaped(found: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % found[0][0]


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
    return write_body(members)


def decode_direct_outcome(body: bytes) -> DirectOutcome:
    """Read what came of handling a message directly.

    Raises:
        BodyError: it cannot be read.
    """
    decoded = read_body(body, _DirectOutcomeBody, "the outcome of a message")
    result = read_word(decoded.consumeResult, ConsumeResult.NOTHING_RETURNED)
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


def encode_offset_reset(topic: str, group: str, timestamp_ms: int, body: bytes) -> Request:
    """Return a one-way request that resets a consumer's offsets; the body is made of `reset_offsets_parts`."""
    # The last means nothing to a client, but Java logs an error where it is missing.
    fields = {"topic": topic, "group": group, "timestamp": str(timestamp_ms), "isForce": "false"}
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
