"""The report, as a browser shows it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from pyspark.sql import SparkSession

from skyroute.pipeline.jobs.report import _is_internal, report
from skyroute.pipeline.journal.reading import read_journal
from tests.spark.lives import BEGIN_S, Life
from tests.support.clock import ManualClock
from tests.unit.nameserver.journal.changes import EVERY_KIND

SECTIONS = [
    "Availability",
    "Outages",
    "Growth and churn",
    "Disagreements of name servers",
    "Capacity",
    "Changes of permission",
    "Lines that are no records",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("there is no chromium here")
    with sync_playwright() as playwright:
        # No sandbox: tests run as root in containers, and the page is ours.
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def page_file(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two servers, one of which missed a broker for a minute, with a line that is no record."""
    folder, clock = tmp_path_factory.mktemp("report"), ManualClock()
    lives = [Life(folder / name, name, clock) for name in ("<left>", "right")]
    for life in lives:
        life.start()
    came, gone = EVERY_KIND[1:6], EVERY_KIND[12]
    lives[0]._record(*came)
    clock.advance(60.0)
    lives[1]._record(*came)
    clock.advance(3_600.0)
    for life in lives:
        life._record(gone)
    clock.advance(600.0)
    for life in lives:
        life._record(*came[1:2])
    for life in lives:
        life.stop()
    broken = next((folder / "right" / "journal").glob("*.jsonl"))
    broken.write_bytes(broken.read_bytes() + b"<script>alert(1)</script>\n")
    journal = read_journal(spark, [life.folder for life in lives])
    path = folder / "report.html"
    path.write_text(report(journal, datetime.fromtimestamp(BEGIN_S + 7_200, UTC), 3_600.0), encoding="utf-8")
    return path


@pytest.fixture
def page(browser: Browser, page_file: Path) -> Iterator[Page]:
    opened = browser.new_page()
    asked, said = list[str](), list[str]()
    opened.on("request", lambda request: asked.append(request.url))
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.goto(page_file.as_uri())
    yield opened
    assert asked == [page_file.as_uri()], "the page asks for nothing else"
    assert said == []
    opened.close()


def test_every_section_is_there_with_its_tables_and_charts(page: Page) -> None:
    assert [each.inner_text() for each in page.get_by_role("heading", level=2).all()] == SECTIONS
    for name in SECTIONS[:-1]:
        assert page.get_by_role("region", name=name, exact=True).get_by_role("table").count() == 1, name
    charts = page.get_by_role("img").all()
    assert len(charts) == 3
    for chart in charts:
        box = chart.bounding_box()
        assert box is not None
        assert box["width"] > 500
        assert box["height"] > 20


def test_what_it_says_is_so(page: Page) -> None:
    brokers = page.get_by_role("region", name="Availability", exact=True).get_by_role("row").filter(has_text="broker")
    assert brokers.count() == 2
    assert "85.915%" in brokers.filter(has_text="left").inner_text()  # 3660 s up, 600 s down
    assert "85.714%" in brokers.filter(has_text="right").inner_text()
    apart = page.get_by_role("region", name="Disagreements of name servers", exact=True)
    assert "1.0\N{NO-BREAK SPACE}min" in apart.inner_text()
    assert page.locator("rect.down").count() > 0
    rejects = page.get_by_role("region", name="Lines that are no records", exact=True)
    assert "<script>alert(1)</script>" in rejects.inner_text()
    assert "<left>" in page.get_by_role("definition").first.inner_text()


def test_no_label_of_a_chart_is_cut_off(page: Page) -> None:
    for chart in page.get_by_role("img").all():
        box = chart.bounding_box()
        assert box is not None
        for label in chart.locator("text").all():
            text = label.bounding_box()
            assert text is not None
            assert text["x"] >= box["x"], label.text_content()
            assert text["x"] + text["width"] <= box["x"] + box["width"], label.text_content()


def test_topics_of_applications_come_before_the_systems_own() -> None:
    topics = ["broker-a", "DefaultCluster", "DefaultCluster_REPLY_TOPIC", "%RETRY%shop", "TBW102", "Orders", "zebra"]
    topics.sort(key=lambda topic: _is_internal(topic, {"broker-a", "DefaultCluster"}))
    assert topics[:2] == ["Orders", "zebra"]


def test_it_follows_the_readers_light(page: Page) -> None:
    def colours() -> tuple[list[int], list[int]]:
        back, text = page.evaluate("(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))")
        return ([int(each) for each in re.findall(r"\d+", back)], [int(each) for each in re.findall(r"\d+", text)])

    page.emulate_media(color_scheme="light")
    back, text = colours()
    assert sum(back) > sum(text)
    page.emulate_media(color_scheme="dark")
    back, text = colours()
    assert sum(back) < sum(text)


def test_it_is_readable_by_ear(page: Page) -> None:
    """Charts have a name and a description, tables captions and heads, and headings are in order."""
    for chart in page.get_by_role("img").all():
        name = chart.get_attribute("aria-labelledby")
        assert name is not None
        title, about = (page.locator(f"#{each}").text_content() for each in name.split())
        assert title
        assert about
    for table in page.get_by_role("table").all():
        assert table.locator("caption").count() == 1
        assert table.get_by_role("columnheader").count() > 2
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.get_by_role("main").count() == 1


def test_a_narrow_screen_needs_no_scrolling_to_the_side(page: Page) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
