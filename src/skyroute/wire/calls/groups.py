"""Requests of operators about consumer groups: settings, connections, progress."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.topics import page_fields, read_body, read_request, unsign_attributes
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Int32, Int64, Request, Response
from skyroute.wire.data_version import Version
from skyroute.wire.errors import BodyError
from skyroute.wire.fields import is_name, optional_int, required_name, truth
from skyroute.wire.queue_maps import by_queue, decode_with_queue_keys, write_legacy

GROUP_BYTES_MAX: Final = 64 * 1024
"""Maximum size of a request with the settings of one group."""

POLICY_BYTES_MAX: Final = 1024
"""Maximum size of a retry policy; one of 16 delays has less than 200 bytes."""

_DEFAULT_POLICY: Final = {"type": "CUSTOMIZED"}


class GroupConfig(
    msgspec.Struct,
    frozen=True,
    rename={
        "name": "groupName",
        "enabled": "consumeEnable",
        "from_min": "consumeFromMinEnable",
        "broadcast": "consumeBroadcastEnable",
        "ordered": "consumeMessageOrderly",
        "retry_queues": "retryQueueNums",
        "retry_times_max": "retryMaxTimes",
        "retry_policy": "groupRetryPolicy",
        "broker_id": "brokerId",
        "broker_id_when_slow": "whichBrokerWhenConsumeSlowly",
        "notify_members": "notifyConsumerIdsChangedEnable",
        "sys_flag": "groupSysFlag",
        "timeout_min": "consumeTimeoutMinute",
    },
):
    """The settings of a consumer group on one broker."""

    name: str = ""
    """May be empty in a request, which is refused."""
    enabled: bool = True
    from_min: bool = True
    broadcast: bool = True
    ordered: bool = False
    retry_queues: Int32 = 1
    retry_times_max: Int32 = 16
    retry_policy: dict[str, Any] = msgspec.field(default_factory=lambda: dict(_DEFAULT_POLICY))
    """Retry policy, in Java's JSON."""
    broker_id: Int64 = 0
    """Broker id to read from."""
    broker_id_when_slow: Int64 = 1
    """Broker id to read from while the group lags far behind."""
    notify_members: bool = True
    """Notify members when others join or leave."""
    sys_flag: Int32 = 0
    timeout_min: Int32 = 15
    attributes: dict[str, str] = {}


def encode_group_update(config: GroupConfig, attribute_changes: Mapping[str, str | None] | None = None) -> Request:
    """Encode a request to create a consumer group or replace its settings; of attributes, only changes are sent."""
    members = msgspec.to_builtins(config)
    members["attributes"] = {
        f"-{name}" if value is None else f"+{name}": value or "" for name, value in (attribute_changes or {}).items()
    }
    return Request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=msgspec.json.encode(members))


class GroupUpdate(msgspec.Struct, frozen=True):
    """The new settings of a group, and the changes of its attributes."""

    config: GroupConfig
    attribute_changes: dict[str, str | None]


class _GroupUpdates(msgspec.Struct, rename="camel"):
    group_config_list: list[GroupConfig]


def decode_group_update(body: bytes) -> GroupUpdate:
    """Decode the new settings of a group. The name is not checked.

    Raises:
        BodyError: it is invalid.
        FieldError: a change of an attribute is malformed.
    """
    if len(body) > GROUP_BYTES_MAX:
        raise BodyError(f"a group's settings of {len(body)} bytes (expected at most {GROUP_BYTES_MAX})")
    return _update_of(read_request(body, GroupConfig, "a group's settings"))


def decode_group_updates(body: bytes) -> Iterator[GroupUpdate]:
    """Decode the new settings of many groups: the body at the first step, one group at each.

    Raises:
        BodyError: it is invalid.
        FieldError: a change of an attribute is malformed.
    """
    yield from map(_update_of, read_request(body, _GroupUpdates, "a list of groups").group_config_list)


def _update_of(config: GroupConfig) -> GroupUpdate:
    if config.retry_policy != _DEFAULT_POLICY:
        _check_policy(config.retry_policy)
    return GroupUpdate(msgspec.structs.replace(config, attributes={}), unsign_attributes(config.attributes))


def _check_policy(policy: Mapping[str, Any]) -> None:
    size = len(msgspec.json.encode(policy))
    if size > POLICY_BYTES_MAX:
        raise BodyError(f"not a group's settings: groupRetryPolicy has {size} bytes (expected {POLICY_BYTES_MAX})")
    try:
        write_legacy(policy)
    except TypeError as error:
        raise BodyError(f"not a group's settings: {error}") from None


def encode_group_deletion(group: str, *, with_offsets: bool) -> Request:
    """Encode a request to delete a consumer group, optionally with its offsets."""
    fields = {"groupName": group, "cleanOffset": "true" if with_offsets else "false"}
    return Request(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)


class GroupDeletion(msgspec.Struct, frozen=True):
    """The group to delete, and whether to delete its offsets."""

    group: str
    with_offsets: bool


def decode_group_deletion(request: Request) -> GroupDeletion:
    """Decode a request to delete a group.

    Raises:
        FieldError: a field is missing or malformed.
    """
    return GroupDeletion(required_name(request.fields, "groupName"), truth(request.fields, "cleanOffset"))


def encode_group_config_query(group: str) -> Request:
    """Encode a request for the settings of one group."""
    return Request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group})


def decode_group_config(body: bytes) -> GroupConfig:
    """Decode the settings of one group.

    Raises:
        BodyError: it is invalid.
    """
    return read_body(body, GroupConfig, "a group's settings")


def encode_group_config(config: GroupConfig) -> Response:
    """Encode the settings of one group."""
    return Response(body=msgspec.json.encode(config))


class GroupPage(msgspec.Struct, frozen=True):
    """One page of a broker's consumer groups."""

    groups: dict[str, GroupConfig]
    version: Version
    total: int | None
    """Total number; None from a broker without paging, which sends all."""


class _GroupConfigs(msgspec.Struct, rename="camel"):
    subscription_group_table: dict[str, GroupConfig] = {}
    data_version: Version = Version()


def encode_group_page_query(start: int = 0, version: Version | None = None) -> Request:
    """Encode a request for groups from index `start` on, or from 0 if the table has changed since `version`."""
    return Request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, page_fields("Group", start, version))


def decode_group_page(response: Response) -> GroupPage:
    """Decode one page of a broker's groups.

    Raises:
        BodyError, FieldError: it cannot be read.
    """
    decoded = read_body(response.body, _GroupConfigs, "a table of groups")
    total = optional_int(response.fields or {}, "totalGroupNum", -1)
    return GroupPage(decoded.subscription_group_table, decoded.data_version, total if total >= 0 else None)


def encode_group_page(page: GroupPage, forbidden: Mapping[str, Mapping[str, int]]) -> Response:
    """Encode one page of a broker's groups, and the topics that they may not read."""
    body = {
        "dataVersion": page.version,
        "forbiddenTable": {group: dict(forbidden[group]) for group in page.groups if group in forbidden},
        "subscriptionGroupTable": page.groups,
    }
    return Response(fields={"totalGroupNum": str(page.total)}, body=msgspec.json.encode(body))


def group_table_pieces(forbidden: Iterable[bytes], entries: Iterable[bytes], version: Version) -> Iterator[bytes]:
    """Encode the body of `encode_group_page` for all groups, in pieces."""
    yield b'{"dataVersion":%b,"forbiddenTable":{' % msgspec.json.encode(version)
    yield from forbidden
    yield b'},"subscriptionGroupTable":{'
    yield from entries
    yield b"}}"


class ReadPermit(msgspec.Struct, frozen=True):
    """Whether a group may read a topic; None queries it."""

    group: str
    topic: str
    readable: bool | None


def decode_read_permit(request: Request) -> ReadPermit:
    """Decode a change or query of a group's permission to read a topic.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    readable = truth(fields, "readable") if fields.get("readable") else None
    return ReadPermit(required_name(fields, "group"), required_name(fields, "topic"), readable)


def encode_read_permit(permit: ReadPermit) -> Response:
    """Encode whether a group may read a topic."""
    return Response(remark="", body=msgspec.json.encode(permit))


class RequestMode(msgspec.Struct, frozen=True, rename={"group": "consumerGroup", "shared_queues": "popShareQueueNum"}):
    """The request mode of a group for a topic, PULL or POP, with rebalancing by the broker."""

    topic: str
    group: str
    mode: str = "PULL"
    shared_queues: Int32 = 0
    """With POP, the number of additional members that share each queue."""


REQUEST_MODES: Final = ("PULL", "POP")


def decode_request_mode(body: bytes) -> RequestMode:
    """Decode a request mode.

    Raises:
        BodyError: it is invalid.
    """
    mode = read_request(body, RequestMode, "a request mode")
    if not is_name(mode.topic) or not is_name(mode.group) or mode.mode not in REQUEST_MODES:
        raise BodyError(f"not a request mode: {mode.topic[:80]!r} {mode.group[:80]!r} {mode.mode[:80]!r}")
    return mode


# ------------------------------------------------------------------------------------------------------ connections


class Connection(msgspec.Struct, frozen=True, rename={"client_id": "clientId", "address": "clientAddr"}, order=True):
    """A connected client of a broker."""

    client_id: str
    address: str
    language: str = "JAVA"
    version: Int32 = 0

    @property
    def release(self) -> str:
        """The name of its release, as Apache's tools show it."""
        return release_name(self.version)


_V4_0_0_SNAPSHOT: Final = 212
_HIGHER_VERSION: Final = 612


def release_name(version: int) -> str:
    """Return the name of a release by its index in Apache's list, which is regular from 4.0.0 on."""
    if version < _V4_0_0_SNAPSHOT:
        return "older than V4_0_0"
    if version >= _HIGHER_VERSION:
        return "HIGHER_VERSION"
    # The list has every number from x.0.0 to x.9.9, with and without SNAPSHOT, released or not.
    place, is_final = divmod(version - _V4_0_0_SNAPSHOT, 2)
    return f"V{4 + place // 100}_{place // 10 % 10}_{place % 10}{'' if is_final else '_SNAPSHOT'}"


class SubscriptionView(
    msgspec.Struct,
    frozen=True,
    rename={"expression": "subString", "tags": "tagsSet", "expression_type": "expressionType"},
):
    """A group's subscription to a topic, as the broker knows it."""

    topic: str
    expression: str = "*"
    tags: tuple[str, ...] = ()
    expression_type: str = "TAG"


class ConsumerConnections(
    msgspec.Struct,
    frozen=True,
    rename={
        "connections": "connectionSet",
        "subscriptions": "subscriptionTable",
        "consume_type": "consumeType",
        "model": "messageModel",
        "start_from": "consumeFromWhere",
    },
):
    """Connections and subscriptions of a consumer group."""

    connections: tuple[Connection, ...] = ()
    subscriptions: dict[str, SubscriptionView] = {}
    consume_type: str = ""
    model: str = ""
    start_from: str = ""


class _ProducerConnections(msgspec.Struct, rename={"connections": "connectionSet"}):
    connections: tuple[Connection, ...] = ()


def encode_consumer_connections_query(group: str) -> Request:
    """Encode a request for the connections of a consumer group."""
    return Request(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})


def decode_consumer_connections(body: bytes) -> ConsumerConnections:
    """Decode the connections of a consumer group.

    Raises:
        BodyError: it is invalid.
    """
    return read_body(body, ConsumerConnections, "a group's connections")


def encode_producer_connections_query(group: str) -> Request:
    """Encode a request for the connections of a producer group."""
    return Request(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": group})


def decode_producer_connections(body: bytes) -> tuple[Connection, ...]:
    """Decode the connections of a producer group.

    Raises:
        BodyError: it is invalid.
    """
    return read_body(body, _ProducerConnections, "a group's connections").connections


# --------------------------------------------------------------------------------------------------------- progress


class QueueProgress(
    msgspec.Struct,
    frozen=True,
    rename={
        "broker_offset": "brokerOffset",
        "consumer_offset": "consumerOffset",
        "pull_offset": "pullOffset",
        "last_at_ms": "lastTimestamp",
    },
):
    """Progress of a group in one queue."""

    broker_offset: Int64 = 0
    """Offset of the next message of the queue."""
    consumer_offset: Int64 = 0
    """Committed offset of the group."""
    pull_offset: Int64 = 0
    """Offset up to which its members have pulled."""
    last_at_ms: Int64 = 0
    """Store time of the last consumed message; 0 if unknown."""

    @property
    def lag(self) -> int:
        """Number of messages not consumed yet."""
        return self.broker_offset - self.consumer_offset

    @property
    def inflight(self) -> int:
        """Number of messages pulled and not consumed yet."""
        return max(0, self.pull_offset - self.consumer_offset)  # brokers before 5.0 do not send the first


class PopProgress(msgspec.Struct, frozen=True, rename="camel"):
    """Popped messages of a group in a topic on one broker. Only our brokers send it."""

    in_flight: int = 0
    """Messages that are not acknowledged and not visible again."""
    waiting: int = 0
    """Pops in long polling."""


class ConsumeStats(msgspec.Struct, frozen=True):
    """Progress of a group on one broker."""

    queues: dict[QueueRef, QueueProgress]
    tps: float = 0.0
    pops: dict[str, PopProgress] = {}
    """Popped messages by topic."""


class _ConsumeStats(msgspec.Struct, rename="camel"):
    offset_table: dict[str, QueueProgress] = {}
    consume_tps: float = 0.0
    pop_table: dict[str, PopProgress] = {}


def encode_consume_stats_query(group: str, topic: str | None = None) -> Request:
    """Encode a request for the progress of a group in all topics, or in one."""
    fields = {"consumerGroup": group}
    if topic is not None:
        fields["topic"] = topic
    return Request(RequestCode.GET_CONSUME_STATS, fields)


def decode_consume_stats(body: bytes) -> ConsumeStats:
    """Decode the progress of a group.

    Raises:
        BodyError: it is invalid.
    """
    decoded = decode_with_queue_keys(body, _ConsumeStats)
    return ConsumeStats(by_queue(decoded.offset_table), decoded.consume_tps, decoded.pop_table)


class _ResetOffsets(msgspec.Struct, rename="camel"):
    offset_table: dict[str, Int64] = {}


def encode_reset_order(
    topic: str,
    group: str,
    timestamp_ms: int,
    *,
    force: bool = True,
    queue_id: int | None = None,
    offset: int | None = None,
) -> Request:
    """Encode an offset reset to a time (-1: the end), or in one queue to an offset."""
    fields = {
        "topic": topic,
        "group": group,
        "timestamp": str(timestamp_ms),
        "isForce": "true" if force else "false",
        "queueId": str(-1 if queue_id is None else queue_id),
        "offset": str(-1 if offset is None else offset),
    }
    return Request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)


def decode_reset_offsets(body: bytes) -> dict[QueueRef, int]:
    """Decode the offsets after a reset.

    Raises:
        BodyError: it is invalid.
    """
    return by_queue(decode_with_queue_keys(body, _ResetOffsets).offset_table)
