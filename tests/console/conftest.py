"""A console over a real cluster, seen by a real browser. Every page must be sound: no error, no refused resource."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

from skyroute.console.config import ConsoleConfig
from skyroute.console.server import Console
from skyroute.remoting.loops import LoopThread
from skyroute.testing import Cluster, cluster
from tests.support.browsing import Serve

LOOK_S = 1.0
"""So that nobody waits long for what a page shows by itself."""
SCREENSHOTS = Path(__file__).parents[2] / "artifacts" / "console"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, driven by Playwright, which brings none of its own here."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("there is no chromium here")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def real_cluster() -> Iterator[Cluster]:
    """Two name servers and two brokers."""
    with cluster(brokers=2, name_servers=2) as started:
        yield started


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Start consoles, each with a configuration; they stop with the module."""
    thread = LoopThread("consoles")
    started: list[Console] = []

    def start(name_servers: str, **settings: Any) -> Console:
        settings.setdefault("folder", tmp_path_factory.mktemp("console"))
        console = Console(ConsoleConfig(name_servers=name_servers, port=0, **settings), look_s=LOOK_S)
        thread.call(console.start())
        started.append(console)
        return console

    yield start
    for console in started:
        thread.call(console.stop())
    thread.close()


@pytest.fixture(scope="module")
def console(real_cluster: Cluster, serve: Serve) -> Console:
    """A console for the cluster, with no sign-in, as on one's own machine."""
    return serve(";".join(real_cluster.name_server_addresses))


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page that fails its test if a script fails or a resource is refused, and leaves a picture of how it ended."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB", reduced_motion="reduce")
    opened = context.new_page()
    opened.set_default_timeout(10_000)
    wrong: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        # That an answer had a status of failure is for the test to judge.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            wrong.append(message.text)

    def leave(asked: Request) -> None:
        if not asked.url.startswith(("http://127.0.0.1", "https://127.0.0.1", "data:")):
            wrong.append(f"asked elsewhere: {asked.url}")

    opened.on("console", hear)
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("request", leave)
    yield opened
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    opened.screenshot(
        path=SCREENSHOTS / f"{re.sub(r'[^a-z0-9_]+', '-', request.node.name.lower())}.png", full_page=True
    )
    context.close()
    assert wrong == []
