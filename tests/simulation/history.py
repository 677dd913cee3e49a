"""What clients and servers did, in order. The checkers judge it; the product does not see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any


class Outcome(Enum):
    """What a producer knows of a send."""

    ACKNOWLEDGED = auto()
    UNSAFE = auto()
    """Stored, and not on disk in time."""
    UNKNOWN = auto()
    """No response: the message may be stored or not."""


class Ending(Enum):
    """How a transaction ends, as the application decided."""

    COMMIT = auto()
    ROLLBACK = auto()


@dataclass(slots=True)
class Send:
    """One message, known by its body, which is unique."""

    body: str
    topic: str
    at: float
    outcome: Outcome = Outcome.UNKNOWN
    queue: str = ""
    offset: int = -1
    not_before: float = 0.0
    """A delayed message must not be delivered before this time."""
    ending: Ending | None = None
    """Of a transaction; None for other messages."""


@dataclass(slots=True)
class Delivery:
    """One call of a handler, or one message of a poll."""

    at: float
    group: str
    consumer: str
    body: str
    topic: str
    queue: str
    offset: int
    is_consumed: bool = False
    """The application has processed it, and did not ask for a redelivery."""


@dataclass(frozen=True, slots=True)
class WatchStep:
    """One response to a watch of one name server."""

    name_server: str
    life: str
    after: int | None
    """The revision from which the watch went on."""
    revision: int
    changes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RouteSample:
    """Whether a name server listed a broker, and since when it should or should not."""

    at: float
    name_server: str
    broker: str
    is_listed: bool
    is_connected: bool
    """Both were up, and no partition was between them."""
    for_s: float
    """How long that had been so, and this life of the name server had been."""


@dataclass(frozen=True, slots=True)
class RegistrationSample:
    """Whether a name server listed a broker whose registration it had accepted on a connection that was still open."""

    at: float
    name_server: str
    broker: str
    is_listed: bool


@dataclass(frozen=True, slots=True)
class JournalSample:
    """The route table of a name server, and what its journal says."""

    at: float
    name_server: str
    table: Mapping[str, Any]
    replayed: Mapping[str, Any]


@dataclass(slots=True)
class History:
    """Everything that the checkers need."""

    sends: dict[str, Send] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)
    watch_steps: list[WatchStep] = field(default_factory=list)
    route_samples: list[RouteSample] = field(default_factory=list)
    registration_samples: list[RegistrationSample] = field(default_factory=list)
    journal_samples: list[JournalSample] = field(default_factory=list)
    topics: dict[str, str] = field(default_factory=dict)
    """The topic of each consumer group."""
    ordered_groups: set[str] = field(default_factory=set)
    owners: dict[str, dict[str, frozenset[str]]] = field(default_factory=dict)
    """At the end: by group, the queues of each consumer."""
    queues: dict[str, frozenset[str]] = field(default_factory=dict)
    """At the end: all queues of each topic."""
    had_faults: bool = False
    """Something may cause a redelivery: a fault, a rebalance, a failed handler."""
    failures: list[str] = field(default_factory=list)
    """Exceptions that no code handled."""
