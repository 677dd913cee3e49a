"""What every page needs: the cluster's data, users and audit log, and the templates."""

from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from skyroute import __version__
from skyroute.client.admin import Admin
from skyroute.clock import Clock
from skyroute.console.access.audit import AuditLog
from skyroute.console.access.cluster_users import ConsoleUsers
from skyroute.console.access.sessions import Sessions, Visitor
from skyroute.console.cluster_data.journals import Journals
from skyroute.console.cluster_data.monitor import ClusterMonitor
from skyroute.console.config import ROWS_A_PAGE, ConsoleConfig
from skyroute.console.texts import LANGUAGES, translatable, translator
from skyroute.console.web.formatting import group_picture, moment, number, share, size, span, spark

SESSION_COOKIE: Final = "skyroute_session"
VISITOR_COOKIE: Final = "skyroute_visitor"
NOTICE_COOKIE: Final = "skyroute_notice"
"""A sentence for the next page, such as "Topic Orders created"."""
NOTICE_CHARS_MAX: Final = 400
"""Browsers keep 4 KiB of a cookie, and an escaped Chinese character takes nine bytes."""

SECTIONS: Final = (
    ("/", translatable("Overview")),
    ("/cluster", translatable("Cluster")),
    ("/topics", translatable("Topics")),
    ("/groups", translatable("Groups")),
    ("/messages", translatable("Messages")),
    ("/history", translatable("Route history")),
    ("/audit", translatable("Audit log")),
)


class Paging:
    """One page of a long list."""

    def __init__(self, total: int, page: int, rows: int = ROWS_A_PAGE) -> None:
        self.total = total
        self.rows = rows
        self.pages = max(1, -(-total // rows))
        self.page = min(max(1, page), self.pages)

    @property
    def start(self) -> int:
        return (self.page - 1) * self.rows

    @property
    def stop(self) -> int:
        return min(self.total, self.start + self.rows)


class PageContext:
    """The components of a running console; pages find it in `request.app.state.context`."""

    def __init__(self, config: ConsoleConfig, admin: Admin, monitor: ClusterMonitor, clock: Clock) -> None:
        self.config = config
        self.admin = admin
        self.monitor = monitor
        self.clock = clock
        self.sessions = Sessions(clock)
        self.session_cookie = f"{SESSION_COOKIE}_{config.port}"  # all ports of a host share their cookies
        self.visitor_cookie = f"{VISITOR_COOKIE}_{config.port}"
        self.users = ConsoleUsers(config.users_path, config.access_rules, config.access_cluster)
        self.audit = AuditLog(config.audit_path)
        self.journals = Journals(config.journals)
        self._templates = Environment(
            loader=FileSystemLoader(Path(__file__).parents[1] / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {"number": number, "size": size, "moment": moment, "span": span, "share": share}
        self._templates.globals |= {
            "sections": SECTIONS,
            "languages": LANGUAGES,
            "version": __version__,
            "spark": spark,
            "group_picture": group_picture,
        }

    def render(
        self, request: Request, template: str, status: HTTPStatus = HTTPStatus.OK, /, **values: Any
    ) -> HTMLResponse:
        """Return a page. Templates have `values` and what is passed to them here."""
        visitor: Visitor = request.state.visitor
        path = quote(request.url.path)  # it is decoded, and may hold a bare % of a retry topic
        query = dict(request.query_params)
        # A part of the page that the browser is about to leave must not take the notice of the next page.
        notice = "" if request.headers.get("hx-request") else unquote(request.cookies.get(NOTICE_COOKIE, ""))
        content = self._templates.get_template(template).render(
            _=translator(visitor.language),
            visitor=visitor,
            path=path,
            query=query,
            # A page that answers a POST has no address to return to.
            here=_address(path, query) if request.method == "GET" else values.get("back", "/"),
            link=lambda **changes: _address(path, query | {k: str(v) for k, v in changes.items()}),
            snapshot=self.monitor.snapshot,
            now_s=self.clock.wall(),
            notice=notice,
            must_sign_in=self.config.must_sign_in,
            **values,
        )
        response = HTMLResponse(content, status)
        if notice:
            response.delete_cookie(NOTICE_COOKIE, path="/")
        return response

    def redirect(self, path: str, notice: str = "") -> Response:
        """Redirect the browser to a page of the console, which shows the notice."""
        response = RedirectResponse(path, HTTPStatus.SEE_OTHER)
        if notice:
            response.set_cookie(
                NOTICE_COOKIE,
                quote(notice[:NOTICE_CHARS_MAX]),
                max_age=30,
                httponly=True,
                samesite="strict",
                secure=self.config.certificate is not None,
                path="/",
            )
        return response


def context_of(request: Request) -> PageContext:
    """Return the context of the console that a request was sent to."""
    context: PageContext = request.app.state.context
    return context


def error_page(request: Request, reason: str, status: HTTPStatus, back: str = "/") -> Response:
    """Return a page that says why a request failed."""
    return context_of(request).render(request, "failed.html", status, reason=reason, back=back)


def page_number(request: Request) -> int:
    """Return the requested page of a list, or 1 if it is not a number."""
    text = request.query_params.get("page", "1")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 1


def _address(path: str, query: Mapping[str, str]) -> str:
    kept = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(kept)}" if kept else path
