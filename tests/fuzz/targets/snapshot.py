"""Snapshots of routes: any file is refused or restored, and a restored table gives the same snapshot.

Input: lines of broker groups; the header line with the checksum is added. With a first line of `raw`, the rest is the
whole file.
"""

import zlib
from typing import Final

import msgspec

from skyroute.errors import SkyrouteError
from skyroute.nameserver.errors import SnapshotError
from skyroute.nameserver.snapshot_file import FORM, VERSION, Header, decode_snapshot, encode_snapshot
from skyroute.routing.discovery import find_route
from skyroute.routing.snapshot import TableSnapshot
from skyroute.routing.table import RouteTable

RAW: Final = b"raw\n"


def file_of(data: bytes) -> bytes:
    if data.startswith(RAW):
        return data[len(RAW) :]
    header = Header(FORM, VERSION, "server", 7, 1, data.count(b"\n"), len(data), zlib.crc32(data))
    return msgspec.json.encode(header) + b"\n" + data


def check(data: bytes) -> None:
    try:
        header, snapshot = decode_snapshot(file_of(data))
    except SnapshotError:
        return
    lines = encode_snapshot(snapshot, server_id=header.server_id, sequence=header.sequence, wall_ms=header.wall_ms)
    again = decode_snapshot(b"".join(lines))[1]
    assert again == snapshot
    check_restored(snapshot)


def check_restored(snapshot: TableSnapshot) -> None:
    table = RouteTable()
    try:
        table.restore(snapshot, lease_s=60.0, now=0.0)
    except SkyrouteError:
        return
    for topic in list(table.topics)[:4]:
        find_route(table, topic)
    restored = table.snapshot(0.0)
    assert {group.name: group.queues for group in restored.groups} == {
        group.name: group.queues for group in snapshot.groups
    }
    assert restored.broker_count == snapshot.broker_count
    table.evict_expired(1e12)
