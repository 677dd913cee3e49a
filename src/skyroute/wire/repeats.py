"""Finds the responses to route requests by the bytes of the request.

Route requests of a client differ in two places only: the request id and the topic. A request is recognised by its
form, the bytes around these two, and its response is ready except for the request id.
While there are few different requests, each is recognised by all bytes around its id, which is faster still.
Only JSON headers without a body are recognised; all other requests take the ordinary path.
"""

from collections.abc import Mapping
from struct import Struct
from typing import Final, Protocol

import msgspec

from skyroute.wire.calls.route import decode_route_query
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import FORM_JSON, Request, Response
from skyroute.wire.fastjson import Dialect
from skyroute.wire.header import response_head

FRAME_BYTES_MAX: Final = 1024
"""A question worth remembering is short."""

QUESTIONS_MAX: Final = 1_000
"""Maximum number of requests remembered whole; with more, requests are recognised by their form."""

FORMS_MAX: Final = 4_096
"""Maximum number of forms: each client library has one per length of its requests."""

MANY_FORMS: Final = 500
OWN_FORM_QUESTIONS_MAX: Final = 20_000
"""Number of forms that shows that requests are signed, one form each; this many are then remembered whole."""

_DIGITS_MAX: Final = 9
"""Numbers of more digits may not fit 32 bits."""

_ZERO: Final = ord("0")
_NUMBER_KEY: Final = b'"opaque":'
_TOPIC_KEY: Final = b'"topic":"'
_TWO_WORDS: Final = Struct(">II")
_STRICT: Final = Dialect.STRICT
_decode_strict_json: Final = msgspec.json.Decoder(Request).decode
_HEADER_START, _, _HEADER_END = response_head(Response(), 7, FORM_JSON)[_TWO_WORDS.size :].partition(b"7")

_Form = tuple[bytes, bytes, bytes, bool]
_Pieces = tuple[bytes, bytes, bytes]
"""A response up to the request id, from there to the body, and the body."""


class PreparedAnswer:
    """A response with only a body, encoded except for the request id."""

    __slots__ = ("body", "response", "starts")

    def __init__(self, response: Response) -> None:
        self.response = response
        self.body = response.body
        header_bytes = len(_HEADER_START) + len(_HEADER_END)
        self.starts: tuple[bytes, ...] = tuple(
            _TWO_WORDS.pack(4 + header_bytes + digits + len(response.body), header_bytes + digits) + _HEADER_START
            for digits in range(_DIGITS_MAX + 1 if response.lasting else 0)
        )
        """The bytes before the request id, by its number of digits; empty if the response is not cached."""


class PreparedRoute:
    """The route of one or more topics, in each dialect that was requested."""

    __slots__ = ("groups", "legacy", "strict")

    def __init__(self, groups: tuple[str, ...]) -> None:
        self.groups = groups
        """Names of the broker groups in it."""
        self.strict: PreparedAnswer | None = None
        self.legacy: PreparedAnswer | None = None


class Routes(Protocol):
    """A source of encoded routes."""

    @property
    def by_topic(self) -> Mapping[str, PreparedRoute]:
        """Routes of requested topics, always in the same object. No name has a backslash."""

    def find(self, topic: str, dialect: Dialect) -> PreparedAnswer | None:
        """Return the response for a topic; None if it has no route."""


class Repeats:
    """Returns the pieces of the response frame for a request frame, if the request is known."""

    __slots__ = ("_by_topic", "_forms", "_is_empty", "_is_many", "_questions", "_routes", "found")

    def __init__(self, routes: Routes | None = None) -> None:
        self._routes = routes
        self._by_topic: Mapping[str, PreparedRoute] = {} if routes is None else routes.by_topic
        self._questions: dict[tuple[bytes, bytes], _Pieces] = {}
        self._is_many = False
        """Whether there are too many requests to remember them whole."""
        self._forms: dict[_Form, Dialect] = {}
        self._is_empty = True
        self.found = 0
        """How often the answer was there."""

    def find(self, frame: bytes) -> tuple[bytes, bytes, bytes, bytes] | None:
        """Return the answer in four pieces, the second of which is the number and the last the body."""
        if self._is_empty or len(frame) > FRAME_BYTES_MAX:
            return None
        before, _, rest = frame.partition(_NUMBER_KEY)
        number, _, after = rest.partition(b",")
        if not number.isdigit() or number[0] == _ZERO:
            return None
        if self._questions:
            known = self._questions.get((before, after))
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
            route = self._by_topic.get(topic.decode())
            answer = None if route is None else route.strict if dialect is _STRICT else route.legacy
            if answer is None:
                answer = self._look_up(topic, dialect)
                if answer is None:
                    return None
            start = answer.starts[len(number)]
        except (UnicodeDecodeError, IndexError):
            return None  # the topic is not text, the response is not cached, or the request id has too many digits
        self.found += 1
        if not self._is_many:
            self._remember_question(before, after, (start, _HEADER_END, answer.body))
        return start, number, _HEADER_END, answer.body

    def _look_up(self, topic: bytes, dialect: Dialect) -> PreparedAnswer | None:
        # With a backslash, these bytes are an escaped form of the topic's name.
        return None if self._routes is None or b"\\" in topic else self._routes.find(topic.decode(), dialect)

    def remember(self, frame: bytes, request: Request, response: Response) -> None:
        """Keep an answer until `forget`. What cannot be told apart by its bytes alone is not kept."""
        # A number of 0 may also stand for one that is missing, and what looks like it be something else.
        if len(frame) > FRAME_BYTES_MAX or request.form != FORM_JSON or request.body or request.request_id == 0:
            return
        before, _, rest = frame.partition(_NUMBER_KEY)
        number, _, after = rest.partition(b",")
        plain = frame.count(b"opaque") == 1 and b"\\" not in frame and number == b"%d" % request.request_id
        if not plain or len(number) > _DIGITS_MAX:
            return
        self._is_empty = False
        if not self._is_many:
            start, _, tail = response_head(response, request.request_id, FORM_JSON).rpartition(_NUMBER_KEY)
            self._remember_question(before, after, (start + _NUMBER_KEY, tail[len(number) :], response.body))
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and len(self._forms) < FORMS_MAX:
            self._remember_form(frame, before, after, request)

    def _remember_question(self, before: bytes, after: bytes, pieces: _Pieces) -> None:
        have_own_forms = len(self._forms) >= MANY_FORMS
        if len(self._questions) < (OWN_FORM_QUESTIONS_MAX if have_own_forms else QUESTIONS_MAX):
            self._questions[before, after] = pieces
        elif not have_own_forms:
            self._is_many = True
            self._questions.clear()

    def _remember_form(self, frame: bytes, before: bytes, after: bytes, request: Request) -> None:
        topic, form = _cut_topic_out(before, after)
        try:
            # Java's parser also accepts unquoted keys; a second topic is recognised only with quotes.
            is_standard = _decode_strict_json(frame[_TWO_WORDS.size :]).fields.get("topic") == topic.decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        if is_standard and frame.count(b'"topic"') == 1:
            self._forms[form] = decode_route_query(request).dialect

    def forget(self) -> None:
        """Drop everything: an answer may have changed."""
        self._questions.clear()
        self._forms.clear()
        self._is_many = False
        self._is_empty = True


def _cut_topic_out(before: bytes, after: bytes) -> tuple[bytes, _Form]:
    """Return the topic and the form of a request: the bytes around topic and id, and which of the two is first."""
    start, found, rest = before.partition(_TOPIC_KEY)
    if found:
        topic, _, middle = rest.partition(b'"')
        return topic, (start, middle, after, True)
    middle, _, rest = after.partition(_TOPIC_KEY)
    topic, _, end = rest.partition(b'"')
    return topic, (before, middle, end, False)
