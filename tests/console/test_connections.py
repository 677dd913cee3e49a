"""A client that sends half a request, or reads no response, does not block other clients of the console."""

import resource
import select
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import trustme

from skyroute.console import app
from skyroute.console.config import ConnectionLimits
from skyroute.console.server import Console
from skyroute.settings.networks import parse_networks
from tests.support.browsing import Serve, port_of

MANY = 1_010
NO_CLUSTER = "127.0.0.1:1"
HALF_HEADER = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: "
HALF_BODY = b"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nname=half"
WHOLE = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture(autouse=True)
def many_open_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4 * MANY:
        pytest.skip(f"{hard} open files are too few for {MANY} connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4 * MANY), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def limited(serve: Serve, settings: dict[str, Any] | None = None, **limits: Any) -> Console:
    return serve(NO_CLUSTER, connections=ConnectionLimits(**limits), **(settings or {}))


def connect(sockets: ExitStack, console: Console, source: str = "127.0.0.1", sent: bytes = b"") -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", port_of(console)), timeout=10, source_address=(source, 0))
    sockets.callback(opened.close)
    opened.sendall(sent)
    return opened


def status_of(connection: socket.socket) -> int:
    """Read one short response, and return its status."""
    answer = b""
    while b"ok\n" not in answer:
        received = connection.recv(4096)
        assert received, f"closed after {answer!r}"
        answer += received
    return int(answer.split()[1])


def fetch(console: Console, source: str) -> tuple[int, float]:
    """Send a request on a new connection; return the status and how long it took."""
    with ExitStack() as stack:
        begun = time.monotonic()
        status = status_of(connect(stack, console, source, WHOLE))
        return status, time.monotonic() - begun


def is_closed(connection: socket.socket, timeout_s: float = 10.0) -> bool:
    """Wait until the console closes a connection, without reading from it."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(timeout_s * 1000))


@pytest.mark.parametrize("sent", [HALF_HEADER, HALF_BODY, b""], ids=["header", "body", "nothing"])
def test_many_half_requests_do_not_block_other_clients(serve: Serve, sockets: ExitStack, sent: bytes) -> None:
    console = serve(NO_CLUSTER)
    for _ in range(MANY):
        connect(sockets, console, sent=sent)
    for source in ("127.0.0.1", "127.0.0.2"):
        answers = [fetch(console, source) for _ in range(3)]
        assert [status for status, _ in answers] == [HTTPStatus.OK] * 3
        assert min(took_s for _, took_s in answers) < 1.0  # the fastest: the machine may be busy with other tests


def test_the_connection_that_waits_longest_is_closed_for_a_new_one(serve: Serve, sockets: ExitStack) -> None:
    console = limited(serve, connections_max=4)
    first, *others = [connect(sockets, console, sent=HALF_HEADER) for _ in range(4)]
    assert status_of(connect(sockets, console, "127.0.0.2", WHOLE)) == HTTPStatus.OK
    assert is_closed(first)
    for other in others:
        other.sendall(b"now whole\r\n\r\n")
        assert status_of(other) == HTTPStatus.OK


def test_a_connection_with_an_open_response_is_not_closed_for_others(serve: Serve, sockets: ExitStack) -> None:
    console = limited(serve, connections_max=3)
    live = [connect(sockets, console, sent=WHOLE.replace(b"/livez", b"/live")) for _ in range(2)]
    for stream in live:
        assert stream.recv(4096).startswith(b"HTTP/1.1 200")
    for _ in range(10):
        connect(sockets, console, sent=HALF_HEADER)
    assert fetch(console, "127.0.0.2")[0] == HTTPStatus.OK
    assert not any(is_closed(stream, timeout_s=0) for stream in live)


def test_one_client_cannot_hold_all_live_pages(
    serve: Serve, sockets: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "LIVE_ADDRESS_MAX", 2)
    console = serve(NO_CLUSTER)
    live_request = WHOLE.replace(b"/livez", b"/live")
    statuses = [connect(sockets, console, sent=live_request).recv(4096).split()[1] for _ in range(3)]
    assert statuses == [b"200", b"200", b"503"]
    assert connect(sockets, console, "127.0.0.2", live_request).recv(4096).split()[1] == b"200"


def test_a_trusted_proxy_is_bound_by_the_total_only(serve: Serve, sockets: ExitStack) -> None:
    proxy = {"trusted_proxies": parse_networks("127.0.0.0/30")}
    console = limited(serve, proxy, address_connections_max=2)
    waiting = [connect(sockets, console, sent=HALF_HEADER) for _ in range(5)]
    stranger = [connect(sockets, console, "127.0.0.9", HALF_HEADER) for _ in range(3)]
    assert is_closed(stranger[0])
    for connection in waiting:
        connection.sendall(b"now whole\r\n\r\n")
        assert status_of(connection) == HTTPStatus.OK


@pytest.mark.parametrize("sent", [HALF_HEADER, b""], ids=["half", "nothing"])
def test_a_header_has_a_deadline(serve: Serve, sockets: ExitStack, sent: bytes) -> None:
    assert is_closed(connect(sockets, limited(serve, header_s=0.1), sent=sent))


def test_a_header_has_a_deadline_even_if_bytes_keep_coming(serve: Serve, sockets: ExitStack) -> None:
    connection = connect(sockets, limited(serve, header_s=0.2, keep_alive_s=1), sent=HALF_HEADER)
    for _ in range(200):
        if is_closed(connection, timeout_s=0.02):
            return
        connection.sendall(b"x")
    pytest.fail("the connection is still open")


def test_the_next_request_of_a_connection_has_a_deadline_too(serve: Serve, sockets: ExitStack) -> None:
    connection = connect(sockets, limited(serve, header_s=0.1, keep_alive_s=1), sent=WHOLE)
    for _ in range(3):
        assert status_of(connection) == HTTPStatus.OK
        connection.sendall(WHOLE)
    assert status_of(connection) == HTTPStatus.OK
    connection.sendall(HALF_HEADER)
    assert is_closed(connection)


def test_a_slow_body_closes_the_connection(serve: Serve, sockets: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    connection = connect(sockets, limited(serve, body_s=0.1), sent=HALF_BODY)
    with suppress(ConnectionError):  # it may be closed between the look and the write
        for _ in range(200):
            if is_closed(connection, timeout_s=0.02):
                break
            connection.sendall(b"x")
    assert is_closed(connection, timeout_s=0)
    assert not [record for record in caplog.records if record.exc_info]


def test_a_long_body_that_is_fast_enough_is_read(serve: Serve, sockets: ExitStack) -> None:
    console = limited(serve, body_s=0.1, bytes_per_s=100)
    head = HALF_BODY.partition(b"\r\n\r\n")[0].replace(b"/sign-in", b"/preferences")
    connection = connect(sockets, console, sent=head + b"\r\n\r\n")
    for _ in range(20):
        assert not is_closed(connection, timeout_s=0.02)
        connection.sendall(b"x" * 50)
    assert connection.recv(4096).startswith(b"HTTP/1.1 403")


def test_a_client_that_does_not_read_is_disconnected(serve: Serve, sockets: ExitStack) -> None:
    console = limited(serve, unread_s=0.2, bytes_per_s=10**9)
    connection = socket.socket()
    sockets.callback(connection.close)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(10)
    connection.connect(("127.0.0.1", port_of(console)))
    connection.sendall(WHOLE.replace(b"/livez", b"/static/style.css") * 2_000)
    assert is_closed(connection)


def test_unfinished_tls_handshakes_do_not_block_other_clients(serve: Serve, sockets: ExitStack, tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")
    console = limited(
        serve,
        {"certificate": tmp_path / "certificate.pem", "key": tmp_path / "key.pem"},
        connections_max=50,
        header_s=1.0,
    )
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    first, *_ = [connect(sockets, console) for _ in range(60)]
    assert is_closed(first)
    with trust.wrap_socket(connect(sockets, console), server_hostname="127.0.0.1") as browser:
        browser.sendall(WHOLE)
        assert status_of(browser) == HTTPStatus.OK
    assert is_closed(connect(sockets, console, sent=b"\x16\x03\x01"))


@pytest.mark.parametrize("sent_at_once", [True, False])
def test_an_invalid_body_is_refused_without_an_error_in_the_log(
    serve: Serve, sockets: ExitStack, caplog: pytest.LogCaptureFixture, *, sent_at_once: bool
) -> None:
    console = limited(serve)
    head = b"POST /topics HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
    broken = b"no size of a chunk\r\n"
    connection = connect(sockets, console, sent=head + broken if sent_at_once else head)
    answer = b""
    if not sent_at_once:
        answer = connection.recv(4096)
        connection.sendall(broken)
    while received := connection.recv(4096):
        answer += received
    assert answer.startswith(b"HTTP/1.1 400 " if sent_at_once else b"HTTP/1.1 405 ")
    assert fetch(console, "127.0.0.1")[0] == HTTPStatus.OK
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
