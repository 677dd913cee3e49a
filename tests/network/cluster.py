"""The cluster that the tests of this folder tell of, and short ways to ask about it."""

from __future__ import annotations

from typing import Any

from skyroute.wire.codes import ResponseCode
from tests.support.connections import AsyncConnection
from tests.support.raw import Command, DataVersion, Registration, Request, Topic

CLUSTER = "DefaultCluster"
MASTER = Registration(CLUSTER, "broker-a", "10.0.0.1:10911", (Topic("TopicA"), Topic("TopicB", 4, 4)))
SLAVE = MASTER.but(broker_id=1, address="10.0.0.2:10911")
OTHER = Registration(CLUSTER, "broker-b", "10.0.0.3:10911", (Topic("TopicA"), Topic("TopicC")))
NEWER = DataVersion(counter=2)


async def register(line: AsyncConnection, *registrations: Registration) -> None:
    """Register brokers that must be accepted."""
    for registration in registrations:
        answer = await line.call(registration.request)
        assert answer.code == ResponseCode.SUCCESS, answer.remark


async def addresses(line: AsyncConnection, topic: str = "TopicA") -> dict[str, dict[str, str]]:
    """Where a topic is: broker name to broker id to address; empty if it has no route."""
    answer = await line.call(105, {"topic": topic})
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return {}
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return {data["brokerName"]: data["brokerAddrs"] for data in answer.value["brokerDatas"]}


async def permissions(line: AsyncConnection, topic: str = "TopicA") -> dict[str, int]:
    """Broker name to what clients may do with a topic there."""
    answer = await line.call(105, {"topic": topic})
    return {data["brokerName"]: data["perm"] for data in answer.value["queueDatas"]}


async def topics(line: AsyncConnection) -> list[str]:
    """Every topic, sorted."""
    return sorted((await line.call(206)).value["topicList"])


async def world(line: AsyncConnection) -> tuple[Any, Any]:
    """All that 106 and 206 tell."""
    return (await line.call(106)).value, await topics(line)


async def route(line: AsyncConnection, topic: str = "TopicA", version: int = 479, **fields: str) -> Command:
    """The answer to a question for a route."""
    return await line.call(Request(105, {"topic": topic, **fields}, version=version))


NOWHERE: tuple[Any, Any] = ({"brokerAddrTable": {}, "clusterAddrTable": {}}, [])
"""What `world` tells of an empty table."""
