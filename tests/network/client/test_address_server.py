"""Addresses from an address server: read when first needed, refreshed, and kept while it is down."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from skyroute import Admin, Message, Producer, Session, blocking
from skyroute.client.errors import ClientError, NoNameServerError
from skyroute.client.session import address_server
from skyroute.client.session import session as session_module
from skyroute.client.session.address_server import AddressServer, is_address_server
from skyroute.client.session.name_servers import NameServers
from tests.support.connections import WAIT_S
from tests.support.fake_broker import FakeCluster, fake_cluster
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("nothing_lost")


class Web:
    """A real web server with a configurable response."""

    def __init__(self) -> None:
        self.text = ""
        self.status = 200
        self.protocol = "HTTP/1.0"
        self.has_length = True
        self.asked: list[str] = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.asked.append(self.path)
                body = web.text.encode()
                self.protocol_version = web.protocol
                self.send_response(web.status)
                if web.has_length:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/rocketmq/nsaddr"

    @contextlib.contextmanager
    def serving(self) -> Iterator[Web]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


@pytest.fixture
def web() -> Iterator[Web]:
    with Web().serving() as serving:
        yield serving


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(topics={"T": 1}) as running:
        yield running


async def test_a_producer_finds_its_name_servers(cluster: FakeCluster, web: Web) -> None:
    web.text = f"{cluster.address}\n"
    async with Producer("g", web.url) as producer:
        assert web.asked == []  # it is read when it is first needed
        assert (await producer.send(Message("T", b"x"))).ok
        assert (await producer.send(Message("T", b"y"))).ok
        assert producer.session.name_servers.addresses == (cluster.address,)
    assert web.asked == ["/rocketmq/nsaddr"]


async def test_a_blocking_producer_and_an_admin_find_their_name_servers(cluster: FakeCluster, web: Web) -> None:
    def script() -> None:
        with blocking.Producer("g", name_servers=[web.url]) as producer:
            assert producer.send(Message("T", b"x")).ok

    web.text = cluster.address
    await asyncio.to_thread(script)
    async with Admin(web.url) as admin:
        assert [queues.broker_name for queues in (await admin.route("T")).queues] == ["broker-a"]


async def test_the_environment_may_contain_the_url(
    cluster: FakeCluster, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", web.url)
    web.text = cluster.address
    async with Producer("g") as producer:
        assert (await producer.send(Message("T", b"x"))).ok


async def test_a_unit_name_is_part_of_the_url_as_in_java(cluster: FakeCluster, web: Web) -> None:
    web.text = cluster.address
    async with Session(web.url, unit_name="north") as session:
        await session.routes.find("T")
    assert web.asked == ["/rocketmq/nsaddr-north?nofix=1"]


async def test_addresses_are_refreshed_periodically(
    cluster: FakeCluster, web: Web, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert session_module.ADDRESSES_INTERVAL_S == 120.0
    monkeypatch.setattr(session_module, "ADDRESSES_INTERVAL_S", 0.01)
    web.text = "127.0.0.1:1"
    async with Session(web.url) as session:
        with pytest.raises(NoNameServerError, match=r"127\.0\.0\.1:1"):
            await session.routes.find("T")
        web.text = cluster.address
        await eventually(lambda: session.name_servers.addresses == (cluster.address,))
        await session.routes.find("T")
        web.status = 500
        before = len(web.asked)
        await eventually(lambda: len(web.asked) > before + 3)
        await session.routes.refresh("T")  # the old addresses are kept
    warnings = [line for line in caplog.messages if line.startswith("name server addresses not refreshed")]
    assert len(warnings) == 1


async def test_a_removed_name_server_is_no_longer_preferred(web: Web) -> None:
    servers = NameServers(web.url)
    web.text = "127.0.0.1:1;127.0.0.1:2"
    assert sorted(await servers.in_turn()) == ["127.0.0.1:1", "127.0.0.1:2"]
    servers.prefer("127.0.0.1:2")
    await servers.refresh()
    assert (await servers.in_turn())[0] == "127.0.0.1:2"
    web.text = "127.0.0.1:3"
    await servers.refresh()
    assert servers.preferred is None
    assert await servers.in_turn() == ["127.0.0.1:3"]


@pytest.mark.parametrize(
    ("text", "status", "reason"),
    [
        ("", 200, "returned no address"),
        (" ;\n", 200, "returned no address"),
        ("nonsense", 200, "name server address 'nonsense' is invalid"),
        ("<html>", 200, "name server address .* is invalid"),
        ("127.0.0.1:1", 404, "returned status 404: expected 200"),
        ("127.0.0.1:1", 302, "returned status 302: expected 200"),
        ("a:1;" * 20_000, 200, "longer than 65536 bytes"),
    ],
)
async def test_an_unusable_response_raises(web: Web, text: str, status: int, reason: str) -> None:
    web.text, web.status = text, status
    async with Producer("g", web.url) as producer:
        with pytest.raises(NoNameServerError, match=reason):
            await producer.send(Message("T", b"x"))


@pytest.mark.parametrize(("protocol", "has_length"), [("HTTP/1.1", True), ("HTTP/1.0", False)])
async def test_bodies_end_by_length_or_by_the_end_of_the_connection(web: Web, protocol: str, has_length: bool) -> None:
    web.text, web.protocol, web.has_length = "a:1;b:2", protocol, has_length
    assert await AddressServer(web.url).ask() == "a:1;b:2"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "closed connection without response"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\na:1", "ended 7 bytes before its Content-Length"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "SSH-2.0-OpenSSH"),
        (b"HTTP/1.1 x\r\n\r\n", "HTTP/1.1 x"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * 100_000, "longer than 65536 bytes"),
        (b"HTTP/1.1 200 OK\r\n" + b"a" * 100_000, "got more than 65536 bytes"),
    ],
)
async def test_a_response_that_is_not_http_raises(answer: bytes, reason: str) -> None:
    async with saying(answer) as url:
        with pytest.raises(NoNameServerError, match=reason):
            await AddressServer(url).ask()


async def test_a_server_that_does_not_respond_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_server, "TIMEOUT_S", 0.05)
    async with saying(None) as url:
        with pytest.raises(NoNameServerError, match=r"did not return the name servers in 0\.05 s"):
            await AddressServer(url).ask()
    with pytest.raises(NoNameServerError, match="did not return the name servers: "):
        await AddressServer("http://127.0.0.1:1/rocketmq/nsaddr").ask()


async def test_a_timeout_closes_the_connection_of_a_slow_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte arrives in time, so that only the deadline of the whole request ends it."""
    monkeypatch.setattr(address_server, "TIMEOUT_S", 0.1)
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nX: ")
        dripping = asyncio.create_task(drip(writer))
        await reader.read()
        dripping.cancel()
        writer.close()
        closed.set()

    async def drip(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"a")
            await asyncio.sleep(0.01)

    async with listening(serve) as url, asyncio.timeout(WAIT_S):
        with pytest.raises(NoNameServerError, match=r"in 0\.1 s"):
            await AddressServer(url).ask()
        await closed.wait()
    assert closed.is_set()


@contextlib.asynccontextmanager
async def saying(response: bytes | None) -> AsyncIterator[str]:
    """A server that sends these bytes to each client, or nothing."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        if response is not None:
            writer.write(response)
            writer.close()

    async with listening(serve) as url:
        yield url
    for writer in writers:
        writer.transport.abort()


@contextlib.asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/rocketmq/nsaddr"
    finally:
        server.close()


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("http://a/rocketmq/nsaddr", True),
        ("https://a:8080/x", True),
        ("HTTP://a/x", True),
        ("http://a:1", False),
        ("http://a:1/", False),
        ("a:1", False),
        ("ftp://a/x", False),
    ],
)
def test_only_a_url_with_a_path_is_an_address_server(text: str, is_one: bool) -> None:
    assert is_address_server(text) is is_one


@pytest.mark.parametrize(
    "given",
    [
        *("http://a:x/n", "http:///n", "http://a/n n", "http://a/\x7f", "http://a/é", "http://[::1/n"),
        *("http://a/n;b:1", ["http://a/n", "http://b/n"], "ftp://a/n"),
    ],
)
def test_an_invalid_url_is_refused(given: str | list[str]) -> None:
    with pytest.raises(ClientError, match=r"expected (http://)?host:port"):
        Session(given)
