"""Sign-in, roles, form tokens, security headers and cookies."""

import json
import re
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest
import trustme
from playwright.sync_api import Page, expect
from starlette.routing import Route

from skyroute.console.access.users import Role, make_user, read_users, write_users
from skyroute.console.errors import ConsoleError
from skyroute.console.guard.request_guard import HEADERS, PUBLIC_FORM_BYTES_MAX
from skyroute.console.server import Console
from skyroute.console.web.actions import FORM_BYTES_MAX
from skyroute.settings.networks import parse_networks
from skyroute.testing import Cluster
from tests.support.browsing import Serve, app_of, check_accessible, port_of, token_in

PASSWORDS = {"olga": "operators secret", "vera": "viewers secret"}
CHANGING_NOTHING = {"/sign-in", "/sign-out", "/preferences", "/cluster/name-servers/compare"}
"""Forms that viewers can submit."""
ACTION, ACTION_FIELDS = "/topics/create", {"topic": "Unwritten", "cluster": "DefaultCluster"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guarded")
    roles = {"olga": Role.OPERATOR, "vera": Role.VIEWER}
    write_users(folder / "users", {name: make_user(name, role, PASSWORDS[name]) for name, role in roles.items()})
    return folder


@pytest.fixture(scope="module")
def guarded(real_cluster: Cluster, serve: Serve, folder: Path) -> Console:
    """A console that requires sign-in."""
    return serve(
        real_cluster.name_server_address, sign_in=True, folder=folder, trusted_proxies=parse_networks("127.0.0.1")
    )


@pytest.fixture
def client(guarded: Console) -> Iterator[httpx.Client]:
    """A browser without cookies."""
    with httpx.Client(base_url=guarded.url, follow_redirects=False, timeout=20) as opened:
        yield opened


def token_of(client: httpx.Client) -> str:
    return token_in(client.get("/sign-in", follow_redirects=True).text)


def sign_in(client: httpx.Client, name: str, password: str | None = None, address: str = "10.1.1.1") -> httpx.Response:
    """Sign in with the form; the console trusts a proxy on loopback, so the test can set the client's address."""
    form = {"token": token_of(client), "name": name, "password": password or PASSWORDS.get(name, "")}
    return client.post("/sign-in", data=form, headers={"X-Forwarded-For": address})


def routes(console: Console, method: str) -> list[str]:
    """Every path of the console, with 0 for its parameters."""
    found = [route for route in app_of(console).routes if isinstance(route, Route) and method in (route.methods or ())]
    return [re.sub(r"\{[^}]+\}", "0", route.path) for route in found]


# Sign-in


def test_a_user_signs_in_and_out(page: Page, guarded: Console) -> None:
    page.goto(f"{guarded.url}topics?q=Orders")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.get_by_role("navigation", name="Main")).to_have_count(0)
    check_accessible(page)
    page.get_by_label("User").fill("olga")
    page.get_by_label("Password").fill("a wrong one")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("Wrong user name or password.")
    page.get_by_label("Password").fill(PASSWORDS["olga"])
    page.get_by_label("Password").press("Enter")
    expect(page.get_by_text("olga (operator)")).to_be_visible()
    assert page.url == f"{guarded.url}topics?q=Orders"
    page.goto(f"{guarded.url}audit")
    expect(page.locator("tbody tr").first).to_contain_text("sign-in")
    expect(page.locator("tbody tr").nth(1)).to_contain_text("wrong name or password")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.goto(f"{guarded.url}audit")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_pages_are_hidden_without_sign_in(client: httpx.Client, guarded: Console) -> None:
    for path in routes(guarded, "GET"):
        answer = client.get(path)
        if path not in ("/sign-in", "/livez"):
            assert answer.status_code in (HTTPStatus.SEE_OTHER, HTTPStatus.UNAUTHORIZED), path
            assert answer.headers.get("location", "/sign-in") == "/sign-in"
    for path in set(routes(guarded, "POST")) - {"/sign-in", "/preferences"}:
        assert client.post(path, data={"token": token_of(client)}).status_code == HTTPStatus.UNAUTHORIZED, path
    part = client.get("/topics", headers={"HX-Request": "true"})
    assert (part.status_code, part.headers["hx-redirect"], part.text) == (HTTPStatus.UNAUTHORIZED, "/sign-in", "")


def test_sign_out_and_a_new_password_end_a_session(client: httpx.Client, guarded: Console, folder: Path) -> None:
    users = read_users(folder / "users")
    write_users(folder / "users", users | {"gone": make_user("gone", Role.OPERATOR, "for a while")})
    sign_in(client, "gone", "for a while")
    assert client.get("/audit").status_code == HTTPStatus.OK
    kept = dict(client.cookies)
    assert client.post("/sign-out", data={"token": "x" * 43}).status_code == HTTPStatus.FORBIDDEN
    assert client.get("/audit").status_code == HTTPStatus.OK
    client.post("/sign-out", data={"token": token_of(client)})
    with httpx.Client(base_url=guarded.url, cookies=kept) as thief:
        assert thief.get("/audit").status_code == HTTPStatus.SEE_OTHER
    sign_in(client, "gone", "for a while")
    assert client.get("/audit").status_code == HTTPStatus.OK
    write_users(folder / "users", users | {"gone": make_user("gone", Role.OPERATOR, "another one")})
    assert client.get("/audit").status_code == HTTPStatus.SEE_OTHER
    write_users(folder / "users", users)
    assert sign_in(client, "gone", "another one").status_code == HTTPStatus.FORBIDDEN


def test_concurrent_wrong_passwords_are_limited(guarded: Console, folder: Path) -> None:
    def guess(_: int) -> int:
        with httpx.Client(base_url=guarded.url, timeout=60) as client:
            return sign_in(client, "olga", "a guess", address="10.9.9.9").status_code

    before = (folder / "audit.jsonl").read_text().count("10.9.9.9")
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(guess, range(24)))
    tried = (folder / "audit.jsonl").read_text().count("10.9.9.9") - before
    assert tried == answers.count(HTTPStatus.FORBIDDEN) <= 6
    assert answers.count(HTTPStatus.TOO_MANY_REQUESTS) == 24 - tried
    with httpx.Client(base_url=guarded.url) as client:
        assert (
            sign_in(client, "olga", address="10.9.9.9").status_code == HTTPStatus.TOO_MANY_REQUESTS
        )  # even with the right password
        assert (
            sign_in(client, "olga", address="10.9.9.8").status_code == HTTPStatus.SEE_OTHER
        )  # other addresses can sign in


@pytest.mark.parametrize("wanted", ["https://evil.example/", "//evil.example", "/\\evil.example", "/\t/evil.example"])
def test_redirects_stay_on_the_console(client: httpx.Client, wanted: str) -> None:
    escaped = wanted.replace("\\", "\\\\")
    client.cookies.set("skyroute_return", f'"{escaped}"')
    assert sign_in(client, "vera").headers["location"] == "/"
    form = {"token": token_of(client), "language": "en", "back": wanted}
    assert client.post("/preferences", data=form).headers["location"] == "/"


def test_a_damaged_users_file_refuses_all_sign_ins(real_cluster: Cluster, serve: Serve, tmp_path: Path) -> None:
    write_users(tmp_path / "users", {"olga": make_user("olga", Role.OPERATOR, PASSWORDS["olga"])})
    console = serve(real_cluster.name_server_address, sign_in=True, folder=tmp_path)
    with httpx.Client(base_url=console.url) as client:
        sign_in(client, "olga")
        assert client.get("/audit").status_code == HTTPStatus.OK
        (tmp_path / "users").write_text("olga:operator:secret\n")
        assert client.get("/audit").status_code == HTTPStatus.SEE_OTHER
        answer = sign_in(client, "olga")
        assert answer.status_code == HTTPStatus.FORBIDDEN
        assert "line 1 of" in answer.text
        assert "skyroute console user NAME" in answer.text


def test_the_console_does_not_start_without_users(real_cluster: Cluster, serve: Serve, tmp_path: Path) -> None:
    with pytest.raises(ConsoleError, match=f"skyroute console user NAME --role operator --data {tmp_path}"):
        serve(real_cluster.name_server_address, host="0.0.0.0", folder=tmp_path)
    write_users(tmp_path / "users", {"olga": make_user("olga", Role.OPERATOR, PASSWORDS["olga"])})
    console = serve(real_cluster.name_server_address, host="0.0.0.0", folder=tmp_path)
    assert httpx.get(console.url).headers["location"] == "/sign-in"


# Roles and tokens


def test_a_viewer_cannot_make_changes(client: httpx.Client, guarded: Console) -> None:
    sign_in(client, "vera")
    for path in routes(guarded, "GET"):
        if path == "/live":
            continue
        answer = client.get(path, follow_redirects=True)
        forms = set(re.findall(r'<form[^>]*method="post"[^>]*action="([^"]*)"', answer.text))
        assert forms <= CHANGING_NOTHING, path
    token = token_of(client)
    for path in set(routes(guarded, "POST")) - CHANGING_NOTHING:
        answer = client.post(path, data={"token": token, "confirmed": "yes"})
        assert answer.status_code == HTTPStatus.FORBIDDEN, path
        assert "Only operators can make changes." in answer.text


@pytest.mark.parametrize("token", [None, "", "A" * 43])
def test_a_form_without_a_valid_token_is_refused(client: httpx.Client, guarded: Console, token: str | None) -> None:
    sign_in(client, "olga")
    for path in set(routes(guarded, "POST")) - {"/sign-in"}:
        form = {"confirmed": "yes", "topic": "Forged"} | ({} if token is None else {"token": token})
        assert client.post(path, data=form).status_code == HTTPStatus.FORBIDDEN, path
    with httpx.Client(base_url=guarded.url) as stranger:
        form = {"name": "olga", "password": PASSWORDS["olga"]} | ({} if token is None else {"token": token})
        assert stranger.post("/sign-in", data=form).status_code == HTTPStatus.FORBIDDEN


def test_nothing_is_changed_if_the_audit_log_cannot_be_written(
    real_cluster: Cluster, serve: Serve, tmp_path: Path
) -> None:
    (tmp_path / "audit.jsonl").mkdir()
    console = serve(real_cluster.name_server_address, folder=tmp_path)
    with httpx.Client(base_url=console.url, timeout=20) as client:
        response = client.post(ACTION, data={"token": token_of(client), **ACTION_FIELDS})
    assert response.status_code == HTTPStatus.INTERNAL_SERVER_ERROR
    assert "Nothing was changed, because the audit log" in response.text


# Headers and cookies


def test_every_response_has_security_headers(client: httpx.Client, guarded: Console) -> None:
    sign_in(client, "olga")
    asked = [path for path in routes(guarded, "GET") if path != "/live"]
    for path in (*asked, "/static/style.css", "/nowhere", "/static/nowhere"):
        answer = client.get(path)
        assert (
            HEADERS.items() <= dict(answer.headers.items()).items()
            or {name.lower(): value for name, value in HEADERS.items()}.items() <= answer.headers.items()
        ), path
        assert ("no-store" in answer.headers.get("cache-control", "")) != path.startswith("/static/"), path
        assert not re.search(r"\sstyle=|\son\w+=|<script>|javascript:", answer.text), path
    wrong = client.get("/", headers={"Host": "evil.example"})
    assert wrong.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost:80", "LOCALHOST", "[::1]:8088", "console.example"])
def test_known_host_names_are_accepted(real_cluster: Cluster, serve: Serve, tmp_path: Path, name: str) -> None:
    console = serve(real_cluster.name_server_address, folder=tmp_path, names=("console.example",))
    assert httpx.get(f"{console.url}livez", headers={"Host": name}).status_code == HTTPStatus.OK


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1.evil.example", "", "localhost.evil.example:8088"])
def test_unknown_host_names_are_refused(guarded: Console, name: str) -> None:
    answer = httpx.get(guarded.url, headers={"Host": name})
    assert answer.status_code == HTTPStatus.MISDIRECTED_REQUEST
    assert "unknown host name" in answer.text


def test_cookies_are_hidden_from_other_sites_and_scripts(client: httpx.Client, guarded: Console) -> None:
    answers = [client.get("/"), sign_in(client, "olga")]
    form = {"token": token_of(client), "language": "zh", "theme": "dark"}
    answers.append(client.post("/preferences", data=form))
    cookies = [
        cookie for answer in answers for cookie in answer.headers.get_list("set-cookie") if "Max-Age=0" not in cookie
    ]
    names = {cookie.partition("=")[0] for cookie in cookies}
    port = port_of(guarded)
    visitor, session = f"skyroute_visitor_{port}", f"skyroute_session_{port}"  # all ports of a host share their cookies
    assert names == {visitor, session, "skyroute_return", "skyroute_language", "skyroute_theme"}
    for cookie in cookies:
        assert "HttpOnly" in cookie
        assert f"SameSite={'lax' if cookie.startswith(visitor) else 'strict'}" in cookie


@pytest.mark.parametrize(("path", "bytes_max"), [("/sign-in", PUBLIC_FORM_BYTES_MAX), (ACTION, FORM_BYTES_MAX)])
def test_the_size_of_a_form_is_limited(client: httpx.Client, path: str, bytes_max: int) -> None:
    if path != "/sign-in":
        sign_in(client, "olga")
    answer = client.post(path, data={"filler": "x" * bytes_max})
    assert answer.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert str(bytes_max) in answer.text


def test_an_internal_error_shows_no_details(real_cluster: Cluster, serve: Serve, tmp_path: Path) -> None:
    async def broken(_request: object) -> None:
        raise RuntimeError("the secret reason")

    console = serve(real_cluster.name_server_address, folder=tmp_path)
    app_of(console).router.routes.append(Route("/broken", broken))
    answer = httpx.get(f"{console.url}broken")
    assert answer.status_code == HTTPStatus.INTERNAL_SERVER_ERROR
    assert "Internal error. See the log of the console." in answer.text
    assert "secret reason" not in answer.text
    assert answer.headers["x-frame-options"] == "DENY"


def test_the_console_serves_https_with_a_certificate(
    real_cluster: Cluster, serve: Serve, folder: Path, tmp_path: Path
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")
    files = {"certificate": tmp_path / "certificate.pem", "key": tmp_path / "key.pem"}
    console = serve(real_cluster.name_server_address, sign_in=True, folder=folder, **files)
    assert console.url.startswith("https://127.0.0.1:")
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    with httpx.Client(base_url=console.url, verify=trust) as client:
        answer = sign_in(client, "olga")
        assert answer.status_code == HTTPStatus.SEE_OTHER
        assert all(
            "; Secure" in cookie for cookie in answer.headers.get_list("set-cookie") if "Max-Age=0" not in cookie
        )
        assert client.get("/audit").status_code == HTTPStatus.OK
    with pytest.raises(ConsoleError, match="cannot use the certificate"):
        serve(real_cluster.name_server_address, sign_in=True, folder=folder, certificate=tmp_path / "key.pem")
    with pytest.raises(ConsoleError, match="--certificate"):
        serve(real_cluster.name_server_address, sign_in=True, folder=folder, key=tmp_path / "key.pem")


# Users of the cluster


def test_users_of_the_cluster_sign_in_with_the_role_of_their_policies(
    real_cluster: Cluster, serve: Serve, tmp_path: Path
) -> None:
    rules = tmp_path / "access.json"
    entry = {"resource": "Cluster:*", "actions": ["Get"], "decision": "Allow"}
    users = [{"username": "cleo", "password": "a key of hers"}, {"username": "carl", "password": "a key of his"}]
    policies = [{"policyType": "Custom", "entries": [entry]}]
    content = {"format": 1, "users": users, "acls": [{"subject": "User:cleo", "policies": policies}]}
    rules.write_text(json.dumps(content))
    console = serve(
        real_cluster.name_server_address,
        sign_in=True,
        folder=tmp_path / "console",
        access_rules=rules,
        trusted_proxies=parse_networks("127.0.0.1"),
    )
    with httpx.Client(base_url=console.url, timeout=20) as browser:
        assert sign_in(browser, "carl", "a key of his", "10.2.2.2").status_code == HTTPStatus.FORBIDDEN
        assert sign_in(browser, "cleo", "a key of hers", "10.2.2.3").status_code == HTTPStatus.SEE_OTHER
        page = browser.get("/")
        assert page.status_code == HTTPStatus.OK
        form = {**ACTION_FIELDS, "token": token_in(page.text)}
        assert browser.post(ACTION, data=form).status_code == HTTPStatus.FORBIDDEN
        rules.write_text(json.dumps(content | {"users": users[1:]}))
        assert browser.get("/", follow_redirects=False).headers["location"] == "/sign-in"
