"""A well-behaved peer of a server under attack: how long does it wait for its answers?

`python -m benchmarks.attacks.peer nameserver|broker|console HOST:PORT PID PAUSE_MS SOURCE`. It asks something cheap on
a connection of its own, from the address SOURCE, waits for the answer, pauses, and asks again. It writes `ready` after
its first answer. Then the line `begin` on its standard input makes it forget what it met with, and `end` has it written
as JSON.

Where others share the machine, a wait says little. So it also looks how long the server's loop computed meanwhile.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Final

from benchmarks.attacks.servers import PEER_TOPIC, pull_request, send_request
from tests.support.raw import RawConnection, Request, split_address

PATIENCE_S: Final = 120.0
RETRY_S: Final = 0.02


class RefusedError(Exception):
    """An answer that a well-behaved peer should not get."""


def questions(role: str) -> Iterator[Request]:
    """Return what a client asks all day."""
    if role == "nameserver":
        return cycle([Request(105, {"topic": PEER_TOPIC, "acceptStandardJsonOnly": "true"})])
    maximum = Request(30, {"topic": PEER_TOPIC, "queueId": "0"})
    return cycle([send_request(PEER_TOPIC, 0, b"hello"), maximum, pull_request(PEER_TOPIC, 0, 0)])


def asker(role: str, address: str, source: str) -> Callable[[], None]:
    """Return what asks once, and raises if there is no good answer."""
    line: RawConnection | None = None
    asked = questions(role)

    def over_the_wire() -> None:
        nonlocal line
        try:
            line = line or RawConnection(address, timeout_s=PATIENCE_S, source=source)
            answer = line.call(next(asked))
        except OSError:
            if line is not None:
                line.close()
            line = None
            raise
        if answer.code:
            raise RefusedError(f"{answer.code} {answer.remark}")

    def over_http() -> None:
        host, port = split_address(address)
        connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
        try:
            connection.request("GET", "/topics")
            answer = connection.getresponse()
            answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise RefusedError(f"status {answer.status}")

    return over_http if role == "console" else over_the_wire


def computed_s_of(pid: int) -> float:
    """Return how long the main thread of a process, which runs its loop, has had a processor so far."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except OSError:
        return 0.0


class Asking(threading.Thread):
    """Asks again and again, and keeps the longest wait."""

    def __init__(self, ask: Callable[[], None], pid: int, pause_s: float) -> None:
        super().__init__(daemon=True)
        self._ask = ask
        self._pid = pid
        self._pause_s = pause_s
        self._waiting_since: float | None = None
        self._computed_before_s = 0.0
        self.has_begun = threading.Event()
        self.clear()

    def clear(self) -> None:
        self.longest_s = self.computed_s = 0.0
        self.asked, self.failed, self.last_failure = 0, 0, ""

    def run(self) -> None:
        while True:
            self._computed_before_s = computed_s_of(self._pid)
            self._waiting_since = time.monotonic()
            while not self._is_answered():
                time.sleep(RETRY_S)
            self.longest_s = max(self.longest_s, time.monotonic() - self._waiting_since)
            self.computed_s = max(self.computed_s, self._computed_meanwhile_s())
            self._waiting_since = None
            self.has_begun.set()
            time.sleep(self._pause_s)

    def _computed_meanwhile_s(self) -> float:
        return computed_s_of(self._pid) - self._computed_before_s

    def _is_answered(self) -> bool:
        self.asked += 1
        try:
            self._ask()
        except (OSError, http.client.HTTPException, RefusedError) as error:
            self.failed += 1
            self.last_failure = f"{type(error).__name__}: {error}"
            return False
        return True

    def met_with(self) -> dict[str, object]:
        """Return what happened, once the question under way is answered or long overdue."""
        since, deadline = self._waiting_since, time.monotonic() + PATIENCE_S
        while since is not None and self._waiting_since == since and time.monotonic() < deadline:
            if self.failed and time.monotonic() - since > 5:
                break  # it is refused, and will be
            time.sleep(0.001)
        waited_s = computed_s = 0.0
        if since is not None:
            waited_s, computed_s = time.monotonic() - since, self._computed_meanwhile_s()
        return {
            "longest_ms": 1000 * max(self.longest_s, waited_s),
            "computed_ms": 1000 * max(self.computed_s, computed_s),
            "asked": self.asked,
            "failed": self.failed,
            "last_failure": self.last_failure,
        }


def main() -> None:
    role, address, pid, pause_ms, source = sys.argv[1:]
    asking = Asking(asker(role, address, source), int(pid), float(pause_ms) / 1000)
    asking.start()
    if not asking.has_begun.wait(PATIENCE_S):
        sys.exit("no answer")
    print("ready", flush=True)
    for word in sys.stdin:
        if word == "begin\n":
            asking.clear()
            print("begun", flush=True)
        else:
            print(json.dumps(asking.met_with()), flush=True)


if __name__ == "__main__":
    main()
