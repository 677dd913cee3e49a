"""Route requests and responses, in both JSON dialects."""

from collections.abc import Collection, Generator, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from skyroute.routing.topology import (
    QUEUES_MAX,
    ROUTE_QUEUES_MAX,
    BrokerGroup,
    BrokerQueues,
    ClusterView,
    QueueSettings,
    TopicRoute,
)
from skyroute.wire import fastjson
from skyroute.wire.calls.mapping import MappingBody, write_mapping
from skyroute.wire.codes import V4_9_4, RequestCode
from skyroute.wire.command import Int32, Request
from skyroute.wire.errors import BodyError, FieldError
from skyroute.wire.fastjson import Dialect
from skyroute.wire.fields import is_name, required_name, truth

ANNOUNCED_BYTES_MAX: Final = 64 * 1024
"""Maximum size of the registration of a single topic, which is processed in one step: some 500 brokers."""
TOPICS_A_STEP: Final = 4_000
GROUPS_A_STEP: Final = 400
"""Entries of a long list written in one step: a few milliseconds."""

BROKERS_MAX: Final = 10_000
"""Maximum number of broker groups, and of addresses, in a route that is read: a client sends a heartbeat to each."""

_STRICT, _LEGACY = Dialect.STRICT, Dialect.LEGACY


class _BrokerData(msgspec.Struct, rename="camel"):
    broker_name: str
    broker_addrs: dict[int, str] | None = None
    cluster: str | None = None
    enable_acting_master: bool = False
    zone_name: str | None = None

    def value(self) -> BrokerGroup:
        return BrokerGroup(
            self.broker_name, self.cluster or "", self.broker_addrs or {}, self.enable_acting_master, self.zone_name
        )


class _QueueData(msgspec.Struct, gc=False, rename="camel"):
    broker_name: str
    read_queue_nums: Int32 = 0
    write_queue_nums: Int32 = 0
    perm: Int32 = 0
    topic_sys_flag: Int32 = 0
    topic_syn_flag: Int32 = 0  # spelling of name servers before 4.9

    def value(self) -> QueueSettings:
        flag = self.topic_sys_flag or self.topic_syn_flag
        return QueueSettings(self.read_queue_nums, self.write_queue_nums, self.perm, flag)


class _Route(msgspec.Struct, rename="camel"):
    broker_datas: list[_BrokerData] | None = None
    queue_datas: list[_QueueData] | None = None
    filter_server_table: dict[str, list[str]] | None = None
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, MappingBody] | None = None


class RouteQuery(msgspec.Struct, frozen=True, gc=False):
    """Topic, dialect of the response, and optional zone of a route request."""

    topic: str
    dialect: Dialect
    zone: str | None


def decode_route_query(request: Request) -> RouteQuery:
    """Decode a route request.

    Raises:
        FieldError: the topic is missing.
    """
    fields = request.fields
    # Newer clients read standard JSON; other languages' clients may require it, whatever their version.
    strict = request.version >= V4_9_4 or truth(fields, "acceptStandardJsonOnly")
    zone = None
    if "__ZONE_MODE" in fields and truth(fields, "__ZONE_MODE"):
        zone = fields.get("__ZONE_NAME", "").strip() or None
    topic = fields.get("topic")
    if not topic:
        raise FieldError("topic is required")
    return RouteQuery(topic, _STRICT if strict else _LEGACY, zone)


def encode_route(route: TopicRoute, dialect: Dialect) -> bytes:
    """Encode a route. Empty lists and maps are included: clients fail without."""
    write, write_map = partial(fastjson.write_text, dialect=dialect), partial(fastjson.write, dialect=dialect)
    groups = ",".join([_write_group(group, dialect) for group in route.groups])
    # Formatted by hand for speed: a name server encodes many routes after a change.
    queues = ",".join(
        [
            f'{{"brokerName":{write(name)},"perm":{settings.permission},"readQueueNums":{settings.read_queues},'
            f'"topicSysFlag":{settings.sys_flag},"writeQueueNums":{settings.write_queues}}}'
            for name, settings in ((queues.broker_name, queues.settings) for queues in route.queues)
        ]
    )
    filters = write_map({address: servers for address, servers in route.filter_servers.items() if servers})
    order = f'"orderTopicConf":{write(route.order_config)},' if route.order_config is not None else ""
    parts = sorted(route.mappings.items()) if dialect is _STRICT else route.mappings.items()
    written = ",".join([f"{write(name)}:{write_mapping(part, dialect)}" for name, part in parts])
    mappings = f',"topicQueueMappingByBroker":{{{written}}}' if written else ""
    text = f'{{"brokerDatas":[{groups}],"filterServerTable":{filters},{order}"queueDatas":[{queues}]{mappings}}}'
    return text.encode("utf-8", "replace")


def _write_group(group: BrokerGroup, dialect: Dialect) -> str:
    zone = f',"zoneName":{fastjson.write_text(group.zone, dialect)}' if group.zone is not None else ""
    return (
        f'{{"brokerAddrs":{fastjson.write(group.addresses, dialect)},'
        f'"brokerName":{fastjson.write_text(group.name, dialect)},'
        f'"cluster":{fastjson.write_text(group.cluster, dialect)},'
        f'"enableActingMaster":{"true" if group.acting_master else "false"}{zone}}}'
    )


def encode_route_query(topic: str) -> Request:
    """Encode a route request; the version requests standard JSON."""
    return Request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})


def decode_route(body: bytes) -> TopicRoute:
    """Decode a route in either dialect.

    Raises:
        BodyError: it cannot be read, or a queue count is out of bounds.
    """
    try:
        decoded: _Route = fastjson.decode(body, _Route)
        _check_brokers(decoded.broker_datas or ())
        return TopicRoute(
            groups=tuple(data.value() for data in decoded.broker_datas or ()),
            queues=_queues(decoded.queue_datas or (), "not a route"),
            filter_servers={key: tuple(servers) for key, servers in (decoded.filter_server_table or {}).items()},
            mappings={name: part.value("?") for name, part in (decoded.topic_queue_mapping_by_broker or {}).items()},
            order_config=decoded.order_topic_conf,
        )
    except fastjson.JsonError as error:
        raise BodyError(f"not a route: {error}") from None


def _check_brokers(datas: Collection[_BrokerData]) -> None:
    addresses = sum(len(data.broker_addrs or ()) for data in datas)
    if max(len(datas), addresses) > BROKERS_MAX:
        raise BodyError(
            f"not a route: {len(datas)} broker groups with {addresses} addresses (expected at most {BROKERS_MAX})"
        )


def _queues(datas: Collection[_QueueData], problem: str) -> tuple[BrokerQueues, ...]:
    queues = tuple(BrokerQueues(data.broker_name, data.value()) for data in datas)
    for name, settings in ((each.broker_name, each.settings) for each in queues):
        if not settings.is_within_bounds():
            raise BodyError(
                f"{problem}: broker {name[:80]!r} has {settings.read_queues} read and {settings.write_queues} write"
                f" queues (expected 0 to {QUEUES_MAX})"
            )
    total = sum(max(each.settings.read_queues, each.settings.write_queues) for each in queues)
    if total > ROUTE_QUEUES_MAX:
        raise BodyError(f"{problem}: {len(queues)} brokers have {total} queues (expected at most {ROUTE_QUEUES_MAX})")
    return queues


def structure_dialect(request: Request) -> Dialect:
    """Return the dialect of bodies other than routes: Java's, except for clients that cannot read it."""
    return Dialect.STRICT if truth(request.fields, "acceptStandardJsonOnly") else Dialect.LEGACY


def encode_cluster_view(view: ClusterView, dialect: Dialect) -> Generator[None, None, list[bytes]]:
    """Encode all broker groups and clusters, in steps; the result is the body in pieces."""
    groups = sorted(view.groups, key=lambda group: group.name)
    pieces = [b'{"brokerAddrTable":{']
    for at in range(0, len(groups), GROUPS_A_STEP):
        some = groups[at : at + GROUPS_A_STEP]
        text = ",".join(f"{fastjson.write_text(group.name, dialect)}:{_write_group(group, dialect)}" for group in some)
        pieces.append((("," if at else "") + text).encode("utf-8", "replace"))
        yield
    clusters = f'}},"clusterAddrTable":{fastjson.write(view.clusters, dialect)}}}'
    pieces.append(clusters.encode("utf-8", "replace"))
    return pieces


def encode_member_group(cluster: str, broker_name: str, addresses: Mapping[int, str], dialect: Dialect) -> bytes:
    """Encode the members of one broker group; `cluster` is that of the request."""
    group = {"brokerAddrs": addresses, "brokerName": broker_name, "cluster": cluster}
    return fastjson.dumps({"brokerMemberGroup": group}, dialect)


class _MemberGroup(msgspec.Struct, rename="camel"):
    broker_addrs: dict[int, str] | None = None


class _MemberGroupBody(msgspec.Struct, rename="camel"):
    broker_member_group: _MemberGroup | None = None


def encode_member_group_query(cluster: str, broker_name: str) -> Request:
    """Ask a name server for the members of a broker group."""
    return Request(RequestCode.GET_BROKER_MEMBER_GROUP, {"clusterName": cluster, "brokerName": broker_name})


def decode_member_group(body: bytes) -> dict[int, str]:
    """Decode the addresses of a broker group's members by broker id.

    Raises:
        BodyError: it is invalid.
    """
    try:
        group = msgspec.convert(fastjson.loads(body), _MemberGroupBody, strict=False).broker_member_group
    except (msgspec.ValidationError, ValueError) as error:
        raise BodyError(f"the members of a broker group cannot be read: {error}") from None
    return {} if group is None or group.broker_addrs is None else group.broker_addrs


def encode_topic_list(topics: Sequence[str], broker_address: str | None = None) -> Generator[None, None, list[bytes]]:
    """Encode a list of topics, and the address of one broker, in steps; the result is the body in pieces."""
    broker = "" if broker_address is None else f'"brokerAddr":{fastjson.write_text(broker_address, _LEGACY)},'
    pieces = [f'{{{broker}"topicList":['.encode("utf-8", "replace")]
    for at in range(0, len(topics), TOPICS_A_STEP):
        text = ",".join([fastjson.write_text(topic, _LEGACY) for topic in topics[at : at + TOPICS_A_STEP]])
        pieces.append((("," if at else "") + text).encode("utf-8", "replace"))
        yield
    pieces.append(b"]}")
    return pieces


def encode_topic_registration(topic: str, broker_name: str, settings: QueueSettings) -> Request:
    """Write the announcement of a single topic of one broker."""
    body = encode_route(TopicRoute((), (BrokerQueues(broker_name, settings),)), _STRICT)
    return Request(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": topic}, body=body)


def decode_topic_registration(request: Request) -> tuple[str, dict[str, QueueSettings]]:
    """Decode the registration of a single topic: its name, and its queues by broker name.

    Raises:
        FieldError: the topic is missing.
        BodyError: the body cannot be read, or a queue count is out of bounds.
    """
    topic = required_name(request.fields, "topic")
    if not request.body:
        return topic, {}
    if len(request.body) > ANNOUNCED_BYTES_MAX:
        raise BodyError(f"a topic's queues of {len(request.body)} bytes (expected at most {ANNOUNCED_BYTES_MAX})")
    try:
        announced: _Route = fastjson.decode(request.body, _Route)
    except fastjson.JsonError as error:
        raise BodyError(f"not a topic's queues: {error}") from None
    for data in announced.queue_datas or ():
        if not is_name(data.broker_name):
            raise BodyError(f"not a topic's queues: brokerName is not a name: {data.broker_name[:80]!r}")
    queues = _queues(announced.queue_datas or (), "not a topic's queues")
    return topic, {each.broker_name: each.settings for each in queues}
