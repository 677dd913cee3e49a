"""Fast paths for the most frequent requests. Without them, the same bytes are sent at a higher cost.

- `PreparedRequest`: a request whose header is encoded except for the request id. The client's sends are.
- `PreparedResponse`: a response whose header is encoded already, whose body is in pieces, or which may be cached.
- `FastPath.decode` reads the header of a send straight into the type that its handler uses.
- `FastPath.find` finds the response to a route request by the bytes of the request.

Route requests of a client differ in two places only: the request id and the topic. A request is recognised by its
form, the bytes around these two, and its response is ready except for the request id.
While there are few different requests, each is recognised by all bytes around its id, which is faster still.
Only JSON headers without a body are recognised; all other requests take the ordinary path.
"""

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from types import MappingProxyType
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from skyroute.wire.codes import OUR_VERSION, RequestCode
from skyroute.wire.command import FLAG_RESPONSE, FORM_JSON, Request, Response
from skyroute.wire.fastjson import Dialect
from skyroute.wire.header import HEADER_BYTES_MAX, OURS, decode_command, response_head

# Requests and responses that are encoded in part


class PreparedRequest(msgspec.Struct, frozen=True, gc=False):
    """A request whose header is encoded, in JSON, except for the request id and the closing brace."""

    code: int
    header: bytes
    body: bytes

    def encode(self, request_id: int) -> bytes:
        """Return the whole frame."""
        header, body = b'%b,"opaque":%d}' % (self.header, request_id), self.body
        return _TWO_WORDS.pack(4 + len(header) + len(body), len(header)) + header + body


class PreparedResponse(Response, frozen=True, gc=False):
    """A response that is encoded in part, or that may be cached."""

    more: Sequence[memoryview] = ()
    """The rest of the body, after `body`. The pieces are written without copying them into one."""
    header: bytes = b""
    """The encoded header up to the request id, for requests with a JSON header only."""
    is_cacheable: bool = False
    """Whether equal requests get this response until `FastPath.forget`."""

    @property
    def body_bytes(self) -> int:
        return len(self.body) + sum(map(len, self.more)) if self.more else len(self.body)

    def pieces(self, request_id: int, form: int) -> Sequence[bytes | memoryview]:
        """Return the pieces of the frame."""
        body = self.body
        if not self.header:
            return response_head(self, request_id, form), body, *self.more
        header = b'%b,"opaque":%d}' % (self.header, request_id)
        if not self.more:  # the receipt of a send
            return (_TWO_WORDS.pack(4 + len(header) + len(body), len(header)) + header, body)
        return _TWO_WORDS.pack(4 + len(header) + self.body_bytes, len(header)) + header, body, *self.more


def response_pieces(response: Response, request_id: int, form: int) -> Sequence[bytes | memoryview]:
    """Return the pieces of a response's frame."""
    if isinstance(response, PreparedResponse):
        return response.pieces(request_id, form)
    return response_head(response, request_id, form), response.body


def with_code(response: Response, code: int) -> Response:
    """Return a successful response with another code."""
    if not isinstance(response, PreparedResponse):
        return replace(response, code=code)
    return replace(response, code=code, header=response.header.replace(b'"code":0', b'"code":%d' % code, 1))


def request_header_start(code: int, fields: dict[str, str]) -> bytes:
    """Return the JSON header of a request up to these fields. More fields, a brace and the request id may follow."""
    return _header_start(code, 0, OURS, fields)


def response_header_start(fields: dict[str, str]) -> bytes:
    """Return the JSON header of a successful response up to these fields, as for a request."""
    return _header_start(0, FLAG_RESPONSE, "JAVA", fields)


def _header_start(code: int, flag: int, language: str, fields: dict[str, str]) -> bytes:
    members = {"code": code, "flag": flag, "language": language, "serializeTypeCurrentRPC": "JSON"}
    return _encode_json(members | {"version": OUR_VERSION, "extFields": fields})[:-2]


# Requests that are decoded directly, or found by their bytes

HeaderDecoder = Callable[[bytes], Request | None]
"""Reads a JSON header; None means that it must be read in the ordinary way."""

FRAME_BYTES_MAX: Final = 1024
"""Maximum length of a request that is remembered."""

REQUESTS_MAX: Final = 1_000
"""Maximum number of requests remembered whole; with more, requests are recognised by their form."""

FORMS_MAX: Final = 4_096
"""Maximum number of forms: each client library has one per length of its requests."""

MANY_FORMS: Final = 500
OWN_FORM_REQUESTS_MAX: Final = 20_000
"""Number of forms that shows that requests are signed, one form each; this many are then remembered whole.

Without a source of routes no request is recognised by its form, and this many are remembered whole from the start.
"""

_DIGITS_MAX: Final = 9
"""Request ids of more digits may not fit 32 bits."""

_ZERO: Final = ord("0")
_ID_KEY: Final = b'"opaque":'
_TOPIC_KEY: Final = b'"topic":"'
_TWO_WORDS: Final = Struct(">II")
_START_BYTES: Final = len(b'{"code":310,')
_HEADER_AT: Final = _TWO_WORDS.size
_STRICT: Final = Dialect.STRICT
_encode_json: Final = msgspec.json.Encoder().encode
_decode_strict_json: Final = msgspec.json.Decoder(Request).decode
_HEADER_START, _, _HEADER_END = response_head(Response(), 7, FORM_JSON)[_TWO_WORDS.size :].partition(b"7")

_Form = tuple[bytes, bytes, bytes, bool]
_Pieces = tuple[bytes, bytes, bytes]
"""A response up to the request id, from there to the body, and the body."""


class EncodedRoute:
    """A response with only a body, encoded except for the request id."""

    __slots__ = ("body", "response", "starts")

    def __init__(self, response: PreparedResponse) -> None:
        self.response = response
        self.body = response.body
        header_bytes = len(_HEADER_START) + len(_HEADER_END)
        self.starts: tuple[bytes, ...] = tuple(
            _TWO_WORDS.pack(4 + header_bytes + digits + len(response.body), header_bytes + digits) + _HEADER_START
            for digits in range(_DIGITS_MAX + 1 if response.is_cacheable else 0)
        )
        """The bytes before the request id, by its number of digits; empty if the response is not cached."""


class PreparedRoute:
    """The route of one or more topics, in each dialect that was requested."""

    __slots__ = ("groups", "legacy", "strict")

    def __init__(self, groups: tuple[str, ...]) -> None:
        self.groups = groups
        """Names of the broker groups in it."""
        self.strict: EncodedRoute | None = None
        self.legacy: EncodedRoute | None = None


class Routes(Protocol):
    """A source of encoded routes."""

    @property
    def by_topic(self) -> Mapping[str, PreparedRoute]:
        """Routes of requested topics, always in the same object. No name has a backslash."""

    def find(self, topic: str, dialect: Dialect) -> EncodedRoute | None:
        """Return the response for a topic; None if it has no route."""

    def dialect_of(self, request: Request) -> Dialect:
        """Return the dialect that a route request wants."""


class FastPath:
    """A server's fast paths.

    Args:
        routes: The source of encoded routes, for a server that has any.
        decoders: Header decoders by request code. The codes have three digits.
    """

    __slots__ = ("_by_topic", "_decoders", "_forms", "_is_many", "_requests", "_routes", "found", "is_empty")

    def __init__(
        self, routes: Routes | None = None, decoders: Mapping[int, HeaderDecoder] = MappingProxyType({})
    ) -> None:
        self._decoders = {b'{"code":%d,' % code: decoder for code, decoder in decoders.items()}
        self._routes = routes
        self._by_topic: Mapping[str, PreparedRoute] = {} if routes is None else routes.by_topic
        self._requests: dict[tuple[bytes, bytes], _Pieces] = {}
        self._is_many = False
        """Whether there are too many requests to remember them whole."""
        self._forms: dict[_Form, Dialect] = {}
        self.is_empty = True
        """Whether no response is cached."""
        self.found = 0
        """Number of responses found."""

    def decode(self, frame: bytes) -> Request:
        """Decode a frame. A send has its fields in the type of its decoder.

        Raises:
            FrameError: the frame is malformed.
        """
        decoder = self._decoders.get(frame[_HEADER_AT : _HEADER_AT + _START_BYTES])
        if decoder is not None:
            word: int
            _, word = _TWO_WORDS.unpack_from(frame)
            header_end = _HEADER_AT + word  # for a JSON header, the word is its length
            if word <= HEADER_BYTES_MAX and header_end <= len(frame):
                request = decoder(frame[_HEADER_AT:header_end])
                if request is not None:
                    request.form = FORM_JSON
                    request.body = frame[header_end:]
                    return request
        return decode_command(frame)

    def find(self, frame: bytes) -> tuple[bytes, bytes, bytes, bytes] | None:
        """Return the cached response in four pieces: the second is the request id and the last the body."""
        if self.is_empty or len(frame) > FRAME_BYTES_MAX:
            return None
        before, _, rest = frame.partition(_ID_KEY)
        number, _, after = rest.partition(b",")
        if not number.isdigit() or number[0] == _ZERO:
            return None
        if self._requests:
            known = self._requests.get((before, after))
            if known is not None:
                self.found += 1
                # `before` includes the frame length, so the request id has as many digits as the remembered one.
                return known[0], number, known[1], known[2]
        return self._find_by_form(before, number, after)

    def _find_by_form(self, before: bytes, number: bytes, after: bytes) -> tuple[bytes, bytes, bytes, bytes] | None:
        start, found, rest = before.partition(_TOPIC_KEY)
        if found:
            topic, _, middle = rest.partition(b'"')
            dialect = self._forms.get((start, middle, after, True))
        else:
            middle, _, rest = after.partition(_TOPIC_KEY)
            topic, _, end = rest.partition(b'"')
            dialect = self._forms.get((before, middle, end, False))
        if dialect is None:
            return None
        try:
            name = topic.decode()
            route = self._by_topic.get(name)
            encoded = None if route is None else route.strict if dialect is _STRICT else route.legacy
            if encoded is None:
                encoded = self._look_up(name, dialect)
                if encoded is None:
                    return None
            start = encoded.starts[len(number)]
        except (UnicodeDecodeError, IndexError):
            return None  # the topic is not text, the response is not cached, or the request id has too many digits
        self.found += 1
        if not self._is_many:
            self._remember_request(before, after, (start, _HEADER_END, encoded.body))
        return start, number, _HEADER_END, encoded.body

    def _look_up(self, topic: str, dialect: Dialect) -> EncodedRoute | None:
        # With a backslash, these characters are an escaped form of the topic's name.
        return None if self._routes is None or "\\" in topic else self._routes.find(topic, dialect)

    def remember(self, frame: bytes, request: Request, response: Response) -> None:
        """Keep a response until `forget`, if its request can be recognised by its bytes alone."""
        # An id of 0 may be a missing one, and `opaque` may then be part of something else.
        if len(frame) > FRAME_BYTES_MAX or request.form != FORM_JSON or request.body or request.request_id == 0:
            return
        before, _, rest = frame.partition(_ID_KEY)
        number, _, after = rest.partition(b",")
        plain = frame.count(b"opaque") == 1 and b"\\" not in frame and number == b"%d" % request.request_id
        if not plain or len(number) > _DIGITS_MAX:
            return
        self.is_empty = False
        if not self._is_many:
            start, _, tail = response_head(response, request.request_id, FORM_JSON).rpartition(_ID_KEY)
            self._remember_request(before, after, (start + _ID_KEY, tail[len(number) :], response.body))
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and len(self._forms) < FORMS_MAX:
            self._remember_form(frame, before, after, request)

    def _remember_request(self, before: bytes, after: bytes, pieces: _Pieces) -> None:
        have_own_forms = self._routes is None or len(self._forms) >= MANY_FORMS
        if len(self._requests) < (OWN_FORM_REQUESTS_MAX if have_own_forms else REQUESTS_MAX):
            self._requests[before, after] = pieces
        elif not have_own_forms:
            self._is_many = True
            self._requests.clear()

    def _remember_form(self, frame: bytes, before: bytes, after: bytes, request: Request) -> None:
        topic, form = _cut_topic_out(before, after)
        try:
            # Java's parser also accepts unquoted keys; a second topic is recognised only with quotes.
            is_standard = _decode_strict_json(frame[_TWO_WORDS.size :]).fields.get("topic") == topic.decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        if is_standard and self._routes is not None and frame.count(b'"topic"') == 1:
            self._forms[form] = self._routes.dialect_of(request)

    def forget(self) -> None:
        """Drop all responses, since one may have changed."""
        self._requests.clear()
        self._forms.clear()
        self._is_many = False
        self.is_empty = True


def _cut_topic_out(before: bytes, after: bytes) -> tuple[bytes, _Form]:
    """Return the topic and the form of a request: the bytes around topic and id, and which of the two is first."""
    start, found, rest = before.partition(_TOPIC_KEY)
    if found:
        topic, _, middle = rest.partition(b'"')
        return topic, (start, middle, after, True)
    middle, _, rest = after.partition(_TOPIC_KEY)
    topic, _, end = rest.partition(b'"')
    return topic, (before, middle, end, False)
