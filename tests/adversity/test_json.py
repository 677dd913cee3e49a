"""JSON that costs a parser time, stack or memory."""

import struct
import zlib

import pytest

from tests.adversity.faults import TIMEOUT_S, broker, check_survives, replies, send_and_half_close
from tests.support.codes import (
    GET_ROUTE,
    NO_TOPIC,
    QUERY_VERSION,
    REGISTER,
    REGISTER_TOPIC,
    SUCCESS,
    SYSTEM_ERROR,
    UNREGISTER,
)
from tests.support.process import ServerProcess
from tests.support.raw import RawConnection, frame

CPU_S_MAX = 4.0
"""Processor time for one text of the sizes below. A reader that goes back over what it read takes minutes."""


def text_of(shape: str, size: int) -> bytes:
    """A text of about `size` bytes."""
    before, unit, after = SHAPES[shape]
    return before + unit * ((size - len(before) - len(after)) // len(unit)) + after


SHAPES = {
    "opening brackets": (b"", b"[", b""),
    "opening braces": (b"", b'{"a":', b""),
    "opening lenient braces": (b"", b"{a:", b""),
    "commas": (b"", b",", b""),
    "commas in a list": (b"[", b",", b"]"),
    "double quotes": (b"", b'"', b""),
    "single quotes": (b"", b"'", b""),
    "both quotes": (b"", b"\"'", b""),
    "a double quote that stays open": (b'{"a":"', b"x", b""),
    "a single quote that stays open": (b"{'a':'", b"x", b""),
    "backslashes": (b"", b"\\", b""),
    "backslashes in a double quote": (b'{"a":"', b"\\", b""),
    "backslashes in a single quote": (b"{'a':'", b"\\", b""),
    "escapes in a single quote": (b"{'a':'", b"\\'", b"'}"),
    "many open single quotes": (b"{", b"'a':'\\'", b""),
    "colons": (b"", b":", b""),
    "keys": (b"", b"a:", b""),
    "keys in an object": (b"{", b"a:", b"}"),
    "lenient members": (b"{", b"a:1,", b"}"),
    "numbered members": (b"{", b"1:'',", b"}"),
    "blanks": (b"{", b" ", b"}x"),
    "blanks before no colon": (b"{a", b" \t\r\n", b"}"),
    "one long word": (b"{", b"a", b"}"),
    "one long number": (b'{"counter":', b"9", b"}x"),
    "garbage": (b"", b"\x01\x7f/*", b""),
    "letters beyond ASCII": ("{ключ:'".encode(), "ж".encode(), b"'}"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_hostile_header_gets_a_response_or_closes_the_connection(server: ServerProcess, shape: str) -> None:
    field = b'{"code":105,"opaque":1,"version":479,"extFields":{"topic":"T","more":%s}}'
    cpu_s = server.cpu_s
    with check_survives(server, lines_max=3):
        for header in (text_of(shape, 65_000), text_of(shape, 1_000_000), field % text_of(shape, 65_000)):
            assert len(replies(send_and_half_close(server.address, frame(header)))) <= 1
    assert server.cpu_s - cpu_s < CPU_S_MAX


@pytest.mark.parametrize("shape", SHAPES)
def test_a_hostile_body_is_answered_soon(server: ServerProcess, shape: str) -> None:
    fields = {**broker().request.fields, "bodyCrc32": "0", "topic": "T"}
    cpu_s = server.cpu_s
    with check_survives(server, lines_max=4), RawConnection(server.address, timeout_s=TIMEOUT_S) as line:
        for code, size in ((REGISTER, 150_000), (REGISTER_TOPIC, 50_000), (QUERY_VERSION, 50_000)):
            # To the last two an object of unknown members says nothing, which is no mistake.
            assert line.call(code, fields, text_of(shape, size)).code in (SUCCESS, SYSTEM_ERROR)
        assert line.call(GET_ROUTE, {"topic": "T"}).code == NO_TOPIC
    assert server.cpu_s - cpu_s < CPU_S_MAX


DEPTHS = [100, 300, *range(900, 1100, 9), 10_000, 100_000]
"""Around the limits that Python and its libraries set themselves, and far beyond all of them."""


def nested(depth: int) -> list[bytes]:
    """Lists, objects, objects as Java may write them, and lists that never end."""
    pairs = ((b"[", b"]"), (b'{"a":', b"}"), (b"{a:", b"}"), (b"[", b""))
    return [opening * depth + b"1" + closing * depth for opening, closing in pairs]


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":105,"opaque":1,"extFields":{"topic":"T","more":%s}}',
        b'{"code":105,"opaque":1,"extFields":{"topic":"T"},"more":%s}',
        b"{code:105,opaque:1,extFields:{topic:'T',more:%s}}",
        b'{"code":%s,"opaque":1}',
        b'{"code":105,"opaque":1,"extFields":{"topic":"T"},"remark":%s}',
        b"%s",
    ],
)
def test_a_deeply_nested_header_gets_a_response_or_closes_the_connection(server: ServerProcess, header: bytes) -> None:
    with check_survives(server, lines_max=4 * len(DEPTHS)):
        for depth in DEPTHS:
            for value in nested(depth):
                assert len(replies(send_and_half_close(server.address, frame(header % value)))) <= 1


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (REGISTER, b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"A":{"attributes":%s},"B":{}}}}'),
        (REGISTER_TOPIC, b'{"queueDatas":[{"brokerName":"b","perm":6,"more":%s}]}'),
        (QUERY_VERSION, b'{"counter":1,"more":%s}'),
        (REGISTER, b"%s"),
    ],
)
def test_a_body_nested_to_any_depth_is_answered(server: ServerProcess, code: int, body: bytes) -> None:
    fields = {**broker().request.fields, "bodyCrc32": "0", "topic": "T"}
    with check_survives(server, lines_max=5 * len(DEPTHS)), RawConnection(server.address, timeout_s=TIMEOUT_S) as line:
        for depth in DEPTHS:
            for value in nested(depth):
                assert line.call(code, fields, body % value).code in (SUCCESS, SYSTEM_ERROR)
        assert line.call(UNREGISTER, broker().identity).code == SUCCESS


def test_a_deflated_body_nested_to_any_depth_is_answered(server: ServerProcess) -> None:
    fields = {**broker().request.fields, "bodyCrc32": "0", "compressed": "true"}
    with check_survives(server, lines_max=15 * len(DEPTHS)), RawConnection(server.address, timeout_s=TIMEOUT_S) as line:
        for depth in DEPTHS:
            for value in nested(depth):
                static = b'{"bname":"broker-a","topic":"T","more":%s}' % value
                pieces = (b'{"counter":1}', b"[]", static), (value, b"[]", static), (b"{}", value, b'{"bname":"b"}')
                for version, servers, mapping in pieces:
                    stream = counted(version) + bytes(4) + counted(servers) + struct.pack(">i", 1) + counted(mapping)
                    assert line.call(REGISTER, fields, zlib.compress(stream)).code in (SUCCESS, SYSTEM_ERROR)
        assert line.call(UNREGISTER, broker().identity).code == SUCCESS


def counted(piece: bytes) -> bytes:
    return struct.pack(">i", len(piece)) + piece
