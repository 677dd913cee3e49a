import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyroute.wire.errors import FrameError
from skyroute.wire.proxy_protocol import V2_SIGNATURE, ProxiedPeer, read_proxy_header
from tests.unit.wire.golden import golden_bytes

FRAME = golden_bytes("spec/a-route-request-json.hex")
V4_ADDRESSES = bytes([192, 0, 2, 1, 198, 51, 100, 2]) + struct.pack(">HH", 56324, 9876)
V6_ADDRESSES = bytes.fromhex("20010db8000000000000000000000001 20010db8000000000000000000000002") + struct.pack(
    ">HH", 56324, 9876
)
PROXY, LOCAL = 0x21, 0x20
TCP4, UDP4, TCP6, UDP6, UNIX_STREAM, UNIX_DATAGRAM, UNSPECIFIED = 0x11, 0x12, 0x21, 0x22, 0x31, 0x32, 0x00


def v2(addresses: bytes = V4_ADDRESSES, *, command: int = PROXY, family: int = TCP4, tlvs: bytes = b"") -> bytes:
    rest = addresses + tlvs
    return V2_SIGNATURE + struct.pack(">BBH", command, family, len(rest)) + rest


def tlv(kind: int, value: bytes) -> bytes:
    return struct.pack(">BH", kind, len(value)) + value


def v1(words: str) -> bytes:
    return f"PROXY {words}\r\n".encode()


HEADERS = {
    "v1 TCP4": (v1("TCP4 192.0.2.1 198.51.100.2 56324 9876"), "192.0.2.1:56324"),
    "v1 TCP6": (v1("TCP6 2001:db8::1 2001:db8::2 56324 9876"), "[2001:db8::1]:56324"),
    "v1 TCP6 in full": (
        v1(f"TCP6 {':'.join(['ffff'] * 8)} {':'.join(['ffff'] * 8)} 65535 65535"),
        f"[{':'.join(['ffff'] * 8)}]:65535",
    ),
    "v1 UNKNOWN": (v1("UNKNOWN"), None),
    "v1 UNKNOWN with words": (v1("UNKNOWN ffff::1 ffff::2 65535 65535"), None),
    "v2 TCP4": (v2(), "192.0.2.1:56324"),
    "v2 TCP6": (v2(V6_ADDRESSES, family=TCP6), "[2001:db8::1]:56324"),
    "v2 TCP4 with TLVs": (v2(tlvs=tlv(0x02, b"example.com") + tlv(0xEA, b"\x01vpce-1")), "192.0.2.1:56324"),
    "v2 TCP6 with TLVs": (v2(V6_ADDRESSES, family=TCP6, tlvs=tlv(0x04, b"")), "[2001:db8::1]:56324"),
    "v2 LOCAL": (v2(b"", command=LOCAL, family=UNSPECIFIED), None),
    "v2 LOCAL with addresses": (v2(command=LOCAL), None),
    "v2 unspecified": (v2(b"", family=UNSPECIFIED), None),
    "v2 unspecified with bytes": (v2(b"whatever", family=UNSPECIFIED), None),
    "v2 UNIX stream": (v2(b"/a".ljust(108, b"\0") + b"/b".ljust(108, b"\0"), family=UNIX_STREAM), None),
    "v2 UNIX datagram": (v2(bytes(216), family=UNIX_DATAGRAM), None),
    "v2 port 0": (v2(V4_ADDRESSES[:8] + bytes(4)), None),
}
EVERY_HEADER = pytest.mark.parametrize(("header", "address"), HEADERS.values(), ids=HEADERS)


@EVERY_HEADER
def test_a_header_has_the_clients_address_and_its_own_length(header: bytes, address: str | None) -> None:
    assert read_proxy_header(header) == ProxiedPeer(address, len(header))


@EVERY_HEADER
@pytest.mark.parametrize("following", [FRAME, b"\x16\x03\x01", b"\r\n", v1("UNKNOWN")])
def test_bytes_after_a_header_are_not_read(header: bytes, address: str | None, following: bytes) -> None:
    assert read_proxy_header(header + following) == ProxiedPeer(address, len(header))


@EVERY_HEADER
def test_a_header_cut_anywhere_needs_more_bytes(header: bytes, address: str | None) -> None:
    for length in range(1, len(header)):
        assert read_proxy_header(header[:length]) is None, (length, address)


@pytest.mark.parametrize(
    "start",
    [
        FRAME,
        FRAME[:12],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00",
        b"GET / HTTP/1.1\r\n",
        b"proxy TCP4 192.0.2.1 198.51.100.2 1 2\r\n",
        b"PROX" + bytes(8),
        V2_SIGNATURE[:11] + b"\0" + bytes(20),
        b"\0" + V2_SIGNATURE,
        bytes(12),
    ],
)
def test_a_stream_without_a_header_has_one_of_no_bytes(start: bytes) -> None:
    assert read_proxy_header(start) == ProxiedPeer(None, 0)


# ------------------------------------------------------------------------------------------------------ version 1


@pytest.mark.parametrize("length", [80, 100, 105])
def test_a_line_may_be_as_long_as_the_protocol_lets_it(length: int) -> None:
    line = b"PROXY UNKNOWN ".ljust(length, b"x") + b"\r\n"
    assert read_proxy_header(line) == ProxiedPeer(None, length + 2)


def test_a_line_that_does_not_end_is_refused() -> None:
    line = b"PROXY UNKNOWN ".ljust(200, b"x")
    assert read_proxy_header(line[:100]) is None
    for length in (109, 110, 150, 200):
        with pytest.raises(FrameError, match="without an end"):
            read_proxy_header(line[:length])


def test_a_line_that_ends_too_late_is_refused() -> None:
    with pytest.raises(FrameError, match="without an end"):
        read_proxy_header(b"PROXY UNKNOWN ".ljust(120, b"x") + b"\r\n")


@pytest.mark.parametrize("line_end", [b"\n", b"\r", b"\n\r"])
def test_only_a_return_and_a_line_feed_end_a_line(line_end: bytes) -> None:
    assert read_proxy_header(b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 9876" + line_end) is None


@pytest.mark.parametrize(
    "line",
    [
        b"PROXY\r\n123456",
        b"PROXY \r\n12345",
        b"PROXYX TCP4 192.0.2.1 198.51.100.2 56324 9876\r\n",
        b"PROXY\tTCP4 192.0.2.1 198.51.100.2 56324 9876\r\n",
        v1(" TCP4 192.0.2.1 198.51.100.2 56324 9876"),
        v1("tcp4 192.0.2.1 198.51.100.2 56324 9876"),
        v1("UDP4 192.0.2.1 198.51.100.2 56324 9876"),
        v1("TCP5 192.0.2.1 198.51.100.2 56324 9876"),
        v1("TCP4"),
        v1("TCP4 192.0.2.1"),
        v1("TCP4 192.0.2.1 198.51.100.2 56324"),
        v1("TCP4 192.0.2.1 198.51.100.2 56324 9876 1"),
        v1("TCP4  192.0.2.1 198.51.100.2 56324 9876"),
        v1("TCP4 192.0.2 198.51.100.2 56324 9876"),
        v1("TCP4 192.0.2.256 198.51.100.2 56324 9876"),
        v1("TCP4 example.com 198.51.100.2 56324 9876"),
        v1("TCP4 3221225985 198.51.100.2 56324 9876"),
        v1("TCP6 2001:db8:::1 2001:db8::2 56324 9876"),
        v1("TCP4 192.0.2.1 198.51.100.2 port 9876"),
        v1("TCP4 192.0.2.1 198.51.100.2 -1 9876"),
        v1("TCP4 192.0.2.1 198.51.100.2 65536 9876"),
        v1("TCP4 192.0.2.1 198.51.100.2 1e3 9876"),
        v1("TCP4 \xff.0.2.1 198.51.100.2 56324 9876"),
        v1("TCP6 fe80::1%eth0 2001:db8::2 56324 9876"),
        v1("TCP6 ::1%\nbroker=forged 2001:db8::2 56324 9876"),
        v1("TCP6 ::1%\x1b[2J 2001:db8::2 56324 9876"),
    ],
)
def test_a_malformed_line_is_refused(line: bytes) -> None:
    with pytest.raises(FrameError, match="PROXY header"):
        read_proxy_header(line)


# ------------------------------------------------------------------------------------------------------ version 2


@pytest.mark.parametrize("command", [0x00, 0x01, 0x11, 0x10, 0x22, 0x2F, 0x31, 0xF1])
def test_an_unknown_version_or_command_is_refused_before_its_bytes_have_come(command: int) -> None:
    with pytest.raises(FrameError, match="unknown version or command"):
        read_proxy_header(v2(command=command)[:16])


@pytest.mark.parametrize(("family", "needed"), [(TCP4, 12), (TCP6, 36)])
def test_a_header_too_short_for_its_addresses_is_refused(family: int, needed: int) -> None:
    for length in range(needed):
        with pytest.raises(FrameError, match="too short"):
            read_proxy_header(v2(bytes(length), family=family))


def test_the_longest_header_is_read() -> None:
    header = v2(tlvs=tlv(0x04, bytes(65535 - 12 - 3)))
    assert len(header) == 16 + 65535
    assert read_proxy_header(header) == ProxiedPeer("192.0.2.1:56324", len(header))


@pytest.mark.parametrize("family", [UDP4, UDP6])
def test_a_header_for_datagrams_is_skipped_whole(family: int) -> None:
    header = v2(V4_ADDRESSES if family == UDP4 else V6_ADDRESSES, family=family)
    peer = read_proxy_header(header + FRAME)
    assert peer is not None
    assert peer.header_bytes == len(header)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("00000000000000000000000000000001", "[::1]:56324"),
        ("00000000000000000000ffffc0000201", "[::ffff:c000:201]:56324"),
        ("fe800000000000000000000000000001", "[fe80::1]:56324"),
    ],
)
def test_an_address_of_version_6_is_shown_in_brackets(address: str, shown: str) -> None:
    peer = read_proxy_header(v2(bytes.fromhex(address) + V6_ADDRESSES[16:], family=TCP6))
    assert peer is not None
    # Python 3.13 shows an address of version 4 inside one of version 6 with dots.
    assert peer.address in (shown, shown.replace("c000:201", "192.0.2.1"))


# ----------------------------------------------------------------------------------------------------- anything


@settings(deadline=None)
@given(start=st.sampled_from([b"PROXY", b"PROXY ", b"PROXY TCP4 ", V2_SIGNATURE, b""]), tail=st.binary(max_size=130))
def test_any_bytes_are_a_header_or_none_or_refused(start: bytes, tail: bytes) -> None:
    data = start + tail
    with suppress(FrameError):
        peer = read_proxy_header(data)
        assert peer is None or peer.address is None or peer.address.isprintable()
        assert peer is None or peer.header_bytes <= len(data)


@settings(deadline=None)
@given(
    words=st.lists(
        st.sampled_from(["TCP4", "TCP6", "UNKNOWN", "192.0.2.1", "::1", "80", "0", "65536", "", "x"]), max_size=7
    )
)
def test_a_line_split_anywhere_is_read_the_same(words: list[str]) -> None:
    line = v1(" ".join(words)) + FRAME[:5]
    outcomes = []
    for pieces in (range(1, len(line) + 1), [len(line)]):
        outcome: ProxiedPeer | str | None = None
        for length in pieces:
            try:
                outcome = read_proxy_header(line[:length])
            except FrameError:
                outcome = "refused"
            if outcome is not None:
                break
        outcomes.append(outcome)
    assert outcomes[0] == outcomes[1]
