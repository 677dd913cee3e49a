"""Bounds that many clients, or many connections of one client, reach."""

import ssl

import pytest

from tests.adversity.conftest import Start
from tests.adversity.faults import assert_serves, broker, check_survives, connect, read_to_end, send_and_read_to_end
from tests.adversity.test_memory import KIB, MIB, holding, still_open
from tests.support.codes import DELETE_TOPIC, GET_CLUSTERS, REGISTER, SYSTEM_ERROR
from tests.support.process import ServerProcess
from tests.support.raw import RawConnection, Request, Topic, encode, mapping
from tests.support.waiting import wait_until


def tls_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def test_unfinished_handshakes_count_towards_the_bound(start: Start) -> None:
    server = start(serverBufferedBytesMax=256 * KIB)
    begun = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xf0" + bytes(16_000)
    with holding(server, begun, 40) as lines:
        assert_serves(server.address)
        wait_until(lambda: still_open(lines) <= 16, "no more than the bound is held", timeout_s=5)


def test_a_tls_connection_is_closed_after_close_notify(server: ServerProcess) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    speaker = tls_context().wrap_bio(incoming, outgoing)
    with connect(server.address, timeout_s=5) as line:
        while True:
            try:
                speaker.do_handshake()
                break
            except ssl.SSLWantReadError:
                line.sendall(outgoing.read())
                incoming.write(line.recv(65536))
        speaker.write(encode(Request(GET_CLUSTERS), 1))
        with pytest.raises(ssl.SSLWantReadError):
            speaker.unwrap()
        line.sendall(outgoing.read())
        read_to_end(line)


@pytest.mark.parametrize("what", ["filter servers", "topic names", "broker name", "deleted topic"])
def test_a_log_line_is_short_for_a_long_name(start: Start, what: str) -> None:
    server = start()
    huge = "x" * 1_000_000
    request = {
        "filter servers": broker(filter_servers=[huge]).request,
        "topic names": broker(topics=[Topic(huge), Topic("T")]).request,
        "broker name": broker(huge).request,
        "deleted topic": Request(DELETE_TOPIC, {"topic": huge}),
    }[what]
    with RawConnection(server.address) as line:
        line.call(request)
    assert len(server.log) < 20_000


@pytest.mark.parametrize("what", ["filter servers", "static queues"])
def test_memory_of_large_registrations_is_bounded(start: Start, what: str) -> None:
    server = start()
    with RawConnection(server.address, timeout_s=60) as line:
        before_mb = server.rss_mb
        for number in range(5):
            name = f"broker-{number}"
            each = broker(name, address=f"10.0.0.{number}:10911", topics=[Topic("S"), Topic("T")])
            if what == "filter servers":
                each = each.but(filter_servers=[f"{at:x}" for at in range(500_000)])
            else:
                each = each.but(mappings={"S": mapping("S", name, 400_000)})
            line.call(each.request)
        assert server.rss_mb - before_mb < 100


def test_repeated_connections_of_one_host_log_few_lines(server: ServerProcess) -> None:
    with check_survives(server, lines_max=50):
        for _ in range(1000):
            send_and_read_to_end(server.address, b"GET / HTTP/1.1\r\nHost: localhost:9876\r\n\r\n")


def test_one_large_frame_uses_little_processor_time(server: ServerProcess) -> None:
    fields = {**broker().request.fields, "bodyCrc32": "0"}
    cpu_s = server.cpu_s
    with RawConnection(server.address, timeout_s=60) as line:
        assert line.call(REGISTER, fields, b"," * (60 * MIB)).code == SYSTEM_ERROR
    assert server.cpu_s - cpu_s < 2.0
