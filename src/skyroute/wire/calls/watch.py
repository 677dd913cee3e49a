"""WATCH_ROUTES: a long poll for route changes. An extension that Apache's servers and clients do not have."""

from typing import Final

import msgspec

from skyroute.wire import fastjson
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Int64, Request, Response
from skyroute.wire.errors import BodyError, FieldError
from skyroute.wire.fields import NAME_CHARS_MAX, is_name, optional_int, required_int, required_text, truth

TOPICS_MAX: Final = 1_024
"""Maximum number of topics in one watch. A client with more topics watches all."""
BODY_BYTES_MAX: Final = 1024 * 1024
"""Maximum size of the list of topics."""
TIMEOUT_MS: Final = 30_000
"""Default timeout of a watch."""
TIMEOUT_MS_MAX: Final = 60_000
LIFE_CHARS_MAX: Final = 64

_write: Final = msgspec.json.encode


class Bookmark(msgspec.Struct, frozen=True, gc=False):
    """A position in the changes of a name server: a revision of one run (`life`) of the server."""

    life: str
    revision: int


class WatchQuery(msgspec.Struct, frozen=True):
    """A watch: topics, position and timeout."""

    topics: tuple[str, ...] | None
    """None: any topic."""
    after: Bookmark | None = None
    """None: the client has no position yet."""
    timeout_ms: int = TIMEOUT_MS


class RouteChange(msgspec.Struct, frozen=True, kw_only=True):
    """Topics whose routes changed in one step."""

    revision: Int64
    wall_ms: Int64 = msgspec.field(name="time")
    topics: tuple[str, ...]


class WatchAnswer(msgspec.Struct, frozen=True):
    """The changes after the client's bookmark. Without changes: the timeout expired."""

    now: Bookmark
    """Bookmark for the next watch."""
    floor: int
    """The lowest revision from which a watch can continue."""
    changes: tuple[RouteChange, ...] = ()
    compacted: bool = False
    """The changes are not kept, or are too many: the client reads all routes again."""


class _Topics(msgspec.Struct):
    topics: tuple[str, ...] = ()


class _Changes(msgspec.Struct):
    changes: tuple[RouteChange, ...] = ()


def encode_watch(query: WatchQuery) -> Request:
    """Encode a watch."""
    fields = {"timeoutMillis": str(query.timeout_ms)}
    if query.after is not None:
        fields |= {"life": query.after.life, "revision": str(query.after.revision)}
    if query.topics is None:
        return Request(RequestCode.WATCH_ROUTES, fields | {"anyTopic": "true"})
    return Request(RequestCode.WATCH_ROUTES, fields, body=_write(_Topics(query.topics)))


def decode_watch(request: Request) -> WatchQuery:
    """Decode a watch.

    Raises:
        FieldError: revision or timeout is not a number, or there are no topics.
        BodyError: the topics are invalid, or too many.
    """
    fields = request.fields
    after = None
    if fields.get("life"):
        after = Bookmark(required_text(fields, "life")[:LIFE_CHARS_MAX], required_int(fields, "revision"))
    timeout_ms = min(max(0, optional_int(fields, "timeoutMillis", TIMEOUT_MS)), TIMEOUT_MS_MAX)
    if truth(fields, "anyTopic"):
        return WatchQuery(None, after, timeout_ms)
    if len(request.body) > BODY_BYTES_MAX:
        raise BodyError(f"the list of topics has {len(request.body)} bytes (expected at most {BODY_BYTES_MAX})")
    return WatchQuery(_read_topics(request.body), after, timeout_ms)


def _read_topics(body: bytes) -> tuple[str, ...]:
    try:
        topics = tuple(dict.fromkeys(fastjson.decode(body, _Topics).topics)) if body else ()
    except fastjson.JsonError as error:
        raise BodyError(f"not a list of topics: {error}") from None
    if not topics:
        raise FieldError("the watch has no topics: list topics in the body, or set anyTopic=true")
    if len(topics) > TOPICS_MAX:
        raise BodyError(f"the watch has {len(topics)} topics (expected at most {TOPICS_MAX}); set anyTopic=true")
    for topic in topics:
        if not is_name(topic):
            raise BodyError(f"a topic has more than {NAME_CHARS_MAX} or control characters: {topic[:80]!r}")
    return topics


def encode_watch_answer(answer: WatchAnswer) -> Response:
    """Encode the changes."""
    fields = {"life": answer.now.life, "revision": str(answer.now.revision), "floor": str(answer.floor)}
    if answer.compacted:
        fields["compacted"] = "true"
    return Response(fields=fields, body=_write(_Changes(answer.changes)) if answer.changes else b"")


def decode_watch_answer(response: Response) -> WatchAnswer:
    """Decode the changes.

    Raises:
        FieldError: life or revision are missing.
        BodyError: the changes cannot be read.
    """
    fields = response.fields or {}
    now = Bookmark(required_text(fields, "life"), required_int(fields, "revision"))
    try:
        changes = fastjson.decode(response.body, _Changes).changes if response.body else ()
    except fastjson.JsonError as error:
        raise BodyError(f"not a list of changes: {error}") from None
    return WatchAnswer(
        now=now,
        floor=optional_int(fields, "floor", now.revision, (1 << 63) - 1),
        changes=changes,
        compacted=truth(fields, "compacted"),
    )
