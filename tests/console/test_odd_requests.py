"""Requests that no page sends: each is refused with an error text."""

from collections.abc import Iterator
from http import HTTPStatus

import httpx
import pytest
from playwright.sync_api import Page, Request, expect

from skyroute.console.server import Console
from tests.support.browsing import token_in

DIGITS = "9" * 5_000
"""More digits than Python converts to a number."""


@pytest.fixture(scope="module")
def client(console: Console) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=console.url, timeout=20) as opened:
        yield opened


def send(client: httpx.Client, path: str, **fields: str) -> httpx.Response:
    return client.post(path, data={"token": token_in(client.get("/").text), **fields})


@pytest.mark.parametrize(
    ("address", "status", "text"),
    [
        (f"/cluster/broker-0/{DIGITS}", HTTPStatus.NOT_FOUND, "Broker broker-0 with id"),
        (
            "/messages?topic=TBW102&begin=9999-12-31T23:59:59-18:00",
            HTTPStatus.OK,
            "is not between the years 1970 and 9999",
        ),
        (
            "/messages?topic=TBW102&end=999999999999999999999999",
            HTTPStatus.OK,
            "is not between the years 1970 and 9999",
        ),
        ("/messages/TBW102/", HTTPStatus.BAD_REQUEST, "expected text that is not blank"),
        ("/cluster/change-setting", HTTPStatus.METHOD_NOT_ALLOWED, "Page not found"),
        ("/topics?page=abc&sort=nothing&kind=none", HTTPStatus.OK, "Topics"),
    ],
    ids=["long-number", "begin", "end", "blank-id", "form", "list"],
)
def test_an_invalid_address_is_refused(client: httpx.Client, address: str, status: int, text: str) -> None:
    response = client.get(address)
    assert (response.status_code, text in response.text) == (status, True), response.text


@pytest.mark.parametrize(
    ("path", "fields", "text"),
    [
        ("/cluster/clean-queues", {"name": "broker-0", "id": DIGITS}, "reload the list of brokers"),
        ("/topics/create", {"topic": "Nowhere", "kind": "NORMAL"}, "nothing is selected; choose one"),
        (
            "/groups/clone",
            {"group": "a", "source": "misspelt", "topic": "TBW102"},
            "there is nothing to clone",
        ),
        ("/groups/reset-to-time", {"group": "a", "topic": "b", "time": "1e99"}, "10m for ten minutes ago"),
    ],
    ids=["long-number", "no-place", "no-source", "no-time"],
)
def test_an_invalid_form_is_refused(client: httpx.Client, path: str, fields: dict[str, str], text: str) -> None:
    response = send(client, path, confirmed="yes", **fields)
    assert (response.status_code, text in response.text) == (HTTPStatus.CONFLICT, True), response.text


def test_a_question_shows_what_was_typed(client: httpx.Client) -> None:
    """A name in braces in one field is not replaced by another field."""
    response = send(client, "/cluster/change-setting", key="a", value="{key} {name}")
    assert "Set a of broker — to “{key} {name}”?" in response.text


def test_the_language_can_be_changed_before_confirming(page: Page, console: Console) -> None:
    """The question answers a POST, so the browser returns to the page with the form."""
    settings = f"{console.url}cluster/broker-0/0?tab=settings&change=brokerPermission"
    page.goto(settings)
    page.locator("form[action='/cluster/change-setting'] button").click()
    expect(page.get_by_role("heading", name="Are you sure?")).to_be_visible()
    page.get_by_label("Language").select_option("zh")
    page.wait_for_url(settings)


def test_a_hidden_page_closes_its_connection(page: Page, console: Console) -> None:
    """Browsers open six connections to a server: a seventh page would not load."""

    def is_live(request: Request) -> bool:
        return request.url == f"{console.url}live"

    def show(hidden: str) -> None:
        page.evaluate(f"Object.defineProperty(document, 'hidden', {{value: {hidden}, configurable: true}})")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    with page.expect_request(is_live):
        page.goto(console.url)
    with page.expect_event("requestfailed", is_live):
        show("true")
    with page.expect_request(is_live):
        show("false")
