"""The console's picture of a broker group: who follows whom, and how far behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from skyroute.clock import SystemClock
from skyroute.console.config import ConsoleConfig
from skyroute.console.server import Console
from skyroute.console.web.formatting import group_picture
from tests.network.broker.clusters import cluster_in
from tests.network.console.test_controllers import Visit
from tests.support.waiting import eventually


def test_a_slave_that_does_not_follow_has_a_dashed_line() -> None:
    picture = group_picture("group", "master", [("slave <1>", "in step", True), ("slave 2", "unknown", False)])
    assert picture.count("<rect") == 3
    assert picture.count('class="follows"') == picture.count('class="lost"') == 1
    assert "slave &lt;1&gt;" in picture


async def test_the_page_of_a_broker_shows_its_group(tmp_path: Path) -> None:
    async with cluster_in(tmp_path) as cluster:
        master = await cluster.start_live()
        settings: dict[str, Any] = {"broker_id": 1, "broker_role": "SLAVE", "store_path": str(tmp_path / "slave")}
        slave = await cluster.start(clock=SystemClock(), **settings)
        config = ConsoleConfig(name_servers=cluster.name_server_address, port=0, folder=tmp_path / "console")
        console = Console(config, poll_interval_s=0.2)
        await console.start()
        try:
            visit = Visit(console.url)

            async def shows(text: str) -> bool:
                return text in (await visit.get("/cluster/broker-a/1"))[1]

            await eventually(lambda: shows("in step"), "the slave is on the picture")
            _, page = await visit.get("/cluster/broker-a/1")
            assert f"master · {master.address}" in page
            assert f"slave 1 · {slave.address}" in page
            await cluster.kill(master)
            await eventually(lambda: shows("no master"), "the master is away")
        finally:
            await console.stop()
