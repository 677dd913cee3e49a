"""The report, as a browser shows it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, sync_playwright
from pyspark.sql import SparkSession

from skyroute.pipeline.journal.reading import read_journal
from skyroute.pipeline.report.charts import BarPart, bars, lines
from skyroute.pipeline.report.page import _is_internal, report
from tests.spark.server_runs import BEGIN_S, ServerRun
from tests.support.clock import ManualClock
from tests.unit.routing.brokers import registration

SECTIONS = [
    "Timeline",
    "Incidents",
    "Availability",
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
    """A report of two servers: one lacked a broker for a minute, one crashed, and its journal has an invalid line."""
    folder, clock = tmp_path_factory.mktemp("report"), ManualClock()
    runs = [ServerRun(folder / name, name, clock) for name in ("<left>", "right")]
    for run in runs:
        run.start()
    broker = registration(0, "a:1", name="b", topics=["T1", "T2", "TBW102"])
    runs[0]._register(broker, 1)
    clock.advance(60.0)
    runs[1]._register(broker, 1)
    clock.advance(3_600.0)
    for run in runs:
        run._drop(1)
        clock.advance(0.25)
    clock.advance(600.0)
    for run in runs:
        run._register(broker, 1)
    runs[0].stop()
    runs[1].stop(cleanly=False)
    clock.advance(60.0)
    runs[1].start(warm=True)
    runs[1].stop()
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


def section(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def test_every_section_has_its_tables_and_charts(page: Page) -> None:
    assert [each.inner_text() for each in page.get_by_role("heading", level=2).all()] == SECTIONS
    for name in SECTIONS[1:-2]:
        assert section(page, name).get_by_role("table").count() == 1, name
    charts = page.get_by_role("img").all()
    assert len(charts) == 3
    for chart in charts:
        box = chart.bounding_box()
        assert box is not None
        assert box["width"] > 500
        assert box["height"] > 20


def test_the_headline_and_the_summary_come_first(page: Page) -> None:
    assert page.locator("main > *").nth(1).inner_text().startswith("1 unplanned incident. The last one began at ")
    names, values = page.get_by_role("term").all_inner_texts(), page.get_by_role("definition").all_inner_texts()
    summary = dict(zip(names, values, strict=True))
    assert summary["Worst availability"] == "85.710% of broker a:1 (b), as 127.0.0.1:9876 (right) recorded it"
    assert summary["Longest outage"].startswith("10.0\N{NO-BREAK SPACE}min from ")
    assert summary["Longest outage"].endswith(": broker a:1 (b)")
    assert summary["Churn"] == "4 brokers joined, 2 left, 12 topics added, 6 removed"
    assert summary["Divergences"] == "1"


def test_name_servers_have_their_addresses(page: Page) -> None:
    assert page.get_by_role("definition").first.inner_text() == "127.0.0.1:9876 (<left>), 127.0.0.1:9876 (right)"


def test_an_incident_is_one_row_with_what_it_took_along(page: Page) -> None:
    (row,) = section(page, "Incidents").get_by_role("row").filter(has_text="connection_closed").all()
    cells = row.get_by_role("cell").all_inner_texts()
    assert cells[3:] == [
        "broker a:1 (b)",
        "the whole of b; 3 topics: T1, T2, TBW102",
        "connection_closed",
        "no",
        "127.0.0.1:9876 (<left>), 127.0.0.1:9876 (right)",
    ]


def test_the_timeline_has_the_runs_of_the_name_servers(page: Page) -> None:
    timeline = section(page, "Timeline")
    labels = timeline.locator("text:not(.mark)").all_text_contents()
    assert labels == [f"name server 127.0.0.1:9876 ({name})" for name in ("<left>", "right")] + [
        f"a:1 (b) at 127.0.0.1:9876 ({name})" for name in ("<left>", "right")
    ]
    texts = timeline.locator("rect title").all_text_contents()
    assert [text.split()[0].rstrip(",") for text in texts[:4]] == ["ran", "ran", "crashed", "ran"]


def test_short_values_are_in_one_line(page: Page) -> None:
    cell = section(page, "Incidents").get_by_role("cell", name="connection_closed", exact=True)
    assert cell.evaluate("each => getComputedStyle(each).whiteSpace") == "nowrap"


def test_system_topics_are_folded_away(page: Page) -> None:
    for name in ("Availability", "Capacity"):
        part = section(page, name)
        folded = part.get_by_text("TBW102", exact=True)
        assert not folded.first.is_visible()
        part.get_by_text("2 system topics").click()
        assert folded.first.is_visible()


def test_the_tables_show_the_jobs_results(page: Page) -> None:
    brokers = section(page, "Availability").get_by_role("row").filter(has_text="broker")
    assert brokers.count() == 2
    assert "85.905%" in brokers.filter(has_text="left").inner_text()  # 3660 s up, 600.5 s down
    assert "85.710%" in brokers.filter(has_text="right").inner_text()
    (row,) = section(page, "Divergence of name servers").get_by_role("row").all()[1:]
    cells = row.get_by_role("cell").all_inner_texts()
    assert cells[2:6] == ["1.0\N{NO-BREAK SPACE}min", "b", "broker, group, queues", "T1, T2, TBW102, a:1"]
    assert page.locator("rect.down").count() > 0
    assert "<script>alert(1)</script>" in section(page, "Invalid lines").inner_text()


def fits(page: Page) -> None:
    for chart in page.get_by_role("img").all():
        box = chart.bounding_box()
        assert box is not None
        for label in chart.locator("text").all():
            text = label.bounding_box()
            assert text is not None
            assert text["x"] >= box["x"] - 0.5, label.text_content()
            assert text["x"] + text["width"] <= box["x"] + box["width"] + 0.5, label.text_content()


def test_chart_labels_are_not_cut_off(page: Page) -> None:
    fits(page)


@pytest.mark.parametrize("length", [30, 60, 250])
def test_long_labels_are_whole(browser: Browser, length: int) -> None:
    name = ("broker-a.example.com:10911 " * 10)[:length]
    opened = browser.new_page()
    at = datetime.fromtimestamp(BEGIN_S, UTC)
    series = {f"{name}{number}": [(at, 1.0), (at + timedelta(hours=1), 2.0)] for number in range(3)}
    chart = bars("Bars", "About", {name: [BarPart(0, 1, "up", "all")]}, ["begin", "end"])
    opened.set_content(chart._repr_html_() + lines("Lines", "About", series))
    assert opened.locator("text:not(.mark)").filter(has_text=name.strip()).count() == 4
    fits(opened)
    opened.close()


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


@pytest.mark.parametrize("width", [360, 800, 900, 1280])
def test_nothing_scrolls_sideways(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    wide = "each => each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).display != 'inline'"
    boxes = "[...document.querySelectorAll('html, main *:not(svg *)')]"
    assert page.evaluate(f"{boxes}.filter({wide}).map(each => each.outerHTML)") == []
