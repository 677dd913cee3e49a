"""The report of the Spark pipeline, linked from the console."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from skyroute.console.access.users import Role, make_user, write_users
from skyroute.console.config import USERS_NAME, ConsoleConfig
from skyroute.console.pages import history
from skyroute.console.server import Console
from tests.network.console.test_controllers import Visit

REPORT = "<!DOCTYPE html><title>Cluster report</title><style>p { color: red; }</style><p>1 incident"


@asynccontextmanager
async def started(folder: Path, **settings: Any) -> AsyncIterator[Console]:
    # No name server responds: the report needs none.
    console = Console(ConsoleConfig(name_servers="127.0.0.1:1", port=0, folder=folder / "console", **settings))
    await console.start()
    try:
        yield console
    finally:
        await console.stop()


async def test_the_route_history_links_to_the_latest_report(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    async with started(tmp_path, report=path) as console:
        visit = Visit(console.url)
        assert 'href="/history/report"' in (await visit.get("/history"))[1]
        status, page = await visit.get("/history/report")
        assert (status, "cannot be read: No such file or directory" in page) == (HTTPStatus.BAD_REQUEST, True)
        for content in (REPORT, f"{REPORT} and another"):
            path.write_text(content)
            assert await visit.get("/history/report") == (HTTPStatus.OK, content)


async def test_a_report_runs_no_scripts_and_loads_nothing(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(REPORT)
    async with started(tmp_path, report=path) as console:
        response = await asyncio.to_thread(urlopen, f"{console.url}history/report")
        with response:
            assert response.headers.get_all("Content-Security-Policy") == [history.REPORT_POLICY]
            assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_a_report_needs_sign_in_and_an_option(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(REPORT)
    users = tmp_path / "console" / USERS_NAME
    users.parent.mkdir()
    write_users(users, {"ann": make_user("ann", Role.VIEWER, "a password")})
    async with started(tmp_path, report=path, sign_in=True) as console:
        assert "1 incident" not in (await Visit(console.url).get("/history/report"))[1]
    async with started(tmp_path) as console:
        assert (await Visit(console.url).get("/history/report"))[0] == HTTPStatus.NOT_FOUND
        assert "/history/report" not in (await Visit(console.url).get("/history"))[1]


async def test_a_report_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "REPORT_BYTES_MAX", len(REPORT) - 1)
    path = tmp_path / "report.html"
    path.write_text(REPORT)
    async with started(tmp_path, report=path) as console:
        assert f"is larger than {len(REPORT) - 1} bytes" in (await Visit(console.url).get("/history/report"))[1]
