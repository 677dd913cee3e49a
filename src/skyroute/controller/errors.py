"""Errors of the controller: refused requests, and state that cannot be kept."""

from enum import Enum
from typing import Final

from skyroute.errors import SkyrouteError


class Refusal(Enum):
    """Why a request is refused. Each has one response code on the wire."""

    STALE_MASTER_EPOCH = "stale master epoch"
    STALE_SYNC_SET_EPOCH = "stale sync state set epoch"
    NOT_MASTER = "not the master"
    UNKNOWN_REPLICA = "unknown replica"
    REPLICA_NOT_ALIVE = "replica not alive"
    NO_MASTER = "no master"
    NOT_LEADER = "not the leading controller"
    UNKNOWN_GROUP = "unknown group"
    CLEANUP_REFUSED = "cleanup refused"
    NOT_REGISTERED = "not registered"
    ELECTION_FAILED = "election failed"
    SYNC_SET_REFUSED = "sync state set refused"
    ID_REFUSED = "broker id refused"


class RequestRefusedError(SkyrouteError):
    """A rule refuses a request. The state of the group is as it was."""

    def __init__(self, refusal: Refusal, reason: str) -> None:
        super().__init__(reason)
        self.refusal: Final = refusal


class StoreConflictError(SkyrouteError):
    """Another change of the same group was stored first. Read the group again and decide again."""

    retryable = True


class StoreUnavailableError(SkyrouteError):
    """The store does not respond or refuses a write. A change that was sent may or may not be stored."""

    retryable = True


class DamagedStateError(SkyrouteError):
    """The stored state cannot be read. Starting without it would grant ids and epochs a second time."""
