"""JSON headers: strict and lenient decoding agree, and a decoded header survives encoding in both forms.

Input: the header.
"""

import msgspec

from skyroute.wire.command import FORM_BINARY, FORM_JSON, Request
from skyroute.wire.errors import HeaderError
from skyroute.wire.header import _decode_lenient_json, decode_command, decode_request_header, encode_request


def meaning(request: Request) -> tuple[object, ...]:
    """Return what handlers read of a request."""
    return request.code, request.fields, request.flag, request.remark, request.request_id, request.version


def is_text(data: bytes) -> bool:
    """Strict decoding skips unknown members, whose names may be any bytes; lenient decoding wants UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def check(data: bytes) -> None:
    try:
        request = decode_request_header(FORM_JSON, data)
    except HeaderError:
        return
    try:
        strict = msgspec.json.decode(data, type=Request)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # decoded leniently in the first place
    else:
        if is_text(data):
            assert meaning(_decode_lenient_json(data)) == meaning(strict)
    if request.version == 0:
        return  # encoded as our own version
    again = decode_command(encode_request(request, request.request_id))
    assert meaning(again) == meaning(request)
    if -(1 << 15) <= request.code < 1 << 15 and -(1 << 15) <= request.version < 1 << 15:
        check_binary(request)


def check_binary(request: Request) -> None:
    """The binary form drops empty texts, as Java does, and has two bytes for the length of a name."""
    if any(len(name.encode()) >= 1 << 15 for name in request.fields):
        return
    request.form = FORM_BINARY
    again = decode_command(encode_request(request, request.request_id))
    request.fields = {name: value for name, value in request.fields.items() if name and value}
    request.remark = request.remark or None
    assert meaning(again) == meaning(request)
