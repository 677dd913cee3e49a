"""Records the changes of a controller in a journal: its own, or that of the name server in the same process."""

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path

from skyroute.clock import SystemClock
from skyroute.controller.events import (
    AddressChanged,
    GroupEvent,
    IdGranted,
    MasterElected,
    MasterLost,
    ReplicasRemoved,
    SyncSetChanged,
)
from skyroute.files.errors import FileWriteError
from skyroute.nameserver.errors import StateFolderError
from skyroute.nameserver.journal.recorder import Journal, JournalLimits
from skyroute.nameserver.journal.schema import Kind
from skyroute.nameserver.server import NameServer
from skyroute.nameserver.server_events import ReplicasChanged, ReplicasState, ServerStarted, ServerStopped
from skyroute.nameserver.state_folder import StateFolder, lock_folder

log = logging.getLogger(__name__)


def journal_change(event: GroupEvent) -> ReplicasChanged:
    """Return the change that a journal records for an event of a controller."""
    group = (event.cause.value, event.cluster, event.broker_name)
    match event:
        case MasterElected():
            return ReplicasChanged(
                *(Kind.MASTER_ELECTED, *group, event.master, event.address),
                master_epoch=event.master_epoch,
                sync_set_epoch=event.sync_set_epoch,
                before=None if event.previous is None else ReplicasState(event.previous),
                after=ReplicasState(event.master, event.address),
                is_unclean=event.is_unclean,
            )
        case MasterLost():
            lost = ReplicasState(event.previous)
            return ReplicasChanged(
                *(Kind.MASTER_LOST, *group, event.previous), master_epoch=event.master_epoch, before=lost
            )
        case SyncSetChanged():
            before, after = (ReplicasState(broker_ids=tuple(sorted(ids))) for ids in (event.before, event.after))
            return ReplicasChanged(
                *(Kind.SYNC_SET_CHANGED, *group), sync_set_epoch=event.sync_set_epoch, before=before, after=after
            )
        case IdGranted():
            return ReplicasChanged(Kind.REPLICA_ADDED, *group, event.broker_id, event.address)
        case AddressChanged():
            before, after = (ReplicasState(address=address) for address in (event.before, event.after))
            moved = (Kind.REPLICA_MOVED, *group, event.broker_id, event.after)
            return ReplicasChanged(*moved, before=before, after=after)
        case ReplicasRemoved():
            removed = ReplicasState(broker_ids=tuple(sorted(event.broker_ids)))
            return ReplicasChanged(Kind.REPLICAS_REMOVED, *group, before=removed)
        case _:
            raise TypeError(f"no record for {type(event).__name__}")


def record_in(server: NameServer, events: Collection[GroupEvent]) -> None:
    """Record the events of a controller in the journal of a name server."""
    server.record([journal_change(event) for event in events])


class ControllerJournal:
    """The journal of a controller that runs alone. Without a usable folder, it warns and records nothing."""

    def __init__(self, folder: Path, address: str) -> None:
        self._path = folder
        self._address = address
        self._clock = SystemClock()
        self._folder: StateFolder | None = None
        self._journal: Journal | None = None

    async def start(self) -> None:
        try:
            self._folder = lock_folder(self._path)
            self._journal = Journal.open(
                self._folder.journal,
                server_id=self._folder.server_id,
                limits=JournalLimits(),
                clock=self._clock,
                floor=0,
            )
        except (OSError, FileWriteError, StateFolderError) as error:
            log.warning("no journal reason=%s", error)
            return
        self._journal.append([ServerStarted(self._address, 0, self._journal.torn_bytes)])

    def record(self, events: Collection[GroupEvent]) -> None:
        """Append the events of a change."""
        if self._journal is not None:
            self._journal.append([journal_change(event) for event in events])

    async def stop(self) -> None:
        """Write the rest, and unlock the folder."""
        if self._journal is not None:
            self._journal.append([ServerStopped()])
            await asyncio.to_thread(self._journal.close)
        if self._folder is not None:
            self._folder.release()
