"""Brokers and name servers: their state, their settings, and disabling writes."""

import shutil
from collections.abc import Iterator
from http import HTTPStatus

import pytest
from playwright.sync_api import Page, expect

from skyroute import Message
from skyroute.blocking import Admin, Producer
from skyroute.console.server import Console
from skyroute.routing.topology import Permission
from skyroute.testing import Cluster, cluster
from tests.support.browsing import Serve, check_accessible


def test_a_broker_is_found_and_its_state_shown(page: Page, real_cluster: Cluster, console: Console) -> None:
    """Search the list, open the broker, and search its state."""
    page.goto(f"{console.url}cluster")
    rows = page.get_by_role("region", name="Brokers of DefaultCluster").locator("tbody tr")
    expect(rows).to_have_count(2)
    check_accessible(page)
    page.get_by_label("Broker or address").press_sequentially("ER-1")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("master")
    expect(rows).to_contain_text(real_cluster.broker_addresses[1])
    page.get_by_role("link", name="broker-1").click()
    expect(page.locator("dl.facts")).to_contain_text("DefaultCluster")
    page.get_by_label("Name or value").press_sequentially("boottime")
    state = page.get_by_role("region", name="State").locator("tbody tr")
    expect(state).to_have_count(1)
    expect(state).to_contain_text("bootTimestamp")
    check_accessible(page)
    answer = page.goto(f"{console.url}cluster/unknown/7")
    assert answer is not None
    assert answer.status == HTTPStatus.NOT_FOUND
    expect(page.get_by_role("alert")).to_have_text("Broker unknown with id 7 is not registered")


@pytest.fixture
def damaged() -> Iterator[Cluster]:
    """A cluster that ends after the page, which would otherwise follow its end."""
    with cluster() as started:
        yield started


def test_a_damaged_commit_log_is_shown(damaged: Cluster, page: Page, serve: Serve) -> None:
    """On the overview, in the list, and on the broker's page."""
    console = serve(damaged.name_server_address)
    page.goto(f"{console.url}cluster/broker-0/0")
    expect(page.locator("dl.facts")).to_contain_text("DefaultCluster")
    expect(page.get_by_role("alert")).to_have_count(0)
    page.goto("about:blank")
    with Producer("p", damaged.name_server_address) as producer:
        for number in range(3):
            producer.send(Message("Made", b"%d" % number * 50))
    damaged.stop_broker()
    store = damaged.folder / "broker-0"
    log = next((store / "commitlog").iterdir())
    with log.open("r+b") as file:
        file.seek(file.read(10_000).index(b"1" * 50))
        file.write(b"x")
    shutil.rmtree(store / "index")  # the next start reads the whole log
    damaged.restart_broker()
    page.goto(f"{console.url}cluster?state=trouble")
    expect(page.get_by_role("region", name="Brokers of DefaultCluster").locator("tbody tr")).to_contain_text(
        "damaged", timeout=30_000
    )
    check_accessible(page)
    page.goto(f"{console.url}")
    expect(page.get_by_text("Brokers with a damaged commit log: 1")).to_be_visible()
    page.goto(f"{console.url}cluster/broker-0/0")
    expect(page.get_by_role("alert")).to_contain_text("The commit log is damaged in 1 places (")
    check_accessible(page)


def test_a_setting_of_one_broker_is_changed(page: Page, real_cluster: Cluster, console: Console) -> None:
    """After confirmation, that broker has the new value, and no other."""
    page.goto(f"{console.url}cluster/broker-0/0?tab=settings&q=maxMessageSize")
    page.get_by_role("link", name="Change maxMessageSize").click()
    page.get_by_role("textbox", name="maxMessageSize").fill("4194305")
    check_accessible(page)
    page.get_by_role("button", name="Change").click()
    expect(page.get_by_text("Set maxMessageSize of broker broker-0 to “4194305”?")).to_be_visible()
    page.get_by_role("button", name="Confirm").click()
    expect(page.get_by_role("status")).to_have_text("maxMessageSize of broker-0 set to “4194305”")
    expect(page.get_by_role("region", name="Settings").get_by_role("row", name="maxMessageSize")).to_contain_text(
        "4194305"
    )
    with Admin(real_cluster.name_server_address) as admin:
        settings = admin.broker_settings(cluster="DefaultCluster").by_address
    assert [settings[address]["maxMessageSize"] for address in real_cluster.broker_addresses] == [
        "4194305",
        "4194304",
    ]


def test_a_change_that_a_broker_ignores_is_reported(page: Page, console: Console) -> None:
    """Brokers accept values that they cannot use: the page must not report success."""
    page.goto(f"{console.url}cluster/broker-0/0?tab=settings&q=listenPort&change=listenPort")
    page.get_by_role("textbox", name="listenPort").fill("no number")
    page.get_by_role("button", name="Change").click()
    page.get_by_role("button", name="Confirm").click()
    expect(page.get_by_role("alert")).to_contain_text("listenPort")


def test_writes_to_a_broker_are_disabled_and_enabled(page: Page, real_cluster: Cluster, console: Console) -> None:
    """Cancel changes nothing; Confirm changes the routes of all name servers."""

    def writable() -> bool:
        with Admin(real_cluster.name_server_address) as admin:
            (queues,) = admin.route("broker-1").queues
        return bool(queues.settings.permission & Permission.WRITE)

    page.goto(f"{console.url}cluster/broker-1/0")
    page.get_by_role("button", name="Disable writes").click()
    page.get_by_role("link", name="Cancel").click()
    assert writable()
    page.get_by_role("button", name="Disable writes").click()
    page.get_by_role("button", name="Confirm").click()
    expect(page.get_by_role("status")).to_contain_text("topics of broker-1 disabled")
    expect(page.locator("dl.facts")).to_contain_text("no: the name servers' routes are read-only")
    assert not writable()
    page.get_by_role("button", name="Enable writes").click()
    page.get_by_role("button", name="Confirm").click()
    expect(page.get_by_role("button", name="Disable writes")).to_be_visible()
    assert writable()
    for name in ("Clean up expired consume queues", "Clean up unused topics"):
        page.get_by_role("button", name=name).click()
        page.get_by_role("button", name="Confirm").click()
        expect(page.get_by_role("status")).to_have_text("broker-1 finished the cleanup")


def test_a_setting_of_all_name_servers_is_changed(page: Page, real_cluster: Cluster, console: Console) -> None:
    page.goto(f"{console.url}cluster/name-servers?tab=settings")
    page.get_by_role("link", name="Change returnOrderTopicConfigToBroker").click()
    page.get_by_role("textbox", name="returnOrderTopicConfigToBroker").fill("false")
    check_accessible(page)
    page.get_by_role("button", name="Change").click()
    page.get_by_role("button", name="Confirm").click()
    expect(page.get_by_role("status")).to_contain_text("of all name servers set to “false”")
    with Admin(real_cluster.name_server_address) as admin:
        settings = admin.name_server_settings().by_address.values()
    assert [each["returnOrderTopicConfigToBroker"] for each in settings] == ["false", "false"]


def test_equal_name_servers_have_no_differences(page: Page, console: Console) -> None:
    page.goto(f"{console.url}cluster/name-servers")
    page.get_by_role("button", name="Compare now").click()
    expect(page.get_by_role("status")).to_contain_text("0 differences")
    expect(page.get_by_role("status")).to_contain_text("across 2 name servers")
