"""What changes at a name server besides routes, as values for log and journal."""

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
    """Settings were updated from afar."""

    values: Mapping[str, tuple[str | None, str | None]]
    """Key to its value before and after."""
    peer: str


@dataclass(frozen=True, slots=True)
class ServerStarted:
    """A name server begins with an empty table; what it restores follows."""

    address: str
    restored_brokers: int
    torn_bytes: int
    """How much of an unfinished line an earlier crash left at the end of the journal; it was cut off."""


@dataclass(frozen=True, slots=True)
class ServerStopped:
    """A name server ends in order: it has recorded all it knew, and what follows is no more its business."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Records from this number up to that of the gap itself are missing."""

    missing_from: int
    reason: str


Change = RouteEvent | KvChanged | SettingsChanged | ServerStarted | ServerStopped | Gap

Record = Callable[[Collection[Change]], None]
"""Takes note of what happened."""
