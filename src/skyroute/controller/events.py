"""Changes of a broker group, for logs and for records of who was master when and why."""

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Why a change happened."""

    BROKER = "broker_request"
    OPERATOR = "operator_request"
    MASTER_DISCONNECTED = "master_disconnected"
    MASTER_SILENT = "master_silent"
    MASTER_DEAD = "master_not_alive"
    """A scan found it dead, for instance after the start of the controller."""


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """A change of one group."""

    cluster: str
    broker_name: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class IdGranted(GroupEvent):
    """A broker received its id."""

    broker_id: int
    address: str


@dataclass(frozen=True, slots=True)
class AddressChanged(GroupEvent):
    """A replica registered with another address."""

    broker_id: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class MasterElected(GroupEvent):
    """A replica became master."""

    master: int
    address: str
    master_epoch: int
    sync_set_epoch: int
    previous: int | None
    is_unclean: bool
    """The new master was not in the sync state set: acknowledged messages may be lost."""


@dataclass(frozen=True, slots=True)
class MasterLost(GroupEvent):
    """The master is gone, and no replica can replace it."""

    previous: int
    master_epoch: int


@dataclass(frozen=True, slots=True)
class SyncSetChanged(GroupEvent):
    """The master changed the sync state set."""

    before: frozenset[int]
    after: frozenset[int]
    sync_set_epoch: int


@dataclass(frozen=True, slots=True)
class ReplicasRemoved(GroupEvent):
    """An operator removed replicas."""

    broker_ids: frozenset[int]
    is_whole_group: bool
