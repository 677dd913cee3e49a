"""Where the state of broker groups is kept: the interface of all stores.

Each change is a compare-and-swap of the state of one group, as a transaction of etcd is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from skyroute.controller.errors import Refusal, RequestRefusedError
from skyroute.controller.state import GROUPS_MAX, GroupState

STATE_BYTES_MAX: Final = 32 * 1024 * 1024
"""Maximum size of all stored groups: 50,000 groups of three brokers. Elections are never refused for it."""


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """State of a group and its revision in the store."""

    state: GroupState
    revision: int
    """Changes with every change of the group; 0 is never used."""


@dataclass(slots=True)
class StateSizes:
    """Sizes of the encoded groups. Anyone who reaches the controller can add groups, replicas and long addresses."""

    bytes_max: int = STATE_BYTES_MAX
    _by_name: dict[str, int] = field(default_factory=dict)
    _total: int = 0

    def check(self, before: GroupState | None, after: GroupState, size: int) -> None:
        """Check that a group may get this size, in bytes.

        Raises:
            RequestRefusedError: there are too many groups, or all groups together would be too large.
        """
        name = after.broker_name
        if name not in self._by_name and len(self._by_name) >= GROUPS_MAX:
            raise RequestRefusedError(Refusal.ID_REFUSED, f"there are {GROUPS_MAX} broker groups, the maximum")
        if before is not None and before.replicas == after.replicas:
            return  # an election, or a change of the sync state set
        growth = size - self._by_name.get(name, 0)
        if growth > 0 and self._total + growth > self.bytes_max:
            raise RequestRefusedError(
                Refusal.ID_REFUSED,
                f"the broker groups take {self._total} of at most {self.bytes_max} bytes: remove unused ones "
                "(cleanBrokerMetadata)",
            )

    def note(self, broker_name: str, size: int) -> int:
        """Note the size of a group, 0 if it is not stored; return its size before."""
        before = self._by_name.pop(broker_name, 0)
        self._total += size - before
        if size:
            self._by_name[broker_name] = size
        return before


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
            RequestRefusedError: there are too many groups, or they are too large.
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
