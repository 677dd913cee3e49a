"""What a broker says of itself, and what comes of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from skyroute.routing.topology import BrokerKey, QueueSettings, StaticMapping

if TYPE_CHECKING:
    from skyroute.routing.events import RouteEvent


class DataVersion(NamedTuple):
    """The edition of a broker's topic table; two are the same edition only if all three numbers agree."""

    state_version: int = 0
    """The epoch of the controller or the term of the replicated log; 0 elsewhere."""
    timestamp_ms: int = 0
    counter: int = 0


@dataclass(frozen=True, slots=True)
class TopicTable:
    """The decoded body of a registration."""

    version: DataVersion = field(default_factory=DataVersion)
    topics: Mapping[str, QueueSettings] = field(default_factory=dict)
    mappings: Mapping[str, StaticMapping] = field(default_factory=dict)
    """Topic to this broker's part of it; only static topics have one."""
    filter_servers: tuple[str, ...] | None = None
    """None leaves what is known alone; an empty tuple clears it."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Topics of the registration that were left out, with the reason."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A broker's word that it is there, and what it serves."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str | None = None
    zone: str | None = None
    acting_master: bool | None = None
    """None: a broker too old to know of acting masters."""
    lease_s: float | None = None
    """None: the table's default."""
    table: TopicTable | None = None
    """None: the body is byte for byte the one `fingerprint` was remembered for, so nothing in it has changed."""
    fingerprint: bytes | None = None
    """Identifies the body, so that the next one like it need not be decoded."""

    @property
    def key(self) -> BrokerKey:
        return BrokerKey(self.cluster, self.address)


@dataclass(frozen=True, slots=True)
class RegistrationOutcome:
    """What a registration changed, and what its sender is told."""

    events: "tuple[RouteEvent, ...]" = ()
    superseded: bool = False
    """A broker of a newer epoch holds this id: nothing was changed, and the sender is told nothing."""
    overtaken: bool = False
    """The same connection has sent a newer edition: the lease was renewed, and nothing else was taken from this one."""
    master_address: str | None = None
    master_ha_address: str | None = None
    """Set for a slave whose master is alive."""
