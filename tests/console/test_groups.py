"""Consumer groups: the list, progress, consumers, settings, and resetting offsets."""

import threading
from collections.abc import Iterator
from http import HTTPStatus
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser, Page, expect

from skyroute import Message, StartPosition, StoredMessage
from skyroute.blocking import Admin, Consumer, Producer
from skyroute.testing import Cluster, cluster
from skyroute.wire.calls.groups import GroupConfig
from tests.support.browsing import Serve, check_accessible
from tests.support.waiting import wait_until

MESSAGES = 24
IDLE = 60


class RunningConsumer:
    """A consumer that runs in a `with` block, and sets an event after a number of messages."""

    def __init__(self, group: str, name_servers: str, expression: str, count: int) -> None:
        self._left = count
        self._done = threading.Event()
        self._consumer = Consumer(group, name_servers, start=StartPosition.FIRST)
        self._consumer.subscribe("Orders", expression, self._handle)

    def _handle(self, _message: StoredMessage) -> None:
        self._left -= 1
        if self._left == 0:
            self._done.set()

    def __enter__(self) -> threading.Event:
        self._consumer.start()
        return self._done

    def __exit__(self, *_: object) -> None:
        self._consumer.stop()


@pytest.fixture(scope="module")
def busy(real_cluster: Cluster) -> Iterator[Cluster]:
    """A cluster with an offline group, one whose consumers have different subscriptions, and many idle ones."""
    name_servers = real_cluster.name_server_address
    with Admin(name_servers) as admin, Producer("makers", name_servers) as producer:
        admin.create_topic("Orders", cluster="DefaultCluster", read_queues=2, write_queues=2)
        for number in range(IDLE):
            admin.create_group(GroupConfig(f"idle-{number:02}", retry_times_max=number), cluster="DefaultCluster")
        admin.create_group(GroupConfig("tenant%idle"), cluster="DefaultCluster")
        for _ in range(MESSAGES):
            producer.send(Message("Orders", b"one coffee", tag="paid"))
        with RunningConsumer("auditors", name_servers, "*", MESSAGES) as done:
            assert done.wait(20)
        # The second subscribes to more tags than the first.
        with (
            RunningConsumer("shipping", name_servers, "paid || sent", 1),
            RunningConsumer("shipping", name_servers, "*", 1),
        ):
            yield real_cluster


@pytest.fixture(scope="module")
def url(busy: Cluster, serve: Serve) -> str:
    """The address of a console whose inventory has the groups."""
    console = serve(busy.name_server_address)

    def lists_the_group() -> bool:
        with urlopen(f"{console.url}groups?q=auditors") as answer:
            return b"/groups/auditors" in answer.read()

    wait_until(lists_the_group, what="the console lists the group")
    return console.url.rstrip("/")


def test_the_list_of_groups_loads_their_lag_afterwards(page: Page, url: str) -> None:
    """The page loads the lag and consumers of its rows in a second request."""
    page.goto(f"{url}/groups")
    rows = page.locator("#groups tbody tr")
    expect(rows).to_have_count(50)
    expect(rows.filter(has_text="auditors")).to_contain_text("no consumers online")
    expect(page.get_by_text("TOOLS_CONSUMER")).to_have_count(0)
    check_accessible(page)

    page.get_by_role("searchbox").press_sequentially("SHIPP")
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("Push, clustering")
    expect(rows.first.locator("td").nth(2)).to_have_text("2")

    page.goto(f"{url}/groups?system=yes&q=tools")
    expect(rows).to_have_count(1)
    page.goto(f"{url}/groups?q=idle&page=2")
    expect(rows).to_have_count(IDLE + 1 - 50)


def test_the_lag_can_be_loaded_without_scripts(browser: Browser, url: str) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{url}/groups?q=auditors")
        expect(page.locator("#groups tbody tr")).to_contain_text("…")
        page.get_by_role("link", name="Load lag and consumers").click()
        expect(page.locator("#groups tbody tr")).to_contain_text("no consumers online")


def test_progress_consumers_and_different_subscriptions_are_shown(page: Page, url: str) -> None:
    """The page shows which consumer has which queue, and that subscriptions differ."""
    page.goto(f"{url}/groups/shipping")
    expect(page.locator(".card", has_text="Consumers").locator(".figure")).to_have_text("2")
    orders = page.get_by_role("region", name="By queue").locator("tbody tr", has_text="Orders")
    expect(orders).to_have_count(4)
    expect(orders.locator("a")).to_have_count(4)  # each is assigned
    check_accessible(page)
    page.get_by_role("link", name="Show only queues of %RETRY%shipping").click()
    expect(page.get_by_role("region", name="By queue").locator("tbody tr")).to_have_count(2)

    page.get_by_role("link", name="Consumers").click()
    expect(page.get_by_role("alert")).to_contain_text("have different subscriptions")
    expect(page.get_by_role("region", name="Subscription mismatches")).to_contain_text("paid || sent")
    consumers = page.get_by_role("region", name="Consumers").locator("tbody tr")
    expect(consumers).to_have_count(2)
    expect(consumers.first).to_contain_text("PYTHON")
    check_accessible(page)

    consumers.first.get_by_role("link").click()
    expect(page.get_by_role("region", name="Assigned queues")).to_contain_text("Orders")
    expect(page.locator("pre")).to_have_count(0)
    page.get_by_role("link", name="Show thread stacks").click()
    expect(page.locator("pre")).to_contain_text("threading.py")
    check_accessible(page)


def test_the_offsets_of_a_group_are_reset(page: Page, url: str) -> None:
    """To the latest and the earliest, to a time, in one queue, and to those of another group."""

    def reset(button: str, **fields: str) -> None:
        page.goto(f"{url}/groups/{group}?tab=offsets")
        form = page.locator("main form", has=page.get_by_role("button", name=button, exact=True))
        for name, text in fields.items():
            form.locator(f"[name={name}]").fill(text)
        form.get_by_role("button", name=button, exact=True).click()
        page.get_by_role("button", name="Confirm").click()

    def check_lag(lag: int) -> None:
        expect(page.get_by_role("status")).to_contain_text("reset")
        expect(page.locator(".card", has_text="Lag").locator(".figure")).to_have_text(str(lag))

    group = "auditors"
    page.goto(f"{url}/groups/{group}")
    expect(page.locator(".card", has_text="Lag").locator(".figure")).to_have_text("0")
    reset("Reset to earliest", topic="Orders")
    check_lag(MESSAGES)
    reset("Skip to latest", topic="Orders")
    check_lag(0)
    reset("Reset to this time", topic="Orders", time="1h")
    check_lag(MESSAGES)
    reset("Skip to latest", topic="Orders")
    reset("Reset to this offset", topic="Orders", broker="broker-0", queue_id="1", offset="2")
    left = MESSAGES // 4 - 2
    check_lag(left)

    group = "idle-00"
    reset("Clone offsets", topic="Orders", source="auditors")
    check_lag(left)

    reset("Reset to this time", topic="Orders", time="yesterday")
    expect(page.get_by_role("alert")).to_contain_text("10m for ten minutes ago")
    page.goto(f"{url}/groups/auditors?tab=offsets")
    check_accessible(page)


def test_a_group_is_created_changed_and_deleted(page: Page, url: str) -> None:
    """The audit log has all three."""
    page.goto(f"{url}/groups?tab=new")
    check_accessible(page)
    page.get_by_label("Group").fill("tenant%beans")
    page.get_by_label("Maximum retries").fill("3")
    page.get_by_role("button", name="Create group").click()
    expect(page.get_by_role("status")).to_contain_text("tenant%beans created")
    rows = page.get_by_role("region", name="Settings").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first.locator("td").nth(5)).to_have_text("3")
    check_accessible(page)

    page.get_by_role("link", name="Change on broker-1 only").click()
    page.get_by_label("Consumption enabled").uncheck()
    page.get_by_role("button", name="Change settings").click()
    page.get_by_role("button", name="Confirm").click()
    expect(rows.first.locator("td").first).to_have_text("yes")
    expect(rows.nth(1).locator("td").first).to_have_text("no")

    page.goto(f"{url}/groups?q=beans")
    expect(page.locator("#groups tbody tr")).to_contain_text("differs")

    page.goto(f"{url}/groups/tenant%25beans?tab=settings")
    page.get_by_role("button", name="Delete group").click()
    expect(page.get_by_text("Delete consumer group tenant%beans?")).to_be_visible()
    page.get_by_role("link", name="Cancel").click()
    page.get_by_role("button", name="Delete group").click()
    page.get_by_role("button", name="Confirm").click()
    expect(page.get_by_role("status")).to_contain_text("tenant%beans deleted")
    answer = page.goto(f"{url}/groups/tenant%25beans")
    assert answer is not None
    assert answer.status == HTTPStatus.NOT_FOUND
    expect(page.get_by_role("alert")).to_contain_text("tenant%beans")
    page.goto(f"{url}/audit")
    expect(page.get_by_text("group.delete done")).to_be_visible()


def test_producers_are_found_by_group_and_topic(page: Page, url: str, busy: Cluster) -> None:
    with Producer("cashiers", busy.name_server_address) as producer:
        producer.send(Message("Orders", b"tea"))
        page.goto(f"{url}/groups?tab=producers")
        page.get_by_label("Producer group").fill("cashiers")
        page.get_by_label("Topic it sends to").fill("Orders")
        page.get_by_role("button", name="Show connections").click()
        expect(page.get_by_role("region", name="Producers").locator("tbody tr")).to_contain_text("PYTHON")
        check_accessible(page)
    page.goto(f"{url}/groups?tab=producers&group=unknown&topic=Orders")
    expect(page.get_by_role("status")).to_contain_text("No producers found.")


def test_a_new_group_appears_in_the_open_list(page: Page, serve: Serve) -> None:
    """Without a reload, and long before the next poll of groups, which is after 30 seconds."""
    with cluster() as own, Admin(own.name_server_address) as admin:
        admin.create_topic("Orders", cluster="DefaultCluster")
        page.goto(f"{serve(own.name_server_address).url}groups")
        expect(page.get_by_text("No consumer groups yet.")).to_be_visible()
        with RunningConsumer("first", own.name_server_address, "*", 1):
            row = page.locator("#groups tbody tr", has_text="first")
            expect(row).to_contain_text("Push, clustering")
        check_accessible(page)
