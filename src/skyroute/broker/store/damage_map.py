"""The damaged ranges of a log, which readers skip."""

from bisect import bisect_right
from collections.abc import Iterable


class DamageMap:
    """Damaged ranges of a log. False while empty: every read tests this."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __contains__(self, position: int) -> bool:
        place = bisect_right(self._starts, position) - 1
        return place >= 0 and position < self._ends[place]

    def set_ranges(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Replace all ranges with these, each given by start and end."""
        ordered = sorted(ranges)
        self._starts = [start for start, _ in ordered]
        self._ends = [end for _, end in ordered]
