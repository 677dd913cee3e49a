"""Streams that are cut short, invalid, or endless."""

import itertools
import random
import ssl
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.adversity.faults import (
    broker,
    check_survives,
    replies,
    send_and_half_close,
    send_and_read_to_end,
    send_and_reset,
)
from tests.support.codes import GET_CLUSTERS, GET_CONFIG, GET_ROUTE, HEARTBEAT, NO_TOPIC, REGISTER, SUCCESS
from tests.support.connections import connection_to
from tests.support.process import ServerProcess, server_process
from tests.support.raw import Request, encode, frame
from tests.support.servers import running
from tests.support.waiting import eventually

ROUTE = Request(GET_ROUTE, {"topic": "T"})
CLUSTERS = Request(GET_CLUSTERS)
BROKER = broker(deflate=True)
PROXY_V1 = b"PROXY TCP4 192.0.2.1 192.0.2.2 40000 9876\r\n"
PROXY_V2 = bytes.fromhex("0d0a0d0a000d0a515549540a 21 11 000c c0000201 c0000202 9c40 2694")


def client_hello() -> bytes:
    """The first bytes of a peer that speaks TLS."""
    outgoing = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    speaker = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        speaker.do_handshake()
    return outgoing.read()


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """How a stream ends, and what is still read and sent then, is each event loop's own way."""
    with server_process(tmp_path_factory.mktemp("server"), loop=request.param) as shared:
        send_and_half_close(shared.address, client_hello())  # the first who speaks TLS has a certificate made
        yield shared


@dataclass(frozen=True, slots=True)
class Exchange:
    """What is no frame, and then frames with the codes of their answers; a one-way request has none."""

    prologue: bytes
    frames: Sequence[tuple[bytes, int | None]]

    @property
    def stream(self) -> bytes:
        return self.prologue + b"".join(data for data, _ in self.frames)

    def answers(self, cut: int) -> list[int]:
        """The codes that are due if the stream ends at `cut`."""
        ends = itertools.accumulate((len(data) for data, _ in self.frames), initial=len(self.prologue))
        next(ends)
        whole = zip(ends, self.frames, strict=True)
        return [code for end, (_, code) in whole if end <= cut and code is not None]


EXCHANGES = {
    "json": Exchange(
        b"",
        [
            (encode(ROUTE, 1), NO_TOPIC),
            (encode(Request(HEARTBEAT, BROKER.identity), 2, flag=2), None),
            (encode(CLUSTERS, 3), SUCCESS),
        ],
    ),
    "binary": Exchange(
        b"",
        [(encode(BROKER.request, 1, form="binary"), SUCCESS), (encode(ROUTE, 2, form="binary"), NO_TOPIC)],
    ),
    "proxy v1": Exchange(PROXY_V1, [(encode(ROUTE, 1, form="binary"), NO_TOPIC)]),
    "proxy v2": Exchange(PROXY_V2, [(encode(ROUTE, 1, form="binary"), NO_TOPIC)]),
}


@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES)
def test_a_stream_cut_at_any_byte_gets_responses_to_its_whole_frames(server: ServerProcess, exchange: Exchange) -> None:
    stream = exchange.stream
    mark = len(server.log)
    with check_survives(server, lines_max=2 * len(stream)):
        for cut in range(len(stream) + 1):
            answered = replies(send_and_half_close(server.address, stream[:cut]))
            assert [reply.code for reply in answered] == exchange.answers(cut), cut
    if exchange is EXCHANGES["binary"]:
        whole = sum(bool(exchange.answers(cut)) for cut in range(len(stream) + 1))
        assert server.log_since(mark).count("broker joined") == whole, "only whole registrations are applied"
    assert_all_evicted(server, mark)


@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES)
def test_a_stream_reset_at_any_byte_leaves_no_broker_and_no_warning(server: ServerProcess, exchange: Exchange) -> None:
    stream = exchange.stream
    mark = len(server.log)
    with check_survives(server, lines_max=4 * len(stream)):
        for cut in range(len(stream) + 1):
            send_and_reset(server.address, stream[:cut])
    assert_all_evicted(server, mark)


def assert_all_evicted(server: ServerProcess, mark: int) -> None:
    """Check that every registered broker was evicted with its connection, without a warning."""
    log = server.log_since(mark)
    assert log.count("broker joined") == log.count("broker left")
    assert " WARNING " not in log


def test_a_handshake_cut_at_any_byte_gets_no_response(server: ServerProcess) -> None:
    hello = client_hello()
    with check_survives(server, lines_max=0):
        for cut in range(0, len(hello), 3):
            assert send_and_half_close(server.address, hello[:cut]) == b""


UNFRAMED = {
    "one byte more than is allowed": struct.pack(">I", 16_777_213) + bytes(64),
    "a length of -1": b"\xff" * 64,
    "a length of 0": bytes(64),
    "a length of 3": struct.pack(">I", 3) + bytes(64),
    "no header": struct.pack(">II", 4, 0) + bytes(64),
    "a header longer than its frame": struct.pack(">II", 20, 17) + bytes(64),
    "a header of 16 MB in a frame of 20 bytes": struct.pack(">II", 20, 0xFFFFFF) + bytes(64),
    "a header of an unknown form": frame(b"{}" + bytes(20), kind=2),
    "a header of form 255": frame(b"{}" + bytes(20), kind=255),
    "a header that is no object": frame(b'["code",105,"opaque",1]'),
    "a header that is null": frame(b"null                  "),
    "text after the header": frame(b'{"code":106,"opaque":1} 5'),
    "a binary header cut short": frame(bytes(16), kind=1),
    "a binary header whose remark runs out": frame(struct.pack(">hBhiii", 106, 0, 479, 1, 0, 99) + bytes(9), kind=1),
    "a binary header with a remark of -1": frame(struct.pack(">hBhiii", 106, 0, 479, 1, 0, -1) + bytes(9), kind=1),
    "a binary header whose fields run out": frame(struct.pack(">hBhiiii", 106, 0, 479, 1, 0, 0, 99) + bytes(9), kind=1),
    "a binary header with -1 bytes of fields": frame(struct.pack(">hBhiiii", 106, 0, 479, 1, 0, 0, -1), kind=1),
    "a binary field of -1 bytes": frame(
        struct.pack(">hBhiiiihi", 106, 0, 479, 1, 0, 0, 8, -1, 0) + b"ab" + bytes(9), kind=1
    ),
    "a registration beyond its own limit": struct.pack(">II", 67_108_861, 20) + b'{"code":103}' + bytes(64),
    "a long frame that is no registration": struct.pack(">II", 20_000_000, 13) + b'{"code":106} ' + bytes(64),
    "a long frame with a header of 1 MB": struct.pack(">II", 20_000_000, 1_000_000) + b'{"code":103' + bytes(64),
    "a length of 3 and no more": struct.pack(">I", 3) + bytes(3),
    "no header and no more": struct.pack(">II", 4, 0),
    "a short header that is no object": frame(b"[]"),
    "an unknown form, and the rest to come": struct.pack(">II", 2000, 2 << 24 | 10) + b'{"co',
    "a header longer than its frame, and the rest to come": struct.pack(">II", 2000, 1998) + b'{"co',
    "a web browser": b"GET / HTTP/1.1\r\nHost: localhost:9876\r\nAccept: */*\r\n\r\n",
    "a shell": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a proxy that never ends its line": b"PROXY TCP4 " + b"1" * 100,
    "a proxy of an unknown version": PROXY_V2[:12] + b"\x91" + PROXY_V2[13:] + bytes(64),
    "a proxy with half an address": PROXY_V2[:12] + bytes.fromhex("21 11 0004 c0000201") + bytes(64),
    "no handshake after all": b"\x16\x03\x01\x00\x05hello" + bytes(64),
}


@pytest.mark.parametrize("name", UNFRAMED)
def test_an_invalid_frame_closes_the_connection(server: ServerProcess, name: str) -> None:
    with check_survives(server, lines_max=1):
        answer = send_and_read_to_end(server.address, UNFRAMED[name])
    # A TLS alert may be the last bytes.
    assert answer == b"" or answer[0] == 0x15


def test_requests_before_an_invalid_frame_get_responses(server: ServerProcess) -> None:
    good = encode(ROUTE, 7) + encode(CLUSTERS, 8, form="binary")
    for broken in (frame(b"[]" + bytes(20)), frame(b"", kind=9), b"\xff" * 12, bytes(12)):
        with check_survives(server, lines_max=1):
            answered = replies(send_and_read_to_end(server.address, good + broken))
        assert [(reply.opaque, reply.code) for reply in answered] == [(7, NO_TOPIC), (8, SUCCESS)]


def test_the_server_survives_random_bytes(server: ServerProcess, chance: random.Random) -> None:
    with check_survives(server, lines_max=300):
        for _ in range(300):
            check_replies_or_alert(send_and_half_close(server.address, chance.randbytes(chance.randrange(1, 2000))))


def test_the_server_survives_random_headers(server: ServerProcess, chance: random.Random) -> None:
    signs = b"{}[]:,\"\\'0123456789.-+eE truefalsn\t\n\x00\x80\xff/*code"
    with check_survives(server, lines_max=300):
        for _ in range(300):
            header = bytes(chance.choices(signs, k=chance.randrange(300)))
            check_replies_or_alert(
                send_and_half_close(server.address, frame(header, chance.randbytes(20), kind=chance.randrange(2)))
            )


def test_the_server_survives_frames_with_wrong_bytes(server: ServerProcess, chance: random.Random) -> None:
    originals = [encode(broker().request, 1), encode(broker(deflate=True).request, 1, form="binary")]
    originals += [encode(Request(GET_CONFIG), 1), encode(Request(REGISTER), 1), PROXY_V2 + encode(ROUTE, 1)]
    with check_survives(server, lines_max=2000):
        for _ in range(400):
            damaged = bytearray(chance.choice(originals))
            for _ in range(chance.randrange(1, 5)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            check_replies_or_alert(send_and_half_close(server.address, bytes(damaged)))


def check_replies_or_alert(answer: bytes) -> None:
    """Check that the response is whole frames, or a TLS alert."""
    if answer[:1] != b"\x15":
        replies(answer)


async def test_a_frame_sent_byte_by_byte_does_not_keep_an_idle_connection_open(tmp_path: Path) -> None:
    async with running(tmp_path, idle_timeout_s=60) as here, connection_to(here.address) as line:
        assert (await line.call(GET_CLUSTERS)).code == SUCCESS
        drips = struct.pack(">II", 200, 100)
        for drip in drips:
            await line.write(bytes([drip]))
            here.pass_time(7, scans=False)
        assert here.connections == 1
        here.pass_time(6, scans=False)
        await line.until_closed()
        await eventually(lambda: here.connections == 0)


@pytest.mark.parametrize(
    "first",
    [b"\x00", client_hello()[:100], PROXY_V2[:14], PROXY_V1[:-1], PROXY_V1],
    ids=["a byte", "half a handshake", "half a proxy v2", "half a proxy v1", "a proxy and no more"],
)
async def test_a_connection_with_an_incomplete_prologue_is_closed_after_a_timeout(tmp_path: Path, first: bytes) -> None:
    async with (
        running(tmp_path, prologue_timeout_s=10, trusted_proxies="127.0.0.1") as here,
        connection_to(here.address) as line,
    ):
        await eventually(lambda: here.connections == 1)
        here.pass_time(100, scans=False)
        assert here.connections == 1, "a connection without bytes is only idle"
        await line.write(first)
        (connection,) = here.remoting._connections.values()
        await eventually(lambda: connection.opening_since is not None)
        here.pass_time(9, scans=False)
        assert here.connections == 1
        here.pass_time(2, scans=False)
        await line.until_closed()
        assert here.connections == 0
        assert "buffered=0" in repr(here.remoting)
