"""Name servers: their state, a comparison of all their routes, and their settings."""

import asyncio
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skyroute.client.admin import Admin
from skyroute.client.admin.base import SomeFailedError
from skyroute.client.admin.cluster import ServerProperties
from skyroute.client.admin.name_server_comparison import Comparison, compare_name_servers
from skyroute.clock import Clock
from skyroute.console.access.sessions import Visitor
from skyroute.console.cluster_data.name_server_differences import find_differences
from skyroute.console.cluster_data.settings_table import check_applied, find_settings, read_change
from skyroute.console.texts import translatable, translator
from skyroute.console.web.actions import INVALID_TOKEN, Done, Fields, action, done, has_valid_token
from skyroute.console.web.forms import read_fields
from skyroute.console.web.page_context import PageContext, Paging, context_of, error_page, page_number
from skyroute.errors import SkyrouteError

RESULT_S: Final = 2.0
"""How long the page waits for the result; after that it shows that the comparison is running."""
COMPARISON_S_MAX: Final = 300.0
TABS = (("", translatable("State")), ("settings", translatable("Settings")))


class ComparisonTask:
    """The latest comparison of all name servers. It reads every route, so only one runs at a time, for all users."""

    def __init__(self) -> None:
        self.result: Comparison | None = None
        self.failure = ""
        self.begun_s = 0.0
        """Wall-clock time."""
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    async def begin(self, admin: Admin, clock: Clock) -> None:
        """Start a comparison unless one is running; return after it has finished, or after `RESULT_S`."""
        if self._task is None or self._task.done():
            self.result, self.failure, self.begun_s = None, "", clock.wall()
            self._task = asyncio.create_task(self._compare(admin))
        await asyncio.wait([self._task], timeout=RESULT_S)

    async def _compare(self, admin: Admin) -> None:
        try:
            async with asyncio.timeout(COMPARISON_S_MAX):
                self.result = await compare_name_servers(admin)
        except SkyrouteError as error:
            self.failure = str(error)
        except TimeoutError:
            self.failure = f"the comparison did not finish within {COMPARISON_S_MAX:.0f} s: try again later"


def _comparison(request: Request) -> ComparisonTask:
    comparison: ComparisonTask = request.app.state.comparison
    return comparison


async def name_servers(request: Request) -> Response:
    """Show the state of the name servers and their differences, or their settings."""
    context = context_of(request)
    comparison = _comparison(request)
    differences = comparison.result.differences if comparison.result else ()
    tab = request.query_params.get("tab", "")
    wanted = request.query_params.get("q", "").strip().lower()
    texts = ServerProperties({}, {})
    if tab == "settings":
        try:
            texts = await context.admin.name_server_settings()
        except SomeFailedError as error:
            texts = ServerProperties({}, error.failures)
    rows = find_settings(texts, wanted)
    paging = Paging(len(rows if tab == "settings" else differences), page_number(request))
    return context.render(
        request,
        "cluster_name_servers.html",
        server_differences=find_differences(context.monitor.snapshot.name_servers),
        comparison=comparison,
        differences=differences[paging.start : paging.stop],
        tabs=TABS,
        tab=tab,
        settings=rows[paging.start : paging.stop],
        change=next((row for row in rows if row.key == request.query_params.get("change")), None),
        failures=texts.failures,
        paging=paging,
    )


async def compare(request: Request) -> Response:
    """Compare all name servers. Viewers may do this; the token keeps other sites from doing it."""
    context = context_of(request)
    if not has_valid_token(request.state.visitor, await read_fields(request)):
        return error_page(request, translator(request.state.visitor.language)(INVALID_TOKEN), HTTPStatus.FORBIDDEN)
    await _comparison(request).begin(context.admin, context.clock)
    return context.redirect("/cluster/name-servers")


@action(
    "/cluster/name-servers/change-setting",
    "name_server.change_setting",
    question=translatable("Set {key} of all name servers to “{value}”?"),
    warning=translatable(
        "The name servers change the setting at once and write it to their files. Some settings take "
        "effect only after a restart."
    ),
)
async def change_setting(context: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Change one setting of all name servers."""
    key, value = read_change(fields)
    await context.admin.update_name_server_settings({key: value})
    check_applied(await context.admin.name_server_settings(), key, value)
    return done(
        "{key} of all name servers set to “{value}”",
        f"/cluster/name-servers?tab=settings&q={quote(key)}",
        key=key, value=value,
    )  # fmt: skip


ROUTES = [
    Route("/cluster/name-servers", name_servers),
    Route("/cluster/name-servers/compare", compare, methods=["POST"]),
    change_setting,
]
