"""PROXY headers of trusted load balancers, before plain text and before TLS, and of others."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from skyroute.remoting.tls_settings import TlsMode
from skyroute.wire.codes import ResponseCode
from tests.network.certificates import Files, client_of, client_that_trusts_anyone
from tests.network.cluster import MASTER, addresses, register
from tests.support.connections import AsyncConnection, connection_to
from tests.support.raw import Request, encode
from tests.support.servers import Running, running
from tests.support.waiting import eventually

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def v1(text: str) -> bytes:
    return f"PROXY {text}\r\n".encode()


def v2(source: str, port: int, *, command: int = 1, extra: bytes = b"") -> bytes:
    address = ipaddress.ip_address(source)
    family = 0x11 if address.version == 4 else 0x21
    target = ipaddress.ip_address("192.0.2.1" if address.version == 4 else "2001:db8::1")
    block = address.packed + target.packed + struct.pack(">HH", port, 9876) + extra
    return SIGNATURE + struct.pack(">BBH", 0x20 | command, family, len(block)) + block


HEADERS = {
    "v1-tcp4": (v1("TCP4 203.0.113.7 192.0.2.1 4711 9876"), "203.0.113.7:4711"),
    "v1-tcp6": (v1("TCP6 2001:db8::7 2001:db8::1 4711 9876"), "[2001:db8::7]:4711"),
    "v1-unknown": (v1("UNKNOWN"), None),
    "v1-unknown-with-words": (v1("UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535"), None),
    "v2-tcp4": (v2("203.0.113.7", 4711), "203.0.113.7:4711"),
    "v2-tcp6": (v2("2001:db8::7", 4711), "[2001:db8::7]:4711"),
    "v2-more": (v2("203.0.113.7", 4711, extra=b"\x04\x00\x03abc"), "203.0.113.7:4711"),
    "v2-long": (v2("203.0.113.7", 4711, extra=bytes(60_000)), "203.0.113.7:4711"),
    "v2-local": (v2("203.0.113.7", 4711, command=0), None),
    "v2-port-zero": (v2("203.0.113.7", 0), None),
}
headers = pytest.mark.parametrize(("header", "shown"), HEADERS.values(), ids=HEADERS)


@pytest.fixture
async def nameserver(tmp_path: Path) -> AsyncIterator[Running]:
    """A name server that believes PROXY headers from this machine."""
    async with running(tmp_path, trusted_proxies="127.0.0.0/8") as here:
        yield here


async def shows(
    nameserver: Running, line: AsyncConnection, caplog: pytest.LogCaptureFixture, shown: str | None
) -> None:
    """The peer is served, and appears in the log as it should."""
    await register(line, MASTER)
    assert await addresses(line) == {"broker-a": {"0": "10.0.0.1:10911"}}
    await line.call(205, {"brokerName": "broker-a"})
    assert f"writes forbidden by operator peer={shown or line.local_address} broker=broker-a" in caplog.text
    assert nameserver.connections == 1


@headers
async def test_a_peer_behind_a_proxy_has_its_own_address(
    nameserver: Running, caplog: pytest.LogCaptureFixture, header: bytes, shown: str | None
) -> None:
    async with connection_to(nameserver.address, prologue=header) as line:
        await shows(nameserver, line, caplog, shown)


@headers
async def test_tls_may_follow_a_proxy_header(
    nameserver: Running, caplog: pytest.LogCaptureFixture, header: bytes, shown: str | None
) -> None:
    async with connection_to(nameserver.address, prologue=header, tls=client_that_trusts_anyone()) as line:
        await shows(nameserver, line, caplog, shown)


@headers
@pytest.mark.parametrize("trusted", ["", "10.0.0.0/8,::1"])
async def test_a_proxy_header_from_an_untrusted_address_closes_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, header: bytes, shown: str | None, trusted: str
) -> None:
    async with (
        running(tmp_path, trusted_proxies=trusted) as here,
        connection_to(here.address) as line,
        connection_to(here.address) as other,
    ):
        await line.write(header[:30] + encode(Request(206), 1))
        await line.until_closed()
        assert line.strays == []
        expected = "a PROXY header from an address that trustedProxies does not name"
        assert f"connection closed peer={line.local_address} reason={expected}" in caplog.text
        assert (await other.call(206)).code == ResponseCode.SUCCESS, "a peer without a header is served"


async def test_tls_must_follow_a_proxy_header_where_it_is_required(tmp_path: Path) -> None:
    authority = trustme.CA()
    tls = Files(tmp_path / "tls", authority).settings(mode=TlsMode.ENFORCING)
    header = v1("TCP4 203.0.113.7 192.0.2.1 4711 9876")
    async with running(tmp_path, tls=tls, trusted_proxies="127.0.0.1") as here:
        async with connection_to(here.address, prologue=header, tls=client_of(authority)) as line:
            await register(line, MASTER)
        async with connection_to(here.address, prologue=header) as line:
            await line.send(206)
            await line.until_closed()
            assert line.strays == []


@headers
async def test_a_proxy_header_may_come_in_pieces_and_with_the_first_request(
    line: AsyncConnection, caplog: pytest.LogCaptureFixture, header: bytes, shown: str | None
) -> None:
    stream = header + encode(Request(205, {"brokerName": "broker-a"}), 1)
    step = max(1, len(stream) // 40)
    for at in range(0, len(stream), step):
        await line.write(stream[at : at + step])
    assert (await line.receive()).code == ResponseCode.SUCCESS
    assert f"writes forbidden by operator peer={shown or line.local_address} broker=broker-a" in caplog.text


@pytest.mark.parametrize(
    "header",
    [
        v1("TCP4 203.0.113.7 192.0.2.1 4711"),
        v1("TCP4 203.0.113.777 192.0.2.1 4711 9876"),
        v1("TCP4 203.0.113.7 192.0.2.1 70000 9876"),
        v1("UDP4 203.0.113.7 192.0.2.1 4711 9876"),
        v1("TCP4 x\x1b[2J 192.0.2.1 4711 9876"),
        b"PROXY " + b"x" * 200,
        b"PROXYTCP4 1.2.3.4 1.2.3.4 1 1\r\n",
        SIGNATURE + b"\x31\x11\x00\x0c" + bytes(12),
        SIGNATURE + b"\x2f\x11\x00\x0c" + bytes(12),
        SIGNATURE + b"\x21\x11\x00\x04" + bytes(4),
    ],
)
async def test_a_malformed_proxy_header_closes_the_connection(
    nameserver: Running, line: AsyncConnection, caplog: pytest.LogCaptureFixture, header: bytes
) -> None:
    await line.write(header + encode(Request(206), 1))
    await line.until_closed()
    assert line.strays == []
    await eventually(lambda: nameserver.connections == 0)
    assert f"connection closed peer={line.local_address} reason=" in caplog.text
    assert "\x1b" not in caplog.text


async def test_a_proxy_header_alone_is_closed_after_the_opening_limit(
    nameserver: Running, line: AsyncConnection
) -> None:
    await line.write(header := v1("TCP4 203.0.113.7 192.0.2.1 4711 9876"))
    await eventually(lambda: nameserver.buffered_bytes == len(header))
    nameserver.pass_time(11)
    await line.until_closed()


async def test_a_second_proxy_header_closes_the_connection(line: AsyncConnection) -> None:
    header = v1("TCP4 203.0.113.7 192.0.2.1 4711 9876")
    await line.write(header + header + encode(Request(206), 1))
    await line.until_closed()
    assert line.strays == []


async def test_a_proxy_header_after_a_request_is_malformed(line: AsyncConnection) -> None:
    await line.call(206)
    await line.write(v2("203.0.113.7", 4711))
    await line.until_closed()
    assert line.strays == []
