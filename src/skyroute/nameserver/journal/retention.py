"""Selects the segments to remove: the oldest ones, by total size and by age."""

from collections.abc import Iterable
from typing import Final

from skyroute.nameserver.journal.segments import Segment

AGED_AT_ONCE: Final = 2
"""Maximum number of segments removed by age when a segment is closed: a clock that is far ahead for a while must not
cost the whole journal."""


def outdated(segments: Iterable[Segment], *, bytes_max: int, age_s_max: float, now_wall_s: float) -> list[Segment]:
    """Return the segments to remove, oldest first.

    They are consecutive from the oldest on, whatever their times: a wrong clock must not leave a gap in the journal.
    """
    in_order = sorted(segments, key=lambda segment: segment.first)
    total, oldest_ms = sum(segment.size_bytes for segment in in_order), (now_wall_s - age_s_max) * 1000
    removed: list[Segment] = []
    for segment in in_order:
        may_age = len(removed) < AGED_AT_ONCE
        if total <= bytes_max and not (may_age and segment.max_ms < oldest_ms):
            break
        removed.append(segment)
        total -= segment.size_bytes
    return removed
