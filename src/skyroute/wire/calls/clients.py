"""Heartbeats of clients, unregistration, members of consumer groups, and queue locks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, StrEnum
from typing import Annotated, Final, TypeVar

import msgspec

from skyroute.message.queue_ref import QueueRef
from skyroute.wire import fastjson
from skyroute.wire.calls.topics import read_body, read_request
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Int32, Int64, Request, Response
from skyroute.wire.errors import BodyError
from skyroute.wire.fastjson import Dialect
from skyroute.wire.fields import is_name, optional_name, required_name
from skyroute.wire.queue_maps import QueueBody, queue_members, separated, write_legacy

GROUPS_MAX: Final = 10_000
"""Maximum number of groups of each kind in one heartbeat."""
SUBSCRIPTIONS_MAX: Final = 10_000
"""Maximum number of subscriptions of one group."""
PART_GROUPS: Final = 100
"""Groups of a long heartbeat processed in one step; ten topics count as one group."""
_SUBSCRIPTIONS_A_GROUP: Final = 10
TAGS_MAX: Final = 10_000
"""Maximum number of tags of one subscription."""
LOCKED_QUEUES_MAX: Final = 100_000
"""Maximum number of queues in one lock request."""
MEMBERS_MAX: Final = 100_000
"""Maximum number of members in a response."""

E = TypeVar("E", bound=Enum)


class ConsumeType(StrEnum):
    """How a consumer gets messages: push or pull."""

    PULL = "CONSUME_ACTIVELY"
    PUSH = "CONSUME_PASSIVELY"
    POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Broadcasting: every member gets every message. Clustering: the members share them.

    Examples:
        >>> consumer = Consumer("screens", model=MessageModel.BROADCASTING)
    """

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class StartFrom(StrEnum):
    """Where a group starts in a queue without a committed offset."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    # Only old clients send the next three; they mean the first.
    LAST_OFFSET_OR_MIN_AT_FIRST_BOOT = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class Subscription(msgspec.Struct, frozen=True, gc=False):
    """A subscription of a group to one topic."""

    topic: str
    expression: str = "*"
    expression_type: str = "TAG"
    version: int = 0
    """Creation time in milliseconds (Go: nanoseconds); a broker uses the newest."""
    tags: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()


class ConsumerData(msgspec.Struct, frozen=True, gc=False):
    """One consumer group of a heartbeat."""

    group: str
    consume_type: ConsumeType
    model: MessageModel
    start_from: StartFrom
    subscriptions: tuple[Subscription, ...] = ()
    unit_mode: bool = False


class Heartbeat(msgspec.Struct, frozen=True):
    """A client's heartbeat with its groups."""

    client_id: str
    producer_groups: tuple[str, ...] = ()
    consumers: tuple[ConsumerData, ...] = ()
    fingerprint: int = 0
    """Fingerprint of the client's subscriptions; 0 if the client does not use it."""
    without_subscriptions: bool = False
    """The subscriptions are omitted because the broker knows them; it must keep them."""


class SubscriptionBody(msgspec.Struct, rename="camel"):
    """A subscription in JSON."""

    topic: str
    sub_string: str | None = None
    expression_type: str | None = None
    sub_version: Int64 = 0
    tags_set: Annotated[list[str], msgspec.Meta(max_length=TAGS_MAX)] | None = None
    code_set: Annotated[list[Int32], msgspec.Meta(max_length=TAGS_MAX)] | None = None

    def value(self) -> Subscription:
        """Return the subscription.

        Raises:
            BodyError: its topic is no name.
        """
        return Subscription(
            topic=_name("topic", self.topic),
            expression=self.sub_string or "*",
            expression_type=self.expression_type or "TAG",
            version=self.sub_version,
            tags=tuple(self.tags_set or ()),
            codes=tuple(self.code_set or ()),
        )


def subscription_members(subscription: Subscription) -> dict[str, object]:
    """Return a subscription as members of a JSON object."""
    return {
        "classFilterMode": False,
        "codeSet": subscription.codes,
        "expressionType": subscription.expression_type,
        "subString": subscription.expression,
        "subVersion": subscription.version,
        "tagsSet": subscription.tags,
        "topic": subscription.topic,
    }


class _ProducerBody(msgspec.Struct, rename="camel"):
    group_name: str


class _ConsumerBody(msgspec.Struct, rename="camel"):
    group_name: str
    # C++ clients send the index of an enum value, which Java's reader accepts.
    consume_type: str | int | None = None
    message_model: str | int | None = None
    consume_from_where: str | int | None = None
    subscription_data_set: Annotated[list[SubscriptionBody], msgspec.Meta(max_length=SUBSCRIPTIONS_MAX)] | None = None
    unit_mode: bool | None = None

    def value(self) -> ConsumerData:
        return ConsumerData(
            group=_name("groupName", self.group_name),
            consume_type=read_word(self.consume_type, ConsumeType.PUSH),
            model=read_word(self.message_model, MessageModel.CLUSTERING),
            start_from=read_word(self.consume_from_where, StartFrom.LAST_OFFSET),
            subscriptions=tuple(body.value() for body in self.subscription_data_set or ()),
            unit_mode=bool(self.unit_mode),
        )


class _HeartbeatBody(msgspec.Struct, rename="camel"):
    client_id: str = msgspec.field(name="clientID")
    producer_data_set: Annotated[list[_ProducerBody], msgspec.Meta(max_length=GROUPS_MAX)] | None = None
    consumer_data_set: Annotated[list[_ConsumerBody], msgspec.Meta(max_length=GROUPS_MAX)] | None = None
    heartbeat_fingerprint: Int32 = 0
    without_sub: bool = False

    def value(self, producers: Iterable[_ProducerBody], consumers: Iterable[_ConsumerBody]) -> Heartbeat:
        """Return the heartbeat, or a part of it, with these groups.

        Raises:
            BodyError: a name is invalid.
        """
        return Heartbeat(
            client_id=_name("clientID", self.client_id),
            producer_groups=tuple(_name("groupName", producer.group_name) for producer in producers),
            consumers=tuple(consumer.value() for consumer in consumers),
            fingerprint=self.heartbeat_fingerprint,
            without_subscriptions=self.without_sub,
        )


def encode_heartbeat(
    client_id: str,
    producer_groups: Iterable[str],
    consumers: Iterable[ConsumerData],
    *,
    fingerprint: int = 0,
    without_subscriptions: bool = False,
) -> Request:
    """Encode a heartbeat. The data of a group replaces all earlier data of it."""
    members = {
        "clientID": client_id,
        "consumerDataSet": [_consumer_members(consumer) for consumer in consumers],
        "heartbeatFingerprint": fingerprint,
        "producerDataSet": [{"groupName": group} for group in producer_groups],
        "withoutSub": without_subscriptions,
    }
    return Request(RequestCode.HEART_BEAT, body=write_body(members))


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
    """Decode a heartbeat of a Java, Go or C++ client.

    Raises:
        BodyError: it is invalid.
    """
    body = read_request(request.body, _HeartbeatBody, "a heartbeat")
    return body.value(body.producer_data_set or (), body.consumer_data_set or ())


def decode_heartbeat_parts(request: Request) -> Iterator[Heartbeat]:
    """Decode a long heartbeat as several, each with at most `PART_GROUPS` groups, or a few more topics.

    Raises:
        BodyError: it is invalid.
    """
    body = read_request(request.body, _HeartbeatBody, "a heartbeat")
    producers = body.producer_data_set or []
    for start in range(0, len(producers), PART_GROUPS):
        yield body.value(producers[start : start + PART_GROUPS], ())
    part: list[_ConsumerBody] = []
    weight = 0
    for consumer in body.consumer_data_set or ():
        part.append(consumer)
        weight += 1 + len(consumer.subscription_data_set or ()) // _SUBSCRIPTIONS_A_GROUP
        if weight >= PART_GROUPS:
            yield body.value((), part)
            part, weight = [], 0
    yield body.value((), part)


def encode_heartbeat_answer(*, wants_whole: bool) -> Response:
    """Encode the response to a heartbeat, and whether the next one must include subscriptions.

    Clients leave them out only with `useHeartbeatV2`.
    """
    return Response(fields={"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if wants_whole else "false"})


class Unregistration(msgspec.Struct, frozen=True, gc=False):
    """UNREGISTER_CLIENT: a client leaves a group."""

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None


def encode_unregistration(
    client_id: str, *, producer_group: str | None = None, consumer_group: str | None = None
) -> Request:
    """Encode the unregistration of a client."""
    fields = {"clientID": client_id}
    if producer_group is not None:
        fields["producerGroup"] = producer_group
    if consumer_group is not None:
        fields["consumerGroup"] = consumer_group
    return Request(RequestCode.UNREGISTER_CLIENT, fields)


def decode_unregistration(request: Request) -> Unregistration:
    """Decode the unregistration of a client.

    Raises:
        FieldError: the client id is missing, or a name is invalid.
    """
    fields = request.fields
    return Unregistration(
        required_name(fields, "clientID"),
        optional_name(fields, "producerGroup"),
        optional_name(fields, "consumerGroup"),
    )


def encode_member_query(group: str) -> Request:
    """Encode a request for the client ids of a consumer group."""
    return Request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})


def encode_members_changed(group: str) -> Request:
    """Encode the one-way notice that the members of a consumer group changed."""
    return Request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})


def decode_consumer_group(request: Request) -> str:
    """Decode the consumer group of a members request, or of a notice that they changed.

    Raises:
        FieldError: it is missing.
    """
    return required_name(request.fields, "consumerGroup")


class _MembersBody(msgspec.Struct, rename="camel"):
    consumer_id_list: Annotated[list[str], msgspec.Meta(max_length=MEMBERS_MAX)] | None = None


def encode_members(client_ids: Iterable[str]) -> bytes:
    """Encode the client ids of a consumer group."""
    return write_body({"consumerIdList": list(client_ids)})


def decode_members(body: bytes) -> list[str]:
    """Decode the client ids of a consumer group, in no order.

    Raises:
        BodyError: the body is invalid.
    """
    return read_body(body, _MembersBody, "a list of members").consumer_id_list or []


class QueueLocking(msgspec.Struct, frozen=True):
    """Queues that a client locks or unlocks."""

    client_id: str
    group: str
    queues: Sequence[QueueBody]
    only_this_broker: bool = False
    """Lock on this broker only, not on the other brokers of its group."""


_QueueBodies = Annotated[list[QueueBody], msgspec.Meta(max_length=LOCKED_QUEUES_MAX)]


class _LockBody(msgspec.Struct, rename="camel"):
    client_id: str
    consumer_group: str
    mq_set: _QueueBodies | None = None
    only_this_broker: bool = False


class _LockedBody(msgspec.Struct, rename="camel"):
    locked_queues: _QueueBodies | None = msgspec.field(default=None, name="lockOKMQSet")


def encode_lock(client_id: str, group: str, queues: Iterable[QueueRef]) -> Request:
    """Encode a lock request; the response has the locked queues."""
    return Request(RequestCode.LOCK_BATCH_MQ, body=_write_lock(client_id, group, queues))


def encode_unlock(client_id: str, group: str, queues: Iterable[QueueRef]) -> Request:
    """Encode an unlock request."""
    return Request(RequestCode.UNLOCK_BATCH_MQ, body=_write_lock(client_id, group, queues))


def _write_lock(client_id: str, group: str, queues: Iterable[QueueRef]) -> bytes:
    members = {"clientId": client_id, "consumerGroup": group, "mqSet": [queue_members(queue) for queue in queues]}
    return write_body({**members, "onlyThisBroker": False})


def decode_locking(request: Request) -> QueueLocking:
    """Decode a lock or unlock request; `QueueBody.value` checks the names.

    Raises:
        BodyError: the body is invalid.
    """
    body = read_request(request.body, _LockBody, "queues to lock")
    return QueueLocking(
        _name("clientId", body.client_id),
        _name("consumerGroup", body.consumer_group),
        body.mq_set or (),
        body.only_this_broker,
    )


def locked_parts(queues: Iterable[QueueRef]) -> Iterator[str]:
    """Encode the locked queues, one part per queue."""
    yield '{"lockOKMQSet":['
    yield from separated(write_legacy(queue_members(queue)) for queue in queues)
    yield "]}"


def decode_locked(body: bytes) -> frozenset[QueueRef]:
    """Decode the locked queues.

    Raises:
        BodyError: the body is invalid.
    """
    decoded = read_body(body, _LockedBody, "locked queues")
    return frozenset(queue.value() for queue in decoded.locked_queues or ())


class ClientCheck(msgspec.Struct, frozen=True):
    """CHECK_CLIENT_CONFIG: can the broker evaluate this subscription?"""

    client_id: str
    group: str
    subscription: Subscription | None
    namespace: str | None = None


class _ClientCheckBody(msgspec.Struct, rename="camel"):
    client_id: str
    group: str
    subscription_data: SubscriptionBody | None = None
    namespace: str | None = None


def encode_client_check(
    client_id: str, group: str, subscription: Subscription, namespace: str | None = None
) -> Request:
    """Encode the check of a subscription; if the broker refuses, the remark says why."""
    members = {
        "clientId": client_id,
        "group": group,
        "namespace": namespace,
        "subscriptionData": subscription_members(subscription),
    }
    return Request(RequestCode.CHECK_CLIENT_CONFIG, body=write_body(members))


def decode_client_check(request: Request) -> ClientCheck:
    """Decode the check of a subscription.

    Raises:
        BodyError: it is invalid.
    """
    body = read_request(request.body, _ClientCheckBody, "a subscription to check")
    wanted = body.subscription_data
    return ClientCheck(
        _name("clientId", body.client_id),
        _name("group", body.group),
        None if wanted is None else wanted.value(),
        body.namespace,
    )


def write_body(members: Mapping[str, object]) -> bytes:
    """Encode a body as Java does."""
    return fastjson.dumps(members, Dialect.LEGACY)


def _name(field: str, text: str) -> str:
    if not is_name(text):
        raise BodyError(f"{field} is empty, too long, or has control characters: {text[:80]!r}")
    return text


def read_word(said: str | int | None, default: E) -> E:
    """Return the enum member of this name, in any case, or of this index.

    Raises:
        BodyError: none is.
    """
    if said is None:
        return default
    words = list(type(default))
    for place, word in enumerate(words):
        if said == place or (isinstance(said, str) and said.upper() == word.value):
            return word
    raise BodyError(f"{said!r} is not one of {', '.join(str(word.value) for word in words)}")
