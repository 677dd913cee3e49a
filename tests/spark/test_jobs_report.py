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

from skyroute.pipeline.journal.reading import read_journal
from skyroute.pipeline.report.page import _is_internal, report
from tests.spark.server_runs import BEGIN_S, ServerRun
from tests.support.clock import ManualClock
from tests.unit.nameserver.journal.changes import EVERY_KIND

SECTIONS = [
    "Availability",
    "Outages",
    "Growth and churn",
    "Divergence of name servers",
    "Capacity",
    "Permission changes",
    "Invalid lines",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("chromium is not installed")
    with sync_playwright() as playwright:
        # No sandbox: tests run as root in containers, and the page is trusted.
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def page_file(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two servers: one lacked a broker for a minute, and its journal has an invalid line."""
    folder, clock = tmp_path_factory.mktemp("report"), ManualClock()
    runs = [ServerRun(folder / name, name, clock) for name in ("<left>", "right")]
    for run in runs:
        run.start()
    joins, leave = EVERY_KIND[1:6], EVERY_KIND[12]
    runs[0]._record(*joins)
    clock.advance(60.0)
    runs[1]._record(*joins)
    clock.advance(3_600.0)
    for run in runs:
        run._record(leave)
    clock.advance(600.0)
    for run in runs:
        run._record(*joins[1:2])
    for run in runs:
        run.stop()
    broken = next((folder / "right" / "journal").glob("*.jsonl"))
    broken.write_bytes(broken.read_bytes() + b"<script>alert(1)</script>\n")
    journal = read_journal(spark, [run.folder for run in runs])
    path = folder / "report.html"
    path.write_text(report(journal, datetime.fromtimestamp(BEGIN_S + 7_200, UTC), 3_600.0), encoding="utf-8")
    return path


@pytest.fixture
def page(browser: Browser, page_file: Path) -> Iterator[Page]:
    opened = browser.new_page()
    requested, messages = list[str](), list[str]()
    opened.on("request", lambda request: requested.append(request.url))
    opened.on("console", lambda message: messages.append(message.text))
    opened.on("pageerror", lambda error: messages.append(str(error)))
    opened.goto(page_file.as_uri())
    yield opened
    assert requested == [page_file.as_uri()], "the page loads nothing else"
    assert messages == []
    opened.close()


def test_every_section_has_its_tables_and_charts(page: Page) -> None:
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


def test_the_tables_show_the_jobs_results(page: Page) -> None:
    brokers = page.get_by_role("region", name="Availability", exact=True).get_by_role("row").filter(has_text="broker")
    assert brokers.count() == 2
    assert "85.915%" in brokers.filter(has_text="left").inner_text()  # 3660 s up, 600 s down
    assert "85.714%" in brokers.filter(has_text="right").inner_text()
    divergence = page.get_by_role("region", name="Divergence of name servers", exact=True)
    assert "1.0\N{NO-BREAK SPACE}min" in divergence.inner_text()
    assert page.locator("rect.down").count() > 0
    rejects = page.get_by_role("region", name="Invalid lines", exact=True)
    assert "<script>alert(1)</script>" in rejects.inner_text()
    assert "<left>" in page.get_by_role("definition").first.inner_text()


def test_chart_labels_are_not_cut_off(page: Page) -> None:
    for chart in page.get_by_role("img").all():
        box = chart.bounding_box()
        assert box is not None
        for label in chart.locator("text").all():
            text = label.bounding_box()
            assert text is not None
            assert text["x"] >= box["x"], label.text_content()
            assert text["x"] + text["width"] <= box["x"] + box["width"], label.text_content()


def test_user_topics_come_before_internal_topics() -> None:
    topics = ["broker-a", "DefaultCluster", "DefaultCluster_REPLY_TOPIC", "%RETRY%shop", "TBW102", "Orders", "zebra"]
    topics.sort(key=lambda topic: _is_internal(topic, {"broker-a", "DefaultCluster"}))
    assert topics[:2] == ["Orders", "zebra"]


def test_the_report_follows_the_light_or_dark_preference(page: Page) -> None:
    def colours() -> tuple[list[int], list[int]]:
        back, text = page.evaluate("(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))")
        return ([int(each) for each in re.findall(r"\d+", back)], [int(each) for each in re.findall(r"\d+", text)])

    page.emulate_media(color_scheme="light")
    back, text = colours()
    assert sum(back) > sum(text)
    page.emulate_media(color_scheme="dark")
    back, text = colours()
    assert sum(back) < sum(text)


def test_the_report_is_accessible_to_screen_readers(page: Page) -> None:
    """Charts have a name and a description; tables have captions and column headers."""
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


def test_a_narrow_screen_needs_no_horizontal_scrolling(page: Page) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
