"""Name servers that a web server knows: found when first needed, asked for again, and kept while it is away."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from skyroute import Admin, Message, Producer, Session, blocking
from skyroute.client.errors import ClientError, NoNameServerError
from skyroute.client.session import address_server
from skyroute.client.session import session as session_module
from skyroute.client.session.address_server import AddressServer, is_address_server
from skyroute.client.session.name_servers import NameServers
from tests.support.fake_broker import FakeCluster, fake_cluster
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("nothing_lost")


class Web:
    """A real web server, and what it says."""

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

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its own name for it
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
        assert web.asked == []  # not before it is needed
        assert (await producer.send(Message("T", b"x"))).ok
        assert (await producer.send(Message("T", b"y"))).ok
        assert producer.session.name_servers.addresses == (cluster.address,)
    assert web.asked == ["/rocketmq/nsaddr"]


async def test_a_script_and_an_admin_do_too(cluster: FakeCluster, web: Web) -> None:
    def script() -> None:
        with blocking.Producer("g", name_servers=[web.url]) as producer:
            assert producer.send(Message("T", b"x")).ok

    web.text = cluster.address
    await asyncio.to_thread(script)
    async with Admin(web.url) as admin:
        assert [queues.broker_name for queues in (await admin.route("T")).queues] == ["broker-a"]


async def test_the_environment_may_name_it(cluster: FakeCluster, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", web.url)
    web.text = cluster.address
    async with Producer("g") as producer:
        assert (await producer.send(Message("T", b"x"))).ok


async def test_a_unit_is_asked_for_as_java_does(cluster: FakeCluster, web: Web) -> None:
    web.text = cluster.address
    async with Session(web.url, unit_name="north") as session:
        await session.routes.find("T")
    assert web.asked == ["/rocketmq/nsaddr-north?nofix=1"]


async def test_it_is_asked_again_and_moves(
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
        await session.routes.refresh("T")  # what was known stays
    complaints = [line for line in caplog.messages if line.startswith("addresses of name servers not refreshed")]
    assert len(complaints) == 1


async def test_who_is_no_more_is_preferred_no_more(web: Web) -> None:
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
        ("", 200, "says that there are no name servers"),
        (" ;\n", 200, "says that there are no name servers"),
        ("nonsense", 200, "'nonsense' is not the address of a name server"),
        ("<html>", 200, "is not the address of a name server"),
        ("127.0.0.1:1", 404, "answers 404 instead"),
        ("127.0.0.1:1", 302, "answers 302 instead"),
        ("a:1;" * 20_000, 200, "at most 65536 are read"),
    ],
)
async def test_what_cannot_be_meant_is_told(web: Web, text: str, status: int, reason: str) -> None:
    web.text, web.status = text, status
    async with Producer("g", web.url) as producer:
        with pytest.raises(NoNameServerError, match=reason):
            await producer.send(Message("T", b"x"))


@pytest.mark.parametrize(("protocol", "has_length"), [("HTTP/1.1", True), ("HTTP/1.0", False)])
async def test_servers_end_their_answers_in_several_ways(web: Web, protocol: str, has_length: bool) -> None:
    web.text, web.protocol, web.has_length = "a:1;b:2", protocol, has_length
    assert await AddressServer(web.url).ask() == "a:1;b:2"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "does not say where"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\na:1", "does not say where"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "no answer of a web server"),
        (b"HTTP/1.1 x\r\n\r\n", "no answer of a web server"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"a" * 100_000, "at most 65536"),
        (b"HTTP/1.1 200 OK\r\n" + b"a" * 100_000, "does not say where"),
    ],
)
async def test_who_does_not_speak_the_language_is_told_apart(answer: bytes, reason: str) -> None:
    async with saying(answer) as url:
        with pytest.raises(NoNameServerError, match=reason):
            await AddressServer(url).ask()


async def test_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_server, "TIMEOUT_S", 0.05)
    async with saying(None) as url:
        with pytest.raises(NoNameServerError, match=r"did not say in 0.05 s"):
            await AddressServer(url).ask()
    with pytest.raises(NoNameServerError, match="does not say"):
        await AddressServer("http://127.0.0.1:1/rocketmq/nsaddr").ask()


@contextlib.asynccontextmanager
async def saying(answer: bytes | None) -> AsyncIterator[str]:
    """Somebody who says this to whoever asks, or nothing at all."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        if answer is not None:
            writer.write(answer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/rocketmq/nsaddr"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


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
def test_a_path_tells_an_address_server_from_a_name_server(text: str, is_one: bool) -> None:
    assert is_address_server(text) is is_one


@pytest.mark.parametrize(
    "given",
    [
        *("http://a:x/n", "http:///n", "http://a/n n", "http://a/\x7f", "http://a/é", "http://[::1/n"),
        *("http://a/n;b:1", ["http://a/n", "http://b/n"], "ftp://a/n"),
    ],
)
def test_what_nobody_could_ask_is_refused(given: str | list[str]) -> None:
    with pytest.raises(ClientError, match=r"name_servers is no address|host:port is expected"):
        Session(given)
