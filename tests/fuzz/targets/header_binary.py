"""Binary headers: a decoded header survives encoding in both forms.

Input: the header.
"""

from skyroute.wire.command import FORM_BINARY, FORM_JSON
from skyroute.wire.errors import HeaderError
from skyroute.wire.header import decode_command, decode_request_header, encode_request
from tests.fuzz.targets.header_json import meaning


def check(data: bytes) -> None:
    try:
        request = decode_request_header(FORM_BINARY, data)
    except HeaderError:
        return
    if request.version == 0:
        return  # encoded as our own version
    for form in (FORM_BINARY, FORM_JSON):
        request.form = form
        assert meaning(decode_command(encode_request(request, request.request_id))) == meaning(request)
