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


async def change(line: AsyncConnection, setting: str) -> int:
    """Change a setting of the running broker."""
    return (await line.call(RequestCode.UPDATE_BROKER_CONFIG, body=setting.encode())).code


async def settings(line: AsyncConnection) -> list[str]:
    return (await line.call(RequestCode.GET_BROKER_CONFIG)).body.decode().splitlines()


async def priorities(line: AsyncConnection, **fields: object) -> list[bytes]:
    """Pop, acknowledge, and return the bodies, which are the priorities."""
    messages = await popped(line, "P", **fields)
    await ack(line, *messages)
    return [message.body for message in messages]


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


async def test_queue_0_may_have_the_highest_priority(line: AsyncConnection, cluster: Cluster) -> None:
    await put(line, 3, 0, 2, 1)
    assert await change(line, "priorityOrderAsc=perhaps") == ResponseCode.SYSTEM_ERROR
    assert "priorityOrderAsc=true" in await settings(line)
    assert await change(line, "priorityOrderAsc=false") == 0
    assert "priorityOrderAsc=false" in await settings(line)
    assert await priorities(line, maxMsgNums=3) == [b"0", b"1", b"2"]
    await put(line, 0)
    assert await change(line, "priorityOrderAsc=true") == 0
    assert await priorities(line) == [b"3", b"0"]


async def test_a_retried_message_may_come_before_new_ones(line: AsyncConnection, cluster: Cluster) -> None:
    assert await change(line, "popFromRetryProbabilityForPriority=101") == ResponseCode.SYSTEM_ERROR
    assert await change(line, "popFromRetryProbabilityForPriority=100") == 0
    assert "popFromRetryProbabilityForPriority=100" in await settings(line)
    for _ in range(5):
        await put(line, 1)
        await popped(line, "P")
        later(cluster, 60)
        await put(line, 3)
        assert await priorities(line) == [b"1", b"3"]


async def test_the_share_of_pops_that_read_an_ordinary_retry_topic_first(
    line: AsyncConnection, cluster: Cluster
) -> None:
    await cluster.add_topic("T")
    for percent, first in (("0", b"new"), ("100", b"old")):
        assert await change(line, f"popFromRetryProbability={percent}") == 0
        for _ in range(12):  # with the default, once in 1,500 runs all twelve are the same
            await line.call(send("T", b"old"))
            await popped(line)
            later(cluster, 60)
            await line.call(send("T", b"new"))
            messages = await popped(line)
            assert [message.body for message in messages] == [first, *({b"old", b"new"} - {first})]
            await ack(line, *messages)


RETRIES = "%RETRY%g_P"


async def test_each_queue_may_have_its_own_retry_queue(line: AsyncConnection, cluster: Cluster) -> None:
    assert await change(line, "useSeparateRetryQueue=true") == 0
    assert "useSeparateRetryQueue=true" in await settings(line)
    await put(line, 0, 1, 2, 3)
    for retried in (0, 1, 2):  # a message that is retried again stays in its retry queue
        messages = await popped(line, "P")
        assert [message.body for message in messages] == [b"3", b"2", b"1", b"0"]
        assert [message.message.queue_id for message in messages] == [3, 2, 1, 0]
        assert {message.message.reconsume_times for message in messages} == {retried}
        later(cluster, 60)
    await ack(line, *await popped(line, "P"))
    components = cluster.broker.components
    topic = components.topics.get(RETRIES)
    assert topic is not None
    assert (topic.read_queues, topic.write_queues) == (4, 4)
    assert [components.offsets.get("g", RETRIES, queue_id) for queue_id in range(4)] == [3, 3, 3, 3]
    later(cluster, 100)
    assert await popped(line, "P") == []


async def test_retry_queues_follow_those_of_the_topic(line: AsyncConnection, cluster: Cluster) -> None:
    components = cluster.broker.components
    await put(line, 2)
    await popped(line, "P")
    later(cluster, 60)
    assert components.topics.all()[RETRIES].read_queues == 1
    assert await change(line, "useSeparateRetryQueue=true") == 0
    await put(line, 3)
    await popped(line, "P", maxMsgNums=1)
    later(cluster, 60)
    assert components.topics.all()[RETRIES].read_queues == 4
    more = TOPIC | {"readQueueNums": "6", "writeQueueNums": "6"}
    assert (await line.call(RequestCode.UPDATE_AND_CREATE_TOPIC, more)).code == 0
    await put(line, 5)
    await popped(line, "P", maxMsgNums=1)
    later(cluster, 60)
    await components.revival.announce_changed()
    assert components.topics.all()[RETRIES].write_queues == 6
    (queues,) = (await (await cluster.admin()).route(RETRIES)).queues
    assert queues.settings.write_queues == 6
    assert await change(line, "useSeparateRetryQueue=false") == 0
    messages = await popped(line, "P")
    assert [(message.body, message.message.queue_id) for message in messages] == [(b"5", 5), (b"3", 3), (b"2", 0)]
    later(cluster, 60)
    assert [message.message.queue_id for message in await popped(line, "P")] == [0, 0, 0]
    assert components.topics.all()[RETRIES].read_queues == 6


async def test_a_retry_queue_that_the_retry_topic_lacks_is_queue_0(line: AsyncConnection, cluster: Cluster) -> None:
    assert await change(line, "useSeparateRetryQueue=true") == 0
    await put(line, 3)
    await popped(line, "P")
    fewer = TOPIC | {"readQueueNums": "2", "writeQueueNums": "2"}
    assert (await line.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fewer)).code == 0
    later(cluster, 60)
    (message,) = await popped(line, "P")
    assert (message.body, message.message.queue_id) == (b"3", 0)


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
