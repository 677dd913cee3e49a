"""A clock that only a test moves."""

from __future__ import annotations


class ManualClock:
    """Starts at arbitrary times; no test may depend on them."""

    def __init__(self, now: float = 1_000.0, wall: float = 1_758_275_140.0) -> None:
        self._now = now
        self._wall = wall
        self._computed = 0.0

    def monotonic(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall

    def computed(self) -> float:
        return self._computed

    def advance(self, seconds: float) -> float:
        """Advance both times, and return the new monotonic time."""
        if seconds < 0:
            raise ValueError("time does not go back")
        self._now += seconds
        self._wall += seconds
        self._computed += seconds
        return self._now

    def wait_for_a_processor(self, seconds: float) -> None:
        """Advance both times while the thread computes nothing."""
        self.advance(seconds)
        self._computed -= seconds

    def set_back(self, seconds: float) -> None:
        """Set the wall clock back; the monotonic time is unchanged."""
        self._wall -= seconds
