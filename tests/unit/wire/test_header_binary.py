import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyroute.wire.codes import LANGUAGES
from skyroute.wire.command import FORM_BINARY, Request
from skyroute.wire.errors import FrameError, HeaderError
from skyroute.wire.header import decode_command, decode_request_header
from tests.unit.wire.by_hand import BINARY, binary_header, frame, long_text, short_text

REMARK_LENGTH_AT = 13
FIELDS_LENGTH_AT = 17


def read(header: bytes) -> Request:
    return decode_request_header(FORM_BINARY, header)


def with_int32(header: bytes, at: int, number: int) -> bytes:
    return header[:at] + struct.pack(">i", number) + header[at + 4 :]


def test_every_field_is_read() -> None:
    header = binary_header(
        105, language=9, version=317, request_id=-7, flag=2, remark="中", fields={"topic": "主题", "a": "b"}
    )
    assert read(header) == Request(105, {"topic": "主题", "a": "b"}, 2, "GO", -7, "中", 317)


def test_the_fixed_part_is_21_bytes() -> None:
    header = binary_header(105)
    assert len(header) == 21
    assert read(header) == Request(105)


@pytest.mark.parametrize("code", [-(1 << 15), -1, 0, (1 << 15) - 1])
def test_code_and_version_are_signed_16_bits(code: int) -> None:
    request = read(binary_header(code, version=code))
    assert (request.code, request.version) == (code, code)


@pytest.mark.parametrize("number", [-(1 << 31), -1, 0, (1 << 31) - 1])
def test_request_id_and_flag_are_signed_32_bits(number: int) -> None:
    request = read(binary_header(request_id=number, flag=number))
    assert (request.request_id, request.flag) == (number, number)


@pytest.mark.parametrize(("number", "name"), list(enumerate(LANGUAGES)))
def test_a_language_is_known_by_its_number(number: int, name: str) -> None:
    assert read(binary_header(language=number)).language == name


@pytest.mark.parametrize("number", [len(LANGUAGES), 100, 255])
def test_an_unknown_language_is_none(number: int) -> None:
    assert read(binary_header(language=number)).language is None


def test_a_remark_of_no_bytes_is_none() -> None:
    assert read(binary_header(remark="")).remark is None


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"a": ""}, {}),
        ({"": "b"}, {}),
        ({"": ""}, {}),
        ({"a": "", "b": "c", "": "d"}, {"b": "c"}),
    ],
)
def test_a_key_or_value_of_no_bytes_is_absent(fields: dict[str, str], kept: dict[str, str]) -> None:
    assert read(binary_header(fields=fields)).fields == kept


def test_a_repeated_key_has_its_last_value() -> None:
    entries = short_text("a") + long_text("1") + short_text("a") + long_text("2")
    header = binary_header()[:FIELDS_LENGTH_AT] + struct.pack(">i", len(entries)) + entries
    assert read(header).fields == {"a": "2"}


def test_bytes_behind_the_last_field_are_ignored() -> None:
    header = binary_header(105, fields={"a": "b"}, trailer=b"\xff" * 9)
    assert read(header).fields == {"a": "b"}
    assert decode_command(frame(header, b"body", BINARY)).body == b"body"


@pytest.mark.parametrize("length", [-1, -(1 << 31), 5, 1000, (1 << 31) - 1])
def test_a_remark_of_impossible_length_is_refused(length: int) -> None:
    with pytest.raises(HeaderError):
        read(with_int32(binary_header(105), REMARK_LENGTH_AT, length))


@pytest.mark.parametrize("length", [-1, -(1 << 31), 1, 1000, (1 << 31) - 1])
def test_fields_of_impossible_length_are_refused(length: int) -> None:
    with pytest.raises(HeaderError):
        read(with_int32(binary_header(105), FIELDS_LENGTH_AT, length))


@pytest.mark.parametrize("key_bytes", [-1, -(1 << 15), 100, (1 << 15) - 1])
def test_a_key_of_impossible_length_is_refused(key_bytes: int) -> None:
    header = bytearray(binary_header(fields={"a": "b"}))
    header[21:23] = struct.pack(">h", key_bytes)
    with pytest.raises(HeaderError):
        read(bytes(header))


@pytest.mark.parametrize("value_bytes", [-1, -(1 << 31), 2, (1 << 31) - 1])
def test_a_value_of_impossible_length_is_refused(value_bytes: int) -> None:
    with pytest.raises(HeaderError):
        read(with_int32(binary_header(fields={"a": "b"}), 24, value_bytes))


def test_every_truncation_is_refused() -> None:
    header = binary_header(105, remark="no", fields={"topic": "TopicTest", "a": "b"})
    for length in range(len(header)):
        with pytest.raises(HeaderError):
            read(header[:length])


@pytest.mark.parametrize("part", ["remark", "key", "value"])
def test_text_that_is_not_utf_8_is_refused(part: str) -> None:
    header = binary_header(105, remark="remark", fields={"key": "value"})
    with pytest.raises(HeaderError, match="UTF-8"):
        read(header.replace(part.encode(), b"\xff" * len(part)))


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_are_a_header_or_refused(data: bytes) -> None:
    with suppress(FrameError):
        assert decode_command(frame(data, form=BINARY)).form == BINARY


@settings(deadline=None)
@given(at=st.integers(0, 60), replacement=st.binary(min_size=1, max_size=6))
def test_a_damaged_header_is_a_header_or_refused(at: int, replacement: bytes) -> None:
    header = binary_header(105, remark="中", fields={"topic": "TopicTest", "a": "b"})
    damaged = header[:at] + replacement + header[at + len(replacement) :]
    with suppress(HeaderError):
        assert isinstance(read(damaged), Request)
