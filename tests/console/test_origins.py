"""Only pages of the console make changes: pages of other sites or of other ports of its host cannot."""

import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest
from playwright.sync_api import Page, expect

from skyroute.blocking import Admin
from skyroute.console.access.users import Role, make_user, write_users
from skyroute.console.server import Console
from skyroute.settings.networks import parse_networks
from skyroute.testing import Cluster
from tests.support.browsing import Serve, port_of, token_in

NO_CLUSTER = "127.0.0.1:1"
PLANTED = "A" * 43
"""A value for a cookie and for a form's token that a page of another port chooses."""
PASSWORD = "operators secret"


@pytest.fixture(scope="module")
def no_cluster_console(serve: Serve) -> Console:
    """A console without a cluster and without sign-in."""
    return serve(NO_CLUSTER)


@pytest.fixture(scope="module")
def behind_proxy(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Console:
    folder = tmp_path_factory.mktemp("users")
    write_users(folder / "users", {"olga": make_user("olga", Role.OPERATOR, PASSWORD)})
    return serve(
        NO_CLUSTER,
        folder=folder,
        sign_in=True,
        names=("console.example",),
        trusted_proxies=parse_networks("127.0.0.1, 10.0.0.0/8"),
    )


@pytest.fixture
def client(no_cluster_console: Console) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=no_cluster_console.url, timeout=20) as opened:
        yield opened


def prefer(client: httpx.Client, **headers: str) -> httpx.Response:
    """Send a form that changes a preference, with a valid token."""
    form = {"token": token_in(client.get("/audit").text), "theme": "dark"}
    return client.post("/preferences", data=form, headers=headers)


def plant(client: httpx.Client, console: Console) -> None:
    for name in ("skyroute_token", f"skyroute_visitor_{port_of(console)}", f"skyroute_session_{port_of(console)}"):
        client.cookies.set(name, PLANTED)


@pytest.mark.parametrize(
    ("origin", "site", "status"),
    [
        (None, None, HTTPStatus.SEE_OTHER),  # not a browser
        ("own", None, HTTPStatus.SEE_OTHER),
        ("own", "same-origin", HTTPStatus.SEE_OTHER),
        (None, "same-origin", HTTPStatus.SEE_OTHER),
        (None, "none", HTTPStatus.SEE_OTHER),
        (None, "same-site", HTTPStatus.FORBIDDEN),  # another port
        (None, "cross-site", HTTPStatus.FORBIDDEN),
        ("own", "cross-site", HTTPStatus.FORBIDDEN),
        ("http://127.0.0.1:1", None, HTTPStatus.FORBIDDEN),
        ("http://127.0.0.1:1", "same-origin", HTTPStatus.FORBIDDEN),
        ("http://127.0.0.1", None, HTTPStatus.FORBIDDEN),
        ("http://evil.example", None, HTTPStatus.FORBIDDEN),
        ("null", None, HTTPStatus.FORBIDDEN),
        ("", None, HTTPStatus.FORBIDDEN),
        ("http://[", None, HTTPStatus.FORBIDDEN),
    ],
)
def test_a_form_must_come_from_the_console(
    client: httpx.Client, no_cluster_console: Console, origin: str | None, site: str | None, status: int
) -> None:
    own = no_cluster_console.url.rstrip("/")
    headers = {"Origin": own if origin == "own" else origin, "Sec-Fetch-Site": site}
    answer = prefer(client, **{name: value for name, value in headers.items() if value is not None})
    assert answer.status_code == status
    if status == HTTPStatus.FORBIDDEN:
        assert "Nothing was changed" in answer.text
        assert own in answer.text


def test_the_scheme_is_part_of_an_origin(client: httpx.Client, no_cluster_console: Console) -> None:
    assert (
        prefer(client, Origin=no_cluster_console.url.rstrip("/").replace("http:", "https:")).status_code
        == HTTPStatus.FORBIDDEN
    )


def test_the_origin_of_every_form_is_checked(behind_proxy: Console) -> None:
    with httpx.Client(base_url=behind_proxy.url, timeout=20) as client:
        form = {"token": token_in(client.get("/sign-in").text), "name": "olga", "password": PASSWORD}
        assert (
            client.post("/sign-in", data=form, headers={"Origin": "http://127.0.0.1:1"}).status_code
            == HTTPStatus.FORBIDDEN
        )
        for path in ("/sign-out", "/preferences", "/topics/delete", "/cluster/name-servers/compare"):
            assert client.post(path, headers={"Sec-Fetch-Site": "same-site"}).status_code == HTTPStatus.FORBIDDEN


def test_a_planted_cookie_deletes_no_topic(real_cluster: Cluster, console: Console) -> None:
    with Admin(real_cluster.name_server_address) as admin:
        admin.create_topic("Planted", cluster="DefaultCluster")
    form = {"token": PLANTED, "topic": "Planted", "cluster": "DefaultCluster", "confirmed": "yes"}
    for headers in ({"Origin": "http://127.0.0.1:1"}, {}):
        with httpx.Client(base_url=console.url, timeout=20) as client:
            plant(client, console)
            assert client.post("/topics/delete", data=form, headers=headers).status_code == HTTPStatus.FORBIDDEN
    with httpx.Client(base_url=console.url, timeout=20) as client:
        form["token"] = token_in(client.get("/").text)  # a valid one, for a planted cookie
        assert (
            client.post("/topics/delete", data=form, headers={"Origin": "http://127.0.0.1:1"}).status_code
            == HTTPStatus.FORBIDDEN
        )
        assert client.post("/topics/delete", data=form).status_code == HTTPStatus.SEE_OTHER  # the topic existed


def test_a_page_of_another_port_changes_nothing(page: Page, no_cluster_console: Console) -> None:
    """In a real browser, with a cookie and its valid token."""
    visitor_cookie = f"skyroute_visitor_{port_of(no_cluster_console)}"
    with httpx.Client(base_url=no_cluster_console.url) as attacker:
        token = token_in(attacker.get("/audit").text)
        cookie = attacker.cookies[visitor_cookie]
    evil = f"""<title>evil</title><form method="post" action="{no_cluster_console.url}preferences">
        <input name="token" value="{token}"><input name="theme" value="dark"><button>Win</button></form>
        <script>document.cookie = "{visitor_cookie}={cookie}; path=/"</script>"""

    class Evil(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(evil.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Evil) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            page.goto(f"http://127.0.0.1:{server.server_port}/")
            page.get_by_role("button", name="Win").click()
            expect(page.get_by_text("Nothing was changed: the form came from")).to_be_visible()
        finally:
            server.shutdown()
            thread.join()
    expect(page.locator("html")).to_have_attribute("data-theme", "auto")


def test_a_token_belongs_to_its_session(behind_proxy: Console) -> None:
    def sign_in(client: httpx.Client) -> tuple[str, str]:
        before = token_in(client.get("/sign-in").text)
        form = {"token": before, "name": "olga", "password": PASSWORD}
        assert client.post("/sign-in", data=form).status_code == HTTPStatus.SEE_OTHER
        return before, token_in(client.get("/audit").text)

    session_cookie = f"skyroute_session_{port_of(behind_proxy)}"
    with httpx.Client(base_url=behind_proxy.url) as one, httpx.Client(base_url=behind_proxy.url) as other:
        one.cookies.set(session_cookie, PLANTED, domain="127.0.0.1")  # a session from before the sign-in
        before, ones = sign_in(one)
        assert one.cookies.get(session_cookie, domain="127.0.0.1") != PLANTED
        _, others = sign_in(other)
        assert len({before, ones, others}) == 3
        for wrong in (before, others):
            assert one.post("/preferences", data={"token": wrong}).status_code == HTTPStatus.FORBIDDEN
        assert one.post("/preferences", data={"token": ones}).status_code == HTTPStatus.SEE_OTHER


# Behind a proxy


@pytest.mark.parametrize(
    ("forwarded", "address"),
    [
        ({}, "127.0.0.1"),
        ({"X-Forwarded-For": "203.0.113.7"}, "203.0.113.7"),
        ({"X-Forwarded-For": "1.2.3.4, 203.0.113.7, 10.0.0.9"}, "203.0.113.7"),
    ],
)
def test_a_trusted_proxy_sets_the_clients_address(
    behind_proxy: Console, no_cluster_console: Console, forwarded: dict[str, str], address: str
) -> None:
    with httpx.Client(base_url=behind_proxy.url) as client:
        form = {"token": token_in(client.get("/sign-in").text), "name": "olga", "password": PASSWORD}
        assert client.post("/sign-in", data=form, headers=forwarded).status_code == HTTPStatus.SEE_OTHER
    assert f'"address":"{address}","action":"sign-in"' in last_line(behind_proxy)


def test_headers_of_other_clients_are_ignored(no_cluster_console: Console) -> None:
    forged = {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "console.example"}
    with httpx.Client(base_url=no_cluster_console.url, timeout=20, headers=forged) as client:
        page = client.get("/audit")
        assert "Secure" not in page.headers["set-cookie"]
        form = {"token": token_in(page.text), "topic": "Any", "cluster": "Any"}
        foreign = client.post("/topics/create", data=form, headers={"Origin": "https://console.example"})
        assert foreign.status_code == HTTPStatus.FORBIDDEN
        client.post("/topics/create", data=form)
    assert '"address":"127.0.0.1"' in last_line(no_cluster_console)


def test_a_trusted_proxy_sets_scheme_and_host(behind_proxy: Console) -> None:
    forwarded = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "console.example"}
    with httpx.Client(base_url=behind_proxy.url, headers=forwarded) as client:
        page = client.get("/sign-in")
        assert "; Secure" in page.headers["set-cookie"]
        cookies = {"Cookie": page.headers["set-cookie"].partition(";")[0]}  # httpx does not send it without TLS
        form = {"token": token_in(page.text), "theme": "dark"}
        for origin, status in (
            ("https://console.example", HTTPStatus.SEE_OTHER),
            ("http://console.example", HTTPStatus.FORBIDDEN),
        ):
            answer = client.post("/preferences", data=form, headers={"Origin": origin, **cookies})
            assert answer.status_code == status
        assert (
            client.get("/sign-in", headers={"X-Forwarded-Host": "evil.example"}).status_code
            == HTTPStatus.MISDIRECTED_REQUEST
        )


def last_line(console: Console) -> str:
    return console.config.audit_path.read_text().splitlines()[-1]


# Forms


def test_a_form_with_files_is_refused(client: httpx.Client) -> None:
    answer = client.post("/preferences", files={"token": ("name", b"content")})
    assert answer.status_code == HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    assert "application/x-www-form-urlencoded" in answer.text


def test_the_number_of_fields_is_limited(client: httpx.Client) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = client.post("/preferences", content="a&" * 5_000, headers=form)
    assert answer.status_code == HTTPStatus.BAD_REQUEST
    assert "too many fields (at most 200)" in answer.text
