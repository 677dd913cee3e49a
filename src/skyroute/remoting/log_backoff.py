"""Rate limit for log lines about repeated failures: the first is written, then fewer and fewer."""

from typing import Final

FIRST_GAP_S: Final = 10.0
GAP_S_MAX: Final = 3_600.0
"""Shortest and longest time between two lines about one subject. Each gap is twice the one before."""

FORGOTTEN_AFTER_S: Final = 600.0
"""Time without a failure, after the last gap, that resets a subject."""

SUBJECTS_MAX: Final = 10_000
"""Maximum number of subjects. With one more, all are reset."""


class LogBackoff:
    """Decides for each subject, such as an address, when to log. The time is an argument."""

    def __init__(self) -> None:
        self._by_subject: dict[str, tuple[float, float, int]] = {}
        """Time of the next line, the gap before it, and the number of lines suppressed since the last."""

    def suppressed(self, subject: str, now: float) -> int | None:
        """Count a failure. If a line is due, return how many were suppressed since the last one, else None."""
        known = self._by_subject.get(subject)
        if known is not None and now < known[0]:
            self._by_subject[subject] = (known[0], known[1], known[2] + 1)
            return None
        if known is None or now > known[0] + FORGOTTEN_AFTER_S:
            gap_s, count = FIRST_GAP_S, 0
        else:
            gap_s, count = min(known[1] * 2, GAP_S_MAX), known[2]
        if len(self._by_subject) >= SUBJECTS_MAX and subject not in self._by_subject:
            self._by_subject.clear()
        self._by_subject[subject] = (now + gap_s, gap_s, 0)
        return count

    def works_again(self, subject: str) -> None:
        """Reset a subject, so that its next failure is logged."""
        self._by_subject.pop(subject, None)
