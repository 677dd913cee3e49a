"""Waiting for routes to change: a request that is answered when one does. Apache's peers do not know it."""

from typing import Final

import msgspec

from skyroute.wire import fastjson
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Int64, Request, Response
from skyroute.wire.errors import BodyError, FieldError
from skyroute.wire.fields import NAME_CHARS_MAX, is_name, optional_int, required_int, required_text, truth

TOPICS_MAX: Final = 1_024
"""How many topics one watch may name. Whoever uses more watches all of them."""
BODY_BYTES_MAX: Final = 1024 * 1024
"""How long the list of them may be, as sent."""
TIMEOUT_MS: Final = 30_000
"""How long a watch waits that does not say so."""
TIMEOUT_MS_MAX: Final = 60_000
LIFE_CHARS_MAX: Final = 64

_write: Final = msgspec.json.encode


class Bookmark(msgspec.Struct, frozen=True, gc=False):
    """How far somebody has heard: up to this revision, in this life of the name server."""

    life: str
    revision: int


class WatchQuery(msgspec.Struct, frozen=True):
    """What to wait for, from where on, and how long."""

    topics: tuple[str, ...] | None
    """None: any topic."""
    after: Bookmark | None = None
    """None: nothing has been heard yet."""
    timeout_ms: int = TIMEOUT_MS


class RouteChange(msgspec.Struct, frozen=True, kw_only=True):
    """Topics whose routes changed in one step."""

    revision: Int64
    wall_ms: Int64 = msgspec.field(name="time")
    topics: tuple[str, ...]


class WatchAnswer(msgspec.Struct, frozen=True):
    """What changed after the asker's bookmark. Nothing: the time is over."""

    now: Bookmark
    """From where to go on."""
    floor: int
    """The lowest revision from which a watch can go on."""
    changes: tuple[RouteChange, ...] = ()
    compacted: bool = False
    """What changed is not known any more, or too much did: read everything again."""


class _Topics(msgspec.Struct):
    topics: tuple[str, ...] = ()


class _Changes(msgspec.Struct):
    changes: tuple[RouteChange, ...] = ()


def encode_watch(query: WatchQuery) -> Request:
    """Ask to be told when a route changes."""
    fields = {"timeoutMillis": str(query.timeout_ms)}
    if query.after is not None:
        fields |= {"life": query.after.life, "revision": str(query.after.revision)}
    if query.topics is None:
        return Request(RequestCode.WATCH_ROUTES, fields | {"anyTopic": "true"})
    return Request(RequestCode.WATCH_ROUTES, fields, body=_write(_Topics(query.topics)))


def decode_watch(request: Request) -> WatchQuery:
    """Read what somebody waits for.

    Raises:
        FieldError: revision or timeout are no numbers, or it names no topic.
        BodyError: the topics cannot be read, or are too many.
    """
    fields = request.fields
    after = None
    if fields.get("life"):
        after = Bookmark(required_text(fields, "life")[:LIFE_CHARS_MAX], required_int(fields, "revision"))
    timeout_ms = min(max(0, optional_int(fields, "timeoutMillis", TIMEOUT_MS)), TIMEOUT_MS_MAX)
    if truth(fields, "anyTopic"):
        return WatchQuery(None, after, timeout_ms)
    if len(request.body) > BODY_BYTES_MAX:
        raise BodyError(f"the list of topics has {len(request.body)} bytes, at most {BODY_BYTES_MAX} are read")
    return WatchQuery(_read_topics(request.body), after, timeout_ms)


def _read_topics(body: bytes) -> tuple[str, ...]:
    try:
        topics = tuple(dict.fromkeys(fastjson.decode(body, _Topics).topics)) if body else ()
    except fastjson.JsonError as error:
        raise BodyError(f"not a list of topics: {error}") from None
    if not topics:
        raise FieldError("no topic is named: list topics in the body, or say anyTopic=true")
    if len(topics) > TOPICS_MAX:
        raise BodyError(f"{len(topics)} topics are named, at most {TOPICS_MAX} can be: say anyTopic=true")
    for topic in topics:
        if not is_name(topic):
            raise BodyError(f"a topic has more than {NAME_CHARS_MAX} or control characters: {topic[:80]!r}")
    return topics


def encode_watch_answer(answer: WatchAnswer) -> Response:
    """Write what changed."""
    fields = {"life": answer.now.life, "revision": str(answer.now.revision), "floor": str(answer.floor)}
    if answer.compacted:
        fields["compacted"] = "true"
    return Response(fields=fields, body=_write(_Changes(answer.changes)) if answer.changes else b"")


def decode_watch_answer(response: Response) -> WatchAnswer:
    """Read what changed.

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
