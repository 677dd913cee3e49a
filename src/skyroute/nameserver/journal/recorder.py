"""Writes the journal: a bounded queue between the event loop and one writer thread.

The event loop numbers each change and queues it; it never waits for the disk. A change that does not fit into the queue
is lost: a gap record with its sequence number is written once there is space again. If the disk refuses a write, the
changes stay in the queue and the writer tries again.
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
from skyroute.nameserver.journal.recovery import RecoveredJournal, recover, write_alive
from skyroute.nameserver.journal.retention import outdated
from skyroute.nameserver.journal.segments import OpenSegment, TornSegmentError, close_torn, open_segments
from skyroute.nameserver.server_events import Change, Gap

log = logging.getLogger(__name__)

SKIPPED_AFTER_CRASH: Final = 1_000_000
"""Sequence numbers skipped after a crash: more than can have been used, and seen by others, without being written."""
BATCH_BYTES: Final = 1024 * 1024
"""Approximate bytes per write."""
LINGER_S: Final = 0.05
"""Pause of the writer between two writes, so that they get larger. The first change is written at once."""
SYNC_S: Final = 1.0
"""Maximum time between a write and its sync."""
RETRY_S: Final = 1.0
ALIVE_S: Final = 60.0
"""Time between two signs of life. After a crash, the last one says how long the name server ran without a change."""
QUEUE_BYTES_MAX: Final = 256 * 1024 * 1024
CLOSE_S: Final = 10.0
"""Maximum time that `close` waits for the writer."""

OVERFLOW: Final = "the disk was too slow for the changes"
CRASH: Final = "the name server crashed; changes that were not written are lost"


@dataclass(frozen=True, slots=True)
class JournalLimits:
    """Limits of sizes and ages."""

    segment_bytes: int = 16 * 1024 * 1024
    segment_s: float = 60.0
    total_bytes: int = 1024 * 1024 * 1024
    age_s: float = 7 * 86_400.0
    queue_weight: int = 1_000_000
    """Approximate number of names in queued changes."""
    queue_bytes: int = QUEUE_BYTES_MAX
    """Approximate bytes of queued changes."""


class Journal:
    """Changes in order, each with a sequence number. `append` is for the event loop, the rest for the writer thread."""

    def __init__(
        self, folder: Path, found: RecoveredJournal, *, server_id: str, limits: JournalLimits, clock: Clock, disk: Disk
    ) -> None:
        self.sequence = found.last
        """The last sequence number that was used."""
        self.lost = 0
        """Number of changes that were lost; gap records stand for them."""
        self.written = 0
        self.closed_bytes = sum(segment.size_bytes for segment in found.index.segments.values())
        """Size of all closed segments."""
        self.torn_bytes = found.torn_bytes
        self._folder = folder
        self._index = found.index
        self._server_id = server_id
        self._limits = limits
        self._clock = clock
        self._disk = disk

        self._queue: deque[Numbered] = deque()
        self._weight_in = 0  # written by the event loop only
        self._weight_out = 0  # written by the writer only
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
        self._unsynced_since: float | None = None
        """Time of the first write since the last sync; None if all is synced."""
        self._alive_at: float | None = None
        """Monotonic time of the last sign of life."""
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
        """Recover from a crash, and start the writer. Sequence numbers continue above `floor`.

        Raises:
            OSError, FileWriteError: the folder cannot be read or written.
        """
        disk = disk or Disk()
        disk.make_folder(folder)
        found = recover(folder, disk, floor)
        journal = cls(folder, found, server_id=server_id, limits=limits, clock=clock, disk=disk)
        if not found.ended_in_order:
            journal.sequence += SKIPPED_AFTER_CRASH
            journal._enqueue_gap(found.last + 1, CRASH, found.alive_ms)
        journal._show_life()
        journal._thread.start()
        return journal

    @property
    def failing(self) -> bool:
        """Whether the last write failed."""
        return self._failing

    @property
    def caught_up(self) -> bool:
        """Whether all appended changes are written."""
        return self._weight_in == self._weight_out and self._missing_from is None

    @property
    def waiting(self) -> int:
        """Number of queued changes."""
        return len(self._queue) + len(self._parts) + len(self._batch)

    @property
    def size_bytes(self) -> int:
        """Size of all segments."""
        segment = self._segment
        return self.closed_bytes + (0 if segment is None else segment.size_bytes)

    # For the event loop

    def append(self, changes: Iterable[Change]) -> None:
        """Queue changes, in this order. Never blocks: the writer splits a long change, here its parts get numbers."""
        wall_ms, mono_ms = int(self._clock.wall() * 1000), int(self._clock.monotonic() * 1000)
        limits = self._limits
        for change in changes:
            weight, size, parts = weight_of(change), bytes_of(change), part_count(change)
            waiting, waiting_bytes = self._weight_in - self._weight_out, self._bytes_in - self._bytes_out
            if waiting and (waiting + weight > limits.queue_weight or waiting_bytes + size > limits.queue_bytes):
                if self._missing_from is None:
                    self._missing_from = self.sequence + 1
                    log.warning("journal queue full, changes are lost queued=%d bytes=%d", waiting, waiting_bytes)
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
        """Queue a gap record for lost changes."""
        if self._missing_from is not None:
            self._enqueue_gap(self._missing_from, OVERFLOW)
            self._missing_from = None

    def _enqueue_gap(self, missing_from: int, reason: str, alive_ms: int | None = None) -> None:
        wall_ms, mono_ms = int(self._clock.wall() * 1000), int(self._clock.monotonic() * 1000)
        gap = Gap(missing_from, reason, alive_ms)
        self._weight_in += weight_of(gap)
        self._bytes_in += bytes_of(gap)
        # Its sequence number is the last of the missing ones.
        self._queue.append(Numbered(self.sequence, wall_ms, mono_ms, gap))

    def close(self) -> None:
        """Write queued changes, close the segment, end the writer. Blocks up to `CLOSE_S`: not for the event loop."""
        self._close_gap()
        self._closing.set()
        self._wake.set()
        self._thread.join(CLOSE_S)
        unwritten = self.waiting
        if unwritten or self._thread.is_alive():
            log.error("journal closed with unwritten changes count=%d", unwritten)

    # For the writer thread

    def _run(self) -> None:
        closing = False
        while not closing:
            self._wake.wait(self._wait_s())
            self._wake.clear()
            self._signalled = False
            closing = self._closing.is_set()
            self._show_life()
            try:
                self._write_waiting()
                self._finish_or_sync(closing=closing)
            except (OSError, FileWriteError) as error:
                self._note_failure(error)
                self._closing.wait(RETRY_S)
            else:
                self._note_success()
                self._closing.wait(LINGER_S)

    def _wait_s(self) -> float:
        """Return how long to wait for new changes."""
        if self._failing:
            return 0.0
        return SYNC_S if self._segment is not None else ALIVE_S

    def _show_life(self) -> None:
        now = self._clock.monotonic()
        if self._alive_at is None or now - self._alive_at >= ALIVE_S:
            self._alive_at = now
            write_alive(self._folder, self._disk, int(self._clock.wall() * 1000))

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
        if self._unsynced_since is None:
            self._unsynced_since = self._clock.monotonic()

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

    def _finish_or_sync(self, *, closing: bool) -> None:
        segment, now = self._segment, self._clock.monotonic()
        if segment is None:
            return
        if closing or now - segment.opened_at >= self._limits.segment_s:
            self._finish_segment()
        elif self._unsynced_since is not None and now - self._unsynced_since >= SYNC_S:
            segment.sync()
            self._unsynced_since = None

    def _finish_segment(self) -> None:
        assert self._segment is not None
        segment, self._segment, self._unsynced_since = self._segment, None, None
        self._index.add(segment.finish())
        self._remove_old()
        self.closed_bytes = sum(segment.size_bytes for segment in self._index.segments.values())
        self._index.write(self._disk)

    def _remove_old(self) -> None:
        limits = self._limits
        for segment in outdated(
            self._index.segments.values(),
            bytes_max=limits.total_bytes,
            age_s_max=limits.age_s,
            now_wall_s=self._clock.wall(),
        ):
            self._disk.remove(self._folder / segment.name)
            del self._index.segments[segment.first]

    def _note_failure(self, error: Exception) -> None:
        if not self._failing:
            self._failing = True
            log.warning("journal write failed, routing continues and writes are retried cause=%s", error)

    def _note_success(self) -> None:
        if self._failing:
            self._failing = False
            log.info("journal write succeeded again lost=%d", self.lost)
