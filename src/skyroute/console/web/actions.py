"""Forms that change something: checks role and token, asks for confirmation, and writes the audit log."""

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

from skyroute.console.access.sessions import Visitor
from skyroute.console.texts import translatable, translator
from skyroute.console.web.forms import read_fields
from skyroute.console.web.page_context import PageContext, context_of, error_page
from skyroute.errors import SkyrouteError

log = logging.getLogger(__name__)

FORM_BYTES_MAX: Final = 20 * 1024 * 1024
"""A message of 4 MiB with every byte escaped, and the other fields."""
NOT_AUDITED: Final = frozenset({"token", "confirmed", "back", "password"})
"""Fields that do not belong to the change, or are secret."""
NOT_STRIPPED: Final = frozenset({"body", "password"})
"""Fields in which leading and trailing blanks count."""

INVALID_TOKEN: Final = translatable(
    "This form has expired or was not created by this console. Reload the page and submit it again."
)
OPERATORS_ONLY: Final = translatable("Only operators can make changes. Sign in as an operator.")
AUDIT_FAILED: Final = translatable("Nothing was changed, because the audit log {path} cannot be written: {reason}.")

_OWN_PATH: Final = re.compile(r"/(?![/\\])[^\x00-\x20\x7f\\]*")
"""Browsers take `//host`, and `/` with a tab or a backslash before `/host`, for another host."""
_IN_BRACES: Final = re.compile(r"\{(\w+)\}")

Fields = Mapping[str, str]
"""The fields of a form, without blanks around each value."""


@dataclass(frozen=True, slots=True)
class Done:
    """The result of an action: a notice in English with names in braces, and the page that shows it."""

    notice: str
    path: str
    values: Mapping[str, object]


def done(notice: str, path: str, **values: object) -> Done:
    """Return the result of an action. `make texts` collects the notices; `values` replace the names in braces."""
    return Done(notice, path, values)


ActionHandler = Callable[[PageContext, Fields, Visitor], Awaitable[Done]]


def action(
    path: str, name: str, *, question: str | None = None, warning: str | None = None
) -> Callable[[ActionHandler], Route]:
    """Make an async function the handler of a form that is sent to `path` by POST.

    Forms carry `token` (the templates' macro `hidden` writes it), and `back` with the page that shows the form.

    Args:
        path: The form's address.
        name: The action's name in the audit log, such as `topic.delete`.
        question: Ask this before the handler runs, with names in braces replaced by the form's fields.
        warning: Show this with the question.
    """

    def decorate(handler: ActionHandler) -> Route:
        async def handle(request: Request) -> Response:
            context = context_of(request)
            visitor: Visitor = request.state.visitor
            translate = translator(visitor.language)
            if not visitor.may_change:  # before a large form is read
                return error_page(request, translate(OPERATORS_ONLY), HTTPStatus.FORBIDDEN)
            form = await read_fields(request)
            fields = {key: value if key in NOT_STRIPPED else value.strip() for key, value in form.items()}
            if not has_valid_token(visitor, fields):
                return error_page(request, translate(INVALID_TOKEN), HTTPStatus.FORBIDDEN)
            if question is not None and fields.get("confirmed") != "yes":
                return context.render(
                    request,
                    "confirm.html",
                    question=_fill(translate(question), fields),
                    warning=translate(warning) if warning else None,
                    fields={key: value for key, value in form.items() if key != "confirmed"},
                    back=return_path(fields),
                )
            audited = {key: value for key, value in fields.items() if key not in NOT_AUDITED}
            address = client_address_of(request)

            async def write_audit(failure: str | None, outcome: str) -> None:
                await context.audit.write(
                    int(context.clock.wall() * 1000), visitor.name, address, f"{name} {outcome}", audited, failure
                )

            try:
                await write_audit(None, "begun")
            except OSError as error:
                log.exception("action refused: audit log not writable action=%s path=%s", name, context.audit.path)
                return error_page(
                    request,
                    translate(AUDIT_FAILED, path=context.audit.path, reason=error.strerror),
                    HTTPStatus.INTERNAL_SERVER_ERROR,
                )
            try:
                result = await handler(context, fields, visitor)
            except Exception as error:
                await _audit_end(write_audit, str(error) or type(error).__name__, "failed")
                if not isinstance(error, SkyrouteError):
                    raise
                return error_page(request, str(error), HTTPStatus.CONFLICT, return_path(fields))
            await _audit_end(write_audit, None, "done")
            return context.redirect(result.path, translate(result.notice, **result.values))

        return Route(path, handle, methods=["POST"], name=name)

    return decorate


async def _audit_end(
    write_audit: Callable[[str | None, str], Awaitable[None]], failure: str | None, outcome: str
) -> None:
    """Write the outcome of an action. If that fails, the action stays done: it cannot be undone."""
    try:
        await write_audit(failure, outcome)
    except OSError:
        log.exception("audit log not writable outcome=%s", outcome)


def has_valid_token(visitor: Visitor, fields: Fields) -> bool:
    """Return whether a form came from a page that this visitor was shown."""
    return bool(visitor.token) and hmac.compare_digest(fields.get("token", "").encode(), visitor.token.encode())


def client_address_of(request: Request) -> str:
    """Return the client's address, behind the trusted proxies."""
    assert request.client is not None, "the console listens on TCP"
    return request.client.host


def return_path(fields: Fields) -> str:
    """Return the page that a form names as its own, or `/` if that is not a page of this console."""
    back = fields.get("back", "")
    return back if _OWN_PATH.fullmatch(back) else "/"


def _fill(text: str, fields: Fields) -> str:
    return _IN_BRACES.sub(lambda found: fields.get(found[1]) or "—", text)
