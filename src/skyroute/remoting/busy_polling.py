"""How much peers have to say, staying awake while they say it, and answering them together."""

import asyncio
from collections.abc import Callable
from typing import Final

NEAR_S: Final = 0.0003
"""Whoever is heard so soon after the last one may be heard as soon again."""

LOOKS: Final = 256
"""How often a loop that stays awake looks for more, and finds nothing, before it sleeps: about as long as `NEAR_S`."""

TOGETHER_MAX: Final = 64
"""How many connections have their answers held back for each other."""


class BusyPolling:
    """Counts what was heard, and keeps the loop from sleeping where the next word is near.

    A processor that goes to sleep takes longer to wake up, and to be woken, than most peers take to speak again. So
    after two words close together the loop goes on looking for a while. Peers that speak seldom cost nothing.
    """

    __slots__ = ("_heard_at", "_looks_left", "reads")

    def __init__(self) -> None:
        self.reads = 0
        """How often something was read."""
        self._heard_at = 0.0
        self._looks_left = 0

    def note_read(self, now: float) -> None:
        """Note that something was read."""
        self.reads += 1
        if self._looks_left:
            self._looks_left = LOOKS
        elif now - self._heard_at < NEAR_S:
            self._looks_left = LOOKS
            asyncio.get_running_loop().call_soon(self._look_again)
        self._heard_at = now

    def _look_again(self) -> None:
        # A loop that has something to do soon looks at every socket, and does not wait for one.
        self._looks_left -= 1
        if self._looks_left:
            asyncio.get_running_loop().call_soon(self._look_again)


class WriteBatch:
    """Has connections write what they have to say at the end of a turn of the loop, one right after the other.

    What is written wakes the peer it is for. A client with many connections that hears one word at a time falls asleep
    after each, and waking it takes both sides longer than the word. Told all of them at once, it is woken once.
    """

    __slots__ = ("_writes",)

    def __init__(self) -> None:
        self._writes: list[Callable[[], None]] = []

    def add(self, write: Callable[[], None]) -> None:
        """Have something called at the end of this turn, or sooner if many wait for it."""
        if not self._writes:
            asyncio.get_running_loop().call_soon(self._come)
        self._writes.append(write)
        if len(self._writes) >= TOGETHER_MAX:
            self._come()

    def _come(self) -> None:
        writes, self._writes = iter(self._writes), []
        try:
            for write in writes:
                write()
        finally:
            for write in writes:  # one that fails, fails alone
                self.add(write)
