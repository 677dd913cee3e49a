"""Which task reads what: pure, so that it can be looked at without a cluster."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from pyspark.sql.datasource import InputPartition

from skyroute.message.queue_ref import QueueRef

PACKED_RECORDS: Final = 4_096
"""Queues with fewer messages to read share a task: each task costs Spark as much as reading some ten thousand."""


@dataclass(frozen=True, slots=True)
class QueueRange:
    """A part of a queue to read, and where its broker was when this was planned."""

    queue: QueueRef
    start: int
    stop: int
    """The first offset that is not read."""
    address: str | None = None

    def __len__(self) -> int:
        return self.stop - self.start


class Part(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Sequence[QueueRange]) -> None:
        super().__init__(tuple(ranges))
        self.ranges = tuple(ranges)

    def __len__(self) -> int:
        return sum(map(len, self.ranges))


def plan(ranges: Iterable[QueueRange], *, min_parts: int | None, max_records: int | None) -> list[Part]:
    """Share out what is to be read, the largest parts first, as they take longest.

    By default every queue is a part of its own, small ones excepted, which share. `max_records` bounds a part;
    `min_parts` cuts queues so that there are about so many parts, each of the same size.
    """
    wanted = [each for each in ranges if each]
    total = sum(map(len, wanted))
    pieces: list[QueueRange] = []
    for each in wanted:
        count = 1
        if max_records is not None:
            count = math.ceil(len(each) / max_records)
        if min_parts is not None and min_parts > len(wanted):
            count = max(count, math.ceil(min_parts * len(each) / total))
        pieces += _cut(each, min(count, len(each)))
    parts = [Part([piece]) for piece in pieces]
    if min_parts is None:
        parts = _pack(parts, min(PACKED_RECORDS, max_records or PACKED_RECORDS))
    return sorted(parts, key=len, reverse=True)


def _cut(whole: QueueRange, count: int) -> list[QueueRange]:
    places = [whole.start + len(whole) * place // count for place in range(count + 1)]
    return [replace(whole, start=start, stop=stop) for start, stop in pairwise(places)]


def _pack(parts: list[Part], records_max: int) -> list[Part]:
    packed: list[list[QueueRange]] = []
    room = 0
    for part in parts:
        if len(part) > room:
            packed.append([])
            room = records_max
        packed[-1] += part.ranges
        room -= len(part)
    return [Part(ranges) for ranges in packed]


def share(limit: int, lags: Mapping[QueueRef, int]) -> dict[QueueRef, int]:
    """Share out how many messages may be read over queues, in proportion to how many each has.

    Where the limit allows, every queue that has any gets one at least; else those with most come first.
    """
    lagging = sorted((queue for queue, lag in lags.items() if lag > 0), key=lambda queue: (-lags[queue], queue))
    total = sum(lags[queue] for queue in lagging)
    if total <= limit:
        return {queue: lags[queue] for queue in lagging}
    if limit <= len(lagging):
        return dict.fromkeys(lagging[:limit], 1)
    shares = {queue: max(1, limit * lags[queue] // total) for queue in lagging}
    left = limit - sum(shares.values())
    rounded_down = [queue for queue in lagging if limit * lags[queue] >= total]
    rounded_down.sort(key=lambda queue: limit * lags[queue] % total, reverse=True)
    for queue in rounded_down[: max(0, left)]:
        shares[queue] += 1
    for _ in range(-left):  # some were given one that they had no claim to: those with most go without
        shares[max(shares, key=lambda queue: shares[queue])] -= 1
    return shares
