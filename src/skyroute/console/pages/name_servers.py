"""Name servers: their state, where they differ when asked for everything, and their settings."""

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
from skyroute.console.cluster_data.name_server_differences import find_drift
from skyroute.console.cluster_data.settings_table import check_took, find_settings, read_change
from skyroute.console.guard.visitors import Visitor
from skyroute.console.pages.actions import WRONG_TOKEN, Done, Fields, action, done, is_ours, refuse
from skyroute.console.pages.forms import read_fields
from skyroute.console.pages.page_context import PageContext, Paging, desk_of, page_number
from skyroute.console.pages.text import translator
from skyroute.errors import SkyrouteError

PATIENCE_S: Final = 2.0
"""How long whoever asks for a comparison waits for it; if it takes longer, the page shows that it is under way."""
COMPARING_S_MAX: Final = 300.0
TABS = (("", "State"), ("settings", "Settings"))


class Comparing:
    """The latest comparison of all name servers. It asks each for every topic, so there is one at a time, for all."""

    def __init__(self) -> None:
        self.result: Comparison | None = None
        self.failure = ""
        self.begun_s = 0.0
        """When the latest was begun, by the wall clock."""
        self._task: asyncio.Task[None] | None = None

    @property
    def under_way(self) -> bool:
        return self._task is not None and not self._task.done()

    async def begin(self, admin: Admin, clock: Clock) -> None:
        """Compare, unless that is being done; return when it is done, or after a while."""
        if self._task is None or self._task.done():
            self.result, self.failure, self.begun_s = None, "", clock.wall()
            self._task = asyncio.create_task(self._compare(admin))
        await asyncio.wait([self._task], timeout=PATIENCE_S)

    async def _compare(self, admin: Admin) -> None:
        try:
            async with asyncio.timeout(COMPARING_S_MAX):
                self.result = await compare_name_servers(admin)
        except SkyrouteError as error:
            self.failure = str(error)
        except TimeoutError:
            self.failure = (
                f"not every route was compared within {COMPARING_S_MAX:.0f} s: try again when there is less to do"
            )


def _comparing(request: Request) -> Comparing:
    comparing: Comparing = request.app.state.comparing
    return comparing


async def name_servers(request: Request) -> Response:
    """Show the name servers: how they are and where they differ, or their settings."""
    desk = desk_of(request)
    comparing = _comparing(request)
    differences = comparing.result.differences if comparing.result else ()
    tab = request.query_params.get("tab", "")
    wanted = request.query_params.get("q", "").strip().lower()
    texts = ServerProperties({}, {})
    if tab == "settings":
        try:
            texts = await desk.admin.name_server_settings()
        except SomeFailedError as error:
            texts = ServerProperties({}, error.failures)
    rows = find_settings(texts, wanted)
    paging = Paging(len(rows if tab == "settings" else differences), page_number(request))
    return desk.show(
        request,
        "cluster_name_servers.html",
        drift=find_drift(desk.watcher.look.name_servers),
        comparing=comparing,
        differences=differences[paging.start : paging.stop],
        tabs=TABS,
        tab=tab,
        settings=rows[paging.start : paging.stop],
        change=next((row for row in rows if row.key == request.query_params.get("change")), None),
        failures=texts.failures,
        paging=paging,
    )


async def compare(request: Request) -> Response:
    """Ask every name server for everything. That changes nothing, so viewers may; no other site may have them do it."""
    desk = desk_of(request)
    if not is_ours(request.state.visitor, await read_fields(request)):
        return refuse(request, translator(request.state.visitor.language)(WRONG_TOKEN), HTTPStatus.FORBIDDEN)
    await _comparing(request).begin(desk.admin, desk.clock)
    return desk.go("/cluster/name-servers")


@action(
    "/cluster/name-servers/change-setting",
    "name_server.change_setting",
    question="Set {key} of all name servers to “{value}”?",
    warning="It is changed while they run, and kept in their files. Some settings take effect after a restart.",
)
async def change_setting(desk: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Change one setting of all name servers."""
    key, value = read_change(fields)
    await desk.admin.update_name_server_settings({key: value})
    check_took(await desk.admin.name_server_settings(), key, value)
    return done(
        "{key} of all name servers is “{value}” now",
        f"/cluster/name-servers?tab=settings&q={quote(key)}",
        key=key, value=value,
    )  # fmt: skip


ROUTES = [
    Route("/cluster/name-servers", name_servers),
    Route("/cluster/name-servers/compare", compare, methods=["POST"]),
    change_setting,
]
