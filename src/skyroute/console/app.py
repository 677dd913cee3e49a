"""The web application: which page is where, who signs in, and what is said when something goes wrong."""

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
from skyroute.console.cluster_data.lag_history import FollowedGroups
from skyroute.console.errors import ConsoleError, UsersError
from skyroute.console.guard.forwarded import Forwarded, client_key
from skyroute.console.guard.request_guard import (
    LANGUAGE_COOKIE,
    THEME_COOKIE,
    THEMES,
    WANTED_COOKIE,
    FormLimit,
    RequestGuard,
    set_cookie,
)
from skyroute.console.guard.users import NOBODY, PASSWORD_MAX, User
from skyroute.console.guard.visitors import Visitor
from skyroute.console.pages import (
    cluster,
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
from skyroute.console.pages.actions import NO_AUDIT, WRONG_TOKEN, Fields, address_of, back_of, is_ours, refuse
from skyroute.console.pages.forms import read_fields
from skyroute.console.pages.page_context import PageContext, Paging, desk_of, page_number
from skyroute.console.pages.text import LANGUAGES, translator
from skyroute.errors import SkyrouteError

log = logging.getLogger(__name__)

YEAR_S: Final = 365 * 24 * 3600
LIVE_MAX: Final = 200
"""Pages that are told of changes at the same time; others see them when they are reloaded."""
LIVE_ADDRESS_MAX: Final = 50
"""Of one client; fewer than the connections it may have, so that pages can be loaded besides."""
KEEP_ALIVE_S: Final = 15.0
SIGN_INS_AT_ONCE: Final = 2
"""Checking a password takes memory and time, on purpose."""


def make_app(desk: PageContext) -> Starlette:
    """Return the application over the parts of a console."""
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
            *cluster.ROUTES,
            *topics.ROUTES,
            *topic.ROUTES,
            *groups.ROUTES,
            *messages.ROUTES,
            *dead_letters.ROUTES,
            *message.ROUTES,
        ],
        middleware=[
            Middleware(Forwarded, trusted_proxies=desk.config.trusted_proxies),
            Middleware(RequestGuard, desk=desk),
            Middleware(FormLimit),
        ],
        exception_handlers={HTTPException: _not_found, SkyrouteError: _no_answer},
    )
    app.state.desk = desk
    app.state.live = Counter()
    app.state.followed_groups = FollowedGroups()
    app.state.comparing = name_servers.Comparing()
    app.state.sign_ins = asyncio.Semaphore(SIGN_INS_AT_ONCE)
    return app


# Pages that belong to no part of a cluster


async def alive(_request: Request) -> Response:
    """Tell whoever watches this process that it answers."""
    return PlainTextResponse("ok\n")


async def live(request: Request) -> Response:
    """Tell a page, for as long as it is open, whenever there is something new to see."""
    watcher = desk_of(request).watcher
    open_pages: Counter[str] = request.app.state.live
    client = client_key(address_of(request))
    if open_pages.total() >= LIVE_MAX or open_pages[client] >= LIVE_ADDRESS_MAX:
        return PlainTextResponse("too many pages are open\n", HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": "30"})

    async def events() -> AsyncIterator[str]:
        open_pages[client] += 1
        try:
            yield "retry: 3000\n\n"
            while not watcher.stopped:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        await watcher.changed()
                    yield f"event: look\ndata: {watcher.look.number}\n\n"
                except TimeoutError:
                    yield ": still here\n\n"
        finally:
            open_pages[client] -= 1
            if not open_pages[client]:
                del open_pages[client]

    return StreamingResponse(events(), media_type="text/event-stream")


async def sign_in(request: Request) -> Response:
    """Ask for a name and a password, and check them."""
    desk = desk_of(request)
    visitor: Visitor = request.state.visitor
    if visitor.role is not None:
        return desk.go("/")
    if request.method == "GET":
        return desk.show(request, "sign_in.html", failure="", name="")
    fields = await read_fields(request)
    name = fields.get("name", "").strip()
    try:
        user = await _check(request, name, fields)
    except HTTPException as refused:
        status = HTTPStatus(refused.status_code)
        return desk.show(request, "sign_in.html", status, failure=refused.detail, name=name)
    response = desk.go(back_of({"back": request.cookies.get(WANTED_COOKIE, "/")}))
    set_cookie(response, request, desk.session_cookie, desk.sessions.open(user))
    response.delete_cookie(WANTED_COOKIE, path="/")
    return response


async def _check(request: Request, name: str, fields: Fields) -> User:
    """Return who this is. What they are told who are not let in is raised."""
    desk, translate = desk_of(request), translator(request.state.visitor.language)
    address = address_of(request)
    if not is_ours(request.state.visitor, fields):
        raise HTTPException(HTTPStatus.FORBIDDEN, translate(WRONG_TOKEN))
    try:
        user = desk.users.read().get(name, NOBODY)
        async with request.app.state.sign_ins:
            # Asked here, where few are at a time: of a thousand guesses that come together few are heard.
            if desk.sessions.must_wait(client_key(address)):
                why = translate("Too many wrong passwords from this address: wait half a minute.")
                raise HTTPException(HTTPStatus.TOO_MANY_REQUESTS, why)
            right = await run_in_threadpool(user.knows, fields.get("password", "")[: PASSWORD_MAX + 1])
            desk.sessions.note_try(client_key(address), right=right)
        failure = None if right else "wrong name or password"
        await desk.audit.write(int(desk.clock.wall() * 1000), name, address, "sign-in", {}, failure)
    except UsersError as error:
        raise HTTPException(HTTPStatus.FORBIDDEN, str(error)) from error
    except OSError as error:
        why = translate(NO_AUDIT, path=desk.audit.path, reason=error.strerror)
        raise HTTPException(HTTPStatus.INTERNAL_SERVER_ERROR, why) from error
    if not right:
        why = translate("Names and passwords do not fit each other, or nobody has this name.")
        raise HTTPException(HTTPStatus.FORBIDDEN, why)
    return user


async def sign_out(request: Request) -> Response:
    """End the session."""
    desk = desk_of(request)
    if not is_ours(request.state.visitor, await read_fields(request)):
        return _refuse_token(request)
    desk.sessions.close(request.cookies.get(desk.session_cookie, ""))
    response = desk.go("/sign-in")
    response.delete_cookie(desk.session_cookie, path="/")
    return response


async def prefer(request: Request) -> Response:
    """Remember a visitor's language and colours."""
    desk = desk_of(request)
    fields = await read_fields(request)
    if not is_ours(request.state.visitor, fields):
        return _refuse_token(request)
    response = desk.go(back_of(fields))
    if fields.get("language") in LANGUAGES:
        set_cookie(response, request, LANGUAGE_COOKIE, fields["language"], YEAR_S)
    if fields.get("theme") in THEMES:
        set_cookie(response, request, THEME_COOKIE, fields["theme"], YEAR_S)
    return response


def _refuse_token(request: Request) -> Response:
    return refuse(request, translator(request.state.visitor.language)(WRONG_TOKEN), HTTPStatus.FORBIDDEN)


async def audit(request: Request) -> Response:
    """Show the latest of what was done through the console."""
    desk = desk_of(request)
    entries = await run_in_threadpool(desk.audit.latest)
    paging = Paging(len(entries), page_number(request))
    return desk.show(request, "audit.html", entries=entries[paging.start : paging.stop], paging=paging)


# When something goes wrong


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    is_unknown_page = error.detail in (HTTPStatus.NOT_FOUND.phrase, HTTPStatus.METHOD_NOT_ALLOWED.phrase)
    why = translator(request.state.visitor.language)("There is no such page") if is_unknown_page else error.detail
    return refuse(request, why, status)


async def _no_answer(request: Request, error: Exception) -> Response:
    if isinstance(error, ConsoleError | ArgumentError):  # what was asked for makes no sense
        return refuse(request, str(error), HTTPStatus.BAD_REQUEST, request.url.path if request.url.query else "/")
    return refuse(request, str(error), HTTPStatus.BAD_GATEWAY)
