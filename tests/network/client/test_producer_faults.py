"""Producer faults: no hang, no leak and no unreported error."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from skyroute.client.errors import NotRunningError
from skyroute.client.producing.producer import Producer
from skyroute.errors import SkyrouteError
from skyroute.message.message import Message
from skyroute.remoting.errors import CallTimeoutError, ConnectionLostError, RemotingError
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.errors import WireError
from tests.support.clock import ManualClock
from tests.support.connections import WAIT_S
from tests.support.fake_broker import NAME_SERVER, FakeCluster, Peer, Reply, encode_reply, fake_cluster
from tests.support.raw import Command
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("nothing_lost")

SEND = RequestCode.SEND_MESSAGE_V2


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(topics={"T": 4}) as cluster:
        yield cluster


def producer_of(cluster: FakeCluster, **settings: Any) -> Producer:
    return Producer("g", cluster.address, **settings)


def is_at_rest(producer: Producer) -> bool:
    """Nothing is under way, and nothing is kept of what was."""
    return (
        producer._in_flight.count == producer._in_flight.bytes == 0
        and not producer._in_flight._waiting
        and not producer.session.connections.opening
        and all(not channel._conversation.calls for channel in producer.session.connections.open)
    )


async def send_within(producer: Producer, timeout_s: float, **how: Any) -> float:
    """Send what cannot be sent, and return how long that took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(RemotingError):
        await producer.send(Message("T", b"x"), timeout_s=timeout_s, **how)
    return loop.time() - began


# ------------------------------------------------------------------------------------------------ brokers that are mute


async def test_a_hanging_broker_does_not_exceed_the_timeout(cluster: FakeCluster) -> None:
    cluster.hang(SEND)
    async with producer_of(cluster) as producer:
        assert 0.15 < await send_within(producer, 0.2) < 1.5
        assert len(cluster.seen(SEND)) == 1
        cluster.heal(SEND)
        assert (await producer.send(Message("T", b"x"), timeout_s=WAIT_S)).ok
        await eventually(lambda: is_at_rest(producer))


@pytest.mark.parametrize("fixed", [True, False])
async def test_a_broker_that_accepts_no_connection_does_not_exceed_the_timeout(
    cluster: FakeCluster, fixed: bool
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0), backlog=0)) as full, ExitStack() as others:
        # The server accepts no connection, and earlier ones fill its backlog.
        for _ in range(8):
            other = others.enter_context(closing(socket.socket()))
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        async with producer_of(cluster, connect_timeout_s=WAIT_S) as producer:
            cluster.broker().address = f"127.0.0.1:{full.getsockname()[1]}"
            await producer.queues("T")
            how = {"queue": cluster.queue("T", 1)} if fixed else {}
            assert await send_within(producer, 0.2, **how) < 1.5


async def test_the_search_for_an_unknown_broker_does_not_exceed_the_timeout(cluster: FakeCluster) -> None:
    loop = asyncio.get_running_loop()
    async with producer_of(cluster, request_timeout_s=WAIT_S) as producer:
        await producer.queues("T")
        cluster.hang(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        queue = cluster.queue("T", 0)
        began = loop.time()
        with pytest.raises(SkyrouteError, match="broker nobody"):
            await producer.send(Message("T", b"x"), queue=type(queue)("T", "nobody", 0), timeout_s=0.1)
        assert loop.time() - began < 1.5


async def test_a_broker_that_responds_only_to_heartbeats_times_out(cluster: FakeCluster) -> None:
    cluster.hang(SEND)
    async with producer_of(cluster, heartbeat_interval_s=0.01) as producer:
        with pytest.raises(CallTimeoutError):
            await producer.send(Message("T", b"x"), timeout_s=0.5)
        # The line is alive, so it is kept.
        assert len(cluster.broker().peers) == 1
        assert producer._in_flight.count == 0


async def test_a_half_open_connection_is_replaced(cluster: FakeCluster) -> None:
    async with producer_of(cluster, heartbeat_interval_s=60) as producer:
        await producer.send(Message("T", b"x"))
        (old,) = cluster.broker().peers
        cluster.hang(SEND, times=1)
        assert await send_within(producer, 0.1) < 1.5
        await eventually(lambda: old not in cluster.broker().peers)
        assert (await producer.send(Message("T", b"x"), timeout_s=WAIT_S)).ok


async def test_a_broker_that_stops_listening_holds_back_only_its_own(cluster: FakeCluster) -> None:
    """Messages to a broker whose line is full wait, and then fail; they do not fill the memory."""
    async with producer_of(cluster, heartbeat_interval_s=60) as producer:
        await producer.send(Message("T", b"x"))
        (peer,) = cluster.broker().peers
        peer._writer.transport.pause_reading()  # type: ignore[attr-defined]  # its type is too general
        body = bytes(range(256)) * 4096
        sends = [producer.send(Message("T", body), timeout_s=0.3) for _ in range(30)]
        outcomes = await asyncio.wait_for(asyncio.gather(*sends, return_exceptions=True), WAIT_S)
        assert any(isinstance(outcome, RemotingError) for outcome in outcomes)
        assert all(not isinstance(outcome, Exception) or isinstance(outcome, RemotingError) for outcome in outcomes)
        await eventually(lambda: is_at_rest(producer))


# ------------------------------------------------------------------------------------------- brokers that talk nonsense


@pytest.mark.parametrize(
    "garbage", [b"\x00\x00\x00\x00", b"\xff" * 32, b"HTTP/1.1 200 OK\r\n\r\n", b"\x00\x00\x00\x08\x00\x00\x00\x04{{{{"]
)
async def test_garbage_closes_only_its_connection(cluster: FakeCluster, garbage: bytes) -> None:
    async def babble(_: Command, peer: Peer) -> None:
        await peer.write(garbage)

    cluster.on(SEND, babble, times=1)
    async with producer_of(cluster, retries=0) as producer:
        with pytest.raises(ConnectionLostError, match="does not speak RocketMQ's protocol"):
            await producer.send(Message("T", b"x"), timeout_s=WAIT_S)
        assert (await producer.send(Message("T", b"x"), timeout_s=WAIT_S)).ok
        await eventually(lambda: is_at_rest(producer))


async def test_a_connection_cut_in_a_response_causes_a_retry(cluster: FakeCluster) -> None:
    cluster.cut(SEND, times=1)
    async with producer_of(cluster, retries=0) as producer:
        with pytest.raises(ConnectionLostError):
            await producer.send(Message("T", b"x"), timeout_s=WAIT_S)
        assert (await producer.send(Message("T", b"x"), timeout_s=WAIT_S)).ok
        await eventually(lambda: is_at_rest(producer))


@pytest.mark.parametrize("fields", [{}, {"msgId": "x"}, {"msgId": "x", "queueId": "one", "queueOffset": "0"}])
async def test_a_response_without_the_offset_raises(cluster: FakeCluster, fields: dict[str, str]) -> None:
    cluster.on(SEND, lambda *_: Reply(fields=fields))
    async with producer_of(cluster) as producer:
        with pytest.raises(WireError):
            await producer.send(Message("T", b"x"), timeout_s=WAIT_S)
        await eventually(lambda: is_at_rest(producer))


async def test_responses_with_unknown_ids_are_ignored(cluster: FakeCluster) -> None:
    async def confuse(command: Command, peer: Peer) -> Any:
        for opaque in (0, -1, command.opaque + 1000, 2**31 - 1):
            await peer.write(encode_reply(Reply(ResponseCode.SYSTEM_ERROR, remark="not for you"), opaque))
        return await cluster.answer(command, peer)

    cluster.on(SEND, confuse)
    async with producer_of(cluster) as producer:
        assert (await producer.send(Message("T", b"x"), timeout_s=WAIT_S)).ok


# --------------------------------------------------------------------------------------------------------- cancellation


@pytest.mark.parametrize("code", [105, SEND])
async def test_cancelled_sends_leave_nothing_in_flight(cluster: FakeCluster, code: int) -> None:
    cluster.hang(code)
    async with producer_of(cluster, in_flight_max=5) as producer:
        sends = [asyncio.create_task(producer.send(Message("T", b"x"), timeout_s=WAIT_S)) for _ in range(20)]
        await cluster.until_seen(code, 1 if code == 105 else 5)
        for send in sends:
            send.cancel()
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        if code == 105:
            # The request stays open: the next caller waits for the same response, which never arrives.
            producer.session.routes.stop()
            await eventually(lambda: not producer.session.routes._refreshes)
        await eventually(lambda: is_at_rest(producer))
        cluster.heal(code)
        assert (await producer.send(Message("T", b"x"), timeout_s=WAIT_S)).ok


async def test_a_send_cancelled_between_two_attempts_ends(cluster: FakeCluster) -> None:
    cluster.refuse(SEND, ResponseCode.SYSTEM_BUSY, "busy")
    async with producer_of(cluster, retries=50) as producer:
        sending = asyncio.create_task(producer.send(Message("T", b"x"), timeout_s=WAIT_S))
        await cluster.until_seen(SEND, 2)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await eventually(lambda: is_at_rest(producer))


async def test_an_outer_timeout_is_the_callers_own(cluster: FakeCluster) -> None:
    cluster.hang(SEND)
    async with producer_of(cluster) as producer:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await producer.send(Message("T", b"x"), timeout_s=WAIT_S)
        await eventually(lambda: is_at_rest(producer))


async def test_a_cancelled_batch_sends_no_more(cluster: FakeCluster) -> None:
    cluster.hang(RequestCode.SEND_BATCH_MESSAGE)
    async with producer_of(cluster, batch_bytes_max=300) as producer:
        sending = asyncio.create_task(producer.send_batch([Message("T", b"x" * 50)] * 20, timeout_s=WAIT_S))
        await cluster.until_seen(RequestCode.SEND_BATCH_MESSAGE)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await eventually(lambda: is_at_rest(producer))
        assert len(cluster.seen(RequestCode.SEND_BATCH_MESSAGE)) == 1


# --------------------------------------------------------------------------------------------------------------- clocks


class JumpingClock(ManualClock):
    """Its wall clock is set anew whenever anybody looks; the other one goes its way."""

    def __init__(self) -> None:
        super().__init__()
        self._jumps = 0

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        self._jumps += 1
        return 1_700_000_000.0 + (86_400.0 * 365 if self._jumps % 2 else -86_400.0 * 365)


async def test_a_wall_clock_that_jumps_changes_no_timeout_and_repeats_no_id(cluster: FakeCluster) -> None:
    async with producer_of(cluster, clock=JumpingClock()) as producer:
        results = [await producer.send(Message("T", b"x"), timeout_s=WAIT_S) for _ in range(50)]
        assert len({result.message_id for result in results}) == 50
        cluster.hang(SEND)
        assert 0.15 < await send_within(producer, 0.2) < 1.5


# --------------------------------------------------------------------------------------------------- everything at once


async def test_brokers_that_come_and_go_lose_no_acknowledged_message() -> None:
    async with fake_cluster(topics={"T": 2}, brokers=("broker-a", "broker-b")) as cluster:
        acknowledged: list[bytes] = []

        async def send_many(producer: Producer, first: int) -> None:
            for number in range(first, first + 40):
                body = b"%d" % number
                try:
                    await producer.send(Message("T", body), timeout_s=WAIT_S)
                except SkyrouteError:
                    continue
                acknowledged.append(body)

        async with producer_of(cluster, retries=5, avoid_slow=False) as producer:
            senders = [asyncio.create_task(send_many(producer, first)) for first in range(0, 800, 40)]
            for round_ in range(4):
                server = cluster.broker("broker-a" if round_ % 2 else "broker-b")
                server.hang_up()
                await asyncio.sleep(0)
                cluster.servers[NAME_SERVER].hang_up()
                await server.stop()
                await server.start()
            await asyncio.wait_for(asyncio.gather(*senders), WAIT_S)
            await eventually(lambda: is_at_rest(producer))
        assert len(acknowledged) > 700
        assert set(acknowledged) <= set(cluster.stored_bodies("T"))


async def test_a_stop_at_any_moment_ends_everything(cluster: FakeCluster) -> None:
    for turns in range(0, 30, 3):
        producer = producer_of(cluster)
        await producer.start()
        sends = [asyncio.create_task(producer.send(Message("T", b"x"), timeout_s=WAIT_S)) for _ in range(10)]
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(WAIT_S):
            await producer.stop()
            outcomes = await asyncio.gather(*sends, return_exceptions=True)
        for outcome in outcomes:
            assert not isinstance(outcome, BaseException) or isinstance(outcome, RemotingError | NotRunningError)
        assert is_at_rest(producer)
        assert producer.session._tasks == set()
