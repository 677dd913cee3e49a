"""What every page works with, and how it is shown."""

from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from skyroute import __version__
from skyroute.client.admin import Admin
from skyroute.clock import Clock
from skyroute.console.cluster_data.journals import Journals
from skyroute.console.cluster_data.watcher import Watcher
from skyroute.console.config import ConsoleConfig
from skyroute.console.guard.audit import AuditLog
from skyroute.console.guard.users import UsersFile
from skyroute.console.guard.visitors import Sessions, Visitor
from skyroute.console.pages.text import LANGUAGES, translator

ROWS: Final = 50
"""Rows on one page of a list."""
SESSION_COOKIE: Final = "skyroute_session"
VISITOR_COOKIE: Final = "skyroute_visitor"
SAID_COOKIE: Final = "skyroute_said"
SAID_CHARS_MAX: Final = 400
"""Browsers keep 4 KiB of a cookie, and of a Chinese sign it has nine characters."""

SECTIONS: Final = (
    ("/", "Overview"),
    ("/cluster", "Cluster"),
    ("/topics", "Topics"),
    ("/groups", "Groups"),
    ("/messages", "Messages"),
    ("/history", "Route history"),
    ("/audit", "Audit log"),
)


class Paging:
    """Which part of a long list is shown."""

    def __init__(self, total: int, page: int, rows: int = ROWS) -> None:
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
    """The parts of a running console, which every page is handed in `request.app.state.desk`."""

    def __init__(self, config: ConsoleConfig, admin: Admin, watcher: Watcher, clock: Clock) -> None:
        self.config = config
        self.admin = admin
        self.watcher = watcher
        self.clock = clock
        self.sessions = Sessions(clock)
        self.session_cookie = f"{SESSION_COOKIE}_{config.port}"  # all ports of a host share their cookies
        self.visitor_cookie = f"{VISITOR_COOKIE}_{config.port}"
        self.users = UsersFile(config.users_path)
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
        }

    def show(
        self, request: Request, template: str, status: HTTPStatus = HTTPStatus.OK, /, **values: Any
    ) -> HTMLResponse:
        """Return a page. Templates have what is named here besides `values`."""
        visitor: Visitor = request.state.visitor
        path = quote(request.url.path)  # which was decoded, and may hold a bare % of a retry topic
        query = dict(request.query_params)
        # A part that shows itself anew, on the page one is about to leave, must not have the word that is for the next.
        said = "" if request.headers.get("hx-request") else unquote(request.cookies.get(SAID_COOKIE, ""))
        content = self._templates.get_template(template).render(
            _=translator(visitor.language),
            visitor=visitor,
            path=path,
            query=query,
            # What was posted has no address to come back to.
            here=_address(path, query) if request.method == "GET" else values.get("back", "/"),
            link=lambda **changes: _address(path, query | {k: str(v) for k, v in changes.items()}),
            look=self.watcher.look,
            now_s=self.clock.wall(),
            said=said,
            must_sign_in=self.config.must_sign_in,
            **values,
        )
        response = HTMLResponse(content, status)
        if said:
            response.delete_cookie(SAID_COOKIE, path="/")
        return response

    def go(self, to: str, said: str = "") -> Response:
        """Send a browser to another page of ours, which tells at the top what was done."""
        response = RedirectResponse(to, HTTPStatus.SEE_OTHER)
        if said:
            response.set_cookie(
                SAID_COOKIE,
                quote(said[:SAID_CHARS_MAX]),
                max_age=30,
                httponly=True,
                samesite="strict",
                secure=self.config.certificate is not None,
                path="/",
            )
        return response


def desk_of(request: Request) -> PageContext:
    """Return what a page works with."""
    desk: PageContext = request.app.state.desk
    return desk


def page_number(request: Request) -> int:
    """Return which page of a list is asked for; the first, if that makes no sense."""
    text = request.query_params.get("page", "1")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else 1


def _address(path: str, query: Mapping[str, str]) -> str:
    kept = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(kept)}" if kept else path


# How values are written on a page


def number(value: float | None) -> str:
    """Return a number as people write it: 12,345 or 0.25."""
    if value is None:
        return "—"
    return f"{value:,.2f}" if abs(value) < 100 and value != int(value) else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Return a number of bytes: 1.5 GiB."""
    if value is None:
        return "—"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def share(value: float | None) -> str:
    """Return a part of a whole: 42.5 %."""
    return "—" if value is None or value < 0 else f"{value * 100:.1f} %"


def span(seconds: float | None) -> str:
    """Return how long something took or lasts: 3 d 4 h."""
    if seconds is None:
        return "—"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    left, parts = int(seconds), []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def moment(time_ms: float | None) -> Markup:
    """Return a time, which the page's script turns into that of the reader's zone."""
    if not time_ms or time_ms < 0:
        return Markup("—")
    try:
        when = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return Markup("—")
    return Markup('<time datetime="{}">{} UTC</time>').format(
        when.isoformat(timespec="milliseconds"), f"{when:%Y-%m-%d %H:%M:%S}"
    )


def spark(values: list[float], label: str, width: int = 160, height: int = 32) -> Markup:
    """Return a small chart of a row of numbers, oldest first, with what it shows in words."""
    top = max(values, default=0.0) or 1.0
    step = width / max(1, len(values) - 1)
    points = " ".join(f"{n * step:.1f},{height - 2 - (height - 4) * v / top:.1f}" for n, v in enumerate(values))
    return Markup(
        '<svg class="spark" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-label="{label}">'
        '<title>{label}</title><polyline points="{points}"/></svg>'
    ).format(w=width, h=height, label=label, points=points)
