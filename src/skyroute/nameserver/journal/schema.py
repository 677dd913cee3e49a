"""The records of a journal: a public format. docs/journal.md describes it; a test compares both.

A record is one line of JSON. Fields that do not apply are left out. Any release may add fields; the version increases
when a field is removed or changes its meaning.
"""

from enum import StrEnum
from typing import Final

import msgspec

from skyroute.routing.registration import DataVersion
from skyroute.routing.topology import QueueSettings, StaticMapping

SCHEMA_VERSION: Final = 1


class Kind(StrEnum):
    """The kind of change."""

    SERVER_STARTED = "server_started"
    SERVER_STOPPED = "server_stopped"
    GAP = "gap"
    BROKER_JOINED = "broker_joined"
    BROKER_LEFT = "broker_left"
    BROKER_CHANGED = "broker_changed"
    BROKER_CONFIRMED = "broker_confirmed"
    LEASE_HELD = "lease_held"
    GROUP_CHANGED = "group_changed"
    TOPICS_CHANGED = "topics_changed"
    WRITES_CHANGED = "writes_changed"
    MAPPINGS_CHANGED = "mappings_changed"
    FILTER_SERVERS_CHANGED = "filter_servers_changed"
    SMALLEST_ID_CHANGED = "smallest_id_changed"
    MASTER_ELECTED = "master_elected"
    MASTER_LOST = "master_lost"
    SYNC_SET_CHANGED = "sync_set_changed"
    REPLICA_ADDED = "replica_added"
    REPLICA_MOVED = "replica_moved"
    REPLICAS_REMOVED = "replicas_removed"
    KV_CHANGED = "kv_changed"
    SETTINGS_CHANGED = "settings_changed"


CONTROLLER_KINDS: Final = frozenset(
    {
        Kind.MASTER_ELECTED,
        Kind.MASTER_LOST,
        Kind.SYNC_SET_CHANGED,
        Kind.REPLICA_ADDED,
        Kind.REPLICA_MOVED,
        Kind.REPLICAS_REMOVED,
    }
)
"""Changes by a controller. They change no route: brokers register their new roles themselves."""


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state before or after a change."""

    cluster: str | None = None
    broker_id: int | None = None
    address: str | None = None
    ha_address: str | None = None
    version: DataVersion | None = None
    acting_master: bool | None = None
    zone: str | None = None
    filter_servers: tuple[str, ...] | None = None
    value: str | None = None
    broker_ids: tuple[int, ...] | None = None


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One record: one line of a segment."""

    v: int
    seq: int
    wall_ms: int
    mono_ms: int
    server: str
    kind: str
    cause: str | None = None
    cluster: str | None = None
    broker: str | None = None
    broker_id: int | None = None
    address: str | None = None
    version: DataVersion | None = None
    lease_s: float | None = None
    before: State | None = None
    after: State | None = None
    added: dict[str, QueueSettings] | None = None
    changed: dict[str, tuple[QueueSettings, QueueSettings]] | None = None
    removed: dict[str, QueueSettings] | None = None
    forbidden: tuple[str, ...] | None = None
    restored: tuple[str, ...] | None = None
    mappings: dict[str, tuple[StaticMapping | None, StaticMapping | None]] | None = None
    others: tuple[str, ...] | None = None
    namespace: str | None = None
    key: str | None = None
    settings: dict[str, tuple[str | None, str | None]] | None = None
    peer: str | None = None
    restored_brokers: int | None = None
    torn_bytes: int | None = None
    missing_from: int | None = None
    reason: str | None = None
    alive_ms: int | None = None
    master_epoch: int | None = None
    sync_set_epoch: int | None = None
    unclean: bool | None = None

    @property
    def topics(self) -> set[str]:
        """The topics in the record."""
        maps = (self.added, self.changed, self.removed, self.mappings)
        return {*(self.forbidden or ()), *(self.restored or ()), *(name for each in maps for name in each or ())}


class Mark(msgspec.Struct, frozen=True):
    """The fields of a record that segments need; fast to decode."""

    v: int
    seq: int
    wall_ms: int
    kind: str
    missing_from: int | None = None


record_decoder: Final = msgspec.json.Decoder(Record)
mark_decoder: Final = msgspec.json.Decoder(Mark)
