"""Limits for forms: their size alone and together, their fields and their type."""

from http import HTTPStatus
from urllib.parse import parse_qsl, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from skyroute.console.guard import request_guard
from skyroute.console.guard.request_guard import FormLimit
from skyroute.console.web import forms
from skyroute.console.web.forms import QUICK_BYTES, read_fields


def scope(path: str = "/topics/send", **headers: str) -> Scope:
    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": "POST", "path": path, "headers": sent}


def receive_of(body: bytes) -> Receive:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def send(_message: Message) -> None:
    pass


async def test_large_forms_have_a_common_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_guard, "FORMS_BYTES_MAX", 100)
    monkeypatch.setattr(request_guard, "PUBLIC_FORM_BYTES_MAX", 10)
    held: list[FormLimit] = []

    async def nest(_scope: Scope, receive: Receive, send: Send) -> None:
        """Hold a form of 60 bytes, and read the next one meanwhile."""
        await receive()
        await held[0](scope(), receive_of(b"x" * 60), send)

    held.append(FormLimit(nest))
    for _ in range(2):  # the bytes of a finished form are released
        with pytest.raises(HTTPException, match="other forms use the 100 bytes"):
            await held[0](scope(), receive_of(b"x" * 60), send)


@pytest.mark.parametrize("size", [10, QUICK_BYTES + 1])
async def test_fields_are_decoded_as_browsers_encode_them(size: int) -> None:
    body = b"body=" + b"%E4%B8%AD+" * size + b"&blank=&twice=1&twice=2"
    fields = await read_fields(Request(scope(), receive_of(body)))
    assert fields == {"body": "中 " * size, "blank": "", "twice": "2"}


@given(st.text(alphabet="a=&+%41é中", max_size=60), st.integers(3, 8))
def test_decoding_in_steps_of_any_size_returns_the_same_fields(text: str, step: int) -> None:
    body = quote_plus(text, safe="=&+%").encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forms, "DECODED_AT_ONCE", step)
        assert forms._fields_of(body) == dict(parse_qsl(body.decode(), keep_blank_values=True))


@pytest.mark.parametrize("content_type", ["multipart/form-data; boundary=x", "text/plain", "application/json"])
async def test_forms_of_other_types_are_refused_unread(content_type: str) -> None:
    async def receive() -> Message:
        pytest.fail("it was read")

    with pytest.raises(HTTPException) as refused:
        await read_fields(Request(scope(content_type=content_type), receive))
    assert refused.value.status_code == HTTPStatus.UNSUPPORTED_MEDIA_TYPE
