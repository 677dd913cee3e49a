"""A console for a real cluster, in a real browser. No page may have a script error or a refused resource."""

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

POLL_INTERVAL_S = 1.0
"""Short, so that tests need not wait long for a page to reload itself."""
SCREENSHOTS = Path(__file__).parents[2] / "artifacts" / "console"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The installed Chromium, driven by Playwright."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("chromium is not installed")
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
    """Return a function that starts consoles; they stop with the module."""
    thread = LoopThread("consoles")
    started: list[Console] = []

    def start(name_servers: str, **settings: Any) -> Console:
        settings.setdefault("folder", tmp_path_factory.mktemp("console"))
        console = Console(ConsoleConfig(name_servers=name_servers, port=0, **settings), poll_interval_s=POLL_INTERVAL_S)
        thread.call(console.start())
        started.append(console)
        return console

    yield start
    for console in started:
        thread.call(console.stop())
    thread.close()


@pytest.fixture(scope="module")
def console(real_cluster: Cluster, serve: Serve) -> Console:
    """A console for the cluster without sign-in."""
    return serve(";".join(real_cluster.name_server_addresses))


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page that fails its test on a script error or a refused resource, and saves a screenshot at the end."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB", reduced_motion="reduce")
    opened = context.new_page()
    opened.set_default_timeout(10_000)
    errors: list[str] = []

    def on_message(message: ConsoleMessage) -> None:
        # The test checks the status of responses.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            errors.append(message.text)

    def on_request(asked: Request) -> None:
        if not asked.url.startswith(("http://127.0.0.1", "https://127.0.0.1", "data:")):
            errors.append(f"request to another host: {asked.url}")

    opened.on("console", on_message)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("request", on_request)
    yield opened
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    opened.screenshot(
        path=SCREENSHOTS / f"{re.sub(r'[^a-z0-9_]+', '-', request.node.name.lower())}.png", full_page=True
    )
    context.close()
    assert errors == []
