"""Forms of the console: fields are those that Python's own parser finds, and wrong values are refused with a text.

Input: the body of a form.
"""

from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from skyroute.console.cluster_data.message_listing import parse_position
from skyroute.console.cluster_data.settings_table import read_change
from skyroute.console.errors import ConsoleError
from skyroute.console.guard.forwarded import client_address, client_key
from skyroute.console.guard.same_origin import foreign_origin
from skyroute.console.web import forms
from skyroute.console.web.forms import FIELDS_MAX, FORM_TYPE, in_field, read_fields, read_int, read_time_ms
from skyroute.settings.networks import parse_networks

NOW_S: Final = 1_700_000_000.0
TRUSTED: Final = parse_networks("10.0.0.0/8, fd00::/8")
HEADERS: Final = (b"origin", b"host", b"sec-fetch-site")


def request_of(body: bytes, fields: dict[str, str]) -> Request:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"content-type", FORM_TYPE.encode())]
    headers += [
        (name, fields[name.decode()].encode("latin-1", "replace")) for name in HEADERS if name.decode() in fields
    ]
    return Request({"type": "http", "method": "POST", "headers": headers, "scheme": "http", "path": "/"}, receive)


def finish(work: Coroutine[Any, Any, dict[str, str]]) -> dict[str, str]:
    """Run a coroutine that waits for nothing: an event loop for each input takes most of the time."""
    try:
        work.send(None)
    except StopIteration as end:
        fields: dict[str, str] = end.value
        return fields
    raise AssertionError("a small form is read at once")


def check(data: bytes) -> None:
    try:
        fields = finish(read_fields(request_of(data, {})))
    except HTTPException:
        assert data.count(b"&") >= FIELDS_MAX
        return
    # urllib decodes text; ours decodes bytes, which is the same once both replace what is not UTF-8.
    expected = parse_qsl(data.decode("latin-1"), keep_blank_values=True, encoding="latin-1", separator="&")
    assert fields == {
        name.encode("latin-1").decode("utf-8", "replace"): value.encode("latin-1").decode("utf-8", "replace")
        for name, value in expected
    }
    check_steps(data, fields)
    check_values(fields)
    foreign_origin(request_of(b"", fields))
    hops = fields.get("hops", "").split(",")
    client_key(client_address("10.0.0.1", hops, TRUSTED))


def check_steps(data: bytes, fields: dict[str, str]) -> None:
    """Values are decoded in steps; small steps give the same."""
    usual = forms.DECODED_AT_ONCE
    forms.DECODED_AT_ONCE = 4  # type: ignore[misc]
    try:
        assert forms._fields_of(data) == fields
    finally:
        forms.DECODED_AT_ONCE = usual  # type: ignore[misc]


def check_values(fields: dict[str, str]) -> None:
    for name in list(fields)[:4]:
        with suppress(ConsoleError):
            assert -5 <= read_int(fields, name, "Label", -5, 1 << 40) <= 1 << 40
        with suppress(ConsoleError):
            assert in_field(read_time_ms(fields, name, "Label", NOW_S)) is not None
        with suppress(ConsoleError):
            position = parse_position(fields[name])
            assert parse_position(str(position)) == position
    with suppress(ConsoleError):
        read_change(fields)
