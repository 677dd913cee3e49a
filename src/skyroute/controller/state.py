"""State of one broker group, and which of its replicas are alive, as values that never change."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Final

FIRST_ID: Final = 1
"""The first broker id of a group. A broker registers at name servers as id 0 while it is master."""

EPOCH_MAX: Final = (1 << 31) - 1
"""Epochs have 32 bits on the wire. One election per second reaches this after 68 years."""

GROUPS_MAX: Final = 100_000
"""Maximum number of broker groups, including groups whose replicas were removed."""

REPLICAS_MAX: Final = 100
"""Maximum number of replicas of one group."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One broker of a group."""

    address: str
    """Address for clients and for notices of the controller."""
    check_code: str
    """Text that the broker chose when it applied for its id; proves that the id is its own."""


@dataclass(frozen=True, slots=True)
class GroupState:
    """What the controller must not lose about one broker group."""

    cluster: str
    broker_name: str
    next_id: int = FIRST_ID
    """The next id to grant. It never decreases, also when all replicas are removed."""
    replicas: Mapping[int, Replica] = field(default_factory=dict)
    master: int | None = None
    master_epoch: int = 0
    """Increases with each election and with each loss of the master. It never decreases."""
    sync_set: frozenset[int] = frozenset()
    """Replicas that have every acknowledged message. Only these may become master without loss."""
    sync_set_epoch: int = 0
    had_master: bool = False
    """Whether a master was elected since the first replica was added. Until then, any replica may become master."""

    @property
    def is_empty(self) -> bool:
        """Whether all replicas were removed. Requests then treat the group as unknown; epochs and ids go on."""
        return not self.replicas

    def address_of(self, broker_id: int | None) -> str | None:
        """Return the address of a replica; None if there is no such replica."""
        replica = None if broker_id is None else self.replicas.get(broker_id)
        return None if replica is None else replica.address


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a replica's log reaches, from its last heartbeat."""

    epoch: int = -1
    max_offset: int = -1
    priority: int = (1 << 31) - 1
    """The smaller number wins between replicas with equal logs."""


@dataclass(frozen=True, slots=True)
class LiveReplicas:
    """Which replicas of one group are alive now."""

    progress: Mapping[int, Progress]
    """Replicas that sent a heartbeat in time, by id."""
    is_settled: bool = True
    """Whether the controller has listened long enough to tell a dead replica from one it has not heard yet."""

    def __contains__(self, broker_id: int) -> bool:
        return broker_id in self.progress

    def is_dead(self, broker_id: int) -> bool:
        """Return whether a replica is known to be dead. A replica that may not have reported yet is not."""
        return self.is_settled and broker_id not in self.progress

    def without(self, broker_id: int | None) -> "LiveReplicas":
        """Return the others."""
        others = {each: progress for each, progress in self.progress.items() if each != broker_id}
        return LiveReplicas(others, self.is_settled)

    def among(self, broker_ids: Set[int]) -> frozenset[int]:
        """Return those ids that are alive."""
        return frozenset(broker_ids & self.progress.keys())
