"""The 26 known bugs and races of Apache's name server, each as a peer would meet it here.

The numbers are those of `docs/compatibility.md`. Two rows have a side that no peer can see:

- 11, that no topic but those of the leaving group is looked at: `tests/unit/routing/test_discovery.py`
  (`test_listing_the_topics_of_a_group_follows_its_changes`) and `tests/unit/routing/test_table.py`
  (`test_topics_of_other_groups_stay_when_a_group_goes`); what a peer does see of it is below.
- 18, that files are replaced whole or not at all: `tests/unit/nameserver/test_files.py` and `test_kv_config.py` there;
  what is left after a crash is below.

Row 24, a lock released by one who never had it, has no test: there are no locks.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from skyroute.wire.codes import ResponseCode
from tests.network.cluster import (
    CLUSTER,
    MASTER,
    NEWER,
    NOWHERE,
    OTHER,
    SLAVE,
    addresses,
    permissions,
    register,
    route,
    topics,
    world,
)
from tests.network.notices import at, contents, full_queue, gained
from tests.support.connections import AsyncConnection, connection_to, listening_broker
from tests.support.raw import DataVersion, Registration, Request, Topic, encode, mapping
from tests.support.servers import Running, running
from tests.support.waiting import eventually

HERE_A = {"broker-a": {"0": "10.0.0.1:10911"}}
SHORT = MASTER.but(heartbeat_ms=10_000)


def test_every_row_that_a_peer_can_see_has_a_test() -> None:
    numbers = {int(number) for name in globals() for number in re.findall(r"^test_bug_(\d\d)_", name)}
    assert numbers == set(range(1, 27)) - {24}


async def test_bug_01_a_late_close_or_unregistration_does_not_end_a_fresh_registration(nameserver: Running) -> None:
    async with connection_to(nameserver.address) as new:
        async with connection_to(nameserver.address) as old:
            await register(old, MASTER)
            await register(new, MASTER)
        await eventually(lambda: nameserver.connections == 1)
        assert await addresses(new) == HERE_A
        await register(new, MASTER.but(address="10.0.0.7:10911"))
        await new.call(MASTER.unregistration)
        assert await addresses(new) == {"broker-a": {"0": "10.0.0.7:10911"}}


async def test_bug_01_a_late_expiry_does_not_end_a_fresh_registration(nameserver: Running) -> None:
    async with connection_to(nameserver.address) as old, connection_to(nameserver.address) as new:
        await register(old, SHORT)
        nameserver.pass_time(9)
        await register(new, SHORT)
        nameserver.pass_time(6)
        assert await addresses(new) == HERE_A


async def test_bug_02_all_brokers_of_a_connection_go_with_it(nameserver: Running, line: AsyncConnection) -> None:
    names = [f"broker-{number}" for number in range(10)]
    async with connection_to(nameserver.address) as container:
        for number, name in enumerate(names):
            await register(container, MASTER.but(broker=name, address=f"10.0.1.{number}:10911"))
        assert sorted(await addresses(line)) == names
    await eventually(lambda: is_empty(line))


async def is_empty(line: AsyncConnection) -> bool:
    return await world(line) == NOWHERE


async def test_bug_03_nothing_is_left_of_an_address_that_was_replaced(
    nameserver: Running, line: AsyncConnection, caplog: pytest.LogCaptureFixture
) -> None:
    moved = SHORT.but(address="10.0.0.7:10911")
    async with connection_to(nameserver.address) as pod:
        await register(pod, SHORT)
        await register(line, moved)
        version = '{"counter":1,"stateVersion":0,"timestamp":1758275140000}'
        asked = await line.call(322, SHORT.identity, version.encode())
        assert (asked.fields, asked.text) == ({"changed": "true"}, "")
        asked = await line.call(322, moved.identity, version.encode())
        assert (asked.fields, asked.text) == ({"changed": "false"}, version)
    caplog.clear()
    for _ in range(4):
        nameserver.pass_time(8)
        await line.call(904, moved.identity)
    assert await addresses(line) == {"broker-a": {"0": "10.0.0.7:10911"}}
    assert "broker left" not in caplog.text


async def test_bug_04_a_group_is_in_one_cluster(line: AsyncConnection) -> None:
    await register(line, MASTER, SLAVE)
    taken = await line.call(MASTER.but(cluster="Elsewhere", address="10.9.9.9:10911").request)
    assert taken.code == ResponseCode.SYSTEM_ERROR
    assert "broker names must be unique across clusters" in (taken.remark or "")
    await register(line, MASTER.but(cluster="Elsewhere"))
    seen = (await line.call(106)).value
    assert seen["clusterAddrTable"] == {"Elsewhere": ["broker-a"]}
    assert seen["brokerAddrTable"]["broker-a"]["cluster"] == "Elsewhere"


async def test_bug_05_a_refused_registration_leaves_no_trace_and_is_not_answered_with_success(
    line: AsyncConnection,
) -> None:
    assert (await line.call(MASTER.but(topics=(Topic("Alone"),)).request)).code == ResponseCode.SYSTEM_ERROR
    body = b'{"filterServerList":[],"topicConfigSerializeWrapper":{"topicConfigTable":null}}'
    assert (await line.call(103, MASTER.identity, body)).code == ResponseCode.SYSTEM_ERROR
    assert await world(line) == NOWHERE
    leader = MASTER.but(data_version=DataVersion(state=9), zone="z1", acting=True)
    await register(line, leader, SLAVE.but(acting=True, zone="z1"))
    before = await world(line)
    superseded = SLAVE.but(broker_id=0, zone="z2", acting=False)
    assert (await line.call(superseded.request)).fields == {}
    assert await world(line) == before


async def test_bug_06_a_response_is_consistent_while_everything_changes(nameserver: Running) -> None:
    async def come_and_go(number: int) -> None:
        own = MASTER.but(broker=f"broker-{number}", address=f"10.0.1.{number}:10911")
        async with connection_to(nameserver.address) as line:
            for _ in range(10):
                await register(line, own, own.but(broker_id=1, address=f"10.0.2.{number}:10911"))
                await line.call(own.unregistration)

    async def look() -> None:
        async with connection_to(nameserver.address) as line:
            for _ in range(40):
                seen = (await line.call(106)).value
                named = {name for names in seen["clusterAddrTable"].values() for name in names}
                assert named == set(seen["brokerAddrTable"])
                assert all(group["brokerAddrs"] for group in seen["brokerAddrTable"].values())
                answer = await route(line)
                if answer.code == ResponseCode.SUCCESS:
                    told = answer.value
                    assert {data["brokerName"] for data in told["brokerDatas"]} == {
                        data["brokerName"] for data in told["queueDatas"]
                    }

    async with asyncio.TaskGroup() as everybody:
        for number in range(5):
            everybody.create_task(come_and_go(number))
            everybody.create_task(look())


async def test_bug_07_static_mappings_go_with_their_topic_and_come_back_with_it(line: AsyncConnection) -> None:
    static = MASTER.but(mappings={"TopicA": mapping("TopicA", "broker-a", 2)})
    await register(line, static)
    await line.call(216, {"topic": "TopicA"})
    await register(line, MASTER.but(data_version=NEWER))  # the same name, and no longer static
    assert "topicQueueMappingByBroker" not in (await route(line)).value
    await register(line, static.but(data_version=NEWER))  # the same version with what was missing
    assert (await route(line)).value["topicQueueMappingByBroker"]["broker-a"]["totalQueues"] == 2
    await line.call(static.unregistration)
    await register(line, MASTER)
    assert "topicQueueMappingByBroker" not in (await route(line)).value


@pytest.mark.parametrize(
    "request_",
    [
        Request(216),
        Request(105),
        Request(217, {"topic": "T"}, b"{"),
        Request(100, {"namespace": "n", "key": "k"}),
        Request(318, body=b"serverSocketBacklog=many"),
        Request(322, MASTER.identity, b'{"counter":'),
    ],
    ids=lambda request: str(request.code),
)
async def test_bug_08_bad_input_is_not_answered_with_success(line: AsyncConnection, request_: Request) -> None:
    answer = await line.call(request_)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark


async def test_bug_09_restoring_writes_gives_back_what_was_registered(line: AsyncConnection) -> None:
    registered = {"ReadWrite": 6, "ReadOnly": 4, "WriteOnly": 2, "Inherited": 7, "Nothing": 0}
    await register(line, MASTER.but(topics=[Topic(name, perm=perm) for name, perm in registered.items()]))
    assert (await line.call(205, {"brokerName": "broker-a"})).fields == {"wipeTopicCount": "5"}
    assert [(await permissions(line, name))["broker-a"] for name in registered] == [4, 4, 0, 5, 0]
    assert (await line.call(327, {"brokerName": "broker-a"})).fields == {"addTopicCount": "5"}
    assert {name: (await permissions(line, name))["broker-a"] for name in registered} == registered


async def test_bug_10_forbidden_writes_are_forgotten_with_the_brokers_next_version_on_purpose(
    line: AsyncConnection,
) -> None:
    await register(line, MASTER)
    await line.call(205, {"brokerName": "broker-a"})
    await register(line, MASTER)
    assert await permissions(line) == {"broker-a": 4}
    await register(line, MASTER.but(data_version=NEWER))
    assert await permissions(line) == {"broker-a": 6}


async def test_bug_11_nobody_waits_while_a_broker_that_hangs_is_told(tmp_path: Path) -> None:
    patient = running(tmp_path, notify_min_broker_id=True, connect_timeout_s=600.0)
    async with patient as nameserver, connection_to(nameserver.address) as line, full_queue() as hanging:
        master = at("127.0.0.1:1", 0)
        for _ in range(20):
            await register(line, at(hanging, 1), master)
            await line.call(master.unregistration)
        assert await addresses(line) == {"broker-a": {"1": hanging}}


async def test_bug_12_no_closed_connection_is_missed_however_many_close_at_once(
    nameserver: Running, line: AsyncConnection
) -> None:
    async with AsyncExitStack() as all_at_once:
        brokers = [await all_at_once.enter_async_context(connection_to(nameserver.address)) for _ in range(200)]
        for number, broker in enumerate(brokers):
            await register(broker, MASTER.but(broker=f"broker-{number}", address=f"10.0.1.{number}:10911"))
        assert len(await addresses(line)) == 200
        for broker in brokers:
            broker.abort()
    await eventually(lambda: is_empty(line))


async def test_bug_13_registrations_of_one_connection_take_effect_in_order(line: AsyncConnection) -> None:
    editions = [
        MASTER.but(topics=(Topic("TopicA", queues, queues), Topic("TopicB")), data_version=DataVersion(counter=queues))
        for queues in range(1, 21)
    ]
    await line.write(b"".join(encode(edition.request, at) for at, edition in enumerate(editions)))
    for _ in editions:
        assert (await line.receive()).code == ResponseCode.SUCCESS
    assert (await route(line)).value["queueDatas"][0]["readQueueNums"] == 20
    await register(line, editions[4])  # an old one that was long under way
    assert (await route(line)).value["queueDatas"][0]["readQueueNums"] == 20


@pytest.mark.parametrize(("version", "key"), [(399, "{0:"), (479, '{"0":')])
async def test_bug_14_the_zone_filter_keeps_to_the_clients_dialect(
    line: AsyncConnection, version: int, key: str
) -> None:
    await register(line, MASTER.but(zone="z1"), OTHER.but(zone="z2"))
    answer = await route(line, version=version, __ZONE_MODE="true", __ZONE_NAME="z1")
    assert f'"brokerAddrs":{key}"10.0.0.1:10911"}}' in answer.text
    assert "broker-b" not in answer.text


async def test_bug_15_a_lone_broker_is_not_told_about_itself(tmp_path: Path) -> None:
    notifying = running(tmp_path, notify_min_broker_id=True)
    async with notifying as here, connection_to(here.address) as line, listening_broker() as broker:
        await register(line, at(broker.address, 1), at(broker.address, 0))
        await register(line, at(broker.address, 1))  # it steps down again, and is still alone
        # Groups without acting master are not notified on registration either.
        await register(line, at(broker.address, 3, broker="quiet", acting=False).but(cluster="Quiet"))
        await register(line, at("127.0.0.1:9", 2, broker="quiet", acting=False).but(cluster="Quiet"))
        master = at("127.0.0.1:1", 0)
        await register(line, master)
        assert contents(await broker.receive()) == gained(master)
        assert broker.is_drained


async def test_bug_16_a_bad_unregistration_spoils_no_other(line: AsyncConnection) -> None:
    await register(line, MASTER, OTHER)
    incomplete = {name: value for name, value in MASTER.identity.items() if name != "brokerId"}
    requests = [Request(104, incomplete), Request(104, {**incomplete, "brokerId": "x"}), OTHER.unregistration]
    await line.write(b"".join(encode(request, at) for at, request in enumerate(requests)))
    answers = [await line.receive() for _ in requests]
    assert [answer.code for answer in answers] == [1, 1, 0]
    assert answers[0].remark == "brokerId is required"
    assert await addresses(line) == HERE_A


async def test_bug_17_a_prime_slave_without_acting_master_registers_writable_topics_as_in_java(
    line: AsyncConnection,
) -> None:
    await register(line, SLAVE.but(acting=False))
    assert await addresses(line) == {"broker-a": {"1": "10.0.0.2:10911"}}
    assert await permissions(line) == {"broker-a": 6}
    await line.call(SLAVE.unregistration)
    await register(line, SLAVE.but(acting=True))
    assert await permissions(line) == {"broker-a": 4}
    await line.call(SLAVE.unregistration)
    await register(line, SLAVE)  # too old to know of acting masters
    assert await addresses(line) == {}
    await register(line, SLAVE.but(acting=False))  # upgraded: it now sends the flag
    assert await permissions(line) == {"broker-a": 6}


async def test_bug_18_a_torn_file_gives_way_to_its_backup(tmp_path: Path) -> None:
    stored = {"namespace": "ns", "key": "k"}
    async with running(tmp_path) as here, connection_to(here.address) as line:
        await line.call(100, {**stored, "value": "1"})
        await line.call(100, {**stored, "value": "2"})
    tear(tmp_path / "kvConfig.json")
    async with running(tmp_path) as here, connection_to(here.address) as line:
        assert (await line.call(101, stored)).fields == {"value": "1"}


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


async def test_bug_19_the_gate_opens_once_and_the_first_scan_comes_after_an_interval(tmp_path: Path) -> None:
    async with running(tmp_path, wait_for_brokers=True) as here, connection_to(here.address) as line:
        await register(line, MASTER.but(heartbeat_ms=1))
        here.clock.advance(4.9)
        assert (await topics(line)) == ["TopicA", "TopicB"]  # expired, and not scanned yet
        await register(line, MASTER)
        here.clock.advance(40.1)
        for _ in range(5):
            assert (await route(line)).code == ResponseCode.SUCCESS
            here.clock.advance(10)


async def test_bug_20_brokers_register_in_cluster_test_mode(tmp_path: Path) -> None:
    async with running(tmp_path, cluster_test_mode=True) as here, connection_to(here.address) as line:
        await register(line, MASTER)
        assert await addresses(line) == HERE_A
        assert await topics(line) == ["TopicA", "TopicB"]
        assert (await line.call(MASTER.unregistration)).code == ResponseCode.SUCCESS
        assert await world(line) == NOWHERE


@pytest.mark.parametrize("generation", [4, 5])
async def test_bug_21_a_compressed_body_that_is_labelled_plain_is_recognised(
    line: AsyncConnection, generation: int
) -> None:
    await register(line, MASTER.but(generation=generation, deflate=True, flag_compressed=False))
    assert await topics(line) == ["TopicA", "TopicB"]


async def test_bug_22_a_pause_of_the_server_evicts_no_live_broker(nameserver: Running, line: AsyncConnection) -> None:
    await register(line, MASTER)
    nameserver.clock.advance(3_600)
    nameserver.scan()
    nameserver.sweep()
    await register(line, MASTER)  # what waited in the socket is read now
    nameserver.pass_time(60)
    assert await addresses(line) == HERE_A


async def test_bug_23_fields_of_authentication_are_ignored_as_in_java(line: AsyncConnection) -> None:
    signed = {"AccessKey": "someone", "Signature": "c2lnbmF0dXJl", "SecurityToken": "token"}
    await register(line, MASTER)
    assert (await line.call(205, {"brokerName": "broker-a", **signed})).fields == {"wipeTopicCount": "2"}
    assert (await line.call(105, {"topic": "TopicA", **signed})).code == ResponseCode.SUCCESS


async def test_bug_25_connections_have_a_limit_and_a_first_request_has_too(tmp_path: Path) -> None:
    async with running(tmp_path, connections_max=2) as here, connection_to(here.address) as line:
        await topics(line)
        async with connection_to(here.address) as stalled:
            await stalled.write(b"\x00\x00")
            await eventually(lambda: here.buffered_bytes == 2)
            async with connection_to(here.address) as one_too_many:
                await one_too_many.until_closed()
            here.pass_time(11)
            await stalled.until_closed()
        await eventually(lambda: here.connections == 1)
        async with connection_to(here.address) as again:
            assert await topics(again) == []


async def test_bug_26_a_body_that_decompresses_beyond_the_bound_is_refused(tmp_path: Path) -> None:
    bomb: Registration = MASTER.but(cluster=CLUSTER, topics=[Topic("t" * 100_000), Topic("u")], deflate=True)
    async with running(tmp_path, registration_frame_bytes_max=32 * 1024) as here, connection_to(here.address) as line:
        answer = await line.call(bomb.request)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "decompresses to more than" in (answer.remark or "")
        assert await world(line) == NOWHERE
