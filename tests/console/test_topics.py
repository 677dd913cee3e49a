"""Topics: search, problems, and the actions that create, use, change and delete one."""

from http import HTTPStatus

import pytest
from playwright.sync_api import Page, expect

from skyroute import Message
from skyroute.blocking import Admin, Producer
from skyroute.client.admin.groups import END
from skyroute.client.session.session import Session
from skyroute.console.server import Console
from skyroute.remoting.loops import LoopThread
from skyroute.testing import Cluster, cluster
from skyroute.wire.calls.groups import GroupConfig
from skyroute.wire.calls.topics import encode_write_permission
from tests.support.browsing import Serve, check_accessible

MANY = 60
LISTED_MS = 2_000
GROUP = "abacus"
"""Its retry topic contains %ab, which looks like an escape in an address."""


@pytest.fixture(scope="module")
def console(real_cluster: Cluster, serve: Serve) -> Console:
    """A console for a cluster with many topics, some with problems, and a group with lag."""
    broker = real_cluster.broker_addresses[0]
    with Admin(real_cluster.name_server_address) as admin:
        for number in range(MANY):
            admin.create_topic(f"many-{number:02}", cluster="DefaultCluster", read_queues=1, write_queues=1)
        admin.create_topic("alone", broker=broker, attributes={"message.type": "FIFO"})
        admin.create_topic("unread", cluster="DefaultCluster", read_queues=2, write_queues=4)
        admin.create_topic(f"%RETRY%{GROUP}", cluster="DefaultCluster", read_queues=1, write_queues=1)
        admin.create_topic("Orders", cluster="DefaultCluster", read_queues=2, write_queues=2)
        with Producer("shop", real_cluster.name_server_address) as producer:
            for number in range(12):
                if number == 4:
                    admin.create_group(GroupConfig(GROUP), cluster="DefaultCluster")
                    admin.reset_to_time(GROUP, "Orders", END)
                producer.send(Message("Orders", b"coffee", keys=f"order-{number}"))
    return serve(real_cluster.name_server_address)


def test_a_topic_is_found_among_many(page: Page, console: Console) -> None:
    """By page, name, type, problem and order; system topics only if selected."""
    page.goto(f"{console.url}topics")
    rows = page.get_by_role("region", name="Topics").locator("tbody tr")
    expect(rows).to_have_count(50)
    expect(page.get_by_text("Page 1 of 2")).to_be_visible()
    page.get_by_role("link", name="Next").click()
    expect(rows).not_to_have_count(50)
    check_accessible(page)
    page.keyboard.press("/")
    page.keyboard.type("ANY-07")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("many-07")
    page.goto(f"{console.url}topics?kind=FIFO")
    expect(rows).to_have_text(["alone FIFO 1 8 Read and write One broker only"], use_inner_text=True)
    page.goto(f"{console.url}topics?kind=SYSTEM&q=tbw")
    expect(rows).to_have_count(1)
    page.goto(f"{console.url}topics")
    page.get_by_role("columnheader", name="Queues").get_by_role("link").click()
    expect(rows.first).to_contain_text("alone")
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Queues ▾")
    page.get_by_role("link", name="Read and write queues differ (1)").click()
    expect(rows).to_have_count(1)
    page.get_by_role("link", name="unread").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("unread")


def test_a_topic_is_created_and_receives_a_message(page: Page, console: Console, real_cluster: Cluster) -> None:
    """The broker stores the message as typed; a wrong field is reported, and the form keeps its content."""
    page.goto(f"{console.url}topics?q=none")
    form = page.locator("details")
    form.get_by_text("Create a topic").click()
    form.get_by_label("Name").fill("Trial")
    form.get_by_label("Write queues").fill("2")
    form.get_by_label("Read queues").fill("2")
    form.get_by_label("Type").select_option("Normal")
    check_accessible(page)
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("status")).to_have_text("Topic Trial created")
    expect(page.get_by_role("region", name="Queue status").locator("tbody tr")).to_have_count(4)
    page.get_by_role("link", name="Send", exact=True).click()
    page.get_by_label("Body").fill('{"coffee": 1}')
    page.get_by_label("Tag").fill("drinks")
    page.get_by_label("Keys").fill("order-1 shop-2")
    page.get_by_label("Properties").fill("shop=north\nno property")
    page.get_by_role("button", name="Send message").click()
    expect(page.get_by_role("alert")).to_contain_text("line 2 is “no property” (expected name=value)")
    page.go_back()
    page.get_by_label("Properties").fill("shop=north")
    page.get_by_role("button", name="Send message").click()
    facts = page.locator("dl.facts")
    expect(facts).to_contain_text("OK")
    sent = facts.get_by_role("link")
    with Admin(real_cluster.name_server_address) as admin:
        stored = admin.find_message("Trial", sent.inner_text())
    assert sent.get_attribute("href") == f"/messages/Trial/{stored.message_id}"
    assert (stored.body, stored.tag, stored.keys) == (b'{"coffee": 1}', "drinks", ("order-1", "shop-2"))
    assert stored.user_properties == {"shop": "north"}
    check_accessible(page)


def test_a_topic_is_changed_and_deleted(page: Page, console: Console, real_cluster: Cluster) -> None:
    """Each asks for confirmation; only the selected broker has the new settings."""
    with Admin(real_cluster.name_server_address) as admin:
        normal = {"message.type": "NORMAL"}
        admin.create_topic("Change", cluster="DefaultCluster", read_queues=2, write_queues=2, attributes=normal)
        with Producer("shop", real_cluster.name_server_address) as producer:
            producer.send(Message("Change", b"coffee"))
        page.goto(f"{console.url}topics/Change?tab=settings")  # it may be newer than the inventory
        page.get_by_label("Cluster or broker").select_option("Broker broker-1")
        page.get_by_label("Write queues").fill("3")
        page.get_by_label("Read queues").fill("3")
        page.get_by_label("Permission").select_option("Read only")
        check_accessible(page)
        page.get_by_role("button", name="Save").click()
        question = page.locator("main strong")
        expect(question).to_have_text("Change topic Change to 3 write queues and 3 read queues on broker:broker-1?")
        page.get_by_role("button", name="Confirm").click()
        expect(page.get_by_role("status")).to_have_text("Topic Change changed")
        changed = admin.topic_config("Change", real_cluster.broker_addresses[1])
        assert (changed.read_queues, changed.permission, changed.attributes) == (3, 4, normal)
        assert admin.topic_config("Change", real_cluster.broker_addresses[0]).read_queues == 2
        page.get_by_role("button", name="Delete the topic and its messages").click()
        expect(question).to_have_text("Delete topic Change from cluster DefaultCluster, with 1 messages in 5 queues?")
        page.get_by_role("button", name="Confirm").click()
        expect(page.get_by_role("status")).to_have_text("Topic Change deleted")
        assert "Change" not in admin.topics()
    answer = page.goto(f"{console.url}topics/Change")
    assert answer is not None
    assert answer.status == HTTPStatus.NOT_FOUND
    expect(page.get_by_role("alert")).to_have_text("Topic Change not found")


def test_an_existing_topic_and_an_invalid_name_are_refused(page: Page, console: Console) -> None:
    page.goto(f"{console.url}topics")
    page.get_by_text("Create a topic").click()
    page.get_by_label("Name").fill("alone")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_contain_text("Topic alone already exists")
    page.goto(f"{console.url}topics")
    page.get_by_text("Create a topic").click()
    page.locator("input[name=topic]").evaluate("field => field.removeAttribute('pattern')")
    page.get_by_label("Name").fill("what a name")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_contain_text("contains illegal characters")


def test_the_problems_of_a_topic_are_shown(page: Page, console: Console, real_cluster: Cluster) -> None:
    """From the settings on brokers, and from name servers with different routes."""

    async def set_writes(*, allowed: bool) -> None:
        server = real_cluster.name_server_addresses[0]
        async with Session(server) as session:
            await session.ask(server, encode_write_permission("broker-1", allowed=allowed))

    loop = LoopThread("operator")
    page.goto(f"{console.url}topics/alone?tab=route")
    expect(page.locator(".note.warn")).to_contain_text("Only broker-0 has this topic")
    page.goto(f"{console.url}topics/many-00?tab=route")
    expect(page.locator(".good")).to_have_text("No problems found.")
    expect(page.get_by_role("region", name="Name servers")).to_contain_text("2 brokers, 2 queues")
    loop.call(set_writes(allowed=False))
    try:
        # The page reloads itself after the next poll.
        expect(page.locator(".note.bad")).to_contain_text("Name servers differ in “permission” of broker-1")
        expect(page.locator(".note.warn")).to_contain_text("the name servers' routes do not")
        check_accessible(page)
    finally:
        loop.call(set_writes(allowed=True))
        loop.close()


def test_consumer_groups_of_a_topic_are_listed_and_reset(page: Page, console: Console, real_cluster: Cluster) -> None:
    """The lag of each group; and after confirmation, the offsets of one are reset."""
    page.goto(f"{console.url}topics/Orders?tab=consumers")
    row = page.get_by_role("region", name="Consumer groups").get_by_role("row", name=GROUP)
    expect(row.locator("td").first).to_have_text("8")
    expect(row.get_by_role("link", name=GROUP)).to_have_attribute("href", f"/groups/{GROUP}")
    check_accessible(page)
    page.get_by_label("Group", exact=True).first.fill(GROUP)
    page.get_by_role("button", name="Reset to earliest").click()
    expect(page.get_by_text(f"Reset {GROUP} to the earliest offsets of Orders?")).to_be_visible()
    page.get_by_role("button", name="Confirm").click()
    expect(page.get_by_role("status")).to_contain_text(f"Offsets of {GROUP} reset in 4 queues of Orders")
    with Admin(real_cluster.name_server_address) as admin:
        assert admin.progress(GROUP, "Orders").lag == 12
    page.goto(f"{console.url}topics/Orders?tab=rates")
    expect(page.get_by_role("region", name="Rates").get_by_role("row", name=GROUP)).to_be_visible()
    check_accessible(page)


def test_a_retry_topic_is_shown_in_chinese_on_a_narrow_screen(page: Page, console: Console) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(f"{console.url}topics?q={GROUP}")
    page.get_by_label("Language").select_option("中文")
    page.get_by_role("link", name=f"%RETRY%{GROUP}").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"%RETRY%{GROUP}")
    expect(page.get_by_text("重试", exact=True)).to_be_visible()
    page.get_by_role("link", name="路由与诊断").click()
    expect(page.get_by_text("未发现问题。")).to_be_visible()
    check_accessible(page)


def test_a_topic_of_a_first_message_appears_in_the_empty_list(page: Page, serve: Serve) -> None:
    """Without a reload, and long before the next poll of topics, which is after 30 seconds."""
    with cluster() as own:
        console = serve(own.name_server_address)
        page.goto(f"{console.url}topics?q=Second")
        expect(page.get_by_text("No topics match.")).to_be_visible()
        page.goto(f"{console.url}topics")
        expect(page.get_by_text("No topics yet.")).to_be_visible()
        check_accessible(page)
        with Producer("shop", own.name_server_address) as producer:
            producer.send(Message("First", b"coffee"))
            expect(page.get_by_role("link", name="First", exact=True)).to_be_visible(timeout=LISTED_MS)
            producer.send(Message("Second", b"tea"))
            expect(page.get_by_role("link", name="Second", exact=True)).to_be_visible(timeout=LISTED_MS)
        expect(page.get_by_text("Name servers differ")).to_have_count(0)
