"""What a name server remembers over a restart: every change, in the journal, and the routes it last knew.

Routing never waits for any of it. A folder that cannot be used, a snapshot that cannot be read and a disk that refuses
are said in the log, and the server goes on without.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from skyroute.clock import Clock
from skyroute.files.disk import Disk
from skyroute.files.errors import FileWriteError
from skyroute.nameserver.errors import FolderInUseError, MemoryFolderError, SnapshotError
from skyroute.nameserver.journal.recorder import Journal, JournalLimits
from skyroute.nameserver.server_events import Change, ServerStarted, ServerStopped
from skyroute.nameserver.snapshot import Header, decode_snapshot, encode_snapshot, write_snapshot
from skyroute.nameserver.state_folder import StateFolder, take_folder
from skyroute.routing.errors import ImageError, TableFullError
from skyroute.routing.events import RouteEvent
from skyroute.routing.image import TableImage
from skyroute.routing.table import RouteTable

log = logging.getLogger(__name__)

SNAPSHOT_SOONEST_S: Final = 1.0
"""How soon after the last one a change is worth another snapshot, where a snapshot costs little."""
SNAPSHOT_SHARE: Final = 0.01
"""How much of the time may go into snapshots; a large table has fewer."""


@dataclass(frozen=True, slots=True)
class WarmRestart:
    """How routes are kept over a restart."""

    interval_s: float = 30.0
    """The longest time between two snapshots."""
    age_s_max: float = 3600.0
    """An older snapshot is not believed."""
    lease_s: float = 45.0
    """How long a restored broker is believed that is not heard from."""


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """What is remembered, and where."""

    path: Path
    journal: JournalLimits | None = field(default_factory=JournalLimits)
    """None: no journal."""
    warm_restart: WarmRestart | None = field(default_factory=WarmRestart)
    """None: every start is a cold one, and no snapshot is written."""


class Persistence:
    """One name server's journal and snapshot. All methods belong to the loop; `keep` and `close` write in a thread."""

    def __init__(self, settings: MemorySettings, folder: StateFolder, clock: Clock, disk: Disk | None = None) -> None:
        self.folder = folder
        self.journal: Journal | None = None
        self._settings = settings
        self._clock = clock
        self._disk = disk or Disk()
        self.snapshots = 0
        """How many were written since the start."""
        self.snapshot_failures = 0
        self.snapshot_s = 0.0
        """How long the last one took."""
        self.kept_at: float | None = None
        """When what is known was last on the disk; monotonic seconds."""
        self._changes = 0
        self._changes_kept = -1
        self._stopping = False
        self._complained = False
        self._writing = threading.Lock()

    @classmethod
    def open(
        cls, settings: MemorySettings, clock: Clock, table: RouteTable, address: str, disk: Disk | None = None
    ) -> "Persistence | None":
        """Fill the table with what was known, and begin to record. None: the folder cannot be used.

        Raises:
            FolderInUseError: Another name server has the folder.
        """
        try:
            memory = cls(settings, take_folder(settings.path), clock, disk)
        except FolderInUseError:
            raise
        except MemoryFolderError as error:
            log.warning("no journal and no warm restart reason=%s", error)
            return None
        events, sequence = memory._restore(table)
        memory._open_journal(sequence)
        torn_bytes = 0 if memory.journal is None else memory.journal.torn_bytes
        memory.record([ServerStarted(address, table.unconfirmed_count, torn_bytes), *events])
        return memory

    def record(self, changes: Collection[Change]) -> None:
        """Take note of what happened."""
        if self._stopping:
            return  # that connections end with us says nothing of their brokers
        self._changes += len(changes)
        if self.journal is not None:
            self.journal.append(changes)

    # Snapshots

    def _restore(self, table: RouteTable) -> tuple[tuple[RouteEvent, ...], int]:
        """Return what was restored, and the journal's number at that time."""
        warm, path = self._settings.warm_restart, self.folder.snapshot
        if warm is None:
            return (), 0
        try:
            header, image = self._read_snapshot(warm.age_s_max)
            events = table.restore(image, lease_s=warm.lease_s, now=self._clock.monotonic())
        except FileNotFoundError:
            return (), 0
        except (OSError, SnapshotError, ImageError, TableFullError) as error:
            log.warning("snapshot not used, this is a cold start file=%s reason=%s", path, error)
            return (), 0
        log.info("routes restored file=%s %r", path, table)
        return events, header.sequence

    def _read_snapshot(self, age_s_max: float) -> tuple[Header, TableImage]:
        path = self.folder.snapshot
        # A clock that stepped back makes a file from the future: that says nothing of its age.
        age_s = self._clock.wall() - path.stat().st_mtime
        header, image = decode_snapshot(path.read_bytes())
        if header.server_id != self.folder.server_id:
            raise SnapshotError(f"it is of another name server, {header.server_id}")
        if age_s > age_s_max:
            raise SnapshotError(f"it is {age_s:.0f} s old, at most {age_s_max:.0f} are believed")
        return header, image

    async def keep(self, table: RouteTable) -> None:
        """Write snapshots for as long as the server runs: soon after a change, but not all the time."""
        warm = self._settings.warm_restart
        if warm is None:
            return
        pause_s = SNAPSHOT_SOONEST_S
        while True:
            quiet_s = 0.0
            while quiet_s < warm.interval_s and (quiet_s < pause_s or self._is_kept(table)):
                step_s = min(SNAPSHOT_SOONEST_S, warm.interval_s)
                await asyncio.sleep(step_s)
                quiet_s += step_s
            began = self._clock.monotonic()
            await self._keep(table)
            self.snapshot_s = self._clock.monotonic() - began
            pause_s = min(self.snapshot_s / SNAPSHOT_SHARE, warm.interval_s)

    def _is_kept(self, table: RouteTable) -> bool:
        """Nothing differs from the last snapshot; how long unconfirmed brokers are believed does, with every second."""
        return self._changes == self._changes_kept and not table.unconfirmed_count

    async def _keep(self, table: RouteTable) -> None:
        if self._is_kept(table):
            await asyncio.to_thread(self._touch)
            return
        changes, image = self._changes, table.image(self._clock.monotonic())
        if await asyncio.to_thread(self._write, image, self._sequence, self._wall_ms):
            self._changes_kept = changes
            self.snapshots += 1
            self.kept_at = self._clock.monotonic()

    @property
    def _sequence(self) -> int:
        return 0 if self.journal is None else self.journal.sequence

    @property
    def _wall_ms(self) -> int:
        return int(self._clock.wall() * 1000)

    def _touch(self) -> None:
        """Say that what is written is still what is known."""
        try:
            os.utime(self.folder.snapshot)
            self.kept_at = self._clock.monotonic()
        except OSError as error:
            self._complain(error)
            self._changes_kept = -1

    def _write(self, image: TableImage, sequence: int, wall_ms: int, *, is_last: bool = False) -> bool:
        try:
            lines = encode_snapshot(image, server_id=self.folder.server_id, sequence=sequence, wall_ms=wall_ms)
            # A thread goes on when its task is cancelled: the last snapshot waits for it, and is not overwritten.
            with self._writing:
                if is_last or not self._stopping:
                    write_snapshot(self.folder.snapshot, lines, self._disk)
        except (FileWriteError, UnicodeEncodeError) as error:
            self._complain(error)
            return False
        self._complained = False
        return True

    def _complain(self, error: Exception) -> None:
        self.snapshot_failures += 1
        if not self._complained:
            self._complained = True
            log.warning("snapshot cannot be written reason=%s", error)

    # The end

    def stop_recording(self, table: RouteTable) -> TableImage:
        """Record that the server stops, while its brokers are still there. Give what is returned to `close`."""
        self.record([ServerStopped()])
        self._stopping = True
        return table.image(self._clock.monotonic())

    async def close(self, image: TableImage | None = None) -> None:
        """Write the last snapshot, if there is one to write, and what the journal still has to."""
        self._stopping = True
        try:
            if image is not None and self._settings.warm_restart is not None:
                await asyncio.to_thread(self._write, image, self._sequence, self._wall_ms, is_last=True)
            if self.journal is not None:
                await asyncio.to_thread(self.journal.close)
        finally:
            self.folder.release()

    def _open_journal(self, floor: int) -> None:
        limits = self._settings.journal
        if limits is None:
            return
        try:
            self.journal = Journal.open(
                self.folder.journal,
                server_id=self.folder.server_id,
                limits=limits,
                clock=self._clock,
                floor=floor,
                disk=self._disk,
            )
        except (OSError, FileWriteError) as error:
            log.warning("no journal reason=cannot use %s: %s", self.folder.journal, error)
