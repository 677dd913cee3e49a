"""What a name server keeps over a restart: the journal of all changes, and a snapshot of the route table.

Requests never wait for either. If the folder, the snapshot or the disk cannot be used, the server logs it and runs
without.
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
from skyroute.nameserver.errors import FolderInUseError, SnapshotError, StateFolderError
from skyroute.nameserver.journal.recorder import Journal, JournalLimits
from skyroute.nameserver.server_events import Change, ServerStarted, ServerStopped
from skyroute.nameserver.snapshot_file import Header, decode_snapshot, encode_snapshot, write_snapshot
from skyroute.nameserver.state_folder import StateFolder, lock_folder
from skyroute.routing.errors import InvalidSnapshotError, TableFullError
from skyroute.routing.events import RouteEvent
from skyroute.routing.snapshot import TableSnapshot
from skyroute.routing.table import RouteTable

log = logging.getLogger(__name__)

SNAPSHOT_SOONEST_S: Final = 1.0
"""Minimum time between two snapshots."""
SNAPSHOT_SHARE: Final = 0.01
"""Maximum share of time spent on snapshots; a large table has fewer."""


@dataclass(frozen=True, slots=True)
class WarmRestart:
    """Settings of the snapshot."""

    interval_s: float = 30.0
    """Maximum time between two snapshots."""
    age_s_max: float = 3600.0
    """An older snapshot is not used."""
    lease_s: float = 45.0
    """Maximum lease of a restored broker until it sends something."""


@dataclass(frozen=True, slots=True)
class PersistenceSettings:
    """Settings of journal and snapshot."""

    path: Path
    journal: JournalLimits | None = field(default_factory=JournalLimits)
    """None: no journal."""
    warm_restart: WarmRestart | None = field(default_factory=WarmRestart)
    """None: no snapshot is written or read."""


class Persistence:
    """Journal and snapshot of one name server. Call all methods on the loop; files are written in threads."""

    def __init__(
        self, settings: PersistenceSettings, folder: StateFolder, clock: Clock, disk: Disk | None = None
    ) -> None:
        self.folder = folder
        self.journal: Journal | None = None
        self._settings = settings
        self._clock = clock
        self._disk = disk or Disk()
        self.snapshots = 0
        """Number written since the start."""
        self.snapshot_failures = 0
        self.snapshot_s = 0.0
        """Duration of the last one."""
        self.saved_at: float | None = None
        """When the snapshot was last up to date; monotonic seconds."""
        self._changes = 0
        self._changes_saved = -1
        self._stopping = False
        self._failure_logged = False
        self._writing = threading.Lock()

    @classmethod
    def open(
        cls, settings: PersistenceSettings, clock: Clock, table: RouteTable, address: str, disk: Disk | None = None
    ) -> "Persistence | None":
        """Restore the table from the snapshot and open the journal. None: the folder cannot be used.

        Raises:
            FolderInUseError: Another name server uses the folder.
        """
        try:
            persistence = cls(settings, lock_folder(settings.path), clock, disk)
        except FolderInUseError:
            raise
        except StateFolderError as error:
            log.warning("no journal and no warm restart reason=%s", error)
            return None
        events, sequence = persistence._restore(table)
        persistence._open_journal(sequence)
        torn_bytes = 0 if persistence.journal is None else persistence.journal.torn_bytes
        persistence.record([ServerStarted(address, table.unconfirmed_count, torn_bytes), *events])
        return persistence

    def record(self, changes: Collection[Change]) -> None:
        """Append changes to the journal."""
        if self._stopping:
            return  # connections that our own stop closes say nothing about their brokers
        self._changes += len(changes)
        if self.journal is not None:
            self.journal.append(changes)

    # Snapshots

    def _restore(self, table: RouteTable) -> tuple[tuple[RouteEvent, ...], int]:
        """Return the events of the restored table, and the journal's sequence number at that time."""
        warm, path = self._settings.warm_restart, self.folder.snapshot
        if warm is None:
            return (), 0
        try:
            header, snapshot = self._read_snapshot(warm.age_s_max)
            events = table.restore(snapshot, lease_s=warm.lease_s, now=self._clock.monotonic())
        except FileNotFoundError:
            return (), 0
        except (OSError, SnapshotError, InvalidSnapshotError, TableFullError) as error:
            log.warning("snapshot not used, starting with an empty table file=%s reason=%s", path, error)
            return (), 0
        log.info("routes restored file=%s %r", path, table)
        return events, header.sequence

    def _read_snapshot(self, age_s_max: float) -> tuple[Header, TableSnapshot]:
        path = self.folder.snapshot
        # After a clock step back the age is negative, and the snapshot is used.
        age_s = self._clock.wall() - path.stat().st_mtime
        header, snapshot = decode_snapshot(path.read_bytes())
        if header.server_id != self.folder.server_id:
            raise SnapshotError(f"it belongs to another name server, {header.server_id}")
        if age_s > age_s_max:
            raise SnapshotError(f"it is {age_s:.0f} s old, more than snapshotMaxAgeSeconds={age_s_max:.0f}")
        return header, snapshot

    async def run(self, table: RouteTable) -> None:
        """Write snapshots while the server runs: soon after a change, for at most `SNAPSHOT_SHARE` of the time."""
        warm = self._settings.warm_restart
        if warm is None:
            return
        pause_s = SNAPSHOT_SOONEST_S
        while True:
            quiet_s = 0.0
            while quiet_s < warm.interval_s and (quiet_s < pause_s or self._is_saved(table)):
                step_s = min(SNAPSHOT_SOONEST_S, warm.interval_s)
                await asyncio.sleep(step_s)
                quiet_s += step_s
            began = self._clock.monotonic()
            await self._save(table)
            self.snapshot_s = self._clock.monotonic() - began
            pause_s = min(self.snapshot_s / SNAPSHOT_SHARE, warm.interval_s)

    def _is_saved(self, table: RouteTable) -> bool:
        """The snapshot is up to date. With unconfirmed brokers it never is: the rest of their leases changes."""
        return self._changes == self._changes_saved and not table.unconfirmed_count

    async def _save(self, table: RouteTable) -> None:
        if self._is_saved(table):
            await asyncio.to_thread(self._refresh_time)
            return
        changes, snapshot = self._changes, table.snapshot(self._clock.monotonic())
        if await asyncio.to_thread(self._write, snapshot, self._sequence, self._wall_ms):
            self._changes_saved = changes
            self.snapshots += 1
            self.saved_at = self._clock.monotonic()

    @property
    def _sequence(self) -> int:
        return 0 if self.journal is None else self.journal.sequence

    @property
    def _wall_ms(self) -> int:
        return int(self._clock.wall() * 1000)

    def _refresh_time(self) -> None:
        """Set the time of the snapshot: it is still up to date."""
        try:
            os.utime(self.folder.snapshot)
            self.saved_at = self._clock.monotonic()
        except OSError as error:
            self._log_failure(error)
            self._changes_saved = -1

    def _write(self, snapshot: TableSnapshot, sequence: int, wall_ms: int, *, is_last: bool = False) -> bool:
        try:
            lines = encode_snapshot(snapshot, server_id=self.folder.server_id, sequence=sequence, wall_ms=wall_ms)
            # A cancelled task leaves its thread running: the last snapshot waits for it and is not overwritten.
            with self._writing:
                if is_last or not self._stopping:
                    write_snapshot(self.folder.snapshot, lines, self._disk)
        except (FileWriteError, UnicodeEncodeError) as error:
            self._log_failure(error)
            return False
        self._failure_logged = False
        return True

    def _log_failure(self, error: Exception) -> None:
        self.snapshot_failures += 1
        if not self._failure_logged:
            self._failure_logged = True
            log.warning("snapshot cannot be written reason=%s", error)

    # Stop

    def stop_recording(self, table: RouteTable) -> TableSnapshot:
        """Record the stop while brokers are still registered. Pass the result to `close`."""
        self.record([ServerStopped()])
        self._stopping = True
        return table.snapshot(self._clock.monotonic())

    async def close(self, snapshot: TableSnapshot | None = None) -> None:
        """Write the last snapshot, if given, and the rest of the journal."""
        self._stopping = True
        try:
            if snapshot is not None and self._settings.warm_restart is not None:
                await asyncio.to_thread(self._write, snapshot, self._sequence, self._wall_ms, is_last=True)
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
            log.warning("no journal reason=cannot write %s: %s", self.folder.journal, error)
