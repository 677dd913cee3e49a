import json
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyroute.remoting.stepwise import run_through
from skyroute.routing.topology import (
    QUEUES_MAX,
    BrokerGroup,
    BrokerQueues,
    ClusterView,
    Permission,
    QueueSettings,
    StaticMapping,
    TopicFlag,
    TopicRoute,
)
from skyroute.wire.calls.route import (
    RouteQuery,
    decode_route,
    decode_route_query,
    decode_topic_registration,
    encode_cluster_view,
    encode_member_group,
    encode_route,
    encode_route_query,
    encode_topic_list,
    structure_dialect,
)
from skyroute.wire.command import Request
from skyroute.wire.errors import BodyError, FieldError
from skyroute.wire.fastjson import Dialect, dumps
from tests.unit.wire.golden import golden_line

LEGACY, STRICT = Dialect.LEGACY, Dialect.STRICT
BOTH = pytest.mark.parametrize("dialect", Dialect)


def whole(steps: Generator[None, None, list[bytes]]) -> bytes:
    """A body that is written in steps and comes in pieces."""
    return b"".join(run_through(steps))


def query(version: int = 479, /, **fields: str) -> RouteQuery:
    return decode_route_query(Request(code=105, fields={"topic": "T", **fields}, version=version))


def group(name: str = "broker-a", **rest: Any) -> BrokerGroup:
    return BrokerGroup(name, "DefaultCluster", {0: "10.0.0.1:10911"}, **rest)


# ------------------------------------------------------------------------------------------------------- questions


@pytest.mark.parametrize(
    ("version", "accept", "dialect"),
    [
        (0, None, LEGACY),
        (317, None, LEGACY),
        (400, None, LEGACY),
        (401, None, STRICT),
        (479, None, STRICT),
        (10_000, None, STRICT),
        (317, "true", STRICT),
        (317, "TRUE", STRICT),
        (317, "false", LEGACY),
        (317, "", LEGACY),
        (479, "false", STRICT),
    ],
)
def test_newer_clients_and_those_that_request_it_get_standard_json(
    version: int, accept: str | None, dialect: Dialect
) -> None:
    fields = {} if accept is None else {"acceptStandardJsonOnly": accept}
    assert query(version, **fields).dialect is dialect


@pytest.mark.parametrize(
    ("fields", "zone"),
    [
        ({}, None),
        ({"__ZONE_NAME": "z1"}, None),
        ({"__ZONE_MODE": "true"}, None),
        ({"__ZONE_MODE": "true", "__ZONE_NAME": ""}, None),
        ({"__ZONE_MODE": "true", "__ZONE_NAME": "  "}, None),
        ({"__ZONE_MODE": "false", "__ZONE_NAME": "z1"}, None),
        ({"__ZONE_MODE": "1", "__ZONE_NAME": "z1"}, None),
        ({"__ZONE_MODE": "true", "__ZONE_NAME": "z1"}, "z1"),
        ({"__ZONE_MODE": "TRUE", "__ZONE_NAME": "Z1"}, "Z1"),
    ],
)
def test_a_zone_counts_only_in_zone_mode(fields: dict[str, str], zone: str | None) -> None:
    assert query(**fields).zone == zone


@pytest.mark.parametrize("topic", ["TopicTest", "%RETRY%group", "主题", "a\nb"])
def test_any_topic_may_be_requested(topic: str) -> None:
    assert query(topic=topic).topic == topic


@pytest.mark.parametrize("fields", [{}, {"topic": ""}])
def test_a_request_without_a_topic_is_refused_by_name(fields: dict[str, str]) -> None:
    with pytest.raises(FieldError, match="topic is required"):
        decode_route_query(Request(code=105, fields=fields))


def test_our_own_request_is_a_request() -> None:
    request = encode_route_query("TopicTest")
    assert (request.code, decode_route_query(request).topic) == (105, "TopicTest")


@pytest.mark.parametrize(("accept", "dialect"), [(None, LEGACY), ("false", LEGACY), ("true", STRICT)])
def test_other_bodies_are_legacy_unless_requested_otherwise(accept: str | None, dialect: Dialect) -> None:
    fields = {} if accept is None else {"acceptStandardJsonOnly": accept}
    assert structure_dialect(Request(fields=fields, version=479)) is dialect


# ---------------------------------------------------------------------------------------------------------- routes


@BOTH
def test_an_empty_route_still_has_its_three_containers(dialect: Dialect) -> None:
    assert encode_route(TopicRoute((), ()), dialect) == b'{"brokerDatas":[],"filterServerTable":{},"queueDatas":[]}'


@BOTH
def test_a_group_without_addresses_has_an_empty_map(dialect: Dialect) -> None:
    body = encode_route(TopicRoute((BrokerGroup("b", "c", {}),), ()), dialect)
    assert b'"brokerAddrs":{}' in body


@BOTH
def test_what_a_route_lacks_is_left_out_and_never_null(dialect: Dialect) -> None:
    route = TopicRoute((group(),), (BrokerQueues("broker-a", QueueSettings(4, 4, 6)),))
    body = encode_route(route, dialect)
    for absent in (b"null", b"zoneName", b"orderTopicConf", b"topicQueueMappingByBroker", b"$ref"):
        assert absent not in body


@BOTH
def test_a_group_has_its_acting_master_flag_and_zone(dialect: Dialect) -> None:
    body = encode_route(TopicRoute((group(acting_master=True, zone="z1"),), ()), dialect)
    assert b'"enableActingMaster":true,"zoneName":"z1"}' in body


@BOTH
def test_groups_and_queues_keep_their_order(dialect: Dialect) -> None:
    route = TopicRoute(
        groups=(group("b"), group("a")),
        queues=(BrokerQueues("b", QueueSettings(1, 2, 4, 3)), BrokerQueues("a", QueueSettings(5, 6, 2))),
    )
    assert encode_route(route, dialect).endswith(
        b'"queueDatas":[{"brokerName":"b","perm":4,"readQueueNums":1,"topicSysFlag":3,"writeQueueNums":2},'
        b'{"brokerName":"a","perm":2,"readQueueNums":5,"topicSysFlag":0,"writeQueueNums":6}]}'
    )


@pytest.mark.parametrize(
    ("dialect", "written"), [(LEGACY, b'{0:"a:1",2:"c:1",10:"b:1"}'), (STRICT, b'{"0":"a:1","2":"c:1","10":"b:1"}')]
)
def test_addresses_are_keyed_by_broker_id(dialect: Dialect, written: bytes) -> None:
    body = encode_route(TopicRoute((BrokerGroup("b", "c", {0: "a:1", 2: "c:1", 10: "b:1"}),), ()), dialect)
    assert b'"brokerAddrs":' + written in body


@BOTH
def test_filter_servers_are_keyed_by_broker_address(dialect: Dialect) -> None:
    route = TopicRoute((), (), filter_servers={"10.0.0.1:10911": ("f:1", "f:2"), "10.0.0.2:10911": ()})
    assert b'"filterServerTable":{"10.0.0.1:10911":["f:1","f:2"]}' in encode_route(route, dialect)


@BOTH
def test_a_route_has_the_order_config(dialect: Dialect) -> None:
    route = TopicRoute((), (), order_config="broker-a:4;broker-b:4")
    assert b'"orderTopicConf":"broker-a:4;broker-b:4"' in encode_route(route, dialect)


@pytest.mark.parametrize(("dialect", "ids"), [(LEGACY, b"{0:5,1:6}"), (STRICT, b'{"0":5,"1":6}')])
def test_a_static_topic_shows_each_brokers_part(dialect: Dialect, ids: bytes) -> None:
    part = StaticMapping("T", "broker-a", 2, 7, "s", True, {0: 5, 1: 6})
    body = encode_route(TopicRoute((), (), mappings={"broker-a": part}), dialect)
    assert body.endswith(
        b'"topicQueueMappingByBroker":{"broker-a":{"bname":"broker-a","currIdMap":' + ids + b',"dirty":true,"epoch":7,'
        b'"scope":"s","topic":"T","totalQueues":2}}}'
    )


@BOTH
def test_a_part_without_queues_has_an_empty_map(dialect: Dialect) -> None:
    body = encode_route(TopicRoute((), (), mappings={"b": StaticMapping("T", "b", 0, 0)}), dialect)
    assert b'"currIdMap":{}' in body


@BOTH
@pytest.mark.parametrize("name", ["d-route-legacy.txt", "d-route-strict.txt", "route-static-zone-strict.txt"])
def test_a_route_is_read_back_from_what_it_was_written_as(dialect: Dialect, name: str) -> None:
    route = decode_route(golden_line(f"spec/{name}"))
    assert decode_route(encode_route(route, dialect)) == route


NAMES = st.text(min_size=1, max_size=8)
INT32S = st.integers(0, (1 << 31) - 1)
GROUPS = st.builds(
    BrokerGroup,
    NAMES,
    st.text(max_size=8),
    st.dictionaries(st.integers(0, 1 << 40), NAMES, max_size=3),
    st.booleans(),
    st.none() | NAMES,
)
COUNTS = st.integers(0, QUEUES_MAX)
QUEUES = st.builds(BrokerQueues, NAMES, st.builds(QueueSettings, COUNTS, COUNTS, INT32S, INT32S))
PARTS = st.builds(
    StaticMapping,
    NAMES,
    NAMES,
    INT32S,
    st.integers(0, (1 << 53) - 1),
    NAMES,
    st.booleans(),
    st.dictionaries(INT32S, INT32S, max_size=3),
)
ROUTES = st.builds(
    TopicRoute,
    st.lists(GROUPS, max_size=2).map(tuple),
    st.lists(QUEUES, max_size=2).map(tuple),
    st.dictionaries(NAMES, st.lists(NAMES, min_size=1, max_size=2).map(tuple), max_size=2),
    st.dictionaries(NAMES, PARTS, max_size=2),
    st.none() | NAMES,
)


@settings(deadline=None, max_examples=60)
@given(route=ROUTES, dialect=st.sampled_from(Dialect))
def test_any_route_is_read_back_as_it_was(route: TopicRoute, dialect: Dialect) -> None:
    body = encode_route(route, dialect)
    assert decode_route(body) == route
    if dialect is STRICT:
        assert set(json.loads(body)) >= {"brokerDatas", "filterServerTable", "queueDatas"}


def group_members(group: BrokerGroup) -> dict[str, Any]:
    return {
        "brokerAddrs": group.addresses,
        "brokerName": group.name,
        "cluster": group.cluster,
        "enableActingMaster": group.acting_master,
        "zoneName": group.zone,
    }


def route_members(route: TopicRoute) -> dict[str, Any]:
    """A route under the wire's names, in their order, for the general writer."""
    queues = [
        {
            "brokerName": queues.broker_name,
            "perm": queues.settings.permission,
            "readQueueNums": queues.settings.read_queues,
            "topicSysFlag": queues.settings.sys_flag,
            "writeQueueNums": queues.settings.write_queues,
        }
        for queues in route.queues
    ]
    mappings = {
        name: {
            "bname": part.broker_name,
            "currIdMap": part.current_ids,
            "dirty": part.dirty,
            "epoch": part.epoch,
            "scope": part.scope,
            "topic": part.topic,
            "totalQueues": part.total_queues,
        }
        for name, part in route.mappings.items()
    }
    return {
        "brokerDatas": [group_members(group) for group in route.groups],
        "filterServerTable": {address: servers for address, servers in route.filter_servers.items() if servers},
        "orderTopicConf": route.order_config,
        "queueDatas": queues,
        "topicQueueMappingByBroker": mappings or None,
    }


# Whatever may need an escape, a lone surrogate included, and names that need none.
ANY_NAMES = st.text(st.characters(), max_size=6) | st.from_regex(r"[\w.:-]{1,12}", fullmatch=True)
ANY_GROUPS = st.builds(
    BrokerGroup,
    ANY_NAMES,
    ANY_NAMES,
    st.dictionaries(st.integers(0, (1 << 63) - 1), ANY_NAMES, max_size=3),
    st.booleans(),
    st.none() | ANY_NAMES,
)
ANY_NUMBERS = st.integers(-(1 << 31), (1 << 31) - 1)
ANY_ROUTES = st.builds(
    TopicRoute,
    st.lists(ANY_GROUPS, max_size=2).map(tuple),
    st.lists(
        st.builds(
            BrokerQueues,
            ANY_NAMES,
            st.builds(
                QueueSettings,
                ANY_NUMBERS,
                ANY_NUMBERS,
                ANY_NUMBERS | st.sampled_from([Permission.READ, Permission.READ | Permission.WRITE]),
                ANY_NUMBERS | st.sampled_from(TopicFlag),
            ),
        ),
        max_size=2,
    ).map(tuple),
    st.dictionaries(ANY_NAMES, st.lists(ANY_NAMES, max_size=2).map(tuple), max_size=2),
    st.dictionaries(
        ANY_NAMES,
        st.builds(
            StaticMapping,
            ANY_NAMES,
            ANY_NAMES,
            ANY_NUMBERS,
            st.integers(-(1 << 63), (1 << 63) - 1),
            ANY_NAMES,
            st.booleans(),
            st.dictionaries(ANY_NUMBERS, ANY_NUMBERS, max_size=3),
        ),
        max_size=2,
    ),
    st.none() | ANY_NAMES,
)


@settings(deadline=None, max_examples=100)
@given(route=ANY_ROUTES)
def test_any_route_is_written_as_its_members_would_be(route: TopicRoute) -> None:
    for dialect in Dialect:
        assert encode_route(route, dialect) == dumps(route_members(route), dialect)


@pytest.mark.parametrize("spelling", [b"topicSysFlag", b"topicSynFlag"])
def test_a_route_has_the_system_flag_in_the_spelling_of_4x_too(spelling: bytes) -> None:
    body = b'{"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":8,"writeQueueNums":4,"%b":1}]}' % spelling
    assert [queues.settings.sys_flag for queues in decode_route(body).queues] == [1]


@pytest.mark.parametrize("body", [b"{}", b'{"brokerDatas":null,"queueDatas":null,"filterServerTable":null}'])
def test_a_route_that_lacks_its_containers_is_empty(body: bytes) -> None:
    assert decode_route(body) == TopicRoute((), ())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"x",
        b'{"brokerDatas":5}',
        b'{"brokerDatas":[{}]}',
        b'{"brokerDatas":[{"brokerName":"b","brokerAddrs":{"x":"a:1"}}]}',
        b'{"queueDatas":[{"brokerName":"b","perm":"x"}]}',
        b'{"topicQueueMappingByBroker":{"b":5}}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_route_is_refused(body: bytes) -> None:
    with pytest.raises(BodyError, match="not a route"):
        decode_route(body)


# ----------------------------------------------------------------------------------------- clusters, groups, lists


@pytest.mark.parametrize(("dialect", "ids"), [(LEGACY, b'{0:"10.0.0.1:10911"}'), (STRICT, b'{"0":"10.0.0.1:10911"}')])
def test_a_cluster_view_has_groups_by_name_and_names_by_cluster(dialect: Dialect, ids: bytes) -> None:
    view = ClusterView((group("a", zone="z1"), group("b")), {"DefaultCluster": ("a", "b")})
    start = b'{"brokerAddrTable":{"a":{"brokerAddrs":' + ids
    rest = (
        b',"brokerName":"a","cluster":"DefaultCluster","enableActingMaster":false,"zoneName":"z1"},"b":{"brokerAddrs":'
        + ids
        + b',"brokerName":"b","cluster":"DefaultCluster","enableActingMaster":false}},'
        b'"clusterAddrTable":{"DefaultCluster":["a","b"]}}'
    )
    assert whole(encode_cluster_view(view, dialect)) == start + rest


@settings(deadline=None)
@given(
    groups=st.lists(ANY_GROUPS, max_size=4, unique_by=lambda group: group.name),
    clusters=st.dictionaries(ANY_NAMES, st.lists(ANY_NAMES, max_size=2).map(tuple), max_size=2),
)
def test_any_cluster_view_is_written_as_its_members_would_be(
    groups: list[BrokerGroup], clusters: dict[str, tuple[str, ...]]
) -> None:
    table = {group.name: group_members(group) for group in sorted(groups, key=lambda group: group.name)}
    members = {"brokerAddrTable": table, "clusterAddrTable": clusters}
    for dialect in Dialect:
        assert whole(encode_cluster_view(ClusterView(tuple(groups), clusters), dialect)) == dumps(members, dialect)


@BOTH
def test_an_empty_cluster_view_still_has_both_tables(dialect: Dialect) -> None:
    assert whole(encode_cluster_view(ClusterView((), {}), dialect)) == b'{"brokerAddrTable":{},"clusterAddrTable":{}}'


@pytest.mark.parametrize(("dialect", "ids"), [(LEGACY, b'{0:"a:1",1:"b:1"}'), (STRICT, b'{"0":"a:1","1":"b:1"}')])
def test_a_member_group_has_the_cluster_of_the_request(dialect: Dialect, ids: bytes) -> None:
    assert encode_member_group("any", "broker-a", {0: "a:1", 1: "b:1"}, dialect) == (
        b'{"brokerMemberGroup":{"brokerAddrs":' + ids + b',"brokerName":"broker-a","cluster":"any"}}'
    )


@BOTH
def test_an_unknown_member_group_has_no_addresses(dialect: Dialect) -> None:
    assert encode_member_group("c", "b", {}, dialect) == (
        b'{"brokerMemberGroup":{"brokerAddrs":{},"brokerName":"b","cluster":"c"}}'
    )


def test_a_topic_list_may_be_empty() -> None:
    assert whole(encode_topic_list([])) == b'{"topicList":[]}'


def test_a_topic_list_takes_any_iterable_and_keeps_its_order() -> None:
    assert whole(encode_topic_list(["b", "a", "主题/1"])) == '{"topicList":["b","a","主题/1"]}'.encode()


# ----------------------------------------------------------------------------------------- registering one topic


def announced(body: bytes, **fields: str) -> tuple[str, dict[str, QueueSettings]]:
    return decode_topic_registration(Request(code=217, fields={"topic": "T", **fields}, body=body))


@pytest.mark.parametrize("body", [b"", b"{}", b'{"queueDatas":null}', b'{"queueDatas":[]}', b'{"brokerDatas":[]}'])
def test_a_topic_may_be_announced_without_queues(body: bytes) -> None:
    assert announced(body) == ("T", {})


def test_a_topic_is_announced_with_the_queues_of_each_broker() -> None:
    body = (
        b'{"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":8,"topicSysFlag":1,"writeQueueNums":4},'
        b'{"brokerName":"b","perm":"4","readQueueNums":2},{brokerName:\'c\'}]}'
    )
    assert announced(body) == (
        "T",
        {"a": QueueSettings(8, 4, 6, 1), "b": QueueSettings(2, 0, 4), "c": QueueSettings(0, 0, 0)},
    )


@pytest.mark.parametrize("topic", ["", "a\nb"])
def test_a_topic_without_a_name_is_not_announced(topic: str) -> None:
    with pytest.raises(FieldError, match="topic"):
        announced(b"{}", topic=topic)


@pytest.mark.parametrize(
    "body",
    [
        b"null",
        b"[]",
        b"5",
        b"x",
        b"{",
        b'{"queueDatas":5}',
        b'{"queueDatas":"abc"}',
        b'{"queueDatas":{"a":1}}',
        b'{"queueDatas":[5]}',
        b'{"queueDatas":[null]}',
        b'{"queueDatas":[{}]}',
        b'{"queueDatas":[{"brokerName":[]}]}',
        b'{"queueDatas":[{"brokerName":null}]}',
        b'{"queueDatas":[{"brokerName":5}]}',
        b'{"queueDatas":[{"brokerName":"b","perm":6.7}]}',
        b'{"queueDatas":[{"brokerName":"b","perm":"6_0"}]}',
        b'{"queueDatas":[{"brokerName":"b","perm":2147483648}]}',
        b'{"queueDatas":[{"brokerName":"b","perm":"x"}]}',
        b'{"queueDatas":[{"brokerName":"b","perm":[]}]}',
        b"[" * 100_000,
    ],
)
def test_an_announcement_that_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(BodyError):
        announced(body)


@settings(deadline=None)
@given(st.text(alphabet="{}[]:,\"'0a1.5-enulbrokerNameperm", max_size=40))
def test_any_text_is_an_announcement_or_refused(text: str) -> None:
    for body in (text.encode(), f'{{"queueDatas":[{{"brokerName":"b",{text}}}]}}'.encode()):
        with suppress(BodyError):
            assert announced(body) is not None
        with suppress(BodyError):
            assert decode_route(body) is not None
