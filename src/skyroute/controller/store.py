"""Where the state of broker groups is kept: the interface of all stores.

Each change is a compare-and-swap of the state of one group, as a transaction of etcd is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from skyroute.controller.state import GroupState


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """State of a group and its revision in the store."""

    state: GroupState
    revision: int
    """Changes with every change of the group; 0 is never used."""


class GroupStore(Protocol):
    """Keeps the state of groups. What a read returns is safe on disk."""

    async def open(self) -> None:
        """Read the stored state.

        Raises:
            DamagedStateError: it cannot be read.
        """
        ...

    def find(self, broker_name: str) -> StoredGroup | None:
        """Return a group; None if it is unknown."""
        ...

    def groups(self) -> Mapping[str, StoredGroup]:
        """Return all groups by broker name. The caller does not change it and does not keep it."""
        ...

    async def replace(self, state: GroupState, revision: int) -> None:
        """Store the new state of a group; return once it is safe. Revision 0: the group must be unknown.

        Raises:
            StoreConflictError: the group has another revision.
            FileWriteError: the state could not be written; it is as it was.
            StoreUnavailableError: the state may be stored or not, now or later; `settle` decides it.
        """
        ...

    async def settle(self, broker_name: str) -> StoredGroup | None:
        """Return what is stored of a group, after which no earlier write of it can be stored any more.

        Raises:
            RequestRefusedError: another controller leads.
            StoreUnavailableError: the store does not respond.
        """
        ...

    async def close(self) -> None:
        """Finish what is being written."""
        ...
