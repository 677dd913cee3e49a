"""Writes the journal: a bounded queue between the event loop and one writer thread.

The event loop numbers each change and queues it; it never waits for the disk. If the disk refuses a write, the changes
stay in the queue and the writer tries again.
"""

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skyroute.clock import Clock
from skyroute.files.disk import Disk
from skyroute.files.errors import FileWriteError
from skyroute.nameserver.journal.change_queue import ChangeQueue
from skyroute.nameserver.journal.records import Numbered, encode
from skyroute.nameserver.journal.recovery import RecoveredJournal, recover, write_alive
from skyroute.nameserver.journal.segment_writer import SYNC_S, SegmentLimits, SegmentWriter
from skyroute.nameserver.server_events import Change

log = logging.getLogger(__name__)

SKIPPED_AFTER_CRASH: Final = 1_000_000
"""Sequence numbers skipped after a crash: more than can have been used, and seen by others, without being written."""
BATCH_BYTES: Final = 1024 * 1024
"""Approximate bytes per write."""
LINGER_S: Final = 0.05
"""Pause of the writer between two writes, so that they get larger. The first change is written at once."""
RETRY_S: Final = 1.0
ALIVE_S: Final = 60.0
"""Time between two signs of life. After a crash, the last one says how long the name server ran without a change."""
QUEUE_BYTES_MAX: Final = 256 * 1024 * 1024
CLOSE_S: Final = 10.0
"""Maximum time that `close` waits for the writer."""

CRASH: Final = "the name server crashed; changes that were not written are lost"


@dataclass(frozen=True, slots=True)
class JournalLimits(SegmentLimits):
    """Limits of sizes and ages."""

    queue_weight: int = 1_000_000
    """Approximate number of names in queued changes."""
    queue_bytes: int = QUEUE_BYTES_MAX
    """Approximate bytes of queued changes."""


class Journal:
    """Changes in order, each with a sequence number. `append` is for the event loop, the rest for the writer thread."""

    def __init__(
        self, folder: Path, found: RecoveredJournal, *, server_id: str, limits: JournalLimits, clock: Clock, disk: Disk
    ) -> None:
        self.written = 0
        self.torn_bytes = found.torn_bytes
        self._folder = folder
        self._server_id = server_id
        self._clock = clock
        self._disk = disk
        self._queue = ChangeQueue(found.last, weight_max=limits.queue_weight, bytes_max=limits.queue_bytes, clock=clock)
        self._segments = SegmentWriter(folder, found.index, limits, clock, disk)
        self._batch: list[Numbered] = []
        """Taken from the queue, and not yet written."""
        self._alive_at: float | None = None
        """Monotonic time of the last sign of life."""
        self._failing = False
        self._signalled = False
        self._wake = threading.Event()
        self._closing = threading.Event()
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
            journal._queue.sequence += SKIPPED_AFTER_CRASH
            journal._queue.append_gap(found.last + 1, CRASH, found.alive_ms)
        journal._show_life()
        journal._thread.start()
        return journal

    @property
    def sequence(self) -> int:
        """The last sequence number that was used."""
        return self._queue.sequence

    @property
    def lost(self) -> int:
        """Number of changes that were lost; gap records stand for them."""
        return self._queue.lost

    @property
    def failing(self) -> bool:
        """Whether the last write failed."""
        return self._failing

    @property
    def caught_up(self) -> bool:
        """Whether all appended changes are written."""
        return self._queue.is_written

    @property
    def waiting(self) -> int:
        """Number of queued changes."""
        return len(self._queue) + len(self._batch)

    @property
    def size_bytes(self) -> int:
        """Size of all segments."""
        return self._segments.size_bytes

    # For the event loop

    def append(self, changes: Iterable[Change]) -> None:
        """Queue changes, in this order. Never blocks."""
        self._queue.append(changes)
        if not self._signalled:
            self._signalled = True
            self._wake.set()

    def close(self) -> None:
        """Write queued changes, close the segment, end the writer. Blocks up to `CLOSE_S`: not for the event loop."""
        self._queue.close_gap()
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
                self._segments.finish_or_sync(closing=closing)
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
        return SYNC_S if self._segments.is_open else ALIVE_S

    def _show_life(self) -> None:
        now = self._clock.monotonic()
        if self._alive_at is None or now - self._alive_at >= ALIVE_S:
            self._alive_at = now
            write_alive(self._folder, self._disk, int(self._clock.wall() * 1000))

    def _write_waiting(self) -> None:
        while self._batch or self._queue:
            lines = [encode(numbered, self._server_id) for numbered in self._batch]
            size = sum(map(len, lines))
            while self._queue and size < BATCH_BYTES:
                self._batch.append(self._queue.take())
                lines.append(encode(self._batch[-1], self._server_id))
                size += len(lines[-1])
            self._segments.write(b"".join(lines), self._batch)
            self._queue.release(self._batch)
            self.written += len(self._batch)
            self._batch = []

    def _note_failure(self, error: Exception) -> None:
        if not self._failing:
            self._failing = True
            log.warning("journal write failed, routing continues and writes are retried reason=%s", error)

    def _note_success(self) -> None:
        if self._failing:
            self._failing = False
            log.info("journal write succeeded again lost=%d", self.lost)
