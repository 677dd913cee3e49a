"""The session: connections, heartbeats and requests of brokers."""

import asyncio
import base64
import hmac
import logging
import os
import pickle
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from skyroute import blocking
from skyroute.client.admin import Admin
from skyroute.client.consuming.consumer import Consumer
from skyroute.client.consuming.pull_consumer import PullConsumer
from skyroute.client.consuming.queue_calls import max_offset
from skyroute.client.consuming.simple_consumer import SimpleConsumer
from skyroute.client.errors import (
    ClientError,
    GoAwayError,
    NoNameServerError,
    NoPermissionError,
    NotRunningError,
    SystemBusyError,
    WrongLoopError,
)
from skyroute.client.producing.producer import Producer
from skyroute.client.session import connections
from skyroute.client.session import session as session_module
from skyroute.client.session.incoming_requests import REQUESTS_MAX
from skyroute.client.session.session import Session
from skyroute.client.session.signing import Credentials
from skyroute.message.message import Message
from skyroute.message.queue_ref import QueueRef
from skyroute.remoting.errors import ConnectError, ConnectionLostError, RemotingError
from skyroute.remoting.tls_settings import TlsClientSettings
from skyroute.wire.calls.clients import ConsumerData
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request, Response
from tests.network.certificates import Files, client_of
from tests.support import raw
from tests.support.clock import ManualClock
from tests.support.connections import WAIT_S
from tests.support.fake_broker import NAME_SERVER, FakeCluster, Peer, Reply, fake_cluster
from tests.support.raw import Command
from tests.support.servers import running
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("nothing_lost")

ECHO = 77
HEARTBEAT = RequestCode.HEART_BEAT
UNREGISTER = RequestCode.UNREGISTER_CLIENT


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(topics={"T": 4}, brokers=("broker-a", "broker-b")) as cluster:
        cluster.on(ECHO, lambda command, _: Reply(body=command.body))
        yield cluster


@pytest.fixture
async def session(cluster: FakeCluster) -> AsyncIterator[Session]:
    async with Session(cluster.address, request_timeout_s=WAIT_S) as session:
        yield session


class Member:
    """A producer, as far as its session is concerned."""

    def __init__(self, *groups: str, topics: Iterable[str] = ("T",)) -> None:
        self.groups = groups
        self._topics = topics

    def producer_groups(self) -> Iterable[str]:
        return self.groups

    def consumer_data(self) -> Iterable[ConsumerData]:
        return ()

    def topics(self) -> Iterable[str]:
        return self._topics


@asynccontextmanager
async def mute_server() -> AsyncIterator[str]:
    """An address that takes connections and never says a word."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=65536)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            if not writer.transport.is_closing():
                writer.transport.abort()


def groups_of(heartbeat: Command) -> set[str]:
    return {producer["groupName"] for producer in heartbeat.value["producerDataSet"]}


# ---------------------------------------------------------------------------------------------------- names and numbers


@pytest.mark.parametrize(
    ("arguments", "client_id"),
    [
        ({"client_ip": "10.0.0.1", "instance_name": "I"}, "10.0.0.1@I"),
        ({"client_ip": "10.0.0.1", "instance_name": "I", "unit_name": "U"}, "10.0.0.1@I@U"),
        ({"client_ip": "fe80::1", "instance_name": "I"}, "[fe80::1]@I"),
    ],
)
def test_a_client_id_is_made_as_java_makes_it(arguments: dict[str, str], client_id: str) -> None:
    assert Session("a:1", **arguments).client_id == client_id  # type: ignore[arg-type]  # all of these are text


def test_two_sessions_of_a_process_have_two_ids() -> None:
    ids = {Session("a:1", instance_name=name).client_id for _ in range(25) for name in (None, "DEFAULT")}
    assert len(ids) == 50
    assert all(re.fullmatch(rf"[0-9.]+@{os.getpid()}#\d+", client_id) for client_id in ids)


def test_a_session_without_a_name_server_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(ClientError, match="NAMESRV_ADDR"):
        Session()


# ------------------------------------------------------------------------------------------------------- start and stop


async def test_a_session_is_of_use_between_start_and_stop(cluster: FakeCluster) -> None:
    session = Session(cluster.address, client_ip="10.0.0.1", instance_name="I")
    address = cluster.broker().address
    assert repr(session) == "<Session 10.0.0.1@I stopped>"
    with pytest.raises(NotRunningError, match="start"):
        await session.call(address, Request(ECHO))
    with pytest.raises(NotRunningError):
        await session.tell(address, Request(ECHO))
    with pytest.raises(NotRunningError):
        await session.ask_name_server(Request(105, {"topic": "T"}))
    await session.stop()  # nothing to stop yet
    for _ in range(2):
        await session.start()
        await session.start()
        assert session.is_running
        assert (await session.call(address, Request(ECHO, body=b"x"))).body == b"x"
        await session.stop()
        await session.stop()
        assert session._tasks == set()
        assert session.connections.open == set()
        await eventually(lambda: not cluster.broker().peers)
        with pytest.raises(NotRunningError):
            await session.call(address, Request(ECHO))


async def test_a_stop_ends_the_calls_that_are_under_way(cluster: FakeCluster) -> None:
    cluster.hang(ECHO)
    session = Session(cluster.address)
    await session.start()
    calls = [asyncio.create_task(session.call(cluster.broker().address, Request(ECHO), WAIT_S)) for _ in range(3)]
    await cluster.until_seen(ECHO, 3)
    await session.stop()
    for call in calls:
        with pytest.raises(ConnectionLostError):
            await call


async def test_a_stop_ends_the_wait_for_a_connection(cluster: FakeCluster) -> None:
    async with mute_server() as address:
        session = Session(cluster.address, tls=True)
        await session.start()
        waiting = asyncio.create_task(session.call(address, Request(ECHO), WAIT_S))
        await eventually(lambda: bool(session.connections.opening))
        just_now = asyncio.create_task(session.call(cluster.broker().address, Request(ECHO), WAIT_S))
        await asyncio.sleep(0)
        await session.stop()
        for call in (waiting, just_now):
            with pytest.raises(NotRunningError, match="stopped during the call"):
                await call
        assert session.connections.opening == {}


async def test_a_stop_ends_the_wait_for_a_route(cluster: FakeCluster) -> None:
    cluster.hang(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    session = Session(cluster.address)
    await session.start()
    waiting = asyncio.create_task(session.routes.find("T"))
    await cluster.until_seen(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    await session.stop()
    with pytest.raises(NotRunningError, match="stopped during the call"):
        await waiting


async def test_stop_does_not_wait_for_brokers_that_do_not_respond(cluster: FakeCluster) -> None:
    cluster.hang(UNREGISTER)
    session = Session(cluster.address, request_timeout_s=0.05)
    await session.start()
    session.heartbeats.add(Member("g"))
    await session.call(cluster.broker().address, Request(ECHO), WAIT_S)
    async with asyncio.timeout(WAIT_S / 2):
        await session.stop()
    await eventually(lambda: not cluster.broker().peers)


async def test_stop_does_not_wait_for_a_peer_that_does_not_read(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CLOSE_WAIT_S", 0.05)
    async with mute_server() as address:
        session = Session(cluster.address, request_timeout_s=0.02)
        await session.start()
        await session.tell(address, Request(ECHO))
        (channel,) = session.connections.open
        while channel._writable is None:
            await session.tell(address, Request(ECHO, body=bytes(1 << 20)))
        with pytest.raises(RemotingError, match="has read nothing"):
            await session.tell(address, Request(ECHO))
        async with asyncio.timeout(WAIT_S / 2):
            await session.stop()
        await asyncio.wait_for(channel.ended, WAIT_S)


@pytest.mark.usefixtures("expects_errors")
async def test_a_stop_does_not_wait_for_work_that_will_not_end(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session_module, "STOP_WAIT_S", 0.05)
    enough = asyncio.Event()

    async def stubborn() -> None:
        while not enough.is_set():
            try:
                await enough.wait()
            except asyncio.CancelledError:
                continue

    async with Session(cluster.address) as session:
        task = session.spawn(stubborn(), name="stubborn")
        await asyncio.sleep(0)
    assert "background task does not end name=skyroute stubborn" in caplog.text
    enough.set()
    await task


async def test_a_stop_that_is_cancelled_still_ends_everything(cluster: FakeCluster) -> None:
    cluster.hang(UNREGISTER)
    session = Session(cluster.address, request_timeout_s=WAIT_S)
    await session.start()
    session.heartbeats.add(Member("g"))
    await session.routes.find("T")
    await session.call(cluster.broker().address, Request(ECHO))
    stopping = asyncio.create_task(session.stop())
    await cluster.until_seen(UNREGISTER)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert not session.is_running
    assert session._tasks == set()
    await eventually(lambda: not cluster.broker().peers)


async def test_one_way_requests_before_stop_are_sent(cluster: FakeCluster) -> None:
    async with Session(cluster.address) as session:
        for number in range(20):
            await session.tell(cluster.broker().address, Request(ECHO, body=bytes([number]) * 100_000))
    heard = await cluster.until_seen(ECHO, 20)
    assert sorted(command.body[0] for command in heard) == list(range(20))


@pytest.mark.usefixtures("expects_errors")
async def test_background_work_that_fails_is_logged(session: Session, caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise RuntimeError("boom")

    task = session.spawn(fail(), name="attempt")
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert "background task failed name=skyroute attempt" in caplog.text
    assert "boom" in caplog.text
    assert task not in session._tasks


# ---------------------------------------------------------------------------------------------------------------- calls


async def test_call_returns_a_refusal_and_ask_raises_it(cluster: FakeCluster, session: Session) -> None:
    cluster.refuse(ECHO, ResponseCode.SYSTEM_BUSY, "busy")
    address = cluster.broker().address
    assert (await session.call(address, Request(ECHO))).code == ResponseCode.SYSTEM_BUSY
    with pytest.raises(SystemBusyError, match=f"{address} refused with 2"):
        await session.ask(address, Request(ECHO))


async def test_all_calls_to_an_address_share_a_connection(cluster: FakeCluster, session: Session) -> None:
    address = cluster.broker().address
    bodies = [str(number).encode() for number in range(200)]
    answers = await asyncio.gather(*(session.call(address, Request(ECHO, body=body)) for body in bodies))
    assert [answer.body for answer in answers] == bodies
    assert len(cluster.broker().peers) == 1


async def test_a_lost_connection_is_opened_again(cluster: FakeCluster, session: Session) -> None:
    address = cluster.broker().address
    await session.call(address, Request(ECHO))
    cluster.broker().hang_up()
    await eventually(lambda: address not in session.connections.by_address)
    assert (await session.call(address, Request(ECHO, body=b"again"))).body == b"again"


async def test_a_cancelled_caller_does_not_cancel_the_connection_attempt(cluster: FakeCluster) -> None:
    async with mute_server() as address, Session(cluster.address, tls=True) as session:
        first = asyncio.create_task(session.call(address, Request(ECHO), WAIT_S))
        second = asyncio.create_task(session.call(address, Request(ECHO), 0.05))
        await eventually(lambda: bool(session.connections.opening))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(ConnectError, match=r"did not accept the connection in 0\.05 s"):
            await second
        assert len(session.connections.opening) == 1


async def test_a_failed_attempt_without_callers_is_not_reported_as_unretrieved(cluster: FakeCluster) -> None:
    async with mute_server() as address, Session(cluster.address, tls=True, connect_timeout_s=0.05) as session:
        with pytest.raises(ConnectError):
            await session.call(address, Request(ECHO), 0.01)
        await eventually(lambda: not session.connections.opening)


async def test_connecting_is_part_of_the_time_for_a_call(cluster: FakeCluster) -> None:
    loop = asyncio.get_running_loop()
    async with mute_server() as address, Session(cluster.address, tls=True) as session:
        began = loop.time()
        with pytest.raises(ConnectError):
            await session.call(address, Request(ECHO), 0.05)
        assert loop.time() - began < 1.0


async def test_connecting_to_a_closed_port_raises(session: Session) -> None:
    with pytest.raises(ConnectError, match=r"cannot be reached: Connection refused$"):
        await session.call("127.0.0.1:1", Request(ECHO))


# ------------------------------------------------------------------------------------------------------ being sent away


async def test_after_go_away_the_request_is_repeated_on_a_new_connection(
    cluster: FakeCluster, session: Session
) -> None:
    address = cluster.broker().address
    cluster.hang(ECHO, times=1)
    under_way = asyncio.create_task(session.call(address, Request(ECHO, body=b"first")))
    (first,) = await cluster.until_seen(ECHO)
    (old_line,) = cluster.broker().peers
    cluster.refuse(ECHO, ResponseCode.GO_AWAY, "go away", times=1)
    assert (await session.call(address, Request(ECHO, body=b"second"))).body == b"second"
    assert len(cluster.broker().peers) == 2
    await old_line.write(raw.frame(_reply_header(first.opaque), b"finished"))
    assert (await under_way).body == b"finished"
    await eventually(lambda: old_line not in cluster.broker().peers)


def _reply_header(opaque: int) -> bytes:
    return b'{"code":0,"flag":1,"opaque":%d,"version":479}' % opaque


async def test_repeated_go_away_does_not_accumulate_connections(cluster: FakeCluster, session: Session) -> None:
    cluster.refuse(ECHO, ResponseCode.GO_AWAY, "go away")
    for _ in range(10):
        with pytest.raises(GoAwayError):
            await session.ask(cluster.broker().address, Request(ECHO))
    await eventually(lambda: len(cluster.broker().peers) == 1)


async def test_the_repetition_after_go_away_keeps_the_timeout(cluster: FakeCluster, session: Session) -> None:
    cluster.hang(ECHO)
    cluster.refuse(ECHO, ResponseCode.GO_AWAY, "go away", times=1)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(RemotingError):
        await session.call(cluster.broker().address, Request(ECHO), 1.0)
    assert loop.time() - began < 1.9


# ----------------------------------------------------------------------------------------------------- what brokers ask


async def member_of(session: Session, cluster: FakeCluster) -> str:
    """Make the session known to the broker, so that it can ask."""
    session.heartbeats.add(Member("g"))
    await session.routes.find("T")
    await session.call(cluster.broker().address, Request(ECHO))
    await cluster.until_seen(HEARTBEAT)
    return session.client_id


async def test_an_unknown_request_code_is_refused(cluster: FakeCluster, session: Session) -> None:
    answer = await cluster.ask_client(await member_of(session, cluster), 999)
    assert (answer.code, answer.remark) == (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 999 not supported")


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (40, {"consumerGroup": "other"}),
        (220, {"topic": "T", "group": "other", "timestamp": "0"}),
        (221, {"topic": "T", "group": "other"}),
        (307, {"consumerGroup": "other", "clientId": "c"}),
        (309, {"consumerGroup": "other", "clientId": "c"}),
    ],
)
async def test_without_a_consumer_no_group_is_known(
    cluster: FakeCluster, session: Session, code: int, fields: dict[str, str]
) -> None:
    answer = await cluster.ask_client(await member_of(session, cluster), code, fields)
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "this client has no producer or consumer of that group",
    )


async def test_the_first_handler_with_a_response_wins(cluster: FakeCluster, session: Session) -> None:
    asked: list[str] = []

    async def not_mine(_: Request, address: str) -> None:
        asked.append(address)

    async def mine(request: Request, _: str) -> Response:
        return Response(ResponseCode.SUCCESS, None, {"had": request.fields["a"]})

    for handler in (not_mine, mine, not_mine):
        session.requests.add(999, handler)
    client_id = await member_of(session, cluster)
    answer = await cluster.ask_client(client_id, 999, {"a": "1"})
    assert (answer.code, answer.fields, asked) == (ResponseCode.SUCCESS, {"had": "1"}, [cluster.broker().address])
    session.requests.remove(999, mine)
    answer = await cluster.ask_client(client_id, 999, {"a": "1"})
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "this client has no producer or consumer of that group",
    )


@pytest.mark.usefixtures("expects_errors")
async def test_a_failing_handler_sends_an_error_response(cluster: FakeCluster, session: Session) -> None:
    async def fail(_: Request, __: str) -> Response:
        raise RuntimeError("boom")

    async def refuse(_: Request, __: str) -> Response:
        raise ClientError("not like this")

    session.requests.add(998, fail)
    session.requests.add(999, refuse)
    client_id = await member_of(session, cluster)
    failed, refused = await cluster.ask_client(client_id, 998), await cluster.ask_client(client_id, 999)
    assert (failed.code, failed.remark) == (ResponseCode.SYSTEM_ERROR, "RuntimeError: boom")
    assert (refused.code, refused.remark) == (ResponseCode.SYSTEM_ERROR, "not like this")


async def test_the_number_of_running_requests_is_bounded(cluster: FakeCluster, session: Session) -> None:
    go_on = asyncio.Event()

    async def slow(_: Request, __: str) -> Response:
        await go_on.wait()
        return Response()

    session.requests.add(999, slow)
    client_id = await member_of(session, cluster)
    for _ in range(REQUESTS_MAX):
        await cluster.tell_client(client_id, 999)
    answer = await cluster.ask_client(client_id, 999)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert session.requests.running == REQUESTS_MAX
    go_on.set()
    await eventually(lambda: session.requests.running == 0)
    assert (await cluster.ask_client(client_id, 999)).code == ResponseCode.SUCCESS


async def test_stop_ends_running_request_handlers(cluster: FakeCluster) -> None:
    never = asyncio.Event()

    async def stuck(_: Request, __: str) -> Response:
        await never.wait()
        return Response()

    session = Session(cluster.address)
    session.requests.add(999, stuck)
    await session.start()
    client_id = await member_of(session, cluster)
    await cluster.tell_client(client_id, 999)
    await eventually(lambda: session.requests.running == 1)
    await session.stop()
    assert session.requests.running == 0


# ----------------------------------------------------------------------------------------------------------- heartbeats


async def test_a_heartbeat_contains_all_groups(cluster: FakeCluster) -> None:
    async with Session(cluster.address, client_ip="10.0.0.1", instance_name="I") as session:
        session.heartbeats.add(Member("g1", "g2"))
        session.heartbeats.add(Member("g3"))
        await session.routes.find("T")
        await session.call(cluster.broker().address, Request(ECHO))
        (heartbeat,) = await cluster.until_seen(HEARTBEAT)
        assert heartbeat.value["clientID"] == "10.0.0.1@I"
        assert heartbeat.value["consumerDataSet"] == []
        assert groups_of(heartbeat) == {"g1", "g2", "g3"}
        assert heartbeat.language == "PYTHON"
        await eventually(lambda: session.heartbeats.broker_versions == {cluster.broker().address: raw.VERSION_5})


async def test_every_new_connection_to_a_broker_begins_with_a_heartbeat(cluster: FakeCluster, session: Session) -> None:
    await session.routes.find("T")
    session.heartbeats.add(Member("g"))
    for number in range(1, 4):
        await session.call(cluster.broker().address, Request(ECHO))
        assert len(await cluster.until_seen(HEARTBEAT, number, "broker-a")) == number
        cluster.broker().hang_up()
        await eventually(lambda: cluster.broker().address not in session.connections.by_address)
    assert cluster.seen(HEARTBEAT, NAME_SERVER) == []


async def test_brokers_hear_of_us_again_and_again(cluster: FakeCluster) -> None:
    async with Session(cluster.address, heartbeat_interval_s=0.01) as session:
        session.heartbeats.add(Member("g"))
        await session.routes.find("T")
        await cluster.until_seen(HEARTBEAT, 3, "broker-a")
        await cluster.until_seen(HEARTBEAT, 3, "broker-b")
    assert cluster.seen(HEARTBEAT, NAME_SERVER) == []


async def test_without_a_group_no_heartbeat_is_sent(cluster: FakeCluster, session: Session) -> None:
    await session.routes.find("T")
    await session.heartbeats.send()
    session.heartbeats.add(Member())
    await session.heartbeats.send()
    await session.call(cluster.broker().address, Request(ECHO))
    assert cluster.seen(HEARTBEAT) == []


async def test_a_broker_that_refuses_heartbeats_is_logged_once(
    cluster: FakeCluster, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    await session.routes.find("T")
    session.heartbeats.add(Member("g"))
    cluster.refuse(HEARTBEAT, ResponseCode.SYSTEM_ERROR, "not today", broker="broker-a")
    for _ in range(3):
        await session.heartbeats.send()
    cluster.heal(HEARTBEAT)
    await session.heartbeats.send()
    cluster.refuse(HEARTBEAT, ResponseCode.SYSTEM_ERROR, "not again", broker="broker-a")
    await session.heartbeats.send()
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [("not today" in text, "not again" in text) for text in warnings] == [(True, False), (False, True)]


async def test_a_second_producer_is_made_known_at_once(cluster: FakeCluster, session: Session) -> None:
    async with Producer("g1", session=session) as first:
        await first.send(Message("T", b"x"))
        await cluster.until(lambda: any(groups_of(beat) == {"g1"} for beat in cluster.seen(HEARTBEAT)))
        async with Producer("g2", session=session):
            await cluster.until(lambda: any(groups_of(beat) == {"g1", "g2"} for beat in cluster.seen(HEARTBEAT)))


async def test_a_removed_source_is_unregistered_at_every_connected_broker(
    cluster: FakeCluster, session: Session
) -> None:
    member = Member("g1", "g2")
    session.heartbeats.add(member)
    await session.routes.find("T")
    for broker in cluster.brokers:
        await session.call(broker.address, Request(ECHO))
    await session.heartbeats.remove(member)
    await session.heartbeats.remove(member)
    farewells = cluster.seen(UNREGISTER)
    assert sorted((each.fields["clientID"], each.fields["producerGroup"]) for each in farewells) == [
        (session.client_id, group) for group in ("g1", "g1", "g2", "g2")
    ]
    assert all("consumerGroup" not in each.fields for each in farewells)
    assert cluster.seen(UNREGISTER, NAME_SERVER) == []
    assert session.heartbeats.topics() == set()


# -------------------------------------------------------------------------------------------------------- name servers


async def test_every_name_server_can_be_asked(cluster: FakeCluster) -> None:
    async with fake_cluster() as other, Session([cluster.address, other.address, "127.0.0.1:1"]) as session:
        answers = dict(await session.ask_every_name_server(Request(105, {"topic": "T"})))
    good, unknown, gone = answers[cluster.address], answers[other.address], answers["127.0.0.1:1"]
    assert isinstance(good, Response)
    assert b"broker-a" in good.body
    assert getattr(unknown, "code", None) == ResponseCode.TOPIC_NOT_EXIST
    assert isinstance(gone, ConnectError)


async def test_name_servers_are_tried_one_after_the_other(cluster: FakeCluster) -> None:
    async with Session(["127.0.0.1:1", cluster.address]) as session:
        for _ in range(10):
            await session.ask_name_server(Request(105, {"topic": "T"}))
        assert session.name_servers._preferred == cluster.address
    async with Session(["127.0.0.1:1", "127.0.0.1:2"]) as session:
        with pytest.raises(NoNameServerError, match=r"127\.0\.0\.1:[12]' cannot .*127\.0\.0\.1:[12]' cannot "):
            await session.ask_name_server(Request(105, {"topic": "T"}))


async def test_after_go_away_the_next_name_server_is_used(cluster: FakeCluster) -> None:
    async with fake_cluster(topics={"T": 1}) as other, Session([cluster.address, other.address]) as session:
        cluster.refuse(RequestCode.GET_ROUTEINFO_BY_TOPIC, ResponseCode.GO_AWAY, "go away")
        for _ in range(5):
            await session.ask_name_server(Request(105, {"topic": "T"}))
        other.refuse(RequestCode.GET_ROUTEINFO_BY_TOPIC, ResponseCode.GO_AWAY, "go away")
        with pytest.raises(NoNameServerError, match="is shutting down"):
            await session.ask_name_server(Request(105, {"topic": "T"}))


# -------------------------------------------------------------------------------------------------- access control, TLS


async def test_every_request_is_signed(cluster: FakeCluster) -> None:
    credentials = Credentials("key", "12345678", "token")
    async with Producer("g", cluster.address, credentials=credentials) as producer:
        await producer.send(Message("T", b"body", tag="标签"))
        await producer.send_oneway(Message("T", b"body"))
        await cluster.until_seen(HEARTBEAT)
        await cluster.until_seen(RequestCode.SEND_MESSAGE_V2, 2)
    assert {command.code for _, command in cluster.heard} == {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        HEARTBEAT,
        RequestCode.SEND_MESSAGE_V2,
        UNREGISTER,
    }
    for _, command in cluster.heard:
        assert (command.fields["AccessKey"], command.fields["SecurityToken"]) == ("key", "token")
        values = [command.fields[name] for name in sorted(command.fields) if name != "Signature"]
        digest = hmac.digest(b"12345678", "".join(values).encode() + command.body, "sha1")
        assert command.fields["Signature"] == base64.b64encode(digest).decode()


async def test_wrong_credentials_are_named_as_the_reason(cluster: FakeCluster) -> None:
    cluster.refuse(RequestCode.SEND_MESSAGE_V2, ResponseCode.NO_PERMISSION, "signature does not match")
    async with Producer("g", cluster.address, credentials=Credentials("key", "wrong"), retries=0) as producer:
        with pytest.raises(NoPermissionError, match="signature does not match"):
            await producer.send(Message("T", b"x"))


async def encrypt(cluster: FakeCluster, context: ssl.SSLContext) -> None:
    """Have every server of the cluster speak TLS only."""
    for server in cluster.servers.values():
        assert server._listening is not None
        server._listening.close()
        server._listening = await asyncio.start_server(server._serve, "127.0.0.1", 0, ssl=context)
        server.address = f"127.0.0.1:{server._listening.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("how", ["unchecked", "context", "settings"])
async def test_a_message_travels_encrypted(cluster: FakeCluster, tmp_path: Path, how: str) -> None:
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(server)
    await encrypt(cluster, server)
    files = Files(tmp_path / "files", authority)
    ways: dict[str, bool | ssl.SSLContext | TlsClientSettings] = {
        "unchecked": True,
        "context": client_of(authority),
        "settings": TlsClientSettings(enabled=True, auth_server=True, trust_cert_path=str(files.trust)),
    }
    async with Producer("g", cluster.address, tls=ways[how]) as producer:
        await producer.send(Message("T", b"secret"))
    assert cluster.stored_bodies("T") == [b"secret"]


async def test_a_server_with_a_strangers_certificate_is_not_trusted(cluster: FakeCluster) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost", "127.0.0.1").configure_cert(server)
    await encrypt(cluster, server)
    async with Producer("g", cluster.address, tls=client_of(trustme.CA())) as producer:
        with pytest.raises(NoNameServerError, match=r"(?i)certificate"):
            await producer.send(Message("T", b"x"))


async def test_a_skyroute_name_server_is_used_over_tls(tmp_path: Path) -> None:
    async with running(tmp_path) as server, Session(server.address, tls=True) as session:
        answer = await session.ask_name_server(Request(206))
        assert b"topicList" in answer.body


# ------------------------------------------------------------------------------------------------------------------ VIP


def test_the_second_port_is_two_below() -> None:
    assert Session("a:1", vip_channel=True).sending_address("10.0.0.1:10911") == "10.0.0.1:10909"
    assert Session("a:1", vip_channel=True).sending_address("[::1]:10911") == "[::1]:10909"
    assert Session("a:1").sending_address("10.0.0.1:10911") == "10.0.0.1:10911"


async def test_sends_and_management_requests_take_the_second_port_and_heartbeats_the_first(
    cluster: FakeCluster,
) -> None:
    sent: list[Command] = []

    async def fast(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(cluster.broker(), reader, writer)
        async for command in peer.commands():
            sent.append(command)
            await cluster._receive(command, peer)
        peer.cut()

    await cluster.servers.pop("broker-b").stop()
    first = cluster.broker()
    port = int(first.address.rpartition(":")[2])
    second = await asyncio.start_server(fast, "127.0.0.1", port - 2)
    async with Producer("g", cluster.address, vip_channel=True) as producer:
        await producer.send(Message("T", b"x"))
        assert await max_offset(producer.session, QueueRef("T", "broker-a", 0)) >= 0
        await eventually(lambda: any(peer.client_id for peer in first.peers))
    second.close()
    assert [command.code for command in sent] == [RequestCode.SEND_MESSAGE_V2, RequestCode.GET_MAX_OFFSET]
    assert len(cluster.seen(UNREGISTER)) == 1
    assert cluster.stored_bodies("T") == [b"x"]


async def test_a_broker_that_stays_silent_is_not_written_about_each_time(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    cluster.hang(RequestCode.HEART_BEAT, broker="broker-a")
    async with Session(cluster.address, request_timeout_s=0.02, clock=clock) as session:
        session.heartbeats.add(Producer("g", session=session))
        await session.routes.find("T")
        for _ in range(5):
            await session.heartbeats.send()
        silent = cluster.broker("broker-a").address
        written = [
            line.partition(" ")[0]
            for line in caplog.messages
            if line.startswith(("channel closed", "heartbeat")) and silent in line
        ]
        assert sorted(written) == ["channel", "heartbeat"]
        clock.advance(10.0)
        await session.heartbeats.send()
        again = [line for line in caplog.messages if line.startswith("heartbeat failed") and silent in line]
        assert re.search(r"suppressed=[4-9]$", again[-1])  # some lines bring a heartbeat of their own
        assert len(again) == 2


async def loop_over(consumer: Consumer) -> None:
    async for _ in consumer:
        pass


@pytest.mark.parametrize(
    ("make", "use"),
    [
        (Producer, lambda producer: producer.send(Message("T", b"one"))),
        (Producer, lambda producer: producer.send_oneway(Message("T", b"one"))),
        (Producer, Producer.stop),
        (Consumer, loop_over),
        (Consumer, Consumer.run),
        (Consumer, Consumer.stop),
        (PullConsumer, PullConsumer.poll),
        (PullConsumer, anext),
        (PullConsumer, PullConsumer.stop),
        (SimpleConsumer, SimpleConsumer.receive),
        (SimpleConsumer, SimpleConsumer.stop),
        (lambda _, address: Admin(address), Admin.cluster),
        (lambda _, address: Admin(address), Admin.stop),
    ],
)
async def test_a_client_on_another_event_loop_is_refused(
    cluster: FakeCluster, make: Callable[[str, str], Any], use: Callable[[Any], Awaitable[Any]]
) -> None:
    client = make("g", cluster.address)
    if isinstance(client, Consumer | PullConsumer):
        client.subscribe("T")
    await client.start()

    async def use_it() -> None:
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(WrongLoopError, match="another event loop: "):
                await use(client)

    await asyncio.to_thread(asyncio.run, use_it())
    assert client.session.is_running
    await client.stop()


async def test_a_client_whose_event_loop_is_closed_says_so(cluster: FakeCluster) -> None:
    admin = Admin(cluster.address)
    await asyncio.to_thread(asyncio.run, admin.start())
    with pytest.raises(WrongLoopError, match="another event loop, which is closed: "):
        await admin.cluster()


@pytest.mark.parametrize("make", [Producer, Consumer, PullConsumer, SimpleConsumer, blocking.Producer])
def test_a_client_that_is_pickled_says_where_to_create_it(make: Callable[[str, str], object]) -> None:
    with pytest.raises(TypeError, match="create it in the process that uses it"):
        pickle.dumps(make("g", "127.0.0.1:1"))
