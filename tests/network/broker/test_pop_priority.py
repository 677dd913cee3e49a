"""Priority topics: the priority of a message is its queue, and pops begin with the highest one."""

import json

import pytest

from skyroute.wire.codes import RequestCode, ResponseCode
from tests.network.broker.calls import send
from tests.network.broker.clusters import Cluster
from tests.network.broker.pops import ack, got, later, pop, popped
from tests.support.connections import AsyncConnection
from tests.support.waiting import eventually

TOPIC = {
    **{"topic": "P", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"},
    **{"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "attributes": "+message.type=PRIORITY"},
}


@pytest.fixture
async def cluster(cluster: Cluster) -> Cluster:
    line = await cluster.line()
    assert (await line.call(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)).code == 0
    await eventually(lambda: not cluster.broker.components.revive_log.is_loading)
    return cluster


async def put(line: AsyncConnection, *priorities: object, **properties: str) -> list[int]:
    """Send messages with these priorities as bodies; return their queues."""
    answers = [
        await line.call(send("P", str(each).encode(), properties={"_SYS_MSG_PRIORITY_": str(each), **properties}))
        for each in priorities
    ]
    assert {answer.code for answer in answers} == {0}
    return [int(answer.fields["queueId"]) for answer in answers]


async def factor(line: AsyncConnection, value: str) -> int:
    body = {"groupName": "g", "attributes": {"+priority.factor": value}}
    return (await line.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(body).encode())).code


async def test_the_highest_priority_is_popped_first(line: AsyncConnection, cluster: Cluster) -> None:
    assert await put(line, 0, 9, 2, 1, "-1", "x") == [0, 3, 2, 1, 0, 0]
    bodies = [(await popped(line, "P", maxMsgNums=1))[0].body for _ in range(4)]
    assert bodies == [b"9", b"2", b"1", b"0"]


async def test_delayed_ordered_and_transactional_messages_have_no_priority(
    line: AsyncConnection, cluster: Cluster
) -> None:
    assert await put(line, 2, __SHARDINGKEY="a") == [0]
    (message,) = await popped(line, "P")
    assert "_SYS_MSG_PRIORITY_" not in message.message.properties


async def test_a_retried_message_comes_after_new_ones(line: AsyncConnection, cluster: Cluster) -> None:
    await put(line, 3)
    await popped(line, "P")
    later(cluster, 60)
    for _ in range(20):  # other topics begin with the retry topic in a fifth of the pops
        await put(line, 1)
        (message,) = await popped(line, "P", maxMsgNums=1)
        assert message.body == b"1"
        await ack(line, message)
    assert [message.body for message in await popped(line, "P")] == [b"3"]


async def test_a_group_may_pop_all_priorities_alike(line: AsyncConnection, cluster: Cluster) -> None:
    assert await factor(line, "101") == ResponseCode.SYSTEM_ERROR
    assert await factor(line, "0") == 0
    first: set[bytes] = set()
    while len(first) < 4:
        await put(line, 0, 1, 2, 3)
        (message,) = await popped(line, "P", maxMsgNums=1)
        first.add(message.body)
        await ack(line, message, *await popped(line, "P"))


async def test_a_message_is_found_in_any_of_thousands_of_queues(line: AsyncConnection, cluster: Cluster) -> None:
    await cluster.add_topic("Wide", 4_096)
    waiting = await line.send(pop("Wide", pollTime=15_000))
    await eventually(lambda: len(cluster.broker.components.pop_polling) == 1)
    other = await cluster.line()
    for queue_id in (1, 700, 4_095):
        assert (await other.call(send("Wide", str(queue_id).encode(), queue_id=queue_id))).code == 0
    bodies = [message.body for message in got(await line.answer(waiting), "Wide")]
    while len(bodies) < 3:
        found = await popped(line, "Wide")
        assert found
        bodies += [message.body for message in found]
    assert sorted(bodies) == [b"1", b"4095", b"700"]
