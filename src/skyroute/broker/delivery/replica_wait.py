"""Completes the sends that wait until enough slaves have their message."""

import asyncio
from collections import deque
from collections.abc import Callable

from skyroute.broker.delivery.flush_wait import Flushed


class ReplicaWait:
    """Waits for acknowledgements of slaves, in the order of the log.

    Replication calls `advance` when a slave acknowledges. It decides what counts as enough.
    """

    def __init__(self, timeout_s: Callable[[], float]) -> None:
        self._timeout_s = timeout_s
        self._waiting: deque[tuple[int, int, float, Callable[[Flushed], None]]] = deque()
        """Log position, slaves needed, deadline and callback of each wait, in the order of positions."""
        self._timeout: asyncio.Handle | None = None
        """Timer for the first deadline; set while something waits."""

    def __repr__(self) -> str:
        return f"<ReplicaWait waiting={len(self._waiting)}>"

    @property
    def waiting_count(self) -> int:
        """Number of waits for slaves."""
        return len(self._waiting)

    def wait_for(self, log_end: int, slaves: int, then: Callable[[Flushed], None]) -> None:
        """Call `then` once this many slaves have the log up to a position, or the timeout is over.

        It gets DONE, or NOT_REPLICATED: slaves may still get the message.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s()
        self._waiting.append((log_end, slaves, deadline, then))
        if self._timeout is None:
            self._timeout = loop.call_at(deadline, self._expire)

    def advance(self, reached: Callable[[int], int]) -> None:
        """Complete waits. `reached` returns the position up to which a number of slaves have the log."""
        waiting = self._waiting
        ends: dict[int, int] = {}  # one acknowledgement completes many waits
        while waiting:
            log_end, slaves, _, then = waiting[0]
            if slaves not in ends:
                ends[slaves] = reached(slaves)
            if log_end > ends[slaves]:
                return
            waiting.popleft()
            then(Flushed.DONE)

    def _expire(self) -> None:
        loop, waiting = asyncio.get_running_loop(), self._waiting
        while waiting and waiting[0][2] <= loop.time():
            waiting.popleft()[3](Flushed.NOT_REPLICATED)
        self._timeout = loop.call_at(waiting[0][2], self._expire) if waiting else None

    def stop(self) -> None:
        """Complete all waits as late."""
        while self._waiting:
            self._waiting.popleft()[3](Flushed.NOT_REPLICATED)
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
