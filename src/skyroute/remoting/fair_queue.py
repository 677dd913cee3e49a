"""Shares the loop between connections: peers whose requests cost little are answered before those that cost much.

A connection is answered as soon as it is read, as long as its requests are short and the loop has time. Otherwise it
waits here, and the loop works on those that wait for `TURN_S` between two looks at the sockets.

This is start-time fair queueing. Each connection has a virtual time, which its expected cost advances at every turn;
the one that would finish first in virtual time is next. So no connection waits while another is given much more time
than itself, and one that costs little is answered before those that cost much.
"""

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Final, Protocol

SHARE_S: Final = 0.004
"""How long one connection is answered at a time, when others may wait; a request that has begun is finished."""

TURN_S: Final = 0.01
"""How long connections are answered as they are read, and how long those that wait, before the loop turns."""

FIRST_COST_S: Final = 0.0005
"""What the requests of a new connection are expected to cost."""

FADING: Final = 0.9
"""How much of an earlier cost is still expected after each time a connection was answered."""


class Waiting(Protocol):
    """A connection, as this queue knows it."""

    cost_s: float
    """How long answering it is expected to take."""
    virtual_s: float
    """Its virtual time, which the queue keeps here. 0.0 at first."""

    def take_turn(self) -> None:
        """Answer for about `SHARE_S`; call `add` again if something is left."""


class FairQueue:
    """Connections that wait to be answered."""

    __slots__ = ("_heap", "_is_planned", "_monotonic", "_numbers", "_virtual_s", "spent_s")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._heap: list[tuple[float, int, float, Waiting]] = []
        """When each will have finished, its number, when it begins, both in virtual time, and the connection."""
        self._is_planned = False
        self._numbers = count()
        """In order of arrival, for connections that finish at the same time."""
        self._virtual_s = 0.0
        """When the connection that was last answered began, in virtual time."""
        self.spent_s = 0.0
        """How long connections were answered as they were read, since the queue last had its turn."""

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, connection: Waiting) -> None:
        """Have a connection answered when its turn comes. It must not wait already."""
        begins = max(self._virtual_s, connection.virtual_s)
        connection.virtual_s = finishes = begins + connection.cost_s
        heappush(self._heap, (finishes, next(self._numbers), begins, connection))
        if not self._is_planned:
            self._plan()

    def _plan(self) -> None:
        self._is_planned = True
        asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        heap, until = self._heap, self._monotonic() + TURN_S
        try:
            while heap:
                _, _, begins, connection = heappop(heap)
                self._virtual_s = max(self._virtual_s, begins)
                connection.take_turn()
                if self._monotonic() > until:
                    break
        finally:
            self.spent_s, self._is_planned = 0.0, False
            if heap:
                self._plan()
