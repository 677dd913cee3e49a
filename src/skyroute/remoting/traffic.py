"""How much peers have to say, and staying awake while they say it."""

import asyncio
from typing import Final

NEAR_S: Final = 0.0003
"""Whoever is heard so soon after the last one may be heard as soon again."""

LOOKS: Final = 256
"""How often a loop that stays awake looks for more, and finds nothing, before it sleeps: about as long as `NEAR_S`."""


class Traffic:
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

    def heard(self, now: float) -> None:
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
