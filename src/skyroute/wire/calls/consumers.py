"""Requests to a running consumer: its state, direct consumption, offset reset, progress."""

import re
from collections.abc import Generator, Mapping
from enum import StrEnum
from itertools import islice
from typing import Any, Final

import msgspec

from skyroute.message.queue_ref import QueueRef
from skyroute.wire import fastjson
from skyroute.wire.calls.clients import Subscription, SubscriptionBody, read_word, subscription_members, write_body
from skyroute.wire.calls.topics import LENIENT_BYTES_MAX, read_body
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Int64, Request
from skyroute.wire.errors import BodyError
from skyroute.wire.fastjson import JsonError
from skyroute.wire.fields import INT64_MAX, optional_int, optional_name, required_name, truth
from skyroute.wire.queue_maps import (
    KEYS_A_STEP,
    QueueBody,
    by_queue,
    decode_with_queue_keys,
    encode_queue_map,
    quote_in_steps,
    write_legacy,
    write_queue_map,
)

OFFSETS_MAX: Final = 100_000
"""Maximum number of queues in a consumer's offsets: those of one topic."""

COLONS_MAX: Final = 4 * OFFSETS_MAX + 1
"""Colons in a body with so many queues. They are counted first, since the JSON is parsed in one step."""


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
    """The state of one queue of a consumer."""

    cached_count: Int64 = 0
    """Fetched messages that are not consumed yet."""
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
    """Messages of an ordered queue that a handler is processing."""
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
    """A consumer's rates for one topic, and the number of failures in the last hour."""

    failed_an_hour: Int64 = 0
    failed_a_second: float = 0.0
    consumed_a_second: float = 0.0
    consume_ms: float = 0.0
    pull_ms: float = 0.0
    pulled_a_second: float = 0.0


class RunningConsumer(msgspec.Struct, frozen=True):
    """The state of a running consumer."""

    properties: Mapping[str, str] = {}
    subscriptions: tuple[Subscription, ...] = ()
    queues: Mapping[QueueRef, HeldQueue] = {}
    paces: Mapping[str, ConsumePace] = {}
    """By topic."""
    notes: Mapping[str, str] = {}
    """Data added by the application."""
    stacks: str | None = None
    """Its thread stacks, if requested."""


# The properties that mqadmin shows and requires.
PROPERTY_NAME_SERVERS: Final = "PROP_NAMESERVER_ADDR"
PROPERTY_THREADS: Final = "PROP_THREADPOOL_CORE_SIZE"
PROPERTY_ORDERED: Final = "PROP_CONSUMEORDERLY"
PROPERTY_CONSUME_TYPE: Final = "PROP_CONSUME_TYPE"
PROPERTY_CLIENT_VERSION: Final = "PROP_CLIENT_VERSION"
PROPERTY_STARTED_MS: Final = "PROP_CONSUMER_START_TIMESTAMP"


_BREAKS: Final = re.compile(rb"[\x00-\x1f]")


class _RunningBody(msgspec.Struct, rename="camel"):
    # Java's properties may have values other than text.
    properties: dict[str, Any] | None = None
    subscription_set: list[SubscriptionBody] | None = None
    mq_table: dict[str, HeldQueue] | None = None
    status_table: dict[str, ConsumePace] | None = None
    user_consumer_info: dict[str, str] | None = None
    jstack: str | None = None


class RunningQuery(msgspec.Struct, frozen=True, gc=False):
    """A request for a consumer's state, with or without thread stacks."""

    group: str
    client_id: str
    with_stacks: bool = False


def encode_running_query(query: RunningQuery) -> Request:
    """Encode a request for a consumer's state, sent to it or to its broker."""
    fields = {
        "consumerGroup": query.group,
        "clientId": query.client_id,
        "jstackEnable": "true" if query.with_stacks else "false",
    }
    return Request(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)


def decode_running_query(request: Request) -> RunningQuery:
    """Decode a request for a consumer's state.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    return RunningQuery(
        required_name(fields, "consumerGroup"), required_name(fields, "clientId"), truth(fields, "jstackEnable")
    )


def encode_running_consumer(consumer: RunningConsumer) -> bytes:
    """Encode the state of a consumer."""
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
    """Decode the state of a consumer.

    Raises:
        BodyError: it is invalid.
    """
    if not body:
        raise BodyError(
            "the consumer's response is empty (Go clients do this while one of their rates is not a number)"
        )
    try:
        decoded = decode_with_queue_keys(body, _RunningBody)
    except BodyError:
        # Go clients do not escape the line breaks of a stack in JSON, and write no others.
        decoded = decode_with_queue_keys(_BREAKS.sub(_escaped, body), _RunningBody)
    return RunningConsumer(
        properties={name: _property_text(value) for name, value in (decoded.properties or {}).items()},
        subscriptions=tuple(subscription.value() for subscription in decoded.subscription_set or ()),
        queues=by_queue(decoded.mq_table),
        paces=decoded.status_table or {},
        notes=decoded.user_consumer_info or {},
        stacks=decoded.jstack,
    )


def _escaped(found: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % found[0][0]


def _property_text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


class ConsumeResult(StrEnum):
    """A handler's result."""

    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    ROLLBACK = "CR_ROLLBACK"
    COMMIT = "CR_COMMIT"
    RAISED = "CR_THROW_EXCEPTION"
    NOTHING_RETURNED = "CR_RETURN_NULL"


class DirectConsumption(msgspec.Struct, frozen=True):
    """A message for direct consumption by one consumer, independent of offsets."""

    group: str
    client_id: str | None
    record: bytes
    """The record; empty in the request to the broker, which finds it by its id."""
    message_id: str | None = None
    topic: str | None = None
    broker_name: str | None = None


class DirectOutcome(msgspec.Struct, frozen=True):
    """The result of direct consumption."""

    result: ConsumeResult
    spent_ms: int
    remark: str | None = None
    ordered: bool = False
    auto_commit: bool = True


class _DirectOutcomeBody(msgspec.Struct, rename="camel"):
    consume_result: str | int | None = None
    spent_time_mills: Int64 = 0
    remark: str | None = None
    order: bool = False
    auto_commit: bool = True


def encode_direct_consumption(consumption: DirectConsumption) -> Request:
    """Encode a request for direct consumption, sent to a consumer or to its broker."""
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
    """Decode a request for direct consumption.

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
    """Encode the result of direct consumption."""
    members = {
        "autoCommit": outcome.auto_commit,
        "consumeResult": outcome.result,
        "order": outcome.ordered,
        "remark": outcome.remark,
        "spentTimeMills": outcome.spent_ms,
    }
    return write_body(members)


def decode_direct_outcome(body: bytes) -> DirectOutcome:
    """Decode the result of direct consumption.

    Raises:
        BodyError: it is invalid.
    """
    decoded = read_body(body, _DirectOutcomeBody, "the outcome of a message")
    result = read_word(decoded.consume_result, ConsumeResult.NOTHING_RETURNED)
    return DirectOutcome(result, decoded.spent_time_mills, decoded.remark, decoded.order, decoded.auto_commit)


class OffsetReset(msgspec.Struct, frozen=True):
    """New offsets of a group for a topic; other queues are unchanged."""

    topic: str
    group: str
    offsets: Mapping[QueueRef, int]
    timestamp_ms: int = 0


class _QueueOffsetBody(QueueBody, kw_only=True):
    """A queue and its new offset, in the format for C++ clients."""

    offset: Int64


class _ResetBody(msgspec.Struct, rename="camel"):
    offset_table: dict[str, Int64] | list[_QueueOffsetBody] | None = None


class _StatusBody(msgspec.Struct, rename="camel"):
    message_queue_table: dict[str, Int64] | None = None


def encode_offset_reset(topic: str, group: str, timestamp_ms: int, body: bytes) -> Request:
    """Return a one-way request that resets a consumer's offsets; `reset_offsets_parts` makes the body."""
    # Clients ignore the last field, but Java logs an error if it is missing.
    fields = {"topic": topic, "group": group, "timestamp": str(timestamp_ms), "isForce": "false"}
    return Request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body=body)


def decode_offset_reset(request: Request) -> OffsetReset:
    """Decode an offset reset.

    Raises:
        FieldError: a field is missing or malformed.
        BodyError: the offsets are invalid.
    """
    fields = request.fields
    table = decode_with_queue_keys(request.body, _ResetBody).offset_table if request.body else None
    offsets = {entry.value(): entry.offset for entry in table} if isinstance(table, list) else by_queue(table)
    return OffsetReset(
        topic=required_name(fields, "topic"),
        group=required_name(fields, "group"),
        offsets=offsets,
        timestamp_ms=optional_int(fields, "timestamp", 0, INT64_MAX),
    )


class OffsetsQuery(msgspec.Struct, frozen=True, gc=False):
    """A request for a consumer's offsets of a topic."""

    topic: str
    group: str
    client_address: str | None = None
    """Client id; None for all clients."""


def encode_offsets_query(query: OffsetsQuery) -> Request:
    """Encode a request for a consumer's offsets of a topic."""
    fields = {"topic": query.topic, "group": query.group}
    if query.client_address is not None:
        fields["clientAddr"] = query.client_address
    return Request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields)


def decode_offsets_query(request: Request) -> OffsetsQuery:
    """Decode a request for a consumer's offsets.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    return OffsetsQuery(
        required_name(fields, "topic"), required_name(fields, "group"), optional_name(fields, "clientAddr")
    )


def encode_consumer_offsets(offsets: Mapping[QueueRef, int]) -> bytes:
    """Encode a consumer's offsets."""
    return encode_queue_map("messageQueueTable", offsets)


def decode_consumer_offsets(body: bytes) -> Generator[None, None, dict[QueueRef, int]]:
    """Decode a consumer's offsets, in steps: a broker decodes those of many consumers.

    Raises:
        BodyError: it is invalid, or has too many queues.
    """
    if body.count(b":") > COLONS_MAX:
        raise BodyError(f"a consumer's offsets have more than {OFFSETS_MAX} queues")
    try:
        quoted = yield from quote_in_steps(body)
        decoded: _StatusBody = fastjson.decode(quoted, _StatusBody, LENIENT_BYTES_MAX)
    except JsonError as error:
        raise BodyError(f"not a consumer's offsets: {error}") from None
    entries = iter((decoded.message_queue_table or {}).items())
    offsets: dict[QueueRef, int] = {}
    while part := dict(islice(entries, KEYS_A_STEP)):
        yield
        offsets |= by_queue(part)
    return offsets
