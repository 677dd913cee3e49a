"""Converts changes to records."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from skyroute.nameserver.journal.schema import SCHEMA_VERSION, Kind, Record, State
from skyroute.nameserver.server_events import (
    Change,
    Gap,
    KvChanged,
    ReplicasChanged,
    ServerStarted,
    ServerStopped,
    SettingsChanged,
)
from skyroute.routing.events import (
    BrokerChanged,
    BrokerConfirmed,
    BrokerJoined,
    BrokerLeft,
    FilterServersChanged,
    GroupChanged,
    LeaseHeld,
    MappingsChanged,
    RouteEvent,
    SmallestIdChanged,
    TopicsChanged,
    WritesChanged,
)
from skyroute.routing.memory_estimate import mapping_bytes, server_bytes, text_bytes

T = TypeVar("T")

_encoder: Final = msgspec.json.Encoder()


TOPICS_A_RECORD: Final = 10_000
"""Maximum topics per record. A larger change becomes several records, which bounds lines and segments."""
_NAME_BYTES: Final = 128
"""Memory of one name in a queued change, besides its characters."""


class Numbered(NamedTuple):
    """A change with its sequence number and times."""

    seq: int
    wall_ms: int
    mono_ms: int
    change: Change


def part_count(change: Change) -> int:
    """Return the number of parts that `split` makes."""
    if not isinstance(change, TopicsChanged) or _is_short(change):
        return 1
    return sum(-(-len(topics) // TOPICS_A_RECORD) for topics in (change.removed, change.changed, change.added))


def split(change: Change) -> Iterator[Change]:
    """Split a change into parts of a bounded record length. Applied in order, they equal the change."""
    if not isinstance(change, TopicsChanged) or _is_short(change):
        yield change
        return
    for removed in _parts(change.removed):
        yield replace(change, added={}, changed={}, removed=removed)
    for changed in _parts(change.changed):
        yield replace(change, added={}, changed=changed, removed={})
    for added in _parts(change.added):
        yield replace(change, added=added, changed={}, removed={})


def _is_short(change: TopicsChanged) -> bool:
    return len(change.added) + 2 * len(change.changed) + len(change.removed) < TOPICS_A_RECORD


def _parts(topics: Mapping[str, T]) -> Iterator[dict[str, T]]:
    items = iter(topics.items())
    while part := dict(islice(items, TOPICS_A_RECORD)):
        yield part


def bytes_of(change: Change) -> int:
    """Return the approximate memory of a queued change."""
    match change:
        case TopicsChanged():
            names = text_bytes(change.added) + text_bytes(change.changed) + text_bytes(change.removed)
        case WritesChanged():
            names = text_bytes(change.forbidden) + text_bytes(change.restored)
        case MappingsChanged():
            names = sum(mapping_bytes(each) for pair in change.changed.values() for each in pair)
        case KvChanged():
            names = text_bytes((change.before or "", change.after or ""))
        case FilterServersChanged():
            names = server_bytes(change.before) + server_bytes(change.after)
        case _:
            names = 0
    return _NAME_BYTES * weight_of(change) + names


def weight_of(change: Change) -> int:
    """Return the approximate number of names in a change, which its cost depends on.

    It is the sum over the parts that `split` returns.
    """
    match change:
        case TopicsChanged():
            return part_count(change) + len(change.added) + 2 * len(change.changed) + len(change.removed)
        case WritesChanged():
            return 1 + len(change.forbidden) + len(change.restored)
        case MappingsChanged():
            return 1 + 8 * len(change.changed)
        case KvChanged():
            return 1 + (len(change.before or "") + len(change.after or "")) // 64
        case _:
            return 1


def encode(numbered: Numbered, server: str) -> bytes:
    """Return the line of a change."""
    seq, wall_ms, mono_ms, change = numbered
    record = Record(SCHEMA_VERSION, seq, wall_ms, mono_ms, server, **_content(change))
    try:
        return _encoder.encode(record) + b"\n"
    except UnicodeEncodeError:
        # Half of a surrogate pair: a key-value entry or a filter server's address may have one.
        return _encoder.encode(_writable(msgspec.to_builtins(record, str_keys=True))) + b"\n"


def _writable(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {_writable(key): _writable(member) for key, member in value.items()}
        case list() | tuple():
            return [_writable(member) for member in value]
        case _:
            return value


def _content(change: Change) -> Mapping[str, Any]:
    match change:
        case KvChanged():
            return {
                "kind": Kind.KV_CHANGED,
                "namespace": change.namespace,
                "key": change.key,
                "before": None if change.before is None else State(value=change.before),
                "after": None if change.after is None else State(value=change.after),
                "peer": change.peer,
            }
        case SettingsChanged():
            return {"kind": Kind.SETTINGS_CHANGED, "settings": change.values, "peer": change.peer}
        case ServerStarted():
            return {
                "kind": Kind.SERVER_STARTED,
                "address": change.address,
                "restored_brokers": change.restored_brokers,
                "torn_bytes": change.torn_bytes,
            }
        case ServerStopped():
            return {"kind": Kind.SERVER_STOPPED}
        case Gap():
            return {
                "kind": Kind.GAP,
                "missing_from": change.missing_from,
                "reason": change.reason,
                "alive_ms": change.alive_ms,
            }
        case _:
            return _replicas_content(change) if isinstance(change, ReplicasChanged) else _event_content(change)


def _event_content(event: RouteEvent) -> Mapping[str, Any]:
    return {"cause": event.cause, "broker": event.broker_name, **_route_content(event)}


def _replicas_content(change: ReplicasChanged) -> Mapping[str, Any]:
    content: dict[str, Any] = {
        "kind": change.kind,
        "cause": change.cause,
        "cluster": change.cluster,
        "broker": change.broker_name,
        "broker_id": change.broker_id,
        "address": change.address,
        "master_epoch": change.master_epoch,
        "sync_set_epoch": change.sync_set_epoch,
        "unclean": change.is_unclean or None,
    }
    for name, side in (("before", change.before), ("after", change.after)):
        if side is not None:
            content[name] = State(broker_id=side.broker_id, address=side.address, broker_ids=side.broker_ids)
    return content


def _route_content(event: RouteEvent) -> Mapping[str, Any]:
    match event:
        case BrokerJoined() | BrokerLeft() | BrokerConfirmed() | LeaseHeld() | BrokerChanged():
            return {"cluster": event.cluster, "address": event.address, **_broker_content(event)}
        case GroupChanged():
            return {
                "kind": Kind.GROUP_CHANGED,
                "cluster": event.cluster_after or event.cluster_before,
                "before": _group_state(
                    event.cluster_before, event.zone_before, acting_master=event.acting_master_before
                ),
                "after": _group_state(event.cluster_after, event.zone_after, acting_master=event.acting_master_after),
            }
        case FilterServersChanged():
            return {
                "kind": Kind.FILTER_SERVERS_CHANGED,
                "cluster": event.cluster,
                "address": event.address,
                "before": State(filter_servers=event.before),
                "after": State(filter_servers=event.after),
            }
        case SmallestIdChanged():
            gone = event.offline_address
            return {
                "kind": Kind.SMALLEST_ID_CHANGED,
                "cluster": event.cluster,
                "broker_id": event.smallest_id,
                "address": event.smallest_address,
                "before": None if gone is None else State(address=gone),
                "after": State(
                    broker_id=event.smallest_id, address=event.smallest_address, ha_address=event.ha_address
                ),
                "others": event.others,
            }
        case TopicsChanged() | WritesChanged() | MappingsChanged():
            return {"cluster": event.cluster, **_topic_content(event)}


def _topic_content(event: TopicsChanged | WritesChanged | MappingsChanged) -> Mapping[str, Any]:
    match event:
        case TopicsChanged():
            return {
                "kind": Kind.TOPICS_CHANGED,
                "version": event.version,
                "added": event.added or None,
                "changed": event.changed or None,
                "removed": event.removed or None,
            }
        case WritesChanged():
            return {
                "kind": Kind.WRITES_CHANGED,
                "forbidden": sorted(event.forbidden) or None,
                "restored": sorted(event.restored) or None,
            }
        case MappingsChanged():
            return {"kind": Kind.MAPPINGS_CHANGED, "mappings": event.changed}


def _broker_content(
    event: BrokerJoined | BrokerLeft | BrokerConfirmed | LeaseHeld | BrokerChanged,
) -> Mapping[str, Any]:
    match event:
        case BrokerChanged():
            return {
                "kind": Kind.BROKER_CHANGED,
                "broker_id": event.id_after,
                "version": event.version_after,
                "before": State(
                    broker_id=event.id_before, ha_address=event.ha_address_before, version=event.version_before
                ),
                "after": State(
                    broker_id=event.id_after, ha_address=event.ha_address_after, version=event.version_after
                ),
            }
        case BrokerJoined():
            return {
                "kind": Kind.BROKER_JOINED,
                "broker_id": event.broker_id,
                "version": event.version,
                "lease_s": event.lease_s,
                "after": State(broker_id=event.broker_id, ha_address=event.ha_address, version=event.version),
            }
        case BrokerLeft():
            return {
                "kind": Kind.BROKER_LEFT,
                "broker_id": event.broker_id,
                "version": event.version,
                "before": State(broker_id=event.broker_id, version=event.version),
            }
        case BrokerConfirmed():
            return {"kind": Kind.BROKER_CONFIRMED, "broker_id": event.broker_id, "version": event.version}
        case LeaseHeld():
            return {
                "kind": Kind.LEASE_HELD,
                "broker_id": event.broker_id,
                "version": event.version,
                "lease_s": event.lease_s,
            }


def _group_state(cluster: str | None, zone: str | None, *, acting_master: bool) -> State | None:
    return None if cluster is None else State(cluster=cluster, zone=zone, acting_master=acting_master)
