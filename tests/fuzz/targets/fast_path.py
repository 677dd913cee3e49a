"""Fast paths: a send, and the response to a route request, are those of the ordinary path.

Input: frames in text form, one per line: headers of JSON. The first ones are remembered, the last one is looked up.
"""

from collections.abc import Mapping
from typing import Final

from skyroute.wire.calls.route import decode_route_query
from skyroute.wire.calls.send import SendRequest, decode_send, read_send_header
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import FORM_JSON, Request
from skyroute.wire.errors import FieldError, FrameError, WireError
from skyroute.wire.fast_path import EncodedRoute, FastPath, PreparedResponse, PreparedRoute
from skyroute.wire.fastjson import Dialect
from skyroute.wire.header import decode_command, response_head
from tests.fuzz.targets.header_json import is_text

TOPICS: Final = ("T", "Other", "a b")


class Routes:
    """Routes of a few topics, one body for each topic and dialect."""

    def __init__(self) -> None:
        self.table: dict[str, PreparedRoute] = {}

    @property
    def by_topic(self) -> Mapping[str, PreparedRoute]:
        return self.table

    def find(self, topic: str, dialect: Dialect) -> EncodedRoute | None:
        if topic not in TOPICS:
            return None
        route = self.table.setdefault(topic, PreparedRoute(("b",)))
        encoded = EncodedRoute(PreparedResponse(body=f"{topic} {dialect.value}".encode(), is_cacheable=True))
        if dialect is Dialect.STRICT:
            route.strict = encoded
        else:
            route.legacy = encoded
        return encoded

    def dialect_of(self, request: Request) -> Dialect:
        return decode_route_query(request).dialect


def framed(header: bytes) -> bytes:
    return (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


def check(data: bytes) -> None:
    routes = Routes()
    fast_path = FastPath(routes, {RequestCode.SEND_MESSAGE_V2: read_send_header})
    for header in data.split(b"\n")[:8]:
        frame = framed(header)
        check_send(fast_path, frame)
        expected = answer(routes, frame)
        found = fast_path.find(frame)
        if found is not None:
            assert expected is not None, frame
            request, encoded = expected
            head = response_head(encoded.response, request.request_id, FORM_JSON)
            assert b"".join(found) == head + encoded.body, frame
        if expected is not None:
            fast_path.remember(frame, expected[0], expected[1].response)


def answer(routes: Routes, frame: bytes) -> tuple[Request, EncodedRoute] | None:
    """Return request and response of the ordinary path, if the response may be remembered."""
    try:
        request = decode_command(frame)
        if request.code != RequestCode.GET_ROUTEINFO_BY_TOPIC or request.is_response:
            return None
        topic = decode_route_query(request).topic
        encoded = routes.find(topic, routes.dialect_of(request))
    except WireError:
        return None
    return None if encoded is None else (request, encoded)


def check_send(fast_path: FastPath, frame: bytes) -> None:
    try:
        fast = fast_path.decode(frame)
    except FrameError:
        return
    if isinstance(fast, SendRequest) and is_text(frame[8:]):
        ordinary = decode_command(frame)
        assert (ordinary.code, ordinary.flag, ordinary.request_id) == (fast.code, fast.flag, fast.request_id)
        try:
            expected = decode_send(ordinary)
        except FieldError as error:
            raise AssertionError(f"the ordinary path refuses what the fast path reads: {error}") from error
        assert decode_send(fast) == expected
