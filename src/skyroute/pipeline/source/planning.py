"""Divides the offsets to read among Spark tasks. No I/O."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from pyspark.sql.datasource import InputPartition

from skyroute.message.queue_ref import QueueRef

PACKED_RECORDS: Final = 4_096
"""Queues with fewer messages share a task. Starting a task costs about as much as reading 10,000 messages."""


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Offsets of one queue to read, and the broker's address at planning time."""

    queue: QueueRef
    start: int
    stop: int
    """Exclusive."""
    address: str | None = None
    broker_filters: bool = True
    """Whether the broker applies the tags of the read. False for batch topics: Apache's broker returns none of them."""

    def __len__(self) -> int:
        return self.stop - self.start


class ReadPartition(InputPartition):
    """The offsets that one Spark task reads."""

    def __init__(self, ranges: Sequence[QueueRange]) -> None:
        super().__init__(tuple(ranges))
        self.ranges = tuple(ranges)

    def __len__(self) -> int:
        return sum(map(len, self.ranges))


def plan(ranges: Iterable[QueueRange], *, min_partitions: int | None, max_records: int | None) -> list[ReadPartition]:
    """Return partitions that cover the ranges, the largest first because they take longest.

    By default, each queue is one partition, and small queues share one. `max_records` limits a partition's size.
    `min_partitions` splits queues into about that many partitions of equal size.
    """
    wanted = [each for each in ranges if each]
    total = sum(map(len, wanted))
    pieces: list[QueueRange] = []
    for each in wanted:
        count = 1
        if max_records is not None:
            count = math.ceil(len(each) / max_records)
        if min_partitions is not None and min_partitions > len(wanted):
            count = max(count, math.ceil(min_partitions * len(each) / total))
        pieces += _split(each, min(count, len(each)))
    planned = [ReadPartition([piece]) for piece in pieces]
    if min_partitions is None:
        planned = _merge_small(planned, min(PACKED_RECORDS, max_records or PACKED_RECORDS))
    return sorted(planned, key=len, reverse=True)


def _split(whole: QueueRange, count: int) -> list[QueueRange]:
    places = [whole.start + len(whole) * place // count for place in range(count + 1)]
    return [replace(whole, start=start, stop=stop) for start, stop in pairwise(places)]


def _merge_small(partitions: list[ReadPartition], records_max: int) -> list[ReadPartition]:
    merged: list[list[QueueRange]] = []
    free = 0
    for partition in partitions:
        if len(partition) > free:
            merged.append([])
            free = records_max
        merged[-1] += partition.ranges
        free -= len(partition)
    return [ReadPartition(ranges) for ranges in merged]


def share(limit: int, lags: Mapping[QueueRef, int]) -> dict[QueueRef, int]:
    """Return how many messages to read of each queue: at most `limit` in total, in proportion to the lags.

    Every queue with a lag gets at least one message, or only those with the largest lags if the limit is too small.
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
    for _ in range(-left):  # the minimum of one exceeded the limit: take from the largest shares
        shares[max(shares, key=lambda queue: shares[queue])] -= 1
    return shares
