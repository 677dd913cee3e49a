"""What administrators ask about consumer groups: their settings, who is connected, and how far they have come."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.topics import Version, page_fields, read_body
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Int32, Int64, Request, Response
from skyroute.wire.fields import optional_int
from skyroute.wire.queue_maps import by_queue, decode_with_queue_keys


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
    """What one broker keeps of a consumer group."""

    name: str
    enabled: bool = True
    from_min: bool = True
    broadcast: bool = True
    ordered: bool = False
    retry_queues: Int32 = 1
    retry_times_max: Int32 = 16
    retry_policy: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "CUSTOMIZED"})
    """How long to wait before which attempt, in Java's own form."""
    broker_id: Int64 = 0
    """Which member of a broker group to read from."""
    broker_id_when_slow: Int64 = 1
    """Which one to read from instead while lagging far behind."""
    notify_members: bool = True
    """Members are told when others come and go."""
    sys_flag: Int32 = 0
    timeout_min: Int32 = 15
    attributes: dict[str, str] = {}


def encode_group_update(config: GroupConfig, attribute_changes: Mapping[str, str | None] | None = None) -> Request:
    """Have a broker create a consumer group, or replace its settings; of attributes, only changes travel."""
    members = msgspec.to_builtins(config)
    members["attributes"] = {
        f"-{name}" if value is None else f"+{name}": value or "" for name, value in (attribute_changes or {}).items()
    }
    return Request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=msgspec.json.encode(members))


def encode_group_deletion(group: str, *, with_offsets: bool) -> Request:
    """Have a broker forget a consumer group, and if so told, how far it had come."""
    fields = {"groupName": group, "cleanOffset": "true" if with_offsets else "false"}
    return Request(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)


def encode_group_config_query(group: str) -> Request:
    """Ask a broker for the settings of one group."""
    return Request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group})


def decode_group_config(body: bytes) -> GroupConfig:
    """Read the settings of one group.

    Raises:
        BodyError: it cannot be read.
    """
    return read_body(body, GroupConfig, "a group's settings")


class GroupPage(msgspec.Struct, frozen=True):
    """A part of a broker's consumer groups."""

    groups: dict[str, GroupConfig]
    version: Version
    total: int | None
    """How many there are; None where this is all, from a broker that knows no pages."""


class _GroupConfigs(msgspec.Struct, rename="camel"):
    subscription_group_table: dict[str, GroupConfig] = {}
    data_version: Version = Version()


def encode_group_page_query(start: int = 0, version: Version | None = None) -> Request:
    """Ask a broker for groups from the `start`-th on. If its table has changed since `version`, it begins anew."""
    return Request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, page_fields("Group", start, version))


def decode_group_page(response: Response) -> GroupPage:
    """Read a part of a broker's groups.

    Raises:
        BodyError, FieldError: it cannot be read.
    """
    decoded = read_body(response.body, _GroupConfigs, "a table of groups")
    total = optional_int(response.fields or {}, "totalGroupNum", -1)
    return GroupPage(decoded.subscription_group_table, decoded.data_version, total if total >= 0 else None)


# ------------------------------------------------------------------------------------------------------ connections


class Connection(msgspec.Struct, frozen=True, rename={"client_id": "clientId", "address": "clientAddr"}, order=True):
    """A client as a broker sees it."""

    client_id: str
    address: str
    language: str = "JAVA"
    version: Int32 = 0

    @property
    def release(self) -> str:
        """The name of the release it is of, as Apache's tools show it."""
        return release_name(self.version)


_V4_0_0_SNAPSHOT: Final = 212
_HIGHER_VERSION: Final = 612


def release_name(version: int) -> str:
    """Return the name of a release by its place in Apache's list, as far as that is regular: from 4.0.0 on."""
    if version < _V4_0_0_SNAPSHOT:
        return "older than V4_0_0"
    if version >= _HIGHER_VERSION:
        return "HIGHER_VERSION"
    # Every number is there with and without SNAPSHOT, from x.0.0 to x.9.9, whether it was ever released or not.
    place, is_final = divmod(version - _V4_0_0_SNAPSHOT, 2)
    return f"V{4 + place // 100}_{place // 10 % 10}_{place % 10}{'' if is_final else '_SNAPSHOT'}"


class SubscriptionView(
    msgspec.Struct,
    frozen=True,
    rename={"expression": "subString", "tags": "tagsSet", "expression_type": "expressionType"},
):
    """What a group wants of a topic, as a broker heard it."""

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
    """Who is connected for a consumer group, and what for."""

    connections: tuple[Connection, ...] = ()
    subscriptions: dict[str, SubscriptionView] = {}
    consume_type: str = ""
    model: str = ""
    start_from: str = ""


class _ProducerConnections(msgspec.Struct, rename={"connections": "connectionSet"}):
    connections: tuple[Connection, ...] = ()


def encode_consumer_connections_query(group: str) -> Request:
    """Ask a broker who is connected for a consumer group."""
    return Request(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})


def decode_consumer_connections(body: bytes) -> ConsumerConnections:
    """Read who is connected for a consumer group.

    Raises:
        BodyError: it cannot be read.
    """
    return read_body(body, ConsumerConnections, "a group's connections")


def encode_producer_connections_query(group: str) -> Request:
    """Ask a broker who is connected for a producer group."""
    return Request(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": group})


def decode_producer_connections(body: bytes) -> tuple[Connection, ...]:
    """Read who is connected for a producer group.

    Raises:
        BodyError: it cannot be read.
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
    """How far a group has come with one queue."""

    broker_offset: Int64 = 0
    """Where the next message will be."""
    consumer_offset: Int64 = 0
    """Where the group goes on."""
    pull_offset: Int64 = 0
    """Up to where its members have been given messages."""
    last_at_ms: Int64 = 0
    """When the last message it has consumed was stored; 0 if that is unknown."""

    @property
    def lag(self) -> int:
        """How many messages it has not consumed yet."""
        return self.broker_offset - self.consumer_offset

    @property
    def inflight(self) -> int:
        """How many messages its members hold, but have not finished."""
        return self.pull_offset - self.consumer_offset


class ConsumeStats(msgspec.Struct, frozen=True):
    """How far a group has come on one broker."""

    queues: dict[QueueRef, QueueProgress]
    tps: float = 0.0


class _ConsumeStats(msgspec.Struct, rename="camel"):
    offset_table: dict[str, QueueProgress] = {}
    consume_tps: float = 0.0


def encode_consume_stats_query(group: str, topic: str | None = None) -> Request:
    """Ask a broker how far a group has come, with all topics or with one."""
    fields = {"consumerGroup": group}
    if topic is not None:
        fields["topic"] = topic
    return Request(RequestCode.GET_CONSUME_STATS, fields)


def decode_consume_stats(body: bytes) -> ConsumeStats:
    """Read how far a group has come.

    Raises:
        BodyError: it cannot be read.
    """
    decoded = decode_with_queue_keys(body, _ConsumeStats)
    return ConsumeStats(by_queue(decoded.offset_table), decoded.consume_tps)


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
    """Have a broker move a group to a time (-1: to the end), or in one queue to an offset."""
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
    """Read where a group was moved to.

    Raises:
        BodyError: it cannot be read.
    """
    return by_queue(decode_with_queue_keys(body, _ResetOffsets).offset_table)
