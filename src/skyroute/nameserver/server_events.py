"""Changes at a name server besides routes, as values for the journal."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from skyroute.routing.events import RouteEvent


@dataclass(frozen=True, slots=True)
class KvChanged:
    """An entry of the key-value table was set or removed (None after)."""

    namespace: str
    key: str
    before: str | None
    after: str | None
    peer: str


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """Settings were updated by UPDATE_NAMESRV_CONFIG."""

    values: Mapping[str, tuple[str | None, str | None]]
    """Key to its value before and after."""
    peer: str


@dataclass(frozen=True, slots=True)
class ServerStarted:
    """A name server started with an empty table; events of restored routes follow."""

    address: str
    restored_brokers: int
    torn_bytes: int
    """Bytes of an incomplete line that a crash left at the end of the journal; they were removed."""


@dataclass(frozen=True, slots=True)
class ServerStopped:
    """A name server stopped normally. Its routes are unknown from here on."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Records from this number up to the gap's own are missing."""

    missing_from: int
    reason: str
    alive_ms: int | None = None
    """After a crash: wall time of the last sign of life, at most `ALIVE_S` before the crash."""


@dataclass(frozen=True, slots=True)
class ReplicasState:
    """The replicas of a broker group before or after a change; fields that do not apply are None."""

    broker_id: int | None = None
    address: str | None = None
    broker_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ReplicasChanged:
    """A controller changed a broker group: its master, its sync state set or its replicas."""

    kind: str
    """One of the journal's kinds."""
    cause: str
    cluster: str
    broker_name: str
    broker_id: int | None = None
    address: str | None = None
    master_epoch: int | None = None
    sync_set_epoch: int | None = None
    before: ReplicasState | None = None
    after: ReplicasState | None = None
    is_unclean: bool = False


Change = RouteEvent | ReplicasChanged | KvChanged | SettingsChanged | ServerStarted | ServerStopped | Gap

Record = Callable[[Collection[Change]], None]
"""Publishes changes to caches, watches and journal."""

Publish = Callable[[Collection[RouteEvent]], None]
"""Publishes the events of a change to caches, watches, journal and log; without events, only schedules a sweep."""
