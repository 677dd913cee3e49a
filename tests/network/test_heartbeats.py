"""A body that was seen before is not decoded again, and is as soon as it could matter."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from skyroute.routing.topology import BrokerKey
from skyroute.wire.codes import ResponseCode
from tests.network.cluster import MASTER, NEWER, SLAVE, addresses, permissions, register, topics
from tests.support.connections import AsyncConnection, connection_to
from tests.support.raw import Registration, Topic
from tests.support.servers import Running
from tests.support.waiting import eventually


def is_remembered(nameserver: Running, registration: Registration) -> bool:
    """Whether the next registration with this very body would be taken without being decoded."""
    table, key = nameserver.server.table, BrokerKey(registration.cluster, registration.address)
    member = table._leases.find(key)
    if member is None or member.fingerprint is None:
        return False
    if not member.fingerprint.startswith(hashlib.sha256(registration.body).digest()):
        return False
    return member.broker_id == registration.broker_id and member.group.name == registration.broker


@pytest.mark.parametrize("generation", [3, 4, 5])
async def test_an_unchanged_heartbeat_is_recognised(
    nameserver: Running, line: AsyncConnection, generation: int
) -> None:
    broker: Registration = MASTER.but(generation=generation)
    assert not is_remembered(nameserver, broker)
    await register(line, broker)
    assert is_remembered(nameserver, broker)
    assert not is_remembered(nameserver, broker.but(data_version=NEWER))
    await register(line, broker)
    assert is_remembered(nameserver, broker)
    assert await addresses(line) == {"broker-a": {"0": "10.0.0.1:10911"}}


async def test_a_topic_that_was_deleted_comes_back_with_the_next_heartbeat(
    nameserver: Running, line: AsyncConnection
) -> None:
    await register(line, MASTER)
    await line.call(216, {"topic": "TopicA"})
    assert await topics(line) == ["TopicB"]
    assert not is_remembered(nameserver, MASTER)
    await register(line, MASTER)
    assert await topics(line) == ["TopicA", "TopicB"]
    assert is_remembered(nameserver, MASTER)


async def test_a_recognised_registration_renews_the_lease_and_applies_its_header(
    nameserver: Running, line: AsyncConnection
) -> None:
    await register(line, MASTER.but(heartbeat_ms=10_000))
    for _ in range(4):
        nameserver.pass_time(8)
        await register(line, MASTER.but(heartbeat_ms=10_000, zone="z1"))
        assert is_remembered(nameserver, MASTER)
    assert (await line.call(105, {"topic": "TopicA"})).value["brokerDatas"][0]["zoneName"] == "z1"


async def test_a_recognised_registration_moves_the_broker_to_its_new_connection(nameserver: Running) -> None:
    async with connection_to(nameserver.address) as new:
        async with connection_to(nameserver.address) as old:
            await register(old, MASTER)
            assert is_remembered(nameserver, MASTER)
            await register(new, MASTER)
        await eventually(lambda: nameserver.connections == 1)
        assert await addresses(new) == {"broker-a": {"0": "10.0.0.1:10911"}}


async def test_a_recognised_registration_of_a_slave_returns_a_new_master(
    nameserver: Running, line: AsyncConnection
) -> None:
    await register(line, SLAVE)
    await register(line, MASTER)
    await register(line, SLAVE)
    assert is_remembered(nameserver, SLAVE)
    assert (await line.call(SLAVE.request)).fields == {"haServerAddr": "10.0.0.1:10912", "masterAddr": "10.0.0.1:10911"}


async def test_the_registration_of_a_broker_that_left_is_decoded_again(
    nameserver: Running, line: AsyncConnection
) -> None:
    await register(line, MASTER)
    await line.call(MASTER.unregistration)
    assert not is_remembered(nameserver, MASTER)
    await register(line, MASTER)
    assert await topics(line) == ["TopicA", "TopicB"]


async def test_a_recognised_body_whose_header_lies_about_its_checksum_is_refused(line: AsyncConnection) -> None:
    await register(line, MASTER)
    assert (await line.call(MASTER.but(crc=1).request)).remark == "crc32 not match"


async def test_a_ban_on_writes_outlives_recognised_heartbeats(nameserver: Running, line: AsyncConnection) -> None:
    await register(line, MASTER)
    await line.call(205, {"brokerName": "broker-a"})
    for _ in range(3):
        await register(line, MASTER)
        assert await permissions(line) == {"broker-a": 4}
    assert is_remembered(nameserver, MASTER)


async def test_a_single_topic_announced_in_between_is_not_lost(nameserver: Running, line: AsyncConnection) -> None:
    await register(line, MASTER)
    queues = '{"brokerName":"broker-a","perm":6,"readQueueNums":2,"topicSysFlag":0,"writeQueueNums":2}'
    await line.call(217, {"topic": "New"}, f'{{"queueDatas":[{queues}]}}'.encode())
    assert not is_remembered(nameserver, MASTER)
    await register(line, MASTER, MASTER)
    assert await topics(line) == ["New", "TopicA", "TopicB"]
    await register(line, MASTER.but(topics=(*MASTER.topics, Topic("New", 4, 4)), data_version=NEWER))
    assert await topics(line) == ["New", "TopicA", "TopicB"]


async def test_a_body_without_a_version_is_always_a_new_version(nameserver: Running, line: AsyncConnection) -> None:
    for permission in (6, 4, 6):
        config = {"topicName": "TopicA", "readQueueNums": 8, "writeQueueNums": 8, "perm": permission}
        body = {"topicConfigSerializeWrapper": {"topicConfigTable": {"TopicA": config, "TopicB": config}}}
        request = replace(MASTER.request, body=json.dumps(body).encode())
        answer = await line.call(replace(request, fields={**request.fields, "bodyCrc32": "0"}))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert await permissions(line) == {"broker-a": permission}
        nameserver.pass_time(1)
