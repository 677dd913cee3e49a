"""What every request passes: under which name it came, who asks, how much it may carry, what browsers may do."""

import logging
import secrets
from dataclasses import replace
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skyroute.console.actions import FORM_BYTES_MAX, back_of, refuse
from skyroute.console.config import ConsoleConfig, is_loopback
from skyroute.console.desk import Desk
from skyroute.console.errors import UsersError
from skyroute.console.text import LANGUAGES, preferred_language, translator
from skyroute.console.users import Role, User
from skyroute.console.visitors import Visitor

log = logging.getLogger(__name__)

SESSION_COOKIE: Final = "skyroute_session"
TOKEN_COOKIE: Final = "skyroute_token"
LANGUAGE_COOKIE: Final = "skyroute_language"
THEME_COOKIE: Final = "skyroute_theme"
WANTED_COOKIE: Final = "skyroute_wanted"
"""Where somebody wanted to go who had to sign in first."""
WANTED_S: Final = 600
WANTED_CHARS_MAX: Final = 1_000
THEMES: Final = ("auto", "light", "dark")
TOKEN_BYTES: Final = 32
TOKEN_CHARS: Final = len(secrets.token_urlsafe(TOKEN_BYTES))
OPEN_FORM_BYTES_MAX: Final = 16 * 1024
"""Of forms that also those may send who have not signed in."""
OPEN_TO_ALL: Final = ("/sign-in", "/preferences", "/livez")

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class FormLimit:
    """Refuses what is too large for any form of ours, while it is read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        bytes_max = left = OPEN_FORM_BYTES_MAX if scope["path"] in OPEN_TO_ALL else FORM_BYTES_MAX

        async def receive_some() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"this form has at most {bytes_max} bytes")
            return message

        await self._app(scope, receive_some, send)


class Doorkeeper:
    """Finds out who asks, sends those away who must sign in first, and adds what browsers should know of every page."""

    def __init__(self, app: ASGIApp, desk: Desk) -> None:
        self._app = app
        self._desk = desk
        self._names = _names(desk.config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # nothing of ours speaks anything else
        request = Request(scope)
        token = request.cookies.get(TOKEN_COOKIE, "")
        new_token = "" if len(token) == TOKEN_CHARS else secrets.token_urlsafe(TOKEN_BYTES)
        visitor = self._who(request, new_token or token)
        scope.setdefault("state", {})["visitor"] = visitor
        has_begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if not _is_static(request):
                    headers.setdefault("Cache-Control", "no-store")
                if new_token:
                    cookie = Response()
                    set_cookie(cookie, request, TOKEN_COOKIE, new_token)
                    headers.append("Set-Cookie", cookie.headers["set-cookie"])
            await send(message)

        refused = self._refuse(request, visitor)
        try:
            await (refused or self._app)(scope, receive, send_with_headers)
        except Exception:
            log.exception("a page failed path=%s", request.url.path)
            if has_begun:
                raise
            why = translator(visitor.language)("Something went wrong here, and the log says what.")
            await refuse(request, why, HTTPStatus.INTERNAL_SERVER_ERROR)(scope, receive, send_with_headers)

    def _who(self, request: Request, token: str) -> Visitor:
        language = request.cookies.get(LANGUAGE_COOKIE, "")
        if language not in LANGUAGES:
            language = preferred_language(request.headers.get("accept-language", ""))
        theme = request.cookies.get(THEME_COOKIE, "")
        visitor = Visitor("", None, token, language, theme if theme in THEMES else THEMES[0])
        if not self._desk.config.must_sign_in:
            return replace(visitor, role=Role.OPERATOR)
        user = self._signed_in(request.cookies.get(SESSION_COOKIE, ""))
        return visitor if user is None else replace(visitor, name=user.name, role=user.role)

    def _signed_in(self, secret: str) -> User | None:
        """Return whose session it is, as long as the file has them with the same role and password."""
        user = self._desk.sessions.find(secret)
        try:
            if user is not None and self._desk.users.read().get(user.name) == user:
                return user
        except UsersError as error:
            log.warning("nobody is signed in reason=%s", error)
            return None
        self._desk.sessions.close(secret)
        return None

    def _refuse(self, request: Request, visitor: Visitor) -> Response | None:
        """Return what to answer those who may not come in."""
        name = _name_of(request.headers.get("host", ""))
        if self._names is not None and name not in self._names:
            why = f"this console does not answer to the name {name!r}: start it with --name {name}, if it should\n"
            return PlainTextResponse(why, HTTPStatus.MISDIRECTED_REQUEST)
        if visitor.role is not None or request.url.path in OPEN_TO_ALL or _is_static(request):
            return None
        if request.headers.get("hx-request"):  # a part of a page that is still open: have the whole page go
            return Response(status_code=HTTPStatus.UNAUTHORIZED, headers={"HX-Redirect": "/sign-in"})
        if request.url.path == "/live":
            return PlainTextResponse("sign in first\n", HTTPStatus.UNAUTHORIZED)
        if request.method != "GET":
            why = translator(visitor.language)(
                "Nothing was done, because your session has ended: sign in and try again."
            )
            return self._desk.show(request, "sign_in.html", HTTPStatus.UNAUTHORIZED, failure=why, name="")
        response = self._desk.go("/sign-in")
        path = quote(request.url.path)  # which was decoded, and a cookie has no room for all signs
        wanted = f"{path}?{request.url.query}" if request.url.query else path
        if len(wanted) <= WANTED_CHARS_MAX:
            set_cookie(response, request, WANTED_COOKIE, back_of({"back": wanted}), max_age=WANTED_S)
        return response


def _names(config: ConsoleConfig) -> frozenset[str] | None:
    """Return the names under which we answer: a page of somebody else's must not reach us by a name of its own.

    None: any. Whoever binds beyond this machine has people sign in.
    """
    if not is_loopback(config.host) and not config.names:
        return None
    ours = ("127.0.0.1", "localhost", "::1") if is_loopback(config.host) else ()
    return frozenset(name.strip("[]").lower() for name in (*ours, config.host, *config.names))


def _name_of(host: str) -> str:
    """Return a Host header without its port."""
    name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
    return name.lower()


def _is_static(request: Request) -> bool:
    return request.url.path.startswith("/static/")


def set_cookie(response: Response, request: Request, name: str, value: str, max_age: int | None = None) -> None:
    """Have the browser keep a value that no script and no other site gets to see."""
    secure = request.url.scheme == "https"
    response.set_cookie(name, value, max_age=max_age, httponly=True, samesite="strict", secure=secure, path="/")
