"""What clients say to brokers about themselves: heartbeats, goodbyes, who is in a group, and locks on queues."""

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
"""The most groups of each kind that one heartbeat may bring."""
SUBSCRIPTIONS_MAX: Final = 10_000
"""The most topics that one group may subscribe to."""
PART_GROUPS: Final = 100
"""Groups of a long heartbeat processed in one step; ten topics count as one group."""
_SUBSCRIPTIONS_A_GROUP: Final = 10
TAGS_MAX: Final = 10_000
"""The most tags that one subscription may name."""
LOCKED_QUEUES_MAX: Final = 100_000
"""The most queues that one request may lock."""
MEMBERS_MAX: Final = 100_000
"""The most members that a group may be said to have."""

E = TypeVar("E", bound=Enum)


class ConsumeType(StrEnum):
    """Who decides when messages move."""

    PULL = "CONSUME_ACTIVELY"
    PUSH = "CONSUME_PASSIVELY"
    POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Whether every member of a group gets every message, or they share them out.

    Examples:
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
            consume_type=read_word(self.consumeType, ConsumeType.PUSH),
            model=read_word(self.messageModel, MessageModel.CLUSTERING),
            start_from=read_word(self.consumeFromWhere, StartFrom.LAST_OFFSET),
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

    def value(self, producers: Iterable[_ProducerBody], consumers: Iterable[_ConsumerBody]) -> Heartbeat:
        """Return the heartbeat, or a part of it, with these groups.

        Raises:
            BodyError: a name is invalid.
        """
        return Heartbeat(
            client_id=_name("clientID", self.clientID),
            producer_groups=tuple(_name("groupName", producer.groupName) for producer in producers),
            consumers=tuple(consumer.value() for consumer in consumers),
            fingerprint=self.heartbeatFingerprint,
            without_subscriptions=self.withoutSub,
        )


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
    """Read a heartbeat of Java's, of Go's or of C++'s.

    Raises:
        BodyError: it cannot be read.
    """
    body = read_request(request.body, _HeartbeatBody, "a heartbeat")
    return body.value(body.producerDataSet or (), body.consumerDataSet or ())


def decode_heartbeat_parts(request: Request) -> Iterator[Heartbeat]:
    """Read a long heartbeat as several, each of which brings at most `PART_GROUPS` groups, or a few more topics.

    Raises:
        BodyError: it cannot be read.
    """
    body = read_request(request.body, _HeartbeatBody, "a heartbeat")
    producers = body.producerDataSet or []
    for start in range(0, len(producers), PART_GROUPS):
        yield body.value(producers[start : start + PART_GROUPS], ())
    part: list[_ConsumerBody] = []
    weight = 0
    for consumer in body.consumerDataSet or ():
        part.append(consumer)
        weight += 1 + len(consumer.subscriptionDataSet or ()) // _SUBSCRIPTIONS_A_GROUP
        if weight >= PART_GROUPS:
            yield body.value((), part)
            part, weight = [], 0
    yield body.value((), part)


def encode_heartbeat_answer(*, wants_whole: bool) -> Response:
    """Thank for a heartbeat, and say whether the next one shall bring its subscriptions.

    Clients leave them out only if they have been told to compare (`useHeartbeatV2`).
    """
    return Response(fields={"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if wants_whole else "false"})


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
    return write_body({"consumerIdList": list(client_ids)})


def decode_members(body: bytes) -> list[str]:
    """Read the client ids of a group's members, in no order.

    Raises:
        BodyError: they cannot be read.
    """
    return read_body(body, _MembersBody, "a list of members").consumerIdList or []


class QueueLocking(msgspec.Struct, frozen=True):
    """Which queues a client wants for itself alone, or gives back."""

    client_id: str
    group: str
    queues: Sequence[QueueBody]
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
    return write_body({**members, "onlyThisBroker": False})


def decode_locking(request: Request) -> QueueLocking:
    """Read which queues a client wants, or gives back; whether they have names is for `QueueBody.value` to say.

    Raises:
        BodyError: they cannot be read.
    """
    body = read_request(request.body, _LockBody, "queues to lock")
    return QueueLocking(
        _name("clientId", body.clientId),
        _name("consumerGroup", body.consumerGroup),
        body.mqSet or (),
        body.onlyThisBroker,
    )


def locked_parts(queues: Iterable[QueueRef]) -> Iterator[str]:
    """Write the queues that the client has locked, one part each."""
    yield '{"lockOKMQSet":['
    yield from separated(write_legacy(queue_members(queue)) for queue in queues)
    yield "]}"


def decode_locked(body: bytes) -> frozenset[QueueRef]:
    """Read which queues are now this client's alone.

    Raises:
        BodyError: they cannot be read.
    """
    decoded = read_body(body, _LockedBody, "locked queues")
    return frozenset(queue.value() for queue in decoded.lockOKMQSet or ())


class ClientCheck(msgspec.Struct, frozen=True):
    """A client's question whether a broker can filter as it wants."""

    client_id: str
    group: str
    subscription: Subscription | None
    namespace: str | None = None


class _ClientCheckBody(msgspec.Struct):
    clientId: str  # noqa: N815 - the wire's name
    group: str
    subscriptionData: SubscriptionBody | None = None  # noqa: N815 - the wire's name
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
    return Request(RequestCode.CHECK_CLIENT_CONFIG, body=write_body(members))


def decode_client_check(request: Request) -> ClientCheck:
    """Read the question whether this broker can filter as a client wants.

    Raises:
        BodyError: it cannot be read.
    """
    body = read_request(request.body, _ClientCheckBody, "a subscription to check")
    wanted = body.subscriptionData
    return ClientCheck(
        _name("clientId", body.clientId),
        _name("group", body.group),
        None if wanted is None else wanted.value(),
        body.namespace,
    )


def write_body(members: Mapping[str, object]) -> bytes:
    """Write a body as Java does."""
    return fastjson.dumps(members, Dialect.LEGACY)


def _name(field: str, text: str) -> str:
    if not is_name(text):
        raise BodyError(f"{field} is empty, too long, or has control characters: {text[:80]!r}")
    return text


def read_word(said: str | int | None, default: E) -> E:
    """Return the member of a vocabulary that is meant by its spelling in any case, or by its place.

    Raises:
        BodyError: none is.
    """
    if said is None:
        return default
    words = list(type(default))
    for place, word in enumerate(words):
        if said == place or (isinstance(said, str) and said.upper() == word.value):
            return word
    raise BodyError(f"{said!r} is none of {', '.join(str(word.value) for word in words)}")
