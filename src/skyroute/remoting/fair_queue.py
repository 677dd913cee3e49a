"""Shares the loop between connections: peers whose requests cost little are answered before those that cost much.

A connection is answered as soon as it is read if that takes little time, or if the loop has time. Otherwise it waits
here, and the loop works on those that wait for `TURN_S` between two looks at the sockets.

This is start-time fair queueing. Each connection has a virtual time, which goes on by as long as it is answered while
others wait; the one that is expected to finish first in virtual time is next. So no connection waits while another is
given much more time than itself, and one that costs little is answered before those that cost much.
"""

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Final, Protocol

SHARE_S: Final = 0.002
"""How long one connection is answered at a time, when others may wait; a request that has begun is finished."""

TURN_S: Final = 0.005
"""How long connections are answered as they are read, and how long those that wait, before the loop turns."""

LIGHT_S: Final = 0.0001
"""A connection that is answered in less time than this never waits: queueing it would take as long."""

FIRST_COST_S: Final = 0.0005
"""What the requests of a new connection are expected to cost."""

FADING: Final = 0.5
"""How much of an earlier cost is still expected after each time a connection was answered.

It fades quickly, since a process that the system has put aside for a while takes that time for a cost as well.
"""


class Waiting(Protocol):
    """A connection, as this queue knows it."""

    cost_s: float
    """How long answering it is expected to take."""
    virtual_s: float
    """Its virtual time, 0.0 at first. The connection adds how long it was answered while the queue was busy."""

    def take_turn(self) -> None:
        """Answer for about `SHARE_S`; call `add` again if something is left."""


class FairQueue:
    """Connections that wait to be answered."""

    __slots__ = ("_heap", "_monotonic", "_numbers", "_virtual_s", "is_busy", "spent_s")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._heap: list[tuple[float, int, float, Waiting]] = []
        """When each is expected to finish, its number, when it begins, both in virtual time, and the connection."""
        self.is_busy = False
        """Some wait, or are being answered."""
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
        connection.virtual_s = begins = max(self._virtual_s, connection.virtual_s)
        heappush(self._heap, (begins + connection.cost_s, next(self._numbers), begins, connection))
        if not self.is_busy:
            self._plan()

    def _plan(self) -> None:
        self.is_busy = True
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
            self.spent_s, self.is_busy = 0.0, False
            if heap:
                self._plan()
