"""Messages: search, one message and its actions, and dead-letter queues."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from itertools import pairwise
from queue import SimpleQueue

import pytest
from playwright.sync_api import Page, expect

from skyroute import Message
from skyroute.blocking import Admin, Consumer, Producer
from skyroute.client.consuming.subscription import StartPosition
from skyroute.console.server import Console
from skyroute.message.message import StoredMessage
from skyroute.testing import Cluster
from skyroute.wire.calls.transaction import TransactionOutcome
from tests.support.browsing import Serve, check_accessible
from tests.support.waiting import wait_until

MARKUP = '"><img src=x onerror=alert(1)><script>alert(2)</script>'


@pytest.fixture(scope="module")
def name_servers(real_cluster: Cluster) -> str:
    return ";".join(real_cluster.name_server_addresses)


@pytest.fixture(scope="module")
def producer(name_servers: str) -> Iterator[Producer]:
    """A producer with message tracing."""
    with Producer("shop", name_servers, trace=True, check=lambda _: TransactionOutcome.COMMIT) as started:
        yield started


@pytest.fixture(scope="module")
def admin(name_servers: str) -> Iterator[Admin]:
    with Admin(name_servers) as started:
        for topic in ("Orders", "Bodies", "Retried"):
            started.create_topic(topic, cluster="DefaultCluster", read_queues=4, write_queues=4)
        yield started


@pytest.fixture(scope="module")
def console(admin: Admin, name_servers: str, serve: Serve) -> Console:
    """A console whose first snapshot has the topics."""
    assert "Orders" in admin.topics()
    return serve(name_servers)


def search(page: Page, console: Console, **fields: str) -> None:
    """Fill in the search form and submit it."""
    page.goto(f"{console.url}messages")
    for label, value in fields.items():
        page.get_by_label(re.compile(f"^{label.replace('_', ' ')}", re.IGNORECASE)).fill(value)
    page.get_by_role("button", name="Search").click()


def confirm(page: Page) -> None:
    """Confirm an action, and wait for its notice."""
    page.get_by_role("button", name="Confirm").click()
    expect(page.get_by_role("status")).to_be_visible()


def shows(page: Page, address: str, text: str) -> None:
    """Reload a page until it shows a text."""

    def count() -> int:
        page.goto(address)
        return page.locator("main").get_by_text(text).count()

    wait_until(count, what=text)


def test_all_messages_of_a_topic_are_listed_page_by_page(
    page: Page, console: Console, admin: Admin, producer: Producer
) -> None:
    """Every message of every queue is shown once, newest first, even if a batch has the same store time."""
    sent = [producer.send(Message("Orders", b"order %d" % n, keys=f"o{n}")).message_id for n in range(60)]
    sent += [r.message_id for r in producer.send_batch([Message("Orders", b"together %d" % n) for n in range(70)])]
    search(page, console, Topic="Orders")
    expect(page.get_by_text("50 of about 130 messages")).to_be_visible()
    seen, times = [], []
    while True:
        seen += page.locator("tbody th a").all_inner_texts()
        times += page.locator("tbody time").evaluate_all("times => times.map((time) => time.dateTime)")
        if not page.get_by_role("link", name="Older").count():
            break
        with page.expect_navigation():
            page.get_by_role("link", name="Older").click()
    assert sorted(seen) == sorted(sent)
    assert all(newer >= older for newer, older in pairwise(times))
    assert len(admin.queues_of("Orders")) == 8


def test_times_are_in_the_browsers_zone(page: Page, console: Console, producer: Producer) -> None:
    """A browser in Darwin sends a local time; the field keeps it in the result."""
    page.context.new_cdp_session(page).send("Emulation.setTimezoneOverride", {"timezoneId": "Australia/Darwin"})
    stored = producer.send(Message("Orders", b"now", keys="zoned")).message_id
    there = datetime.now(UTC) + timedelta(hours=9, minutes=30)
    before, after = ((there + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%S") for hours in (-1, 1))
    search(page, console, Topic="Orders", Stored_from=before, Stored_before=after)
    expect(page.get_by_role("link", name=stored)).to_be_visible()
    expect(page.get_by_text("Stored from (Australia/Darwin)")).to_be_visible()
    expect(page.get_by_label("Stored from")).to_have_value(before)
    search(page, console, Topic="Orders", Stored_from=after)
    expect(page.get_by_text("No messages found.")).to_be_visible()
    search(page, console, Topic="Orders", Stored_from=after, Stored_before=before)
    expect(page.get_by_role("alert")).to_contain_text("is not after “Stored from”")


def test_times_are_in_utc_without_scripts(page: Page, console: Console, producer: Producer) -> None:
    producer.send(Message("Orders", b"now", keys="plain"))
    now = datetime.now(UTC)
    for hours, count in ((-1, 1), (1, 0)):
        begin = (now + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M")
        answer = page.request.get(f"{console.url}messages", params={"topic": "Orders", "key": "plain", "begin": begin})
        assert 'Stored from (<span id="begin-zone">UTC</span>)' in answer.text()
        assert answer.text().count("<tbody>") == count


def test_a_message_is_found_by_key_and_by_id(page: Page, console: Console, producer: Producer) -> None:
    """A key lists its messages; both ids open the message; an unknown id is an error."""
    sent = producer.send(
        Message("Orders", b'{"n": 17}', tag="paid", keys=["alpha", "beta"], properties={"shop": "west"})
    )
    search(page, console, Topic="Orders", Key="beta")
    check_accessible(page)
    page.get_by_role("link", name=sent.message_id).click()
    expect(page.locator("pre")).to_have_text('{\n  "n": 17\n}')
    expect(page.get_by_role("row", name="shop west")).to_be_visible()
    check_accessible(page)
    for either in (sent.message_id, sent.offset_id):
        search(page, console, Topic="Orders", Message_id=either)
        expect(page.get_by_role("heading", name=f"Message {sent.message_id}")).to_be_visible()
    page.get_by_role("link", name="alpha").click()
    expect(page.get_by_role("link", name=sent.message_id)).to_be_visible()
    search(page, console, Topic="Orders", Message_id=MARKUP)
    expect(page.get_by_role("alert")).to_have_text(f"no message of Orders has the id {MARKUP}")
    for garbage in ("nothing", "00" * 16, "../../audit"):
        answer = page.request.get(f"{console.url}messages", params={"topic": "Orders", "id": garbage})
        assert f"no message of Orders has the id {garbage}<" in answer.text()
    assert page.request.get(f"{console.url}messages/Orders/nothing").status == HTTPStatus.NOT_FOUND
    assert page.request.get(f"{console.url}messages/Orders/x?at=1.0.999999.broker-0").status == HTTPStatus.NOT_FOUND
    assert page.request.get(f"{console.url}messages/Orders/x?at=garbage").status == HTTPStatus.BAD_REQUEST


def test_topics_are_suggested(page: Page, console: Console) -> None:
    page.goto(f"{console.url}messages")
    page.get_by_label("Topic").press_sequentially("rde")
    expect(page.locator("#topics option")).to_have_count(1)
    expect(page.locator("#topics option")).to_have_attribute("value", "Orders")


def test_markup_in_a_message_is_escaped(page: Page, console: Console, producer: Producer) -> None:
    """Body, tag, key and properties are shown as text, and no script in them runs."""
    page.on("dialog", lambda dialog: pytest.fail(f"a script of a message ran: {dialog.message}"))
    key = MARKUP.replace(" ", "/")
    sent = producer.send(
        Message("Bodies", MARKUP.encode(), tag=MARKUP, keys=key, properties={MARKUP: MARKUP, "turn": "a\u202eb"})
    )
    search(page, console, Topic="Bodies", Key=key)
    expect(page.get_by_role("cell", name=MARKUP).first).to_be_visible()
    page.get_by_role("link", name=sent.message_id).click()
    expect(page.locator("pre")).to_have_text(MARKUP)
    expect(page.get_by_role("row", name=f"{MARKUP} {MARKUP}")).to_be_visible()
    expect(page.get_by_role("row", name=r"turn a\u202eb")).to_be_visible()
    assert page.locator("main img, main script").count() == 0
    page.get_by_role("button", name="Send a copy to Bodies").click()
    confirm(page)


def test_large_binary_and_compressed_bodies_are_shown(page: Page, console: Console, producer: Producer) -> None:
    """Binary as hex, truncated and decompressed; the download has the whole body."""
    whole = bytes(range(256)) * 16 * 1024
    sent = producer.send(Message("Bodies", whole))
    page.goto(f"{console.url}messages/Bodies/{sent.message_id}")
    expect(page.get_by_text("Showing the first 16.0 KiB of 4.0 MiB.")).to_be_visible()
    expect(page.locator("pre")).to_contain_text("00000000  00 01 02 03")
    expect(page.get_by_text("stored size")).to_contain_text("compressed with ZLIB")
    check_accessible(page)
    page.get_by_role("link", name="Text", exact=True).click()
    expect(page.locator("pre")).to_contain_text(r"\x00\x01")
    page.get_by_role("link", name="JSON", exact=True).click()
    expect(page.get_by_text("The body is not JSON")).to_be_visible()
    link = page.get_by_role("link", name="Download the body").get_attribute("href")
    answer = page.request.get(f"{console.url.rstrip('/')}{link}")
    assert answer.body() == whole
    assert answer.headers["content-disposition"].startswith("attachment;")
    assert answer.headers["x-content-type-options"] == "nosniff"
    search(page, console, Topic="Bodies")
    expect(page.get_by_role("link", name=sent.message_id)).to_be_visible()


def test_transactions_and_traces_are_shown(page: Page, console: Console, producer: Producer) -> None:
    result = producer.send_in_transaction(Message("Bodies", b"tx"), lambda _, __: TransactionOutcome.COMMIT)
    delayed = producer.send(Message("Bodies", b"later", delay_level=1))
    page.goto(f"{console.url}messages/Bodies/{result.sent.message_id}")
    expect(page.locator("dl.facts")).to_contain_text("Committed")
    search(page, console, Topic="SCHEDULE_TOPIC_XXXX")
    page.get_by_role("link", name=delayed.message_id).click()
    expect(page.get_by_role("button", name="Send a copy to Bodies")).to_be_visible()
    producer.stop()  # sends the traces that wait
    page.goto(f"{console.url}messages/Bodies/{result.sent.message_id}")
    expect(page.get_by_role("row", name="Transaction committed shop")).to_be_visible()
    producer.start()


def test_a_message_is_delivered_to_a_consumer_and_resent(
    page: Page, console: Console, name_servers: str, producer: Producer
) -> None:
    """The page lists the groups; delivery and resending ask for confirmation."""
    handled: SimpleQueue[StoredMessage] = SimpleQueue()
    consumer = Consumer("mailing", name_servers, start=StartPosition.FIRST)
    consumer.on("Retried")(handled.put)
    with consumer:
        sent = producer.send(Message("Retried", b"hello", tag="t", keys="k", properties={"a": "b"}))
        assert handled.get(timeout=20).message_id == sent.message_id
        page.goto(f"{console.url}messages/Retried/{sent.message_id}")
        expect(page.get_by_role("row", name="mailing")).to_be_visible()
        page.get_by_role("button", name="Deliver").click()
        expect(page.get_by_text("of group mailing?")).to_be_visible()
        assert handled.empty()
        confirm(page)
        assert "SUCCESS" in page.get_by_role("status").inner_text()
        assert handled.get(timeout=20).message_id == sent.message_id
        page.get_by_role("button", name="Send a copy to Retried").click()
        confirm(page)
        copy = handled.get(timeout=20)
        assert (copy.body, copy.tag, copy.keys, copy.user_properties) == (b"hello", "t", ("k",), {"a": "b"})
        assert copy.message_id in page.get_by_role("status").inner_text()


def test_dead_letter_messages_are_listed_exported_and_resent(
    page: Page, console: Console, name_servers: str, producer: Producer, admin: Admin
) -> None:
    def fail(message: StoredMessage) -> None:
        if message.tag == "bad":
            raise ValueError(message.body)
        handled.put(message)

    handled: SimpleQueue[StoredMessage] = SimpleQueue()
    consumer = Consumer("billing", name_servers, start=StartPosition.FIRST, reconsume_times_max=0)
    consumer.on("Orders", "bad || good")(fail)
    bodies = [b'{"n": 1}', b"\xff\x00", MARKUP.encode()]
    with consumer:
        for body in bodies:
            producer.send(Message("Orders", body, tag="bad", keys="dead", properties={"shop": "east"}))
        letters = f"{console.url}messages/dead-letters?group=billing"
        shows(page, letters, "3 of about 3 messages")  # they arrive after the handler has failed
    check_accessible(page)
    lines = [json.loads(line) for line in page.request.get(letters.replace("?", "/export?")).text().splitlines()]
    assert sorted(line.get("body") or line["body_base64"] for line in lines) == sorted(
        ['{"n": 1}', "/wA=", MARKUP]
    )  # fmt: skip
    assert {line["origin_topic"] for line in lines} == {"Orders"}
    page.get_by_role("button", name="Resend selected").click()
    page.get_by_role("button", name="Confirm").click()
    expect(page.get_by_role("alert")).to_contain_text("no messages are selected")
    page.goto(letters)
    page.get_by_role("checkbox").first.check()
    page.get_by_role("button", name="Resend selected").click()
    confirm(page)
    expect(page.get_by_role("status")).to_contain_text("Copies sent: 1. Orders@broker-")
    page.get_by_role("button", name="Resend all on this page").click()
    expect(page.get_by_text("all 3 dead-letter messages of billing")).to_be_visible()
    confirm(page)
    copies = [m for m in admin.messages_by_key("Orders", "dead") if m.find_property("RETRY_TOPIC") is None]
    assert sorted(m.body for m in copies)[:1] == [MARKUP.encode()]
    assert len(copies) == 3 + 1 + 3
    assert all((m.tag, m.user_properties) == ("bad", {"shop": "east"}) for m in copies)
    shows(page, f"{console.url}messages/dead-letters", "billing")  # after the next poll of the name servers
    page.get_by_role("link", name="billing").click()
    page.get_by_role("link", name=re.compile("^[0-9A-F]{32}$")).first.click()
    expect(page.get_by_role("row", name="billing In the dead-letter queue after too many retries")).to_be_visible()
    assert page.request.get(f"{console.url}messages/dead-letters?group=unknown").status == HTTPStatus.NOT_FOUND
