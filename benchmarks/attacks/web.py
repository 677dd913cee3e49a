"""Attacks on the console."""

from __future__ import annotations

import http.client
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final
from urllib.parse import urlencode

from benchmarks.attacks.outcomes import Outcome, attack
from benchmarks.attacks.servers import CLUSTER, Lab, Server, peer, write_topics
from tests.support.process import eventually
from tests.support.raw import split_address

HALF_REQUESTS: Final = 1_010
HELD_S: Final = 30.0
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
        eventually(lambda: "wanted" in _get(console)[1], "the console shows the topic", timeout_s=60)
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
    """Begin 1,010 requests and do not finish them, for half a minute."""
    with _cluster(lab) as (_, console), ExitStack() as stack, peer(console, pause_ms=100) as well_behaved:
        well_behaved.begin()
        refused = 0
        for _ in range(HALF_REQUESTS):
            try:
                each = stack.enter_context(socket.create_connection(split_address(console.address), timeout=5))
                each.sendall(b"POST /topics/delete HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\nX-Half: ")
            except OSError:
                refused += 1
        statuses: Counter[str] = Counter()
        began, deadline = time.monotonic(), time.monotonic() + HELD_S
        first_good_s = -1.0
        while time.monotonic() < deadline:
            try:
                status = str(_get(console, HELD_S)[0])
            except OSError as error:
                status = type(error).__name__
            statuses[status] += 1
            if status == "200" and first_good_s < 0:
                first_good_s = time.monotonic() - began
            time.sleep(0.1)
        heard = well_behaved.end()
    told = ", ".join(f"{status} x {count}" for status, count in statuses.items())
    good = 100 * statuses["200"] / statuses.total()
    note = f"{told}; first good answer after {first_good_s:.1f} s; {refused} connections refused"
    what = f"pages answered while {HALF_REQUESTS:,} requests are half sent"
    yield Outcome("console-half-requests", "console", what, good, "%", at_least=100, note=note)
    yield Outcome(
        *("console-half-requests", "console", "silence", heard.longest_ms, "ms"),
        note=f"{heard.failed} of {heard.asked} failed {heard.last_failure}",
    )


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
