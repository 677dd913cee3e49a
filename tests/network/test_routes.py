"""Routes: dialect, zone, acting master, static topics, brokers of all versions."""

from __future__ import annotations

import pytest

from skyroute.wire.codes import ResponseCode
from tests.network.cluster import (
    CLUSTER,
    MASTER,
    NEWER,
    OTHER,
    SLAVE,
    addresses,
    permissions,
    register,
    route,
    topics,
    world,
)
from tests.support.connections import AsyncConnection
from tests.support.raw import VERSION_5, Registration, Request, Topic, mapping

# Dialect


@pytest.mark.parametrize(
    ("version", "insists", "strict"),
    [
        (0, False, False),
        (317, False, False),
        (317, True, True),
        (399, False, False),
        (400, False, False),
        (401, False, True),
        (VERSION_5, False, True),
        (VERSION_5, True, True),
    ],
)
async def test_the_dialect_follows_the_client(line: AsyncConnection, version: int, insists: bool, strict: bool) -> None:
    await register(line, MASTER, SLAVE)
    for _ in range(2):  # the second answer is one that was kept
        answer = await route(line, version=version, **({"acceptStandardJsonOnly": "true"} if insists else {}))
        assert ('{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"}' in answer.text) is strict
        assert ('{0:"10.0.0.1:10911",1:"10.0.0.2:10911"}' in answer.text) is not strict
        assert " " not in answer.text
        assert "zoneName" not in answer.text
        assert "null" not in answer.text


async def test_both_dialects_of_one_route_are_kept_apart(line: AsyncConnection) -> None:
    await register(line, MASTER)
    texts = [(await route(line, version=version)).text for version in (399, 401, 399, 401)]
    assert texts[0] == texts[2] != texts[1] == texts[3]


async def test_members_and_clusters_are_in_standard_json_on_request(line: AsyncConnection) -> None:
    await register(line, MASTER)
    who = {"clusterName": "elsewhere", "brokerName": "broker-a"}
    for fields, key in (({}, "{0:"), ({"acceptStandardJsonOnly": "true"}, '{"0":')):
        for answer in (await line.call(106, fields), await line.call(901, {**who, **fields})):
            assert key in answer.text
    assert (await line.call(901, who)).value["brokerMemberGroup"]["cluster"] == "elsewhere"
    assert (await line.call(901, {**who, "brokerName": "nobody"})).value["brokerMemberGroup"]["brokerAddrs"] == {}


async def test_an_unserved_topic_has_no_route_with_apaches_text(line: AsyncConnection) -> None:
    answer = await route(line, "TopicX")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert answer.remark == (
        "No topic route info in name server for the topic: TopicX\n"
        "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
    )


# Brokers of all ages


@pytest.mark.parametrize("generation", [3, 4, 5])
@pytest.mark.parametrize("deflate", [False, True])
async def test_brokers_of_three_generations_register_plain_and_compressed(
    line: AsyncConnection, generation: int, deflate: bool
) -> None:
    deflate = deflate and generation > 3
    await register(line, MASTER.but(generation=generation, deflate=deflate))
    answer = (await route(line, "TopicB")).value
    assert answer["queueDatas"] == [
        {"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4}
    ]
    assert answer["brokerDatas"][0]["enableActingMaster"] is False


async def test_generations_can_be_mixed_in_one_cluster(line: AsyncConnection) -> None:
    await register(line, MASTER.but(generation=4), SLAVE.but(generation=5, acting=False), OTHER.but(generation=3))
    assert await addresses(line) == {
        "broker-a": {"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"},
        "broker-b": {"0": "10.0.0.3:10911"},
    }


async def test_a_body_with_the_wrong_checksum_is_refused_and_without_one_taken(line: AsyncConnection) -> None:
    answer = await line.call(MASTER.but(crc=12345).request)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")
    assert await topics(line) == []
    await register(line, MASTER.but(crc=0))
    assert await topics(line) == ["TopicA", "TopicB"]


@pytest.mark.parametrize("body", [b"{", b"[]", b"\x78\xda\x00", b'{"topicConfigSerializeWrapper":null}'])
async def test_a_body_that_cannot_be_read_is_refused(line: AsyncConnection, body: bytes) -> None:
    answer = await line.call(103, {**MASTER.identity, "bodyCrc32": "0"}, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "Failed to decode RegisterBrokerBody" in (answer.remark or "")
    assert await topics(line) == []


async def test_split_and_incremental_registrations_add_up(line: AsyncConnection) -> None:
    await register(line, MASTER)
    await register(line, MASTER.but(topics=(Topic("TopicC"), Topic("TopicD"))))
    await register(line, MASTER.but(topics=(Topic("TopicE"),), data_version=NEWER))
    assert await topics(line) == ["TopicA", "TopicB", "TopicC", "TopicD", "TopicE"]


async def test_routes_of_static_topics_have_mappings(line: AsyncConnection) -> None:
    static = MASTER.but(mappings={"TopicA": mapping("TopicA", "broker-a", 2)})
    for registration in (static, static.but(deflate=True, data_version=NEWER)):
        await register(line, registration)
        assert '"currIdMap":{"0":0,"1":1}' in (await route(line)).text
        assert '"currIdMap":{0:0,1:1}' in (await route(line, version=399)).text
    assert "topicQueueMappingByBroker" not in (await route(line, "TopicB")).text


async def test_routes_have_filter_servers_until_they_leave(line: AsyncConnection) -> None:
    await register(line, MASTER.but(filter_servers=("10.0.0.1:30000",)))
    assert (await route(line)).value["filterServerTable"] == {"10.0.0.1:10911": ["10.0.0.1:30000"]}
    await register(line, MASTER)
    assert (await route(line)).value["filterServerTable"] == {}


# Zones

ZONES = (
    MASTER.but(zone="z1"),
    OTHER.but(zone="Z2"),
    Registration(CLUSTER, "broker-c", "10.0.0.4:10911", MASTER.topics, broker_id=1, zone="z2", acting=False),
    Registration(CLUSTER, "broker-d", "10.0.0.5:10911", MASTER.topics),
)


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({"__ZONE_MODE": "true", "__ZONE_NAME": "z1"}, "ac"),
        ({"__ZONE_MODE": "TRUE", "__ZONE_NAME": "z2"}, "bc"),
        ({"__ZONE_MODE": "true", "__ZONE_NAME": "nowhere"}, "c"),
        ({"__ZONE_MODE": "true", "__ZONE_NAME": " "}, "abcd"),
        ({"__ZONE_MODE": "true"}, "abcd"),
        ({"__ZONE_MODE": "false", "__ZONE_NAME": "z1"}, "abcd"),
        ({"__ZONE_NAME": "z1"}, "abcd"),
        ({}, "abcd"),
    ],
)
@pytest.mark.parametrize("version", [399, VERSION_5])
async def test_a_zone_shows_its_own_groups_and_those_without_a_master(
    line: AsyncConnection, fields: dict[str, str], seen: str, version: int
) -> None:
    await register(line, *ZONES)
    answer = (await route(line, version=version, **fields)).value
    expected = [f"broker-{letter}" for letter in seen]
    assert [data["brokerName"] for data in answer["brokerDatas"]] == expected
    assert [data["brokerName"] for data in answer["queueDatas"]] == expected
    assert (await route(line, version=version)).value["brokerDatas"][0]["zoneName"] == "z1"


async def test_a_zone_without_groups_gives_an_empty_route_and_not_an_error(line: AsyncConnection) -> None:
    await register(line, MASTER.but(zone="z1"))
    answer = await route(line, __ZONE_MODE="true", __ZONE_NAME="z2")
    assert answer.code == ResponseCode.SUCCESS
    assert answer.text == '{"brokerDatas":[],"filterServerTable":{},"queueDatas":[]}'


# Topics come and go


async def test_a_single_topic_is_announced_by_a_known_broker_only(line: AsyncConnection) -> None:
    await register(line, MASTER)
    queues = '{"brokerName":"%s","perm":6,"readQueueNums":2,"topicSysFlag":0,"writeQueueNums":2}'
    both = f'{{"queueDatas":[{queues % "broker-a"},{queues % "nobody"}]}}'
    assert (await line.call(217, {"topic": "New"}, both.encode())).code == ResponseCode.SUCCESS
    assert await addresses(line, "New") == {}
    assert (
        await line.call(217, {"topic": "New"}, f'{{"queueDatas":[{queues % "broker-a"}]}}'.encode())
    ).code == ResponseCode.SUCCESS
    assert await addresses(line, "New") == {"broker-a": {"0": "10.0.0.1:10911"}}


async def test_a_topic_is_deleted_in_one_cluster_or_everywhere(line: AsyncConnection) -> None:
    elsewhere = OTHER.but(cluster="Elsewhere")
    await register(line, MASTER, elsewhere)
    assert (await line.call(216, {"topic": "TopicA", "clusterName": "Unknown"})).code == ResponseCode.SUCCESS
    assert set(await addresses(line)) == {"broker-a", "broker-b"}
    assert (await line.call(216, {"topic": "TopicA", "clusterName": "Elsewhere"})).code == ResponseCode.SUCCESS
    assert set(await addresses(line)) == {"broker-a"}
    assert (await line.call(216, {"topic": "TopicA"})).code == ResponseCode.SUCCESS
    assert (await route(line)).code == ResponseCode.TOPIC_NOT_EXIST
    assert await topics(line) == ["TopicB", "TopicC"]


async def test_writes_are_forbidden_until_restored_or_a_new_version(line: AsyncConnection) -> None:
    await register(line, MASTER)
    assert (await line.call(205, {"brokerName": "broker-a"})).fields == {"wipeTopicCount": "2"}
    assert await permissions(line) == {"broker-a": 4}
    await register(line, MASTER)
    assert await permissions(line) == {"broker-a": 4}
    assert (await line.call(327, {"brokerName": "broker-a"})).fields == {"addTopicCount": "2"}
    assert await permissions(line) == {"broker-a": 6}
    await line.call(205, {"brokerName": "broker-a"})
    await register(line, MASTER.but(data_version=NEWER))
    assert await permissions(line) == {"broker-a": 6}
    assert (await line.call(205, {"brokerName": "nobody"})).fields == {"wipeTopicCount": "0"}


async def test_a_cluster_that_does_not_exist_has_no_topics(line: AsyncConnection) -> None:
    assert (await line.call(224, {"cluster": "nowhere"})).value == {"topicList": []}
    assert (await line.call(304)).text == '{"topicList":[]}'


async def test_unit_lists_need_flags_that_compressed_bodies_do_not_carry(line: AsyncConnection) -> None:
    flagged = MASTER.but(topics=[Topic(f"T{flag}", sys_flag=flag) for flag in range(4)])
    await register(line, flagged)
    lists = [(await line.call(code)).value["topicList"] for code in (311, 312, 313)]
    assert lists == [["T1", "T3"], ["T2", "T3"], ["T2"]]
    await register(line, flagged.but(deflate=True, data_version=NEWER))
    assert [(await line.call(code)).value["topicList"] for code in (311, 312, 313)] == [[], [], []]


# Refusals leave no trace, and late goodbyes do no harm


async def test_a_refused_registration_leaves_no_trace(line: AsyncConnection) -> None:
    await register(line, MASTER.but(zone="z1", acting=True))
    before = await world(line)
    single = (Topic("Alone"),)
    refused = [
        OTHER.but(topics=single),
        OTHER.but(crc=1),
        SLAVE.but(topics=single, zone="z9", acting=False),
        MASTER.but(cluster="Elsewhere", address="10.9.9.9:10911"),
    ]
    for registration in refused:
        assert (await line.call(registration.request)).code == ResponseCode.SYSTEM_ERROR
        assert await world(line) == before
    assert (await line.call(OTHER.but(topics=single).request)).remark == "register broker failed"


async def test_a_superseded_broker_gets_an_empty_response_and_changes_nothing(line: AsyncConnection) -> None:
    leader = MASTER.but(data_version=NEWER.__class__(counter=1, state=5))
    await register(line, leader)
    before = await world(line)
    answer = await line.call(MASTER.but(address="10.9.9.9:10911", zone="z9").request)
    assert (answer.code, answer.fields, answer.body) == (ResponseCode.SUCCESS, {}, b"")
    assert await world(line) == before
    await register(line, leader.but(address="10.9.9.9:10911"))
    assert await addresses(line) == {"broker-a": {"0": "10.9.9.9:10911"}}


@pytest.mark.parametrize(
    "stale",
    [
        MASTER.but(address="10.0.0.8:10911"),
        MASTER.but(broker_id=1),
        MASTER.but(broker="broker-b"),
        MASTER.but(cluster="Elsewhere"),
    ],
    ids=["address", "id", "name", "cluster"],
)
async def test_an_unregistration_removes_only_what_is_registered_exactly_so(
    line: AsyncConnection, stale: Registration
) -> None:
    await register(line, MASTER)
    assert (await line.call(stale.unregistration)).code == ResponseCode.SUCCESS
    assert await addresses(line) == {"broker-a": {"0": "10.0.0.1:10911"}}
    assert (await line.call(MASTER.unregistration)).code == ResponseCode.SUCCESS
    assert await addresses(line) == {}


async def test_the_unregistration_of_a_replaced_broker_does_not_remove_its_successor(line: AsyncConnection) -> None:
    successor = MASTER.but(address="10.0.0.7:10911")
    await register(line, MASTER, successor)
    assert (await line.call(MASTER.unregistration)).code == ResponseCode.SUCCESS
    assert await addresses(line) == {"broker-a": {"0": "10.0.0.7:10911"}}


async def test_the_member_topic_of_a_broker_group_has_real_ids(line: AsyncConnection) -> None:
    members = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"
    told = (*MASTER.topics, Topic(members, 1, 1, 1))
    await line.call(318, body=b"supportActingMaster=true")
    await register(line, MASTER.but(topics=told, acting=True), SLAVE.but(topics=told, acting=True))
    await line.call(MASTER.unregistration)
    assert await addresses(line) == {"broker-a": {"0": "10.0.0.2:10911"}}
    assert await addresses(line, members) == {"broker-a": {"1": "10.0.0.2:10911"}}
    await register(line, MASTER.but(topics=told, acting=True))
    assert await permissions(line) == {"broker-a": 6}
    assert await addresses(line) == {"broker-a": {"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"}}


async def test_a_request_for_a_route_of_another_name_is_not_mixed_up(line: AsyncConnection) -> None:
    await register(line, MASTER, OTHER)
    answers = [await line.send(Request(105, {"topic": topic})) for topic in ("TopicB", "TopicC", "TopicB")]
    names = [(await line.answer(opaque)).value["brokerDatas"][0]["brokerName"] for opaque in answers]
    assert names == ["broker-a", "broker-b", "broker-a"]
