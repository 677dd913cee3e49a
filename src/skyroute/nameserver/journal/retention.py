"""Which segments are let go: the oldest, when all together are too large or when they are too old."""

from collections.abc import Iterable
from typing import Final

from skyroute.nameserver.journal.segments import Segment

AGED_AT_ONCE: Final = 2
"""How many go because of their age each time a segment is closed: enough to catch up, and few enough that a clock
which is far ahead for a while does not cost the whole journal."""


def outdated(segments: Iterable[Segment], *, bytes_max: int, age_s_max: float, now_wall_s: float) -> list[Segment]:
    """Return those to remove, oldest first.

    Only a row from the oldest on is removed, whatever their times say: a clock that was wrong for a while must not tear
    a hole into the journal.
    """
    in_order = sorted(segments, key=lambda segment: segment.first)
    total, oldest_ms = sum(segment.size_bytes for segment in in_order), (now_wall_s - age_s_max) * 1000
    gone: list[Segment] = []
    for segment in in_order:
        may_age = len(gone) < AGED_AT_ONCE
        if total <= bytes_max and not (may_age and segment.max_ms < oldest_ms):
            break
        gone.append(segment)
        total -= segment.size_bytes
    return gone
