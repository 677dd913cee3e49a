"""Spark's schema of a journal record. docs/journal.md describes the fields; a test compares both."""

from typing import Final

VERSION: Final = "array<bigint>"
QUEUES: Final = "array<bigint>"
MAPPING: Final = (
    "struct<topic: string, broker_name: string, total_queues: int, epoch: bigint, scope: string, dirty: boolean, "
    "current_ids: map<string, int>>"
)
STATE: Final = (
    f"struct<cluster: string, broker_id: bigint, address: string, ha_address: string, version: {VERSION}, "
    "acting_master: boolean, zone: string, filter_servers: array<string>, value: string, "
    "broker_ids: array<bigint>>"
)

REQUIRED: Final = ("v", "seq", "wall_ms", "mono_ms", "server", "kind")
"""Fields that every record has."""

RECORD: Final = f"""
    v int, seq bigint, wall_ms bigint, mono_ms bigint, server string, kind string, cause string, cluster string,
    broker string, broker_id bigint, address string, version {VERSION}, lease_s double, before {STATE}, after {STATE},
    added map<string, {QUEUES}>, changed map<string, array<{QUEUES}>>, removed map<string, {QUEUES}>,
    forbidden array<string>, restored array<string>, mappings map<string, array<{MAPPING}>>, others array<string>,
    namespace string, key string, settings map<string, array<string>>, peer string, restored_brokers bigint,
    torn_bytes bigint, missing_from bigint, reason string, alive_ms bigint, master_epoch bigint, sync_set_epoch bigint,
    unclean boolean
"""
