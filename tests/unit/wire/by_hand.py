"""Builds frames, headers and bodies from the specification alone, without a line of the codec under test."""

import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

JSON: Final = 0
BINARY: Final = 1


def frame(header: bytes, body: bytes = b"", form: int = JSON) -> bytes:
    """A whole frame, its length word included."""
    return struct.pack(">II", 4 + len(header) + len(body), form << 24 | len(header)) + header + body


def words(length: int, header_bytes: int, form: int = JSON) -> bytes:
    """The first eight bytes of a frame, true or not."""
    return struct.pack(">II", length, form << 24 | header_bytes)


def json_header(**members: object) -> bytes:
    return json.dumps(members, separators=(",", ":")).encode()


def short_text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def long_text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">i", len(data)) + data


def binary_header(
    code: int = 0,
    *,
    language: int = 0,
    version: int = 0,
    request_id: int = 0,
    flag: int = 0,
    remark: str = "",
    fields: Mapping[str, str] | None = None,
    trailer: bytes = b"",
) -> bytes:
    entries = b"".join(short_text(key) + long_text(value) for key, value in (fields or {}).items())
    start = struct.pack(">hBhii", code, language, version, request_id, flag)
    return start + long_text(remark) + struct.pack(">i", len(entries)) + entries + trailer


def piece(data: bytes) -> bytes:
    """Some bytes behind their 32-bit count, as in the inflated body of a registration."""
    return struct.pack(">i", len(data)) + data


def registration_stream(
    topic_lines: Sequence[bytes],
    *,
    version: bytes = b'{"counter":3,"timestamp":1758275140000}',
    filter_servers: bytes = b"[]",
    mappings: Iterable[bytes] | None = (),
) -> bytes:
    """The body of a compressed registration before it is compressed; without mappings as before 5.0."""
    stream = piece(version) + struct.pack(">i", len(topic_lines)) + b"".join(map(piece, topic_lines))
    stream += piece(filter_servers)
    if mappings is not None:
        records = list(mappings)
        stream += struct.pack(">i", len(records)) + b"".join(map(piece, records))
    return stream


def compressed_registration(
    topic_lines: Sequence[bytes],
    *,
    version: bytes = b'{"counter":3,"timestamp":1758275140000}',
    filter_servers: bytes = b"[]",
    mappings: Iterable[bytes] | None = (),
) -> bytes:
    stream = registration_stream(topic_lines, version=version, filter_servers=filter_servers, mappings=mappings)
    return zlib.compress(stream, 9)
