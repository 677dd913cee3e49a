"""Which log lines about a failure that repeats are worth writing: the first, and then fewer and fewer."""

from typing import Final

FIRST_GAP_S: Final = 10.0
GAP_S_MAX: Final = 3_600.0
"""Between two lines about the same. Each gap is twice as long as the one before."""

FORGOTTEN_AFTER_S: Final = 600.0
"""What has not failed for so long beyond its gap is new when it fails again."""

THINGS_MAX: Final = 10_000
"""Of so many it is remembered when they were written about; beyond that all are forgotten, and written about again."""


class LogBackoff:
    """When there was a line about each of several things, such as addresses. The time is an argument."""

    def __init__(self) -> None:
        self._by_thing: dict[str, tuple[float, float, int]] = {}
        """When the next line is due, the gap before it, and how many were not written since the last."""

    def unsaid(self, thing: str, now: float) -> int | None:
        """Note that a thing failed. If a line is due, return how many before it were not written, else None."""
        known = self._by_thing.get(thing)
        if known is not None and now < known[0]:
            self._by_thing[thing] = (known[0], known[1], known[2] + 1)
            return None
        if known is None or now > known[0] + FORGOTTEN_AFTER_S:
            gap_s, count = FIRST_GAP_S, 0
        else:
            gap_s, count = min(known[1] * 2, GAP_S_MAX), known[2]
        if len(self._by_thing) >= THINGS_MAX and thing not in self._by_thing:
            self._by_thing.clear()
        self._by_thing[thing] = (now + gap_s, gap_s, 0)
        return count

    def works_again(self, thing: str) -> None:
        """Write about its next failure at once."""
        self._by_thing.pop(thing, None)
