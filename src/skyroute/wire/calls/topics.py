"""Requests of operators about clusters and topics: settings, offsets, consumer groups."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, TypeVar

import msgspec

from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import DEFAULT_TOPIC
from skyroute.routing.topology import BrokerGroup, ClusterView, Permission
from skyroute.wire import fastjson
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Int32, Int64, Request, Response
from skyroute.wire.data_version import Version
from skyroute.wire.errors import BodyError, FieldError
from skyroute.wire.fields import optional_int, required_int32, truth
from skyroute.wire.queue_maps import QueueKeys, by_queue, decode_with_queue_keys, separated, write_legacy

PAGE_MAX: Final = 2000
"""Maximum number of topics or groups in one page."""

T = TypeVar("T")


def read_body(body: bytes, kind: type[T], what: str) -> T:
    """Decode the body of a response.

    Raises:
        BodyError: it is invalid.
    """
    try:
        decoded: T = fastjson.decode(body, kind)
    except fastjson.JsonError as error:
        raise BodyError(f"not {what}: {error}") from None
    return decoded


REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024
"""Maximum size of the JSON body of a request to a broker."""

LENIENT_BYTES_MAX: Final = 16 * 1024
"""Maximum size if it is not standard JSON: conversion takes a millisecond per KiB."""


def read_request(body: bytes, kind: type[T], what: str) -> T:
    """Decode the body of a request.

    Raises:
        BodyError: the body is invalid or too long.
    """
    if len(body) > REQUEST_BYTES_MAX:
        raise BodyError(f"{what} of {len(body)} bytes (expected at most {REQUEST_BYTES_MAX})")
    try:
        decoded: T = fastjson.decode(body, kind, LENIENT_BYTES_MAX)
    except fastjson.JsonError as error:
        raise BodyError(f"not {what}: {error}") from None
    return decoded


# ------------------------------------------------------------------------------------------------- at name servers


class _BrokerData(msgspec.Struct, rename="camel"):
    broker_name: str
    broker_addrs: dict[int, str] = {}
    cluster: str = ""
    enable_acting_master: bool = False
    zone_name: str | None = None


class _ClusterInfo(msgspec.Struct, rename="camel"):
    broker_addr_table: dict[str, _BrokerData] = {}
    cluster_addr_table: dict[str, list[str | None]] = {}
    """Null if a broker registered without a name at Apache's name server."""


class _TopicList(msgspec.Struct, rename="camel"):
    topic_list: list[str] = []


def encode_cluster_query() -> Request:
    """Encode a request for all clusters and brokers."""
    return Request(RequestCode.GET_BROKER_CLUSTER_INFO)


def decode_cluster_view(body: bytes) -> ClusterView:
    """Decode all clusters and brokers, sorted by name.

    Raises:
        BodyError: it is invalid.
    """
    info = read_body(body, _ClusterInfo, "a list of clusters")
    return ClusterView(
        groups=tuple(
            BrokerGroup(
                name, data.cluster, dict(sorted(data.broker_addrs.items())), data.enable_acting_master, data.zone_name
            )
            for name, data in sorted(info.broker_addr_table.items())
        ),
        clusters={
            cluster: tuple(sorted(name for name in names if name))
            for cluster, names in sorted(info.cluster_addr_table.items())
        },
    )


def encode_topic_list_query() -> Request:
    """Encode a request for all topics."""
    return Request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)


def decode_topic_list(body: bytes) -> list[str]:
    """Decode a list of topics.

    Raises:
        BodyError: it is invalid.
    """
    return read_body(body, _TopicList, "a list of topics").topic_list if body else []


def encode_name_server_topic_deletion(topic: str, cluster: str | None = None) -> Request:
    """Encode the deletion of a topic at a name server, everywhere or in one cluster."""
    fields = {"topic": topic}
    if cluster is not None:
        fields["clusterName"] = cluster
    return Request(RequestCode.DELETE_TOPIC_IN_NAMESRV, fields)


def encode_write_permission(broker_name: str, *, allowed: bool) -> Request:
    """Encode a request to forbid or restore writes to a broker's topics at a name server."""
    code = RequestCode.ADD_WRITE_PERM_OF_BROKER if allowed else RequestCode.WIPE_WRITE_PERM_OF_BROKER
    return Request(code, {"brokerName": broker_name})


def decode_write_permission(response: Response) -> int:
    """Decode the number of topics affected.

    Raises:
        FieldError: it is not a number.
    """
    fields = response.fields or {}
    return optional_int(fields, "wipeTopicCount" if "wipeTopicCount" in fields else "addTopicCount", 0)


# ------------------------------------------------------------------------------------------------------ at brokers


class TopicConfig(
    msgspec.Struct,
    frozen=True,
    rename={
        "name": "topicName",
        "read_queues": "readQueueNums",
        "write_queues": "writeQueueNums",
        "permission": "perm",
        "filter_type": "topicFilterType",
        "sys_flag": "topicSysFlag",
        "ordered": "order",
    },
):
    """The settings of a topic on one broker."""

    name: str
    read_queues: Int32 = 16
    write_queues: Int32 = 16
    permission: Int32 = Permission.READ | Permission.WRITE
    filter_type: str = "SINGLE_TAG"
    sys_flag: Int32 = 0
    ordered: bool = False
    attributes: dict[str, str] = {}


def write_attribute_changes(changes: Mapping[str, str | None]) -> str:
    """Encode changes of attributes; None deletes one."""
    return ",".join(f"-{name}" if value is None else f"+{name}={value}" for name, value in changes.items())


def read_attribute_changes(text: str) -> dict[str, str | None]:
    """Decode changes of attributes: `+name=value,-name`.

    Raises:
        FieldError: it is malformed, or names an attribute twice.
    """
    changes: dict[str, str | None] = {}
    for piece in filter(None, map(str.strip, text.split(","))):
        name, sign, value = piece[1:].partition("=")
        if not name or piece[0] not in "+-" or bool(sign) != (piece[0] == "+"):
            raise FieldError(f"attributes: {piece!r} is invalid (expected +name=value or -name)")
        if name in changes:
            raise FieldError(f"attributes: {name} occurs twice")
        changes[name] = value if sign else None
    return changes


def encode_topic_update(config: TopicConfig, attribute_changes: Mapping[str, str | None] | None = None) -> Request:
    """Encode a request to create or change a topic; the changes of attributes are sent, not those of `config`."""
    return Request(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        {
            "topic": config.name,
            "defaultTopic": DEFAULT_TOPIC,
            "readQueueNums": str(config.read_queues),
            "writeQueueNums": str(config.write_queues),
            "perm": str(int(config.permission)),
            "topicFilterType": config.filter_type,
            "topicSysFlag": str(config.sys_flag),
            "order": "true" if config.ordered else "false",
            "attributes": write_attribute_changes(attribute_changes or {}),
        },
    )


class TopicUpdate(msgspec.Struct, frozen=True):
    """The new settings of a topic, and the changes of its attributes."""

    config: TopicConfig
    attribute_changes: dict[str, str | None]


FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")


def decode_topic_update(request: Request) -> TopicUpdate:
    """Decode the new settings of a topic. The name is not checked.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    filter_type = fields.get("topicFilterType") or FILTER_TYPES[0]
    if filter_type not in FILTER_TYPES:
        raise FieldError(f"topicFilterType = [{filter_type[:40]}] value invalid")
    config = TopicConfig(
        fields.get("topic", ""),
        required_int32(fields, "readQueueNums"),
        required_int32(fields, "writeQueueNums"),
        required_int32(fields, "perm"),
        filter_type,
        optional_int(fields, "topicSysFlag", 0),
        truth(fields, "order"),
    )
    return TopicUpdate(config, read_attribute_changes(fields.get("attributes", "")))


class _TopicUpdates(msgspec.Struct, rename="camel"):
    topic_config_list: list[TopicConfig]


def decode_topic_updates(body: bytes) -> list[TopicUpdate]:
    """Decode the new settings of many topics.

    Raises:
        BodyError: it is invalid.
        FieldError: a change of an attribute is malformed.
    """
    return [
        TopicUpdate(msgspec.structs.replace(config, attributes={}), unsign_attributes(config.attributes))
        for config in read_request(body, _TopicUpdates, "a list of topics").topic_config_list
    ]


def unsign_attributes(signed: Mapping[str, str]) -> dict[str, str | None]:
    """Return changes of attributes from a table with `+` or `-` before each name.

    Raises:
        FieldError: a name has no sign, or occurs twice.
    """
    changes: dict[str, str | None] = {}
    for name, value in signed.items():
        if name[:1] not in ("+", "-") or len(name) < 2:
            raise FieldError(f"wrong format key: {name[:80]}")
        if name[1:] in changes:
            raise FieldError(f"alter duplication key. key: {name[1:81]}")
        changes[name[1:]] = value if name[0] == "+" else None
    return changes


def encode_topic_deletion(topic: str) -> Request:
    """Encode the deletion of a topic and its messages on a broker."""
    return Request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})


def encode_topic_config_query(topic: str) -> Request:
    """Encode a request for the settings of one topic."""
    return Request(RequestCode.GET_TOPIC_CONFIG, {"topic": topic, "lo": "true"})


def decode_topic_config(body: bytes) -> TopicConfig:
    """Decode the settings of one topic.

    Raises:
        BodyError: it is invalid.
    """
    return read_body(body, TopicConfig, "a topic's settings")


def encode_topic_config(config: TopicConfig) -> Response:
    """Encode the settings of one topic."""
    return Response(body=msgspec.json.encode(config))


def page_fields(kind: str, start: int, version: Version | None) -> dict[str, str]:
    """Return the fields of a request for one page of a broker's table: `kind` is Topic or Group."""
    return {
        f"{kind.lower()}Seq": str(start),
        f"max{kind}Num": str(PAGE_MAX),
        "dataVersion": msgspec.json.encode(version).decode() if version is not None else "",
    }


class PageQuery(msgspec.Struct, frozen=True):
    """A request for one page of a broker's table."""

    start: int
    count_max: int
    version: Version | None
    """The version of the table to which `start` refers."""


def decode_page_query(kind: str, request: Request) -> PageQuery | None:
    """Decode a request for a page of a broker's table; `kind` is Topic or Group. None: the whole table.

    Raises:
        FieldError: a field is malformed.
    """
    fields = request.fields
    start_name, count_name = f"{kind.lower()}Seq", f"max{kind}Num"
    if not {start_name, count_name, "dataVersion"} & fields.keys():
        return None
    text = fields.get("dataVersion", "").strip()
    try:
        version = fastjson.decode(text.encode("utf-8", "replace"), Version) if text else None
    except fastjson.JsonError as error:
        raise FieldError(f"dataVersion: {error}") from None
    count_max = min(optional_int(fields, count_name, PAGE_MAX), PAGE_MAX)
    return PageQuery(max(optional_int(fields, start_name, 0), 0), max(count_max, 0), version)


def cut_page(table: Mapping[str, T], query: PageQuery, version: Version) -> dict[str, T]:
    """Return the requested page of a table; the first one, if the earlier pages are of another version.

    Entries are in the table's own order, which is the same for all pages of one version.
    """
    start = query.start if query.version == version else 0
    return dict(islice(table.items(), start, start + query.count_max))


class TopicPage(msgspec.Struct, frozen=True):
    """One page of a broker's topics."""

    topics: dict[str, TopicConfig]
    version: Version
    total: int | None
    """Total number; None from a broker without paging, which sends all."""


class _TopicConfigs(msgspec.Struct, rename="camel"):
    topic_config_table: dict[str, TopicConfig] = {}
    data_version: Version = Version()


def encode_topic_page_query(start: int = 0, version: Version | None = None) -> Request:
    """Encode a request for topics from index `start` on, or from 0 if the table has changed since `version`."""
    return Request(RequestCode.GET_ALL_TOPIC_CONFIG, page_fields("Topic", start, version))


def decode_topic_page(response: Response) -> TopicPage:
    """Decode one page of a broker's topics.

    Raises:
        BodyError, FieldError: it cannot be read.
    """
    decoded = read_body(response.body, _TopicConfigs, "a table of topics")
    total = optional_int(response.fields or {}, "totalTopicNum", -1)
    return TopicPage(decoded.topic_config_table, decoded.data_version, total if total >= 0 else None)


class MappingTable(msgspec.Struct, frozen=True):
    """Mappings of static topics by topic, as `wire/calls/static_topics.py` has them, and their version."""

    mappings: Mapping[str, msgspec.Struct] = {}
    version: Version = Version()


_NO_MAPPINGS: Final = MappingTable()


def encode_topic_page(page: TopicPage, static: MappingTable = _NO_MAPPINGS) -> Response:
    """Encode one page of a broker's topics, with the mappings of static topics."""
    body = {
        "dataVersion": page.version,
        "mappingDataVersion": static.version,
        "topicConfigTable": page.topics,
        "topicQueueMappingDetailMap": static.mappings,
    }
    return Response(fields={"totalTopicNum": str(page.total)}, body=msgspec.json.encode(body))


def topic_table_pieces(
    entries: Iterable[bytes], version: Version, mappings: Iterable[bytes], mapping_version: Version
) -> Iterator[bytes]:
    """Encode the body of `encode_topic_page` for all topics, in pieces."""
    versions = msgspec.json.encode(version), msgspec.json.encode(mapping_version)
    yield b'{"dataVersion":%b,"mappingDataVersion":%b,"topicConfigTable":{' % versions
    yield from entries
    yield b'},"topicQueueMappingDetailMap":{'
    yield from mappings
    yield b"}}"


class QueueSpan(
    msgspec.Struct,
    frozen=True,
    rename={"updated_at_ms": "lastUpdateTimestamp"} | {"min_offset": "minOffset", "max_offset": "maxOffset"},
):
    """Minimum and maximum offset of a queue."""

    min_offset: Int64 = 0
    max_offset: Int64 = 0
    updated_at_ms: Int64 = 0
    """Store time of its last message; 0 if it has none."""


class TopicStats(msgspec.Struct, frozen=True):
    """The queues of a topic on one broker."""

    queues: dict[QueueRef, QueueSpan]
    put_tps: float = 0.0


class _TopicStats(msgspec.Struct, rename="camel"):
    offset_table: dict[str, QueueSpan] = {}
    topic_put_tps: float = 0.0


def encode_topic_stats_query(topic: str) -> Request:
    """Encode a request for the offsets of a topic's queues."""
    return Request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})


def decode_topic_stats(body: bytes) -> TopicStats:
    """Decode the offsets of a topic's queues.

    Raises:
        BodyError: it is invalid.
    """
    decoded = decode_with_queue_keys(body, _TopicStats)
    return TopicStats(by_queue(decoded.offset_table), decoded.topic_put_tps)


def topic_stats_parts(
    topic: str, broker_name: str, queues: Iterable[tuple[int, QueueSpan]], put_tps: float
) -> Iterator[str]:
    """Encode the offsets of a topic's queues, one part per queue."""
    keys = QueueKeys(topic, broker_name)
    yield '{"offsetTable":{'
    yield from separated(f"{keys.write(queue_id)}:{write_struct(span)}" for queue_id, span in queues)
    yield f'}},"topicPutTps":{put_tps!r}}}'


def write_struct(value: msgspec.Struct) -> str:
    """Encode a value as part of a larger body."""
    return msgspec.json.encode(value).decode()


class _GroupList(msgspec.Struct, rename="camel"):
    group_list: list[str] = []


def encode_topic_readers_query(topic: str) -> Request:
    """Encode a request for the groups that consume a topic, or have offsets of it."""
    return Request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic})


def decode_topic_readers(body: bytes) -> list[str]:
    """Decode the groups that consume a topic.

    Raises:
        BodyError: it is invalid.
    """
    return sorted(read_body(body, _GroupList, "a list of groups").group_list)


def topic_readers_parts(groups: Iterable[str | None]) -> Iterator[str]:
    """Encode the groups that consume a topic, one part each; None for a group that does not."""
    yield '{"groupList":['
    yield from separated("" if group is None else write_legacy(group) for group in groups)
    yield "]}"


def topic_list_parts(topics: Iterable[str], broker_address: str) -> Iterator[str]:
    """Encode a broker's list of topics, one part each."""
    yield f'{{"brokerAddr":{write_legacy(broker_address)},"topicList":['
    yield from separated(map(write_legacy, topics))
    yield "]}"


def encode_topic_list(topics: Collection[str]) -> Response:
    """Return a response with a list of topics."""
    return Response(body=msgspec.json.encode({"topicList": sorted(topics)}))
