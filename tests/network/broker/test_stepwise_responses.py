"""Long responses over the network: complete, and other requests run while they are written."""

import asyncio
import json

import pytest

from skyroute.broker.handlers.assignment import LOOKUPS_MAX
from skyroute.routing.topology import QUEUES_MAX
from skyroute.wire.calls.groups import GroupConfig, decode_consume_stats
from skyroute.wire.calls.topics import decode_topic_stats
from skyroute.wire.codes import ResponseCode
from tests.network.broker.calls import send
from tests.network.broker.clusters import Cluster
from tests.support.connections import AsyncConnection
from tests.support.raw import Request, encode
from tests.support.waiting import eventually

STATUS = Request(202, {"topic": "Wide"})
PROGRESS = Request(208, {"consumerGroup": "g"})


def assignment(topic: str) -> Request:
    asked = {"clientId": "c", "consumerGroup": "g", "topic": topic, "messageModel": "BROADCASTING"}
    return Request(400, body=json.dumps(asked).encode())


OTHER = Request(30, {"topic": "T", "queueId": "0"})


@pytest.fixture
async def cluster(cluster: Cluster) -> Cluster:
    await cluster.add_topic("Wide", QUEUES_MAX)
    components = cluster.broker.components
    components.groups.put(GroupConfig("g"))
    for queue_id in range(QUEUES_MAX):
        components.offsets.commit("g", "Wide", queue_id, queue_id)
    return cluster


async def test_other_requests_are_answered_while_a_long_response_is_written(
    cluster: Cluster, line: AsyncConnection
) -> None:
    other = await cluster.line()
    asked = asyncio.ensure_future(line.call(STATUS))
    answers = 0
    while not asked.done():
        assert (await other.call(OTHER)).code == ResponseCode.SUCCESS
        answers += 1
    assert len(decode_topic_stats((await asked).body).queues) == QUEUES_MAX
    assert answers >= 30  # 15 if the response is written in one step


async def test_long_responses_of_one_connection_arrive_whole_and_in_order(
    cluster: Cluster, line: AsyncConnection
) -> None:
    first, second, third = [await line.send(request) for request in (PROGRESS, STATUS, OTHER)]
    received = [await line.receive() for _ in range(3)]
    assert [answer.opaque for answer in received] == [first, second, third]
    progress = decode_consume_stats(received[0].body).queues
    assert sum(queue.consumer_offset for queue in progress.values()) == sum(range(QUEUES_MAX))
    assert len(decode_topic_stats(received[1].body).queues) == QUEUES_MAX


async def test_a_closed_connection_ends_its_long_response(cluster: Cluster, line: AsyncConnection) -> None:
    await line.send(PROGRESS)
    line.abort()
    other = await cluster.line()
    assert (await other.call(STATUS)).code == ResponseCode.SUCCESS


async def test_a_closed_connection_ends_all_its_queued_requests(cluster: Cluster, line: AsyncConnection) -> None:
    """The requests behind the first stop the server from reading, so it does not see the close."""
    components, (server, *_) = cluster.broker.components, cluster.broker._servers
    async with components.step_runner._lane.turn():  # blocks long responses
        connections = server.connection_count
        asked = (PROGRESS, send("Wide"), STATUS, PROGRESS)
        await line.write(b"".join(encode(request, number) for number, request in enumerate(asked, 1)))
        await (await cluster.line()).call(OTHER)
        await line.close()
        await eventually(lambda: server.connection_count <= connections)
    assert components.store.max_offset("Wide", 0) == 1


async def test_assignments_of_very_many_queues_are_written_one_by_one(cluster: Cluster, line: AsyncConnection) -> None:
    """All at the same time, each would make every other client wait for one more step."""
    whole = await line.call(assignment("Wide"))  # the broker reads the route
    assert len(json.loads(whole.body)["messageQueueAssignments"]) == QUEUES_MAX
    components, (server, *_) = cluster.broker.components, cluster.broker._servers
    async with components.step_runner._lane.turn():  # blocks all but the first step of each request
        asked = [await line.send(assignment("Wide")) for _ in range(20)]
        assert (await (await cluster.line()).call(OTHER)).code == ResponseCode.SUCCESS
        assert sum(each._processor.pending.tasks for each in server._connections.values()) == 1
    assert {(await line.answer(each)).body for each in asked} == {whole.body}


async def test_few_of_the_requests_that_need_a_route_look_it_up_at_the_same_time(
    cluster: Cluster, line: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes, waiting, under_way, most = cluster.broker.components.topic_routes, asyncio.Event(), 0, 0
    find = routes.find

    async def find_later(topic: str) -> object:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await waiting.wait()
        under_way -= 1
        return await find(topic)

    monkeypatch.setattr(routes, "find", find_later)
    asked = [await line.send(assignment("Unknown")) for _ in range(3 * LOOKUPS_MAX)]
    await eventually(lambda: under_way == LOOKUPS_MAX)
    waiting.set()
    assert {(await line.answer(each)).body for each in asked} == {b"{}"}
    assert most == LOOKUPS_MAX
