"""Every page in Chinese and in the dark theme: no text without a translation, and no accessibility problem."""

import logging
import re
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser
from starlette.routing import Match, Route

from skyroute import Message, StartPosition
from skyroute.blocking import Consumer, Producer
from skyroute.console.server import Console
from skyroute.testing import Cluster
from tests.support.browsing import Serve, app_of
from tests.unit.nameserver.journal.changes import EVERY_KIND, write

PAGES_MAX = 60


@pytest.fixture(scope="module")
def busy_cluster(real_cluster: Cluster) -> Iterator[Cluster]:
    """A cluster with data for every page."""
    with (
        Producer("translated_producers", real_cluster.name_server_address) as producer,
        Consumer("translated_group", real_cluster.name_server_address, start=StartPosition.FIRST) as consumer,
    ):
        producer.send(Message("Translated", '{"who": "世界"}'.encode(), keys=("k1",)))
        consumer.subscribe("Translated")
        next(iter(consumer))
        yield real_cluster


def links(console: Console, client: httpx.Client) -> list[str]:
    """Return one address of every page and tab that links lead to."""
    app = app_of(console)
    waiting, found = ["/", "/messages?topic=Translated"], dict[str, str]()
    while waiting and len(found) < PAGES_MAX:
        address = waiting.pop(0)
        parts = urlsplit(address)
        scope = {"type": "http", "method": "GET", "path": parts.path}
        matching = [
            each.path for each in app.routes if isinstance(each, Route) and each.matches(scope)[0] is Match.FULL
        ]
        tab = parse_qs(parts.query).get("tab", [""])[0]
        if not matching or f"{matching[0]} {tab}" in found or matching[0] == "/live":
            continue
        found[f"{matching[0]} {tab}"] = address
        answer = client.get(address)
        assert answer.status_code == HTTPStatus.OK, address
        if answer.headers["content-type"].startswith("text/html"):
            waiting += [
                urljoin(address, each.replace("&amp;", "&")) for each in re.findall(r'href="([^"#]+)"', answer.text)
            ]
        else:
            del found[f"{matching[0]} {tab}"]
    return list(found.values())


def test_every_page_is_translated_and_accessible(
    browser: Browser, serve: Serve, busy_cluster: Cluster, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    write(tmp_path, *EVERY_KIND[:-1])
    console = serve(busy_cluster.name_server_address, journals={"ns": tmp_path})
    cookies = {"skyroute_language": "zh", "skyroute_theme": "dark"}
    with httpx.Client(base_url=console.url, cookies=cookies, timeout=30) as client:
        caplog.set_level(logging.DEBUG, "skyroute.console.web.texts")
        pages = links(console, client)
        missing = {record.getMessage() for record in caplog.records if record.name == "skyroute.console.web.texts"}
        assert missing == set()
    assert len(pages) > 15, pages
    context = browser.new_context(viewport={"width": 1280, "height": 900}, locale="zh-CN", reduced_motion="reduce")
    context.add_cookies([{"name": name, "value": value, "url": console.url} for name, value in cookies.items()])
    page = context.new_page()
    for address in pages:
        page.goto(urljoin(console.url, address))
        assert page.locator("html").get_attribute("lang") == "zh-CN"
        found = Axe().run(page)
        assert found.violations_count == 0, f"{address}\n{found.generate_report()}"
    context.close()
