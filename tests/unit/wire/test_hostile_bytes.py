"""Decoders raise only their own errors, for any bytes, and in linear time."""

from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skyroute.remoting.stepwise import run_through
from skyroute.wire.calls.kv import decode_kv_key
from skyroute.wire.calls.registration import (
    decode_broker_key,
    decode_data_version,
    decode_registration,
    decode_unregistration,
)
from skyroute.wire.calls.registration_body import body_fingerprint, decode_topic_table
from skyroute.wire.calls.route import decode_route, decode_route_query, decode_topic_registration
from skyroute.wire.command import FORM_JSON, Request
from skyroute.wire.errors import FrameError, WireError
from skyroute.wire.fastjson import JsonError, loads
from skyroute.wire.frame import FrameDecoder
from skyroute.wire.header import decode_command
from tests.support.hang_guard import hang_guard
from tests.unit.wire.by_hand import frame
from tests.unit.wire.golden import golden_bytes

CAPTURED = [
    golden_bytes(f"apache-{release}/register-{form}{compressed}.hex")
    for release in ("4.9.7", "5.5.0")
    for form in ("json", "binary")
    for compressed in ("", "-compressed")
]
SPLICES = st.sampled_from(
    [b'"', b"'", b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\\u", b"\\ud83d", b"null", b"1e9", b"-", b"\0", b"\xff"]
) | st.binary(max_size=6)


def read_everything(stream: bytes) -> int:
    """Decode a stream as a name server may; return the number of frames."""
    frames = FrameDecoder(1 << 20, {103: 1 << 21}).feed(stream)
    for taken in frames:
        read_command(decode_command(taken))
    return len(frames)


def read_command(request: Request) -> None:
    """Decode a request as a name server may. Errors other than `WireError` fail the test."""
    for decode in (
        decode_registration,
        lambda request: run_through(decode_topic_table(request)),
        lambda request: run_through(body_fingerprint(request)),
        decode_unregistration,
        decode_broker_key,
        decode_kv_key,
        decode_route_query,
        decode_topic_registration,
    ):
        with suppress(WireError):
            decode(request)
    for decode_body in (decode_data_version, decode_route):
        with suppress(WireError):
            decode_body(request.body)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=5))
@example([b"\0\0\0\x04\0\0\0\0"])
@example([b'\0\0\0\x12\0\0\0\x0e{"remark":"\xff"}'])
def test_any_bytes_are_frames_and_commands_or_refused(segments: list[bytes]) -> None:
    decoder = FrameDecoder()
    with suppress(FrameError):
        for segment in segments:
            for taken in decoder.feed(segment):
                assert decode_command(taken).fields is not None


@settings(deadline=None)
@given(header=st.binary(max_size=60), body=st.binary(max_size=10), form=st.integers(0, 3))
@example(header=b'{"remark":"\xff"}', body=b"", form=FORM_JSON)
@example(header=b'{"extFields":{"\xff":"\xff"}}', body=b"", form=FORM_JSON)
@example(header=b"{'remark':'\xff'}", body=b"", form=FORM_JSON)
def test_any_bytes_in_a_frame_are_a_command_or_refused(header: bytes, body: bytes, form: int) -> None:
    with suppress(FrameError):
        assert read_everything(frame(header, body, form)) == 1


@settings(deadline=None)
@given(content=st.binary(max_size=20))
@example(content=b"")
def test_any_bytes_behind_any_length_are_a_command_or_refused(content: bytes) -> None:
    with suppress(FrameError):
        assert isinstance(decode_command(content.ljust(8, b"\0")), Request)


@settings(deadline=None, max_examples=200)
@given(
    captured=st.sampled_from(CAPTURED),
    splices=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 4), SPLICES), min_size=1, max_size=4),
)
def test_a_damaged_frame_of_apache_is_read_or_refused(captured: bytes, splices: list[tuple[float, int, bytes]]) -> None:
    header_bytes = int.from_bytes(captured[5:8])
    header, body = captured[8 : 8 + header_bytes], captured[8 + header_bytes :]
    for where, removed, inserted in splices:
        at = int(where * len(header))
        header = header[:at] + inserted + header[at + removed :]
        at = int(where * len(body))
        body = body[:at] + inserted + body[at + removed :]
    for damaged in (frame(header, body, captured[4]), frame(captured[8 : 8 + header_bytes], body, captured[4])):
        with suppress(FrameError):
            assert read_everything(damaged) == 1


@settings(deadline=None)
@given(
    body=st.binary(max_size=80),
    version=st.sampled_from([36, 409, 479]),
    fields=st.dictionaries(st.sampled_from(["compressed", "bodyCrc32"]), st.sampled_from(["true", "0", "1", "x"])),
)
@example(body=b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"\xff":{}}}}', version=479, fields={})
@example(body=b'{"topicConfigTable":{"\xff":{}}}', version=36, fields={})
def test_any_bytes_are_a_body_or_refused(body: bytes, version: int, fields: dict[str, str]) -> None:
    request = Request(code=103, fields=fields, version=version, body=body)
    read_command(request)
    assert request.body == body


@settings(deadline=None)
@given(st.binary(max_size=60))
@example(b'"\xff"')
@example(b"{'\xff':0}")
@example(b'{"a":"\xed\xa0\x80"}')
def test_any_bytes_are_json_or_refused(data: bytes) -> None:
    with suppress(JsonError):
        assert not isinstance(loads(data), bytes)


HOSTILE = {
    "escaped quotes without an end": b'"' + b'\\"' * 100_000,
    "escaped apostrophes without an end": b"'" + b"\\'" * 100_000,
    "escaped quotes in a header": b'{"remark":"' + b'\\"' * 100_000,
    "quotes and backslashes": b'"\\' * 100_000,
    "apostrophes and backslashes": b"'\\" * 100_000,
    "a long text in single quotes": b"{a:'" + b"x" * 200_000 + b"'}",
    "a long text of escapes": b"{a:'" + b"\\n" * 100_000 + b"'}",
    "open braces": b"{" * 200_000,
    "open lists in members": b"{a:[" * 50_000,
    "commas": b"[" + b"," * 200_000 + b"]",
    "blanks before a colon": b"{a" + b" " * 200_000 + b":1}",
    "colons": b"{" + b"a:" * 100_000 + b"}",
    "digits": b"{code:" + b"9" * 200_000 + b"}",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_json_in_header_or_body_takes_linear_time(data: bytes) -> None:
    with hang_guard():
        with suppress(FrameError):
            assert read_everything(frame(data)) == 1
        read_command(Request(code=103, fields={"topic": "T"}, version=479, body=data))
