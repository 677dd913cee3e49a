"""A lane that one work at a time may use. Clients that wait get equal times, however many works each has."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Final

from skyroute.remoting.fair_queue import Timeline

CLIENT: Final[ContextVar[str]] = ContextVar("client", default="")
"""Key of the client for which this task works; empty for the server's own work."""

KNOWN: Final = 1024
"""Clients that are kept before those that have no lead are forgotten."""


class Turn:
    """The turn of a work."""

    __slots__ = ("spent_s",)

    def __init__(self) -> None:
        self.spent_s = 0.0
        """What its client is charged for it."""


class _Client:
    __slots__ = ("time_s", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[asyncio.Future[None]] = deque()
        """The turns of its works that have not come yet, in order of arrival."""
        self.time_s = 0.0
        """Virtual time: advances by the time of its turns."""


class Lane:
    """Start-time fair queueing of clients. The works of one client take turns in order of arrival."""

    def __init__(self) -> None:
        self._clients: dict[str, _Client] = {}
        """Those that wait, have the turn, or had more time than others while these wait."""
        self._known_max = KNOWN
        self._queue: Timeline[str] = Timeline()
        """Clients that wait and do not have the turn."""
        self._served: str | None = None

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[Turn]:
        """Wait for the turn of this task's client, and end it at the end of the block."""
        await self._enter(CLIENT.get())
        turn = Turn()
        try:
            yield turn
        finally:
            self._leave(turn.spent_s)

    async def _enter(self, key: str) -> None:
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = _Client()
        if self._served is None:
            self._served, client.time_s = key, self._queue.virtual_s
            return
        waiter = asyncio.get_running_loop().create_future()
        client.waiting.append(waiter)
        if len(client.waiting) == 1 and key != self._served:
            client.time_s = self._queue.add(client.time_s, 0.0, key)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():
                self._leave(0.0)  # its turn had come
            raise

    def _leave(self, spent_s: float) -> None:
        key, self._served = self._served, None
        assert key is not None
        client = self._clients[key]
        client.time_s += spent_s
        # New clients begin at this time: if it did not advance, a stream of them would always go first.
        self._queue.virtual_s += spent_s / (1 + len(self._queue.waiting))
        if client.waiting:
            client.time_s = self._queue.add(client.time_s, 0.0, key)
        while self._queue.waiting:
            if self._serve(self._queue.pop()):
                if len(self._clients) > self._known_max:
                    self._forget()
                return
        self._clients.clear()

    def _serve(self, key: str) -> bool:
        """Begin the next turn of a client; return False if all its works that waited are cancelled."""
        waiting = self._clients[key].waiting
        while waiting:
            waiter = waiting.popleft()
            if not waiter.done():
                self._served = key
                waiter.set_result(None)
                return True
        return False

    def _forget(self) -> None:
        """Forget clients that do not wait and had no more time than others."""
        now_s = self._queue.virtual_s
        kept = {
            key: each
            for key, each in self._clients.items()
            if each.waiting or each.time_s > now_s or key == self._served
        }
        self._clients, self._known_max = kept, max(KNOWN, 2 * len(kept))
