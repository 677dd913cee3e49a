"""A clock that stands still until a test moves it."""

from __future__ import annotations


class ManualClock:
    """Both times start at values that no test should depend on."""

    def __init__(self, now: float = 1_000.0, wall: float = 1_758_275_140.0) -> None:
        self._now = now
        self._wall = wall

    def monotonic(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall

    def advance(self, seconds: float) -> float:
        """Let time pass, and return the new monotonic time."""
        if seconds < 0:
            raise ValueError("time does not go back")
        self._now += seconds
        self._wall += seconds
        return self._now

    def set_back(self, seconds: float) -> None:
        """Have somebody set the machine's clock back, while time goes on as before."""
        self._wall -= seconds
