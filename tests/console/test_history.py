"""Route history: the journals of two name servers while brokers join, change and leave."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from skyroute.blocking import Admin
from skyroute.broker.broker import Broker
from skyroute.broker.config import BrokerConfig
from skyroute.console.server import Console
from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.server import NameServer
from skyroute.remoting.loops import LoopThread
from tests.support.browsing import Serve, check_accessible

LIVE_MS = 20_000
"""Time for a change to reach the journal and the page."""


@dataclass
class Recorded:
    """Two name servers with journals, and brokers."""

    thread: LoopThread
    folder: Path
    servers: list[NameServer]
    brokers: list[Broker] = field(default_factory=list)

    @property
    def addresses(self) -> str:
        return ";".join(server.address for server in self.servers)

    @property
    def journals(self) -> dict[str, Path]:
        return {f"ns{number}": self.folder / f"ns{number}" for number in range(len(self.servers))}

    def broker(self, name: str) -> Broker:
        config = BrokerConfig(
            broker_name=name,
            bind_address="127.0.0.1",
            listen_port=0,
            name_server_list=self.addresses,
            store_path=str(self.folder / name),
            commit_log_file_bytes=1024 * 1024,
            consume_queue_file_bytes=20 * 2_000,
        )
        started = Broker(config)
        self.thread.call(started.start())
        self.brokers.append(started)
        return started

    def stop(self, server: Broker | NameServer) -> None:
        self.thread.call(server.stop())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    folder, thread = tmp_path_factory.mktemp("recorded"), LoopThread("recorded")
    servers = []
    for number in range(2):
        memory = str(folder / f"ns{number}")
        config = NameServerConfig(
            bind_address="127.0.0.1",
            listen_port=0,
            memory_path=memory,
            kv_config_path=f"{memory}.json",
            settings_file=f"{memory}.properties",
        )
        servers.append(NameServer(config))
        thread.call(servers[-1].start())
    whole = Recorded(thread, folder, servers)
    yield whole
    for broker in whole.brokers:
        whole.stop(broker)
    for server in servers:
        whole.stop(server)
    thread.close()


@pytest.fixture(scope="module")
def historian(recorded: Recorded, serve: Serve) -> Console:
    return serve(recorded.addresses, journals=recorded.journals)


def test_the_history_of_a_topic_is_live_and_shows_any_point_in_time(
    page: Page, historian: Console, recorded: Recorded
) -> None:
    staying, going = recorded.broker("broker-stays"), recorded.broker("broker-goes")
    page.goto(f"{historian.url}history?topic=Story&journal=ns0")
    row = page.locator("tbody tr")
    expect(row.filter(has_text="Broker joined")).to_have_count(0)  # no broker has it yet
    with Admin(name_servers=recorded.addresses) as admin:
        for broker in (staying, going):
            admin.create_topic("Story", broker=broker.address, read_queues=3, write_queues=2)
        # Without a reload of the page.
        expect(row.filter(has_text="Topics changed")).to_have_count(2, timeout=LIVE_MS)
        recorded.stop(going)
        expect(row.filter(has_text="Broker left").filter(has_text="broker-goes[0]")).to_be_visible(timeout=LIVE_MS)
    check_accessible(page)

    created = row.filter(has_text="added=1[Story]").first.get_by_role("link")
    number = created.inner_text()
    created.click()
    expect(page.get_by_text(f"Routes of ns0 after record {number} of")).to_be_visible()
    queues = page.get_by_role("region", name="Queues by topic").locator("tbody tr")
    expect(queues).to_have_count(2)
    expect(queues.filter(has_text="broker-goes").locator("td.n")).to_have_text(["3", "2"])
    check_accessible(page)

    page.get_by_label("Compare with").fill("0s")
    page.get_by_label("Compare with").press("Enter")
    differences = page.get_by_role("region", name="Differences").locator("tbody tr")
    expect(differences.filter(has_text="Story").locator("td").nth(2)).to_have_text("3 read queues, 2 write queues, RW")
    expect(differences.filter(has_text="Story").locator("td").nth(3)).to_have_text("absent")
    expect(differences.filter(has_text=going.address).locator("td").first).to_have_text("broker-goes[0]")
    expect(differences.filter(has_text="broker-stays")).to_have_count(0)
    check_accessible(page)


def test_journals_are_merged_and_filtered(page: Page, historian: Console, recorded: Recorded) -> None:
    recorded.broker("broker-filtered")
    page.goto(f"{historian.url}history?broker=broker-filtered")
    joined = page.locator("tbody tr", has_text="Broker joined")
    expect(joined).to_have_count(2)
    assert {row.locator("td").nth(1).inner_text() for row in joined.all()} == {"ns0", "ns1"}
    page.locator("[name=journal]").select_option("ns1")
    page.locator("[name=kind]").select_option("broker_joined")
    page.locator("[name=since]").fill("10m")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("[name=until]").fill("1d")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_text("No records match.")).to_be_visible()
    page.locator("[name=until]").fill("yesterday")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("alert")).to_contain_text("(expected 2026-11-15 11:00, 11:00, or 10m")
    page.get_by_role("link", name="Go back").click()
    expect(page.get_by_role("heading", name="Route history")).to_be_visible()


def test_times_are_in_the_browsers_zone(page: Page, historian: Console) -> None:
    page.goto(f"{historian.url}history/routes?at=2026-07-01+12:00&zone=Asia/Shanghai")
    expect(page.get_by_role("alert")).to_contain_text("the journal begins later")
    page.goto(f"{historian.url}history")
    page.locator("[name=topic]").press("Enter")
    zone = page.evaluate("Intl.DateTimeFormat().resolvedOptions().timeZone")
    assert f"zone={zone}" in page.url


def test_damaged_records_are_shown(page: Page, serve: Serve, recorded: Recorded, tmp_path: Path) -> None:
    broker = recorded.broker("broker-damaged")
    recorded.stop(broker)
    (tmp_path / "torn").mkdir()
    (segment,) = (recorded.folder / "ns0" / "journal").glob("_*.open")
    lines = segment.read_bytes().splitlines(keepends=True)
    (tmp_path / "torn" / segment.name).write_bytes(b"".join([*lines[:-1], b'{"v":1,"seq":<torn\n', lines[-1]]))
    journals = {"torn": tmp_path / "torn", "gone": tmp_path / "nowhere"}
    console = serve(recorded.addresses, journals=journals)
    page.goto(f"{console.url}history")
    expect(page.locator("tbody tr").nth(1)).to_contain_text("Damaged record")
    expect(page.get_by_role("alert")).to_contain_text("Journal gone cannot be read: there is no journal in")
    page.goto(f"{console.url}history/routes?journal=torn")
    expect(page.locator(".note.warn")).to_contain_text("1 records are damaged.")
    check_accessible(page)


def test_the_page_without_a_journal_shows_how_to_add_one(page: Page, serve: Serve, recorded: Recorded) -> None:
    console = serve(recorded.addresses)
    for path in ("history", "history/routes"):
        page.goto(f"{console.url}{path}")
        expect(page.get_by_text("skyroute console --journal")).to_be_visible()
    check_accessible(page)
