"""Queue counts out of bounds: name server and client refuse them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from skyroute.client.consuming.pull_consumer import PullConsumer
from skyroute.client.errors import ClientError
from skyroute.client.producing.producer import Producer
from skyroute.client.session.session import Session
from skyroute.message.message import Message
from skyroute.routing import topology
from skyroute.routing.topology import QUEUES_MAX, ROUTE_QUEUES_MAX
from skyroute.wire.codes import ResponseCode
from skyroute.wire.errors import BodyError
from tests.network.cluster import MASTER, NEWER, OTHER, addresses, register, route, topics
from tests.support.connections import WAIT_S, AsyncConnection
from tests.support.fake_broker import CLUSTER, FakeCluster, Reply, fake_cluster
from tests.support.raw import Registration, Topic, mapping
from tests.support.servers import Running

INT_MAX = 2**31 - 1
THIRD = OTHER.but(broker="broker-c", address="10.0.0.4:10911")


def absurd(read: int = 8, write: int = INT_MAX) -> Topic:
    return Topic("Absurd", read, write)


def with_static_queues(broker: Registration) -> Registration:
    return broker.but(mappings={"TopicA": mapping("TopicA", broker.broker, 5)})


def with_filter_servers(broker: Registration) -> Registration:
    return broker.but(filter_servers=tuple(f"filter:{at}" for at in range(5)))


@pytest.mark.parametrize("version", [317, 479])
@pytest.mark.parametrize("grown", [with_static_queues, with_filter_servers])
async def test_a_route_that_brokers_make_too_long_is_refused(
    line: AsyncConnection, monkeypatch: pytest.MonkeyPatch, grown: Callable[[Registration], Registration], version: int
) -> None:
    monkeypatch.setattr(topology, "ROUTE_QUEUES_MAX", 10)
    monkeypatch.setattr(topology, "ROUTE_FILTER_SERVERS_MAX", 10)
    await register(line, grown(MASTER), grown(OTHER))
    assert (await route(line, version=version)).code == ResponseCode.SUCCESS
    await register(line, grown(THIRD))
    for _ in range(2):
        answer = await route(line, version=version)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "the route of TopicA is too long" in (answer.remark or "")
        assert (await route(line, "TopicB", version)).code == ResponseCode.SUCCESS
    await line.call(THIRD.unregistration)
    assert (await route(line, version=version)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("deflate", [False, True])
@pytest.mark.parametrize("topic", [absurd(), absurd(INT_MAX, 8), absurd(-1, 8), absurd(8, -1), absurd(QUEUES_MAX + 1)])
async def test_a_topic_with_an_absurd_count_is_left_out_and_its_broker_stays(
    nameserver: Running, line: AsyncConnection, caplog: pytest.LogCaptureFixture, topic: Topic, deflate: bool
) -> None:
    await register(line, MASTER.but(topics=(*MASTER.topics, topic), deflate=deflate))
    assert await topics(line) == ["TopicA", "TopicB"]
    assert await addresses(line) == {"broker-a": {"0": "10.0.0.1:10911"}}
    reason = f"{topic.read} read and {topic.write} write queues (expected 0 to {QUEUES_MAX})"
    assert "topics left out of a registration broker=broker-a " in caplog.text
    assert f"topics=1 first=Absurd reason={reason}" in caplog.text


async def test_the_largest_count_is_taken(line: AsyncConnection) -> None:
    await register(line, MASTER.but(topics=(Topic("Large", QUEUES_MAX, QUEUES_MAX), Topic("Closed", 0, 0))))
    assert await topics(line) == ["Closed", "Large"]


async def test_what_is_left_beside_an_absurd_topic_is_a_whole_table(line: AsyncConnection) -> None:
    await register(line, MASTER.but(topics=(Topic("TopicA"), absurd())))  # not a first registration with a single topic
    assert await topics(line) == ["TopicA"]


async def test_an_absurd_topic_alone_does_not_pass_for_an_empty_table(line: AsyncConnection) -> None:
    await line.call(318, body=b"deleteTopicWithBrokerRegistration=false")
    assert (await line.call(MASTER.but(topics=(absurd(),)).request)).code == ResponseCode.SYSTEM_ERROR
    await register(line, MASTER)
    await register(line, MASTER.but(topics=(absurd(),), data_version=NEWER))
    assert await topics(line) == ["TopicA", "TopicB"]


@pytest.mark.parametrize("count", ["true", '"x"', "1.5", "2147483648"])
async def test_a_count_that_is_no_number_is_refused_by_name(line: AsyncConnection, count: str) -> None:
    request = MASTER.request
    body = request.body.replace(b'"writeQueueNums":4', b'"writeQueueNums":' + count.encode())
    assert body != request.body
    answer = await line.call(103, {**request.fields, "bodyCrc32": "0"}, body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "writeQueueNums" in (answer.remark or "")


@pytest.mark.parametrize(("read", "write"), [(INT_MAX, 8), (8, -1)])
async def test_a_single_topic_with_an_absurd_count_is_refused(line: AsyncConnection, read: int, write: int) -> None:
    await register(line, MASTER)
    queues = {"brokerName": "broker-a", "perm": 6, "readQueueNums": read, "writeQueueNums": write, "topicSysFlag": 0}
    answer = await line.call(217, {"topic": "Absurd"}, json.dumps({"queueDatas": [queues]}).encode())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"broker 'broker-a' has {read} read and {write} write queues (expected 0 to {QUEUES_MAX})" in str(
        answer.remark
    )
    assert await topics(line) == ["TopicA", "TopicB"]


@pytest.mark.parametrize("order", ["broker-a:65537", "123456789:4;b:2147483647:1", "b:" + "9" * 5_000, "b:65536;" * 5])
async def test_an_absurd_order_config_is_refused(line: AsyncConnection, order: str) -> None:
    where = {"namespace": "ORDER_TOPIC_CONFIG", "key": "TopicA"}
    good = "123456789:65536; b : 4 ;c:x;;"
    assert (await line.call(100, {**where, "value": good})).code == ResponseCode.SUCCESS
    answer = await line.call(100, {**where, "value": order})
    assert (answer.code, "an order config has" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    assert (await line.call(101, where)).fields["value"] == good
    assert (await line.call(100, {"namespace": "other", "key": "k", "value": order})).code == ResponseCode.SUCCESS


# Clients, of any name server


def route_of(*counts: int, order: str | None = None) -> bytes:
    names = [f"broker-{number}" for number in range(len(counts))]
    route = {
        "brokerDatas": [
            {"brokerName": name, "cluster": CLUSTER, "brokerAddrs": {"0": "127.0.0.1:9"}} for name in names
        ],
        "queueDatas": [
            {"brokerName": name, "perm": 6, "readQueueNums": count, "writeQueueNums": count, "topicSysFlag": 0}
            for name, count in zip(names, counts, strict=True)
        ],
    }
    return json.dumps(route | ({} if order is None else {"orderTopicConf": order})).encode()


def tell(cluster: FakeCluster, route: bytes) -> None:
    cluster.on(105, lambda _command, _peer: Reply(body=route))


@pytest.mark.parametrize("count", [INT_MAX, QUEUES_MAX + 1, -1])
async def test_a_client_refuses_an_absurd_route_by_name(count: int) -> None:
    async with fake_cluster(topics={"T": 4}) as cluster, Session(cluster.address) as session:
        tell(cluster, route_of(4, count))
        with pytest.raises(BodyError) as caught:
            await asyncio.wait_for(session.routes.find("T"), WAIT_S)
        assert str(caught.value) == (
            f"name server {cluster.address} sent an unusable route of topic T: not a route: broker 'broker-1' has"
            f" {count} read and {count} write queues (expected 0 to {QUEUES_MAX})"
        )


async def test_a_client_adds_up_the_queues_of_all_brokers() -> None:
    many = [QUEUES_MAX] * 1_000
    async with fake_cluster(topics={"T": 4}) as cluster, PullConsumer("g", name_servers=cluster.address) as consumer:
        tell(cluster, route_of(*many))
        with pytest.raises(BodyError, match=f"1000 brokers have 65536000 queues .expected at most {ROUTE_QUEUES_MAX}."):
            await asyncio.wait_for(consumer.queues("T"), WAIT_S)


@pytest.mark.parametrize("order", ["broker-0:2147483647", "broker-0:" + "9" * 5_000, "b:65536;" * 5])
async def test_a_producer_ignores_an_absurd_order_config(order: str) -> None:
    async with fake_cluster(topics={"T": 4}) as cluster, Producer("g", name_servers=cluster.address) as producer:
        tell(cluster, route_of(4, order=order))
        with pytest.raises(ClientError, match=r"the route of topic T has .* expected at most 65536 on one broker"):
            await asyncio.wait_for(producer.send(Message("T", b"x")), WAIT_S)
