"""What no page of ours asks for, but somebody does: it is refused with a sentence, and nothing breaks."""

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect

from skyroute.console.server import Console
from tests.support.browsing import app_of, token_in

DIGITS = "9" * 5_000
"""More than Python reads as a number."""


@pytest.fixture(scope="module")
def client(console: Console) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=console.url, timeout=20) as opened:
        yield opened


def send(client: httpx.Client, path: str, **fields: str) -> httpx.Response:
    return client.post(path, data={"token": token_in(client.get("/").text), **fields})


@pytest.mark.parametrize(
    ("address", "status", "said"),
    [
        (f"/cluster/broker-0/{DIGITS}", 404, "The name servers know no broker broker-0"),
        ("/messages?topic=TBW102&begin=9999-12-31T23:59:59-18:00", 200, "is not between 1970"),
        ("/messages?topic=TBW102&end=999999999999999999999999", 200, "is not between 1970"),
        ("/messages/TBW102/", 400, "is blank"),
        ("/cluster/change-setting", 405, "There is no such page"),
        ("/topics?page=abc&sort=nothing&kind=none", 200, "Topics"),
    ],
    ids=["long-number", "begin", "end", "blank-id", "form", "list"],
)
def test_an_address_that_makes_no_sense(client: httpx.Client, address: str, status: int, said: str) -> None:
    answer = client.get(address)
    assert (answer.status_code, said in answer.text) == (status, True), answer.text


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("/cluster/clean-queues", {"name": "broker-0", "id": DIGITS}, "reload the list of brokers"),
        ("/topics/create", {"topic": "Nowhere", "kind": "NORMAL"}, "choose a cluster or a broker"),
        (
            "/groups/clone",
            {"group": "a", "source": "misspelt", "topic": "TBW102"},
            "has consumed nothing",
        ),
        ("/groups/reset-to-time", {"group": "a", "topic": "b", "time": "1e99"}, "10m for ten minutes ago"),
    ],
    ids=["long-number", "no-place", "no-source", "no-time"],
)
def test_a_form_that_makes_no_sense(client: httpx.Client, path: str, fields: dict[str, str], said: str) -> None:
    answer = send(client, path, confirmed="yes", **fields)
    assert (answer.status_code, said in answer.text) == (409, True), answer.text


def test_a_question_says_what_was_typed_and_nothing_else(client: httpx.Client) -> None:
    """What stands in one field is no place for another."""
    answer = send(client, "/cluster/change-setting", key="a", value="{key} {name}")
    assert "Set a of the broker — to “{key} {name}”?" in answer.text


def test_the_language_can_be_changed_before_a_question_is_answered(page: Page, console: Console) -> None:
    """A form was posted to the question's address, so that one goes back to where the form is."""
    settings = f"{console.url}cluster/broker-0/0?tab=settings&change=brokerPermission"
    page.goto(settings)
    page.locator("form[action='/cluster/change-setting'] button").click()
    expect(page.get_by_role("heading", name="Are you sure?")).to_be_visible()
    page.get_by_label("Language").select_option("zh")
    page.wait_for_url(settings)


def test_a_page_that_nobody_sees_keeps_no_line(page: Page, console: Console) -> None:
    """Browsers open six to a server, and no more pages than that would come up."""
    state = app_of(console).state

    def show(hidden: str) -> None:
        page.evaluate(f"Object.defineProperty(document, 'hidden', {{value: {hidden}, configurable: true}})")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    def wait_for(lines: int) -> None:
        for _ in range(100):
            if state.live.total() == lines:
                return
            page.wait_for_timeout(50)
        pytest.fail(f"{state.live.total()} lines are open, not {lines}")

    page.goto(console.url)
    wait_for(1)
    show("true")
    wait_for(0)
    show("false")
    wait_for(1)
