"""Shares the loop between connections: peers whose requests cost little are answered before those that cost much.

A connection is answered as soon as it is read, as long as its requests are short and the loop has time. Otherwise it
waits here, and the loop works on those that wait for `TURN_S` between two looks at the sockets. This is weighted fair
queueing: the next one is the one with the lowest start in virtual time plus expected cost, so that no connection has
to wait for more of another's work than of its own, and none waits for ever.
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

    def take_turn(self) -> None:
        """Answer for about `SHARE_S`; call `add` again if something is left."""


class FairQueue:
    """Connections that wait to be answered."""

    __slots__ = ("_heap", "_is_planned", "_monotonic", "_numbers", "_virtual_s", "spent_s")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._heap: list[tuple[float, int, Waiting]] = []
        self._is_planned = False
        self._numbers = count()
        """Tells apart connections with the same place, in order of arrival."""
        self._virtual_s = 0.0
        """The place of the connection that was last answered."""
        self.spent_s = 0.0
        """How long connections were answered as they were read, since the queue last had its turn."""

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, connection: Waiting) -> None:
        """Have a connection answered when its turn comes. It must not wait already."""
        heappush(self._heap, (self._virtual_s + connection.cost_s, next(self._numbers), connection))
        if not self._is_planned:
            self._plan()

    def _plan(self) -> None:
        self._is_planned = True
        asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        heap, until = self._heap, self._monotonic() + TURN_S
        try:
            while heap:
                self._virtual_s, _, connection = heappop(heap)
                connection.take_turn()
                if self._monotonic() > until:
                    break
        finally:
            self.spent_s, self._is_planned = 0.0, False
            if heap:
                self._plan()
