"""Whether this process stood still, so that what peers sent meanwhile waits unread and must come first."""


class StallDetector:
    """Watches something that is done at an interval.

    It is held back when it comes late, but not more than so often in a row, or a server that is always late would never
    do it.
    """

    def __init__(self, interval_s: float, tolerated_s: float, now: float, *, in_a_row_max: int = 1) -> None:
        self._interval_s = interval_s
        self._tolerated_s = tolerated_s
        self._last_at = now
        self._in_a_row_max = in_a_row_max
        self._in_a_row = 0
        self.late_s = 0.0
        """How late it came the last time."""

    def holds_back(self, now: float) -> bool:
        """Note that it is due now, and return whether it should wait until the next time."""
        self.late_s = now - self._last_at - self._interval_s
        self._last_at = now
        held_back = self.late_s > self._tolerated_s and self._in_a_row < self._in_a_row_max
        self._in_a_row = self._in_a_row + 1 if held_back else 0
        return held_back
