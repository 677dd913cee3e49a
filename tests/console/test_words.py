"""Whoever reads Chinese finds everything in Chinese, and every page in dark is as sound as in light."""

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from jinja2 import Environment, nodes
from playwright.sync_api import Browser
from starlette.routing import Match, Route

from skyroute import Message, StartPosition
from skyroute.blocking import Consumer, Producer
from skyroute.console import chinese
from skyroute.console.chinese import WORDS
from skyroute.console.pages import history
from skyroute.console.server import Console
from skyroute.nameserver.journal.schema import Kind
from skyroute.routing.events import Cause
from skyroute.testing import Cluster
from tests.support.browsing import Serve, app_of
from tests.unit.nameserver.journal.changes import EVERY_KIND, write

CONSOLE = Path(chinese.__file__).parents[1]
TEXT_CALLS = {"_", "translate", "done"}
TEXT_WORDS = {"question", "warning"}
PAGES_MAX = 60
BRACES = re.compile(r"\{\w+\}")


def template_texts() -> Iterator[tuple[str, str]]:
    """Where a template says a text, and the text."""
    for path in sorted((CONSOLE / "templates").glob("*.html")):
        for call in Environment().parse(path.read_text()).find_all(nodes.Call):
            if isinstance(call.node, nodes.Name) and call.node.name == "_" and call.args:
                said = call.args[0]
                for text in [said] if isinstance(said, nodes.Const) else said.find_all(nodes.Const):
                    if isinstance(text.value, str) and (said is text or isinstance(said, nodes.CondExpr)):
                        yield f"{path.name}:{call.lineno}", text.value


def python_texts() -> Iterator[tuple[str, str]]:
    """Where a module says a text, and the text; constants of the module are looked up."""
    for path in modules():
        tree = ast.parse(path.read_text())
        constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.AnnAssign | ast.Assign)
            for target in ([node.target] if isinstance(node, ast.AnnAssign) else node.targets)
            if isinstance(target, ast.Name) and node.value is not None
        }
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            said = [word.value for word in call.keywords if word.arg in TEXT_WORDS]
            if isinstance(call.func, ast.Name) and call.func.id in TEXT_CALLS:
                said += call.args[:1]
            for each in said:
                found = constants.get(each.id, each) if isinstance(each, ast.Name) else each
                for text in [found.body, found.orelse] if isinstance(found, ast.IfExp) else [found]:
                    if isinstance(text, ast.Constant) and isinstance(text.value, str):
                        yield f"{path.name}:{call.lineno}", text.value


def modules() -> list[Path]:
    return [path for path in sorted(CONSOLE.rglob("*.py")) if path.parent.name != "chinese"]


def test_every_text_has_chinese() -> None:
    said = [*template_texts(), *python_texts()]
    assert len(said) > 300, "texts are found"
    assert [f"{place} {text!r}" for place, text in said if text and text not in WORDS] == []


def test_no_chinese_is_dead() -> None:
    used = {text for _, text in template_texts()}
    for path in (CONSOLE / "templates").glob("*.html"):
        used |= {text.value for text in Environment().parse(path.read_text()).find_all(nodes.Const)}
    for path in modules():
        tree = ast.walk(ast.parse(path.read_text()))
        used |= {node.value for node in tree if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert sorted(WORDS.keys() - used) == []


def test_every_kind_and_cause_of_a_change_has_a_text() -> None:
    assert set(history.KINDS) == set(Kind)
    assert set(history.CAUSES) == set(Cause)
    assert {*history.KINDS.values(), *history.CAUSES.values()} <= WORDS.keys()


def test_the_same_things_are_put_in() -> None:
    wrong = [text for text, words in WORDS.items() if sorted(BRACES.findall(text)) != sorted(BRACES.findall(words))]
    assert wrong == []


def test_modules_do_not_contradict_each_other() -> None:
    said: dict[str, str] = {}
    for path in sorted((CONSOLE / "chinese").glob("[!_]*.py")):
        for text, words in getattr(chinese, path.stem).WORDS.items():
            assert said.setdefault(text, words) == words, f"{path.name}: {text}"


@pytest.fixture(scope="module")
def busy_cluster(real_cluster: Cluster) -> Iterator[Cluster]:
    """One in which there is something to see on every page."""
    with (
        Producer("words_producers", real_cluster.name_server_address) as producer,
        Consumer("words_group", real_cluster.name_server_address, start=StartPosition.FIRST) as consumer,
    ):
        producer.send(Message("Words", '{"who": "世界"}'.encode(), keys=("k1",)))
        consumer.subscribe("Words")
        next(iter(consumer))
        yield real_cluster


def links(console: Console, client: httpx.Client) -> list[str]:
    """One address of every page and tab that can be reached by links."""
    app = app_of(console)
    waiting, found = ["/", "/messages?topic=Words"], dict[str, str]()
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
        assert answer.status_code == 200, address
        if answer.headers["content-type"].startswith("text/html"):
            waiting += [
                urljoin(address, each.replace("&amp;", "&")) for each in re.findall(r'href="([^"#]+)"', answer.text)
            ]
        else:
            del found[f"{matching[0]} {tab}"]
    return list(found.values())


def test_every_page_is_sound_in_chinese_and_dark(
    browser: Browser, serve: Serve, busy_cluster: Cluster, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    write(tmp_path, *EVERY_KIND[:-1])
    console = serve(busy_cluster.name_server_address, journals={"ns": tmp_path})
    cookies = {"skyroute_language": "zh", "skyroute_theme": "dark"}
    with httpx.Client(base_url=console.url, cookies=cookies, timeout=30) as client:
        caplog.set_level(logging.DEBUG, "skyroute.console.pages.text")
        pages = links(console, client)
        missing = {record.getMessage() for record in caplog.records if record.name == "skyroute.console.pages.text"}
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
