"""Groups: which there are, how far they have come, who is in them, and having them go on elsewhere."""

import threading
from collections.abc import Iterator
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser, Page, expect

from skyroute import Message, StartPosition, StoredMessage
from skyroute.blocking import Admin, Consumer, Producer
from skyroute.testing import Cluster
from skyroute.wire.calls.groups import GroupConfig
from tests.support.apache import eventually
from tests.support.browsing import Serve, check_accessible

MESSAGES = 24
IDLE = 60


class Member:
    """A member that is there for the length of a block, and tells when it has had so many messages."""

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
    """A cluster with a group that has consumed and left, one whose members disagree, and many that do nothing."""
    name_servers = real_cluster.name_server_address
    with Admin(name_servers) as admin, Producer("makers", name_servers) as producer:
        admin.create_topic("Orders", cluster="DefaultCluster", read_queues=2, write_queues=2)
        for number in range(IDLE):
            admin.create_group(GroupConfig(f"idle-{number:02}", retry_times_max=number), cluster="DefaultCluster")
        admin.create_group(GroupConfig("tenant%idle"), cluster="DefaultCluster")
        for _ in range(MESSAGES):
            producer.send(Message("Orders", b"one coffee", tag="paid"))
        with Member("auditors", name_servers, "*", MESSAGES) as done:
            assert done.wait(20)
        # The second wants more than the first.
        with Member("shipping", name_servers, "paid || sent", 1), Member("shipping", name_servers, "*", 1):
            yield real_cluster


@pytest.fixture(scope="module")
def url(busy: Cluster, serve: Serve) -> str:
    """Where a console is that has counted the groups."""
    console = serve(busy.name_server_address)

    def has_counted() -> bool:
        with urlopen(f"{console.url}groups?q=auditors") as answer:
            return b"/groups/auditors" in answer.read()

    eventually(has_counted, what="the console lists the group")
    return console.url.rstrip("/")


def test_lists_groups_and_asks_for_their_lag_afterwards(page: Page, url: str) -> None:
    """The list is there at once; lag and members of the rows that are seen come by themselves."""
    page.goto(f"{url}/groups")
    rows = page.locator("#groups tbody tr")
    expect(rows).to_have_count(50)
    expect(rows.filter(has_text="auditors")).to_contain_text("nobody is connected")
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


def test_lag_can_be_had_without_scripts(browser: Browser, url: str) -> None:
    """A link asks for what otherwise comes by itself."""
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{url}/groups?q=auditors")
        expect(page.locator("#groups tbody tr")).to_contain_text("…")
        page.get_by_role("link", name="Ask for lag and members").click()
        expect(page.locator("#groups tbody tr")).to_contain_text("nobody is connected")


def test_shows_progress_members_and_what_they_do_not_agree_on(page: Page, url: str) -> None:
    """Whoever looks for lost messages sees who holds which queue, and that members want different things."""
    page.goto(f"{url}/groups/shipping")
    expect(page.locator(".card", has_text="ConnectedClients").locator(".figure")).to_have_text("2")
    orders = page.get_by_role("region", name="By queue").locator("tbody tr", has_text="Orders")
    expect(orders).to_have_count(4)
    expect(orders.locator("a")).to_have_count(4)  # each has an owner
    check_accessible(page)
    page.get_by_role("link", name="Only queues of %RETRY%shipping").click()
    expect(page.get_by_role("region", name="By queue").locator("tbody tr")).to_have_count(2)

    page.get_by_role("link", name="ConnectedClients").click()
    expect(page.get_by_role("alert")).to_contain_text("do not want the same")
    expect(page.get_by_role("region", name="Subscription mismatches")).to_contain_text("paid || sent")
    members = page.get_by_role("region", name="ConnectedClients").locator("tbody tr")
    expect(members).to_have_count(2)
    expect(members.first).to_contain_text("PYTHON")
    check_accessible(page)

    members.first.get_by_role("link").click()
    expect(page.get_by_role("region", name="Queues held")).to_contain_text("Orders")
    expect(page.locator("pre")).to_have_count(0)
    page.get_by_role("link", name="With what its threads do").click()
    expect(page.locator("pre")).to_contain_text("threading.py")
    check_accessible(page)


def test_moves_a_group(page: Page, url: str) -> None:
    """To the end and the beginning, to a time, in one queue, and to where another group is."""

    def move(button: str, **fields: str) -> None:
        page.goto(f"{url}/groups/{group}?tab=offsets")
        form = page.locator("main form", has=page.get_by_role("button", name=button, exact=True))
        for name, text in fields.items():
            form.locator(f"[name={name}]").fill(text)
        form.get_by_role("button", name=button, exact=True).click()
        page.get_by_role("button", name="Yes, do it").click()

    def check_lag(lag: int) -> None:
        expect(page.get_by_role("status")).to_contain_text("goes on")
        expect(page.locator(".card", has_text="Lag").locator(".figure")).to_have_text(str(lag))

    group = "auditors"
    page.goto(f"{url}/groups/{group}")
    expect(page.locator(".card", has_text="Lag").locator(".figure")).to_have_text("0")
    move("To the oldest message", topic="Orders")
    check_lag(MESSAGES)
    move("To the end", topic="Orders")
    check_lag(0)
    move("To this time", topic="Orders", time="1h")
    check_lag(MESSAGES)
    move("To the end", topic="Orders")
    move("To this offset", topic="Orders", broker="broker-0", queue_id="1", offset="2")
    left = MESSAGES // 4 - 2
    check_lag(left)

    group = "idle-00"
    move("Clone offsets", topic="Orders", source="auditors")
    check_lag(left)

    move("To this time", topic="Orders", time="yesterday")
    expect(page.get_by_role("alert")).to_contain_text("10m for ten minutes ago")
    page.goto(f"{url}/groups/auditors?tab=offsets")
    check_accessible(page)


def test_creates_changes_and_deletes_a_group(page: Page, url: str) -> None:
    """From nothing to nothing, and the audit log has it."""
    page.goto(f"{url}/groups?tab=new")
    check_accessible(page)
    page.get_by_label("Group").fill("tenant%beans")
    page.get_by_label("Retries before").fill("3")
    page.get_by_role("button", name="Create group").click()
    expect(page.get_by_role("status")).to_contain_text("tenant%beans was created")
    rows = page.get_by_role("region", name="Settings").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first.locator("td").nth(5)).to_have_text("3")
    check_accessible(page)

    page.get_by_role("link", name="Change on broker-1 only").click()
    page.get_by_label("Members may consume").uncheck()
    page.get_by_role("button", name="Change settings").click()
    page.get_by_role("button", name="Yes, do it").click()
    expect(rows.first.locator("td").first).to_have_text("yes")
    expect(rows.nth(1).locator("td").first).to_have_text("no")

    page.goto(f"{url}/groups?q=beans")
    expect(page.locator("#groups tbody tr")).to_contain_text("differs")

    page.goto(f"{url}/groups/tenant%25beans?tab=settings")
    page.get_by_role("button", name="Delete group").click()
    expect(page.get_by_text("Delete the group tenant%beans?")).to_be_visible()
    page.get_by_role("link", name="No, go back").click()
    page.get_by_role("button", name="Delete group").click()
    page.get_by_role("button", name="Yes, do it").click()
    expect(page.get_by_role("status")).to_contain_text("tenant%beans was deleted")
    answer = page.goto(f"{url}/groups/tenant%25beans")
    assert answer is not None
    assert answer.status == 404
    expect(page.get_by_role("alert")).to_contain_text("tenant%beans")
    page.goto(f"{url}/audit")
    expect(page.get_by_text("group.delete done")).to_be_visible()


def test_shows_who_produces(page: Page, url: str, busy: Cluster) -> None:
    """Producers are asked for by their group and a topic."""
    with Producer("cashiers", busy.name_server_address) as producer:
        producer.send(Message("Orders", b"tea"))
        page.goto(f"{url}/groups?tab=producers")
        page.get_by_label("Producer group").fill("cashiers")
        page.get_by_label("A topic").fill("Orders")
        page.get_by_role("button", name="Show connections").click()
        expect(page.get_by_role("region", name="Producers").locator("tbody tr")).to_contain_text("PYTHON")
        check_accessible(page)
    page.goto(f"{url}/groups?tab=producers&group=nobody&topic=Orders")
    expect(page.get_by_role("status")).to_contain_text("No broker tells of such producers")
