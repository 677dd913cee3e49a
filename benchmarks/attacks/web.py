"""Attacks on the console."""

from __future__ import annotations

import http.client
import re
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final
from urllib.parse import urlencode

from benchmarks.attacks.outcomes import Outcome, attack
from benchmarks.attacks.servers import CLUSTER, Lab, Server, write_topics
from tests.support.raw import split_address
from tests.support.waiting import wait_until

HALF_REQUESTS: Final = 1_010
HELD_S: Final = 50.0
SAME_ADDRESS_S_MAX: Final = 30.0
"""Maximum wait of a client that shares the attacker's address: until the server drops the attacker's requests."""
LIE: Final = "203.0.113.7"
PLANTED: Final = "A" * 43
"""As long as a token of the console's own."""


@contextmanager
def _cluster(lab: Lab) -> Iterator[tuple[Server, Server]]:
    """A broker with a topic, and a console that has seen it."""
    folder = lab.folder("broker")
    write_topics(folder, {"wanted": 4})
    with (
        lab.name_server() as name_server,
        lab.broker(folder, {"namesrvAddr": name_server.address}) as broker,
        lab.console(name_server.address) as console,
    ):
        wait_until(lambda: "wanted" in _get(console)[1], "the console shows the topic", timeout_s=60)
        yield broker, console


def _get(console: Server, timeout_s: float = 60.0) -> tuple[int, str]:
    host, port = split_address(console.address)
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", "/topics")
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@attack("console-half-requests")
def half_requests(lab: Lab) -> Iterator[Outcome]:
    """Begin 1,010 requests and do not finish them, from an address of its own and from that of everyone else."""
    for address, whose in (("127.0.0.2", "another address"), ("127.0.0.1", "the same address")):
        with _cluster(lab) as (_, console), ExitStack() as stack:
            refused = 0
            for _ in range(HALF_REQUESTS):
                try:
                    each = socket.create_connection(split_address(console.address), 5, (address, 0))
                    stack.enter_context(each)
                    each.sendall(b"POST /topics/delete HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\nX-Half: ")
                except OSError:
                    refused += 1
            yield from _pages_meanwhile(console, whose, f"{refused} connections refused")


def _pages_meanwhile(console: Server, whose: str, note: str) -> Iterator[Outcome]:
    statuses: Counter[str] = Counter()
    began, longest_s, first_good_s = time.monotonic(), 0.0, HELD_S
    while (asked_s := time.monotonic() - began) < HELD_S:
        try:
            status = str(_get(console, HELD_S)[0])
        except OSError as error:
            status = type(error).__name__
        now_s = time.monotonic() - began
        longest_s = max(longest_s, now_s - asked_s)
        if status == "200" and not statuses["200"]:
            first_good_s = now_s
        statuses[status] += 1
        time.sleep(0.1)
    told = ", ".join(f"{status} x {count}" for status, count in statuses.items() if count)
    note = f"{told}; longest answer {longest_s:.2f} s; {note}"
    what = f"first page after {HALF_REQUESTS:,} half requests from {whose}"
    value = first_good_s if statuses["200"] else f"> {HELD_S:g} s"
    at_most = 1.0 if whose == "another address" else SAME_ADDRESS_S_MAX
    yield Outcome("console-half-requests", "console", what, value, "s", at_most, note=note)


@attack("console-planted-cookie")
def planted_cookie(lab: Lab) -> Iterator[Outcome]:
    """Plant a cookie by another port of the same host, and have the visitor's browser delete a topic with it."""
    with _cluster(lab) as (broker, console):
        host, port = split_address(console.address)
        form = {"topic": "wanted", "cluster": CLUSTER, "confirmed": "yes", "token": PLANTED}
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Cookie": f"skyroute_token={PLANTED}",
            "Origin": f"http://{host}:{port + 1}",
            "Sec-Fetch-Site": "same-site",
        }
        connection = http.client.HTTPConnection(host, port, timeout=30)
        with suppress(OSError):
            connection.request("POST", "/topics/delete", urlencode(form), headers)
        status = connection.getresponse().status
        connection.close()
        with broker.line() as line:
            left = "there" if line.call(351, {"topic": "wanted"}).code == 0 else "deleted"
        note = f"status {status}"
        yield Outcome("console-planted-cookie", "console", "the topic afterwards", left, wanted="there", note=note)


@attack("console-forwarded-for")
def forwarded_for(lab: Lab) -> Iterator[Outcome]:
    """Say in a header that one comes from elsewhere, and look at what the audit log has."""
    with _cluster(lab) as (_, console):
        host, port = split_address(console.address)
        connection = http.client.HTTPConnection(host, port, timeout=30)
        connection.request("GET", "/topics")
        page = connection.getresponse()
        cookies = "; ".join(value.partition(";")[0] for value in page.headers.get_all("Set-Cookie") or ())
        token = re.search(r'name="token"\s+value="([^"]+)"', page.read().decode())
        form = {"topic": "wanted", "cluster": CLUSTER, "confirmed": "yes", "token": token[1] if token else ""}
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Cookie": cookies,
            "Origin": f"http://{host}:{port}",
            "X-Forwarded-For": LIE,
        }
        connection.request("POST", "/topics/delete", urlencode(form), headers)
        status = connection.getresponse().status
        connection.close()
        written = "".join(path.read_text() for path in console.folder.glob("*audit*") if path.is_file())
        believed = "accepted" if LIE in written else "not accepted" if written else "nothing written"
        what = "X-Forwarded-For from anyone"
        yield Outcome(
            "console-forwarded-for", "console", what, believed, wanted="not accepted", note=f"status {status}"
        )
