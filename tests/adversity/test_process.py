"""A process without free file descriptors, stopped under load, or suspended."""

import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.adversity.conftest import Start
from tests.adversity.faults import (
    TIMEOUT_S,
    assert_log_intact,
    assert_responds,
    assert_serves,
    broker,
    connect,
    is_serving,
    read_to_end,
    repeat_for,
    send_until_closed,
)
from tests.support.codes import (
    GET_CLUSTERS,
    GET_KV,
    GET_ROUTE,
    HEARTBEAT,
    LIST_TOPICS,
    NO_TOPIC,
    PUT_KV,
    SUCCESS,
    SYSTEM_ERROR,
)
from tests.support.process import Loop, ServerProcess, server_process
from tests.support.raw import ClosedError, RawConnection, Request, Topic, encode
from tests.support.waiting import wait_until

LOOPS: tuple[Loop, ...] = ("uvloop", "asyncio")


@pytest.mark.parametrize("loop", LOOPS)
def test_without_free_file_descriptors_open_connections_are_served(start: Start, loop: Loop) -> None:
    server = start(loop=loop)
    old, new = ({"namespace": "n", "key": "k", "value": value} for value in ("old", "new"))
    question = encode(Request(GET_CLUSTERS), 1)
    free = 20
    with ExitStack() as stack:
        first = stack.enter_context(RawConnection(server.address, timeout_s=TIMEOUT_S))
        assert first.call(PUT_KV, old).code == SUCCESS
        allowed = server.open_files + free
        server.limit(resource.RLIMIT_NOFILE, allowed)
        crowd = [stack.enter_context(connect(server.address)) for _ in range(3 * free)]
        for line in crowd:
            send_until_closed(line, question)
        wait_until(lambda: server.open_files >= allowed, "no file descriptor is free")
        cpu_s = server.cpu_s
        repeat_for(1.5, lambda: assert_responds(first))
        assert server.cpu_s - cpu_s < 0.8, "it retries without a pause"
        assert first.call(PUT_KV, new).code == SYSTEM_ERROR
        assert first.call(GET_KV, new).fields == {"value": "old"}
        for line in crowd[: 2 * free]:
            line.close()
        for line in crowd[2 * free :]:
            with suppress(ConnectionError), line:  # they were closed, or get a response now
                line.recv(65536)
        wait_until(lambda: is_serving(server.address), "new connections are served again")
        assert first.call(PUT_KV, new).code == SUCCESS
    assert server.stop() == 0
    assert_log_intact(server.log)
    assert len(server.log_since_start.splitlines()) < 20


@contextmanager
def load(server: ServerProcess, *, clients: int) -> Iterator[list[int]]:
    """Run clients that send requests without a pause; yield how many responses each got."""
    answered = [0] * clients
    ended = threading.Event()

    def ask(at: int) -> None:
        with suppress(ClosedError, ConnectionError), RawConnection(server.address, timeout_s=TIMEOUT_S) as line:
            while not ended.is_set():
                for _ in range(20):
                    line.send(GET_ROUTE, {"topic": "TopicA"})
                for _ in range(20):
                    assert line.receive().code in (SUCCESS, NO_TOPIC)
                    answered[at] += 1

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(clients)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: all(answered), "every client got a response")
        yield answered
    finally:
        ended.set()
        for thread in threads:
            thread.join(TIMEOUT_S)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize(
    ("loop", "deaf", "timeout_s"),
    [
        ("uvloop", True, 16),
        ("uvloop", False, 10),
        ("asyncio", False, 10),
    ],  # five seconds are for a client that does not read
    ids=["uvloop with a client that does not read", "uvloop", "asyncio"],
)
def test_a_stop_under_load_ends_in_time(start: Start, loop: Loop, deaf: bool, timeout_s: float) -> None:
    server = start(loop=loop)
    topics = [Topic(f"a-topic-with-a-name-of-usual-length-{number:06}") for number in range(5_000)]
    with ExitStack() as stack:
        registrar = stack.enter_context(RawConnection(server.address, timeout_s=TIMEOUT_S))
        assert registrar.call(broker(topics=topics).request).code == SUCCESS
        idle = [stack.enter_context(connect(server.address)) for _ in range(50)]
        unfinished = stack.enter_context(connect(server.address))
        unfinished.sendall(encode(Request(GET_CLUSTERS), 1)[:20])
        if deaf:
            line = stack.enter_context(connect(server.address))
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.sendall(b"".join(encode(Request(LIST_TOPICS), number) for number in range(50)))
        stack.enter_context(load(server, clients=4))
        assert server.stop(timeout_s) == 0
        assert all(read_to_end(line) == b"" for line in (*idle, unfinished))
    assert_log_intact(server.log)
    assert "name server stopped" in server.log


def test_a_suspended_server_evicts_no_broker_that_sent_heartbeats(tmp_path: Path) -> None:
    """Runs on both event loops at the same time, because most of it is waiting."""
    settings = {"serverChannelMaxIdleTimeSeconds": 4, "scanNotActiveBrokerInterval": 200}
    beating = broker(heartbeat_ms=4000)
    with ExitStack() as stack:
        servers = [stack.enter_context(server_process(tmp_path / loop, loop=loop, settings=settings)) for loop in LOOPS]
        lines = [stack.enter_context(RawConnection(server.address, timeout_s=TIMEOUT_S)) for server in servers]
        for line in lines:
            assert line.call(beating.request).code == SUCCESS

        def beat() -> None:
            for line in lines:
                line.send_oneway(HEARTBEAT, beating.identity)

        with servers[0].suspended(), servers[1].suspended():
            repeat_for(5.5, beat)

        def check_route() -> None:
            for server in servers:
                with RawConnection(server.address, timeout_s=TIMEOUT_S) as other:
                    assert other.call(GET_ROUTE, {"topic": "TopicA"}).code == SUCCESS
            beat()

        # The lease and the idle time of the connection are over, and the heartbeats wait in the socket's buffer.
        repeat_for(0.6, check_route)
        for server, line in zip(servers, lines, strict=True):
            assert line.call(GET_CLUSTERS).code == SUCCESS
            assert "broker left" not in server.log
        for server, line in zip(servers, lines, strict=True):
            assert line.is_closed_by_peer(), "an idle connection is closed"
            assert_serves(server.address)
            assert "broker left" in server.log
            assert server.stop() == 0
            assert_log_intact(server.log)
