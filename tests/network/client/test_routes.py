"""The route cache: reads, refreshes and addresses."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from skyroute.client.errors import ClientError, NoNameServerError, NoRouteError, UnsupportedError
from skyroute.client.producing.producer import Producer
from skyroute.client.session.logical_queues import logical_leaders
from skyroute.client.session.session import Session
from skyroute.errors import SkyrouteError
from skyroute.message.message import Message
from skyroute.remoting.errors import RemotingError
from skyroute.routing.topology import ROUTE_QUEUES_MAX, TopicRoute
from skyroute.wire.calls.route import decode_route
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.errors import WireError
from tests.support.connections import WAIT_S, connection_to
from tests.support.fake_broker import CLUSTER, NAME_SERVER, FakeCluster, Reply, fake_cluster
from tests.support.named_hosts import run_with_names
from tests.support.raw import Registration, Topic
from tests.support.servers import running
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("nothing_lost")

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(topics={"T": 4, "U": 2}) as cluster:
        yield cluster


@pytest.fixture
async def session(cluster: FakeCluster) -> AsyncIterator[Session]:
    async with Session(cluster.address) as session:
        yield session


def route_body(brokers: Mapping[str, Mapping[int, str]], *, queues: int = 1, perm: int = 6) -> bytes:
    return json.dumps(
        {
            "brokerDatas": [
                {"brokerName": name, "cluster": CLUSTER, "brokerAddrs": addresses}
                for name, addresses in brokers.items()
            ],
            "queueDatas": [
                {"brokerName": name, "perm": perm, "readQueueNums": queues, "writeQueueNums": queues, "topicSysFlag": 0}
                for name in brokers
            ],
        }
    ).encode()


# --------------------------------------------------------------------------------------------------------------- asking


async def test_a_route_is_read_once_and_cached(cluster: FakeCluster, session: Session) -> None:
    first = await session.routes.find("T")
    assert await session.routes.find("T") is first
    assert session.routes.cached("T") is first
    assert session.routes.topics == ["T"]
    assert len(cluster.seen(ROUTE)) == 1
    assert session.routes.address("broker-a") == cluster.broker().address


async def test_concurrent_callers_share_one_route_request(cluster: FakeCluster, session: Session) -> None:
    routes = await asyncio.gather(*(session.routes.find("T") for _ in range(50)))
    assert len(cluster.seen(ROUTE)) == 1
    assert all(route is routes[0] for route in routes)
    assert session.routes._refreshes == {}


async def test_a_cancelled_caller_does_not_cancel_the_route_request(cluster: FakeCluster, session: Session) -> None:
    answer = asyncio.Event()
    cluster.delay(ROUTE, answer)
    hasty, patient = (asyncio.create_task(session.routes.find("T")) for _ in range(2))
    await cluster.until_seen(ROUTE)
    hasty.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hasty
    answer.set()
    assert (await patient).groups[0].name == "broker-a"
    assert len(cluster.seen(ROUTE)) == 1


async def test_a_failed_route_request_without_callers_is_not_reported_as_unretrieved(
    cluster: FakeCluster, session: Session
) -> None:
    answer = asyncio.Event()
    cluster.delay(ROUTE, answer)
    waiting = asyncio.create_task(session.routes.find("Unknown"))
    await cluster.until_seen(ROUTE)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    asking = session.routes._refreshes["Unknown"]
    answer.set()
    await asyncio.wait([asking])
    assert session.routes._refreshes == {}


async def test_an_unknown_topic_raises_with_advice(session: Session) -> None:
    with pytest.raises(NoRouteError, match=r"no broker serves the topic Unknown: create it") as caught:
        await session.routes.find("Unknown")
    assert caught.value.retryable
    assert caught.value.stale_route


async def test_the_cached_route_stays_when_a_topic_is_deleted(cluster: FakeCluster, session: Session) -> None:
    known = await session.routes.find("T")
    del cluster.topics["T"]
    with pytest.raises(NoRouteError):
        await session.routes.refresh("T")
    assert session.routes.cached("T") is known
    session.routes.forget("T")
    session.routes.forget("T")
    assert session.routes.cached("T") is None
    assert session.routes.brokers == {}


async def test_listeners_hear_of_changes_only(cluster: FakeCluster, session: Session) -> None:
    heard: list[tuple[str, TopicRoute | None, TopicRoute]] = []
    session.routes.listeners.add(lambda *news: heard.append(news))
    first = await session.routes.find("T")
    await session.routes.refresh("T")
    cluster.topics["T"] = 8
    second = await session.routes.refresh("T")
    assert heard == [("T", None, first), ("T", first, second)]


# ------------------------------------------------------------------------------------------------- addresses of brokers


async def test_the_newest_address_of_a_broker_wins(cluster: FakeCluster, session: Session) -> None:
    where = {"x": "10.0.0.1:1", "y": "10.0.0.9:1"}

    def answer(topic: str) -> bytes:
        return route_body({"y" if topic == "OnY" else "x": {0: where["y" if topic == "OnY" else "x"]}})

    cluster.on(ROUTE, lambda command, _: Reply(body=answer(command.fields["topic"])))
    for topic in ("A", "B"):
        await session.routes.find(topic)
    where["x"] = "10.0.0.2:1"
    await session.routes.refresh("A")
    assert session.routes.address("x") == "10.0.0.2:1"
    await session.routes.find("OnY")  # B still names the old address, and no news of Y makes that true
    assert session.routes.address("x") == "10.0.0.2:1"
    assert session.routes.address("y") == "10.0.0.9:1"
    where["x"] = "10.0.0.1:1"
    await session.routes.refresh("B")  # as B had it all the time
    assert session.routes.address("x") == "10.0.0.1:1"


async def test_a_broker_that_no_route_names_any_more_is_forgotten(cluster: FakeCluster, session: Session) -> None:
    brokers = {"A": {"x": {0: "10.0.0.1:1"}, "y": {0: "10.0.0.2:1"}}, "B": {"y": {0: "10.0.0.2:1"}}}
    cluster.on(ROUTE, lambda command, _: Reply(body=route_body(brokers[command.fields["topic"]])))
    for topic in brokers:
        await session.routes.find(topic)
    brokers["A"] = {"z": {0: "10.0.0.3:1"}}
    await session.routes.refresh("A")
    assert set(session.routes.brokers) == {"y", "z"}
    session.routes.forget("B")
    assert set(session.routes.brokers) == {"z"}


async def test_a_slave_is_found_where_no_master_is(cluster: FakeCluster, session: Session) -> None:
    cluster.on(ROUTE, lambda *_: Reply(body=route_body({"x": {2: "10.0.0.2:1", 5: "10.0.0.5:1"}})))
    await session.routes.find("T")
    routes = session.routes
    assert routes.address("x") is None
    assert [routes.any_address("x", broker_id) for broker_id in (0, 1, 2, 5)] == [
        "10.0.0.2:1",
        "10.0.0.2:1",
        "10.0.0.2:1",
        "10.0.0.5:1",
    ]
    assert routes.any_address("nobody") is None


# ---------------------------------------------------------------------------------------------------------- being fresh


async def test_routes_in_use_are_polled(cluster: FakeCluster) -> None:
    async with Producer("g", cluster.address, route_poll_interval_s=0.01) as producer:
        await producer.send(Message("T", b"x"))
        assert len(await producer.queues("T")) == 4
        cluster.topics["T"] = 8
        asked = len(cluster.seen(ROUTE))
        await cluster.until_seen(ROUTE, asked + 2)
        assert len(await producer.queues("T")) == 8
        await producer.send(Message("T", b"x"), queue=cluster.queue("T", 7))


async def test_polling_survives_a_name_server_that_is_away(cluster: FakeCluster) -> None:
    async with Producer("g", cluster.address, route_poll_interval_s=0.01, request_timeout_s=0.5) as producer:
        await producer.send(Message("T", b"x"))
        server = cluster.servers[NAME_SERVER]
        await server.stop()
        await producer.send(Message("T", b"what is known is still good"))
        cluster.topics["T"] = 2
        await server.start()
        asked = len(cluster.seen(ROUTE))
        await cluster.until_seen(ROUTE, asked + 2)
        assert len(await producer.queues("T")) == 2


# -------------------------------------------------------------------------------------------- topics that are created


async def test_a_new_topic_is_sent_to_where_it_will_be_and_then_to_where_it_is() -> None:
    async with fake_cluster(auto_create=True) as cluster:
        cluster.topics["TBW102"] = 8
        async with Producer("g", cluster.address, new_topic_queues=2) as producer:
            assert len(await producer.queues("New")) == 2
            result = await producer.send(Message("New", b"first"))
            assert result.queue.topic == "New"
            (sent,) = cluster.seen(RequestCode.SEND_MESSAGE_V2)
            assert (sent.fields["b"], sent.fields["c"], sent.fields["d"]) == ("New", "TBW102", "2")
            # The real route, after the second in which the route is not read again.
            producer._delivery._provisional["New"] = (0.0, producer._delivery._provisional["New"][1])
            assert len(await producer.queues("New")) == 4
            assert "New" not in producer._delivery._provisional


async def test_a_burst_to_a_new_topic_reads_the_route_once() -> None:
    async with fake_cluster(auto_create=True) as cluster:
        async with Producer("g", cluster.address) as producer:
            await asyncio.gather(*(producer.send(Message("New", b"x")) for _ in range(50)))
            asked = [command.fields["topic"] for command in cluster.seen(ROUTE)]
            assert asked.count("New") == 1
            assert asked.count("TBW102") <= 50
        assert len(cluster.stored_bodies("New")) == 50


async def test_new_topics_follow_the_brokers_as_they_move() -> None:
    async with fake_cluster(auto_create=True) as cluster, Producer("g", cluster.address) as producer:
        await producer.send(Message("New1", b"x"))
        await cluster.broker().stop()
        cluster.broker().address = "127.0.0.1:0"
        await cluster.broker().start()
        await producer.send(Message("New2", b"x"))
        assert cluster.stored_bodies("New2") == [b"x"]


async def test_a_topic_that_no_broker_would_create_has_no_route(cluster: FakeCluster) -> None:
    async with Producer("g", cluster.address) as producer:
        for attempt in (
            producer.send(Message("New", b"x")),
            producer.send_oneway(Message("New", b"x")),
            producer.send_batch([Message("New", b"x")] * 2),
            producer.request(Message("New", b"x")),
            producer.queues("New"),
        ):
            with pytest.raises(NoRouteError, match="no broker serves the topic New"):
                await attempt
    assert cluster.seen(RequestCode.SEND_MESSAGE_V2) == []


@pytest.mark.parametrize(
    "route", [route_body({"x": {1: "127.0.0.1:1"}}), route_body({"x": {0: "127.0.0.1:1"}}, perm=4)]
)
async def test_a_topic_without_writable_queues_raises_the_reason(cluster: FakeCluster, route: bytes) -> None:
    cluster.on(ROUTE, lambda *_: Reply(body=route))
    async with Producer("g", cluster.address) as producer:
        with pytest.raises(NoRouteError, match="has no writable queue: check that its brokers have a master"):
            await producer.send(Message("T", b"x"), timeout_s=0.2)
        cluster.heal(ROUTE)
        await producer.session.routes.refresh("T")
        await producer.send(Message("T", b"x"))


async def test_a_topic_without_write_permission_raises_at_once(cluster: FakeCluster) -> None:
    cluster.on(ROUTE, lambda *_: Reply(body=route_body({"x": {1: "127.0.0.1:1"}}, perm=4)))
    async with Producer("g", cluster.address) as producer, asyncio.timeout(WAIT_S):
        with pytest.raises(NoRouteError):
            await producer.send(Message("T", b"x"), timeout_s=10 * WAIT_S)


@pytest.mark.parametrize("watch_routes", [False, True])
async def test_sends_wait_for_a_new_master(cluster: FakeCluster, *, watch_routes: bool) -> None:
    async with (
        Session(cluster.address, watch_routes=watch_routes) as session,
        Producer("g", session=session) as producer,
    ):
        replica = route_body({"broker-a": {1: cluster.broker().address}})
        cluster.on(ROUTE, lambda *_: Reply(body=replica))
        async with asyncio.TaskGroup() as group:
            sends = [group.create_task(producer.send(Message("T", b"x"))) for _ in range(100)]
            asked = len(await cluster.until_seen(ROUTE, 3))
            assert not any(send.done() for send in sends)
            cluster.heal(ROUTE)
        assert len(cluster.seen(ROUTE)) <= asked + 2  # all of them share the requests
        assert len(cluster.stored_bodies("T")) == 100


async def test_a_lost_send_goes_on_with_the_new_master() -> None:
    async with fake_cluster(topics={"T": 1}) as other, fake_cluster(topics={"T": 1}) as cluster:
        async with Producer("g", cluster.address) as producer:
            await producer.send(Message("T", b"1"))
            await cluster.broker().stop()
            routes = [{1: other.broker().address}] * 3 + [{0: other.broker().address}]
            cluster.on(
                ROUTE, lambda *_: Reply(body=route_body({"broker-a": routes.pop(0) if routes[1:] else routes[0]}))
            )
            await producer.send(Message("T", b"2"))
        assert other.stored_bodies("T") == [b"2"]


async def test_the_next_message_finds_the_new_master_also_without_retries() -> None:
    async with fake_cluster(topics={"T": 1}) as other, fake_cluster(topics={"T": 1}) as cluster:
        async with Producer("g", cluster.address, retries=0) as producer:
            await producer.send(Message("T", b"1"))
            await cluster.broker().stop()
            cluster.on(ROUTE, lambda *_: Reply(body=route_body({"broker-a": {0: other.broker().address}})))
            with pytest.raises(RemotingError):
                await producer.send(Message("T", b"2"))
            await eventually(lambda: producer.session.routes.address("broker-a") == other.broker().address)
            await producer.send(Message("T", b"3"))
        assert other.stored_bodies("T") == [b"3"]


async def test_the_replicas_of_a_lost_master_are_connected_early(cluster: FakeCluster) -> None:
    address = cluster.broker().address
    async with Session(cluster.address) as session, Producer("g", session=session):
        for brokers in ({0: "127.0.0.1:1", 1: address}, {1: address, 2: "127.0.0.1:1"}):
            session.routes.store("T", decode_route(route_body({"broker-a": brokers})))
        (heartbeat,) = await cluster.until_seen(RequestCode.HEART_BEAT)
        assert [each["groupName"] for each in heartbeat.value["producerDataSet"]] == ["g"]


# ----------------------------------------------------------------------------------------------------- name servers


async def test_a_dead_name_server_is_not_used_twice(cluster: FakeCluster) -> None:
    async with fake_cluster(topics={"T": 1, "U": 1}) as hanging:
        hanging.hang(ROUTE)
        async with Session([hanging.address, cluster.address], request_timeout_s=0.5) as session:
            session.name_servers.prefer(hanging.address)
            for topic in ("T", "U"):
                await session.routes.find(topic)
            await session.routes.refresh("T")
        assert len(hanging.seen(ROUTE)) == 1
        assert len(cluster.seen(ROUTE)) == 3


async def test_one_of_two_name_servers_may_die_at_any_time(cluster: FakeCluster) -> None:
    async with fake_cluster(topics={"T": 4}) as other, Session([other.address, cluster.address]) as session:
        session.name_servers.prefer(other.address)
        await session.routes.find("T")
        await other.servers[NAME_SERVER].stop()
        assert (await session.routes.refresh("T")).groups[0].addresses == {0: cluster.broker().address}


def test_a_name_with_several_addresses_is_several_name_servers() -> None:
    async def ask() -> None:
        async with fake_cluster(topics={"T": 4}) as cluster:
            port = cluster.address.rpartition(":")[2]
            async with Producer("g", f"name-servers.example:{port}") as producer:
                await producer.send(Message("T", b"x"))
                assert producer.session.name_servers._preferred == cluster.address
            assert cluster.stored_bodies("T") == [b"x"]

    run_with_names({"name-servers.example": ["127.0.0.2", "127.0.0.3", "127.0.0.1"]}, ask)


def test_the_error_contains_the_unknown_host_name() -> None:
    async def ask() -> None:
        async with Session("nobody.example:9876") as session:
            with pytest.raises(NoNameServerError, match=r"nobody\.example"):
                await session.routes.find("T")

    run_with_names({}, ask)


async def test_the_environment_names_the_name_servers(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", f"127.0.0.1:1;{cluster.address}")
    async with Producer("g") as producer:
        await producer.send(Message("T", b"x"))
    monkeypatch.delenv("NAMESRV_ADDR")
    with pytest.raises(ClientError, match="NAMESRV_ADDR"):
        Producer("g")


async def test_our_own_name_server_is_understood(cluster: FakeCluster, tmp_path: Path) -> None:
    registration = Registration(
        CLUSTER, "broker-a", cluster.broker().address, [Topic("T", read=4, write=4), Topic("U")]
    )
    async with running(tmp_path) as server, connection_to(server.address) as line:
        assert (await line.call(registration.request)).code == ResponseCode.SUCCESS
        async with Producer("g", server.address) as producer:
            result = await producer.send(Message("T", b"x"))
    assert result.ok
    assert cluster.stored_bodies("T") == [b"x"]


# ------------------------------------------------------------------------------------------------- wrong name servers


async def test_the_address_of_a_broker_as_name_server_raises_with_advice(cluster: FakeCluster) -> None:
    async with Producer("g", cluster.broker().address) as producer:
        with pytest.raises(UnsupportedError, match=f"{cluster.broker().address} refused with 3"):
            await producer.send(Message("T", b"x"))


async def test_the_address_of_a_web_server_as_name_server_raises_with_advice() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        await writer.drain()
        await reader.read()
        writer.transport.abort()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with Producer("g", address) as producer:
        with pytest.raises(NoNameServerError, match=f"{address} does not speak RocketMQ's protocol"):
            await producer.send(Message("T", b"x"))
    server.close()
    await asyncio.sleep(0)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"brokerDatas":7}', b"\xff\xfe"])
async def test_a_route_that_cannot_be_read_is_an_error_of_ours(cluster: FakeCluster, body: bytes) -> None:
    cluster.on(ROUTE, lambda *_: Reply(body=body))
    async with Producer("g", cluster.address) as producer:
        with pytest.raises((WireError, NoRouteError)):
            await producer.send(Message("T", b"x"))


def _route(**parts: object) -> bytes:
    return json.dumps({"brokerDatas": [], "queueDatas": [], **parts}).encode()


def _mapping(number: int, scope: str, total: int) -> dict[str, object]:
    return {"bname": f"b{number}", "currIdMap": {}, "epoch": 1, "scope": scope, "topic": "T", "totalQueues": total}


def _brokers(count: int, addresses: int) -> list[dict[str, object]]:
    ids = {str(number): f"127.0.0.1:{number + 1}" for number in range(addresses)}
    return [{"brokerName": f"b{number}", "brokerAddrs": ids} for number in range(count)]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(_route(brokerDatas=_brokers(10_001, 1)), id="many-groups"),
        pytest.param(_route(brokerDatas=_brokers(1, 10_001)), id="many-addresses"),
        pytest.param(
            _route(queueDatas=[{"brokerName": "b", "readQueueNums": 65_537, "writeQueueNums": 1, "perm": 6}]),
            id="many-queues",
        ),
        pytest.param(
            _route(queueDatas=[{"brokerName": "b", "readQueueNums": -1, "writeQueueNums": -1, "perm": 6}]),
            id="negative-queues",
        ),
    ],
)
async def test_a_huge_route_is_refused(cluster: FakeCluster, session: Session, body: bytes) -> None:
    cluster.on(ROUTE, lambda *_: Reply(body=body))
    with pytest.raises(WireError, match="not a route"):
        await session.routes.find("T")


@pytest.mark.parametrize("scopes", [1, 1_000])
def test_logical_queues_of_a_route_are_bounded_together(scopes: int) -> None:
    mappings = {f"b{at}": _mapping(at, f"s{at % scopes}", (1 << 31) - 1) for at in range(1_000)}
    route = decode_route(_route(topicQueueMappingByBroker=mappings))
    assert len(logical_leaders(route)) == ROUTE_QUEUES_MAX


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.0.0.1:x", "", ":", "127.0.0.1:99999999999", "127.0.0.1:1", "a b:1"]
)
@pytest.mark.parametrize("vip_channel", [False, True])
async def test_an_address_that_cannot_be_one_is_an_error_of_ours(
    cluster: FakeCluster, address: str, vip_channel: bool
) -> None:
    queues = [{"brokerName": "b", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}]
    body = _route(brokerDatas=[{"brokerName": "b", "brokerAddrs": {"0": address}}], queueDatas=queues)
    cluster.on(ROUTE, lambda *_: Reply(body=body))
    async with Producer("g", cluster.address, vip_channel=vip_channel, retries=0) as producer:
        with pytest.raises(SkyrouteError):
            await producer.send(Message("T", b"x"))


async def test_no_name_server_at_all() -> None:
    async with Producer("g", "127.0.0.1:1") as producer:
        with pytest.raises(NoNameServerError, match=r"127\.0\.0\.1:1") as caught:
            await producer.send(Message("T", b"x"))
    assert caught.value.retryable


async def test_a_hanging_name_server_does_not_exceed_the_send_timeout(cluster: FakeCluster) -> None:
    cluster.hang(ROUTE)
    loop = asyncio.get_running_loop()
    async with Producer("g", cluster.address, request_timeout_s=WAIT_S) as producer:
        began = loop.time()
        with pytest.raises(Exception, match="no name server returned the route of T in"):
            await producer.send(Message("T", b"x"), timeout_s=0.1)
        assert loop.time() - began < 2.0
        assert producer._in_flight.count == 0
