"""Changes that wait for the journal's writer: numbered on the event loop, taken by the writer thread.

The queue is bounded. A change that does not fit is lost: a gap record with its sequence number is queued once there is
space again. Each counter has one writer, the event loop or the thread, so that no lock is needed.
"""

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from skyroute.clock import Clock
from skyroute.nameserver.journal.records import Numbered, bytes_of, part_count, split, weight_of
from skyroute.nameserver.server_events import Change, Gap

log = logging.getLogger(__name__)

OVERFLOW: Final = "the disk was too slow for the changes"


class ChangeQueue:
    """Numbered changes in order. `take` and `release` are for the writer, the rest for the event loop."""

    def __init__(self, sequence: int, *, weight_max: int, bytes_max: int, clock: Clock) -> None:
        self.sequence = sequence
        """The last sequence number that was used."""
        self.lost = 0
        """Number of changes that were lost; gap records stand for them."""
        self._weight_max = weight_max
        self._bytes_max = bytes_max
        self._clock = clock
        self._changes: deque[Numbered] = deque()
        self._parts: deque[Numbered] = deque()
        """Of a change that is written as several records."""
        self._weight_in = 0  # written by the event loop only
        self._weight_out = 0  # written by the writer only
        self._bytes_in = 0  # as `_weight_in` and `_weight_out`
        self._bytes_out = 0
        self._missing_from: int | None = None

    def __len__(self) -> int:
        return len(self._changes) + len(self._parts)

    @property
    def is_written(self) -> bool:
        """Whether all changes are written."""
        return self._weight_in == self._weight_out and self._missing_from is None

    def append(self, changes: Iterable[Change]) -> None:
        """Queue changes, in this order. The writer splits a long change, here its parts get numbers."""
        wall_ms, mono_ms = self._now()
        for change in changes:
            weight, size, parts = weight_of(change), bytes_of(change), part_count(change)
            waiting, waiting_bytes = self._weight_in - self._weight_out, self._bytes_in - self._bytes_out
            if waiting and (waiting + weight > self._weight_max or waiting_bytes + size > self._bytes_max):
                if self._missing_from is None:
                    self._missing_from = self.sequence + 1
                    log.warning("journal queue full, changes are lost queued=%d bytes=%d", waiting, waiting_bytes)
                self.sequence += parts
                self.lost += parts
                continue
            self.close_gap()
            self._weight_in += weight
            self._bytes_in += size
            self._changes.append(Numbered(self.sequence + 1, wall_ms, mono_ms, change))
            self.sequence += parts

    def close_gap(self) -> None:
        """Queue a gap record for lost changes."""
        if self._missing_from is not None:
            self.append_gap(self._missing_from, OVERFLOW)
            self._missing_from = None

    def append_gap(self, missing_from: int, reason: str, alive_ms: int | None = None) -> None:
        """Queue a gap record for the sequence numbers from `missing_from` to the last one."""
        gap = Gap(missing_from, reason, alive_ms)
        self._weight_in += weight_of(gap)
        self._bytes_in += bytes_of(gap)
        self._changes.append(Numbered(self.sequence, *self._now(), gap))

    def take(self) -> Numbered:
        """Remove and return the next change, or part of a change. Its weight counts until `release`."""
        if not self._parts:
            first, wall_ms, mono_ms, change = self._changes.popleft()
            # All parts at once: then the change, and each part once it is written, is freed in a short time.
            parts = enumerate(split(change), first)
            self._parts.extend(Numbered(number, wall_ms, mono_ms, part) for number, part in parts)
        return self._parts.popleft()

    def release(self, written: Sequence[Numbered]) -> None:
        """Make room for as much as these changes took."""
        self._weight_out += sum(weight_of(numbered.change) for numbered in written)
        self._bytes_out += sum(bytes_of(numbered.change) for numbered in written)

    def _now(self) -> tuple[int, int]:
        return int(self._clock.wall() * 1000), int(self._clock.monotonic() * 1000)
