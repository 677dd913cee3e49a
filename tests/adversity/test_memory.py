"""Clients that use more memory or connections than a server allows."""

import resource
import select
import selectors
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import cast

import pytest

from tests.adversity.conftest import Start
from tests.adversity.faults import (
    TIMEOUT_S,
    assert_log_intact,
    assert_serves,
    broker,
    check_survives,
    connect,
    is_serving,
    read_to_end,
)
from tests.support.codes import GET_CLUSTERS, GET_ROUTE, LIST_TOPICS, REGISTER, SUCCESS, SYSTEM_ERROR
from tests.support.process import Loop, ServerProcess
from tests.support.raw import DataVersion, RawConnection, Request, Topic, encode, frame, split_address
from tests.support.waiting import wait_until

KIB, MIB = 1024, 1024 * 1024


def is_closed(line: socket.socket) -> bool:
    """The server has ended it; whatever it said before that is thrown away."""
    line.setblocking(False)
    try:
        while line.recv(65536):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def still_open(lines: list[socket.socket]) -> int:
    return sum(not is_closed(line) for line in lines)


def at_most_open(lines: list[socket.socket], count: int) -> bool:
    return still_open(lines) <= count


# Registrations that grow


def bomb(inflated_bytes: int) -> bytes:
    """A zlib stream of a thousandth of the size. Its blocks are all alike, so one is made and repeated."""
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = deflater.compress(bytes(MIB)) + deflater.flush(zlib.Z_FULL_FLUSH)
    return b"\x78\xda" + block * (inflated_bytes // MIB) + b"\x03\x00" + bytes(4)


def test_a_body_that_inflates_to_gigabytes_is_refused(server: ServerProcess) -> None:
    body = bomb(4 * 1024 * MIB)
    assert len(body) < 5 * MIB
    fields = {**broker().request.fields, "compressed": "true", "bodyCrc32": "0"}
    with check_survives(server, lines_max=10), ExitStack() as stack:
        lines = [stack.enter_context(RawConnection(server.address, timeout_s=60)) for _ in range(5)]
        for line in lines:
            line.send(REGISTER, fields, body)
        for line in lines:
            answer = line.receive()
            assert answer.code == SYSTEM_ERROR
            assert "decompresses to more than" in (answer.remark or "")
    assert server.peak_rss_mb < 300


def test_a_body_with_more_topics_than_any_broker_has_is_refused(server: ServerProcess) -> None:
    line_of_topic = b"T 1 1 6 SINGLE_TAG"
    deflater = zlib.compressobj(9)
    stream = struct.pack(">i", 2) + b"{}" + struct.pack(">i", 1_000_001)
    pieces = [deflater.compress(stream)]
    pieces += [deflater.compress((struct.pack(">i", len(line_of_topic)) + line_of_topic) * 10_000) for _ in range(101)]
    body = b"".join(pieces) + deflater.flush()
    fields = {**broker().request.fields, "compressed": "true", "bodyCrc32": "0"}
    with check_survives(server, lines_max=2), RawConnection(server.address, timeout_s=TIMEOUT_S) as line:
        answer = line.call(REGISTER, fields, body)
    assert answer.code == SYSTEM_ERROR
    assert "topics" in (answer.remark or "")
    assert server.peak_rss_mb < 300


def test_a_count_beyond_what_was_sent_is_refused(server: ServerProcess) -> None:
    fields = {**broker().request.fields, "compressed": "true", "bodyCrc32": "0"}
    with check_survives(server, lines_max=10), RawConnection(server.address) as line:
        for count in (2**31 - 1, -1, -(2**31), 100):
            for stream in (
                struct.pack(">i", count) + b"{}",
                struct.pack(">i", 2) + b"{}" + struct.pack(">i", count) + b"T",
                struct.pack(">i2si", 2, b"{}", 0) + struct.pack(">i", count) + b"[]",
                struct.pack(">i2sii2s", 2, b"{}", 0, 2, b"[]") + struct.pack(">i", count) + b"{",
            ):
                assert line.call(REGISTER, fields, zlib.compress(stream)).code == SYSTEM_ERROR


def test_a_full_table_refuses_more_and_serves_what_it_has(start: Start) -> None:
    server = start(brokersMax=5, topicEntriesMax=20)
    brokers = [broker(f"broker-{number}", address=f"10.0.0.{number}:10911") for number in range(20)]
    with check_survives(server, lines_max=50), RawConnection(server.address) as line:
        for each in brokers[:5]:
            assert line.call(each.request).code == SUCCESS
        for each in brokers[5:]:
            answer = line.call(each.request)
            assert answer.code == SYSTEM_ERROR
            assert "the table is full" in (answer.remark or "")
        many = [Topic(f"Topic{number}") for number in range(30)]
        answer = line.call(brokers[0].but(topics=many, data_version=DataVersion(2)).request)
        assert answer.code == SYSTEM_ERROR
        assert "the table is full" in (answer.remark or "")
        assert len(line.call(GET_ROUTE, {"topic": "TopicA"}).value["brokerDatas"]) == 5
        assert line.call(brokers[0].unregistration).code == SUCCESS
        assert line.call(brokers[5].request).code == SUCCESS


# Bytes that wait for the rest of them


@contextmanager
def holding(server: ServerProcess, data: bytes, count: int) -> Iterator[list[socket.socket]]:
    """Connections that have sent this much, as far as the server let them, and send no more."""
    with ExitStack() as stack:
        lines = [stack.enter_context(connect(server.address)) for _ in range(count)]
        for line in lines:
            line.setblocking(False)
        writing = stack.enter_context(selectors.DefaultSelector())
        for line in lines:
            writing.register(line, selectors.EVENT_WRITE, data)
        deadline = time.monotonic() + TIMEOUT_S
        while writing.get_map() and time.monotonic() < deadline:
            for key, _ in writing.select(0.1):
                line = cast("socket.socket", key.fileobj)
                try:
                    left = key.data[line.send(key.data) :]
                except ConnectionError:
                    left = b""
                if left:
                    writing.modify(line, selectors.EVENT_WRITE, left)
                else:
                    writing.unregister(line)
        yield lines


PROXY_V2 = b"\r\n\r\n\x00\r\nQUIT\n\x21\x11"
UNFINISHED = {
    "a frame": struct.pack(">I", MIB),
    "a registration": struct.pack(">II", 20 * MIB, 12) + b'{"code":103}',
    "a proxy header": PROXY_V2 + b"\xff\xff",
}


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_unfinished_bytes_of_all_peers_together_have_a_bound(start: Start, loop: Loop) -> None:
    server = start(loop=loop, serverBufferedBytesMax=MIB)
    for name, beginning in UNFINISHED.items():
        # As much as this peer may send without being done, but no more.
        size = 60_000 if name == "a proxy header" else 100_000
        count = 2 * MIB // size
        begun = beginning + bytes(size - len(beginning))
        with check_survives(server, lines_max=30), holding(server, begun, count) as lines:
            wait_until(partial(at_most_open, lines, MIB // size), f"no more than the bound is held of {name}")
            assert still_open(lines) > MIB // size // 2, "those within the bound are left alone"
            assert_serves(server.address)
        # What those held is free again.
        with connect(server.address) as line:
            whole = frame(b'{"code":105,"opaque":1,"extFields":{"topic":"T"}}', bytes(900 * KIB))
            line.sendall(whole)
            assert len(line.recv(65536)) > 8
    assert server.stop() == 0
    assert_log_intact(server.log)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize(("size", "count"), [(15 * MIB, 20), (900 * KIB, 100), (100 * KIB, 1_000)])
def test_memory_of_unfinished_frames_is_freed(start: Start, loop: Loop, size: int, count: int) -> None:
    server = start(loop=loop)
    half = struct.pack(">II", size, 12) + b'{"code":105}' + bytes(size // 2)
    with check_survives(server, lines_max=0), RawConnection(server.address) as other:
        before_mb = server.rss_mb
        with holding(server, half, count):
            wait_until(lambda: server.rss_mb > before_mb + 0.4 * size * count / 1e6, "the server has read all")
            assert server.rss_mb < before_mb + 0.7 * size * count / 1e6 + 20, "it keeps no more than it has read"
            assert other.call(GET_CLUSTERS).code == SUCCESS
        wait_until(lambda: server.rss_mb < before_mb + 20, "the memory is freed")
        assert other.call(GET_CLUSTERS).code == SUCCESS


def test_peers_that_leave_before_their_answer_leave_nothing_behind(start: Start) -> None:
    """A server of a test environment asks another one, which answers nothing and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.settimeout(TIMEOUT_S)
        upstream = f"127.0.0.1:{elsewhere.getsockname()[1]}"
        server = start(arguments=["-n", upstream], clusterTest="true", serverBufferedBytesMax=100 * KIB)
        for _ in range(4):
            ask_and_leave(server, elsewhere)
        whole = frame(b'{"code":106,"opaque":1,"extFields":{}}', bytes(90 * KIB))
        with connect(server.address) as line, RawConnection(server.address) as other:
            line.sendall(whole[: 80 * KIB])
            assert other.call(GET_CLUSTERS).code == SUCCESS
            line.sendall(whole[80 * KIB :])
            assert line.recv(65536)
        assert server.stop() == 0
    assert_log_intact(server.log)
    assert len(server.log_since_start.splitlines()) < 30


def ask_and_leave(server: ServerProcess, elsewhere: socket.socket) -> None:
    """Three peers ask what must be asked elsewhere, begin another request, and are gone before the answer fails."""
    question = encode(Request(GET_ROUTE, {"topic": "elsewhere"}), 1)
    with ExitStack() as peers:
        for _ in range(3):
            peers.enter_context(connect(server.address)).sendall(question + struct.pack(">I", MIB) + bytes(30 * KIB))
        asked, _ = elsewhere.accept()
        with asked:
            asked.settimeout(TIMEOUT_S)
            heard = b""
            while heard.count(b'"elsewhere"') < 3:
                heard += asked.recv(65536)
            open_files = server.open_files
            peers.close()
            wait_until(lambda: server.open_files == open_files - 3, "the clients are disconnected")
    wait_until(lambda: server.open_files == open_files - 4, "the upstream is disconnected")


# Responses that a client does not read


def test_a_client_that_never_reads_uses_bounded_memory(start: Start) -> None:
    server = start()
    topics = [Topic(f"a-topic-with-a-name-of-usual-length-{number:06}") for number in range(10_000)]
    with RawConnection(server.address, timeout_s=60) as registrar:
        assert registrar.call(broker(topics=topics).request).code == SUCCESS
        answer_mb = len(registrar.call(LIST_TOPICS).body) / 1e6
        before_mb = server.rss_mb
        with check_survives(server, lines_max=300):
            questions = b"".join(encode(Request(LIST_TOPICS), number) for number in range(2_000))
            with holding_back(server, questions, peers=8):
                started = time.monotonic()
                for _ in range(20):
                    assert_serves(server.address)
                assert time.monotonic() - started < TIMEOUT_S
                assert server.rss_mb - before_mb < 8 * (2 * answer_mb + 2) + 50
        assert registrar.call(GET_ROUTE, {"topic": topics[7].name}).code == SUCCESS


@contextmanager
def holding_back(server: ServerProcess, questions: bytes, *, peers: int) -> Iterator[list[socket.socket]]:
    """Peers that ask as long as they are let, and take no answer."""
    with ExitStack() as stack:
        lines = []
        for _ in range(peers):
            line = stack.enter_context(socket.socket())
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.settimeout(TIMEOUT_S)
            line.connect(split_address(server.address))
            line.setblocking(False)
            lines.append(line)
        left = dict.fromkeys(lines, questions)
        while left:
            _, writable, _ = select.select([], list(left), [], 0.5)
            if not writable:
                break  # the server has stopped reading from all of them
            for line in writable:
                left[line] = left[line][line.send(left[line]) :]
                if not left[line]:
                    del left[line]
        yield lines


# Connections


def test_connections_beyond_the_limit_are_closed(start: Start) -> None:
    server = start(serverMaxConnections=50)
    with check_survives(server, lines_max=12), ExitStack() as stack:
        lines = []
        for _ in range(200):
            line = stack.enter_context(connect(server.address))
            lines.append(line)
        wait_until(lambda: still_open(lines) == 50, "all but the allowed are closed")
        for line in lines[:50]:
            line.settimeout(TIMEOUT_S)
            line.sendall(encode(Request(GET_CLUSTERS), 1))
        assert all(line.recv(65536) for line in lines[:50])
        lines[0].close()
        wait_until(lambda: is_serving(server.address), "one more connection is accepted")


IDLE = 10_000


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < IDLE + 500:
        pytest.skip(f"{IDLE} connections need as many open files, and the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_ten_thousand_idle_connections_are_held_and_closed_at_the_end(start: Start) -> None:
    server = start()
    host, port = split_address(server.address)
    assert host == "127.0.0.1"
    question = encode(Request(GET_CLUSTERS), 1)
    with ExitStack() as stack:
        lines = []
        for number in range(IDLE):
            # Several addresses of our own, so that no range of ports is too small.
            own = (f"127.0.0.{2 + number % 4}", 0)
            line = stack.enter_context(socket.create_connection((host, port), TIMEOUT_S, source_address=own))
            lines.append(line)
            if number % 2:
                line.sendall(question)
            if number % 500 == 499:
                assert line.recv(65536)  # all before it have been accepted
        assert all(line.recv(65536) for number, line in enumerate(lines) if number % 2 and number % 500 != 499)
        wait_until(lambda: server.open_files > IDLE, "all are held")
        assert server.rss_mb < 250
        started = time.monotonic()
        for _ in range(100):
            assert_serves(server.address)
        assert time.monotonic() - started < TIMEOUT_S
        assert server.stop() == 0
        assert all(read_to_end(line) == b"" for line in lines)
    assert_log_intact(server.log)
    assert len(server.log_since_start.splitlines()) < 20
