"""Busy polling of the event loop, and batched writes."""

import asyncio
from collections.abc import Callable
from typing import Final

NEAR_S: Final = 0.0003
"""Keep polling if two reads arrive within this time."""

POLLS: Final = 256
"""Polls without a read before the loop sleeps: they take about `NEAR_S`."""

BATCH_MAX: Final = 64
"""Maximum number of connections whose writes wait for the end of the turn."""


class BusyPolling:
    """Counts reads, and keeps the loop from sleeping when the next read is near.

    Waking a sleeping processor takes longer than most peers take to send their next request. So after two reads within
    `NEAR_S` the loop polls for a while. Peers that seldom send cost nothing.
    """

    __slots__ = ("_polls_left", "_read_at", "reads")

    def __init__(self) -> None:
        self.reads = 0
        """Number of reads."""
        self._read_at = 0.0
        self._polls_left = 0

    def note_read(self, now: float) -> None:
        """Count a read."""
        self.reads += 1
        if self._polls_left:
            self._polls_left = POLLS
        elif now - self._read_at < NEAR_S:
            self._polls_left = POLLS
            asyncio.get_running_loop().call_soon(self._poll_again)
        self._read_at = now

    def _poll_again(self) -> None:
        # A loop with a callback that is due polls the sockets without waiting.
        self._polls_left -= 1
        if self._polls_left:
            asyncio.get_running_loop().call_soon(self._poll_again)


class WriteBatch:
    """Runs the writes of all connections at the end of a turn of the loop, one right after the other.

    Each write wakes its peer. A client with many connections would sleep and wake for every response, which costs both
    sides more than the response itself. With all writes together it wakes once.

    `on_turn_end` is called at the end of each turn with writes.
    """

    __slots__ = ("_on_turn_end", "_writes")

    def __init__(self, on_turn_end: Callable[[], None]) -> None:
        self._on_turn_end = on_turn_end
        self._writes: list[Callable[[], None]] = []

    def add(self, write: Callable[[], None]) -> None:
        """Call `write` at the end of this turn, or now if `BATCH_MAX` writes wait."""
        if not self._writes:
            asyncio.get_running_loop().call_soon(self._end_turn)
        self._writes.append(write)
        if len(self._writes) >= BATCH_MAX:
            self._run()

    def _end_turn(self) -> None:
        self._on_turn_end()
        self._run()

    def _run(self) -> None:
        writes, self._writes = iter(self._writes), []
        try:
            for write in writes:
                write()
        finally:
            for write in writes:  # a write that fails must not stop the others
                self.add(write)
