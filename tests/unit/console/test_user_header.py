"""A proxy names the user: only trusted proxies, only known users, only one header."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyroute.console.access.users import Role, make_user, write_users
from skyroute.console.config import USERS_NAME, ConsoleConfig
from skyroute.console.server import Console
from skyroute.remoting.loops import LoopThread
from skyroute.settings.networks import parse_networks

HEADER = "X-Forwarded-User"


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("console")
    yield thread
    thread.close()


def status(thread: LoopThread, folder: Path, proxies: str, *names: str, forwarded: str = "", trusted: str = "") -> int:
    """Return the status of the page of users' changes for a request with these headers."""
    write_users(folder / USERS_NAME, {"alice": make_user("alice", Role.VIEWER, "a-password")})
    config = ConsoleConfig(
        name_servers="127.0.0.1:9",
        port=0,
        folder=folder,
        sign_in=True,
        trusted_proxies=parse_networks(trusted),
        user_header=HEADER,
        user_header_proxies=parse_networks(proxies),
    )
    console = Console(config)
    thread.call(console.start())
    try:
        host, port = console.url.removeprefix("http://").rstrip("/").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=10)
        connection.putrequest("GET", "/audit")
        for name in names:
            connection.putheader(HEADER, name)
        if forwarded:
            connection.putheader("X-Forwarded-For", forwarded)
        connection.endheaders()
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status
    finally:
        thread.call(console.stop())


def test_a_user_that_a_trusted_proxy_names_is_signed_in(thread: LoopThread, tmp_path: Path) -> None:
    assert status(thread, tmp_path, "127.0.0.1", "alice") == 200


@pytest.mark.parametrize(
    ("proxies", "names"), [("10.0.0.1", ["alice"]), ("127.0.0.1", ["bob"]), ("127.0.0.1", ["alice", "alice"])]
)
def test_others_must_sign_in(thread: LoopThread, tmp_path: Path, proxies: str, names: list[str]) -> None:
    assert status(thread, tmp_path, proxies, *names) == 303


def test_an_address_that_another_proxy_forwards_is_not_trusted(thread: LoopThread, tmp_path: Path) -> None:
    assert status(thread, tmp_path, "10.0.0.1", "alice", forwarded="10.0.0.1", trusted="127.0.0.1") == 303
