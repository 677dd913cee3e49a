"""Middleware for every request: host name, origin, sign-in, form size and security headers."""

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

from skyroute.console.access.sessions import SECRET_CHARS, Visitor, new_secret
from skyroute.console.access.users import Role, User
from skyroute.console.config import ConsoleConfig, is_loopback
from skyroute.console.errors import UsersError
from skyroute.console.guard.forwarded import PEER
from skyroute.console.guard.same_origin import foreign_origin, own_origin
from skyroute.console.texts import LANGUAGES, preferred_language, translatable, translator
from skyroute.console.web.actions import FORM_BYTES_MAX, return_path
from skyroute.console.web.page_context import PageContext, error_page

log = logging.getLogger(__name__)

LANGUAGE_COOKIE: Final = "skyroute_language"
THEME_COOKIE: Final = "skyroute_theme"
RETURN_COOKIE: Final = "skyroute_return"
"""The page to return to after sign-in."""
RETURN_S: Final = 600
RETURN_CHARS_MAX: Final = 1_000
THEMES: Final = ("auto", "light", "dark")
PUBLIC_FORM_BYTES_MAX: Final = 16 * 1024
"""Size of forms that are accepted without sign-in."""
FORMS_BYTES_MAX: Final = 3 * FORM_BYTES_MAX
"""Size of all forms in memory; above it, only forms up to `PUBLIC_FORM_BYTES_MAX` are read."""
PUBLIC_PATHS: Final = ("/sign-in", "/preferences", "/livez")

FOREIGN_ORIGIN: Final = translatable(
    "Nothing was changed: the form came from {origin}, but this console is {ours}. Open the page there and "
    "submit it again. Behind a proxy, start the console with --trusted-proxy."
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
    """Refuses forms that are too large, alone or together with the other forms in memory, while they are read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        bytes_max = PUBLIC_FORM_BYTES_MAX if scope["path"] in PUBLIC_PATHS else FORM_BYTES_MAX
        form_bytes = 0

        async def receive_some() -> Message:
            nonlocal form_bytes
            message = await receive()
            received = len(message.get("body", b""))
            form_bytes += received
            self._held_bytes += received
            if form_bytes > bytes_max:
                raise HTTPException(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the form is too large (at most {bytes_max} bytes)"
                )
            if form_bytes > PUBLIC_FORM_BYTES_MAX and self._held_bytes > FORMS_BYTES_MAX:
                why = f"other forms use the {FORMS_BYTES_MAX} bytes for forms: submit it again later"
                raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, why)
            return message

        try:
            await self._app(scope, receive_some, send)
        finally:
            self._held_bytes -= form_bytes


class RequestGuard:
    """Identifies the visitor, redirects to sign-in, and adds security headers to every response."""

    def __init__(self, app: ASGIApp, context: PageContext) -> None:
        self._app = app
        self._context = context
        self._names = _names(context.config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # the console has no WebSockets
        request = Request(scope)
        context = self._context
        known = request.cookies.get(context.visitor_cookie, "")
        new_visitor = "" if len(known) == SECRET_CHARS else new_secret()
        visitor = self._identify(request, new_visitor or known)
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
                    # Lax: a link from another site must not replace the visitor's cookie of open pages.
                    set_cookie(cookie, request, context.visitor_cookie, new_visitor, same_site="lax")
                    headers.append("Set-Cookie", cookie.headers["set-cookie"])
            await send(message)

        refused = self._refuse(request, visitor)
        try:
            await (refused or self._app)(scope, receive, send_with_headers)
        except ClientDisconnect:
            log.debug("client disconnected while sending a form path=%s", scope["path"])
        except Exception:
            log.exception("page failed path=%s", scope["path"])
            if has_begun:
                raise
            why = translator(visitor.language)(translatable("Internal error. See the log of the console."))
            await error_page(request, why, HTTPStatus.INTERNAL_SERVER_ERROR)(scope, receive, send_with_headers)

    def _identify(self, request: Request, visitor_secret: str) -> Visitor:
        sessions = self._context.sessions
        language = request.cookies.get(LANGUAGE_COOKIE, "")
        if language not in LANGUAGES:
            language = preferred_language(request.headers.get("accept-language", ""))
        theme = request.cookies.get(THEME_COOKIE, "")
        token = sessions.token("visitor", visitor_secret)
        visitor = Visitor("", None, token, language, theme if theme in THEMES else THEMES[0])
        if not self._context.config.must_sign_in:
            return replace(visitor, role=Role.OPERATOR)
        user = self._named_by_proxy(request)
        if user is not None:
            return replace(visitor, name=user.name, role=user.role)
        secret = request.cookies.get(self._context.session_cookie, "")
        user = self._signed_in(secret)
        if user is None:
            return visitor
        return replace(visitor, name=user.name, role=user.role, token=sessions.token("session", secret))

    def _named_by_proxy(self, request: Request) -> User | None:
        """Return the user that a trusted proxy has authenticated, if the users file has it."""
        config = self._context.config
        if config.user_header is None or not config.user_header_proxies.contains(request.scope.get(PEER, "")):
            return None
        names = request.headers.getlist(config.user_header)
        if len(names) != 1:  # a second one may be the client's own
            return None
        try:
            return self._context.users.read().get(names[0].strip())
        except UsersError as error:
            log.warning("sign-in refused reason=%s", error)
            return None

    def _signed_in(self, secret: str) -> User | None:
        """Return the user of a session, if the users file still has the same role and password."""
        user = self._context.sessions.find(secret)
        try:
            if user is not None and self._context.users.read().get(user.name) == user:
                return user
        except UsersError as error:
            log.warning("sign-in refused reason=%s", error)
            return None
        self._context.sessions.close(secret)
        return None

    def _refuse(self, request: Request, visitor: Visitor) -> Response | None:
        """Return the response for a request that is refused, or None."""
        name = _name_of(request.headers.get("host", ""))
        if self._names is not None and name not in self._names:
            why = f"unknown host name {name!r}: to accept it, start the console with --name {name}\n"
            return PlainTextResponse(why, HTTPStatus.MISDIRECTED_REQUEST)
        origin = foreign_origin(request)
        if origin is not None:
            why = translator(visitor.language)(FOREIGN_ORIGIN, origin=origin, ours=own_origin(request))
            return error_page(request, why, HTTPStatus.FORBIDDEN)
        if visitor.role is not None or request.scope["path"] in PUBLIC_PATHS or _is_static(request):
            return None
        return self._ask_to_sign_in(request, visitor)

    def _ask_to_sign_in(self, request: Request, visitor: Visitor) -> Response:
        path = request.scope["path"]  # as for routing; request.url depends on the Host header
        if request.headers.get("hx-request"):  # a part of an open page: redirect the whole page
            return Response(status_code=HTTPStatus.UNAUTHORIZED, headers={"HX-Redirect": "/sign-in"})
        if path == "/live":
            return PlainTextResponse("sign in first\n", HTTPStatus.UNAUTHORIZED)
        if request.method != "GET":
            why = translator(visitor.language)(
                translatable("Nothing was changed: your session has ended. Sign in and try again.")
            )
            return self._context.render(request, "sign_in.html", HTTPStatus.UNAUTHORIZED, failure=why, name="")
        response = self._context.redirect("/sign-in")
        wanted = quote(path)  # it is decoded, and cookies allow only some characters
        if request.url.query:
            wanted += f"?{request.url.query}"
        if len(wanted) <= RETURN_CHARS_MAX:
            set_cookie(response, request, RETURN_COOKIE, return_path({"back": wanted}), max_age=RETURN_S)
        return response


def _names(config: ConsoleConfig) -> frozenset[str] | None:
    """Return the accepted host names, against DNS rebinding: another site's name must not lead here.

    None: any name. A console that is not on loopback requires sign-in.
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
    """Set a cookie that scripts and other sites cannot read."""
    secure = request.scope["scheme"] == "https"
    response.set_cookie(name, value, max_age=max_age, httponly=True, samesite=same_site, secure=secure, path="/")
