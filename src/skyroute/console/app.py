"""The web application: the routes, sign-in and sign-out, and error pages."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from skyroute.client.errors import ArgumentError
from skyroute.console.access.decisions import latest_decisions
from skyroute.console.access.sessions import Visitor
from skyroute.console.access.users import PASSWORD_MAX, UNKNOWN_USER, User
from skyroute.console.cluster_data.lag_history import LagHistories
from skyroute.console.errors import ConsoleError, UsersError
from skyroute.console.guard.forwarded import Forwarded, client_key
from skyroute.console.guard.request_guard import (
    LANGUAGE_COOKIE,
    RETURN_COOKIE,
    THEME_COOKIE,
    THEMES,
    FormLimit,
    RequestGuard,
    set_cookie,
)
from skyroute.console.pages import (
    cluster,
    controllers,
    dead_letters,
    groups,
    history,
    message,
    messages,
    name_servers,
    overview,
    topic,
    topics,
)
from skyroute.console.texts import LANGUAGES, translatable, translator
from skyroute.console.web.actions import (
    AUDIT_FAILED,
    INVALID_TOKEN,
    Fields,
    client_address_of,
    has_valid_token,
    return_path,
)
from skyroute.console.web.forms import read_fields
from skyroute.console.web.page_context import PageContext, Paging, context_of, error_page, page_number
from skyroute.errors import SkyrouteError

log = logging.getLogger(__name__)

YEAR_S: Final = 365 * 24 * 3600
LIVE_MAX: Final = 200
"""Open pages that receive changes at once; the others show them when they are reloaded."""
LIVE_ADDRESS_MAX: Final = 50
"""Open pages of one client; fewer than its connections, so that it can still load pages."""
KEEP_ALIVE_S: Final = 15.0
SIGN_INS_AT_ONCE: Final = 2
"""Passwords checked at the same time: a check needs memory and time, on purpose."""


def make_app(context: PageContext) -> Starlette:
    """Return the application of a console."""
    app = Starlette(
        routes=[
            Route("/live", live),
            Route("/livez", alive),
            Route("/sign-in", sign_in, methods=["GET", "POST"]),
            Route("/sign-out", sign_out, methods=["POST"]),
            Route("/preferences", prefer, methods=["POST"]),
            Route("/audit", audit),
            Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
            *overview.ROUTES,
            *history.ROUTES,
            *name_servers.ROUTES,
            *controllers.ROUTES,
            *cluster.ROUTES,
            *topics.ROUTES,
            *topic.ROUTES,
            *groups.ROUTES,
            *messages.ROUTES,
            *dead_letters.ROUTES,
            *message.ROUTES,
        ],
        middleware=[
            Middleware(Forwarded, trusted_proxies=context.config.trusted_proxies),
            Middleware(RequestGuard, context=context),
            Middleware(FormLimit),
        ],
        exception_handlers={HTTPException: _http_error, SkyrouteError: _request_failed},
    )
    app.state.context = context
    app.state.live = Counter()
    app.state.lag_histories = LagHistories()
    app.state.comparison = name_servers.ComparisonTask()
    app.state.sign_ins = asyncio.Semaphore(SIGN_INS_AT_ONCE)
    return app


# Pages that do not show the cluster


async def alive(_request: Request) -> Response:
    """Return 200 while the process serves requests, for liveness probes."""
    return PlainTextResponse("ok\n")


async def live(request: Request) -> Response:
    """Stream an event to an open page whenever the cluster's data changes."""
    monitor = context_of(request).monitor
    open_pages: Counter[str] = request.app.state.live
    client = client_key(client_address_of(request))
    if open_pages.total() >= LIVE_MAX or open_pages[client] >= LIVE_ADDRESS_MAX:
        return PlainTextResponse(
            "too many pages are open; close some\n", HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "30"}
        )

    async def events() -> AsyncIterator[str]:
        open_pages[client] += 1
        try:
            yield "retry: 3000\n\n"
            groups = set(monitor.inventory.groups)
            while not monitor.stopped:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        await monitor.changed()
                    yield f"event: refresh\ndata: {monitor.snapshot.number}\n\n"
                    if groups != monitor.inventory.groups.keys():  # a page that reads all brokers reloads for this only
                        groups = set(monitor.inventory.groups)
                        yield f"event: groups\ndata: {len(groups)}\n\n"
                except TimeoutError:
                    yield ": keep-alive\n\n"
        finally:
            open_pages[client] -= 1
            if not open_pages[client]:
                del open_pages[client]

    return StreamingResponse(events(), media_type="text/event-stream")


async def sign_in(request: Request) -> Response:
    """Show the sign-in form, and check name and password."""
    context = context_of(request)
    visitor: Visitor = request.state.visitor
    if visitor.role is not None:
        return context.redirect("/")
    if request.method == "GET":
        return context.render(request, "sign_in.html", failure="", name="")
    fields = await read_fields(request)
    name = fields.get("name", "").strip()
    try:
        user = await _authenticate(request, name, fields)
    except HTTPException as refused:
        status = HTTPStatus(refused.status_code)
        return context.render(request, "sign_in.html", status, failure=refused.detail, name=name)
    response = context.redirect(return_path({"back": request.cookies.get(RETURN_COOKIE, "/")}))
    set_cookie(response, request, context.session_cookie, context.sessions.open(user))
    response.delete_cookie(RETURN_COOKIE, path="/")
    return response


async def _authenticate(request: Request, name: str, fields: Fields) -> User:
    """Return the user with this name and password.

    Raises:
        HTTPException: sign-in is refused; the detail is for the page.
    """
    context, translate = context_of(request), translator(request.state.visitor.language)
    address = client_address_of(request)
    if not has_valid_token(request.state.visitor, fields):
        raise HTTPException(HTTPStatus.FORBIDDEN, translate(INVALID_TOKEN))
    try:
        user = context.users.read().get(name, UNKNOWN_USER)
        async with request.app.state.sign_ins:
            # Inside the semaphore: of a thousand guesses sent at once, only a few are checked.
            if context.sessions.must_wait(client_key(address)):
                reason = translate("Too many wrong passwords from this address. Wait 30 seconds.")
                raise HTTPException(HTTPStatus.TOO_MANY_REQUESTS, reason)
            right = await run_in_threadpool(user.has_password, fields.get("password", "")[: PASSWORD_MAX + 1])
            context.sessions.record_attempt(client_key(address), right=right)
        failure = None if right else "wrong name or password"
        await context.audit.write(int(context.clock.wall() * 1000), name, address, "sign-in", {}, failure)
    except UsersError as error:
        raise HTTPException(HTTPStatus.FORBIDDEN, str(error)) from error
    except OSError as error:
        reason = translate(AUDIT_FAILED, path=context.audit.path, reason=error.strerror)
        raise HTTPException(HTTPStatus.INTERNAL_SERVER_ERROR, reason) from error
    if not right:
        reason = translate("Wrong user name or password.")
        raise HTTPException(HTTPStatus.FORBIDDEN, reason)
    return user


async def sign_out(request: Request) -> Response:
    """End the session."""
    context = context_of(request)
    if not has_valid_token(request.state.visitor, await read_fields(request)):
        return _refuse_token(request)
    context.sessions.close(request.cookies.get(context.session_cookie, ""))
    response = context.redirect("/sign-in")
    response.delete_cookie(context.session_cookie, path="/")
    return response


async def prefer(request: Request) -> Response:
    """Store a visitor's language and theme in cookies."""
    context = context_of(request)
    fields = await read_fields(request)
    if not has_valid_token(request.state.visitor, fields):
        return _refuse_token(request)
    response = context.redirect(return_path(fields))
    if fields.get("language") in LANGUAGES:
        set_cookie(response, request, LANGUAGE_COOKIE, fields["language"], YEAR_S)
    if fields.get("theme") in THEMES:
        set_cookie(response, request, THEME_COOKIE, fields["theme"], YEAR_S)
    return response


def _refuse_token(request: Request) -> Response:
    return error_page(request, translator(request.state.visitor.language)(INVALID_TOKEN), HTTPStatus.FORBIDDEN)


async def audit(request: Request) -> Response:
    """Show the latest entries of the audit log, and the latest decisions of servers."""
    context = context_of(request)
    entries = await run_in_threadpool(context.audit.latest)
    decisions = await run_in_threadpool(latest_decisions, context.config.access_logs)
    paging = Paging(len(entries), page_number(request))
    shown = entries[paging.start : paging.stop]
    return context.render(request, "audit.html", entries=shown, paging=paging, decisions=decisions)


# Error pages


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    is_unknown_page = error.detail in (HTTPStatus.NOT_FOUND.phrase, HTTPStatus.METHOD_NOT_ALLOWED.phrase)
    why = (
        translator(request.state.visitor.language)(translatable("Page not found")) if is_unknown_page else error.detail
    )
    return error_page(request, why, status)


async def _request_failed(request: Request, error: Exception) -> Response:
    if isinstance(error, ConsoleError | ArgumentError):  # the request is wrong, not the cluster
        return error_page(request, str(error), HTTPStatus.BAD_REQUEST, request.url.path if request.url.query else "/")
    return error_page(request, str(error), HTTPStatus.BAD_GATEWAY)
