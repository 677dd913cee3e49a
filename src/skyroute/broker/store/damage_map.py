"""The damaged ranges of a log, which readers skip."""

from bisect import bisect_right
from collections.abc import Iterable


class DamageMap:
    """Damaged ranges of a log."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.is_empty = True
        """An attribute, since every read of a queue tests it."""

    def __contains__(self, position: int) -> bool:
        place = bisect_right(self._starts, position) - 1
        return place >= 0 and position < self._ends[place]

    def set_ranges(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Replace all ranges with these, each given by start and end."""
        ordered = sorted(ranges)
        self._starts = [start for start, _ in ordered]
        self._ends = [end for _, end in ordered]
        self.is_empty = not ordered
