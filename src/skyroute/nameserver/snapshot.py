"""The route table as a file, for the name server's own next start.

One line of JSON says what follows: which form, whose, how long, with which checksum; then comes a line for each broker
group. Topics with the same settings share one entry, since most of ten thousand do: the file is small and read quickly.
"""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from skyroute.files.disk import Disk
from skyroute.files.replace import replace_file
from skyroute.nameserver.errors import SnapshotError
from skyroute.routing.errors import ImageError
from skyroute.routing.image import GroupImage, MemberImage, TableImage
from skyroute.routing.topology import QueueSettings, StaticMapping

FORM: Final = "skyroute-routes"
VERSION: Final = 1


class Header(msgspec.Struct, frozen=True):
    """The first line."""

    form: str
    version: int
    server_id: str
    sequence: int
    """The last number that the journal had given when the image was taken."""
    wall_ms: int
    groups: int
    body_bytes: int
    """How long the rest is."""
    crc32: int


class _Group(msgspec.Struct, frozen=True):
    name: str
    cluster: str
    acting_master: bool
    zone: str | None
    members: tuple[MemberImage, ...]
    queues: list[tuple[QueueSettings, list[str]]]
    forbidden: frozenset[str]
    mappings: dict[str, StaticMapping]


_encoder: Final = msgspec.json.Encoder()
_group_decoder: Final = msgspec.json.Decoder(_Group)
_header_decoder: Final = msgspec.json.Decoder(Header)


def encode_snapshot(image: TableImage, *, server_id: str, sequence: int, wall_ms: int) -> list[bytes]:
    """Return an image as the lines of a file. Line by line, so that other threads get their turn.

    The lines are not joined: a large table has hundreds of megabytes.
    """
    lines = [_encoder.encode(_to_line(group)) + b"\n" for group in image.groups]
    crc32 = 0
    for line in lines:
        crc32 = zlib.crc32(line, crc32)
    header = Header(FORM, VERSION, server_id, sequence, wall_ms, len(lines), sum(map(len, lines)), crc32)
    return [_encoder.encode(header) + b"\n", *lines]


def decode_snapshot(content: bytes) -> tuple[Header, TableImage]:
    """Return what a file holds.

    Raises:
        SnapshotError: It is not whole, or not of our form.
    """
    first, _, body = content.partition(b"\n")
    try:
        header = _header_decoder.decode(first)
    except (msgspec.MsgspecError, ValueError) as error:
        raise SnapshotError("its first line is not that of a snapshot") from error
    if header.form != FORM or header.version != VERSION:
        raise SnapshotError(f"it has the form {header.form} {header.version}, not {FORM} {VERSION}")
    if len(body) != header.body_bytes or zlib.crc32(body) != header.crc32:
        raise SnapshotError("its checksum is wrong")
    try:
        image = TableImage(tuple(map(_from_line, body.splitlines())))
        image.check()
    except (msgspec.MsgspecError, ValueError, ImageError) as error:
        raise SnapshotError(f"it does not hold a route table: {error}") from error
    return header, image


def write_snapshot(path: Path, lines: Sequence[bytes], disk: Disk | None = None) -> None:
    """Put a new snapshot in the place of the old one, on disk before this returns.

    Raises:
        FileWriteError: The disk refused, and the old one is still there.
    """
    replace_file(path, lines, keep_backup=False, disk=disk or Disk())


def _to_line(group: GroupImage) -> _Group:
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


def _from_line(line: bytes) -> GroupImage:
    group = _group_decoder.decode(line)
    queues: dict[str, QueueSettings] = {}
    for settings, topics in group.queues:
        queues.update(dict.fromkeys(topics, settings))
    return GroupImage(
        name=group.name,
        cluster=group.cluster,
        acting_master=group.acting_master,
        zone=group.zone,
        members=group.members,
        queues=queues,
        forbidden=group.forbidden,
        mappings=group.mappings,
    )
