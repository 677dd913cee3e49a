"""The console's page of controllers, and its button for elections."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, OpenerDirector, build_opener

from skyroute.console.config import ConsoleConfig
from skyroute.console.server import Console
from tests.support.controllers import RunningController, pair_in_sync, running
from tests.support.fake_broker import FakeCluster
from tests.support.waiting import eventually
from tests.unit.cli.admin_cluster import admin_cluster


class Visit:
    """A browser without scripts."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._opener: OpenerDirector = build_opener(HTTPCookieProcessor())

    async def get(self, path: str) -> tuple[int, str]:
        return await asyncio.to_thread(self._open, path, None)

    async def post(self, path: str, **fields: str) -> tuple[int, str]:
        return await asyncio.to_thread(self._open, path, urlencode(fields).encode())

    def _open(self, path: str, body: bytes | None) -> tuple[int, str]:
        self._opener.addheaders = [("Origin", self._url)]
        try:
            with self._opener.open(f"{self._url}{path}", body, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()


@asynccontextmanager
async def console_of(cluster: FakeCluster, folder: Path, controllers: str | None) -> AsyncIterator[Visit]:
    config = ConsoleConfig(name_servers=cluster.address, port=0, folder=folder, controllers=controllers)
    console = Console(config, poll_interval_s=1.0)
    await console.start()
    try:
        yield Visit(console.url)
    finally:
        await console.stop()


@asynccontextmanager
async def everything(folder: Path) -> AsyncIterator[tuple[Visit, RunningController]]:
    async with (
        admin_cluster("a") as cluster,
        running(folder / "controller") as controller,
        console_of(cluster, folder / "console", controller.address) as visit,
    ):
        yield visit, controller


async def test_replicas_are_shown_and_an_operator_elects_one(tmp_path: Path) -> None:
    async with everything(tmp_path) as (visit, controller), pair_in_sync(controller) as (_, second):
        await eventually(lambda: _shows(visit, second.listener.address))
        _, text = await visit.get("/cluster")
        assert 'href="/cluster/controllers"' in text
        _, text = await visit.get("/cluster/controllers")
        assert text.count(">Elect</button>") == 1  # not for the master
        token = re.search(r'name="token" value="([^"]+)"', text)
        assert token is not None
        fields = {"token": token[1], "back": "/cluster/controllers", "cluster": "C", "name": "a", "id": "2"}
        status, text = await visit.post("/cluster/controllers/elect", **fields)
        assert (status, "Make broker 2 the master of a?" in text) == (200, True)
        assert controller.master() == 1
        status, text = await visit.post("/cluster/controllers/elect", **fields, confirmed="yes")
        assert (status, "since epoch 2" in text) == (200, True)
        assert controller.master() == 2
        status, text = await visit.post("/cluster/controllers/elect", **fields | {"token": "x"}, confirmed="yes")
        assert (status, controller.master()) == (403, 2)
        status, _ = await visit.post("/cluster/controllers/elect", **fields | {"id": "x"}, confirmed="yes")
        assert status == 409
    audit = (tmp_path / "console" / "audit.jsonl").read_text()
    assert "controller.elect_master done" in audit


async def _shows(visit: Visit, text: str) -> bool:
    return text in (await visit.get("/cluster/controllers"))[1]


async def test_a_controller_that_does_not_respond_is_reported_on_the_page(tmp_path: Path) -> None:
    async with admin_cluster("a") as cluster, console_of(cluster, tmp_path, "127.0.0.1:1") as visit:
        status, text = await visit.get("/cluster/controllers")
        assert (status, "no leading controller" in text) == (200, True)


async def test_without_controllers_the_page_says_how_to_name_them(tmp_path: Path) -> None:
    async with admin_cluster("a") as cluster, console_of(cluster, tmp_path, None) as visit:
        status, text = await visit.get("/cluster/controllers")
        assert (status, "--controller HOST:PORT" in text) == (404, True)
        assert "/cluster/controllers" not in (await visit.get("/cluster"))[1]
