"""Changes that a visitor asks for with a form: who may, whether it was meant, what came of it, and a line of audit."""

import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skyroute.console.guard.visitors import Visitor
from skyroute.console.pages.forms import read_fields
from skyroute.console.pages.page_context import PageContext, desk_of
from skyroute.console.pages.text import translator
from skyroute.errors import SkyrouteError

log = logging.getLogger(__name__)

FORM_BYTES_MAX: Final = 20 * 1024 * 1024
"""A message of 4 MiB, every byte of it escaped, and some room."""
UNWRITTEN: Final = frozenset({"token", "confirmed", "back", "password"})
"""Fields that say nothing about what was done, or that nobody else may read."""

AS_TYPED: Final = frozenset({"body", "password"})
"""Fields in which blanks around the text count."""


@dataclass(frozen=True, slots=True)
class Done:
    """What came of an action: a sentence for the visitor, in English with names in braces, and where to go on."""

    said: str
    then: str
    values: Mapping[str, object]


def done(said: str, then: str, **values: object) -> Done:
    """Say what was done. `said` is looked up among the Chinese texts; `values` are put in."""
    return Done(said, then, values)


_OUR_PAGE: Final = re.compile(r"/(?![/\\])[^\x00-\x20\x7f\\]*")
"""Browsers take `//host`, and `/` with a tab or a backslash before `/host`, for another machine."""

_IN_BRACES: Final = re.compile(r"\{(\w+)\}")

Fields = Mapping[str, str]
"""What a form holds, without blanks around each value."""

Work = Callable[[PageContext, Fields, Visitor], Awaitable[Done]]


def action(path: str, name: str, *, question: str | None = None, warning: str | None = None) -> Callable[[Work], Route]:
    """Make of an async function an address that takes a form by POST and does what it asks for.

    Forms carry `token` (the macro `form` of the templates writes it) and may carry `back`, where a visitor comes from.

    Args:
        path: The address.
        name: What the audit log calls it, such as `topic.delete`.
        question: For what cannot be undone: asked before anything is done, with the form's fields put in for braces.
        warning: What else to know before answering.
    """

    def decorate(work: Work) -> Route:
        async def answer(request: Request) -> Response:
            desk = desk_of(request)
            visitor: Visitor = request.state.visitor
            translate = translator(visitor.language)
            if not visitor.may_change:  # before a large form is read
                return refuse(request, translate(NO_OPERATOR), HTTPStatus.FORBIDDEN)
            form = await read_fields(request)
            fields = {key: value if key in AS_TYPED else value.strip() for key, value in form.items()}
            if not is_ours(visitor, fields):
                return refuse(request, translate(WRONG_TOKEN), HTTPStatus.FORBIDDEN)
            if question is not None and fields.get("confirmed") != "yes":
                return desk.show(
                    request,
                    "ask.html",
                    question=_fill(translate(question), fields),
                    warning=translate(warning) if warning else None,
                    fields={key: value for key, value in form.items() if key != "confirmed"},
                    back=back_of(fields),
                )
            given = {key: value for key, value in fields.items() if key not in UNWRITTEN}
            address = address_of(request)

            async def note(failure: str | None, outcome: str) -> None:
                await desk.audit.write(
                    int(desk.clock.wall() * 1000), visitor.name, address, f"{name} {outcome}", given, failure
                )

            try:
                await note(None, "begun")
            except OSError as error:
                log.exception("nothing was done: the audit log cannot be written path=%s", desk.audit.path)
                return refuse(
                    request,
                    translate(NO_AUDIT, path=desk.audit.path, reason=error.strerror),
                    HTTPStatus.INTERNAL_SERVER_ERROR,
                )
            try:
                outcome = await work(desk, fields, visitor)
            except Exception as error:
                await _note_end(note, str(error) or type(error).__name__, "failed")
                if not isinstance(error, SkyrouteError):
                    raise
                return refuse(request, str(error), HTTPStatus.CONFLICT, back_of(fields))
            await _note_end(note, None, "done")
            return desk.go(outcome.then, translate(outcome.said, **outcome.values))

        return Route(path, answer, methods=["POST"], name=name)

    return decorate


WRONG_TOKEN: Final = "This form is too old, or not one of ours: go back, reload the page and send it again."
NO_OPERATOR: Final = "Only operators may change things: sign in as one."
NO_AUDIT: Final = "Nothing was done, because it could not be written to the audit log {path}: {reason}."


async def _note_end(note: Callable[[str | None, str], Awaitable[None]], failure: str | None, outcome: str) -> None:
    """Write what came of an action, which cannot be undone because a disk is full by now."""
    try:
        await note(failure, outcome)
    except OSError:
        log.exception("the audit log cannot be written outcome=%s", outcome)


def is_ours(visitor: Visitor, fields: Fields) -> bool:
    """Whether a form came from a page that this visitor was shown."""
    return bool(visitor.token) and hmac.compare_digest(fields.get("token", "").encode(), visitor.token.encode())


def address_of(request: Request) -> str:
    """Return the client's address, behind the trusted proxies."""
    assert request.client is not None, "the console listens on TCP"
    return request.client.host


def back_of(fields: Fields) -> str:
    """Return where a form says it comes from, if that is a page of ours."""
    back = fields.get("back", "")
    return back if _OUR_PAGE.fullmatch(back) else "/"


def refuse(request: Request, why: str, status: HTTPStatus, back: str = "/") -> Response:
    """Return a page that says why something was not done."""
    return desk_of(request).show(request, "failed.html", status, why=why, back=back)


def _fill(text: str, fields: Fields) -> str:
    return _IN_BRACES.sub(lambda found: fields.get(found[1]) or "—", text)
