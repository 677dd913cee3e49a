"""Encodes and decodes headers in both forms: JSON, and RocketMQ's binary form."""

import re
import struct
from struct import Struct
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from skyroute.wire import fastjson
from skyroute.wire.codes import LANGUAGES, OUR_VERSION
from skyroute.wire.command import FLAG_RESPONSE, FORM_BINARY, FORM_JSON, Request, Response
from skyroute.wire.errors import FrameError, HeaderError

_TWO_WORDS: Final = Struct(">II")
_BINARY_START: Final = Struct(">hBhiii")
_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_LANGUAGE_NUMBERS: Final = {name: number for number, name in enumerate(LANGUAGES)}
_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1

_NUMBER: Final = re.compile(r"\s*+[-+]?[0-9]{0,12}(\.0*)?\s*+", re.ASCII)
OURS: Final = "PYTHON"
"""The language in the headers of our requests. Tools show it to operators."""
HEADER_BYTES_MAX: Final = 0xFFFFFF
"""Maximum length of a header: it is sent in three bytes."""

_decode_strict_json: Final = msgspec.json.Decoder(Request).decode
_encode_json: Final = msgspec.json.Encoder().encode


def decode_command(frame: bytes) -> Request:
    """Decode a frame. A response is returned as a `Request` too: see `is_response` and `as_response`.

    Raises:
        FrameError: the lengths contradict each other, or the header cannot be decoded.
    """
    word: int
    _, word = _TWO_WORDS.unpack_from(frame)
    header_end = 8 + (word & 0xFFFFFF)
    if header_end > len(frame):
        raise FrameError(f"a frame of {len(frame)} bytes announces a header of {header_end - 8}")
    request = decode_request_header(word >> 24, frame[8:header_end])
    request.form = word >> 24
    request.body = frame[header_end:]
    return request


def decode_request_header(form: int, header: bytes) -> Request:
    """Decode a header of either form.

    Raises:
        HeaderError: the form is unknown, or the header is malformed.
    """
    if form == FORM_JSON:
        try:
            return _decode_strict_json(header)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # Java's parser accepts more than standard JSON of the expected types.
            return _decode_lenient_json(header)
    if form == FORM_BINARY:
        return _decode_binary(header)
    raise HeaderError(f"a header of form {form}; 0 (JSON) and 1 (binary) are known")


def as_response(request: Request, body: bytes | None = None) -> Response:
    """Return a received response; `body` replaces a body that was received apart from the header."""
    return Response(
        request.code, request.remark, request.fields, request.body if body is None else body, request.version
    )


def _decode_lenient_json(header: bytes) -> Request:
    try:
        members = fastjson.loads(header)
    except fastjson.JsonError as error:
        raise HeaderError(f"the header is not JSON: {error}") from None
    if not isinstance(members, dict):
        raise HeaderError("the header is not a JSON object")
    fields = members.get("extFields")
    if fields is None:
        fields = {}
    if not isinstance(fields, dict):
        raise HeaderError("extFields is not a JSON object")
    remark = members.get("remark")
    return Request(
        code=_lenient_int(members, "code"),
        fields={key: _as_text(value) for key, value in fields.items() if value is not None},
        flag=_lenient_int(members, "flag"),
        language=_lenient_language(members.get("language", "JAVA")),
        request_id=_lenient_int(members, "opaque"),
        remark=None if remark is None else _as_text(remark),
        version=_lenient_int(members, "version"),
    )


def _lenient_int(members: dict[str, Any], name: str) -> int:
    """Return a number as Java's parser reads it: also from text, with a zero fraction, or from null as 0."""
    value = members.get(name)
    if value is None:
        return 0
    try:
        if isinstance(value, bool):
            number = int(value)
        elif isinstance(value, str):
            if not _NUMBER.fullmatch(value):
                raise HeaderError(f"{name} is not a whole number")
            number = int(value.partition(".")[0] or 0)
        elif isinstance(value, int | float) and value == int(value):
            number = int(value)
        else:
            raise HeaderError(f"{name} is not a whole number")
    except (ValueError, OverflowError):
        raise HeaderError(f"{name} is not a whole number") from None
    if not _INT32_MIN <= number <= _INT32_MAX:
        raise HeaderError(f"{name} does not fit 32 bits")
    return number


def _lenient_language(value: object) -> str | None:
    if isinstance(value, str):
        name = value.upper()
        return name if name in _LANGUAGE_NUMBERS else None
    if value is None:
        return None
    if isinstance(value, int) and 0 <= value < len(LANGUAGES):
        return LANGUAGES[value]
    raise HeaderError("language is neither a name nor a known number")


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else _encode_json(value).decode()


def _decode_binary(header: bytes) -> Request:
    try:
        code, language, version, request_id, flag, remark_bytes = _BINARY_START.unpack_from(header)
        at = _BINARY_START.size
        remark, at = _take_text(header, at, remark_bytes)
        (fields_bytes,) = _INT32.unpack_from(header, at)
        at += 4
        end = at + fields_bytes
        if fields_bytes < 0 or end > len(header):
            raise HeaderError("the fields of a binary header run past its end")
        fields: dict[str, str] = {}
        while at < end:
            (key_bytes,) = _INT16.unpack_from(header, at)
            key, at = _take_text(header, at + 2, key_bytes)
            (value_bytes,) = _INT32.unpack_from(header, at)
            value, at = _take_text(header, at + 4, value_bytes)
            # Java writes an absent text as an empty one.
            if key and value:
                fields[key] = value
    except struct.error:
        raise HeaderError("a binary header is cut short") from None
    return Request(
        code=code,
        fields=fields,
        flag=flag,
        language=LANGUAGES[language] if language < len(LANGUAGES) else None,
        request_id=request_id,
        remark=remark or None,
        version=version,
    )


def _take_text(header: bytes, at: int, length: int) -> tuple[str, int]:
    end = at + length
    if length < 0 or end > len(header):
        raise HeaderError("a text of a binary header runs past its end")
    try:
        return header[at:end].decode(), end
    except UnicodeDecodeError:
        raise HeaderError("a text of a binary header is not UTF-8") from None


def response_head(response: Response, request_id: int, form: int) -> bytes:
    """Encode a response's frame except for the body."""
    if form == FORM_BINARY:
        header = _encode_binary(
            response.code, response.version, request_id, FLAG_RESPONSE, response.remark, response.fields
        )
    elif response.remark is None and response.fields is None:
        header = b'{"code":%d,"flag":1,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":%d}' % (
            response.code,
            request_id,
            response.version,
        )
    else:
        header = _encode_json_header(
            response.code, response.version, request_id, FLAG_RESPONSE, response.remark, response.fields
        )
    if len(header) > HEADER_BYTES_MAX:
        too_long = Response.error(
            f"the response's header has {len(header)} bytes (at most {HEADER_BYTES_MAX} are possible)"
        )
        return response_head(too_long, request_id, form)
    return _TWO_WORDS.pack(4 + len(header) + response.body_bytes, form << 24 | len(header)) + header


def encode_request(request: Request, request_id: int, language: str = OURS, flag: int | None = None) -> bytes:
    """Encode a request's whole frame; `flag` replaces its flag."""
    encode = _encode_binary if request.form == FORM_BINARY else _encode_json_header
    version = request.version or OUR_VERSION
    flag = request.flag if flag is None else flag
    header = encode(request.code, version, request_id, flag, request.remark, request.fields or None, language)
    body = request.body
    return _TWO_WORDS.pack(4 + len(header) + len(body), request.form << 24 | len(header)) + header + body


class _JsonHeader(msgspec.Struct, gc=False):
    """A JSON header: these members, in this order."""

    code: int
    fields: dict[str, str] | UnsetType = msgspec.field(name="extFields")
    flag: int
    language: str
    opaque: int
    remark: str | UnsetType
    form: str = msgspec.field(name="serializeTypeCurrentRPC")
    version: int


def _encode_json_header(
    code: int,
    version: int,
    request_id: int,
    flag: int,
    remark: str | None,
    fields: dict[str, str] | None,
    language: str = "JAVA",
) -> bytes:
    sent_remark = UNSET if remark is None else remark
    sent_fields = UNSET if fields is None else fields
    return _encode_json(_JsonHeader(code, sent_fields, flag, language, request_id, sent_remark, "JSON", version))


def _encode_binary(
    code: int,
    version: int,
    request_id: int,
    flag: int,
    remark: str | None,
    fields: dict[str, str] | None,
    language: str = "JAVA",
) -> bytes:
    remark_bytes = (remark or "").encode()
    entries = bytearray()
    for key, value in (fields or {}).items():
        if key and value:
            key_bytes, value_bytes = key.encode(), value.encode()
            entries += _INT16.pack(len(key_bytes)) + key_bytes + _INT32.pack(len(value_bytes)) + value_bytes
    # Java peers accept any language byte, and expect JAVA (0) of a server.
    start = _BINARY_START.pack(code, _LANGUAGE_NUMBERS[language], version, request_id, flag, len(remark_bytes))
    return start + remark_bytes + _INT32.pack(len(entries)) + bytes(entries)
