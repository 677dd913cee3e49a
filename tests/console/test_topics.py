"""Topics: finding one among many, what ails them, and the life of one from its making to its end."""

import pytest
from playwright.sync_api import Page, expect

from skyroute import Message
from skyroute.blocking import Admin, Producer
from skyroute.client.admin.groups import END
from skyroute.client.session.session import Session
from skyroute.console.server import Console
from skyroute.remoting.loops import LoopThread
from skyroute.testing import Cluster
from skyroute.wire.calls.groups import GroupConfig
from skyroute.wire.calls.topics import encode_write_permission
from tests.support.browsing import Serve, check_accessible

MANY = 60
GROUP = "abacus"
"""Its retry topic has what looks like an escape in an address: %ab."""


@pytest.fixture(scope="module")
def console(real_cluster: Cluster, serve: Serve) -> Console:
    """A console for a cluster with many topics, some of them ailing, and a group that is behind."""
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


def test_finds_a_topic_among_many(page: Page, console: Console) -> None:
    """By pages, by letters, by type, by what is wrong, and in another order; the system's own only when asked for."""
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


def test_creates_a_topic_and_sends_to_it(page: Page, console: Console, real_cluster: Cluster) -> None:
    """All in the browser, and a broker has the message just so; what was typed wrong is said, and not lost."""
    page.goto(f"{console.url}topics?q=none")
    form = page.locator("details")
    form.get_by_text("Create a topic").click()
    form.get_by_label("Name").fill("Trial")
    form.get_by_label("Write queues").fill("2")
    form.get_by_label("Read queues").fill("2")
    form.get_by_label("Type").select_option("Normal")
    check_accessible(page)
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("status")).to_have_text("The topic Trial was created")
    expect(page.get_by_role("region", name="Queue status").locator("tbody tr")).to_have_count(4)
    page.get_by_role("link", name="Send").click()
    page.get_by_label("Body").fill('{"coffee": 1}')
    page.get_by_label("Tag").fill("drinks")
    page.get_by_label("Keys").fill("order-1 shop-2")
    page.get_by_label("Properties").fill("shop=north\nno property")
    page.get_by_role("button", name="Send a message").click()
    expect(page.get_by_role("alert")).to_contain_text("line 2 is not name=value")
    page.go_back()
    page.get_by_label("Properties").fill("shop=north")
    page.get_by_role("button", name="Send a message").click()
    facts = page.locator("dl.facts")
    expect(facts).to_contain_text("OK")
    sent = facts.get_by_role("link")
    with Admin(real_cluster.name_server_address) as admin:
        stored = admin.find_message("Trial", sent.inner_text())
    assert sent.get_attribute("href") == f"/messages/Trial/{stored.message_id}"
    assert (stored.body, stored.tag, stored.keys) == (b'{"coffee": 1}', "drinks", ("order-1", "shop-2"))
    assert stored.user_properties == {"shop": "north"}
    check_accessible(page)


def test_changes_a_topic_and_deletes_it(page: Page, console: Console, real_cluster: Cluster) -> None:
    """Each is asked first; then the one broker has the settings, and at last nobody has the topic."""
    with Admin(real_cluster.name_server_address) as admin:
        normal = {"message.type": "NORMAL"}
        admin.create_topic("Change", cluster="DefaultCluster", read_queues=2, write_queues=2, attributes=normal)
        with Producer("shop", real_cluster.name_server_address) as producer:
            producer.send(Message("Change", b"coffee"))
        page.goto(f"{console.url}topics/Change?tab=settings")  # the console has not seen it yet
        page.get_by_label("Where").select_option("Broker broker-1")
        page.get_by_label("Write queues").fill("3")
        page.get_by_label("Read queues").fill("3")
        page.get_by_label("Permission").select_option("Read only")
        check_accessible(page)
        page.get_by_role("button", name="Save").click()
        question = page.locator("main strong")
        expect(question).to_have_text("Give the topic Change 3 queues to write and 3 to read, on broker:broker-1?")
        page.get_by_role("button", name="Yes, do it").click()
        expect(page.get_by_role("status")).to_have_text("The topic Change was changed")
        changed = admin.topic_config("Change", real_cluster.broker_addresses[1])
        assert (changed.read_queues, changed.permission, changed.attributes) == (3, 4, normal)
        assert admin.topic_config("Change", real_cluster.broker_addresses[0]).read_queues == 2
        page.get_by_role("button", name="Delete the topic and its messages").click()
        expect(question).to_have_text(
            "Delete the topic Change from the cluster DefaultCluster, with 1 messages in 5 queues?"
        )
        page.get_by_role("button", name="Yes, do it").click()
        expect(page.get_by_role("status")).to_have_text("The topic Change was deleted")
        assert "Change" not in admin.topics()
    answer = page.goto(f"{console.url}topics/Change")
    assert answer is not None
    assert answer.status == 404
    expect(page.get_by_role("alert")).to_have_text("There is no topic Change")


def test_refuses_what_cannot_be(page: Page, console: Console) -> None:
    """A topic that is there already, and a name that no topic may have, which the browser would not let pass."""
    page.goto(f"{console.url}topics")
    page.get_by_text("Create a topic").click()
    page.get_by_label("Name").fill("alone")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_contain_text("There is a topic alone already")
    page.goto(f"{console.url}topics")
    page.get_by_text("Create a topic").click()
    page.locator("input[name=topic]").evaluate("field => field.removeAttribute('pattern')")
    page.get_by_label("Name").fill("what a name")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_contain_text("contains illegal characters")


def test_tells_what_ails_a_topic(page: Page, console: Console, real_cluster: Cluster) -> None:
    """From the settings of brokers, and from name servers of which one says something else."""

    async def tell_one(*, allowed: bool) -> None:
        server = real_cluster.name_server_addresses[0]
        async with Session(server) as session:
            await session.ask(server, encode_write_permission("broker-1", allowed=allowed))

    loop = LoopThread("an operator")
    page.goto(f"{console.url}topics/alone?tab=route")
    expect(page.locator(".note.warn")).to_contain_text("Only broker-0 has it")
    page.goto(f"{console.url}topics/many-00?tab=route")
    expect(page.locator(".good")).to_have_text("Nothing is wrong with it, as far as can be seen.")
    expect(page.get_by_role("region", name="Name servers")).to_contain_text("2 brokers, 2 queues")
    loop.call(tell_one(allowed=False))
    try:
        # The page sees for itself, at the next look.
        expect(page.locator(".note.bad")).to_contain_text("They differ in “permission” of broker-1")
        expect(page.locator(".note.warn")).to_contain_text("name servers tell clients that it does not")
        check_accessible(page)
    finally:
        loop.call(tell_one(allowed=True))
        loop.close()


def test_shows_who_reads_a_topic_and_has_a_group_begin_anew(
    page: Page, console: Console, real_cluster: Cluster
) -> None:
    """The lag of each group; and after a question, a group that goes on elsewhere."""
    page.goto(f"{console.url}topics/Orders?tab=consumers")
    row = page.get_by_role("region", name="Consumers").get_by_role("row", name=GROUP)
    expect(row.locator("td").first).to_have_text("8")
    expect(row.get_by_role("link", name=GROUP)).to_have_attribute("href", f"/groups/{GROUP}")
    check_accessible(page)
    page.get_by_label("Group").first.fill(GROUP)
    page.get_by_role("button", name="To the oldest message").click()
    expect(page.get_by_text(f"Have the group {GROUP} consume all messages of Orders again")).to_be_visible()
    page.get_by_role("button", name="Yes, do it").click()
    expect(page.get_by_role("status")).to_contain_text(f"The group {GROUP} goes on elsewhere in 4 queues of Orders")
    with Admin(real_cluster.name_server_address) as admin:
        assert admin.progress(GROUP, "Orders").lag == 12
    page.goto(f"{console.url}topics/Orders?tab=rates")
    expect(page.get_by_role("region", name="Rates").get_by_role("row", name=GROUP)).to_be_visible()
    check_accessible(page)


def test_opens_a_retry_topic_in_chinese_on_a_narrow_screen(page: Page, console: Console) -> None:
    """Names with signs that mean something in an address, and all of the page in the other language."""
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(f"{console.url}topics?q={GROUP}")
    page.get_by_label("Language").select_option("中文")
    page.get_by_role("link", name=f"%RETRY%{GROUP}").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"%RETRY%{GROUP}")
    expect(page.get_by_text("重试", exact=True)).to_be_visible()
    page.get_by_role("link", name="路由与诊断").click()
    expect(page.get_by_text("未发现问题。")).to_be_visible()
    check_accessible(page)
