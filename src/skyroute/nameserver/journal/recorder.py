"""From the event loop to the disk: a bounded queue, and one thread that writes.

The loop numbers what happens and goes on; it never waits for the disk. What does not fit into the queue is lost, and
its numbers are taken by a gap record, which is written as soon as there is room again. What the disk refuses stays in
the queue and is tried again.
"""

import logging
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skyroute.clock import Clock
from skyroute.files.disk import Disk
from skyroute.files.errors import FileWriteError
from skyroute.nameserver.journal.records import Numbered, bytes_of, encode, part_count, split, weight_of
from skyroute.nameserver.journal.recovery import Found, recover
from skyroute.nameserver.journal.retention import outdated
from skyroute.nameserver.journal.segments import OpenSegment, TornSegmentError, close_torn, open_segments
from skyroute.nameserver.server_events import Change, Gap

log = logging.getLogger(__name__)

SKIPPED_AFTER_CRASH: Final = 1_000_000
"""Numbers that are left out after a crash: far more than may have been given, and even shown to others, unwritten."""
BATCH_BYTES: Final = 1024 * 1024
"""How much is handed to the disk at once, or a little more."""
LINGER_S: Final = 0.05
"""How long the writer waits for more before it looks again; what comes alone is written at once."""
SYNC_S: Final = 1.0
"""How long what was written may stay in the system's memory alone."""
RETRY_S: Final = 1.0
QUEUE_BYTES_MAX: Final = 256 * 1024 * 1024
CLOSE_S: Final = 10.0
"""How long a stop waits for the disk."""

OVERFLOW: Final = "more happened than the disk could take"
CRASH: Final = "the name server ended without a stop; what it had not written yet is lost"


@dataclass(frozen=True, slots=True)
class JournalLimits:
    """How large things may get, and how old."""

    segment_bytes: int = 16 * 1024 * 1024
    segment_s: float = 60.0
    total_bytes: int = 1024 * 1024 * 1024
    age_s: float = 7 * 86_400.0
    queue_weight: int = 1_000_000
    """Names in changes that wait to be written, roughly."""
    queue_bytes: int = QUEUE_BYTES_MAX
    """Approximate bytes of changes that wait to be written."""


class Journal:
    """Changes in order, each under a number of its own. `append` belongs to the loop, all else to the writer."""

    def __init__(
        self, folder: Path, found: Found, *, server_id: str, limits: JournalLimits, clock: Clock, disk: Disk
    ) -> None:
        self.sequence = found.last
        """The last number that was given."""
        self.lost = 0
        """How many changes were not written, and are covered by gaps."""
        self.written = 0
        self.closed_bytes = sum(segment.size_bytes for segment in found.index.segments.values())
        """How long all closed segments are together."""
        self.torn_bytes = found.torn_bytes
        self._folder = folder
        self._index = found.index
        self._server_id = server_id
        self._limits = limits
        self._clock = clock
        self._disk = disk

        self._queue: deque[Numbered] = deque()
        self._weight_in = 0  # written by the loop alone
        self._weight_out = 0  # written by the writer alone
        self._bytes_in = 0  # as `_weight_in` and `_weight_out`
        self._bytes_out = 0
        self._missing_from: int | None = None
        self._signalled = False
        self._wake = threading.Event()
        self._closing = threading.Event()

        self._parts: deque[Numbered] = deque()
        """Of a change that is written as several records."""
        self._batch: list[Numbered] = []
        self._segment: OpenSegment | None = None
        self._synced_at: float | None = None
        """When the disk was last made to keep it all; None: it has it all."""
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="journal-writer", daemon=True)

    def __repr__(self) -> str:
        return f"<Journal {self._folder} sequence={self.sequence} written={self.written} lost={self.lost}>"

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        server_id: str,
        limits: JournalLimits,
        clock: Clock,
        floor: int = 0,
        disk: Disk | None = None,
    ) -> "Journal":
        """Mend what a crash left, and begin to write. No number up to `floor` is given again.

        Raises:
            OSError, FileWriteError: the folder cannot be read or written.
        """
        disk = disk or Disk()
        disk.make_folder(folder)
        found = recover(folder, disk, floor)
        journal = cls(folder, found, server_id=server_id, limits=limits, clock=clock, disk=disk)
        if not found.ended_in_order:
            journal.sequence += SKIPPED_AFTER_CRASH
            journal._enqueue_gap(found.last + 1, CRASH)
        journal._thread.start()
        return journal

    @property
    def failing(self) -> bool:
        """The disk refuses at the moment."""
        return self._failing

    @property
    def caught_up(self) -> bool:
        """Everything that was appended is written."""
        return self._weight_in == self._weight_out and self._missing_from is None

    @property
    def waiting(self) -> int:
        """How many changes wait to be written."""
        return len(self._queue) + len(self._parts) + len(self._batch)

    @property
    def size_bytes(self) -> int:
        """How much of it is on the disk."""
        segment = self._segment
        return self.closed_bytes + (0 if segment is None else segment.size_bytes)

    # The loop's side

    def append(self, changes: Iterable[Change]) -> None:
        """Record what just happened, in this order. The writer splits a long change; here it gets its numbers."""
        wall_ms, mono_ms = int(self._clock.wall() * 1000), int(self._clock.monotonic() * 1000)
        limits = self._limits
        for change in changes:
            weight, size, parts = weight_of(change), bytes_of(change), part_count(change)
            waiting, waiting_bytes = self._weight_in - self._weight_out, self._bytes_in - self._bytes_out
            if waiting and (waiting + weight > limits.queue_weight or waiting_bytes + size > limits.queue_bytes):
                if self._missing_from is None:
                    self._missing_from = self.sequence + 1
                    log.warning("journal loses changes reason=%s waiting=%d bytes=%d", OVERFLOW, waiting, waiting_bytes)
                self.sequence += parts
                self.lost += parts
                continue
            self._close_gap()
            self._weight_in += weight
            self._bytes_in += size
            self._queue.append(Numbered(self.sequence + 1, wall_ms, mono_ms, change))
            self.sequence += parts
        if not self._signalled:
            self._signalled = True
            self._wake.set()

    def _close_gap(self) -> None:
        """Have what was lost recorded, now that there is room again."""
        if self._missing_from is not None:
            self._enqueue_gap(self._missing_from, OVERFLOW)
            self._missing_from = None

    def _enqueue_gap(self, missing_from: int, reason: str) -> None:
        wall_ms, mono_ms = int(self._clock.wall() * 1000), int(self._clock.monotonic() * 1000)
        gap = Gap(missing_from, reason)
        self._weight_in += weight_of(gap)
        self._bytes_in += bytes_of(gap)
        # It stands in the place of what is missing, so it has the last of the missing numbers.
        self._queue.append(Numbered(self.sequence, wall_ms, mono_ms, gap))

    def close(self) -> None:
        """Write what waits, close the segment and end. Blocks, for a bounded time: not for the loop."""
        self._close_gap()
        self._closing.set()
        self._wake.set()
        self._thread.join(CLOSE_S)
        unwritten = self.waiting
        if unwritten or self._thread.is_alive():
            log.error("journal ends incomplete changes=%d", unwritten)

    # The writer's side

    def _run(self) -> None:
        closing = False
        while not closing:
            self._wake.wait(self._patience_s())
            self._wake.clear()
            self._signalled = False
            closing = self._closing.is_set()
            try:
                self._write_waiting()
                self._look_after_segment(closing=closing)
            except (OSError, FileWriteError) as error:
                self._complain(error)
                self._closing.wait(RETRY_S)
            else:
                self._recovered()
                self._closing.wait(LINGER_S)

    def _patience_s(self) -> float | None:
        """How long there is nothing to do if nobody calls."""
        if self._failing:
            return 0.0
        return SYNC_S if self._segment is not None else None

    def _write_waiting(self) -> None:
        while self._batch or self._parts or self._queue:
            lines = [encode(numbered, self._server_id) for numbered in self._batch]
            size = sum(map(len, lines))
            while (self._parts or self._queue) and size < BATCH_BYTES:
                if not self._parts:
                    self._split_next()
                self._batch.append(self._parts.popleft())
                lines.append(encode(self._batch[-1], self._server_id))
                size += len(lines[-1])
            self._write(b"".join(lines))
            self._weight_out += sum(weight_of(numbered.change) for numbered in self._batch)
            self._bytes_out += sum(bytes_of(numbered.change) for numbered in self._batch)
            self.written += len(self._batch)
            self._batch = []

    def _split_next(self) -> None:
        first, wall_ms, mono_ms, change = self._queue.popleft()
        # All parts at once: then the change, and each part once it is written, is freed in a short time.
        self._parts.extend(Numbered(number, wall_ms, mono_ms, part) for number, part in enumerate(split(change), first))

    def _write(self, data: bytes) -> None:
        segment = self._segment
        if segment is not None and segment.size_bytes + len(data) > self._limits.segment_bytes:
            self._finish_segment()
        if self._segment is None:
            self._open_segment()
        assert self._segment is not None
        times = [numbered.wall_ms for numbered in self._batch]
        try:
            self._segment.write(
                data, last=self._batch[-1].seq, records=len(self._batch), times=(min(times), max(times))
            )
        except TornSegmentError:
            self._segment = None  # the next `_open_segment` closes it
            raise
        if self._synced_at is None:
            self._synced_at = self._clock.monotonic()

    def _open_segment(self) -> None:
        self._disk.make_folder(self._folder)  # it may have been removed
        for path in open_segments(self._folder).values():
            closed = close_torn(path, self._disk)
            if closed.segment is not None:
                self._index.add(closed.segment)
        number, _, _, change = self._batch[0]
        first = change.missing_from if isinstance(change, Gap) else number
        segment = OpenSegment(self._folder, self._disk, first, self._clock.monotonic())
        segment.open()
        self._segment = segment

    def _look_after_segment(self, *, closing: bool) -> None:
        segment, now = self._segment, self._clock.monotonic()
        if segment is None:
            return
        if closing or now - segment.opened_at >= self._limits.segment_s:
            self._finish_segment()
        elif self._synced_at is not None and now - self._synced_at >= SYNC_S:
            segment.sync()
            self._synced_at = None

    def _finish_segment(self) -> None:
        assert self._segment is not None
        segment, self._segment, self._synced_at = self._segment, None, None
        self._index.add(segment.finish())
        self._let_go()
        self.closed_bytes = sum(segment.size_bytes for segment in self._index.segments.values())
        self._index.write(self._disk)

    def _let_go(self) -> None:
        limits = self._limits
        for segment in outdated(
            self._index.segments.values(),
            bytes_max=limits.total_bytes,
            age_s_max=limits.age_s,
            now_wall_s=self._clock.wall(),
        ):
            self._disk.remove(self._folder / segment.name)
            del self._index.segments[segment.first]

    def _complain(self, error: Exception) -> None:
        if not self._failing:
            self._failing = True
            log.warning("journal cannot be written reason=%s: routing goes on, and so do the attempts", error)

    def _recovered(self) -> None:
        if self._failing:
            self._failing = False
            log.info("journal is written again lost=%d", self.lost)
