"""POP: waiting pops of members that join, leave, and share queues anew."""

import itertools
import json

import pytest

from skyroute.broker.delivery.long_polling import TURN_S
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.network.broker.calls import heartbeat, send
from tests.network.broker.clusters import Cluster
from tests.network.broker.pops import got, later, pop
from tests.support.connections import AsyncConnection
from tests.support.raw import Command, Request
from tests.support.waiting import eventually


@pytest.fixture
async def cluster(cluster: Cluster) -> Cluster:
    await cluster.add_topic("T", 4)
    await eventually(lambda: not cluster.broker.components.revive_log.is_loading)
    return cluster


async def share_queues(line: AsyncConnection, with_members: int) -> None:
    mode = {"topic": "T", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": with_members}
    assert (await line.call(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(mode).encode())).code == 0


async def join(cluster: Cluster, name: str) -> AsyncConnection:
    """A member of the group, and of one more."""
    line = await cluster.line()
    for group in ("g", "h"):
        beat = heartbeat(group)
        assert (await line.call(34, body=beat.body.replace(b"10.0.0.1@1#2", name.encode()))).code == 0
    return line


async def queues_of(line: AsyncConnection, name: str) -> list[int]:
    asked = {"clientId": name, "consumerGroup": "g", "topic": "T", "strategyName": "AVG", "messageModel": "CLUSTERING"}
    answer = await line.call(RequestCode.QUERY_ASSIGNMENT, body=json.dumps(asked).encode())
    return [one["messageQueue"]["queueId"] for one in json.loads(answer.body)["messageQueueAssignments"]]


def bodies(answer: Command) -> list[bytes]:
    return [message.body for message in got(answer)]


async def test_a_waiting_pop_gets_no_message_after_members_share_queues_anew(
    cluster: Cluster, line: AsyncConnection
) -> None:
    await share_queues(line, 1)
    polling = cluster.broker.components.pop_polling
    a = await join(cluster, "a")
    await join(cluster, "b")
    assert await queues_of(a, "a") == [-1]
    cluster.clock.advance(1)
    before = await a.send(pop(pollTime=15_000))
    other_group = await a.send(pop(pollTime=15_000, consumerGroup="h"))
    await eventually(lambda: len(polling) == 2)

    c = await join(cluster, "c")
    assert (await queues_of(a, "a"), await queues_of(c, "c")) == ([0, 1, 2], [3, 0, 1])
    assert (await line.call(send("T", b"late", queue_id=3))).code == 0
    assert bodies(await a.answer(other_group)) == [b"late"]
    assert bodies(await c.call(pop(pollTime=15_000, queueId=3))) == [b"late"]
    during = await c.send(pop(pollTime=15_000, queueId=3))
    await eventually(lambda: len(polling) == 2)
    later(cluster, 2)
    assert (await a.answer(before)).code == ResponseCode.POLLING_TIMEOUT
    assert (await c.answer(during)).code == ResponseCode.POLLING_TIMEOUT
    after = await c.send(pop(pollTime=15_000, queueId=3))
    await eventually(lambda: len(polling) == 1)
    assert (await line.call(send("T", b"new", queue_id=3))).code == 0
    assert bodies(await c.answer(after)) == [b"new"]
    assert polling._sharing == {}


async def test_members_that_come_and_go_all_the_time_get_messages_nevertheless(
    cluster: Cluster, line: AsyncConnection
) -> None:
    await share_queues(line, 1)
    a = await join(cluster, "a")
    waiting = await a.send(pop(pollTime=15_000))
    await eventually(lambda: len(cluster.broker.components.pop_polling) == 1)
    assert (await line.call(send("T", b"x"))).code == 0
    for at in range(3):
        later(cluster, 0.8)
        await join(cluster, f"b-{at}")
    assert (await a.answer(waiting)).code == ResponseCode.POLLING_TIMEOUT
    assert bodies(await a.call(pop(pollTime=15_000))) == [b"x"]


async def test_waiting_pops_go_on_if_all_members_have_all_queues(cluster: Cluster, line: AsyncConnection) -> None:
    await share_queues(line, 0)
    a = await join(cluster, "a")
    waiting = await a.send(pop(pollTime=15_000))
    await eventually(lambda: len(cluster.broker.components.pop_polling) == 1)
    await join(cluster, "b")
    later(cluster, 2)
    assert (await line.call(send("T", b"x", queue_id=3))).code == 0
    assert bodies(await a.answer(waiting)) == [b"x"]


async def test_the_waiting_pops_of_a_member_that_leaves_end_at_once(cluster: Cluster, line: AsyncConnection) -> None:
    polling = cluster.broker.components.pop_polling
    a = await join(cluster, "a")
    waiting = await a.send(pop(pollTime=15_000))
    stays = await a.send(pop(pollTime=15_000, consumerGroup="h"))
    await eventually(lambda: len(polling) == 2)
    left = await a.call(RequestCode.UNREGISTER_CLIENT, {"clientID": "a", "consumerGroup": "g"})
    assert left.code == 0
    assert (await a.answer(waiting)).code == ResponseCode.POLLING_TIMEOUT
    assert (await line.call(send("T", b"x"))).code == 0
    assert bodies(await a.answer(stays)) == [b"x"]
    assert bodies(await line.call(pop(pollTime=15_000))) == [b"x"]


async def test_a_message_that_wakes_hundreds_of_groups_does_not_hold_up_others(
    cluster: Cluster, line: AsyncConnection
) -> None:
    polling = cluster.broker.components.pop_polling
    waiting = await cluster.line()
    polling._monotonic = itertools.count(0, TURN_S / 2).__next__  # a turn serves two pops
    pops: list[Request] = [pop(pollTime=15_000, consumerGroup=f"g{at}") for at in range(500)]
    numbers = [await waiting.send(request) for request in pops]
    await eventually(lambda: len(polling) == 500)
    assert (await line.call(send("T", b"x"))).code == 0
    info = {"consumerGroup": "g0", "topic": "T", "queueId": "-1"}
    assert (await line.call(RequestCode.POLLING_INFO, info)).code == 0
    assert len(polling) > 0
    assert [bodies(await waiting.answer(number)) for number in numbers] == [[b"x"]] * 500
