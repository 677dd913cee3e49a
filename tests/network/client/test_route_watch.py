"""The route watch, with name servers that support it and that do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from skyroute.client.producing.producer import Producer
from skyroute.client.session import route_watch
from skyroute.client.session.session import Session
from skyroute.message.message import Message
from skyroute.routing.topology import TopicRoute
from skyroute.wire.calls.clients import ConsumerData
from skyroute.wire.calls.watch import TOPICS_MAX
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.support.connections import WAIT_S, AsyncConnection, connection_to
from tests.support.fake_broker import NAME_SERVER, FakeCluster, Reply, fake_cluster
from tests.support.raw import DataVersion, Registration, Topic
from tests.support.servers import Running, running
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("nothing_lost")

WATCH, ROUTE = RequestCode.WATCH_ROUTES, RequestCode.GET_ROUTEINFO_BY_TOPIC
NEVER_S = 3600.0


class User:
    """Somebody who uses topics."""

    def __init__(self, *topics: str) -> None:
        self.used = list(topics)

    def producer_groups(self) -> Iterable[str]:
        return ()

    def consumer_data(self) -> Iterable[ConsumerData]:
        return ()

    def topics(self) -> Iterable[str]:
        return self.used


def broker(edition: int = 1, *, queues: int = 8, **changes: Any) -> Registration:
    topics = [Topic("T", read=queues, write=queues), Topic("U")]
    return Registration("c", "b", "10.0.0.7:1", topics, data_version=DataVersion(edition)).but(**changes)


@asynccontextmanager
async def watching(
    server: Running, *topics: str, **arguments: Any
) -> AsyncIterator[tuple[Session, asyncio.Queue[int]]]:
    """A session that uses topics and never polls, and the numbers of queues of T that it hears of."""
    heard: asyncio.Queue[int] = asyncio.Queue()

    def listen(topic: str, _: TopicRoute | None, route: TopicRoute) -> None:
        if topic == "T":
            heard.put_nowait(route.queues[0].settings.read_queues)

    async with Session(server.address, route_poll_interval_s=NEVER_S, **arguments) as session:
        session.routes.listeners.add(listen)
        session.heartbeats.add(User(*topics))
        await eventually(lambda: parked(server) > 0)
        yield session, heard


def parked(server: Running) -> int:
    watches = server.server._watches
    return 0 if watches is None else len(watches)


async def next_of(heard: asyncio.Queue[int]) -> int:
    async with asyncio.timeout(WAIT_S):
        return await heard.get()


@pytest.fixture
async def brokers(nameserver: Running) -> AsyncIterator[AsyncConnection]:
    async with connection_to(nameserver.address) as line:
        yield line


async def test_a_route_change_arrives_at_once(nameserver: Running, brokers: AsyncConnection) -> None:
    await brokers.call(broker().request)
    async with watching(nameserver, "T") as (session, heard):
        assert await next_of(heard) == 8
        for edition, queues in ((2, 4), (3, 6), (4, 2)):
            await brokers.call(broker(edition, queues=queues).request)
            assert await next_of(heard) == queues
        assert session.watch is not None
        assert session.watch.is_active
        assert len(session.connections.open) == 1
    await eventually(lambda: parked(nameserver) == 0)


async def test_a_new_topic_arrives_at_once(nameserver: Running, brokers: AsyncConnection) -> None:
    async with watching(nameserver, "T") as (_, heard):
        await brokers.call(broker().request)
        assert await next_of(heard) == 8


async def test_a_topic_that_is_used_later_is_watched_too(nameserver: Running, brokers: AsyncConnection) -> None:
    await brokers.call(broker().request)
    async with watching(nameserver, "U") as (session, heard):
        await session.routes.find("T")
        assert await next_of(heard) == 8
        session.heartbeats.add(User("T"))
        assert session.watch is not None
        await eventually(lambda: session.watch is not None and "T" in session.watch._covered)
        await brokers.call(broker(2, queues=4).request)
        assert await next_of(heard) == 4


async def test_a_change_between_reading_and_watching_is_not_lost(nameserver: Running, brokers: AsyncConnection) -> None:
    """A topic is read, it changes, the watch of others moves on, and only then does the watch take it up."""
    await brokers.call(broker().request)
    async with watching(nameserver, "U") as (session, heard):
        await session.routes.find("T")
        assert await next_of(heard) == 8
        await brokers.call(broker(2, topics=[Topic("T", read=3), Topic("U", read=3)]).request)
        session.heartbeats.add(User("T"))
        assert await next_of(heard) == 3


async def test_a_question_that_is_under_way_does_not_hide_a_change(
    nameserver: Running, brokers: AsyncConnection
) -> None:
    await brokers.call(broker().request)
    async with watching(nameserver, "U") as (session, _):
        old = asyncio.ensure_future(session.routes.refresh("T"))
        await asyncio.sleep(0)
        route = await session.routes.reread("T")
        assert (await old) == route
        assert nameserver.connections == 2


async def test_a_producer_uses_a_changed_route_at_once(tmp_path: Path) -> None:
    async with fake_cluster(topics={"T": 4}, brokers=("broker-a", "broker-b")) as cluster, running(tmp_path) as server:
        first, second = (
            Registration("c", name, cluster.broker(name).address, [Topic("T"), Topic("U")])
            for name in ("broker-a", "broker-b")
        )
        async with (
            connection_to(server.address) as line,
            Producer("g", server.address, route_poll_interval_s=NEVER_S) as producer,
        ):
            await line.call(first.request)
            await producer.send(Message("T", b"x"))
            await eventually(lambda: parked(server) == 1)
            await line.call(second.request)
            await line.call(first.unregistration)
            await eventually(lambda: set(producer.session.routes.brokers) == {"broker-b"})
            assert (await producer.send(Message("T", b"y"))).queue.broker_name == "broker-b"


async def test_a_restarted_name_server_is_watched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_watch, "RETRY_S", 0.01)
    async with running(tmp_path) as first:
        port = first.server.config.listen_port
        async with connection_to(first.address) as line:
            await line.call(broker().request)
            async with watching(first, "T") as (session, heard):
                assert await next_of(heard) == 8
                await line.close()
                await first.server.stop()
                async with running(
                    tmp_path, listen_port=port, journal_enabled=False, warm_restart_enabled=False
                ) as second:
                    await eventually(lambda: parked(second) == 1)
                    async with connection_to(second.address) as again:
                        await again.call(broker(2, queues=4).request)
                        assert await next_of(heard) == 4
                    assert len(session.connections.open) == 1


async def test_another_name_server_is_watched_when_the_first_is_gone(tmp_path: Path, nameserver: Running) -> None:
    async with (
        running(tmp_path / "other") as other,
        connection_to(nameserver.address) as line,
        connection_to(other.address) as line_of_other,
        Session([nameserver.address, other.address], route_poll_interval_s=NEVER_S) as session,
    ):
        for each in (line, line_of_other):
            await each.call(broker().request)
        session.name_servers.prefer(nameserver.address)
        session.heartbeats.add(User("T"))
        await eventually(lambda: parked(nameserver) == 1)
        await nameserver.server.stop()
        await eventually(lambda: parked(other) == 1)
        await line_of_other.call(broker(2, queues=4).request)
        await eventually(lambda: queues_of(session, "T") == 4)


async def test_routes_are_read_again_from_the_next_name_server(tmp_path: Path, nameserver: Running) -> None:
    async with (
        running(tmp_path / "other") as other,
        connection_to(nameserver.address) as line,
        connection_to(other.address) as line_of_other,
        Session([nameserver.address, other.address], route_poll_interval_s=NEVER_S) as session,
    ):
        await line.call(broker().request)
        await line_of_other.call(broker(2, queues=4).request)
        session.name_servers.prefer(nameserver.address)
        session.heartbeats.add(User("T"))
        await eventually(lambda: parked(nameserver) == 1)
        assert queues_of(session, "T") == 8
        await nameserver.server.stop()
        await eventually(lambda: queues_of(session, "T") == 4)


def queues_of(session: Session, topic: str) -> int:
    route = session.routes.cached(topic)
    return 0 if route is None else route.queues[0].settings.read_queues


async def test_more_topics_than_a_watch_can_name_are_watched_all(nameserver: Running, brokers: AsyncConnection) -> None:
    await brokers.call(broker().request)
    names = [f"topic-{number}" for number in range(TOPICS_MAX)]
    async with watching(nameserver, "T", *names) as (_, heard):
        assert await next_of(heard) == 8
        watches = nameserver.server._watches
        assert watches is not None
        await eventually(lambda: len(watches._any) == 1)
        await brokers.call(broker(2, queues=4).request)
        assert await next_of(heard) == 4


async def test_many_topics_one_after_the_other_are_few_watches(nameserver: Running, brokers: AsyncConnection) -> None:
    topics = [Topic(f"t{number}") for number in range(100)]
    await brokers.call(Registration("c", "b", "10.0.0.7:1", topics).request)
    async with watching(nameserver, "t0") as (session, _):
        user = User("t0")
        session.heartbeats.add(user)
        for topic in topics:
            await session.routes.find(topic.name)
            user.used.append(topic.name)
        watches = nameserver.server._watches
        assert watches is not None
        await eventually(lambda: len(watches._by_topic) == 100)
        assert parked(nameserver) <= 4


# ------------------------------------------------------------------------------------- name servers without watches


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Like Apache's: it does not know watches."""
    async with fake_cluster(topics={"T": 4}) as cluster:
        yield cluster


async def test_a_name_server_without_watches_gets_one_request(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_watch, "LOOK_S", 0.001)
    monkeypatch.setattr(route_watch, "RETRY_S", 0.001)
    async with Producer("g", cluster.address, route_poll_interval_s=0.01) as producer:
        await producer.send(Message("T", b"x"))
        (asked,) = await cluster.until_seen(WATCH, 1)
        cluster.topics["T"] = 8
        seen = len(cluster.seen(ROUTE))
        await cluster.until_seen(ROUTE, seen + 3)
        assert len(await producer.queues("T")) == 8
        assert cluster.seen(WATCH) == [asked]
        assert asked.value == {"topics": ["T"]}
        watch = producer.session.watch
        assert watch is not None
        assert not watch.is_active
        # On another line there may be another server.
        cluster.servers[NAME_SERVER].hang_up()
        await cluster.until_seen(WATCH, 2)


async def test_watching_can_be_turned_off(nameserver: Running, brokers: AsyncConnection, cluster: FakeCluster) -> None:
    await brokers.call(broker().request)
    async with Session(nameserver.address, watch_routes=False) as session:
        session.heartbeats.add(User("T"))
        await session.routes.find("T")
        assert session.watch is None
    async with Producer("g", cluster.address, watch_routes=False) as producer:
        await producer.send(Message("T", b"x"))
    assert cluster.seen(WATCH) == []


@pytest.mark.parametrize(
    "reply",
    [
        Reply(ResponseCode.SYSTEM_BUSY, remark="too many wait"),
        Reply(ResponseCode.SYSTEM_ERROR),
        Reply(ResponseCode.SUCCESS),
        Reply(ResponseCode.SUCCESS, {"life": "x", "revision": "soon"}),
        Reply(ResponseCode.SUCCESS, {"life": "x", "revision": "1"}, b"{"),
    ],
)
async def test_after_an_invalid_response_the_watch_pauses(cluster: FakeCluster, reply: Reply) -> None:
    cluster.on(WATCH, lambda *_: reply)
    async with Producer("g", cluster.address) as producer:
        await producer.send(Message("T", b"x"))
        await cluster.until_seen(WATCH, 1)
        await producer.send(Message("T", b"y"))
        assert len(cluster.seen(WATCH)) == 1


async def test_a_name_server_that_reports_changes_all_the_time_causes_no_busy_loop(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_watch, "GAP_S", 0.1)
    always = Reply(ResponseCode.SUCCESS, {"life": "x", "revision": "1", "floor": "0", "compacted": "true"})
    cluster.on(WATCH, lambda *_: always)
    async with Session(cluster.address, route_poll_interval_s=NEVER_S) as session:
        session.heartbeats.add(User("T"))
        await cluster.until_seen(WATCH, 2)
        began, seen = asyncio.get_running_loop().time(), len(cluster.seen(WATCH))
        await cluster.until_seen(WATCH, seen + 5)
        assert asyncio.get_running_loop().time() - began >= 0.35


async def test_a_route_that_cannot_be_read_is_tried_again(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_watch, "RETRY_S", 0.01)
    answered = 0

    async def tell(*_: object) -> Reply:
        nonlocal answered
        answered += 1
        await asyncio.sleep(0.001)
        fields = {"life": "x", "revision": str(answered)}
        return Reply(ResponseCode.SUCCESS, fields | {"compacted": "true"} if answered == 1 else fields)

    cluster.on(WATCH, tell)
    async with Session(cluster.address, route_poll_interval_s=NEVER_S) as session:
        cluster.refuse(ROUTE, ResponseCode.SYSTEM_ERROR, "not ready", times=3)
        session.heartbeats.add(User("T"))
        await eventually(lambda: session.routes.cached("T") is not None)


async def test_a_session_that_stops_while_it_watches_stops_at_once(nameserver: Running) -> None:
    loop = asyncio.get_running_loop()
    async with watching(nameserver, "T"):
        began = loop.time()
    assert loop.time() - began < 2.0
    async with Session(nameserver.address) as idle:
        assert idle.watch is not None
