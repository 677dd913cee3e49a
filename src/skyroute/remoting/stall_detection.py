"""Detects that this process was stalled: what peers sent meanwhile is unread and must be processed first."""


class StallDetector:
    """Watches a periodic task, and postpones it when it is late.

    It is postponed at most `in_a_row_max` times in a row, so that it also runs on a server that is always late.
    """

    def __init__(self, interval_s: float, tolerated_s: float, now: float, *, in_a_row_max: int = 1) -> None:
        self._interval_s = interval_s
        self._tolerated_s = tolerated_s
        self._last_at = now
        self._in_a_row_max = in_a_row_max
        self._in_a_row = 0
        self.late_s = 0.0
        """How late the last run was."""

    def holds_back(self, now: float) -> bool:
        """Return whether the run that is due now must be postponed to the next time."""
        self.late_s = now - self._last_at - self._interval_s
        self._last_at = now
        held_back = self.late_s > self._tolerated_s and self._in_a_row < self._in_a_row_max
        self._in_a_row = self._in_a_row + 1 if held_back else 0
        return held_back
