"""The snapshot file of the route table, read at the next start of the name server.

A header line of JSON has format, version, server id, length and checksum; then comes a line for each broker group.
Topics with the same settings share one entry: the file is small and fast to read.
"""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from skyroute.files.disk import Disk
from skyroute.files.replace import replace_file
from skyroute.nameserver.errors import SnapshotError
from skyroute.routing.errors import InvalidSnapshotError
from skyroute.routing.snapshot import GroupSnapshot, MemberSnapshot, TableSnapshot
from skyroute.routing.topology import QueueSettings, StaticMapping

FORM: Final = "skyroute-routes"
VERSION: Final = 1


class Header(msgspec.Struct, frozen=True):
    """The header line."""

    form: str
    version: int
    server_id: str
    sequence: int
    """Last sequence number of the journal at the time of the snapshot."""
    wall_ms: int
    groups: int
    body_bytes: int
    """Length of the lines after the header."""
    crc32: int


class _Group(msgspec.Struct, frozen=True):
    name: str
    cluster: str
    acting_master: bool
    zone: str | None
    members: tuple[MemberSnapshot, ...]
    queues: list[tuple[QueueSettings, list[str]]]
    forbidden: frozenset[str]
    mappings: dict[str, StaticMapping]


_encoder: Final = msgspec.json.Encoder()
_group_decoder: Final = msgspec.json.Decoder(_Group)
_header_decoder: Final = msgspec.json.Decoder(Header)


def encode_snapshot(snapshot: TableSnapshot, *, server_id: str, sequence: int, wall_ms: int) -> list[bytes]:
    """Return a snapshot as the lines of a file. Encodes line by line, so that other threads can run.

    The lines are not joined: a large table has hundreds of megabytes.
    """
    lines = [_encoder.encode(_to_line(group)) + b"\n" for group in snapshot.groups]
    crc32 = 0
    for line in lines:
        crc32 = zlib.crc32(line, crc32)
    header = Header(FORM, VERSION, server_id, sequence, wall_ms, len(lines), sum(map(len, lines)), crc32)
    return [_encoder.encode(header) + b"\n", *lines]


def decode_snapshot(content: bytes) -> tuple[Header, TableSnapshot]:
    """Return header and snapshot of a file.

    Raises:
        SnapshotError: It is damaged, or has another format.
    """
    first, _, body = content.partition(b"\n")
    try:
        header = _header_decoder.decode(first)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise SnapshotError("its first line is not a snapshot header") from error
    if header.form != FORM or header.version != VERSION:
        raise SnapshotError(f"its format is {header.form} {header.version} (expected {FORM} {VERSION})")
    if len(body) != header.body_bytes or zlib.crc32(body) != header.crc32:
        raise SnapshotError("its checksum is wrong")
    try:
        snapshot = TableSnapshot(tuple(map(_from_line, body.splitlines())))
        snapshot.check()
    except (msgspec.MsgspecError, ValueError, RecursionError, InvalidSnapshotError) as error:
        raise SnapshotError(f"it has no valid route table: {error}") from error
    return header, snapshot


def write_snapshot(path: Path, lines: Sequence[bytes], disk: Disk | None = None) -> None:
    """Replace the snapshot file; it is on disk when this returns.

    Raises:
        FileWriteError: The file cannot be written; the old one is unchanged.
    """
    replace_file(path, lines, keep_backup=False, disk=disk or Disk())


def _to_line(group: GroupSnapshot) -> _Group:
    alike: dict[QueueSettings, list[str]] = {}
    for topic, settings in group.queues.items():
        alike.setdefault(settings, []).append(topic)
    return _Group(
        name=group.name,
        cluster=group.cluster,
        acting_master=group.acting_master,
        zone=group.zone,
        members=group.members,
        queues=list(alike.items()),
        forbidden=group.forbidden,
        mappings=dict(group.mappings),
    )


def _from_line(line: bytes) -> GroupSnapshot:
    group = _group_decoder.decode(line)
    queues: dict[str, QueueSettings] = {}
    for settings, topics in group.queues:
        queues.update(dict.fromkeys(topics, settings))
    return GroupSnapshot(
        name=group.name,
        cluster=group.cluster,
        acting_master=group.acting_master,
        zone=group.zone,
        members=group.members,
        queues=queues,
        forbidden=group.forbidden,
        mappings=group.mappings,
    )
