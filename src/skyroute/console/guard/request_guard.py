"""What every request passes: under which name it came, who asks, how much it may carry, what browsers may do."""

import logging
from dataclasses import replace
from http import HTTPStatus
from typing import Final, Literal
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skyroute.console.config import ConsoleConfig, is_loopback
from skyroute.console.errors import UsersError
from skyroute.console.guard.same_origin import foreign_origin, own_origin
from skyroute.console.guard.users import Role, User
from skyroute.console.guard.visitors import SECRET_CHARS, Visitor, new_secret
from skyroute.console.pages.actions import FORM_BYTES_MAX, back_of, refuse
from skyroute.console.pages.page_context import PageContext
from skyroute.console.pages.text import LANGUAGES, preferred_language, translator

log = logging.getLogger(__name__)

LANGUAGE_COOKIE: Final = "skyroute_language"
THEME_COOKIE: Final = "skyroute_theme"
WANTED_COOKIE: Final = "skyroute_wanted"
"""Where somebody wanted to go who had to sign in first."""
WANTED_S: Final = 600
WANTED_CHARS_MAX: Final = 1_000
THEMES: Final = ("auto", "light", "dark")
OPEN_FORM_BYTES_MAX: Final = 16 * 1024
"""Of forms that also those may send who have not signed in."""
FORMS_BYTES_MAX: Final = 3 * FORM_BYTES_MAX
"""Of all forms that are read or worked on at the same time; small ones are read even if it is reached."""
OPEN_TO_ALL: Final = ("/sign-in", "/preferences", "/livez")

FOREIGN_ORIGIN: Final = (
    "Nothing was done, because the form came from {origin} and this console is {ours}: open the page there and send it "
    "again. Behind a proxy, start the console with --trusted-proxy."
)

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
    """Refuses what is too large for any form of ours, or together with the other forms, while it is read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        bytes_max = OPEN_FORM_BYTES_MAX if scope["path"] in OPEN_TO_ALL else FORM_BYTES_MAX
        form_bytes = 0

        async def receive_some() -> Message:
            nonlocal form_bytes
            message = await receive()
            received = len(message.get("body", b""))
            form_bytes += received
            self._held_bytes += received
            if form_bytes > bytes_max:
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"this form has at most {bytes_max} bytes")
            if form_bytes > OPEN_FORM_BYTES_MAX and self._held_bytes > FORMS_BYTES_MAX:
                why = f"other forms fill the {FORMS_BYTES_MAX} bytes there are for forms: send it again"
                raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, why)
            return message

        try:
            await self._app(scope, receive_some, send)
        finally:
            self._held_bytes -= form_bytes


class RequestGuard:
    """Finds out who asks, sends those away who must sign in first, and adds what browsers should know of every page."""

    def __init__(self, app: ASGIApp, desk: PageContext) -> None:
        self._app = app
        self._desk = desk
        self._names = _names(desk.config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # nothing of ours speaks anything else
        request = Request(scope)
        desk = self._desk
        known = request.cookies.get(desk.visitor_cookie, "")
        new_visitor = "" if len(known) == SECRET_CHARS else new_secret()
        visitor = self._who(request, new_visitor or known)
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
                if new_visitor:
                    cookie = Response()
                    # Lax: a link elsewhere to a page of ours must not give open pages another visitor's cookie.
                    set_cookie(cookie, request, desk.visitor_cookie, new_visitor, same_site="lax")
                    headers.append("Set-Cookie", cookie.headers["set-cookie"])
            await send(message)

        refused = self._refuse(request, visitor)
        try:
            await (refused or self._app)(scope, receive, send_with_headers)
        except ClientDisconnect:
            log.debug("a peer left before its form was whole path=%s", scope["path"])
        except Exception:
            log.exception("a page failed path=%s", scope["path"])
            if has_begun:
                raise
            why = translator(visitor.language)("Something went wrong here, and the log says what.")
            await refuse(request, why, HTTPStatus.INTERNAL_SERVER_ERROR)(scope, receive, send_with_headers)

    def _who(self, request: Request, visitor_secret: str) -> Visitor:
        sessions = self._desk.sessions
        language = request.cookies.get(LANGUAGE_COOKIE, "")
        if language not in LANGUAGES:
            language = preferred_language(request.headers.get("accept-language", ""))
        theme = request.cookies.get(THEME_COOKIE, "")
        token = sessions.token("visitor", visitor_secret)
        visitor = Visitor("", None, token, language, theme if theme in THEMES else THEMES[0])
        if not self._desk.config.must_sign_in:
            return replace(visitor, role=Role.OPERATOR)
        secret = request.cookies.get(self._desk.session_cookie, "")
        user = self._signed_in(secret)
        if user is None:
            return visitor
        return replace(visitor, name=user.name, role=user.role, token=sessions.token("session", secret))

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
        origin = foreign_origin(request)
        if origin is not None:
            why = translator(visitor.language)(FOREIGN_ORIGIN, origin=origin, ours=own_origin(request))
            return refuse(request, why, HTTPStatus.FORBIDDEN)
        if visitor.role is not None or request.scope["path"] in OPEN_TO_ALL or _is_static(request):
            return None
        return self._ask_to_sign_in(request, visitor)

    def _ask_to_sign_in(self, request: Request, visitor: Visitor) -> Response:
        path = request.scope["path"]  # what routes go by; that of request.url depends on the Host header
        if request.headers.get("hx-request"):  # a part of a page that is still open: have the whole page go
            return Response(status_code=HTTPStatus.UNAUTHORIZED, headers={"HX-Redirect": "/sign-in"})
        if path == "/live":
            return PlainTextResponse("sign in first\n", HTTPStatus.UNAUTHORIZED)
        if request.method != "GET":
            why = translator(visitor.language)(
                "Nothing was done, because your session has ended: sign in and try again."
            )
            return self._desk.show(request, "sign_in.html", HTTPStatus.UNAUTHORIZED, failure=why, name="")
        response = self._desk.go("/sign-in")
        wanted = quote(path)  # which was decoded, and a cookie has no room for all signs
        if request.url.query:
            wanted += f"?{request.url.query}"
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
    path: str = request.scope["path"]
    return path.startswith("/static/")


def set_cookie(
    response: Response,
    request: Request,
    name: str,
    value: str,
    max_age: int | None = None,
    same_site: Literal["strict", "lax"] = "strict",
) -> None:
    """Have the browser keep a value that no script and no other site gets to see."""
    secure = request.scope["scheme"] == "https"
    response.set_cookie(name, value, max_age=max_age, httponly=True, samesite=same_site, secure=secure, path="/")
