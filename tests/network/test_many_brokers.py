"""Changes of hundreds of brokers at once, which are made in steps."""

from __future__ import annotations

from skyroute.routing.table_writer import LEAVING_COST, TOPICS_A_STEP
from skyroute.wire.codes import ResponseCode
from tests.network.cluster import NOWHERE, OTHER, addresses, register, world
from tests.support.connections import AsyncConnection, connection_to
from tests.support.raw import Registration, Topic
from tests.support.servers import Running
from tests.support.waiting import eventually

COUNT = 3 * TOPICS_A_STEP // LEAVING_COST
MANY = [
    Registration("c9", f"many-{at}", f"10.9.0.{at}:10911", (Topic("TopicA"), Topic(f"own-{at}"))) for at in range(COUNT)
]


async def test_all_brokers_of_a_closed_connection_leave(nameserver: Running, line: AsyncConnection) -> None:
    async with connection_to(nameserver.address) as container:
        await register(container, *MANY)
        assert len(await addresses(line)) == COUNT

    async def left() -> bool:
        return await world(line) == NOWHERE

    await eventually(left)


async def test_a_broker_that_is_back_before_its_old_connection_is_dropped_stays(
    nameserver: Running, line: AsyncConnection
) -> None:
    async with connection_to(nameserver.address) as container:
        await register(container, *MANY)
        await register(line, MANY[0])
    await register(line, OTHER)

    async def left() -> bool:
        return set(await addresses(line)) == {"many-0", "broker-b"}

    await eventually(left)


async def test_a_topic_is_deleted_from_all_brokers(nameserver: Running, line: AsyncConnection) -> None:
    async with connection_to(nameserver.address) as container:
        await register(container, *MANY)
        await register(line, OTHER)
        answer = await line.call(216, {"topic": "TopicA", "clusterName": "c9"})
        assert answer.code == ResponseCode.SUCCESS
        assert set(await addresses(line)) == {"broker-b"}
        await register(container, *MANY)
        answer = await line.call(216, {"topic": "TopicA"})
        assert answer.code == ResponseCode.SUCCESS
        assert await addresses(line) == {}
        assert len(await addresses(line, "own-5")) == 1
