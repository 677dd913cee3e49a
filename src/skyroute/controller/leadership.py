"""Which controller decides, as every controller tells brokers and tools."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class Leadership(Protocol):
    """The controllers of a cluster as this one sees them."""

    @property
    def group(self) -> str:
        """Name of the controllers' group."""
        ...

    @property
    def is_leader(self) -> bool:
        """Whether this controller decides."""
        ...

    @property
    def leader_id(self) -> str:
        """Id of the controller that decides; empty if unknown."""
        ...

    @property
    def leader_address(self) -> str:
        """Address of that controller for brokers; empty if unknown."""
        ...

    @property
    def peers(self) -> Mapping[str, str]:
        """Addresses of all controllers by id."""
        ...

    async def run(self) -> None:
        """Become the leader, and stay it, while the controller runs."""
        ...

    async def resign(self) -> None:
        """Let another controller lead at once."""
        ...


@dataclass(frozen=True, slots=True)
class SoleController:
    """A controller without peers: it always decides."""

    group: str
    leader_id: str
    leader_address: str

    @property
    def is_leader(self) -> bool:
        return True

    @property
    def peers(self) -> Mapping[str, str]:
        return {self.leader_id: self.leader_address}

    async def run(self) -> None:
        """Return at once: nothing can change."""

    async def resign(self) -> None:
        """Do nothing: there is no other controller."""
