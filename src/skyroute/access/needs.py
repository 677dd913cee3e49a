"""The table of needs: for every request code, which door it comes through, and which resources and actions it needs.

A code without a row is refused to ordinary users. `docs/security.md` shows this table.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from skyroute.access.policies import Need
from skyroute.access.resources import Action, Resource, ResourceKind, cluster, group, topic
from skyroute.wire.calls.access import (
    group_and_topic,
    group_in_config,
    groups_and_topics_in_acks,
    groups_in_list,
    topics_in_list,
)
from skyroute.wire.calls.clients import decode_client_check, decode_heartbeat, decode_locking
from skyroute.wire.calls.watch import decode_watch
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request
from skyroute.wire.errors import BodyError, FieldError
from skyroute.wire.fields import is_name

CHECKED_BODY_BYTES_MAX: Final = 192 * 1024
"""Maximum size of a body whose names are checked one by one, between two requests: about 3,000 names, in 8 ms.

Super users, and users without authorization, have no such limit: nothing is looked up for them.
"""


class Server(StrEnum):
    """A server that answers a request code."""

    BROKER = "broker"
    NAME_SERVER = "name server"
    CONTROLLER = "controller"


class Door(StrEnum):
    """A kind of caller. Each door has a rule of its own for callers without a key."""

    READER = "reader"
    """Route lookups. Open by default, as with Apache's name server."""
    CLIENT = "client"
    """Applications that send and receive messages."""
    BROKER = "broker"
    """Brokers that register and copy tables. A list of source addresses can stand in for a key."""
    OPERATOR = "operator"
    """Tools that inspect and change servers. Always with a key."""


Find = Callable[[Request, str], Iterable[Need]]
"""Finds the needs of a request. The text is the name of the server's cluster. Raises WireError if it cannot."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of what a request needs: all of its needs must be allowed."""

    text: str
    """For the table in the documentation."""
    find: Find
    fields: tuple[str, ...] | None = None
    """The fields on which its needs depend; None if they depend on more."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table of needs."""

    servers: tuple[Server, ...]
    door: Door
    parts: tuple[Part, ...]
    operator_field: str = ""
    """A field that makes this the request of an operator, unless its value is `false`."""
    fields: tuple[str, ...] | None = field(init=False)
    """The fields on which its needs depend, so that a decision can be remembered by them; None: on more than these."""

    def __post_init__(self) -> None:
        found = [part.fields for part in self.parts]
        known = [names for names in found if names is not None]
        names = tuple(name for each in known for name in each) if len(known) == len(found) else None
        if names is not None and self.operator_field:
            names = (*names, self.operator_field)
        object.__setattr__(self, "fields", names)

    def door_of(self, request: Request) -> Door:
        """Return the door that a request comes through."""
        if self.operator_field and request.fields.get(self.operator_field, "false").lower() != "false":
            return Door.OPERATOR
        return self.door

    @property
    def text(self) -> str:
        """The needs, for the documentation."""
        return "; ".join(part.text for part in self.parts) or "a user"

    def needs(self, request: Request, cluster_name: str) -> tuple[Need, ...]:
        """Return what a request needs; nothing means that any user may send it.

        Raises:
            WireError: a name is missing, or the body cannot be read.
        """
        if len(self.parts) == 1:
            return tuple(self.parts[0].find(request, cluster_name))
        return tuple(need for part in self.parts for need in part.find(request, cluster_name))


PUB, SUB, GET, LIST = Action.PUB, Action.SUB, Action.GET, Action.LIST
CREATE, UPDATE, DELETE = Action.CREATE, Action.UPDATE, Action.DELETE

_Make = Callable[[str, frozenset[Action]], Need]
_EVERY: Final = "*"
"""Name of a resource that only `Topic:*`, `Group:*` and `*` cover: it stands for all topics or groups."""


_PUB: Final = frozenset({PUB})
_SUB: Final = frozenset({SUB})


# Parts


def topic_need(name: str, actions: frozenset[Action], group_name: str = "") -> Need:
    """Return the need for a topic. A retry topic is part of its group, and only consumers use it: Pub becomes Sub."""
    need = Need(topic(_checked(name), group_name), actions)
    return need.of_group() if need.resource.kind is ResourceKind.GROUP else need


def _checked(name: str) -> str:
    # Names become part of refusals, audit records and remembered decisions.
    if not is_name(name):
        raise FieldError(f"not a name: {name[:80]!r}")
    return name


def _group_need(name: str, actions: frozenset[Action]) -> Need:
    return Need(group(_checked(name)), actions)


def _cluster_need(name: str, actions: frozenset[Action]) -> Need:
    return Need(cluster(_checked(name)), actions)


def _words(actions: Iterable[Action]) -> str:
    return " or ".join(actions)


def _field(
    name: str, make: _Make, kind: ResourceKind, actions: tuple[Action, ...], *, split: str = "", strips: bool = False
) -> Part:
    """A resource that a field names, exactly as the handler reads it."""
    wanted = frozenset(actions)

    def find(request: Request, _cluster: str) -> Iterator[Need]:
        value = request.fields.get(name, "")
        if strips:
            value = value.strip()
        if not value:
            raise FieldError(f"{name} is required")
        for one in value.split(split) if split else (value,):
            if one:
                yield make(one, wanted)

    return Part(f"{kind} in `{name}`: {_words(actions)}", find, (name,))


def _topic(name: str, *actions: Action) -> Part:
    return _field(name, topic_need, ResourceKind.TOPIC, actions)


def _group(name: str, *actions: Action) -> Part:
    return _field(name, _group_need, ResourceKind.GROUP, actions)


def _cluster(*actions: Action) -> Part:
    """The cluster of the server."""
    wanted = frozenset(actions)
    return Part(f"Cluster: {_words(actions)}", lambda _request, name: (Need(cluster(name), wanted),), ())


def _named_cluster(*actions: Action) -> Part:
    """The cluster in the field `clusterName`."""
    return _if_given(
        _field("clusterName", _cluster_need, ResourceKind.CLUSTER, actions), "clusterName", _cluster(*actions)
    )


def _every(kind: ResourceKind, *actions: Action) -> Part:
    """All topics or groups."""
    wanted = frozenset(actions)
    all_of_kind = (Need(Resource(kind, _EVERY), wanted),)
    return Part(f"every {kind}: {_words(actions)}", lambda _request, _cluster: all_of_kind, ())


def _if_given(part: Part, name: str, otherwise: Part | None = None) -> Part:
    """A part that counts only if a field is there; another one counts if it is not."""

    def find(request: Request, cluster_name: str) -> Iterable[Need]:
        if request.fields.get(name):
            return part.find(request, cluster_name)
        return () if otherwise is None else otherwise.find(request, cluster_name)

    text = f"{part.text}{' if given' if otherwise is None else f'; without it, {otherwise.text}'}"
    others = () if otherwise is None else otherwise.fields
    names = None if part.fields is None or others is None else (name, *part.fields, *others)
    return Part(text, find, names)


def _send(short: bool) -> Part:  # noqa: FBT001 - a helper of this table
    name = "b" if short else "topic"

    def find(request: Request, _cluster: str) -> Iterator[Need]:
        fields: Any = request.fields
        value = fields.get(name, "") if isinstance(fields, dict) else fields.topic
        if not value:
            raise FieldError("topic is required")
        yield topic_need(value, _PUB)

    return Part(f"Topic in `{name}`: Pub", find, (name,))


def _acked_topic() -> Part:
    """The topic that has a popped message: the retry topic of the group counts as the group, as everywhere."""

    def find(request: Request, _cluster: str) -> Iterator[Need]:
        name = request.fields.get("topic")
        if not name:
            raise FieldError("topic is required")
        yield topic_need(name, _SUB, request.fields.get("consumerGroup", ""))

    return Part("Topic in `topic`: Sub", find, ("topic", "consumerGroup"))


def _heartbeat(request: Request, _cluster: str) -> Iterator[Need]:
    for consumer in decode_heartbeat(request).consumers:
        yield _group_need(consumer.group, _SUB)
        for subscription in consumer.subscriptions:
            yield topic_need(subscription.topic, _SUB)


def _locks(request: Request, _cluster: str) -> Iterator[Need]:
    locking = decode_locking(request)
    yield _group_need(locking.group, _SUB)
    for name in {queue.topic for queue in locking.queues}:
        yield topic_need(name, _SUB)


def _client_check(request: Request, _cluster: str) -> Iterator[Need]:
    check = decode_client_check(request)
    yield _group_need(check.group, _SUB)
    if check.subscription is not None:
        yield topic_need(check.subscription.topic, _SUB)


def _watch(request: Request, _cluster: str) -> Iterator[Need]:
    query = decode_watch(request)
    if query.topics is None:
        yield Need(Resource(ResourceKind.TOPIC, _EVERY), frozenset({LIST, GET}))
    for name in query.topics or ():
        yield topic_need(name, frozenset({PUB, SUB, GET}))


def _body(text: str, find: Find) -> Part:
    """A part whose names are in the body."""

    def find_in_short(request: Request, cluster_name: str) -> Iterable[Need]:
        if len(request.body) > CHECKED_BODY_BYTES_MAX:
            size = len(request.body)
            raise BodyError(f"{size} bytes of names (expected at most {CHECKED_BODY_BYTES_MAX}: send several requests)")
        return find(request, cluster_name)

    return Part(f"{text} (in the body)", find_in_short)


def _body_group_and_topic(*actions: Action) -> Part:
    wanted = frozenset(actions)

    def find(request: Request, _cluster: str) -> Iterator[Need]:
        group_name, topic_name = group_and_topic(request.body)
        yield _group_need(group_name, wanted)
        yield topic_need(topic_name, wanted)

    return _body(f"Group and Topic: {_words(actions)}", find)


def _acks(request: Request, _cluster: str) -> Iterator[Need]:
    for group_name, topic_name in groups_and_topics_in_acks(request.body):
        yield _group_need(group_name, _SUB)
        yield topic_need(topic_name, _SUB, group_name)


def _body_names(kind: ResourceKind, names: Callable[[bytes], Iterable[str]], *actions: Action) -> Part:
    wanted = frozenset(actions)
    make = topic_need if kind is ResourceKind.TOPIC else _group_need
    return _body(
        f"each {kind}: {_words(actions)}",
        lambda request, _cluster: [make(name, wanted) for name in names(request.body)],
    )


# The table

_Code = RequestCode
_SEND_SHORT, _SEND_LONG = _send(short=True), _send(short=False)
_POP: Final = (_group("consumerGroup", SUB), _topic("topic", SUB))
_ACK: Final = (_group("consumerGroup", SUB), _acked_topic())
_PULL: Final = (_topic("topic", SUB), _group("consumerGroup", SUB))
_LOCKS: Final = (_body("Group: Sub; each Topic: Sub", _locks),)
_EVERY_TOPIC: Final = (_every(ResourceKind.TOPIC, LIST, GET),)
_EVERY_GROUP: Final = (_every(ResourceKind.GROUP, LIST, GET),)
_CLUSTER_GET: Final = (_cluster(GET),)
_CLUSTER_UPDATE: Final = (_cluster(UPDATE),)

_READERS: Final[dict[int, tuple[Part, ...]]] = {
    _Code.GET_ROUTEINFO_BY_TOPIC: (_topic("topic", PUB, SUB, GET),),
    _Code.GET_BROKER_CLUSTER_INFO: _CLUSTER_GET,
    _Code.GET_BROKER_MEMBER_GROUP: (_named_cluster(GET),),
    _Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _EVERY_TOPIC,
    _Code.GET_TOPICS_BY_CLUSTER: _EVERY_TOPIC,
    _Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: _EVERY_TOPIC,
    _Code.GET_UNIT_TOPIC_LIST: _EVERY_TOPIC,
    _Code.GET_HAS_UNIT_SUB_TOPIC_LIST: _EVERY_TOPIC,
    _Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _EVERY_TOPIC,
    _Code.GET_KV_CONFIG: _CLUSTER_GET,
    _Code.GET_KVLIST_BY_NAMESPACE: _CLUSTER_GET,
    _Code.WATCH_ROUTES: (_body("each Topic: Pub or Sub or Get; with `anyTopic`, every Topic: List or Get", _watch),),
}

_BROKERS_AT_NAME_SERVER: Final[dict[int, tuple[Part, ...]]] = {
    _Code.REGISTER_BROKER: (_named_cluster(UPDATE),),
    _Code.UNREGISTER_BROKER: (_named_cluster(UPDATE),),
    _Code.BROKER_HEARTBEAT: (_named_cluster(UPDATE),),
    # Apache's annotation says Get, but name servers take it as a heartbeat.
    _Code.QUERY_DATA_VERSION: (_named_cluster(UPDATE),),
    _Code.REGISTER_TOPIC_IN_NAMESRV: _CLUSTER_UPDATE,
}

_OPERATORS_AT_NAME_SERVER: Final[dict[int, tuple[Part, ...]]] = {
    _Code.PUT_KV_CONFIG: _CLUSTER_UPDATE,
    _Code.DELETE_KV_CONFIG: _CLUSTER_UPDATE,
    _Code.WIPE_WRITE_PERM_OF_BROKER: _CLUSTER_UPDATE,
    _Code.ADD_WRITE_PERM_OF_BROKER: _CLUSTER_UPDATE,
    _Code.DELETE_TOPIC_IN_NAMESRV: (_named_cluster(UPDATE),),
    _Code.UPDATE_NAMESRV_CONFIG: _CLUSTER_UPDATE,
    _Code.GET_NAMESRV_CONFIG: _CLUSTER_GET,
}

_CLIENTS: Final[dict[int, tuple[Part, ...]]] = {
    _Code.SEND_MESSAGE: (_SEND_LONG,),
    _Code.SEND_MESSAGE_V2: (_SEND_SHORT,),
    _Code.SEND_BATCH_MESSAGE: (_SEND_SHORT,),
    _Code.SEND_REPLY_MESSAGE: (_SEND_LONG,),
    _Code.SEND_REPLY_MESSAGE_V2: (_SEND_SHORT,),
    _Code.RECALL_MESSAGE: (_topic("topic", PUB),),
    # Producers before 5.0 do not name the topic; the broker compares the producer group with that of the half message.
    _Code.END_TRANSACTION: (_if_given(_topic("topic", PUB), "topic"),),
    _Code.PULL_MESSAGE: _PULL,
    _Code.LITE_PULL_MESSAGE: _PULL,
    _Code.CONSUMER_SEND_MSG_BACK: (_group("group", SUB),),
    _Code.HEART_BEAT: (_body("each consumer Group: Sub; each subscribed Topic: Sub", _heartbeat),),
    _Code.UNREGISTER_CLIENT: (_if_given(_group("consumerGroup", SUB), "consumerGroup"),),
    _Code.CHECK_CLIENT_CONFIG: (_body("Group: Sub; Topic: Sub", _client_check),),
    _Code.GET_CONSUMER_LIST_BY_GROUP: (_group("consumerGroup", SUB, GET),),
    _Code.LOCK_BATCH_MQ: _LOCKS,
    _Code.UNLOCK_BATCH_MQ: _LOCKS,
    _Code.QUERY_CONSUMER_OFFSET: (_topic("topic", SUB, GET), _group("consumerGroup", SUB, GET)),
    _Code.UPDATE_CONSUMER_OFFSET: (_topic("topic", SUB, UPDATE), _group("consumerGroup", SUB, UPDATE)),
    _Code.QUERY_MESSAGE: (_topic("topic", SUB, GET),),
    _Code.VIEW_MESSAGE_BY_ID: (_if_given(_topic("topic", GET), "topic"),),
    _Code.SEARCH_OFFSET_BY_TIMESTAMP: (_topic("topic", GET),),
    _Code.GET_MAX_OFFSET: (_topic("topic", GET),),
    _Code.GET_MIN_OFFSET: (_topic("topic", GET),),
    _Code.GET_EARLIEST_MSG_STORETIME: (_topic("topic", GET),),
    _Code.QUERY_ASSIGNMENT: (_body_group_and_topic(SUB),),
    _Code.POP_MESSAGE: _POP,
    _Code.ACK_MESSAGE: _ACK,
    _Code.PEEK_MESSAGE: _POP,
    _Code.CHANGE_MESSAGE_INVISIBLETIME: _ACK,
    _Code.NOTIFICATION: _POP,
    _Code.POLLING_INFO: (_group("consumerGroup", SUB, GET), _topic("topic", SUB, GET)),
    _Code.BATCH_ACK_MESSAGE: (_body("each Group: Sub; each Topic: Sub", _acks),),
}

_BROKERS_AT_BROKER: Final[dict[int, tuple[Part, ...]]] = {
    _Code.GET_ALL_TOPIC_CONFIG: _EVERY_TOPIC,
    _Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _EVERY_GROUP,
    _Code.GET_ALL_CONSUMER_OFFSET: _CLUSTER_GET,
    _Code.GET_ALL_DELAY_OFFSET: _CLUSTER_GET,
    _Code.GET_ALL_MESSAGE_REQUEST_MODE: _CLUSTER_GET,
    _Code.GET_TIMER_CHECK_POINT: _CLUSTER_GET,
    _Code.GET_TIMER_METRICS: _CLUSTER_GET,
    _Code.NOTIFY_MIN_BROKER_ID_CHANGE: _CLUSTER_UPDATE,
    _Code.EXCHANGE_BROKER_HA_INFO: _CLUSTER_UPDATE,
    _Code.RESET_MASTER_FLUSH_OFFSET: _CLUSTER_UPDATE,
    # Sent by a controller.
    _Code.NOTIFY_BROKER_ROLE_CHANGED: _CLUSTER_UPDATE,
}

_OPERATORS_AT_BROKER: Final[dict[int, tuple[Part, ...]]] = {
    _Code.UPDATE_AND_CREATE_TOPIC: (_topic("topic", CREATE),),
    _Code.UPDATE_AND_CREATE_TOPIC_LIST: (_body_names(ResourceKind.TOPIC, topics_in_list, CREATE),),
    _Code.UPDATE_AND_CREATE_STATIC_TOPIC: (_topic("topic", CREATE),),
    _Code.DELETE_TOPIC_IN_BROKER: (_topic("topic", DELETE),),
    _Code.GET_TOPIC_CONFIG: (_topic("topic", GET),),
    _Code.GET_TOPIC_STATS_INFO: (_topic("topic", GET),),
    _Code.QUERY_TOPIC_CONSUME_BY_WHO: (_topic("topic", GET),),
    _Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _EVERY_TOPIC,
    _Code.CLEAN_EXPIRED_CONSUMEQUEUE: _CLUSTER_UPDATE,
    _Code.CLEAN_UNUSED_TOPIC: _CLUSTER_UPDATE,
    _Code.DELETE_EXPIRED_COMMITLOG: _CLUSTER_UPDATE,
    _Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (
        _body_names(ResourceKind.GROUP, lambda body: (group_in_config(body),), CREATE, UPDATE),
    ),
    _Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: (_body_names(ResourceKind.GROUP, groups_in_list, CREATE, UPDATE),),
    _Code.GET_SUBSCRIPTIONGROUP_CONFIG: (_group("group", GET),),
    _Code.DELETE_SUBSCRIPTIONGROUP: (_group("groupName", DELETE),),
    _Code.UPDATE_AND_GET_GROUP_FORBIDDEN: (_group("group", UPDATE), _topic("topic", UPDATE)),
    _Code.QUERY_TOPICS_BY_CONSUMER: (_group("group", GET),),
    _Code.SET_MESSAGE_REQUEST_MODE: (_body_group_and_topic(UPDATE),),
    _Code.GET_CONSUME_STATS: (
        _group("consumerGroup", GET),
        _if_given(_field("topic", topic_need, ResourceKind.TOPIC, (GET,), strips=True), "topic"),
        _if_given(_field("topicList", topic_need, ResourceKind.TOPIC, (GET,), split=";"), "topicList"),
    ),
    _Code.GET_BROKER_CONSUME_STATS: _CLUSTER_GET,
    _Code.QUERY_CONSUME_TIME_SPAN: (_topic("topic", GET), _group("group", GET)),
    _Code.INVOKE_BROKER_TO_RESET_OFFSET: (_topic("topic", UPDATE), _group("group", UPDATE)),
    _Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: (_topic("topic", GET), _group("group", GET)),
    _Code.CLONE_GROUP_OFFSET: (
        _group("srcGroup", GET),
        _group("destGroup", UPDATE),
        _if_given(_topic("topic", UPDATE), "topic", _every(ResourceKind.TOPIC, UPDATE)),
    ),
    _Code.QUERY_CORRECTION_OFFSET: (
        _topic("topic", GET),
        _group("compareGroup", GET),
        _if_given(_field("filterGroups", _group_need, ResourceKind.GROUP, (GET,), split=","), "filterGroups"),
    ),
    _Code.QUERY_CONSUME_QUEUE: (_topic("topic", GET), _if_given(_group("consumerGroup", GET), "consumerGroup")),
    _Code.GET_CONSUMER_CONNECTION_LIST: (_group("consumerGroup", GET),),
    _Code.GET_PRODUCER_CONNECTION_LIST: _CLUSTER_GET,
    _Code.GET_ALL_PRODUCER_INFO: _CLUSTER_GET,
    _Code.QUERY_SUBSCRIPTION_BY_CONSUMER: (_group("group", GET), _if_given(_topic("topic", GET), "topic")),
    _Code.GET_CONSUMER_RUNNING_INFO: (_group("consumerGroup", GET),),
    _Code.CONSUME_MESSAGE_DIRECTLY: (
        _group("consumerGroup", SUB),
        _if_given(_topic("topic", SUB), "topic", _cluster(GET)),
    ),
    _Code.RESUME_CHECK_HALF_MESSAGE: (_if_given(_topic("topic", UPDATE), "topic", _cluster(UPDATE)),),
    _Code.GET_BROKER_CONFIG: _CLUSTER_GET,
    _Code.UPDATE_BROKER_CONFIG: _CLUSTER_UPDATE,
    _Code.GET_BROKER_RUNTIME_INFO: _CLUSTER_GET,
    _Code.VIEW_BROKER_STATS_DATA: _CLUSTER_GET,
    _Code.GET_BROKER_HA_STATUS: _CLUSTER_GET,
    _Code.GET_BROKER_EPOCH_CACHE: _CLUSTER_GET,
}

# A group of the controller is found by its name alone, so that a cluster in the request proves nothing: these need the
# controller's own cluster. Ids, registrations and heartbeats count only for a group of the cluster that they name.
_BROKERS_AT_CONTROLLER: Final[dict[int, tuple[Part, ...]]] = {
    _Code.CONTROLLER_ALTER_SYNC_STATE_SET: _CLUSTER_UPDATE,
    _Code.CONTROLLER_REGISTER_BROKER: (_named_cluster(UPDATE),),
    _Code.CONTROLLER_GET_REPLICA_INFO: _CLUSTER_GET,
    _Code.CONTROLLER_GET_METADATA_INFO: _CLUSTER_GET,
    _Code.CONTROLLER_GET_NEXT_BROKER_ID: (_named_cluster(GET),),
    _Code.CONTROLLER_APPLY_BROKER_ID: (_named_cluster(UPDATE),),
}

_OPERATORS_AT_CONTROLLER: Final[dict[int, tuple[Part, ...]]] = {
    _Code.CONTROLLER_GET_SYNC_STATE_DATA: _CLUSTER_GET,
    _Code.UPDATE_CONTROLLER_CONFIG: _CLUSTER_UPDATE,
    _Code.GET_CONTROLLER_CONFIG: _CLUSTER_GET,
    _Code.CLEAN_BROKER_DATA: _CLUSTER_UPDATE,
}

_MANAGEMENT: Final[dict[int, tuple[Part, ...]]] = {
    _Code.AUTH_CREATE_USER: _CLUSTER_UPDATE,
    _Code.AUTH_UPDATE_USER: _CLUSTER_UPDATE,
    _Code.AUTH_DELETE_USER: _CLUSTER_UPDATE,
    _Code.AUTH_GET_USER: _CLUSTER_GET,
    _Code.AUTH_LIST_USER: _CLUSTER_GET,
    _Code.AUTH_CREATE_ACL: _CLUSTER_UPDATE,
    _Code.AUTH_UPDATE_ACL: _CLUSTER_UPDATE,
    _Code.AUTH_DELETE_ACL: _CLUSTER_UPDATE,
    _Code.AUTH_GET_ACL: _CLUSTER_GET,
    _Code.AUTH_LIST_ACL: _CLUSTER_GET,
}


def _rows() -> Iterator[tuple[int, Row]]:
    for server, door, needs in (
        (Server.NAME_SERVER, Door.READER, _READERS),
        (Server.NAME_SERVER, Door.BROKER, _BROKERS_AT_NAME_SERVER),
        (Server.NAME_SERVER, Door.OPERATOR, _OPERATORS_AT_NAME_SERVER),
        (Server.BROKER, Door.CLIENT, _CLIENTS),
        (Server.BROKER, Door.BROKER, _BROKERS_AT_BROKER),
        (Server.BROKER, Door.OPERATOR, _OPERATORS_AT_BROKER),
        (Server.CONTROLLER, Door.BROKER, _BROKERS_AT_CONTROLLER),
        (Server.CONTROLLER, Door.OPERATOR, _OPERATORS_AT_CONTROLLER),
    ):
        for code, parts in needs.items():
            yield int(code), Row((server,), door, parts)
    for code, parts in _MANAGEMENT.items():
        yield int(code), Row(tuple(Server), Door.OPERATOR, parts)
    # Both take heartbeats.
    heartbeat = _BROKERS_AT_NAME_SERVER[_Code.BROKER_HEARTBEAT]
    yield int(_Code.BROKER_HEARTBEAT), Row((Server.NAME_SERVER, Server.CONTROLLER), Door.BROKER, heartbeat)
    elect = Row((Server.CONTROLLER,), Door.BROKER, _CLUSTER_UPDATE, operator_field="designateElect")
    yield int(_Code.CONTROLLER_ELECT_MASTER), elect


NEEDS: Final[Mapping[int, Row]] = MappingProxyType(dict(_rows()))
"""The rows by request code."""

SENT_TO_CLIENTS: Final = frozenset(
    {
        _Code.CHECK_TRANSACTION_STATE,
        _Code.NOTIFY_CONSUMER_IDS_CHANGED,
        _Code.RESET_CONSUMER_CLIENT_OFFSET,
        _Code.GET_CONSUMER_STATUS_FROM_CLIENT,
        _Code.PUSH_REPLY_MESSAGE_TO_CLIENT,
    }
)
"""Requests that only brokers send, to clients: no server answers them, so they have no row."""


def needs_table() -> str:
    """Return the table of needs in Markdown, for `docs/security.md`."""
    lines = ["| Code | Request | Server | Door | Needs |", "|---|---|---|---|---|"]
    for code, row in sorted(NEEDS.items()):
        servers, door = ", ".join(row.servers), row.door.value
        if row.operator_field:
            door = f"{door}; operator with `{row.operator_field}`"
        lines.append(f"| {code} | {RequestCode(code).name} | {servers} | {door} | {row.text} |")
    return "\n".join(lines) + "\n"
