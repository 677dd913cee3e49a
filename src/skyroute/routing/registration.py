"""A broker's registration."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from skyroute.routing.topology import BrokerKey, QueueSettings, StaticMapping


class DataVersion(NamedTuple):
    """Version of a broker's topic table; two are equal only if all three numbers agree."""

    state_version: int = 0
    """Epoch of the controller or term of the replicated log; 0 without either."""
    timestamp_ms: int = 0
    counter: int = 0


@dataclass(frozen=True, slots=True)
class TopicTable:
    """The decoded body of a registration."""

    version: DataVersion = field(default_factory=DataVersion)
    topics: Mapping[str, QueueSettings] = field(default_factory=dict)
    mappings: Mapping[str, StaticMapping] = field(default_factory=dict)
    """Topic to this broker's mapping, for static topics."""
    filter_servers: tuple[str, ...] | None = None
    """None leaves the known ones unchanged; an empty tuple clears them."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Topics of the registration that were left out, with the reason."""


@dataclass(frozen=True, slots=True)
class Registration:
    """REGISTER_BROKER: a broker and its topics."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str | None = None
    zone: str | None = None
    acting_master: bool | None = None
    """None: a broker before 5.0, without the flag."""
    lease_s: float | None = None
    """None: the table's default."""
    table: TopicTable | None = None
    """None: the body has the fingerprint of the last one applied, so nothing in it has changed."""
    fingerprint: bytes | None = None
    """Identifies the body: an equal one is not decoded again."""

    @property
    def key(self) -> BrokerKey:
        return BrokerKey(self.cluster, self.address)
